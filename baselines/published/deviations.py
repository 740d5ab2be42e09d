"""What GDSRec knows of tasks and servers: lists with deviations of ratings, averages, and friends."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from study.data.dataset import FloatArray, IntArray
from study.evaluation.ranking import chunks, tie_order, top_k

MIDPOINT = 3.0  # of the scale from 1 to 5
LEVELS = 5  # deviations are whole numbers from 0 to 4
PADDING = -1


@dataclass(frozen=True)
class Lists:
    """The entries of each row of a rating matrix, padded at the end.

    Attributes:
        entries: columns, PADDING where there is none, shape (n, c).
        deviations: round |r - average of the column|, 0 at paddings, shape (n, c).
    """

    entries: IntArray
    deviations: IntArray

    def without(self, rows: IntArray, targets: IntArray) -> tuple[IntArray, IntArray]:
        """Entries and deviations of `rows`, each with its target taken out, both of shape (len(rows), c)."""
        found = self.entries[rows]
        return np.where(found == targets[:, None], PADDING, found), self.deviations[rows]

    def capped(self, cap: int, rng: np.random.Generator) -> Lists:
        """At most `cap` entries of each row, drawn at random where there are more."""
        if self.entries.shape[1] <= cap:
            return self
        rank = np.where(self.entries == PADDING, 2.0, rng.random(self.entries.shape))
        kept = np.argsort(rank, axis=1, kind="stable")[:, :cap]
        return Lists(np.take_along_axis(self.entries, kept, axis=1), np.take_along_axis(self.deviations, kept, axis=1))


@dataclass(frozen=True)
class Averages:
    """Sums and numbers of ratings, from which an average can be taken without one of them.

    Attributes:
        total, number: per row, shape (n,).
        overall: mean of all ratings, the average of a row without any.
    """

    total: NDArray[np.float64]
    number: NDArray[np.float64]
    overall: float

    def of(self, rows: IntArray, without: FloatArray | None = None) -> FloatArray:
        """Averages of `rows`; `without` holds the rating that each leaves out, 0 where it leaves out none."""
        total, number = self.total[rows], self.number[rows]
        if without is not None:
            total, number = total - without, number - (without > 0)
        mean = np.divide(total, number, out=np.full(len(rows), self.overall), where=number > 0)
        rounded: FloatArray = mean.astype(np.float32)
        return rounded


def averages(ratings: sp.csr_matrix) -> Averages:
    """Of the rows of `ratings`."""
    number = np.diff(ratings.indptr).astype(np.float64)
    return Averages(np.asarray(ratings.sum(axis=1), dtype=np.float64).ravel(), number, float(ratings.data.mean()))


def deviation_lists(ratings: sp.csr_matrix, columns: Averages) -> Lists:
    """The lists of the rows of `ratings`; each rating is compared with the average of its column.

    Args:
        ratings: values 1 to 5, shape (n, m).
        columns: averages of the m columns.
    """
    counts = np.diff(ratings.indptr)
    shape = (len(counts), max(1, int(counts.max(initial=0))))
    row = np.repeat(np.arange(len(counts)), counts)
    place = np.arange(ratings.nnz) - np.repeat(ratings.indptr[:-1], counts)
    entries, deviations = np.full(shape, PADDING), np.zeros(shape, dtype=np.int64)
    entries[row, place] = ratings.indices
    # numpy would round 0.5 to 0 and 1.5 to 2.
    away = np.floor(np.abs(ratings.data - columns.of(ratings.indices)) + 0.5)
    deviations[row, place] = away.astype(np.int64)
    return Lists(entries, deviations)


def friend_weights(ratings: sp.csr_matrix, friends: IntArray, tolerance: float) -> IntArray:
    """s = 1 + number of common servers whose ratings differ by at most `tolerance`, shape of `friends`.

    Args:
        friends: rows of friends, PADDING (weight 0) where there is none, shape (n, f).
    """
    weights = np.zeros(friends.shape, dtype=np.int64)
    for task, row in enumerate(friends):
        own = dict(zip(*_row(ratings, task), strict=True))
        for place, friend in enumerate(row):
            if friend != PADDING:
                theirs = zip(*_row(ratings, int(friend)), strict=True)
                weights[task, place] = 1 + sum(
                    server in own and abs(own[server] - value) <= tolerance for server, value in theirs
                )
    return weights


def agree(
    ratings: sp.csr_matrix, friends: IntArray, servers: IntArray, values: FloatArray, tolerance: float
) -> IntArray:
    """Whether each friend rates the pair's server within `tolerance` of the pair's rating, 0 or 1.

    Args:
        friends: shape (b, f).
        servers, values: the pairs' servers and ratings, shape (b,); a rating of 0 agrees with none.

    Returns: shape (b, f).
    """
    columns = np.broadcast_to(servers[:, None], friends.shape)
    theirs = np.asarray(ratings[np.maximum(friends, 0).ravel(), columns.ravel()]).reshape(friends.shape)
    same: IntArray = (
        (theirs > 0) & (friends != PADDING) & (values[:, None] > 0) & (np.abs(theirs - values[:, None]) <= tolerance)
    ).astype(np.int64)
    return same


def shares(weights: IntArray) -> FloatArray:
    """Each row divided by its sum (+ 1e-10, so that a task without friends has r2 = 0), shape of `weights`."""
    result: FloatArray = (weights / (weights.sum(axis=1, keepdims=True) + 1e-10)).astype(np.float32)
    return result


def nearest(vectors: FloatArray, known: IntArray, number: int, seed: int) -> IntArray:
    """The training tasks with the nearest texts, the task itself left out, shape (n, number), PADDING where unfilled.

    Args:
        vectors: of length 1, shape (n, q).
        known: rows of the training tasks.
    """
    order, found = tie_order(len(known), seed), np.full((len(vectors), number), PADDING)
    for part in chunks(np.arange(len(vectors))):
        similarity = vectors[part] @ vectors[known].T
        similarity[np.arange(len(vectors))[part, None] == known] = -np.inf
        rows, _ = top_k(similarity, number, order)
        found[part, : rows.shape[1]] = np.where(rows >= 0, known[rows], PADDING)
    return found


def _row(ratings: sp.csr_matrix, row: int) -> tuple[list[int], list[float]]:
    span = slice(ratings.indptr[row], ratings.indptr[row + 1])
    return ratings.indices[span].tolist(), ratings.data[span].tolist()
