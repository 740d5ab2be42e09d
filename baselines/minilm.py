"""Zero-shot dense retrieval: cosine of MiniLM sentence vectors (Wang et al. 2020; Reimers & Gurevych 2019)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from study.data.dataset import Dataset, FloatArray, IntArray
from study.data.splits import Split
from study.encoders.sentence import encode


@dataclass
class DenseCosine:
    """cos(E(x_t), E(x_m)) with a frozen text encoder. It uses no labels.

    Args:
        encoder: the model, a key of `study.encoders.sentence.PACKAGES`.
    """

    encoder: str = "minilm"

    def fit(self, data: Dataset, split: Split, *, seed: int, workdir: Path) -> None:
        """Encode every task and server (cached on disk)."""
        self.tasks = encode(data.task_texts(), model=self.encoder)  # (n_tasks, d)
        self.servers = encode(data.server_texts(), model=self.encoder)  # (n_servers, d)

    def score(self, tasks: IntArray) -> FloatArray:
        """Cosines in [-1, 1], shape (len(tasks), n_servers)."""
        scores: FloatArray = self.tasks[tasks] @ self.servers.T
        return scores
