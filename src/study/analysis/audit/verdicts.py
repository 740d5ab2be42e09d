"""Every cell of the paper beside this study's value under each protocol, with a verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from omegaconf import DictConfig

from study import paths
from study.analysis.audit.figure_statements import CANNOT, NOT, NOT_RUN, REPRODUCED, figure_lines
from study.analysis.audit.settings import Verdicts, read
from study.analysis.audit.tables import described, run_frames, write_tables
from study.analysis.report import paper
from study.analysis.report.tables import markdown
from study.config.compose import choices, load
from study.errors import StudyError
from study.evaluation.metrics import PAPER_METRICS

Float64Array = NDArray[np.float64]

ORDER = "same order only"
VERDICTS = (REPRODUCED, ORDER, NOT, NOT_RUN, CANNOT)
COLUMNS = ["table", "place", "row", "metric", "k", "paper", "protocol", "system", "counterpart", "ours", "low", "high"]
COLUMNS += ["definition", "difference", "tasks", "seeds", "seeds_within", "pairs", "pairs_in_order", "trivial"]
COLUMNS += ["verdict", "reason"]
# A difference of 0.01 is within 0.01 although its digits may say 0.010000000000000009.
BORDER = 1e-9
# F1 as the paper defines it, and as some of its rows are computed (study.analysis.report.paper.arithmetic).
F1_DEFINITIONS = {"f1": "mean over tasks", "f1_of_means": "of the means"}


@dataclass(frozen=True)
class Run:
    """One system under one protocol.

    Attributes:
        cells: index metric@k with f1 and f1_of_means, columns ours, low, high.
        by_seed: mean over tasks of each seed, columns as the index of `cells`.
        drawn: bootstrap means over tasks, one column per row of `cells`; runs over the same tasks draw the same ones.
        tasks: ids in the order of the draws.
    """

    cells: pd.DataFrame
    by_seed: pd.DataFrame
    drawn: pd.DataFrame
    tasks: tuple[int, ...]


def replicates(values: Float64Array, *, resamples: int, seed: int) -> Float64Array:
    """Bootstrap means over tasks.

    Args:
        values: shape (tasks, measures).

    Returns: shape (resamples, measures).
    """
    n, rng = len(values), np.random.default_rng(seed)
    found = [
        rng.multinomial(n, np.full(n, 1 / n), size=min(200, resamples - start)) @ values / n
        for start in range(0, resamples, 200)
    ]
    return np.concatenate(found)


def measured(frame: pd.DataFrame, chosen: Verdicts) -> Run:
    """A run's cells with their intervals over tasks, values averaged over seeds first.

    Args:
        frame: a per-task file (`study.evaluation.per_task`).
    """
    tasks = frame.drop(columns="seed").groupby("task_id").mean()[list(PAPER_METRICS)].dropna()
    values = tasks.to_numpy(np.float64)
    drawn = replicates(values, resamples=chosen.resamples, seed=chosen.seed)
    means = with_f1_of_means(pd.DataFrame(values.mean(axis=0)[None], columns=list(PAPER_METRICS)))
    again = with_f1_of_means(pd.DataFrame(drawn, columns=list(PAPER_METRICS)))
    tail = (1 - chosen.level) / 2
    table = pd.DataFrame({"ours": means.iloc[0], "low": again.quantile(tail), "high": again.quantile(1 - tail)})
    by_seed = frame[frame["task_id"].isin(tasks.index)].groupby("seed")[list(PAPER_METRICS)].mean()
    return Run(table, with_f1_of_means(by_seed), again, tuple(tasks.index))


def with_f1_of_means(means: pd.DataFrame) -> pd.DataFrame:
    """Means of precision and recall with the F1 that they have, which is not the mean of each task's F1."""
    found = means.copy()
    for k in (5, 10):
        precision, recall = means[f"precision@{k}"], means[f"recall@{k}"]
        found[f"f1_of_means@{k}"] = (2 * precision * recall / (precision + recall)).where(precision + recall > 0, 0.0)
    return found


def runs(dataset: str, systems: set[str], protocols: list[str], chosen: Verdicts) -> dict[Any, Run]:
    """(protocol, system) -> `measured`, for those that have run."""
    return {
        (protocol, system): measured(frame, chosen)
        for protocol in protocols
        for system, frame in run_frames(dataset, protocol, sorted(systems)).items()
    }


def why_not(system: str, protocol: str, known: Mapping[str, Sequence[str]]) -> tuple[str, str]:
    """The verdict on a cell without a value, and why there is none.

    Only a system that needs the history of a task cannot be computed, and only where a protocol asks new tasks. One
    that has not run, that is not configured for a protocol (the list says what is run here, not what could be), or that
    is not built, was not run here.

    Args:
        known: system -> the protocols that it is configured for.
    """
    if system not in known:
        return NOT_RUN, f"no system {system} in this study" if system else "no such system in this study"
    if asks_new_tasks(protocol) and not any(map(asks_new_tasks, known[system])):
        return CANNOT, f"{system} needs a task's history, and {protocol} asks new tasks"
    return NOT_RUN, f"{system} has not run under {protocol}"


def asks_new_tasks(protocol: str) -> bool:
    """Whether the test tasks of a protocol have no training interaction (`study.data.splits.Split.cold`)."""
    return protocol.startswith("cold")


def cell_lines(cells: pd.DataFrame, found: dict[Any, Run], protocols: list[str], chosen: Verdicts) -> pd.DataFrame:
    """One line per cell and protocol, without the verdict on its order.

    For F1 the nearer of both definitions is taken, which favours the paper; `definition` says which. A cell is
    reproduced where the mean over seeds and most seeds are within the tolerance: seeds on both sides of the printed
    value, none of them near it, do not reproduce it by their mean.
    """
    lines = []
    named, there = set(own(cells)), set(choices("system"))
    known = {name: list(load([f"system={name}"]).system.protocols) for name in named & there}
    for row, system in zip(cells.to_dict("records"), own(cells), strict=True):
        about = {"table": row["table"], "place": row["place"], "row": row["printed"], "metric": row["metric"]}
        about |= {"k": row["k"], "paper": row["value"], "trivial": row["value"] <= chosen.tolerance, "system": system}
        about["counterpart"] = "same" if row["system"] else "stand-in" if system else "none"
        for protocol in protocols:
            line = about | {"protocol": protocol}
            if (protocol, system) not in found:
                verdict, reason = why_not(system, protocol, known)
                lines.append(line | {"reason": reason, "verdict": verdict})
                continue
            run = found[protocol, system]
            names = list(F1_DEFINITIONS) if row["metric"] == "f1" else [row["metric"]]
            name = min(names, key=lambda part: abs(run.cells.loc[f"{part}@{row['k']}", "ours"] - row["value"]))
            ours, low, high = run.cells.loc[f"{name}@{row['k']}"]
            near = within(run.by_seed[f"{name}@{row['k']}"] - row["value"], chosen.tolerance)
            same = bool(within(ours - row["value"], chosen.tolerance) and 2 * near.sum() > len(near))
            line |= {"ours": ours, "low": low, "high": high, "definition": F1_DEFINITIONS.get(name, "")}
            line |= {"difference": ours - row["value"], "tasks": len(run.tasks)}
            line |= {"seeds": len(near), "seeds_within": int(near.sum())}
            line["reason"] = row["differs"] if not row["system"] else ""
            lines.append(line | {"verdict": REPRODUCED if same else NOT})
    return pd.DataFrame(lines).reindex(columns=COLUMNS)


def within(difference: Any, tolerance: float) -> Any:
    """Whether a difference, or each of several, is within the tolerance."""
    return np.abs(difference) <= tolerance + BORDER


def own(cells: pd.DataFrame) -> pd.Series:
    """The study's system of each printed cell: of the same configuration, else of the nearest, else empty."""
    return cells["system"].where(cells["system"] != "", cells["stand_in"])


def with_order(lines: pd.DataFrame, found: dict[Any, Run], level: float) -> pd.DataFrame:
    """Set "same order only" where a cell is off, but every comparison with another row comes out as in the paper.

    A cell is compared with the other systems of the same table, column and protocol; `pairs` counts these, and
    `pairs_in_order` those that differ from it in the printed direction by a paired interval over tasks, at `level`,
    that excludes 0. A system that stands in several printed rows is one pair, in order if it is for all of them; rows
    with the cell's own printed value say nothing. Without a pair there is no order to keep.
    """
    done = lines.assign(pairs=0, pairs_in_order=0)
    for _, part in lines[lines["ours"].notna()].groupby(["table", "metric", "k", "protocol"]):
        rows = list(part.to_dict("records"))
        for at, row in zip(part.index, rows, strict=True):
            kept_by: dict[str, bool] = {}
            for other in rows:
                if other["system"] != row["system"] and other["paper"] != row["paper"]:
                    agrees = direction(row, other, found, level) == np.sign(row["paper"] - other["paper"])
                    kept_by[other["system"]] = kept_by.get(other["system"], True) and bool(agrees)
            done.loc[at, "pairs"], done.loc[at, "pairs_in_order"] = len(kept_by), sum(kept_by.values())
    kept = (done["verdict"] == NOT) & (done["pairs"] > 0) & (done["pairs"] == done["pairs_in_order"])
    done.loc[kept, "verdict"] = ORDER
    return done


def direction(a: Mapping[Any, Any], b: Mapping[Any, Any], found: dict[Any, Run], level: float) -> int:
    """1 if line `a` of `cell_lines` is above line `b`, -1 if below, 0 if the paired interval over tasks holds 0.

    Runs over different tasks are not paired: 0.
    """
    first, second = (found[line["protocol"], line["system"]] for line in (a, b))
    if first.tasks != second.tasks:
        return 0
    gap = drawn_cell(first, a) - drawn_cell(second, b)
    low, high = np.quantile(gap, [(1 - level) / 2, (1 + level) / 2])
    return int(low > 0) - int(high < 0)


def drawn_cell(run: Run, line: Mapping[Any, Any]) -> Float64Array:
    """The draws of a line's cell, F1 by the definition that the line has."""
    name = {title: key for key, title in F1_DEFINITIONS.items()}.get(line["definition"], line["metric"])
    return run.drawn[f"{name}@{line['k']}"].to_numpy(np.float64)


def count_lines(dataset: str) -> pd.DataFrame:
    """The counts of Table 2: reproduced where one of the ways of counting gives the printed number."""
    path = paths.tables(dataset) / "table2.csv"
    counted = pd.read_csv(path).set_index(["set", "attribute"]) if path.exists() else None
    lines = []
    for row in paper.table2().to_dict("records"):
        name = f"{row['set']}: {row['attribute']}"
        line = {"table": row["table"], "place": row["place"], "row": name, "metric": "count", "paper": row["value"]}
        line |= {"counterpart": "same", "trivial": False}
        if counted is None:
            lines.append(line | {"verdict": NOT_RUN, "reason": "the data has not been prepared"})
            continue
        ways = counted.loc[(row["set"], row["attribute"]), ["released", "case_folded", "normalised"]].astype(float)
        way = (ways - row["value"]).abs().idxmin()
        line |= {"ours": ways[way], "definition": way, "difference": ways[way] - row["value"]}
        lines.append(line | {"verdict": REPRODUCED if ways[way] == row["value"] else NOT})
    return pd.DataFrame(lines).reindex(columns=COLUMNS)


def compute_table(dataset: str, protocols: list[str]) -> pd.DataFrame:
    """verdicts.csv: every cell of Tables 3 and 4 under every protocol, Table 2, and the statements on Figures 6 to 9.

    Raises:
        StudyError: the paper does not describe this data set.
    """
    if not described(dataset):
        fix = f"use dataset={paper.load().attrs['dataset']}"
        raise StudyError(f"the paper reports no number for {dataset}", fix=fix)
    chosen, cells = read(Verdicts), paper.load()
    found = runs(dataset, set(own(cells)) - {""}, protocols, chosen)
    judged = with_order(cell_lines(cells, found, protocols, chosen), found, chosen.level)
    parts = [judged, count_lines(dataset), figure_lines(dataset)]
    # By records: concatenating columns without any value would guess at their types.
    return pd.DataFrame([line for part in parts for line in part.to_dict("records")]).reindex(columns=COLUMNS)


def summary(table: pd.DataFrame) -> pd.DataFrame:
    """How many cells of each row have which verdict, under the stated protocol and under whichever suits a cell best.

    Returns: one row per printed row of Tables 3 and 4: place, row, counterpart, cells, the five verdicts under the
        stated protocol, `reproduced somewhere` (cells reproduced under some protocol), and the protocol of
        the smallest mean absolute difference with that difference.
    """
    stated = read(Verdicts).stated_protocol
    lines = []
    for (place, row), part in table[table["protocol"].notna()].groupby(["place", "row"], sort=False):
        at_home = part[part["protocol"] == stated]
        counts = at_home["verdict"].value_counts()
        somewhere = part[part["verdict"] == REPRODUCED].drop_duplicates(["metric", "k"])
        gaps = part.assign(gap=part["difference"].abs()).groupby("protocol")["gap"].mean().dropna()
        lines.append(
            {
                "place": place,
                "row": row,
                "counterpart": part["counterpart"].iloc[0],
                "cells": len(at_home),
                **{name: int(counts.get(name, 0)) for name in VERDICTS},
                "reproduced somewhere": len(somewhere),
                "nearest protocol": gaps.idxmin() if len(gaps) else "none",
                "mean difference": gaps.min(),
            }
        )
    return pd.DataFrame(lines)


def printed(table: pd.DataFrame) -> str:
    """The verdicts as text: one line per cell, its value and difference under each protocol that has one, the verdict.

    The verdict is that of the stated protocol; where nothing can be computed there, that of the protocol named.
    """
    stated = read(Verdicts).stated_protocol
    lines = []
    for (place, row, metric, _), part in table.groupby(["place", "row", "metric", "k"], sort=False, dropna=False):
        computed = part[part["ours"].notna()].set_index("protocol", drop=False)
        texts = [
            f"{line['protocol']} {line['ours']:.4f} ({line['difference']:+.4f})" for line in computed.to_dict("records")
        ]
        if part["protocol"].isna().all():
            line = part.iloc[0]
            texts = [f"{line['ours']:g} ({line['difference']:+g}, {line['definition']})" for _ in computed.index]
            shown, verdict = f"{line['paper']:g}", str(line["verdict"])
            verdict += f" ({line['reason']})" if isinstance(line["reason"], str) else ""
        else:
            shown = f"{part['paper'].iloc[0]:.4f}"
            at_home = part[part["protocol"] == stated].iloc[0]
            verdict = str(at_home["verdict"])
            elsewhere = computed.loc[computed["verdict"] == REPRODUCED, "protocol"]
            if verdict in (CANNOT, NOT_RUN):
                verdict += f" ({at_home['reason']})"
            if at_home["pairs"]:
                verdict += f" ({at_home['pairs_in_order']:.0f} of {at_home['pairs']:.0f} pairs in order)"
            if len(elsewhere) and at_home["verdict"] != REPRODUCED:
                verdict += f"; reproduced under {', '.join(elsewhere)}"
            if at_home["trivial"]:
                verdict += "; the printed value itself is within the tolerance of 0"
            if at_home["counterpart"] == "stand-in":
                verdict += f" (stand-in {at_home['system']})"
        name = str(metric) if part["k"].isna().all() else f"{metric}@{part['k'].iloc[0]:.0f}"
        lines.append((place, row, name, shown, "; ".join(texts) or "none", verdict))
    columns = ["place", "row", "cell", "paper", "ours (difference)", f"verdict under {stated}"]
    return markdown(pd.DataFrame(lines, columns=columns))


def verify_paper(config: DictConfig) -> str:
    """The verdicts of the configured data set as text, with counts. Writes nothing; `compute` does."""
    table = compute_table(config.dataset.name, list(config.dataset.protocols))
    stated = read(Verdicts).stated_protocol
    home = table[table["protocol"] == stated]["verdict"].value_counts()
    counts = ", ".join(f"{home.get(name, 0)} {name}" for name in VERDICTS)
    return f"{printed(table)}\nTables 3 and 4 under {stated}, {home.sum()} cells: {counts}\n"


def compute(config: DictConfig) -> list[Path]:
    """Write verdicts.csv and verdict_summary.csv; nothing for a data set that the paper does not describe."""
    dataset = config.dataset.name
    if not described(dataset):
        return []
    table = compute_table(dataset, list(config.dataset.protocols))
    return write_tables(dataset, {"verdicts": table, "verdict_summary": summary(table)}, "verdicts", read(Verdicts))
