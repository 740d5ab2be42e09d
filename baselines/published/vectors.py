"""Systems that score by the product of a task's and a server's vector."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor, nn

from baselines.collaborative import Representations, unranked_without_history
from baselines.published.training import Progress, Schedule
from study.data.dataset import FloatArray, IntArray


class VectorModel:
    """score(t, m) = e_t . e_m + b_m; a task without training interactions is not ranked.

    Attributes:
        representations: e of the tasks, shape (n_tasks, d).
        servers: e of the servers, shape (n_servers, d).
        bias: b, shape (n_servers,).
        histories: training interactions, shape (n_tasks, n_servers).
        network: what was trained.
        schedule: how it was to be trained.
        progress: how it was.
    """

    representations: Representations
    servers: FloatArray
    bias: FloatArray
    histories: sp.csr_matrix
    network: nn.Module
    schedule: Schedule
    progress: Progress

    @property
    def uses_validation(self) -> bool:
        """Whether the weights are chosen on validation labels."""
        return self.schedule.patience is not None

    def keep(self, tasks: Tensor, servers: Tensor, bias: Tensor | None = None) -> None:
        """Take over vectors from the network."""
        self.representations = tasks.detach().numpy()
        self.servers = servers.detach().numpy()
        self.bias = np.zeros(len(self.servers), np.float32) if bias is None else bias.detach().numpy()

    @torch.no_grad()
    def score(self, tasks: IntArray) -> FloatArray:
        """Scores, shape (len(tasks), n_servers)."""
        return unranked_without_history(self.score_representations(self.representations[tasks]), self.histories[tasks])

    def score_representations(self, rows: Representations) -> FloatArray:
        """Scores of the task vectors `rows`, shape (b, n_servers)."""
        scores: FloatArray = np.asarray(rows, dtype=np.float32) @ self.servers.T + self.bias
        return scores

    def report(self) -> dict[str, Any]:
        """Epochs, the best of them on validation, and seconds of training."""
        return self.progress.report()

    def parameters(self) -> int:
        """Entries of all trained tensors."""
        return sum(weight.numel() for weight in self.network.parameters())
