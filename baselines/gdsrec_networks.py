"""What GDSRec knows of tasks and servers (lists, deviations, averages, friends), and its networks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import embedding

from study.data.dataset import FloatArray, IntArray
from study.evaluation.ranking import chunks, tie_order, top_k

MIDPOINT = 3.0  # of the scale from 1 to 5
LEVELS = 5  # deviations are whole numbers from 0 to 4
PADDING = -1


@dataclass(frozen=True)
class Lists:
    """The entries of each row of a rating matrix, padded at the end."""

    entries: IntArray  # (n, c): columns, PADDING where there is none
    deviations: IntArray  # (n, c): round |r - average of the column|, 0 at paddings

    def without(self, rows: IntArray, targets: IntArray) -> tuple[IntArray, IntArray]:
        """Entries and deviations of `rows`, each with its target taken out, both of shape (len(rows), c)."""
        found = self.entries[rows]
        return np.where(found == targets[:, None], PADDING, found), self.deviations[rows]

    def capped(self, cap: int, rng: np.random.Generator) -> Lists:
        """At most `cap` entries of each row, drawn at random where there are more."""
        if self.entries.shape[1] <= cap:
            return self
        rank = np.where(self.entries == PADDING, 2.0, rng.random(self.entries.shape))
        kept = np.argsort(rank, axis=1, kind="stable")[:, :cap]
        return Lists(np.take_along_axis(self.entries, kept, axis=1), np.take_along_axis(self.deviations, kept, axis=1))


@dataclass(frozen=True)
class Averages:
    """Sums and numbers of ratings of each row, from which an average can be taken without one of them."""

    total: NDArray[np.float64]
    number: NDArray[np.float64]
    overall: float  # mean of all ratings, the average of a row without any

    def of(self, rows: IntArray, without: FloatArray | None = None) -> FloatArray:
        """Averages of `rows`; `without` holds the rating that each leaves out, 0 where it leaves out none."""
        total, number = self.total[rows], self.number[rows]
        if without is not None:
            total, number = total - without, number - (without > 0)
        mean = np.divide(total, number, out=np.full(len(rows), self.overall), where=number > 0)
        return np.asarray(mean, dtype=np.float32)


def averages(ratings: sp.csr_matrix) -> Averages:
    """Of the rows of `ratings`."""
    number = np.diff(ratings.indptr).astype(np.float64)
    return Averages(np.asarray(ratings.sum(axis=1), dtype=np.float64).ravel(), number, float(ratings.data.mean()))


def deviation_lists(ratings: sp.csr_matrix, columns: Averages) -> Lists:
    """The lists of the rows of `ratings` (1 to 5); each rating is compared with the average of its column."""
    counts = np.diff(ratings.indptr)
    shape = (len(counts), max(1, int(counts.max(initial=0))))
    row = np.repeat(np.arange(len(counts)), counts)
    place = np.arange(ratings.nnz) - np.repeat(ratings.indptr[:-1], counts)
    entries, deviations = np.full(shape, PADDING), np.zeros(shape, dtype=np.int64)
    entries[row, place] = ratings.indices
    # numpy would round 0.5 to 0 and 1.5 to 2.
    away = np.floor(np.abs(ratings.data - columns.of(ratings.indices)) + 0.5)
    deviations[row, place] = away.astype(np.int64)
    return Lists(entries, deviations)


def friend_weights(ratings: sp.csr_matrix, friends: IntArray, tolerance: float) -> IntArray:
    """s = 1 + number of common servers whose ratings differ by at most `tolerance`, 0 for PADDING, as `friends`."""
    weights = np.zeros(friends.shape, dtype=np.int64)
    for task, row in enumerate(friends):
        own, theirs = ratings[[task]].toarray(), ratings[row[row != PADDING]].toarray()
        alike = (own > 0) & (theirs > 0) & (np.abs(own - theirs) <= tolerance)
        weights[task, row != PADDING] = 1 + alike.sum(axis=1)
    return weights


def agree(
    ratings: sp.csr_matrix, friends: IntArray, servers: IntArray, values: FloatArray, tolerance: float
) -> IntArray:
    """Whether each friend rates the pair's server within `tolerance` of the pair's rating, 0 or 1, shape of `friends`.

    A pair's rating of 0 agrees with none; `servers` and `values` have shape (b,), `friends` (b, f).
    """
    columns, values = np.broadcast_to(servers[:, None], friends.shape), values[:, None]
    theirs = np.asarray(ratings[np.maximum(friends, 0).ravel(), columns.ravel()]).reshape(friends.shape)
    rated = (theirs > 0) & (friends != PADDING) & (values > 0)
    return np.asarray(rated & (np.abs(theirs - values) <= tolerance), dtype=np.int64)


def shares(weights: IntArray) -> FloatArray:
    """Each row divided by its sum (+ 1e-10, so that a task without friends has r2 = 0), shape of `weights`."""
    return np.asarray(weights / (weights.sum(axis=1, keepdims=True) + 1e-10), dtype=np.float32)


def nearest(vectors: FloatArray, known: IntArray, number: int, seed: int) -> IntArray:
    """The training tasks with the nearest texts but the task itself, shape (n, number), PADDING where unfilled."""
    order, found = tie_order(len(known), seed), np.full((len(vectors), number), PADDING)
    for part in chunks(np.arange(len(vectors))):
        similarity = vectors[part] @ vectors[known].T
        similarity[np.arange(len(vectors))[part, None] == known] = -np.inf
        rows, _ = top_k(similarity, number, order)
        found[part, : rows.shape[1]] = np.where(rows >= 0, known[rows], PADDING)
    return found


class Aggregation(nn.Module):
    """tanh(W sum_m a_m x_m + b) with x_m = MLP([e_m; e_deviation]) and a = softmax(MLP([x_m; owner]))."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.opinion = nn.Sequential(nn.Linear(2 * width, width), nn.Tanh(), nn.Linear(width, width))
        self.attention = nn.Sequential(nn.Linear(2 * width, width), nn.ReLU(), nn.Linear(width, 1))
        self.output = nn.Linear(width, width)

    def forward(self, owner: Tensor, entries: Tensor, deviations: Tensor, valid: Tensor) -> Tensor:
        """What the lists say of their owners, shape (b, d); the same for all owners without entries.

        Entries and deviations have shape (b, c, d); `valid` (b, c) says which are no padding.
        """
        x = self.opinion(torch.cat([entries, deviations], dim=2))
        owners = owner[:, None, :].expand_as(x)
        logits = self.attention(torch.cat([x, owners], dim=2)).squeeze(2).masked_fill(~valid, -torch.inf)
        # A row without entries would be 0 / 0.
        weights = torch.softmax(logits.masked_fill(~valid.any(dim=1, keepdim=True), 0.0), dim=1) * valid
        result: Tensor = torch.tanh(self.output((weights[:, :, None] * x).sum(dim=1)))
        return result


class Network(nn.Module):
    """Tables of tasks, servers and deviations, shared by three aggregations; one predictor."""

    def __init__(self, n_tasks: int, n_servers: int, width: int, spread: float = 0.1) -> None:
        super().__init__()
        # From large tables on, the predictor learns pairs by heart before the tables have moved.
        self.tasks = nn.Parameter(torch.randn(n_tasks, width) * spread)
        self.servers = nn.Parameter(torch.randn(n_servers, width) * spread)
        self.deviations = nn.Parameter(torch.randn(LEVELS, width) * spread)
        self.task_side, self.server_side, self.friend_side = (Aggregation(width) for _ in range(3))
        self.predictor = nn.Sequential(
            nn.Linear(2 * width, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1)
        )
        for module in self.modules():
            # torch's default shrinks the signal in every layer, until the product of task and server, which alone tells
            # pairs apart, is too small to learn from: on two blocks of tasks and servers the loss stays where it is.
            if isinstance(module, nn.Linear):
                nn.init.xavier_normal_(module.weight, gain=nn.init.calculate_gain("tanh"))
                nn.init.zeros_(module.bias)

    def aggregate(
        self, side: str, rows: Tensor, entries: Tensor, deviations: Tensor, *, zero_is_padding: bool = False
    ) -> Tensor:
        """h (side ``task``), z (``server``) or y (``friend``) of `rows`, shape (b, d).

        Args:
            entries: rows of the other kind, below 0 for padding, shape (b, c).
            deviations: 0 to 4, shape (b, c).
            zero_is_padding: the vector of deviation 0 is the zero vector, a bug of the reference programs.
        """
        own, other = (self.servers, self.tasks) if side == "server" else (self.tasks, self.servers)
        block = {"task": self.task_side, "server": self.server_side, "friend": self.friend_side}[side]
        vectors = embedding(deviations, self.deviations)
        if zero_is_padding:
            vectors = vectors * (deviations > 0)[:, :, None]
        result: Tensor = block(embedding(rows, own), embedding(entries.clamp(min=0), other), vectors, entries >= 0)
        return result

    def predict(self, left: Tensor, servers: Tensor) -> Tensor:
        """phi(u, z): the deviation that is expected, shape of `left` without the last axis."""
        result: Tensor = self.predictor(torch.cat([left, servers], dim=-1)).squeeze(-1)
        return result

    def predict_all(self, left: Tensor, servers: Tensor) -> Tensor:
        """phi of every pair, shape (len(left), len(servers)); its first layer is a sum of two parts."""
        first, *rest = self.predictor
        own, others = first.weight.split(left.shape[1], dim=1)  # type: ignore[operator]
        one, other = left @ own.T + first.bias, servers @ others.T
        finish = nn.Sequential(*rest)
        found = [finish(row + other).squeeze(1) for row in one]
        return torch.stack(found) if found else one.new_empty(0, len(other))
