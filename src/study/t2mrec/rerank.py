"""Where a re-ranker of the candidate pool plugs in (paper, eq. 23)."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from study.data.dataset import Dataset, IntArray


class Reranker(Protocol):
    """Re-orders candidate pools; it can never add or invent a server."""

    def __call__(self, data: Dataset, task: int, pool: IntArray) -> IntArray:
        """The proposed order of `pool` (server rows, best first) for the task row `task`."""


def rerank_pool(reranker: Reranker | None, data: Dataset, task: int, pool: IntArray) -> tuple[IntArray, bool]:
    """Apply a re-ranker under the paper's constraint: an answer that is not a permutation of the pool is discarded.

    Args:
        pool: server rows, best first, without unfilled places.

    Returns: the order to use, and whether the re-ranker's answer was valid (True where there is no re-ranker).
    """
    if reranker is None:
        return pool, True
    proposed = np.asarray(reranker(data, task, pool))
    if proposed.shape != pool.shape or not np.array_equal(np.sort(proposed), np.sort(pool)):
        return pool, False
    return proposed.astype(np.int64), True
