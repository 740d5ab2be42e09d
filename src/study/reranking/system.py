"""T2MRec followed by a re-ranker of its pool, and what the re-ranker's answer must be (paper, section 4.4.3)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

from study.advisor.retrieval.settings import Count, Group, Natural
from study.data.dataset import FloatArray, IntArray
from study.t2mrec.settings import Lexical, Scoring, Towers, Training
from study.t2mrec.system import T2MRec

# Why an answer is discarded, in the order in which it is looked at.
FAULTS = ("wrong_form", "wrong_length", "repeat", "outside_pool", "too_many_substitutions")


@dataclass(frozen=True)
class Rules(Group):
    """Length and membership: K, how many servers an answer names, and how many of the first K of the pool may be
    replaced by servers from the pool's remaining places; the paper allows two at most."""

    k: Count = 10
    substitutions: Natural = 2

    def fault(self, answer: Any, pool: Sequence[int]) -> str | None:
        """Why `answer` is discarded, one of `FAULTS`; None for an answer that counts. `answer`: anything; a good one is
        a list of ids. `pool`: ids, best first, without repeats."""
        if not isinstance(answer, list) or any(type(item) is not int for item in answer):
            return "wrong_form"
        if len(answer) != min(self.k, len(pool)):
            return "wrong_length"
        if len(set(answer)) < len(answer):
            return "repeat"
        if not set(answer) <= set(pool):
            return "outside_pool"
        return "too_many_substitutions" if len(set(answer) - set(pool[: self.k])) > self.substitutions else None

    def fault_of_order(self, order: Sequence[Any], pool: Sequence[int]) -> str | None:
        """Why an order of the whole pool is discarded: it is no permutation, or its first K do not count."""
        whole = Rules(max(1, len(pool)), 0)
        return whole.fault(list(order), pool) or self.fault(list(order[: self.k]), pool)

    def order(self, answer: Sequence[int], pool: Sequence[int]) -> list[int]:
        """The whole pool: the answer, then what it leaves out in the order before it."""
        named = set(answer)
        return [*answer, *(item for item in pool if item not in named)]

    def within(self, order: Sequence[int], pool: Sequence[int]) -> list[int]:
        """The order nearest to a free one that the rules allow.

        The first K are taken from the free order, best first, and servers from the pool's remaining places are passed
        over once `substitutions` of them are in; both the first K and what follows them keep the free order.

        `order`: any permutation of the pool.
        `pool`: ids, best first, without repeats.
        """
        first, chosen, substitutes = set(pool[: self.k]), list[int](), 0
        for item in order:
            if item not in first and substitutes == self.substitutions:
                continue
            substitutes += item not in first
            chosen.append(item)
            if len(chosen) == self.k:
                break
        return self.order(chosen, order)


class RerankedT2MRec(T2MRec):
    """T2MRec whose pool is put into another order; `rerank` says which.

    The contract is that of the paper, for every re-ranker alike: an order that is not a permutation of the pool, or
    whose first K break the rules, is discarded and counted in `invalid_rerankings`. Places below the pool stay.
    """

    def __init__(
        self, lexical: Lexical, towers: Towers, training: Training, scoring: Scoring, *, rules: Rules | None = None
    ) -> None:
        super().__init__(lexical, towers, training, scoring)
        self.rules, self.invalid_rerankings = rules or Rules(), 0

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
