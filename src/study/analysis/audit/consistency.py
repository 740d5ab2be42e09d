"""What mean recall, precision, F1 and NDCG can be together, whatever the system: a printed row is a mean of points that
single tasks can reach (eq. 24-31), so it lies in their convex hull, and linear programming finds how far outside it is.
Outside, a row cannot be right by the paper's definitions; inside, it may still be wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain, combinations, product
from typing import Any, TypeVar

import numpy as np
import pandas as pd
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.optimize import linprog
from tqdm import tqdm

from study.analysis.framework import Context, Tables, analysis
from study.analysis.report import paper
from study.analysis.report.tables import named
from study.base import paths
from study.base.errors import StudyError
from study.base.registry import OWN, folder_of
from study.data import splits
from study.data.dataset import Dataset
from study.evaluation import per_task
from study.evaluation.metrics import PAPER_METRICS, Float64Array
from study.evaluation.statistics import harmonic_mean
from study.runner.row_store import read_per_task

T = TypeVar("T")
CELLS = list(PAPER_METRICS)
DISCOUNT = 1 / np.log2(np.arange(2, 12))
IDEAL = np.r_[1.0, DISCOUNT.cumsum()]  # DCG of so many right servers in the first places; of none, what 0 is divided by
WITHOUT_F1 = np.array([not name.startswith("f1@") for name in PAPER_METRICS])
# What a program may have computed as recall, from the hits h, the relevant servers n and the cutoff k.
RECALLS: dict[str, Callable[[int, int, int], float]] = {
    "recall": lambda h, n, k: h / n,
    "recall_capped": lambda h, n, k: h / min(k, n),
    "hit_rate": lambda h, n, k: float(h > 0),
}
NDCGS = ("ndcg", "ndcg_found")
# Which cells count. F1 may be computed in another way than the paper defines it, so rows are also judged without it.
CELL_SETS: dict[str, Any] = {"all eight cells": None, "without F1": WITHOUT_F1}
# The metric definitions that the protocol grid tries (conf/audit/protocols.yaml), F1 left out.
OTHER_DEFINITIONS = {
    "without F1, NDCG over what was found": ("recall", "ndcg_found"),
    "without F1, recall capped at k": ("recall_capped", "ndcg"),
    "without F1, recall capped at k and NDCG over what was found": ("recall_capped", "ndcg_found"),
    "without F1, hit rate as recall": ("hit_rate", "ndcg"),
    "without F1, hit rate as recall and NDCG over what was found": ("hit_rate", "ndcg_found"),
}
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


def points(n_relevant: Iterable[int], *, recall: str = "recall", ndcg: str = "ndcg") -> Points:
    """Extreme points of all tasks whose number of relevant servers is in `n_relevant` (each at least 1).

    A task with n relevant servers whose first k places hold h of them has R = h / n, P = h / k, F1 = 2h / (k + n) and
    an NDCG between that of the h servers in the last and in the first of the places. `recall` is one of `RECALLS`,
    `ndcg` one of `NDCGS`: the ideal list of ``ndcg_found`` holds only what was found.
    """
    if recall not in RECALLS or ndcg not in NDCGS:
        fix = f"one of {', '.join(RECALLS)} and one of {', '.join(NDCGS)}"
        raise StudyError(f"there is no definition {recall}, {ndcg}", fix=fix)
    numbers = list(n_relevant)
    if not numbers or min(numbers) < 1:
        raise StudyError("there are no label counts of at least 1", fix="give the relevant servers per task")
    counts, rows, share, own_ideal = [], [], RECALLS[recall], ndcg == "ndcg_found"
    for n in numbers:
        for first, second in product(range(min(5, n) + 1), repeat=2):
            both = first + second
            if both > n:
                continue
            cells = [share(first, n, 5), share(both, n, 10), first / 5, both / 10]
            cells += [2 * first / (5 + n), 2 * both / (10 + n)]
            found5, found10 = (IDEAL[found if own_ideal else min(k, n)] for k, found in ((5, first), (10, both)))
            for gain5 in {DISCOUNT[:first].sum(), DISCOUNT[5 - first : 5].sum()}:
                for more in {DISCOUNT[5 : 5 + second].sum(), DISCOUNT[10 - second :].sum() if second else 0.0}:
                    counts.append(n)
                    rows.append((*cells, gain5 / found5, (gain5 + more) / found10))
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
    if np.isnan(least):
        raise StudyError("no labels have these shares", fix="check that the shares add up to 1")
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
    """What is assumed about the labels of the test tasks: title -> points, and the shares where they are fixed.

    The splits that exist on disk give the released label counts; the longer lists those of ``mcp_task_all.csv``.
    """
    found: dict[str, dict[int, float] | None] = {}
    longest = max(len(row) for row in data.lists)
    for name, title in (("loo", "leave one out"), ("cold", "task split"), ("warm", "interaction split")):
        path = paths.splits(data.name) / f"{name}.parquet"
        if path.exists():
            split = splits.load(path, data)
            found[title] = shares(np.diff(split.test.indptr))
            longer = paths.prepared(data.name) / "labels_all.parquet"
            if name == "cold" and longer.exists():
                ids = data.tasks["id"].to_numpy()[split.tasks("test")]
                counts = pd.read_parquet(longer).groupby("task_id").size()
                longest = max(longest, int(counts.max()))
                found["task split, longer lists"] = shares(counts.reindex(ids, fill_value=0).to_numpy())
    made: Scenarios = {
        f"any lists of up to {max_relevant}": (points(range(1, max_relevant + 1)), None),
        f"any lists of up to {longest}": (points(range(1, longest + 1)), None),
        "one server per task": (points([1]), None),
    }
    return made | {title: (points(fixed), fixed) for title, fixed in found.items() if fixed and fixed != {1: 1.0}}


def own_rows(dataset: str, protocol: str) -> pd.DataFrame:
    """This study's rows of one protocol in the form of `printed_rows`, systems of ``conf/system/own`` aside; empty
    where nothing has run. Means have six digits, as `overall.csv` has them."""
    frames = {name: frame for name, frame in read_per_task(dataset, protocol).items() if folder_of(name) != OWN}
    if not frames:
        return pd.DataFrame(columns=["table", "place", "row", "own", *CELLS])
    cells = pd.concat(per_task.aggregate(frame, dataset, protocol, name, "") for name, frame in frames.items())
    rows = per_task.overall(cells).assign(name=named)
    wide = rows.pivot_table(index="system", columns="name", values="mean").map(lambda mean: float(f"{mean:.6g}"))
    return wide.assign(table="own", place=protocol, row="ours: " + wide.index, own=wide.index).reset_index(drop=True)


def concurrently(compute: Callable[[Any], T], items: Sequence[Any], told: str) -> list[T]:
    """What is computed of each item, two at a time: the solver lets another thread run."""
    with ThreadPoolExecutor(2) as pool:
        bar = tqdm(pool.map(compute, items), desc=told, total=len(items), leave=False, disable=None)
        return list(bar)


def cell_checks(rows: pd.DataFrame, possible: Points, rounding: float) -> pd.DataFrame:
    """Per row and cutoff, what precision and recall imply and whether F1 and NDCG can stand beside them.

    precision_least is R / k, as no task has less than one relevant server; _low and _high bound the mean F1 and NDCG;
    `breaks` names the violated bounds.
    """

    def check(entry: Mapping[str, Any]) -> list[dict[str, Any]]:
        lines, printed = [], np.array([entry[name] for name in CELLS])
        for k in (5, 10):
            precision, recall, f1, ndcg = (entry[f"{name}@{k}"] for name in ("precision", "recall", "f1", "ndcg"))
            implied = implied_relevant(precision, recall, k, rounding=rounding)
            given = [f"recall@{k}", f"precision@{k}"]
            line = {"table": entry["table"], "row": entry["row"], "k": k}
            line |= dict(zip(("implied_relevant", "implied_low", "implied_high"), implied, strict=True))
            line |= {"precision": precision, "precision_least": recall / k, "f1": f1}
            line["f1_of_means"] = float(harmonic_mean(precision, recall))
            broken = ["precision below recall / k"] * (precision + rounding < (recall - rounding) / k)
            for name, value in (("f1", f1), ("ndcg", ndcg)):
                least, most = possible_range(printed, f"{name}@{k}", given, possible, rounding=rounding)
                line |= {name: value, f"{name}_low": least, f"{name}_high": most}
                broken += [f"{name} too low"] * (value + rounding < least)
                broken += [f"{name} too high"] * (value - rounding > most)
            lines.append(line | {"breaks": "; ".join(broken)})
        return lines

    return pd.DataFrame(chain.from_iterable(concurrently(check, rows.to_dict("records"), "rows")))


def feasibility(rows: pd.DataFrame, assumed: Scenarios, rounding: float) -> pd.DataFrame:
    """How far some cell of each row must at least be changed for the row to be possible under each assumption.

    labels names the assumption, cells says which count; change is 0 to 1, possible: change within rounding.
    Printed rows are also tried under `OTHER_DEFINITIONS` of their columns.
    """
    again = {
        (title, name): points(np.unique(possible.index).tolist(), recall=recall, ndcg=ndcg)
        for title, (possible, _) in assumed.items()
        for name, (recall, ndcg) in OTHER_DEFINITIONS.items()
    }

    def check(entry: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        lines, printed = list[tuple[Any, ...]](), np.array([entry[name] for name in CELLS])
        for title, (possible, fixed) in assumed.items():
            tried = {name: (possible, cells) for name, cells in CELL_SETS.items()}
            if entry["table"] != "own":
                tried |= {name: (again[title, name], WITHOUT_F1) for name in OTHER_DEFINITIONS}
            for name, (kind, cells) in tried.items():
                change = smallest_change([printed], kind, shares=fixed, cells=cells)
                lines.append((entry["table"], entry["row"], title, name, change, change <= rounding))
        return lines

    lines = chain.from_iterable(concurrently(check, rows.to_dict("records"), "rows"))
    return pd.DataFrame(lines, columns=["table", "row", "labels", "cells", "change", "possible"])


def pairs(rows: pd.DataFrame, possible: Points, rounding: float) -> pd.DataFrame:
    """Whether two rows can come from one set of test tasks with one set of labels, F1 left out.

    change_a and change_b are of each row alone, change of both on the same tasks; `together`: change within rounding;
    `conflict`: possible alone and not together; max_relevant: the longest list considered.
    """
    printed = {entry["row"]: np.array([entry[name] for name in CELLS]) for entry in rows.to_dict("records")}
    alone = {name: smallest_change([row], possible, cells=WITHOUT_F1) for name, row in printed.items()}
    lines = []
    both = list(combinations(printed, 2))

    def together(pair: tuple[str, str]) -> float:
        return smallest_change([printed[name] for name in pair], possible, cells=WITHOUT_F1)

    for (a, b), change in zip(both, concurrently(together, both, "pairs"), strict=True):
        lines.append((a, b, alone[a], alone[b], change, change <= rounding))
    table = pd.DataFrame(lines, columns=["row_a", "row_b", "change_a", "change_b", "change", "together"])
    singly = (table["change_a"] <= rounding) & (table["change_b"] <= rounding)
    return table.assign(conflict=singly & ~table["together"], max_relevant=int(possible.index.max()))


def gains() -> pd.DataFrame:
    """The line "Gains" of Table 3 beside both ways to compute it, in %, and which is nearer."""
    table = paper.gains(paper.wide(paper.load(), "table3")).assign(printed=paper.printed_gains())
    error = pd.DataFrame({name: (table["printed"] - table[name]).abs() for name in ("over_baseline", "over_method")})
    return table.assign(nearer=error.idxmin(axis=1), error=error.min(axis=1)).rename_axis("metric").reset_index()


@analysis("audit")
def consistency(study: Context) -> Tables:
    """Can printed rows be means over the stated tasks?

    Tables: consistency, feasibility and, where the paper describes the data set, row_pairs and gains. Elsewhere only
    this study's own rows are examined.
    """
    settings = study.settings(Consistency)
    rounding, assumed = float(settings.rounding), scenarios(study.data, settings.max_relevant)
    own = own_rows(study.dataset, settings.own_protocol)
    rows = pd.concat([paper.printed_rows(), own], ignore_index=True) if paper.describes(study.dataset) else own
    if rows.empty:
        return {}
    tables = {"consistency": cell_checks(rows, next(iter(assumed.values()))[0], rounding)}
    tables["feasibility"] = feasibility(rows, assumed, rounding)
    if paper.describes(study.dataset):
        wide_enough = points(range(1, settings.joint_max_relevant + 1))
        tables |= {"row_pairs": pairs(paper.printed_rows(), wide_enough, rounding), "gains": gains()}
    return tables
