"""The "+kNN transfer" extension: a collaborative system ranks for a new task through training tasks that are alike."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from baselines.task_knn import TaskKNN
from study.data.dataset import Dataset, FloatArray, IntArray
from study.data.splits import Split
from study.evaluation.metrics import ndcg
from study.evaluation.ranking import tie_order, top_k


@dataclass
class KnnTransfer:
    """Give a task without training interactions the weighted mean of its neighbours' representations.

    e_t = sum over the k training tasks t' most like t of s(t, t')^power e_t' / sum of s^power, where e is what the base
    system knows of a task (its vector, or its history for item-item models) and s compares texts as content task-KNN
    does. Known tasks are left to the base system. Of several k or power the pair with the best NDCG@10 on validation is
    taken. This is an extension made for this study, after the ablation "k = 5 neighbours" of CVH-REC: no published
    method, and never reported under the base system's name.
    """

    base: Any  # a collaborative system with `representations` of all tasks and `score_representations`
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
        self.chosen, new_tasks = (self.k[0], self.power[0]), np.setdiff1d(split.tasks("valid"), self.known)
        if len(self.k) * len(self.power) > 1 and len(new_tasks):
            order, similarity = tie_order(data.n_servers, seed), self.content.similarity(new_tasks)

            def quality(pair: tuple[int, float]) -> float:
                """NDCG@10, as for every other choice of the study, on validation tasks without a history."""
                ranked, _ = top_k(self._transfer(similarity, *pair), 10, order)
                return float(np.mean(ndcg(ranked, split.valid[new_tasks], 10)))

            self.chosen = max(itertools.product(self.k, self.power), key=quality)

    def score(self, tasks: IntArray) -> FloatArray:
        """The base system's scores for known tasks, transferred ones for new tasks, shape (len(tasks), n_servers)."""
        scores, new = np.asarray(self.base.score(tasks)), ~np.isin(tasks, self.known)
        if new.any():
            scores[new] = self._transfer(self.content.similarity(tasks[new]), *self.chosen)
        return scores

    def _transfer(self, similarity: FloatArray, k: int, power: float) -> FloatArray:
        weights = neighbour_weights(similarity, k, power, self.order)
        return np.asarray(self.base.score_representations(weights @ self.base.representations[self.known]))


def neighbour_weights(similarity: FloatArray, k: int, power: float, order: IntArray) -> sp.csr_matrix:
    """similarity^power, shape (b, n), of the `k` nearest, each row divided by its sum; equal weights where all
    similarities (>= 0 or -inf) are 0. Of equal ones those first in `order` are nearer."""
    nearest, value = top_k(similarity, k, order)
    weight = np.where(nearest >= 0, np.maximum(value, 0.0) ** power, 0.0)
    empty = weight.sum(axis=1) == 0
    weight[empty] = nearest[empty] >= 0
    weight /= weight.sum(axis=1, keepdims=True)
    row, column = np.nonzero(nearest >= 0)
    return sp.csr_matrix((weight[row, column].astype(np.float32), (row, nearest[row, column])), shape=similarity.shape)
