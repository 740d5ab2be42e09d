"""What collaborative systems share: they know a task by its training interactions and rank no task without any."""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import TypeAlias

import numpy as np
import scipy.sparse as sp

from study.data.dataset import Dataset, FloatArray, IntArray
from study.data.splits import Split

# One row per task: a history (sparse, n_servers wide) or a vector (dense, d wide).
Representations: TypeAlias = sp.csr_matrix | FloatArray


class ItemItem(ABC):
    """Linear models of a task's history: score(t, m) = sum over servers i of R[t, i] W[i, m]."""

    representations: sp.csr_matrix  # R, the training interactions, shape (n_tasks, n_servers)
    weights: sp.csr_matrix | FloatArray  # W, shape (n_servers, n_servers)

    @abstractmethod
    def item_weights(self, train: sp.csr_matrix, order: IntArray) -> sp.csr_matrix | FloatArray:
        """W from the training interactions R; `order` says which of equal entries come first where some are dropped."""

    def fit(self, data: Dataset, split: Split, *, seed: int, workdir: Path) -> None:
        """Compute W; the seed decides only which of equal entries a top-k keeps."""
        self.representations = sp.csr_matrix(split.train, dtype=np.float32)
        order = np.random.default_rng(seed).permutation(data.n_servers).astype(np.int64)
        self.weights = self.item_weights(self.representations, order)

    def score(self, tasks: IntArray) -> FloatArray:
        """R W, shape (len(tasks), n_servers); a task without training interactions is not ranked."""
        histories = self.representations[tasks]
        return unranked_without_history(self.score_representations(histories), histories)

    def score_representations(self, rows: Representations) -> FloatArray:
        """Scores of the histories `rows`, shape (b, n_servers)."""
        product = sp.csr_matrix(rows) @ self.weights
        return np.asarray(product.toarray() if sp.issparse(product) else product, dtype=np.float32)


def unranked_without_history(scores: FloatArray, histories: sp.csr_matrix) -> FloatArray:
    """Set the scores of tasks without training interactions to -inf, in place: nothing was learned about them."""
    scores[np.diff(histories.indptr) == 0] = -np.inf
    return scores


def keep_largest(matrix: sp.csr_matrix, k: int | None, order: IntArray) -> sp.csr_matrix:
    """The `k` largest stored entries of every row (None keeps all), of equal ones those that come first in `order`."""
    if k is None:
        return matrix
    entries = sp.coo_matrix(matrix)
    best = np.lexsort((np.argsort(order)[entries.col], -entries.data, entries.row))
    position = np.arange(entries.nnz) - np.repeat(matrix.indptr[:-1], np.diff(matrix.indptr))
    return select_entries(entries, best[position < k])


def select_entries(entries: sp.coo_matrix, chosen: np.ndarray) -> sp.csr_matrix:
    """The chosen entries of a matrix, by number or by mask."""
    return sp.csr_matrix((entries.data[chosen], (entries.row[chosen], entries.col[chosen])), shape=entries.shape)
