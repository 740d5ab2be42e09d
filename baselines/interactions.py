"""Training interactions as sets of pairs, as counts or ratings, and as a graph."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor

from study.data.dataset import Dataset, IntArray
from study.data.splits import Split


class Pairs:
    """The stored entries of a matrix, shape (n, m), as a set of (row, column) pairs that answers many at once."""

    def __init__(self, matrix: sp.csr_matrix) -> None:
        matrix = sp.csr_matrix(matrix)
        matrix.sort_indices()
        self.indptr, self.indices, self.width = matrix.indptr, matrix.indices.astype(np.int64), matrix.shape[1]
        self.counts: IntArray = np.diff(self.indptr).astype(np.int64)
        self.rows: IntArray = np.repeat(np.arange(matrix.shape[0]), self.counts)  # of the pairs, as `indices` columns
        self.keys = np.append(self.rows * self.width + self.indices, matrix.shape[0] * self.width)  # ascending

    def hold(self, rows: IntArray, columns: IntArray) -> NDArray[np.bool_]:
        """Whether each (row, column) is in the set, shape (len(rows),)."""
        keys = rows * self.width + columns
        return np.asarray(self.keys[np.searchsorted(self.keys, keys)] == keys)

    def draw(self, rows: IntArray, rng: np.random.Generator) -> IntArray:
        """One column of each row, uniform over those in the set; any for rows without one."""
        if not len(self.indices):
            return np.zeros(len(rows), dtype=np.int64)
        offset = np.floor(rng.random(len(rows)) * self.counts[rows]).astype(np.int64)
        return np.asarray(self.indices[np.minimum(self.indptr[rows] + offset, len(self.indices) - 1)])

    def draw_outside(self, rows: IntArray, rng: np.random.Generator, among: IntArray | None = None) -> IntArray:
        """One column for each row, uniform over the columns (by default all) that its row does not hold, if any."""
        pool = np.arange(self.width) if among is None else among
        if not len(pool):
            return np.zeros(len(rows), dtype=np.int64)
        columns = pool[rng.integers(len(pool), size=len(rows))]
        again = np.flatnonzero(self.hold(rows, columns) & (self.outside(pool)[rows] > 0))
        while len(again):
            columns[again] = pool[rng.integers(len(pool), size=len(again))]
            again = again[self.hold(rows[again], columns[again])]
        return columns

    def outside(self, pool: IntArray) -> IntArray:
        """How many columns of `pool` each row does not hold, shape (n,)."""
        inside = np.concatenate([[0], np.isin(self.indices, pool).cumsum()])
        return np.asarray(len(pool) - np.diff(inside[self.indptr]))


def shuffle_batches(size: int, batch: int, rng: np.random.Generator) -> Iterator[IntArray]:
    """All numbers below `size` in random order, `batch` at a time."""
    order = rng.permutation(size)
    for start in range(0, size, batch):
        yield order[start : start + batch]


def stars(data: Dataset, split: Split, kind: str) -> sp.csr_matrix:
    """Ratings, float64, with the stored entries of ``split.train``: all 5 (``binary``), or by the place of a server in
    its task's list, 1-2 -> 5, 3-4 -> 4, ..., 9 and later -> 1 (``rank``), whatever servers stand at the other
    places."""
    ratings = sp.csr_matrix(split.train, dtype=np.float64)
    ratings.sort_indices()
    ratings.data[:] = 5.0
    for task in split.tasks("train") if kind == "rank" else ():
        span = slice(ratings.indptr[task], ratings.indptr[task + 1])
        rank = {server: number for number, server in enumerate(data.lists[task])}
        ratings.data[span] = [max(5.0 - rank[server] // 2, 1.0) for server in ratings.indices[span]]
    return ratings


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, matrix: sp.csr_matrix, dense: Tensor) -> Tensor:
        context.matrix = matrix
        return torch.from_numpy(matrix @ dense.detach().cpu().numpy()).to(dense.device)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[None, Tensor]:
        return None, torch.from_numpy(context.matrix.T @ gradient.cpu().numpy()).to(gradient.device)


def propagate(matrix: sp.csr_matrix, dense: Tensor) -> Tensor:
    """matrix @ dense with the gradient of `dense`; on a CPU scipy's product is about three times as fast as torch's."""
    return _Product.apply(matrix, dense)  # type: ignore[no-any-return, no-untyped-call]


def bipartite(train: sp.csr_matrix) -> sp.csr_matrix:
    """D^-1/2 A D^-1/2 of the graph of tasks and servers (He et al. 2020, eq. 8), tasks first, float32."""
    edges = sp.csr_matrix(train, dtype=np.float64)
    graph = sp.block_array([[None, edges], [edges.T, None]], format="csr")
    degree = np.asarray(graph.sum(axis=1)).ravel()
    scale = sp.diags_array(np.divide(1, np.sqrt(degree), out=np.zeros_like(degree), where=degree > 0))
    return sp.csr_matrix(scale @ graph @ scale, dtype=np.float32)
