"""Tables of the consistency checks: every printed row, and this study's own rows as a control with a known answer."""

from __future__ import annotations

import sys
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from omegaconf import DictConfig
from tqdm import tqdm

from study import paths
from study.analysis.audit import consistency as rules
from study.analysis.audit.paper_cells import described, folder, printed_rows, settings
from study.analysis.report import paper
from study.analysis.report.tables import PAPER_METRICS
from study.data import dataset as datasets
from study.data import split_files
from study.data.dataset import Dataset
from study.evaluation.records import record
from study.files import write_csv, write_json

KEYS = ("rounding", "max_relevant", "joint_max_relevant", "small", "own_protocol")
CELLS = list(PAPER_METRICS)
# Readings of F1: the paper defines a mean over tasks; without F1 a row is judged by its other six cells alone.
READINGS: dict[str, Any] = {"all eight cells": None, "without F1": rules.WITHOUT_F1}
# The readings of the other cells that the protocol grid tries (conf/audit/protocols.yaml); F1 is left out, since none
# of them settles it.
OTHER_READINGS = {
    f"without F1, {title}": {"recall": recall, "ndcg": ndcg}
    for title, recall, ndcg in (
        ("NDCG over what was found", "recall", "ndcg_found"),
        ("recall capped at k", "recall_capped", "ndcg"),
        ("recall capped at k and NDCG over what was found", "recall_capped", "ndcg_found"),
        ("hit rate as recall", "hit_rate", "ndcg"),
        ("hit rate as recall and NDCG over what was found", "hit_rate", "ndcg_found"),
    )
}


def shares(counts: np.ndarray) -> dict[int, float]:
    """Number of relevant servers -> share of the tasks that have it, tasks without any left out."""
    numbers, times = np.unique(counts[counts > 0], return_counts=True)
    return {int(n): float(t) / times.sum() for n, t in zip(numbers, times, strict=True)}


def scenarios(data: Dataset, max_relevant: int) -> dict[str, tuple[rules.Points, dict[int, float] | None]]:
    """What is assumed about the labels of the test tasks: title -> points, and the shares where they are fixed.

    The splits that exist on disk give the released label counts; the longer lists those of ``mcp_task_all.csv``.
    """
    found: dict[str, dict[int, float] | None] = {}
    longest = max(len(row) for row in data.lists)
    for name, title in (("loo", "leave one out"), ("cold", "task split"), ("warm", "interaction split")):
        path = paths.splits(data.name) / f"{name}.parquet"
        if path.exists():
            split = split_files.load(path, data)
            found[title] = shares(np.diff(split.test.indptr))
            longer = paths.prepared(data.name) / "labels_all.parquet"
            if name == "cold" and longer.exists():
                ids = data.tasks["id"].to_numpy()[split.tasks("test")]
                counts = pd.read_parquet(longer).groupby("task_id").size()
                longest = max(longest, int(counts.max()))
                found["task split, longer lists"] = shares(counts.reindex(ids, fill_value=0).to_numpy())
    made: dict[str, tuple[rules.Points, dict[int, float] | None]] = {
        f"any lists of up to {max_relevant}": (rules.points(range(1, max_relevant + 1)), None),
        f"any lists of up to {longest}": (rules.points(range(1, longest + 1)), None),
        "one server per task": (rules.points([1]), None),
    }
    return made | {title: (rules.points(fixed), fixed) for title, fixed in found.items() if fixed and fixed != {1: 1.0}}


def own_rows(dataset: str, protocol: str) -> pd.DataFrame:
    """This study's rows of one protocol in the form of `printed_rows`; empty where nothing has run."""
    path = paths.tables(dataset) / "overall.csv"
    columns = ["table", "place", "row", "own", *CELLS]
    if not path.exists():
        return pd.DataFrame(columns=columns)
    overall = pd.read_csv(path)
    rows = overall[overall["protocol"] == protocol].assign(
        name=lambda part: part["metric"] + "@" + part["k"].astype(str)
    )
    wide = rows.pivot_table(index="system", columns="name", values="mean")
    if not set(CELLS) <= set(wide):
        return pd.DataFrame(columns=columns)
    return wide.assign(table="own", place=protocol, row="ours: " + wide.index, own=wide.index)[columns].reset_index(
        drop=True
    )


def cell_checks(rows: pd.DataFrame, possible: rules.Points, rounding: float) -> pd.DataFrame:
    """Per row and cutoff, what precision and recall imply and whether F1 and NDCG can stand beside them.

    Returns: implied_relevant with its range under rounding; precision_least = R / k, as no task has less than one
        relevant server; f1_of_means; the possible ranges of the mean F1 and NDCG; `breaks` names the violated bounds.
    """
    lines = []
    for entry in rows.to_dict("records"):
        printed = np.array([entry[name] for name in CELLS])
        for k in (5, 10):
            precision, recall, f1, ndcg = (entry[f"{name}@{k}"] for name in ("precision", "recall", "f1", "ndcg"))
            implied, low, high = rules.implied_relevant(precision, recall, k, rounding=rounding)
            given = [f"recall@{k}", f"precision@{k}"]
            ranges = {
                name: rules.possible_range(printed, f"{name}@{k}", given, possible, rounding=rounding)
                for name in ("f1", "ndcg")
            }
            total = precision + recall
            broken = ["precision below recall / k"] * (precision + rounding < (recall - rounding) / k)
            for name, value in (("f1", f1), ("ndcg", ndcg)):
                least, most = ranges[name]
                broken += [f"{name} too low"] * (value + rounding < least) + [f"{name} too high"] * (
                    value - rounding > most
                )
            lines.append(
                {
                    "table": entry["table"],
                    "row": entry["row"],
                    "k": k,
                    "implied_relevant": implied,
                    "implied_low": low,
                    "implied_high": high,
                    "precision": precision,
                    "precision_least": recall / k,
                    "f1": f1,
                    "f1_of_means": 2 * precision * recall / total if total else 0.0,
                    "f1_low": ranges["f1"][0],
                    "f1_high": ranges["f1"][1],
                    "ndcg": ndcg,
                    "ndcg_low": ranges["ndcg"][0],
                    "ndcg_high": ranges["ndcg"][1],
                    "breaks": "; ".join(broken),
                }
            )
    return pd.DataFrame(lines)


def feasibility(
    rows: pd.DataFrame, assumed: dict[str, tuple[rules.Points, dict[int, float] | None]], rounding: float
) -> pd.DataFrame:
    """How far some cell of each row must at least be changed for the row to be possible under each assumption.

    Printed rows are also tried under `OTHER_READINGS` of their columns.

    Returns: table, row, labels (the assumption), cells (which count, and how they are read where not by the paper's
        definitions), change (0 to 1), possible (change within rounding).
    """
    lines = []
    numbers = {title: [int(n) for n in np.unique(possible.n_relevant)] for title, (possible, _) in assumed.items()}
    again = {
        (title, name): rules.points(found, **reading)
        for title, found in numbers.items()
        for name, reading in OTHER_READINGS.items()
    }
    for entry in tqdm(rows.to_dict("records"), desc="rows", unit="row", leave=False, disable=not sys.stderr.isatty()):
        printed = np.array([entry[name] for name in CELLS])
        for title, (possible, fixed) in assumed.items():
            tried = {name: (possible, cells) for name, cells in READINGS.items()}
            if entry["table"] != "own":
                tried |= {name: (again[title, name], rules.WITHOUT_F1) for name in OTHER_READINGS}
            for reading, (kind, cells) in tried.items():
                change = rules.smallest_change([printed], kind, shares=fixed, cells=cells)
                lines.append((entry["table"], entry["row"], title, reading, change, change <= rounding))
    return pd.DataFrame(lines, columns=["table", "row", "labels", "cells", "change", "possible"])


def pairs(rows: pd.DataFrame, possible: rules.Points, rounding: float) -> pd.DataFrame:
    """Whether two rows can come from one set of test tasks with one set of labels, F1 left out.

    Returns: row_a, row_b, change_a, change_b (each row alone), change (both on the same tasks), `together` = change
        within rounding, `conflict` = each alone is possible, both together are not; max_relevant = the longest list
        considered.
    """
    printed = {entry["row"]: np.array([entry[name] for name in CELLS]) for entry in rows.to_dict("records")}
    alone = {name: rules.smallest_change([row], possible, cells=rules.WITHOUT_F1) for name, row in printed.items()}
    lines = []
    chosen = list(combinations(printed, 2))
    for a, b in tqdm(chosen, desc="pairs", unit="pair", leave=False, disable=not sys.stderr.isatty()):
        change = rules.smallest_change([printed[a], printed[b]], possible, cells=rules.WITHOUT_F1)
        lines.append((a, b, alone[a], alone[b], change, change <= rounding))
    table = pd.DataFrame(lines, columns=["row_a", "row_b", "change_a", "change_b", "change", "together"])
    singly = (table["change_a"] <= rounding) & (table["change_b"] <= rounding)
    return table.assign(conflict=singly & ~table["together"], max_relevant=int(possible.n_relevant.max()))


def gains() -> pd.DataFrame:
    """The line "Gains" of Table 3 beside both readings of it, in %, and which reading is nearer."""
    table = paper.gains(paper.wide(paper.load(), "table3")).assign(printed=paper.printed_gains())
    error = pd.DataFrame({name: (table["printed"] - table[name]).abs() for name in ("over_baseline", "over_method")})
    return table.assign(nearer=error.idxmin(axis=1), error=error.min(axis=1)).rename_axis("metric").reset_index()


def compute(config: DictConfig) -> list[Path]:
    """Write consistency.csv, feasibility.csv, row_pairs.csv and gains.csv of the configured data set, with a record.

    For a data set that the paper does not describe only this study's own rows are examined, and the last two tables
    are not written.
    """
    dataset, chosen = config.dataset.name, settings("consistency", KEYS)
    data, rounding = datasets.load(dataset), float(chosen["rounding"])
    assumed = scenarios(data, chosen["max_relevant"])
    own = own_rows(dataset, chosen["own_protocol"])
    rows = pd.concat([printed_rows(), own], ignore_index=True) if described(dataset) else own
    written = {
        "consistency": cell_checks(rows, next(iter(assumed.values()))[0], rounding),
        "feasibility": feasibility(rows, assumed, rounding),
    }
    if described(dataset):
        wide_enough = rules.points(range(1, chosen["joint_max_relevant"] + 1))
        written |= {"row_pairs": pairs(printed_rows(), wide_enough, rounding), "gains": gains()}
    for name, table in written.items():
        write_csv(folder(dataset) / f"{name}.csv", table)
    write_json(folder(dataset) / "consistency.json", record(dataset=dataset, settings=chosen, tables=list(written)))
    return [folder(dataset) / f"{name}.csv" for name in written]
