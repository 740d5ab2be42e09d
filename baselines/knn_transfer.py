"""The "+kNN transfer" extension: a collaborative system ranks for a new task through training tasks that are alike."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from baselines.collaborative import Representations, Transferable
from baselines.task_knn import TaskKNN
from study.data.dataset import Dataset, FloatArray, IntArray
from study.data.splits import Split
from study.evaluation.metrics import ndcg
from study.evaluation.ranking import tie_order, top_k

SELECTED_AT = 10  # NDCG@10 on validation, the same criterion as every other choice of the study


@dataclass
class KnnTransfer:
    """Give a task without training interactions the weighted mean of its neighbours' representations.

    e_t = sum over the k training tasks t' most like t of s(t, t')^power e_t' / sum of s^power, where e is what the base
    system knows of a task (its vector, or its history for item-item models) and s compares texts as content task-KNN
    does. Known tasks are left to the base system. This is an extension made for this study, after the ablation "k = 5
    neighbours" of CVH-REC: no published method, and never reported under the base system's name.

    Where several values of k or power are given, the pair with the best NDCG@10 on the validation tasks is taken; the
    base system is trained once.
    """

    base: Transferable
    k: Sequence[int] = (5, 10, 20, 50, 100)
    power: Sequence[float] = (1.0, 2.0, 4.0)
    content: TaskKNN = field(default_factory=TaskKNN)  # how tasks are compared; its own k and power are not used

    @property
    def uses_validation(self) -> bool:
        """Whether a choice is made, or the base system itself looks at validation labels."""
        return len(self.k) * len(self.power) > 1 or bool(getattr(self.base, "uses_validation", False))

    def fit(self, data: Dataset, split: Split, *, seed: int, workdir: Path) -> None:
        """Fit the base system and the content vectors, and choose k and power."""
        self.base.fit(data, split, seed=seed, workdir=workdir)
        self.content.fit(data, split, seed=seed, workdir=workdir)
        self.known = split.tasks("train")
        self.order = tie_order(len(self.known), seed)
        self.chosen = (self.k[0], self.power[0])
        if len(self.k) * len(self.power) > 1:
            self.chosen = self._choose(split, seed)

    def _choose(self, split: Split, seed: int) -> tuple[int, float]:
        """The pair with the best NDCG@10 on those validation tasks that have no training interaction."""
        asked = np.setdiff1d(split.tasks("valid"), self.known)
        if not len(asked):
            return self.chosen
        order, similarity = tie_order(split.train.shape[1], seed), self.content.similarity(asked)

        def quality(pair: tuple[int, float]) -> float:
            ranked, _ = top_k(self._transfer(similarity, *pair), SELECTED_AT, order)
            return float(np.mean(ndcg(ranked, split.valid[asked], SELECTED_AT)))

        return max(itertools.product(self.k, self.power), key=quality)

    def score(self, tasks: IntArray) -> FloatArray:
        """The base system's scores for known tasks, transferred ones for new tasks, shape (len(tasks), n_servers)."""
        new = ~np.isin(tasks, self.known)
        if not new.any():
            return self.base.score(tasks)
        transferred = self._transfer(self.content.similarity(tasks[new]), *self.chosen)
        if new.all():
            return transferred
        scores = np.empty((len(tasks), transferred.shape[1]), dtype=np.float32)
        scores[new], scores[~new] = transferred, self.base.score(tasks[~new])
        return scores

    def _transfer(self, similarity: FloatArray, k: int, power: float) -> FloatArray:
        weights = neighbour_weights(similarity, k, power, self.order)
        rows: Representations = weights @ self.base.representations[self.known]
        return self.base.score_representations(rows)


def neighbour_weights(similarity: FloatArray, k: int, power: float, order: IntArray) -> sp.csr_matrix:
    """similarity^power of the `k` nearest, each row divided by its sum; equal weights where all similarities are 0.

    Similarities have shape (b, n) and are >= 0 or -inf; of equal ones those first in `order` are nearer.
    """
    nearest, value = top_k(similarity, k, order)
    weight = np.where(nearest >= 0, np.maximum(value, 0.0) ** power, 0.0)
    empty = weight.sum(axis=1) == 0
    weight[empty] = nearest[empty] >= 0
    weight /= weight.sum(axis=1, keepdims=True)
    row, column = np.nonzero(nearest >= 0)
    return sp.csr_matrix((weight[row, column].astype(np.float32), (row, nearest[row, column])), shape=similarity.shape)
