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
from study.analysis.framework import Context, Tables, analysis, settings_file
from study.data.dataset import Dataset, IntArray
from study.data.lists import BoolArray, places, set_keys, shuffled
from study.errors import StudyError
from study.evaluation.statistics import clustered_share, share_interval
from study.files import write_parquet
from study.runner.row_store import read_top10

NONE = "none"
RELEASED = "released labels"
BLOCK = 100


def classify(flags: dict[str, BoolArray], order: list[str]) -> np.ndarray:
    """The first detector of `order` that fires, `none` where none does; shape of the flags, str.

    Raises `StudyError` where the order names an unknown detector or leaves one out.
    """
    if sorted(order) != sorted(flags):
        fix = f"name each of these once: {', '.join(sorted(flags))}"
        said = f"the order of classes is {', '.join(order)}"
        raise StudyError(said, file=settings_file(Labels), column="order", fix=fix)
    found: np.ndarray = np.select([flags[name] for name in order], order, default=NONE)
    return found


def labels_frame(data: Dataset, evidence: Evidence) -> pd.DataFrame:
    """One row per label: task_id, server_id, position (from 1, in the cleaned list), class, every detector's flag, and
    cluster, the number of the label's set of servers: tasks with the same set are one observation.
    """
    flags, matrix = evidence.detect(), evidence.matrix
    task, place = np.nonzero(matrix >= 0)
    ids = np.sort(data.servers["id"].to_numpy())
    frame = pd.DataFrame({"task_id": data.tasks["id"].to_numpy()[task], "server_id": ids[matrix[task, place]]})
    frame["position"] = place + 1
    frame["class"] = classify(flags, evidence.settings.order)[task, place]
    detected = {name: flag[task, place] for name, flag in flags.items()}
    return frame.assign(**detected, cluster=set_keys(matrix)[task])


def detector_table(frame: pd.DataFrame, evidence: Evidence) -> pd.DataFrame:
    """How often each detector fires, whether or not an earlier one did, beside its rate by chance; then `UNIONS`.

    Also chance with its range over the permutations; lift = share / chance. For detectors of order also the rates
    with other servers in the kept order of each list, drawn as often as they are listed (kept) or evenly (even).
    """
    rng, times = np.random.default_rng(evidence.settings.seed), max(1, evidence.settings.permutations // 5)
    drawn = {"chance": pd.DataFrame([evidence.by_chance(rng) for _ in range(times)])}
    for kind, weight in (("kept", evidence.used), ("even", np.ones_like(evidence.used))):
        drawn[kind] = pd.DataFrame([evidence.in_kept_order(weight, rng) for _ in range(times)])
    rows = []
    for name in (*DETECTORS, *UNIONS):
        flag = frame[list(UNIONS.get(name, (name,)))].any(axis=1).to_numpy()
        row = {"detector": name} | counted(flag, frame["cluster"]) | in_draws("chance", drawn["chance"][name])
        row |= {"lift": row["share"] / row["chance"] if row["chance"] else np.nan, "permutations": times}
        for kind in ("kept", "even"):
            row |= in_draws(kind, drawn[kind][name]) if name in drawn[kind] else {}
        rows.append(row)
    return pd.DataFrame(rows)


def threshold_table(data: Dataset, settings: Labels) -> pd.DataFrame:
    """How often a detector fires with one of its thresholds at other values, all others as stated (`thresholds`).

    One draw of each rate by chance, the same for all values. For `ORDER_RULES` also the rates of their union (runs).
    """
    rng, stated = np.random.default_rng(settings.seed), Evidence(data, settings)
    moved = {"share": stated.matrix, "chance": stated.matrix[rng.permutation(data.n_tasks)]}
    sorted_alike = {"share": stated.matrix, "chance": shuffled(stated.matrix, rng)}
    for kind, weight in (("kept", stated.used), ("even", np.ones_like(stated.used))):
        sorted_alike[kind] = stated.redrawn(weight, rng)
    rows = []
    for detector, name, value in settings.varied():
        changed: dict[str, Any] = {name: value}
        evidence = Evidence(data, replace(settings, **changed))
        content = detector in BY_CONTENT
        look, lists = (evidence.content, moved) if content else (evidence.order, sorted_alike)
        found = {kind: rates(look(matrix), matrix) for kind, matrix in lists.items()}
        row = {"detector": detector, "threshold": name, "value": value, "stated": value == getattr(settings, name)}
        row |= {kind: rate[detector] for kind, rate in found.items()}
        if detector in ORDER_RULES:
            row |= {f"runs_{kind}": rate["any rule of order"] for kind, rate in found.items()}
        rows.append(row)
    return pd.DataFrame(rows)


def counted(flag: BoolArray, cluster: ArrayLike) -> dict[str, Any]:
    """The columns labels (marked ones), n, share, ci_low and ci_high."""
    p, low, high = clustered_share(flag, cluster)
    return {"labels": int(flag.sum()), "n": len(flag), "share": p, "ci_low": low, "ci_high": high}


def in_draws(name: str, drawn: pd.Series) -> dict[str, float]:
    """The mean of draws and their range, as columns `name`, `name`_low and `name`_high."""
    return {name: float(drawn.mean()), f"{name}_low": drawn.min(), f"{name}_high": drawn.max()}


def retrieved_table(data: Dataset, evidence: Evidence, runs: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Catalogue-order runs among what systems find by text alone: would lists of relevant servers show them too?

    The first servers of a system, as many as the task's list holds, stand in the up and down of that list
    (`detectors.in_pattern`). `runs` holds per system the top tens of one seed, all of the same tasks. Column lists:
    `RELEASED` (the labels of these tasks) or a system.
    """
    row_of = pd.Series(np.arange(data.n_tasks), index=data.tasks["id"])
    place_of = pd.Series(places(data), index=data.servers["id"])
    asked = np.unique(row_of.loc[next(iter(runs.values()))["task_id"]])
    pattern = np.full_like(evidence.matrix, -1)
    pattern[asked] = evidence.matrix[asked]
    lists = {RELEASED: pattern}
    for name, run in runs.items():
        found = np.full_like(pattern, -1)
        kept = run[run["rank"] <= pattern.shape[1]]
        found[row_of.loc[kept["task_id"]], kept["rank"] - 1] = place_of.loc[kept["server_id"]]
        lists[name] = in_pattern(np.where(pattern >= 0, found, -1), pattern)
    rows = []
    for name, matrix in lists.items():
        filled, flags = matrix >= 0, evidence.order(matrix)
        cluster = np.broadcast_to(set_keys(matrix)[:, None], matrix.shape)[filled]
        for detector in (*ORDER_RULES, "any rule of order"):
            members = UNIONS.get(detector, (detector,))
            flag = np.any([flags[member] for member in members], axis=0)[filled]
            rows.append({"lists": name, "detector": detector, "tasks": len(asked), **counted(flag, cluster)})
    return pd.DataFrame(rows)


def top_tens(dataset: str, settings: Labels) -> dict[str, pd.DataFrame]:
    """The kept top tens of the configured systems, first seed each; those that have not run are left out."""
    runs = read_top10(dataset, settings.retrieved_protocol, settings.retrieved)
    return {name: run[run["seed"] == run["seed"].min()] for name, run in runs.items()}


def order_table(frame: pd.DataFrame, orders: dict[str, list[str]]) -> pd.DataFrame:
    """The shares of the classes, and of groups of them, under several orders of the detectors (title -> order).

    A label has one class, so "any rule of order", "any sign of content", long_run and none add up to 1.
    """
    flags = {name: frame[name].to_numpy() for name in DETECTORS}
    rows = []
    for title, order in orders.items():
        kinds = classify(flags, order)
        for name in ("any rule of order", "any sign of content", *order, NONE):
            flag = np.isin(kinds, UNIONS.get(name, (name,)))
            rows.append({"order": title, "class": name, **counted(flag, frame["cluster"])})
    return pd.DataFrame(rows)


def class_table(frame: pd.DataFrame, data: Dataset, order: list[str]) -> pd.DataFrame:
    """Shares of the classes overall, by position, by subcategory and by twelfth of the file."""
    row = pd.Index(data.tasks["id"]).get_indexer(frame["task_id"])
    scopes: dict[str, np.ndarray] = {
        "all": np.full(len(frame), "all"),
        "position": frame["position"].to_numpy(),
        "subcategory": data.tasks["subcategory_clean"].to_numpy()[row].astype(str),
        "twelfth of the file": row * 12 // data.n_tasks + 1,
    }
    rows = []
    for scope, names in scopes.items():
        for name in np.unique(names):
            part = frame[names == name]
            for kind in [*order, NONE]:
                found = counted((part["class"] == kind).to_numpy(), part["cluster"])
                rows.append({"scope": scope, "name": name, "class": kind, **found})
    return pd.DataFrame(rows)


def use_table(data: Dataset, evidence: Evidence) -> pd.DataFrame:
    """How evenly the catalogue is used, against labels dealt at random over all servers (mean and range over draws)."""
    n, total = data.n_servers, int((evidence.matrix >= 0).sum())
    rng, draws = np.random.default_rng(evidence.settings.seed), evidence.settings.permutations
    drawn = pd.DataFrame([use_measures(np.bincount(rng.integers(n, size=total), minlength=n)) for _ in range(draws)])
    observed = use_measures(evidence.used).items()
    rows = [{"measure": name, "observed": value} | in_draws("chance", drawn[name]) for name, value in observed]
    return pd.DataFrame(rows).assign(draws=draws)


def use_measures(used: IntArray) -> dict[str, float]:
    """Counts of unused and single-use servers, the largest count, and the Gini coefficient of the counts."""
    ordered, n = np.sort(used), len(used)
    gini = 2 * (np.arange(1, n + 1) * ordered).sum() / (n * ordered.sum()) - (n + 1) / n
    return {
        "servers on no list": float((used == 0).sum()),
        "servers on one list": float((used == 1).sum()),
        "largest number of lists of a server": float(used.max()),
        "Gini coefficient": float(gini),
    }


def first_use_table(data: Dataset, matrix: IntArray) -> pd.DataFrame:
    """Where in the file servers are listed for the first time, per `BLOCK` tasks.

    Drawn without regard to use, a label is a first use at most as often as `unused`, the share of the catalogue unused
    at the block's start. A higher rate (95 %, Wilson) says that unused servers were sought.
    """
    order = data.tasks["id"].to_numpy()
    new = np.zeros(data.n_servers, dtype=bool)
    rows = []
    for start in range(0, len(matrix), BLOCK):
        labels = matrix[start : start + BLOCK]
        labels = labels[labels >= 0]
        unused = float(1 - new.mean())
        found = len(np.unique(labels[~new[labels]]))
        new[labels] = True
        rows.append((order[start], len(labels), found, *share_interval(found, len(labels)), unused))
    return pd.DataFrame(rows, columns=["first_task", "labels", "first_uses", "rate", "ci_low", "ci_high", "unused"])


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
        "label_use": use_table(data, evidence),
        "first_uses": first_use_table(data, evidence.matrix),
    }
    if runs := top_tens(study.dataset, settings):
        tables["retrieved_runs"] = retrieved_table(data, evidence, runs)
    return tables
