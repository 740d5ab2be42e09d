"""Nearest-neighbour collaborative filtering: ItemKNN (Sarwar et al. 2001) and UserKNN (Herlocker et al. 1999)."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from baselines.collaborative import ItemItem, Representations, keep_largest, select_entries, unranked_without_history
from study.base.errors import require_one_of
from study.data.dataset import Dataset, FloatArray, IntArray
from study.data.splits import Split

SIMILARITIES = ("cosine", "jaccard", "dice")


def similarity(
    common: sp.csr_matrix, rows: FloatArray, columns: FloatArray, *, kind: str, shrink: float
) -> sp.csr_matrix:
    """Similarities of sets from the sizes of their intersections; pairs without a common element stay 0.

    With c common elements (`common`, shape (n, m)) and squared norms a and b (`rows` and `columns`): cosine
    c / (sqrt(a b) + shrink), jaccard c / (a + b - c + shrink), dice 2 c / (a + b + shrink). The shrink term damps pairs
    with little support (Ferrari Dacrema et al. 2021, section 4.2).
    """
    require_one_of(kind, "similarity", SIMILARITIES, column="system.model.similarity")
    pairs = sp.coo_matrix(common)
    a, b, c = rows[pairs.row], columns[pairs.col], pairs.data
    sizes = {"cosine": np.sqrt(a) * np.sqrt(b), "jaccard": a + b - c, "dice": (a + b) / 2}
    values = c / (sizes[kind] + (shrink / 2 if kind == "dice" else shrink))
    return sp.csr_matrix((values.astype(np.float32), (pairs.row, pairs.col)), shape=common.shape)


def squared_norms(matrix: sp.csr_matrix) -> FloatArray:
    """The squared Euclidean norm of each row, shape (n,)."""
    return np.asarray(matrix.multiply(matrix).sum(axis=1), dtype=np.float32).ravel()


def without_diagonal(matrix: sp.csr_matrix) -> sp.csr_matrix:
    """The matrix with its diagonal emptied: nothing is its own neighbour."""
    entries = sp.coo_matrix(matrix)
    return select_entries(entries, entries.row != entries.col)


@dataclass
class ItemKNN(ItemItem):
    """score(t, m) = sum of s(i, m) over the training servers i of t that are among the k most like m."""

    k: int | None = None  # neighbours of each server; None takes all that share a task with it
    shrink: float = 0.0
    similarity: str = "cosine"

    def item_weights(self, train: sp.csr_matrix, order: IntArray) -> sp.csr_matrix:
        """Similarities without the diagonal, shape (n_servers, n_servers); column m holds the neighbours of m."""
        profiles = sp.csr_matrix(train.T)  # (n_servers, n_tasks)
        norms, common = squared_norms(profiles), without_diagonal(profiles @ profiles.T)
        alike = similarity(common, norms, norms, kind=self.similarity, shrink=self.shrink)
        return sp.csr_matrix(keep_largest(alike, self.k, order).T)


@dataclass
class UserKNN:
    """score(t, m) = sum over the k training tasks t' most like t, as they list the same servers, of s(t, t')^power
    R[t', m]. Which of equally similar tasks are taken is drawn by the seed."""

    k: int | None = None  # number of neighbours; None takes all tasks that share a server
    shrink: float = 0.0
    power: float = 1.0  # how sharply near neighbours outweigh far ones
    similarity: str = "cosine"

    def fit(self, data: Dataset, split: Split, *, seed: int, workdir: Path) -> None:
        """Keep the training interactions."""
        self.representations = sp.csr_matrix(split.train, dtype=np.float32)
        self.norms = squared_norms(self.representations)
        self.order = np.random.default_rng(seed).permutation(data.n_tasks).astype(np.int64)

    def score(self, tasks: IntArray) -> FloatArray:
        """Weighted votes >= 0, shape (len(tasks), n_servers); a task without training interactions is not ranked."""
        histories = self.representations[tasks]
        alike = sp.coo_matrix(self._alike(histories))
        return unranked_without_history(self._votes(select_entries(alike, alike.col != tasks[alike.row])), histories)

    def score_representations(self, rows: Representations) -> FloatArray:
        """Weighted votes for the histories `rows`, shape (b, n_servers)."""
        return self._votes(self._alike(sp.csr_matrix(rows)))

    def _alike(self, histories: sp.csr_matrix) -> sp.csr_matrix:
        """Similarities to every training task, shape (b, n_tasks)."""
        common = histories @ self.representations.T
        return similarity(common, squared_norms(histories), self.norms, kind=self.similarity, shrink=self.shrink)

    def _votes(self, alike: sp.csr_matrix) -> FloatArray:
        nearest = keep_largest(alike, self.k, self.order)
        return np.asarray((nearest.power(self.power) @ self.representations).toarray(), dtype=np.float32)
