"""How strongly a task lists a server: the interaction counts and ratings that some methods expect."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from study.data.dataset import Dataset
from study.data.splits import Split


def train_positions(data: Dataset, split: Split) -> sp.csr_matrix:
    """Place (from 1) of every training server in its task's list.

    This is the one use of the lists' order, and of training servers alone: which servers stand at the other places is
    not looked at. Whether the order means anything is doubtful, so every method that uses it offers a way without it.

    Returns: shape (n_tasks, n_servers), int64, with the stored entries of ``split.train``.
    """
    positions = sp.csr_matrix(split.train, dtype=np.int64)
    positions.sort_indices()
    for task in split.tasks("train"):
        span = slice(positions.indptr[task], positions.indptr[task + 1])
        place = {server: number for number, server in enumerate(data.lists[task], start=1)}
        positions.data[span] = [place[server] for server in positions.indices[span]]
    return positions


def counts(data: Dataset, split: Split, kind: str) -> sp.csr_matrix:
    """Interaction counts: 1 (``binary``), or longest list + 1 - position (``rank``).

    Returns: shape (n_tasks, n_servers), float64.
    """
    if kind == "binary":
        return sp.csr_matrix(split.train, dtype=np.float64)
    positions = train_positions(data, split)
    longest = max(len(row) for row in data.lists)
    return sp.csr_matrix((longest + 1.0 - positions.data, positions.indices, positions.indptr), shape=positions.shape)


def stars(data: Dataset, split: Split, kind: str) -> sp.csr_matrix:
    """Ratings from 1 to 5: all 5 (``binary``), or positions 1-2 -> 5, 3-4 -> 4, ..., 9 and later -> 1 (``rank``).

    Returns: shape (n_tasks, n_servers), float64.
    """
    positions = train_positions(data, split) if kind == "rank" else sp.csr_matrix(split.train)
    values = np.maximum(5.0 - (positions.data - 1) // 2, 1.0) if kind == "rank" else np.full(positions.nnz, 5.0)
    return sp.csr_matrix((values, positions.indices, positions.indptr), shape=positions.shape)
