"""What mean recall, precision, F1 and NDCG can be together, whatever the ranking and whatever the system.

A task with n relevant servers whose first k places hold h of them has R = h/n, P = h/k, F1 = 2h/(k + n) (eq. 24-28)
and an NDCG (eq. 29-31) that lies between that of the h servers in the last and in the first of the places. A printed
row is a mean over tasks of such points, so it lies in their convex hull; how far it lies outside is found by linear
programming. Only necessary conditions are used: a row inside the hull may still be wrong, a row outside cannot be a
mean over tasks by the paper's definitions. The same holds for means of such rows over seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.optimize import linprog

from study.analysis.report.tables import PAPER_METRICS
from study.data.dataset import IntArray
from study.errors import StudyError

Float64Array = NDArray[np.float64]

DISCOUNT = 1 / np.log2(np.arange(2, 12))
WITHOUT_F1 = np.array([not name.startswith("f1@") for name in PAPER_METRICS])
# What a program may have computed as recall, from the hits h, the relevant servers n and the cutoff k.
RECALLS: dict[str, Callable[[int, int, int], float]] = {
    "recall": lambda h, n, k: h / n,
    "recall_capped": lambda h, n, k: h / min(k, n),
    "hit_rate": lambda h, n, k: float(h > 0),
}
NDCGS = ("ndcg", "ndcg_found")
# Below the precision that the solver is asked for; printed cells have four digits.
SOLVER_TOLERANCE = 1e-9


@dataclass(frozen=True)
class Points:
    """The extreme points that single tasks can reach.

    Attributes:
        n_relevant: relevant servers of the task, shape (points,).
        values: recall, precision, F1 and NDCG at 5 and 10 in the order of `PAPER_METRICS`, shape (points, 8).
    """

    n_relevant: IntArray
    values: Float64Array


def points(n_relevant: Iterable[int], *, recall: str = "recall", ndcg: str = "ndcg") -> Points:
    """Extreme points of all tasks whose number of relevant servers is in `n_relevant` (each at least 1).

    Args:
        recall: ``recall``, ``recall_capped`` (hits / min(k, n)) or ``hit_rate`` (1 where there is a hit).
        ndcg: ``ndcg``, or ``ndcg_found``, whose ideal list holds only what was found; readings of
            ``conf/audit/protocols.yaml``. F1 stays as the paper defines it.

    Raises:
        StudyError: no number of relevant servers, one below 1, or an unknown reading.
    """
    if recall not in RECALLS or ndcg not in NDCGS:
        raise StudyError(
            f"there is no reading {recall}, {ndcg}", fix=f"one of {', '.join(RECALLS)} and one of {', '.join(NDCGS)}"
        )
    numbers = list(n_relevant)
    if not numbers or min(numbers) < 1:
        raise StudyError("there are no label counts of at least 1", fix="give the relevant servers per task")
    counts, rows = [], []
    # DCG of so many right servers in the first places; nothing found gives 0 whatever it is divided by.
    ideal, own_ideal = np.r_[1.0, DISCOUNT.cumsum()], ndcg == "ndcg_found"
    for n in numbers:
        share = RECALLS[recall]
        for first in range(min(5, n) + 1):
            for second in range(min(5, n - first) + 1):
                both = first + second
                found5, found10 = ideal[first if own_ideal else min(5, n)], ideal[both if own_ideal else min(10, n)]
                for gain5 in {DISCOUNT[:first].sum(), DISCOUNT[5 - first : 5].sum()}:
                    for more in {DISCOUNT[5 : 5 + second].sum(), DISCOUNT[10 - second :].sum() if second else 0.0}:
                        counts.append(n)
                        rows.append(
                            (
                                share(first, n, 5),
                                share(both, n, 10),
                                first / 5,
                                both / 10,
                                2 * first / (5 + n),
                                2 * both / (10 + n),
                                gain5 / found5,
                                (gain5 + more) / found10,
                            )
                        )
    return Points(np.array(counts, dtype=np.int64), np.array(rows))


def smallest_change(
    rows: Sequence[Float64Array],
    possible: Points,
    *,
    shares: Mapping[int, float] | None = None,
    cells: NDArray[np.bool_] | None = None,
) -> float:
    """The least t such that all rows, each cell changed by at most t, are means over one set of test tasks.

    Args:
        rows: printed rows, each of shape (8,); several rows share the tasks and their labels, not the rankings.
        possible: from `points`.
        shares: number of relevant servers -> share of the tasks that have it; None leaves the shares free.
        cells: which of the eight cells count, by default all.

    Returns: 0 where the rows stand as they are, up to the solver's precision.
    """
    used = np.ones(len(PAPER_METRICS), bool) if cells is None else cells
    values = sp.csr_matrix(possible.values[:, used].T)  # (cells, points)
    numbers, kind = np.unique(possible.n_relevant, return_inverse=True)
    m, n_points = len(numbers), len(kind)
    member = sp.csr_matrix((np.ones(n_points), (kind, np.arange(n_points))), shape=(m, n_points))
    # Unknowns: one weight per row and point, the share of every number of relevant servers, t.
    blocks = sp.block_diag([values] * len(rows))
    targets = np.concatenate([np.asarray(row, dtype=np.float64)[used] for row in rows])
    none, slack = sp.csr_matrix((len(targets), m)), -np.ones((len(targets), 1))
    bounds = sp.vstack([sp.hstack([blocks, none, slack]), sp.hstack([-blocks, none, slack])])
    same = sp.hstack(
        [
            sp.block_diag([member] * len(rows)),
            sp.vstack([-sp.identity(m)] * len(rows)),
            sp.csr_matrix((m * len(rows), 1)),
        ]
    )
    total = sp.csr_matrix(np.r_[np.zeros(n_points * len(rows)), np.ones(m), 0.0][None])
    limits: list[tuple[float, float | None]] = [(0, None)] * (n_points * len(rows))
    limits += [(0, None)] * m if shares is None else [(shares[int(n)], shares[int(n)]) for n in numbers]
    solved = linprog(
        np.r_[np.zeros(n_points * len(rows) + m), 1.0],
        A_ub=bounds.tocsc(),
        b_ub=np.r_[targets, -targets],
        A_eq=sp.vstack([same, total]).tocsc(),
        b_eq=np.r_[np.zeros(m * len(rows)), 1.0],
        bounds=[*limits, (0, None)],
        method="highs",
    )
    if solved.status != 0:
        raise StudyError(
            f"the linear program was not solved: {solved.message}", fix="check the shares: they add up to 1"
        )
    return 0.0 if solved.fun < SOLVER_TOLERANCE else float(solved.fun)


def possible_range(
    row: Float64Array, cell: str, given: Sequence[str], possible: Points, *, rounding: float
) -> tuple[float, float]:
    """The smallest and largest mean of one cell where other cells have their printed values, up to rounding.

    Returns: NaN twice where the given cells contradict each other already.
    """
    known = [PAPER_METRICS.index(name) for name in given]
    matrix, printed = possible.values[:, known].T, np.asarray(row, dtype=np.float64)[known]
    aim = possible.values[:, PAPER_METRICS.index(cell)]
    found = []
    for sign in (1.0, -1.0):
        solved = linprog(
            sign * aim,
            A_ub=np.vstack([matrix, -matrix]),
            b_ub=np.r_[printed + rounding, rounding - printed],
            A_eq=np.ones((1, len(aim))),
            b_eq=[1.0],
            method="highs",
        )
        if solved.status == 2:
            return float("nan"), float("nan")
        found.append(sign * float(solved.fun))
    return found[0], found[1]


def implied_relevant(precision: float, recall: float, k: int, *, rounding: float) -> tuple[float, float, float]:
    """k P / R with its range under rounding: the mean number of relevant servers, weighted by h / n of each task.

    It lies between the smallest and the largest number of relevant servers of the tasks with a hit, because
    k mean(P) = mean(h) = mean(n * h / n).

    Returns: value, low, high; high is infinite where recall may be 0.
    """
    if recall <= 0:
        return float("nan"), 0.0, float("inf")
    low = k * max(precision - rounding, 0.0) / (recall + rounding)
    high = k * (precision + rounding) / (recall - rounding) if recall > rounding else float("inf")
    return k * precision / recall, low, high
