"""Systems with one network that is trained until validation stops it, and of these the ones with vectors alone."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor, nn

from baselines.collaborative import Representations, unranked_without_history
from baselines.training import Job, Schedule, Trained, array, n_weights, train, validation_quality
from study.data.dataset import FloatArray, IntArray
from study.data.splits import Split


@dataclass(kw_only=True)
class Scheduled(Trained):
    """A system with one network that is trained until validation stops it."""

    schedule: Schedule = field(default_factory=Schedule)

    @abstractmethod
    def loss(self, batch: Any) -> Tensor:
        """The loss of a batch."""

    @abstractmethod
    def finish(self) -> None:
        """Take over from the network what `score` needs."""

    @abstractmethod
    def score(self, tasks: IntArray) -> FloatArray:
        """As `study.evaluation.system.System.score`."""

    def train(
        self,
        network: nn.Module,
        batches: Callable[[np.random.Generator], Iterable[Any]],
        split: Split,
        job: Job,
        *,
        optimiser: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer],
        ranks_new: bool = True,
        rate: Callable[[float], float] | None = None,
    ) -> None:
        """Train `network`, from then on at the device, and finish; goes on from a checkpoint."""
        self.network: Any = network.to(self.place)

        def score(tasks: IntArray) -> FloatArray:
            self.finish()
            return self.score(tasks)

        self.progress = train(
            self.network,
            lambda epoch: batches(np.random.default_rng([job.seed, epoch])),
            self.loss,
            self.schedule,
            job,
            quality=validation_quality(score, split, self.schedule, seed=job.seed, ranks_new=ranks_new),
            optimiser=optimiser(self.network.parameters()),
            rate=rate,
        )
        self.finish()

    @property
    def uses_validation(self) -> bool:
        """Whether validation labels choose the weights."""
        return self.schedule.selects

    def report(self) -> dict[str, Any]:
        """Epochs, the best of them on validation, and seconds of training."""
        return self.progress.report()

    def parameters(self) -> int:
        """Entries of all trained tensors."""
        return n_weights(self.network)


@dataclass(kw_only=True)
class VectorModel(Scheduled):
    """score(t, m) = e_t . e_m + b_m; a task without training interactions is not ranked."""

    histories: sp.csr_matrix = field(init=False, repr=False)  # training interactions, shape (n_tasks, n_servers)

    def keep(self, tasks: Tensor, servers: Tensor, bias: Tensor | None = None) -> None:
        """Take over vectors from the network, shapes (n_tasks, d) and (n_servers, d)."""
        self.representations, self.servers = array(tasks), array(servers)
        self.bias = np.zeros(len(servers), np.float32) if bias is None else array(bias)

    def score(self, tasks: IntArray) -> FloatArray:
        """Scores, shape (len(tasks), n_servers)."""
        return unranked_without_history(self.score_representations(self.representations[tasks]), self.histories[tasks])

    def score_representations(self, rows: Representations) -> FloatArray:
        """Scores of the task vectors `rows`, shape (b, n_servers)."""
        return np.asarray(np.asarray(rows, dtype=np.float32) @ self.servers.T + self.bias, dtype=np.float32)
