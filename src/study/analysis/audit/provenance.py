"""One provenance class per released label, from the detectors of `study.analysis.audit.detectors` in a stated order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from study.analysis.audit.detectors import (
    BY_CONTENT,
    DETECTORS,
    ORDER_RULES,
    UNIONS,
    Evidence,
    Labels,
    in_pattern,
    rates,
)
from study.analysis.framework import Context, Tables, analysis
from study.base.files import write_parquet
from study.data.dataset import Dataset
from study.data.lists import BoolArray, places, set_keys, shuffled
from study.evaluation.statistics import clustered_share
from study.runner.row_store import read_top10

NONE = "none"
RELEASED = "released labels"


def classify(flags: Any, order: list[str]) -> np.ndarray:
    """The first detector of `order` that fires, `none` where none does; shape of the flags, str."""
    return np.asarray(np.select([flags[name] for name in order], order, default=NONE))


def labels_frame(data: Dataset, evidence: Evidence) -> pd.DataFrame:
    """One row per label: task_id, server_id, position (from 1, in the cleaned list), class, every detector's flag, and
    cluster, the number of the label's set of servers: tasks with the same set are one observation.
    """
    matrix = evidence.matrix
    task, column = np.nonzero(matrix >= 0)
    flags = {name: flag[task, column] for name, flag in (evidence.content(matrix) | evidence.order(matrix)).items()}
    ids = np.sort(data.servers["id"].to_numpy())
    frame = pd.DataFrame({"task_id": data.tasks["id"].to_numpy()[task], "server_id": ids[matrix[task, column]]})
    frame = frame.assign(position=column + 1, **{"class": classify(flags, evidence.settings.order)})
    return frame.assign(**flags, cluster=set_keys(matrix)[task])


def detector_table(frame: pd.DataFrame, evidence: Evidence) -> pd.DataFrame:
    """How often each detector fires, whether or not an earlier one did, beside its rate by chance; then `UNIONS`.

    Also chance with its range over the permutations; lift = share / chance. For detectors of order also the rates
    with other servers in the kept order of each list, sampled as often as they are listed (kept) or evenly (even).
    """
    rng, times = np.random.default_rng(evidence.settings.seed), max(1, evidence.settings.permutations // 5)
    sampled = {"chance": pd.DataFrame([evidence.by_chance(rng) for _ in range(times)])}
    for kind, weight in (("kept", evidence.used), ("even", np.ones_like(evidence.used))):
        lists = (evidence.sample_lists(weight, rng) for _ in range(times))
        sampled[kind] = pd.DataFrame([rates(evidence.order(matrix), matrix) for matrix in lists])
    rows = []
    for name in (*DETECTORS, *UNIONS):
        flag = frame[list(UNIONS.get(name, (name,)))].any(axis=1).to_numpy()
        row: dict[str, Any] = {"detector": name} | count_labels(flag, frame["cluster"])
        for kind, rates_of in sampled.items():
            if name in rates_of:
                values = rates_of[name]
                row |= {kind: float(values.mean()), f"{kind}_low": values.min(), f"{kind}_high": values.max()}
            if kind == "chance":
                row |= {"lift": row["share"] / row["chance"] if row["chance"] else np.nan, "permutations": times}
        rows.append(row)
    return pd.DataFrame(rows)


def threshold_table(data: Dataset, settings: Labels) -> pd.DataFrame:
    """How often a detector fires with one of its thresholds at other values, all others as stated (`thresholds`). One
    draw of each rate by chance, the same for all values. For `ORDER_RULES` also the rates of their union (runs)."""
    rng, stated = np.random.default_rng(settings.seed), Evidence(data, settings)
    moved = {"share": stated.matrix, "chance": stated.matrix[rng.permutation(data.n_tasks)]}
    sorted_alike = {"share": stated.matrix, "chance": shuffled(stated.matrix, rng)}
    for kind, weight in (("kept", stated.used), ("even", np.ones_like(stated.used))):
        sorted_alike[kind] = stated.sample_lists(weight, rng)
    rows = []
    for detector, name, value in settings.vary():
        changed: dict[str, Any] = {name: value}
        evidence = Evidence(data, replace(settings, **changed))
        detect, lists = (evidence.content, moved) if detector in BY_CONTENT else (evidence.order, sorted_alike)
        marked = {kind: rates(detect(matrix), matrix) for kind, matrix in lists.items()}
        row = {"detector": detector, "threshold": name, "value": value, "stated": value == getattr(settings, name)}
        row |= {kind: rate[detector] for kind, rate in marked.items()}
        if detector in ORDER_RULES:
            row |= {f"runs_{kind}": rate["any rule of order"] for kind, rate in marked.items()}
        rows.append(row)
    return pd.DataFrame(rows)


def count_labels(flag: BoolArray, cluster: ArrayLike) -> dict[str, Any]:
    """The columns labels (marked ones), n, share, ci_low and ci_high."""
    p, low, high = clustered_share(flag, cluster)
    return {"labels": int(flag.sum()), "n": len(flag), "share": p, "ci_low": low, "ci_high": high}


def retrieved_table(data: Dataset, evidence: Evidence, runs: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Catalogue-order runs among what systems find by text alone: would lists of relevant servers show them too?

    The first servers of a system, as many as the task's list holds, stand in the up and down of that list
    (`detectors.in_pattern`). `runs` holds per system the top tens of one seed, all of the same tasks. Column lists:
    `RELEASED` (the labels of these tasks) or a system.
    """
    row_of = pd.Series(np.arange(data.n_tasks), index=data.tasks["id"])
    place_of = pd.Series(places(data), index=data.servers["id"])
    tasks = np.unique(row_of.loc[next(iter(runs.values()))["task_id"]])
    pattern = np.full_like(evidence.matrix, -1)
    pattern[tasks] = evidence.matrix[tasks]
    lists = {RELEASED: pattern}
    for name, run in runs.items():
        top, first = np.full_like(pattern, -1), run[run["rank"] <= pattern.shape[1]]
        top[row_of.loc[first["task_id"]], first["rank"] - 1] = place_of.loc[first["server_id"]]
        lists[name] = in_pattern(np.where(pattern >= 0, top, -1), pattern)
    rows = []
    for name, matrix in lists.items():
        filled, flags = matrix >= 0, evidence.order(matrix)
        cluster = np.broadcast_to(set_keys(matrix)[:, None], matrix.shape)[filled]
        for detector in (*ORDER_RULES, "any rule of order"):
            flag = np.any([flags[member] for member in UNIONS.get(detector, (detector,))], axis=0)[filled]
            rows.append({"lists": name, "detector": detector, "tasks": len(tasks), **count_labels(flag, cluster)})
    return pd.DataFrame(rows)


def order_table(frame: pd.DataFrame, orders: dict[str, list[str]]) -> pd.DataFrame:
    """The shares of the classes, and of groups of them, under several orders of the detectors (title -> order). A label
    has one class, so "any rule of order", "any sign of content", long_run and none add up to 1."""
    return pd.DataFrame(
        {"order": title, "class": name} | count_labels(np.isin(kinds, UNIONS.get(name, (name,))), frame["cluster"])
        for title, order in orders.items()
        for kinds in [classify(frame, order)]
        for name in ("any rule of order", "any sign of content", *order, NONE)
    )


def class_table(frame: pd.DataFrame, data: Dataset, order: list[str]) -> pd.DataFrame:
    """Shares of the classes overall, by position, by subcategory and by twelfth of the file."""
    row = pd.Index(data.tasks["id"]).get_indexer(frame["task_id"])
    scopes: dict[str, np.ndarray] = {
        "all": np.full(len(frame), "all"),
        "position": frame["position"].to_numpy(),
        "subcategory": data.tasks["subcategory_clean"].to_numpy()[row].astype(str),
        "twelfth of the file": row * 12 // data.n_tasks + 1,
    }
    return pd.DataFrame(
        {"scope": scope, "name": name, "class": kind}
        | count_labels((part["class"] == kind).to_numpy(), part["cluster"])
        for scope, names in scopes.items()
        for name, part in frame.groupby(names)
        for kind in [*order, NONE]
    )


@analysis("audit")
def provenance(study: Context) -> Tables:
    """Where does each label come from?

    Also writes provenance.parquet (ids, position, class). The table retrieved_runs is there where its systems ran.
    """
    data, settings = study.data, study.settings(Labels)
    evidence = Evidence(data, settings)
    frame = labels_frame(data, evidence)
    small = frame[["task_id", "server_id", "position", "class"]]
    small = small.astype({"task_id": "int32", "server_id": "int32", "position": "int8"})
    write_parquet(study.folder / "provenance.parquet", small, packed=True)
    tables = {
        "provenance": class_table(frame, data, settings.order),
        "class_orders": order_table(frame, {"as stated": settings.order, **settings.other_orders}),
        "detectors": detector_table(frame, evidence),
        "thresholds": threshold_table(data, settings),
    }
    if runs := read_top10(study.dataset, settings.retrieved_protocol, settings.retrieved):
        first = {name: run[run["seed"] == run["seed"].min()] for name, run in runs.items()}
        tables["retrieved_runs"] = retrieved_table(data, evidence, first)
    return tables
