"""T2MRec followed by a re-ranker of its pool."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import scipy.sparse as sp

from study.data.dataset import Dataset, FloatArray, IntArray
from study.t2mrec.rerank import Reranker, rerank_pool
from study.t2mrec.system import T2MRec


class RerankedT2MRec(T2MRec):
    """T2MRec whose pool is put into another order; `rerank` says which.

    The contract is that of the paper: an order that is not a permutation of the pool is discarded and counted in
    `invalid_rerankings`. Places below the pool stay as they are.
    """

    @abstractmethod
    def rerank(self, tasks: IntArray, pools: Sequence[IntArray]) -> Sequence[IntArray]:
        """The proposed order of each task's pool (server rows, best first)."""

    def rank(self, tasks: IntArray, k: int, known: sp.csr_matrix) -> tuple[IntArray, FloatArray]:
        """Anchors, expansion and re-ranking (eq. 19-23). Scores stay with the places: a re-ranker gives an order."""
        size = self.scoring.pool
        rows, scores = super().rank(tasks, max(k, size), known)
        pools = [row[:size][row[:size] >= 0] for row in rows]
        for row, task, pool, order in zip(rows, tasks, pools, self.rerank(tasks, pools), strict=True):
            row[: len(pool)], valid = rerank_pool(_saying(order), self.data, int(task), pool)
            self.invalid_rerankings += not valid
        return rows[:, :k], scores[:, :k]


def _saying(order: IntArray) -> Reranker:
    """A re-ranker that gives this answer."""

    def answer(data: Dataset, task: int, pool: IntArray) -> IntArray:
        return order

    return answer
