"""T2MRec followed by a re-ranker of its pool."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import numpy as np
import scipy.sparse as sp

from study.data.dataset import FloatArray, IntArray
from study.reranking.contract import Rules
from study.t2mrec.fusion import Reranker
from study.t2mrec.settings import Lexical, Scoring, Towers, Training
from study.t2mrec.system import T2MRec


class RerankedT2MRec(T2MRec):
    """T2MRec whose pool is put into another order; `rerank` says which.

    The contract is that of the paper, for every re-ranker alike: an order that is not a permutation of the pool, or
    whose first K break the rules, is discarded and counted in `invalid_rerankings`. Places below the pool stay as they
    are.

    Args:
        rules: K and how many of the first K may be replaced from the rest of the pool.
    """

    def __init__(
        self,
        lexical: Lexical,
        towers: Towers,
        training: Training,
        scoring: Scoring,
        reranker: Reranker | None = None,
        *,
        rules: Rules | None = None,
    ) -> None:
        super().__init__(lexical, towers, training, scoring, reranker)
        self.rules = rules or Rules()

    @abstractmethod
    def rerank(self, tasks: IntArray, pools: Sequence[IntArray]) -> Sequence[IntArray]:
        """The proposed order of each task's pool (server rows, best first)."""

    def rank(self, tasks: IntArray, k: int, known: sp.csr_matrix) -> tuple[IntArray, FloatArray]:
        """Anchors, expansion and re-ranking (eq. 19-23). Scores stay with the places: a re-ranker gives an order."""
        size = self.scoring.pool
        rows, scores = super().rank(tasks, max(k, size), known)
        pools = [row[:size][row[:size] >= 0] for row in rows]
        for row, pool, order in zip(rows, pools, self.rerank(tasks, pools), strict=True):
            if self.rules.fault_of_order(np.asarray(order).tolist(), pool.tolist()) is None:
                row[: len(pool)] = order
            else:
                self.invalid_rerankings += 1
        return rows[:, :k], scores[:, :k]
