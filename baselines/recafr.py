"""ReCAFR: graph collaborative filtering aligned with the texts of tasks and servers (Dong et al. 2025)."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, normalize, softplus

from baselines.interactions import Pairs, bipartite, propagate, shuffle_batches
from baselines.training import Job, Stage, VectorModel, array, fingerprint
from study.advisor.encoders.sentence import encode
from study.data.dataset import Dataset, IntArray
from study.data.splits import Split

# The two views of a text, in the place of the two halves of a user's reviews.
TASK_VIEWS = (("name", "description"), ("language", "category", "subcategory", "theme"))
SERVER_VIEWS = (("name", "description"), ("language", "category", "subcategory", "license", "tools"))


# A batch: tasks, labelled and sampled servers, each of shape (b,); the graph of the step; tasks to contrast with.
Triples = tuple[IntArray, IntArray, IntArray, sp.csr_matrix, IntArray]


class Network(nn.Module):
    """Free vectors of tasks and servers, and the projection g of text vectors into their space."""

    def __init__(self, n_tasks: int, n_servers: int, width: int, layers: int, q: int) -> None:
        super().__init__()
        self.n_tasks, self.layers = n_tasks, layers
        self.embedding = nn.Parameter(torch.empty(n_tasks + n_servers, width))
        nn.init.xavier_uniform_(self.embedding)
        hidden = (q + width) // 2
        self.project = nn.Sequential(nn.Linear(q, hidden), nn.LeakyReLU(), nn.Linear(hidden, width))

    def forward(self, graph: sp.csr_matrix) -> Tensor:
        """Z = sum over l of A^l E (a sum, not a mean), shape (n_tasks + n_servers, width)."""
        total: Tensor = self.embedding
        layer = total
        for _ in range(self.layers):
            layer = propagate(graph, layer)
            total = total + layer
        return total


@dataclass
class ReCAFR(VectorModel):
    """A contrastive framework with user, item and review alignment (Dong, Fang, Lauw; WSDM 2025, 117-126).

    The program that the T2MRec paper points to: LightGCN whose vectors z are pulled to projected text vectors g(h).
    L = mean softplus(z_t z_n - z_t z_p) + decay sum |theta|^2
    + alignment (NCE(z_t, g_t; all tasks) + NCE(z_p, g_p; in batch) + NCE(z_n, g_n; in batch)), with
    NCE(a_i, b_i; S) = -cos(a_i, b_i) / tau + log sum over s in S of exp(cos(a_i, b_s) / tau).
    A reconstruction of the article's review augmentation can be added (no readable program has the formula):
    view_weight InfoNCE(z + g(view 1), z + g(view 2)) of tasks and servers, in batch, where the views are the free text
    and the attributes.

    Deviations: there are no reviews, so the texts are x_t and x_m, encoded by MiniLM; validation NDCG@10 chooses the
    weights; the tasks in the denominator may be sampled. For a task without training interactions g(h) can replace z,
    since the method learns that they are close (`cold_tasks`), an extension of this study.
    """

    width: int = 32
    layers: int = 3
    keep_edges: float = 0.8
    alignment: float = 0.01
    temperature: float = 0.2
    view_weight: float = 0.0
    view_temperature: float = 0.2
    contrast: int | None = None
    decay: float = 1e-7
    learning_rate: float = 1e-3
    batch_size: int = 4096
    cold_tasks: Literal["unranked", "profile"] = "unranked"

    def fit(self, data: Dataset, split: Split, *, seed: int, workdir: Path) -> None:
        """Train; goes on from the checkpoint in `workdir`."""
        torch.manual_seed(seed)
        self.histories, self.pairs = sp.csr_matrix(split.train), Pairs(split.train)
        self.graph, self.known = bipartite(split.train), split.tasks("train")
        self.texts = self.tensor(np.concatenate([encode(data.task_texts()), encode(data.server_texts())]))
        self.views = [
            self.tensor(np.concatenate([encode(data.task_texts(task)), encode(data.server_texts(server))]))
            for task, server in zip(TASK_VIEWS, SERVER_VIEWS, strict=True)
            if self.view_weight
        ]
        sizes = data.n_tasks, data.n_servers, self.width, self.layers, self.texts.shape[1]
        self.network = Network(*sizes).to(self.place)
        job = Job(seed, workdir, "recafr", fingerprint(self, seed, split.train, array(self.texts)))
        optimiser = torch.optim.Adam(self.network.parameters(), lr=self.learning_rate)
        stage = Stage(self.network, self.batches, self.loss, self.schedule)
        self.ranks_new = self.cold_tasks == "profile"
        self.progress = self.train(stage, split, job, optimiser=optimiser)

    def batches(self, rng: np.random.Generator, epoch: int) -> Iterator[Triples]:
        """Every training interaction once, with one sampled server."""
        for part in shuffle_batches(len(self.pairs.rows), self.batch_size, rng):
            tasks, others = self.pairs.rows[part], self.known
            sampled = self.pairs.draw_outside(tasks, rng)
            if self.contrast is not None and self.contrast < len(self.known):
                others = rng.choice(self.known, self.contrast, replace=False)
            edges = self.graph.data * (rng.random(self.graph.nnz) < self.keep_edges)  # either direction of an edge
            graph = sp.csr_matrix((edges, self.graph.indices, self.graph.indptr), shape=self.graph.shape)
            yield tasks, self.pairs.indices[part], sampled, graph, others

    def loss(self, batch: Triples) -> Tensor:
        """L of a batch."""
        model, (task_rows, labelled, sampled, graph, among) = self.network, batch
        numbers = task_rows, labelled + model.n_tasks, sampled + model.n_tasks, among
        tasks, positives, negatives, others = map(self.tensor, numbers)
        z_tasks, z_positives, z_negatives = embedding(torch.stack([tasks, positives, negatives]), model(graph))
        gap = (z_tasks * (z_negatives - z_positives)).sum(dim=1)
        total: Tensor = softplus(gap).mean() + self.decay * sum(weight.square().sum() for weight in model.parameters())
        g = model.project(self.texts[torch.cat([tasks, positives, negatives, others])])
        g_tasks, g_positives, g_negatives, g_others = g.split([len(tasks)] * 3 + [len(others)])
        among_others = self.tensor(np.isin(task_rows, among))
        aligned = contrast(z_tasks, g_tasks, g_others, self.temperature, own_among_others=among_others)
        for vectors, texts in ((z_positives, g_positives), (z_negatives, g_negatives)):
            aligned = aligned + contrast(vectors, texts, texts, self.temperature)
        total = total + self.alignment * aligned
        if self.view_weight:
            for vectors, rows in ((z_tasks, tasks), (z_positives, positives)):
                first, second = (vectors + model.project(view[rows]) for view in self.views)
                total = total + self.view_weight * contrast(first, second, second, self.view_temperature)
        return total

    @torch.no_grad()
    def finish(self) -> None:
        """Take over the vectors, without dropped edges; with ``profile`` those of tasks without history are g(h)."""
        model = self.network
        tasks, servers = model(self.graph).split([model.n_tasks, len(self.texts) - model.n_tasks])
        if self.cold_tasks == "profile":
            new = self.tensor(np.setdiff1d(np.arange(model.n_tasks), self.known))
            length = tasks[self.tensor(self.known)].norm(dim=1).mean()
            tasks = tasks.clone()
            tasks[new] = length * normalize(model.project(self.texts[new]), dim=1)
        self.keep(tasks, servers)


def contrast(
    anchors: Tensor, partners: Tensor, others: Tensor, temperature: float, *, own_among_others: Tensor | None = None
) -> Tensor:
    """NCE: mean over i of -cos(a_i, b_i) / tau + log sum over s of exp(cos(a_i, b_s) / tau), with `anchors` a and
    `partners` b, shape (n, d), and `others` b_s, shape (m, d). `own_among_others`: whether b_i is one of these, shape
    (n,); where it is not, it is added. None means all are."""
    a = normalize(anchors, dim=1) / temperature
    positive = (a * normalize(partners, dim=1)).sum(dim=1)
    # No cosine is above 1, so taking off 1 / tau keeps exp in range; torch.logsumexp takes twice as long.
    highest = 1 / temperature
    total = torch.exp(torch.addmm(a.new_tensor(-highest), a, normalize(others, dim=1).T)).sum(dim=1)
    if own_among_others is not None:
        total = total + torch.exp(positive - highest) * ~own_among_others
    return (torch.log(total) + highest - positive).mean()
