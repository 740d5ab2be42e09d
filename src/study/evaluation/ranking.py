"""From scores to a ranking, with a stated rule for ties."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from study.advisor.arrays import FloatArray, IntArray
from study.advisor.retrieval.ranking import chunks as chunks
from study.advisor.retrieval.ranking import tie_order as tie_order
from study.advisor.retrieval.ranking import top_k as top_k

if TYPE_CHECKING:
    import scipy.sparse as sp


def mask_known(scores: FloatArray, tasks: IntArray, known: sp.csr_matrix) -> FloatArray:
    """Set the scores of known interactions to -inf, in place. `scores`: shape (b, n_servers), one row per entry of
    `tasks`. `known`: shape (n_tasks, n_servers)."""
    rows, columns = known[tasks].nonzero()
    scores[rows, columns] = -np.inf
    return scores


def restrict(scores: FloatArray, candidates: IntArray) -> FloatArray:
    """Keep only the given candidates of each row rankable. `candidates`: server rows, shape (b, n_candidates)."""
    kept = np.full_like(scores, -np.inf)
    np.put_along_axis(kept, candidates, np.take_along_axis(scores, candidates, axis=1), axis=1)
    return kept


def tied(scores: FloatArray, k: int) -> np.ndarray:
    """Whether a tie decides what a task's top `k` holds or in which order, shape (b,), bool. `scores`: ranked, with at
    least k + 1 columns where the catalogue allows."""
    window = scores[:, : k + 1]
    return np.asarray(((window[:, 1:] == window[:, :-1]) & (window[:, 1:] > -np.inf)).any(axis=1))
