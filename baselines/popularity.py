"""The trivial baselines: random scores, and popularity in training, overall or among tasks of the same kind."""

from __future__ import annotations

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

    A server's score is its place in the order by (count in the task's group of the first level, count in its group of
    the second level, ..., count over all training tasks). This is the limit of adding wider counts with ever smaller
    weights, without float32 rounding the small ones away. A task whose group has no training task, or that names no
    group, is ranked by the wider levels alone.
    """

    levels: Sequence[str] = ()  # task columns from narrow to wide, compared without regard to case

    def fit(self, data: Dataset, split: Split, *, seed: int, workdir: Path) -> None:
        """Count ``split.train`` overall and per group."""
        everywhere = np.asarray(split.train.sum(axis=0)).ravel()
        self.overall = refine(np.zeros(data.n_servers, dtype=np.int64), everywhere)
        fitted = [fit_group_counts(split.train, data.tasks[level]) for level in self.levels]
        columns = [groups for groups, _ in fitted]
        self.groups = np.array(columns, dtype=np.int64).reshape(len(self.levels), data.n_tasks).T
        self.counts = [counts for _, counts in fitted]

    def score(self, tasks: IntArray) -> FloatArray:
        """Ranks as scores (0 = least popular, equal counts share one), shape (len(tasks), n_servers)."""
        kinds, kind_of_task = np.unique(self.groups[tasks], axis=0, return_inverse=True)
        scores = np.empty((len(kinds), len(self.overall)), dtype=np.float32)
        for row, kind in enumerate(kinds):
            rank = self.overall
            for counts, group in reversed(list(zip(self.counts, kind, strict=True))):
                rank = refine(rank, counts[[group]].toarray()[0])
            scores[row] = rank
        return scores[kind_of_task.ravel()]


def fit_group_counts(train: sp.csr_matrix, values: pd.Series) -> tuple[IntArray, sp.csr_matrix]:
    """Group the tasks by their values (empty: in no group) and count each group's training interactions per server.

    Returns: the group of each task, shape (n_tasks,), and the counts, shape (groups + 1, n_servers). The last row is
        zero and stands for "no group".
    """
    numbers, found = numbered(values)
    member = np.flatnonzero(numbers >= 0)
    shape = (len(found) + 1, len(values))
    one_hot = sp.csr_matrix((np.ones(len(member), np.float32), (numbers[member], member)), shape=shape)
    return np.where(numbers < 0, len(found), numbers).astype(np.int64), sp.csr_matrix(one_hot @ train)


def numbered(values: pd.Series) -> tuple[np.ndarray, pd.Index]:
    """Numbers of names, compared without regard to case, -1 for an empty one; and the names."""
    names = values.str.strip().str.casefold()
    return pd.factorize(names.where(names != ""))


def refine(rank: IntArray, counts: np.ndarray) -> IntArray:
    """Dense rank from 0 by `counts` first and the present `rank` second, all of shape (n_servers,)."""
    combined = counts.astype(np.int64) * (rank.max(initial=0) + 1) + rank
    return np.unique(combined, return_inverse=True)[1].astype(np.int64)
