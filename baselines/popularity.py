"""The trivial baselines: random scores, and popularity in training, overall or among tasks of the same kind."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import scipy.sparse as sp

from study.data.dataset import Dataset, FloatArray, IntArray
from study.data.splits import Split


class RandomOrder:
    """A uniform score per (task, server): a check of the evaluator (expected Recall@10 = 10 / n_servers)."""

    def fit(self, data: Dataset, split: Split, *, seed: int, workdir: Path) -> None:
        """Learn nothing but the size of the catalogue."""
        self.n_servers, self.seed = data.n_servers, seed

    def score(self, tasks: IntArray) -> FloatArray:
        """Scores in [0, 1), shape (len(tasks), n_servers); a task's scores do not depend on the batch it is in."""
        rows = [np.random.default_rng([self.seed, int(task)]).random(self.n_servers, np.float32) for task in tasks]
        return np.array(rows, dtype=np.float32).reshape(len(tasks), self.n_servers)


@dataclass
class Popularity:
    """Training counts with back-off from narrow to wide groups of tasks.

    A server's score is its place in the order by (count in the task's group of the first level, of the second level,
    ..., count over all training tasks), the limit of adding wider counts with ever smaller weights. A task whose group
    has no training task, or that names no group, is ranked by the wider levels alone.
    """

    levels: Sequence[str] = ()  # task columns from narrow to wide, compared without regard to case

    def fit(self, data: Dataset, split: Split, *, seed: int, workdir: Path) -> None:
        """Count ``split.train`` overall and per group."""
        everywhere = np.asarray(split.train.sum(axis=0)).ravel()
        self.overall = refine(np.zeros(data.n_servers, dtype=np.int64), everywhere)
        groups = [one_hot(data.tasks[level])[0] for level in self.levels]
        self.counts = [(group, sp.csr_matrix(group.T @ split.train)) for group in groups]

    def score(self, tasks: IntArray) -> FloatArray:
        """Ranks as scores (0 = least popular, equal counts share one), shape (len(tasks), n_servers)."""
        ranks = [self.overall] * len(tasks)
        for group, counts in reversed(self.counts):
            level = (group[tasks] @ counts).toarray()
            ranks = [refine(rank, row) for rank, row in zip(ranks, level, strict=True)]
        return np.array(ranks, dtype=np.float32)


def one_hot(values: pd.Series, *, empty: bool = False) -> tuple[sp.csr_matrix, list[str]]:
    """Indicators of names, compared without regard to case, shape (n, names), and the names; is an empty one a name?"""
    folded = values.str.strip().str.casefold()
    number, names = pd.factorize(folded if empty else folded.where(folded != ""))
    row = np.flatnonzero(number >= 0)
    shape = (len(values), len(names))
    return sp.csr_matrix((np.ones(len(row), np.float32), (row, number[row])), shape=shape), list(names)


def refine(rank: IntArray, counts: np.ndarray) -> IntArray:
    """Dense rank from 0 by `counts` first and the present `rank` second, all of shape (n_servers,)."""
    combined = counts.astype(np.int64) * (rank.max(initial=0) + 1) + rank
    return np.unique(combined, return_inverse=True)[1].astype(np.int64)
