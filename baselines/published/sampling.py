"""Drawing pairs: uniform entries of rows, and servers outside a set, for many tasks at once."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from study.data.dataset import IntArray


class Pairs:
    """A set of (row, column) pairs that answers many questions at once.

    Args:
        matrix: stored entries are the pairs, shape (n, m).
    """

    def __init__(self, matrix: sp.csr_matrix) -> None:
        sorted_ = sp.csr_matrix(matrix)
        sorted_.sum_duplicates()
        self.indptr, self.indices, self.width = sorted_.indptr, sorted_.indices.astype(np.int64), matrix.shape[1]
        self.counts: IntArray = np.diff(self.indptr).astype(np.int64)
        self.keys = np.repeat(np.arange(matrix.shape[0]), self.counts) * self.width + self.indices  # ascending

    def hold(self, rows: IntArray, columns: IntArray) -> NDArray[np.bool_]:
        """Whether each (row, column) is in the set, shape (len(rows),)."""
        if not len(self.keys):
            return np.zeros(len(rows), dtype=bool)
        wanted = rows * self.width + columns
        place = np.minimum(np.searchsorted(self.keys, wanted), len(self.keys) - 1)
        found: NDArray[np.bool_] = self.keys[place] == wanted
        return found

    def draw(self, rows: IntArray, rng: np.random.Generator) -> IntArray:
        """One column of each row, uniform over those in the set; 0 for rows without any."""
        if not len(self.indices):
            return np.zeros(len(rows), dtype=np.int64)
        offset = np.floor(rng.random(len(rows)) * self.counts[rows]).astype(np.int64)
        drawn = self.indices[np.minimum(self.indptr[rows] + offset, len(self.indices) - 1)]
        return np.where(self.counts[rows] > 0, drawn, 0)

    def draw_outside(self, rows: IntArray, rng: np.random.Generator, among: IntArray | None = None) -> IntArray:
        """One column for each row, uniform over the columns that its row does not hold.

        Args:
            among: the columns to draw from, by default all.

        Returns: shape (len(rows),); a row that holds all of them keeps what was drawn first.
        """
        pool = np.arange(self.width) if among is None else among
        if not len(pool):
            return np.zeros(len(rows), dtype=np.int64)
        drawn = pool[rng.integers(len(pool), size=len(rows))]
        again = np.flatnonzero(self.hold(rows, drawn) & (self.outside(pool)[rows] > 0))
        while len(again):
            drawn[again] = pool[rng.integers(len(pool), size=len(again))]
            again = again[self.hold(rows[again], drawn[again])]
        return drawn

    def outside(self, pool: IntArray) -> IntArray:
        """How many columns of `pool` each row does not hold, shape (n,)."""
        inside = np.zeros(self.width, dtype=np.int64)
        inside[pool] = 1
        total = np.concatenate([[0], np.cumsum(inside[self.indices])])
        held: IntArray = total[self.indptr[1:]] - total[self.indptr[:-1]]
        return len(pool) - held


def shuffled(size: int, batch: int, rng: np.random.Generator) -> Iterator[IntArray]:
    """All numbers below `size` in random order, `batch` at a time."""
    order = rng.permutation(size)
    for start in range(0, size, batch):
        yield order[start : start + batch]
