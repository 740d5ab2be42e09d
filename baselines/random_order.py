"""Random scores: the floor, and a check of the evaluator (expected Recall@10 = 10 / n_servers)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from study.data.dataset import Dataset, FloatArray, IntArray
from study.data.splits import Split


class RandomOrder:
    """A uniform score per (task, server), drawn anew for each task so that lists differ between tasks."""

    def fit(self, data: Dataset, split: Split, *, seed: int, workdir: Path) -> None:
        """Learn nothing but the size of the catalogue."""
        self.n_servers = data.n_servers
        self.seed = seed

    def score(self, tasks: IntArray) -> FloatArray:
        """Scores in [0, 1), shape (len(tasks), n_servers); a task's scores do not depend on the batch it is in."""
        rows = [np.random.default_rng([self.seed, int(task)]).random(self.n_servers, np.float32) for task in tasks]
        return np.array(rows, dtype=np.float32).reshape(len(tasks), self.n_servers)
