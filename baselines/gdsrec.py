"""GDSRec: attention over deviations of ratings from averages, with the opinion of friends (Chen et al. 2023)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from baselines.gdsrec_networks import (
    MIDPOINT,
    PADDING,
    Lists,
    Network,
    agree,
    averages,
    deviation_lists,
    friend_weights,
    nearest,
    shares,
)
from baselines.interactions import Pairs, shuffled, stars
from baselines.settings import require_choices
from baselines.training import Job, Schedule, Scheduled, fingerprint
from study.data.dataset import Dataset, FloatArray, IntArray
from study.data.splits import Split
from study.encoders.sentence import encode
from study.evaluation.ranking import chunks

# Tasks whose pairs with all servers are predicted at once.
BLOCK = 64


class Groups(NamedTuple):
    """A batch: b tasks, for each a listed server and then n drawn ones, and the rating of the listed one."""

    tasks: IntArray  # (b,)
    servers: IntArray  # (b, 1 + n)
    ratings: FloatArray  # (b,)
    others: IntArray | None = None  # (b, n): a task that lists each drawn server
    other_ratings: FloatArray | None = None  # (b, n): its rating, 0 where there is none


@dataclass
class GDSRec(Scheduled):
    """Graph-based decentralized collaborative filtering for social recommendation (Chen et al., TKDE 35(5), 2023).

    h_t aggregates the servers of a task with the deviations of their ratings, z_m the tasks of a server, y_o the
    servers of a friend (with its own weights). p(t, m) = sigma((r1 + r2) / 2 + (mu_t + mu_m) / 2 - 3) with
    r1 = phi(h_t, z_m) and r2 = the mean of phi(y_o, z_m) over the friends o, weighted by how many servers t and o rate
    alike; trained by binary cross-entropy (the authors' ranking program).

    Adaptations: ratings follow the place in the list, or are all 5 (`rating`); friends are the training tasks with the
    nearest texts; negatives are drawn outside the list and enter neither lists nor averages.

    Deviations from the reference programs: they keep the target among the inputs, so a model can read the answer. Here
    the pair is removed from both lists, both averages and the friends' weights, also for the drawn servers of the same
    group. A drawn server's own list and average lose a random task instead; otherwise a list that is one short would
    reveal the listed servers (`mask_target_edge`). Deviation 0 has its own vector (`zero_deviation_is_padding`).

    `conf/system/paper/gdsrec.yaml` explains every setting.
    """

    rating: str = "rank"
    width: int = 32
    spread: float = 0.1
    list_length: int = 6
    friends: int = 5
    tolerance: float = 0.0
    branches: str = "both"
    negatives: int = 2
    learning_rate: float = 5e-4
    weight_decay: float = 0.01
    batch_size: int = 1024
    mask_target_edge: bool = True
    zero_deviation_is_padding: bool = False
    schedule: Schedule = field(default_factory=Schedule)

    CHOICES: ClassVar[dict[str, tuple[str, ...]]] = {"rating": ("rank", "binary"), "branches": ("both", "friends")}

    def __post_init__(self) -> None:
        require_choices(self, self.CHOICES)

    def fit(self, data: Dataset, split: Split, *, seed: int, workdir: Path) -> None:
        """Train; goes on from the checkpoint in `workdir`."""
        torch.manual_seed(seed)
        self.prepare(data, split, seed)
        model = self.network = Network(data.n_tasks, data.n_servers, self.width, self.spread)
        optimiser = torch.optim.Adam(model.parameters(), lr=self.learning_rate, weight_decay=self.weight_decay)
        identity = fingerprint(self, seed, split.train.indptr, split.train.indices, self.ratings.data, self.near)
        self.train(self.batches, optimiser, split, Job(seed, workdir, "gdsrec", identity))

    def prepare(self, data: Dataset, split: Split, seed: int) -> None:
        """Ratings, averages, lists and friends."""
        self.ratings = stars(data, split, self.rating)
        transposed = sp.csr_matrix(self.ratings.T)
        transposed.sort_indices()
        self.pairs, self.listers = Pairs(split.train), Pairs(sp.csr_matrix(split.train.T))
        self.task_averages, self.server_averages = averages(self.ratings), averages(transposed)
        self.all_task_lists = deviation_lists(self.ratings, self.server_averages)
        self.all_server_lists = deviation_lists(transposed, self.task_averages)
        self.near = nearest(encode(data.task_texts()), split.tasks("train"), self.friends, seed)
        self.weights = friend_weights(self.ratings, self.near, self.tolerance)
        self.cap(np.random.default_rng(seed))

    def cap(self, rng: np.random.Generator) -> None:
        """Sample the lists that are too long."""
        self.task_lists: Lists = self.all_task_lists.capped(self.list_length, rng)
        self.server_lists: Lists = self.all_server_lists.capped(self.list_length, rng)

    def batches(self, rng: np.random.Generator) -> Iterator[Groups]:
        """Every training interaction once, with drawn servers."""
        self.cap(rng)
        tasks = np.repeat(np.arange(len(self.pairs.counts)), self.pairs.counts)
        for part in shuffled(len(tasks), self.batch_size, rng):
            drawn = self.pairs.draw_outside(np.repeat(tasks[part], self.negatives), rng).reshape(len(part), -1)
            servers = np.concatenate([self.pairs.indices[part][:, None], drawn], axis=1)
            others = self.listers.draw(drawn.ravel(), rng)
            theirs = np.asarray(self.ratings[others, drawn.ravel()], dtype=np.float32)
            own = self.ratings.data[part].astype(np.float32)
            yield Groups(tasks[part], servers, own, others.reshape(drawn.shape), theirs.reshape(drawn.shape))

    def loss(self, batch: Groups) -> Tensor:
        """Binary cross-entropy of a batch."""
        logits = self.logits(batch)
        labels = torch.zeros_like(logits)
        labels[:, 0] = 1
        return binary_cross_entropy_with_logits(logits, labels)

    def logits(self, batch: Groups) -> Tensor:
        """Logits of the pairs of a batch, shape (b, 1 + n); the first server of each row is taken for listed."""
        tasks, servers = batch.tasks, batch.servers
        target = servers[:, 0] if self.mask_target_edge else np.full(len(tasks), PADDING - 1)
        left_out = batch.ratings if self.mask_target_edge else np.zeros_like(batch.ratings)
        gone, gone_ratings = np.zeros_like(servers), np.zeros(servers.shape, dtype=np.float32)
        gone[:, 0], gone_ratings[:, 0] = tasks, left_out
        if self.mask_target_edge and batch.others is not None:
            gone[:, 1:], gone_ratings[:, 1:] = batch.others, batch.other_ratings
        averages_ = (
            self.task_averages.of(tasks, left_out)[:, None]
            + self.server_averages.of(servers.ravel(), gone_ratings.ravel()).reshape(servers.shape)
        ) / 2
        gone = np.where(gone_ratings > 0, gone, PADDING - 1).ravel()
        z = self._aggregate("server", servers.ravel(), *self.server_lists.without(servers.ravel(), gone))
        z = z.view(*servers.shape, -1)
        total: Tensor = torch.from_numpy(averages_) - MIDPOINT
        if self.branches == "both":
            h = self._aggregate("task", tasks, *self.task_lists.without(tasks, target))
            total = total + self.network.predict(h[:, None, :].expand_as(z), z) / 2
        near = self.near[tasks]
        common, place = np.unique(np.maximum(near, 0), return_inverse=True)
        y = self._aggregate("friend", common, self.task_lists.entries[common], self.task_lists.deviations[common])
        y = y[torch.from_numpy(place.reshape(near.shape))]  # (b, f, d)
        alike = self.weights[tasks] - agree(self.ratings, near, servers[:, 0], left_out, self.tolerance)
        shape = (*servers.shape, near.shape[1], self.width)  # (b, 1 + n, f, d)
        opinions = self.network.predict(y[:, None].expand(shape), z[:, :, None].expand(shape))
        share = torch.from_numpy(shares(alike))[:, None, :]
        total = total + (share * opinions).sum(dim=2) / (2 if self.branches == "both" else 1)
        return total

    def _aggregate(self, side: str, rows: IntArray, entries: IntArray, deviations: IntArray) -> Tensor:
        tensors = (torch.from_numpy(values) for values in (rows, entries, deviations))
        found: Tensor = self.network.aggregate(side, *tensors, zero_is_padding=self.zero_deviation_is_padding)
        return found

    @torch.no_grad()
    def finish(self) -> None:
        """Compute h, y and z from lists of the full length, and forget earlier predictions for friends."""
        everyone = np.arange(self.all_task_lists.entries.shape[0])
        self.h, self.y = (self._aggregate_all(side, self.all_task_lists) for side in ("task", "friend"))
        self.z = self._aggregate_all("server", self.all_server_lists)
        self.opinions = np.empty((len(everyone), self.pairs.width), dtype=np.float32)
        self.asked = np.zeros(len(everyone), dtype=bool)

    def _aggregate_all(self, side: str, lists: Lists) -> Tensor:
        rows = np.arange(len(lists.entries))
        parts = [(rows[part], lists.entries[part], lists.deviations[part]) for part in chunks(rows)]
        return torch.cat([self._aggregate(side, *part) for part in parts])

    @torch.no_grad()
    def score(self, tasks: IntArray) -> FloatArray:
        """Logits of p, shape (len(tasks), n_servers)."""
        near = self.near[tasks]
        new = np.unique(near[near != PADDING])
        new = new[~self.asked[new]]
        self.opinions[new] = self._predict(self.y, new)
        self.asked[new] = True
        row, place = np.nonzero(near != PADDING)
        weights = shares(self.weights[tasks])[row, place]
        share = sp.csr_matrix((weights, (row, near[row, place])), shape=(len(tasks), len(self.near)))
        scores = share @ self.opinions
        if self.branches == "both":
            scores = (scores + self._predict(self.h, tasks)) / 2
        servers = np.arange(self.pairs.width)
        scores += (self.task_averages.of(tasks)[:, None] + self.server_averages.of(servers)[None, :]) / 2
        return np.asarray(scores - MIDPOINT, dtype=np.float32)

    def _predict(self, left: Tensor, rows: IntArray) -> FloatArray:
        """phi of `rows` and all servers, shape (len(rows), n_servers)."""
        found = np.empty((len(rows), self.pairs.width), dtype=np.float32)
        for part in chunks(rows, BLOCK):
            found[part] = self.network.predict_all(left[torch.from_numpy(rows[part])], self.z).numpy()
        return found
