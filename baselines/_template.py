"""Cosine between the words of a task and those of a server (Salton and Buckley 1988); put your own method here."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer

from study.data.dataset import Dataset, FloatArray, IntArray
from study.data.splits import Split


@dataclass
class MySystem:
    """score(t, m) = cos(x_t, x_m), x the TF-IDF vectors of the texts.

    Args:
        max_features: words kept at most.
    """

    max_features: int = 20_000

    def fit(self, data: Dataset, split: Split, *, seed: int, workdir: Path) -> None:
        """Learn from ``split.train`` and the texts and attributes of all tasks and servers, from nothing else."""
        texts = [*data.task_texts(), *data.server_texts()]
        words = TfidfVectorizer(max_features=self.max_features, sublinear_tf=True).fit_transform(texts)
        self.tasks, self.servers = words[: data.n_tasks], words[data.n_tasks :]

    def score(self, tasks: IntArray) -> FloatArray:
        """Cosines, shape (len(tasks), n_servers)."""
        return np.asarray((self.tasks[tasks] @ self.servers.T).toarray(), dtype=np.float32)
