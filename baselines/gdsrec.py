"""GDSRec: attention over deviations of ratings from averages, with the opinion of friends (Chen et al. 2023)."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, embedding

from baselines.interactions import Pairs, shuffle_batches, stars
from baselines.training import Job, Schedule, Stage, Trained, array, fingerprint
from study.advisor.encoders.sentence import encode
from study.data.dataset import Dataset, FloatArray, IntArray
from study.data.splits import Split
from study.evaluation.ranking import chunks, tie_order, top_k

MIDPOINT = 3.0  # of the scale from 1 to 5
LEVELS = 5  # deviations are whole numbers from 0 to 4
PADDING = -1


class Lists(NamedTuple):
    """The entries of each row of a rating matrix, padded at the end."""

    entries: IntArray  # (n, c): columns, PADDING where there is none
    deviations: IntArray  # (n, c): round |r - average of the column|, 0 at paddings

    def without(self, rows: IntArray, targets: IntArray, ratings: FloatArray) -> tuple[IntArray, IntArray]:
        """Entries and deviations of `rows`, each without its target where that has a rating, shape (len(rows), c)."""
        entries, out = self.entries[rows], np.where(ratings > 0, targets, PADDING - 1)
        return np.where(entries == out[:, None], PADDING, entries), self.deviations[rows]

    def cap_entries(self, cap: int, rng: np.random.Generator) -> "Lists":
        """At most `cap` entries of each row, drawn at random where there are more."""
        if self.entries.shape[1] <= cap:
            return self
        rank = np.where(self.entries == PADDING, 2.0, rng.random(self.entries.shape))
        columns = np.argsort(rank, axis=1, kind="stable")[:, :cap]
        return Lists(*(np.take_along_axis(part, columns, axis=1) for part in self))


class Averages:
    """Averages of the rows of `ratings`, from which one of them can be left out; a row without any has that of all."""

    def __init__(self, ratings: sp.csr_matrix) -> None:
        self.total = np.asarray(ratings.sum(axis=1), dtype=np.float64).ravel()
        self.number, self.overall = np.diff(ratings.indptr).astype(np.float64), float(ratings.data.mean())

    def of(self, rows: IntArray, without: FloatArray | float = 0.0) -> FloatArray:
        """Averages of `rows`; `without` holds the rating that each leaves out, 0 where it leaves out none."""
        total, number = self.total[rows] - without, self.number[rows] - np.greater(without, 0)
        mean = np.divide(total, number, out=np.full(len(rows), self.overall), where=number > 0)
        return np.asarray(mean, dtype=np.float32)


def deviation_lists(ratings: sp.csr_matrix, columns: Averages) -> Lists:
    """The lists of the rows of `ratings` (1 to 5); each rating is compared with the average of its column."""
    counts = np.diff(ratings.indptr)
    filled = np.arange(max(1, counts.max(initial=0))) < counts[:, None]
    entries, deviations = np.full(filled.shape, PADDING), np.zeros(filled.shape, dtype=np.int64)
    entries[filled] = ratings.indices
    # numpy would round 0.5 to 0 and 1.5 to 2.
    deviations[filled] = np.floor(np.abs(ratings.data - columns.of(ratings.indices)) + 0.5)
    return Lists(entries, deviations)


def friend_weights(ratings: sp.csr_matrix, friends: IntArray, tolerance: float) -> IntArray:
    """s = 1 + number of common servers whose ratings differ by at most `tolerance`, 0 for PADDING, as `friends`."""
    pairs, weights = sp.coo_matrix(ratings), (friends != PADDING).astype(np.int64)
    np.add.at(weights, pairs.row, agree(ratings, friends[pairs.row], pairs.col, pairs.data, tolerance))
    return np.asarray(weights)


def agree(
    ratings: sp.csr_matrix, friends: IntArray, servers: IntArray, values: FloatArray, tolerance: float
) -> IntArray:
    """Whether each friend, shape (b, f), rates the pair's server within `tolerance` of the pair's rating, both of shape
    (b,), 0 or 1; a pair's rating of 0 agrees with none."""
    columns, values = np.broadcast_to(servers[:, None], friends.shape), values[:, None]
    theirs = np.asarray(ratings[np.maximum(friends, 0).ravel(), columns.ravel()]).reshape(friends.shape)
    rated = (theirs > 0) & (friends != PADDING) & (values > 0)
    return np.asarray(rated & (np.abs(theirs - values) <= tolerance), dtype=np.int64)


def shares(weights: IntArray) -> FloatArray:
    """Each row divided by its sum (+ 1e-10, so that a task without friends has r2 = 0), shape of `weights`."""
    return np.asarray(weights / (weights.sum(axis=1, keepdims=True) + 1e-10), dtype=np.float32)


def nearest(vectors: FloatArray, train_tasks: IntArray, number: int, seed: int) -> IntArray:
    """The training tasks with the nearest texts but the task itself, shape (n, number), PADDING where unfilled."""
    order, friends = tie_order(len(train_tasks), seed), np.full((len(vectors), number), PADDING)
    for part in chunks(np.arange(len(vectors))):
        similarity = vectors[part] @ vectors[train_tasks].T
        similarity[np.arange(len(vectors))[part, None] == train_tasks] = -np.inf
        rows, _ = top_k(similarity, number, order)
        friends[part, : rows.shape[1]] = np.where(rows >= 0, train_tasks[rows], PADDING)
    return friends


class Aggregation(nn.Module):
    """tanh(W sum_m a_m x_m + b) with x_m = MLP([e_m; e_deviation]) and a = softmax(MLP([x_m; owner]))."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.opinion = nn.Sequential(nn.Linear(2 * width, width), nn.Tanh(), nn.Linear(width, width))
        self.attention = nn.Sequential(nn.Linear(2 * width, width), nn.ReLU(), nn.Linear(width, 1))
        self.output = nn.Linear(width, width)

    def forward(self, owner: Tensor, entries: Tensor, deviations: Tensor, valid: Tensor) -> Tensor:
        """What the lists say of their owners, shape (b, d), the same for all owners without entries; entries and
        deviations have shape (b, c, d), and `valid`, shape (b, c), says which are no padding."""
        x = self.opinion(torch.cat([entries, deviations], dim=2))
        owners = owner[:, None, :].expand_as(x)
        logits = self.attention(torch.cat([x, owners], dim=2)).squeeze(2).masked_fill(~valid, -torch.inf)
        # A row without entries would be 0 / 0.
        weights = torch.softmax(logits.masked_fill(~valid.any(dim=1, keepdim=True), 0.0), dim=1) * valid
        return torch.tanh(self.output((weights[:, :, None] * x).sum(dim=1)))


class Network(nn.Module):
    """Tables of tasks, servers and deviations, shared by three aggregations; one predictor. `zero_is_padding`: the
    vector of deviation 0 is the zero vector, a bug of the reference programs."""

    def __init__(
        self, n_tasks: int, n_servers: int, width: int, spread: float = 0.1, *, zero_is_padding: bool = False
    ) -> None:
        super().__init__()
        # From large tables on, the predictor learns pairs by heart before the tables have moved.
        self.tasks = nn.Parameter(torch.randn(n_tasks, width) * spread)
        self.servers = nn.Parameter(torch.randn(n_servers, width) * spread)
        self.deviations, self.zero_is_padding = nn.Parameter(torch.randn(LEVELS, width) * spread), zero_is_padding
        self.sides = nn.ModuleDict({side: Aggregation(width) for side in ("task", "server", "friend")})
        layers = nn.Linear(2 * width, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1)
        self.predictor = nn.Sequential(*layers)
        for module in self.modules():
            # torch's default shrinks the signal in every layer, until the product of task and server, which alone tells
            # pairs apart, is too small to learn from: on two blocks of tasks and servers the loss stays where it is.
            if isinstance(module, nn.Linear):
                nn.init.xavier_normal_(module.weight, gain=nn.init.calculate_gain("tanh"))
                nn.init.zeros_(module.bias)

    def aggregate(self, side: str, rows: Tensor, entries: Tensor, deviations: Tensor) -> Tensor:
        """h (side ``task``), z (``server``) or y (``friend``) of `rows`, shape (b, d), from the `entries` of their
        lists, rows of the other kind, below 0 for padding, with deviations from 0 to 4; both of shape (b, c)."""
        owner_table, entry_table = (self.servers, self.tasks) if side == "server" else (self.tasks, self.servers)
        vectors = embedding(deviations, self.deviations)
        if self.zero_is_padding:
            vectors = vectors * (deviations > 0)[:, :, None]
        owners, others = embedding(rows, owner_table), embedding(entries.clamp(min=0), entry_table)
        result: Tensor = self.sides[side](owners, others, vectors, entries >= 0)
        return result

    def predict(self, left: Tensor, servers: Tensor) -> Tensor:
        """phi(u, z): the deviation that is expected, shape of `servers` without the last axis."""
        return torch.squeeze(self.predictor(torch.cat([left.expand_as(servers), servers], dim=-1)), -1)


# A batch: b tasks; for each a relevant server, then n sampled ones; the task that each server's list loses, of the
# listed one the pair's own; its rating of the server, 0 where nothing is left out; but the first of shape (b, 1 + n).
Groups = tuple[IntArray, IntArray, IntArray, FloatArray]


@dataclass
class GDSRec(Trained):
    """Graph-based decentralized collaborative filtering for social recommendation (Chen et al., TKDE 35(5), 2023).

    h_t aggregates the servers of a task with the deviations of their ratings, z_m the tasks of a server, y_o the
    servers of a friend (with its own weights). p(t, m) = sigma((r1 + r2) / 2 + (mu_t + mu_m) / 2 - 3) with
    r1 = phi(h_t, z_m) and r2 = the mean of phi(y_o, z_m) over the friends o, weighted by how many servers t and o rate
    alike; trained by binary cross-entropy (the authors' ranking program).

    Adaptations: ratings follow the place in the list, or are all 5 (`rating`); friends are the training tasks with the
    nearest texts; negatives are drawn outside the list and enter neither lists nor averages.

    Deviations from the reference programs: they keep the target among the inputs, so a model can read the answer. Here
    the pair is removed from both lists, both averages and the friends' weights, also for sampled servers of the same
    group. A sampled server's own list and average lose a random task instead; otherwise a list that is one short would
    reveal the labelled servers (`mask_target_edge`). Deviation 0 has its own vector (`zero_deviation_is_padding`).
    """

    rating: Literal["rank", "binary"] = "rank"
    width: int = 32
    spread: float = 0.1
    list_length: int = 6
    friends: int = 5
    tolerance: float = 0.0
    branches: Literal["both", "friends"] = "both"
    negatives: int = 2
    learning_rate: float = 5e-4
    weight_decay: float = 0.01
    batch_size: int = 1024
    mask_target_edge: bool = True
    zero_deviation_is_padding: bool = False
    schedule: Schedule = field(default_factory=Schedule)

    def fit(self, data: Dataset, split: Split, *, seed: int, workdir: Path) -> None:
        """Train; goes on from the checkpoint in `workdir`."""
        torch.manual_seed(seed)
        self.ratings = stars(data, split, self.rating)
        transposed = sp.csr_matrix(self.ratings.T)
        transposed.sort_indices()
        self.pairs, self.listers = Pairs(split.train), Pairs(sp.csr_matrix(split.train.T))
        self.task_averages, self.server_averages = Averages(self.ratings), Averages(transposed)
        self.all_task_lists = deviation_lists(self.ratings, self.server_averages)
        self.all_server_lists = deviation_lists(transposed, self.task_averages)
        self.near = nearest(encode(data.task_texts()), split.tasks("train"), self.friends, seed)
        self.weights = friend_weights(self.ratings, self.near, self.tolerance)
        sizes, padding = (data.n_tasks, data.n_servers, self.width, self.spread), self.zero_deviation_is_padding
        self.network = Network(*sizes, zero_is_padding=padding).to(self.place)
        rates: dict[str, Any] = {"lr": self.learning_rate, "weight_decay": self.weight_decay}
        optimiser = torch.optim.Adam(self.network.parameters(), **rates)
        identity = fingerprint(self, seed, split.train.indptr, split.train.indices, self.ratings.data, self.near)
        stage = Stage(self.network, self.batches, self.loss, self.schedule)
        self.progress = self.train(stage, split, Job(seed, workdir, "gdsrec", identity), optimiser=optimiser)

    def batches(self, rng: np.random.Generator, epoch: int) -> Iterator[Groups]:
        """Every training interaction once, with sampled servers."""
        self.task_lists: Lists = self.all_task_lists.cap_entries(self.list_length, rng)
        self.server_lists: Lists = self.all_server_lists.cap_entries(self.list_length, rng)
        for part in shuffle_batches(len(self.pairs.rows), self.batch_size, rng):
            tasks = self.pairs.rows[part]
            sampled = self.pairs.draw_outside(np.repeat(tasks, self.negatives), rng).reshape(len(part), -1)
            others = self.listers.draw(sampled.ravel(), rng).reshape(sampled.shape)
            servers, targets = np.c_[self.pairs.indices[part], sampled], np.c_[tasks, others]
            ratings = np.asarray(self.ratings[targets.ravel(), servers.ravel()], dtype=np.float32)
            yield tasks, servers, targets, ratings.reshape(servers.shape) * self.mask_target_edge

    def loss(self, batch: Groups) -> Tensor:
        """Binary cross-entropy of a batch."""
        logits = self.logits(batch)
        labels = torch.zeros_like(logits)
        labels[:, 0] = 1
        return binary_cross_entropy_with_logits(logits, labels)

    def logits(self, batch: Groups) -> Tensor:
        """Logits of the pairs of a batch, shape (b, 1 + n); the first server of each row is taken for listed."""
        tasks, servers, targets, ratings = batch
        rows, first_ratings = servers.ravel(), ratings[:, 0]
        of_servers = self.server_averages.of(rows, ratings.ravel()).reshape(servers.shape)
        total: Tensor = self.tensor((self.task_averages.of(tasks, first_ratings)[:, None] + of_servers) / 2) - MIDPOINT
        z = self._aggregate("server", rows, *self.server_lists.without(rows, targets.ravel(), ratings.ravel()))
        z = z.view(*servers.shape, -1)
        if self.branches == "both":
            h = self._aggregate("task", tasks, *self.task_lists.without(tasks, servers[:, 0], first_ratings))
            total = total + self.network.predict(h[:, None], z) / 2
        near = self.near[tasks]
        common, inverse = np.unique(np.maximum(near, 0), return_inverse=True)
        y = self._aggregate("friend", common, self.task_lists.entries[common], self.task_lists.deviations[common])
        y = y[self.tensor(inverse.reshape(near.shape))][:, None]  # (b, 1, f, d)
        opinions = self.network.predict(y, z[:, :, None].expand(-1, -1, near.shape[1], -1))  # (b, 1 + n, f)
        alike = self.weights[tasks] - agree(self.ratings, near, servers[:, 0], first_ratings, self.tolerance)
        share = self.tensor(shares(alike))[:, None, :]
        total = total + (share * opinions).sum(dim=2) / (2 if self.branches == "both" else 1)
        return total

    def _aggregate(self, side: str, rows: IntArray, entries: IntArray, deviations: IntArray) -> Tensor:
        aggregated: Tensor = self.network.aggregate(side, *map(self.tensor, (rows, entries, deviations)))
        return aggregated

    @torch.no_grad()
    def finish(self) -> None:
        """Compute h, y and z from lists of the full length."""
        self.h, self.y = (self._aggregate_all(side, self.all_task_lists) for side in ("task", "friend"))
        self.z = self._aggregate_all("server", self.all_server_lists)

    def _aggregate_all(self, side: str, lists: Lists) -> Tensor:
        rows = np.arange(len(lists.entries))
        parts = [(rows[part], lists.entries[part], lists.deviations[part]) for part in chunks(rows)]
        return torch.cat([self._aggregate(side, *part) for part in parts])

    @torch.no_grad()
    def score(self, tasks: IntArray) -> FloatArray:
        """Logits of p, shape (len(tasks), n_servers)."""
        row, position = np.nonzero(self.near[tasks] != PADDING)
        friends, column = np.unique(self.near[tasks][row, position], return_inverse=True)
        weights = shares(self.weights[tasks])[row, position]
        share = sp.csr_matrix((weights, (row, column)), shape=(len(tasks), len(friends)))
        scores = share @ self._predict(self.y[self.tensor(friends)])
        if self.branches == "both":
            scores = (scores + self._predict(self.h[self.tensor(tasks)])) / 2
        servers = np.arange(self.pairs.width)
        scores += (self.task_averages.of(tasks)[:, None] + self.server_averages.of(servers)[None, :]) / 2
        return np.asarray(scores - MIDPOINT, dtype=np.float32)

    def _predict(self, left: Tensor) -> FloatArray:
        """phi of the vectors and all servers, shape (len(left), n_servers)."""
        rows = [array(self.network.predict(row, self.z)) for row in left]
        return np.stack(rows) if rows else np.zeros((0, self.pairs.width), np.float32)
