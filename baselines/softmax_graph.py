"""Matrix factorisation, LightGCN and XSimGCL trained by a softmax over servers instead of one sampled server a pair."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from baselines.interactions import bipartite, propagate, shuffle_batches
from baselines.training import Job, Stage, VectorModel, fingerprint
from study.data.dataset import Dataset, IntArray
from study.data.splits import Split


@dataclass
class SoftmaxGraph(VectorModel):
    """score(t, m) = cos(e_t, e_m), where e is the mean of E^0 ... E^layers, E^l = A E^(l-1) (LightGCN, He et al. 2020).

    `layers` 0 is matrix factorisation. A is the normalised graph of training interactions. The loss of a pair (t, m) is
    -log(exp(s_tm / tau) / sum over servers n exp(s_tn / tau)), over all servers (`full`), or over m and `negatives`
    servers that a step draws uniformly for all of its pairs (`sampled`; Wu et al. 2022, *On the Effectiveness of
    Sampled Softmax Loss*).

    `noise` > 0 makes it XSimGCL (Yu et al. 2023): every layer adds sign(E^l) * noise * a random direction, e is the
    mean without E^0, and `contrast` times an InfoNCE loss between e and E^1 of the tasks and servers of a batch joins.
    Deviations: vectors are of unit length under both losses; validation chooses the epoch.
    """

    width: int = 64
    layers: int = 2
    loss_over: Literal["full", "sampled"] = "full"
    negatives: int = 1024
    temperature: float = 0.1
    noise: float = 0.0
    contrast: float = 0.2
    contrast_temperature: float = 0.15
    learning_rate: float = 0.02
    batch_size: int = 512

    def fit(self, data: Dataset, split: Split, *, seed: int, workdir: Path) -> None:
        """Train; goes on from the checkpoint in `workdir`."""
        torch.manual_seed(seed)
        self.histories = sp.csr_matrix(split.train)
        self.graph = bipartite(self.histories)
        self.asked = np.flatnonzero(np.diff(self.histories.indptr))
        start = nn.init.xavier_uniform_(torch.empty(sum(self.histories.shape), self.width))
        self.network = nn.ParameterDict({"start": start}).to(self.place)  # E^0 of every task, then of every server
        job = Job(seed, workdir, "softmax", fingerprint(self, seed, self.histories.indptr, self.histories.indices))
        optimiser = torch.optim.Adam(self.network.parameters(), lr=self.learning_rate)
        stage = Stage(self.network, self.batches, self.loss, self.schedule)
        self.progress = self.train(stage, split, job, optimiser=optimiser)

    def batches(self, rng: np.random.Generator, epoch: int) -> Iterator[tuple[IntArray, IntArray]]:
        """Tasks, of which all pairs are learned, and the servers to tell theirs from (none drawn: all servers)."""
        n = self.histories.shape[1]
        for part in shuffle_batches(len(self.asked), self.batch_size, rng):
            yield self.asked[part], rng.integers(n, size=self.negatives if self.loss_over == "sampled" else 0)

    def layers_of(self, perturbed: bool) -> list[Tensor]:
        """E^0 ... E^layers, each of shape (n_tasks + n_servers, d)."""
        layers = [self.network.start]
        for _ in range(self.layers):
            layer = propagate(self.graph, layers[-1])
            if perturbed:
                layer = layer + torch.sign(layer) * normalize(torch.rand_like(layer)) * self.noise
            layers.append(layer)
        return layers

    def final(self, layers: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Vectors of unit length of tasks and of servers."""
        summands = layers[1:] if self.noise > 0 else layers
        return normalize(torch.stack(summands).mean(dim=0)).tensor_split([self.histories.shape[0]])  # type: ignore[return-value]

    def loss(self, batch: tuple[IntArray, IntArray]) -> Tensor:
        """The mean over the pairs of a batch."""
        task_rows, sample = batch
        pairs = sp.coo_matrix(self.histories[task_rows])
        rows, targets = self.tensor(pairs.row.astype(np.int64)), self.tensor(pairs.col.astype(np.int64))
        embeddings = self.layers_of(self.noise > 0)
        tasks, servers = self.final(embeddings)
        queries = tasks[self.tensor(task_rows)]
        if self.loss_over == "full":
            total = -(queries @ servers.T / self.temperature).log_softmax(dim=1)[rows, targets].mean()
        else:
            right = (queries[rows] * servers[targets]).sum(dim=1, keepdim=True)
            logits = torch.cat([right, (queries @ servers[self.tensor(sample)].T)[rows]], dim=1) / self.temperature
            total = cross_entropy(logits, torch.zeros_like(rows))
        if self.noise > 0:
            chosen_of = self.tensor(task_rows), self.tensor(np.unique(pairs.col).astype(np.int64))
            layers = embeddings[1].tensor_split([len(tasks)])
            for final, layer, chosen in zip((tasks, servers), layers, chosen_of, strict=True):
                logits = final[chosen] @ normalize(layer[chosen]).T / self.contrast_temperature
                total = total + self.contrast * cross_entropy(logits, torch.arange(len(chosen), device=self.place))
        return total

    @torch.no_grad()
    def finish(self) -> None:
        """Take over the vectors, without noise."""
        self.keep(*self.final(self.layers_of(False)))
