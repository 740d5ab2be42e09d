"""What mean recall, precision, F1 and NDCG can be together, whatever the system: a printed row is a mean of points that
single tasks can reach (eq. 24-31), so it lies in their convex hull, and linear programming finds how far outside it is.
Outside, a row cannot be right by the paper's definitions; inside, it may still be wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import combinations, product
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.optimize import linprog
from tqdm import tqdm

from study.analysis.framework import Context, Tables, analysis
from study.analysis.report import paper
from study.base import paths
from study.base.errors import StudyError
from study.base.registry import OWN, folder_of
from study.data import splits
from study.data.dataset import Dataset
from study.evaluation.metrics import PAPER_METRICS, Float64Array
from study.evaluation.statistics import harmonic_mean
from study.runner.row_store import read_per_task

CELLS = list(PAPER_METRICS)
DISCOUNT = 1 / np.log2(np.arange(2, 12))
IDEAL = np.r_[1.0, DISCOUNT.cumsum()]  # DCG of so many right servers in the first places; of none, what 0 is divided by
WITHOUT_F1 = np.array([not name.startswith("f1@") for name in PAPER_METRICS])
# Which cells count. F1 may be computed in another way than the paper defines it, so rows are also judged without it.
CELL_SETS: dict[str, Any] = {"all eight cells": None, "without F1": WITHOUT_F1}
# Another reading of the columns, tried on printed rows.
OTHER_READING = "without F1, hit rate as recall and NDCG over what was found"
# Below the precision that the solver is asked for; printed cells have four digits.
SOLVER_TOLERANCE = 1e-9


@dataclass(frozen=True)
class Consistency:
    """Checks of the printed cells against each other."""

    rounding: float
    max_relevant: int
    joint_max_relevant: int
    own_protocol: str


Points = pd.DataFrame  # points that single tasks can reach: columns `PAPER_METRICS`, index relevant servers of the task
# What is assumed about the labels: title -> points, and the shares of their numbers where these are fixed.
Scenarios = dict[str, tuple[Points, dict[int, float] | None]]


def points(n_relevant: Iterable[int], *, other_reading: bool = False) -> Points:
    """Extreme points of all tasks whose number of relevant servers is in `n_relevant` (each at least 1).

    A task with n relevant servers whose first k places hold h of them has R = h / n, P = h / k, F1 = 2h / (k + n) and
    an NDCG between that of the h servers in the last and in the first of the places. By the other reading R is 1 where
    h > 0, and the ideal list of NDCG holds only the h servers.
    """
    counts, rows = [], []
    for n in n_relevant:
        for first, second in product(range(min(5, n) + 1), repeat=2):
            both = first + second
            if both > n:
                continue
            recalls = [float(hits > 0) if other_reading else hits / n for hits in (first, both)]
            cells = [*recalls, first / 5, both / 10, 2 * first / (5 + n), 2 * both / (10 + n)]
            ideal5, ideal10 = (IDEAL[hits if other_reading else min(k, n)] for k, hits in ((5, first), (10, both)))
            for gain5 in {DISCOUNT[:first].sum(), DISCOUNT[5 - first : 5].sum()}:
                for more in {DISCOUNT[5 : 5 + second].sum(), DISCOUNT[10 - second :].sum() if second else 0.0}:
                    counts.append(n)
                    rows.append((*cells, gain5 / ideal5, (gain5 + more) / ideal10))
    return pd.DataFrame(rows, columns=CELLS, index=counts)


def smallest_change(
    rows: Sequence[Float64Array],
    possible: Points,
    *,
    shares: Mapping[int, float] | None = None,
    cells: NDArray[np.bool_] | None = None,
) -> float:
    """The least t such that all rows, each cell changed by at most t, are means over one set of test tasks.

    Rows have shape (8,) and share the tasks and labels, not the rankings. `shares` fixes the share of the tasks with
    each number of relevant servers; `cells` says which cells count. 0 means possible, up to the solver's precision.
    """
    used = np.ones(len(CELLS), bool) if cells is None else cells
    values = sp.csr_matrix(possible.to_numpy()[:, used].T)  # (cells, points)
    numbers, kind = np.unique(possible.index, return_inverse=True)
    m, n_points = len(numbers), len(kind)
    member = sp.csr_matrix((np.ones(n_points), (kind, np.arange(n_points))), shape=(m, n_points))
    # Unknowns: one weight per row and point, the share of every number of relevant servers, t.
    blocks = sp.block_diag([values] * len(rows))
    targets = np.concatenate([np.asarray(row, dtype=np.float64)[used] for row in rows])
    none, slack = sp.csr_matrix((len(targets), m)), -np.ones((len(targets), 1))
    bounds = sp.vstack([sp.hstack([blocks, none, slack]), sp.hstack([-blocks, none, slack])])
    members, negative = sp.block_diag([member] * len(rows)), sp.vstack([-sp.identity(m)] * len(rows))
    same = sp.hstack([members, negative, sp.csr_matrix((m * len(rows), 1))])
    total = sp.csr_matrix(np.r_[np.zeros(n_points * len(rows)), np.ones(m), 0.0][None])
    limits: list[tuple[float, float | None]] = [(0, None)] * (n_points * len(rows))
    limits += [(0, None)] * m if shares is None else [(shares[int(n)], shares[int(n)]) for n in numbers]
    objective, equal = np.r_[np.zeros(n_points * len(rows) + m), 1.0], sp.vstack([same, total]).tocsc()
    at_most, values_of = (bounds.tocsc(), np.r_[targets, -targets]), np.r_[np.zeros(m * len(rows)), 1.0]
    least = optimum(objective, *at_most, equal, values_of, bounds=[*limits, (0, None)])
    return 0.0 if least < SOLVER_TOLERANCE else least


def optimum(*program: Any, **options: Any) -> float:
    """The least value of a linear program, NaN for one that nothing fulfils; arguments are those of `linprog`."""
    solved = linprog(*program, **options, method="highs")
    if solved.status == 2:
        return float("nan")
    if solved.status != 0:
        raise StudyError(f"linear program not solved: {solved.message}", fix="take another version of scipy")
    return float(solved.fun)


def possible_range(
    row: Float64Array, cell: str, given: Sequence[str], possible: Points, *, rounding: float
) -> tuple[float, float]:
    """Least and largest mean of a cell, the `given` ones as printed up to rounding; NaN where these contradict."""
    matrix, aim = possible[list(given)].to_numpy().T, possible[cell].to_numpy()
    printed = np.asarray(row, dtype=np.float64)[[CELLS.index(name) for name in given]]
    at_most, limits = np.vstack([matrix, -matrix]), np.r_[printed + rounding, rounding - printed]
    least, most = (sign * optimum(sign * aim, at_most, limits, np.ones((1, len(aim))), [1.0]) for sign in (1.0, -1.0))
    return least, most


def implied_relevant(precision: float, recall: float, k: int, *, rounding: float) -> tuple[float, float, float]:
    """k P / R with its low and high under rounding: the mean number of relevant servers, weighted by a task's h / n.

    It lies between the smallest and the largest number of relevant servers of the tasks with a hit, because
    k mean(P) = mean(h) = mean(n * h / n). High is infinite where recall may be 0.
    """
    if recall <= 0:
        return np.nan, 0.0, np.inf
    low = k * max(precision - rounding, 0.0) / (recall + rounding)
    high = k * (precision + rounding) / (recall - rounding) if recall > rounding else np.inf
    return k * precision / recall, low, high


def shares(counts: np.ndarray) -> dict[int, float]:
    """Number of relevant servers -> share of the tasks that have it, tasks without any left out."""
    numbers, times = np.unique(counts[counts > 0], return_counts=True)
    return {int(n): float(t) / times.sum() for n, t in zip(numbers, times, strict=True)}


def scenarios(data: Dataset, max_relevant: int) -> Scenarios:
    """What is assumed about the labels of the test tasks: title -> points, and the shares where they are fixed. The
    splits that exist on disk give the released label counts; the longer lists those of ``mcp_task_all.csv``."""
    fixed: dict[str, dict[int, float]] = {}
    longest = max(len(row) for row in data.lists)
    for name, title in (("cold", "task split"), ("warm", "interaction split")):
        path = paths.splits(data.name) / f"{name}.parquet"
        if path.exists():
            split = splits.load(path, data)
            fixed[title] = shares(np.diff(split.test.indptr))
            longer = paths.prepared(data.name) / "labels_all.parquet"
            if name == "cold" and longer.exists():
                ids = data.tasks["id"].to_numpy()[split.tasks("test")]
                counts = pd.read_parquet(longer).groupby("task_id").size()
                longest = max(longest, int(counts.max()))
                fixed["task split, longer lists"] = shares(counts.reindex(ids, fill_value=0).to_numpy())
    assumed: Scenarios = {
        f"any lists of up to {max_relevant}": (points(range(1, max_relevant + 1)), None),
        f"any lists of up to {longest}": (points(range(1, longest + 1)), None),
        "one server per task": (points([1]), None),
    }
    return assumed | {title: (points(counted), counted) for title, counted in fixed.items()}


def own_rows(dataset: str, protocol: str) -> pd.DataFrame:
    """This study's rows of one protocol in the form of `printed_rows`, systems of ``conf/system/own`` aside; empty
    where nothing has run. Means over tasks, then seeds, have six digits, as `overall.csv` has them."""
    frames = {name: frame for name, frame in read_per_task(dataset, protocol).items() if folder_of(name) != OWN}
    if not frames:
        return pd.DataFrame(columns=["table", "place", "row", "own", *CELLS])
    by_seed = pd.concat(frames, names=["own"]).groupby(["own", "seed"])[CELLS].mean()
    wide = by_seed.groupby("own").mean().map(lambda mean: float(f"{mean:.6g}")).reset_index()
    return wide.assign(table="own", place=protocol, row="ours: " + wide["own"])


def concurrently(compute: Callable[[Any], Any], items: Sequence[Any], unit: str) -> list[Any]:
    """What is computed of each item, two at a time: the solver lets another thread run."""
    with ThreadPoolExecutor(2) as pool:
        return list(tqdm(pool.map(compute, items), desc=unit, total=len(items), leave=False, disable=None))


def cell_checks(rows: pd.DataFrame, possible: Points, rounding: float) -> pd.DataFrame:
    """Per row and cutoff, what precision and recall imply and whether F1 and NDCG can stand beside them.

    precision_least is R / k, as no task has less than one relevant server; _low and _high bound the mean F1 and NDCG;
    `breaks` names the violated bounds.
    """

    def check(item: tuple[Mapping[str, Any], int]) -> dict[str, Any]:
        entry, k = item
        printed = np.array([entry[name] for name in CELLS])
        precision, recall, f1, ndcg = (entry[f"{name}@{k}"] for name in ("precision", "recall", "f1", "ndcg"))
        implied = implied_relevant(precision, recall, k, rounding=rounding)
        line = {"table": entry["table"], "row": entry["row"], "k": k}
        line |= dict(zip(("implied_relevant", "implied_low", "implied_high"), implied, strict=True))
        line |= {"precision": precision, "precision_least": recall / k, "f1": f1}
        line["f1_of_means"] = float(harmonic_mean(precision, recall))
        broken = ["precision below recall / k"] * (precision + rounding < (recall - rounding) / k)
        for name, value in (("f1", f1), ("ndcg", ndcg)):
            given = [f"recall@{k}", f"precision@{k}"]
            least, most = possible_range(printed, f"{name}@{k}", given, possible, rounding=rounding)
            line |= {name: value, f"{name}_low": least, f"{name}_high": most}
            broken += [f"{name} too low"] * (value + rounding < least)
            broken += [f"{name} too high"] * (value - rounding > most)
        return line | {"breaks": "; ".join(broken)}

    return pd.DataFrame(concurrently(check, list(product(rows.to_dict("records"), (5, 10))), "rows"))


def feasibility(rows: pd.DataFrame, assumed: Scenarios, rounding: float) -> pd.DataFrame:
    """How far some cell of each row must at least be changed for the row to be possible under each assumption.

    labels names the assumption, cells says which count; change is 0 to 1, possible: change within rounding.
    Printed rows are also tried by `OTHER_READING`.
    """
    tried = list[tuple[Any, ...]]()
    for title, (possible, fixed) in assumed.items():
        tried += [(title, name, possible, fixed, cells) for name, cells in CELL_SETS.items()]
        otherwise = points(np.unique(possible.index).tolist(), other_reading=True)
        tried.append((title, OTHER_READING, otherwise, fixed, WITHOUT_F1))

    def check(item: tuple[Mapping[str, Any], tuple[Any, ...]]) -> tuple[Any, ...]:
        entry, (title, name, possible, fixed, cells) = item
        change = smallest_change([np.array([entry[cell] for cell in CELLS])], possible, shares=fixed, cells=cells)
        return entry["table"], entry["row"], title, name, change, change <= rounding

    both = product(rows.to_dict("records"), tried)
    items = [(entry, way) for entry, way in both if entry["table"] != "own" or way[1] in CELL_SETS]
    lines = concurrently(check, items, "rows")
    return pd.DataFrame(lines, columns=["table", "row", "labels", "cells", "change", "possible"])


def pairs(rows: pd.DataFrame, possible: Points, rounding: float) -> pd.DataFrame:
    """Whether two rows can come from one set of test tasks with one set of labels, F1 left out.

    change_a and change_b are of each row alone, change of both on the same tasks; `together`: change within rounding;
    `conflict`: possible alone and not together; max_relevant: the longest list considered.
    """
    printed = rows.set_index("row")[CELLS].astype(np.float64)

    def change(names: Sequence[str]) -> float:
        return smallest_change(list(printed.loc[list(names)].to_numpy()), possible, cells=WITHOUT_F1)

    both, alone = list(combinations(printed.index, 2)), {name: change([name]) for name in printed.index}
    table = pd.DataFrame(both, columns=["row_a", "row_b"])
    table = table.assign(change_a=table["row_a"].map(alone), change_b=table["row_b"].map(alone))
    table["change"] = concurrently(change, both, "pairs")
    apart = (table[["change_a", "change_b"]] <= rounding).all(axis=1)
    table["together"] = table["change"] <= rounding
    return table.assign(conflict=apart & ~table["together"], max_relevant=int(possible.index.max()))


@analysis("audit")
def consistency(study: Context) -> Tables:
    """Can printed rows be means over the stated tasks?

    Tables: consistency, feasibility and, where the paper describes the data set, row_pairs. Elsewhere only this
    study's own rows are examined.
    """
    settings = study.settings(Consistency)
    rounding, assumed = float(settings.rounding), scenarios(study.data, settings.max_relevant)
    printed = paper.printed_rows() if paper.describes(study.dataset) else None
    rows = pd.concat([printed, own_rows(study.dataset, settings.own_protocol)], ignore_index=True)
    if rows.empty:
        return {}
    tables = {"consistency": cell_checks(rows, next(iter(assumed.values()))[0], rounding)}
    tables["feasibility"] = feasibility(rows, assumed, rounding)
    if printed is not None:
        tables["row_pairs"] = pairs(printed, points(range(1, settings.joint_max_relevant + 1)), rounding)
    return tables
