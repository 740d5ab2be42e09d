"""MSBPR: matrix factorisation from four pairwise preferences between mined sets of servers (Zeng et al. 2023)."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from sklearn.preprocessing import normalize
from torch import Tensor, nn
from torch.nn.functional import embedding, softplus

from baselines.collaborative import select_entries
from baselines.interactions import Pairs
from baselines.training import Job, Stage, VectorModel, fingerprint
from study.data.dataset import Dataset, FloatArray, IntArray
from study.data.splits import Split

ROUNDING = 1e-9  # sums of shares that equal a threshold on paper may fall short of it by rounding


def column_cosine(listed: sp.csr_matrix, kind: str) -> sp.csr_matrix:
    """Cosine between the columns of a binary matrix, stored where two columns share a row: with the ordinary norms
    (``full``), or with norms over the rows that both have, as the method does, so 1 (``corated``)."""
    if kind == "full":
        unit = normalize(listed, axis=0)
        return sp.csr_matrix(unit.T @ unit)
    together = sp.csr_matrix(listed.T @ listed)
    together.data[:] = 1
    return together


def user_preference(listed: sp.csr_matrix, similarity: sp.csr_matrix, threshold: float) -> sp.csr_matrix:
    """rhat(u, j): share of the tasks v != u with S(u, v) >= threshold that list j, weighted by S (variants II, III),
    shape (n_tasks, n_servers). A task without such neighbours has an empty row."""
    near = sp.coo_matrix(similarity)
    weights = select_entries(near, (near.row != near.col) & (near.data >= threshold - ROUNDING))
    return sp.csr_matrix(normalize(weights, norm="l1") @ listed)


# A step: n tasks u, shape (n,), a server of each of their sets, in the order i, p, c, j of `MSBPR`, shape (4, n), and
# weights, 0 where the set is empty, else 1, shape (4, n).
Draws = tuple[IntArray, IntArray, FloatArray]


class Factors(nn.Module):
    """f(u, i) = b_i + U_u . V_i."""

    def __init__(self, bias: FloatArray, n_tasks: int, width: int, spread: float) -> None:
        super().__init__()
        self.tasks = nn.Parameter(torch.randn(n_tasks, width) * spread)
        self.servers = nn.Parameter(torch.randn(len(bias), width) * spread)
        self.bias = nn.Parameter(torch.from_numpy(bias))


@dataclass
class MSBPR(VectorModel):
    """Multi-pairwise preference and similarity based BPR (Zeng, Guan, Chen; Knowledge-Based Systems 260, 2023, 110165).

    The servers of a task u form four sets: I_u (observed), J_u (disliked: unobserved and with at most `popularity`
    training tasks), P_u (potentially liked: similar enough to what u lists) and C_u (uncertain: the rest). Each step
    draws as many tasks as there are and one server of each set, i, p, c, j, and descends the gradient of the sum of
    softplus(f_uc - f_ui) + softplus(f_uj - f_ui) + softplus(f_uc - f_up) + softplus(f_uj - f_up)
    + decay_tasks / 2 |U_u|^2 + decay_servers / 2 sum |V|^2 + decay_bias / 2 sum b^2.
    Terms with an empty set are left out; there is no term between i and p. Sums, not means: a mean over n draws would
    divide the learning rate by n.

    Deviations: a step updates tasks and servers at the same time; Task2MCP has no counts, so r = 1;
    similarities use training interactions, while the reference program also uses the held-out ones
    (`leaky_similarity`); validation chooses the weights.
    """

    variant: Literal["item", "user", "hybrid"] = "item"
    similarity: Literal["corated", "full"] = "corated"
    popularity: int = 1
    item_threshold: Mapping[str, float] = field(default_factory=lambda: {"corated": 0.5, "full": 0.1})
    user_threshold: Mapping[str, float] = field(default_factory=lambda: {"corated": 0.5, "full": 0.2})
    preference_threshold: float = 0.3
    width: int = 20
    spread: float = 0.1
    learning_rate: float = 0.01
    decay_tasks: float = 0.01
    decay_servers: float = 0.01
    decay_bias: float = 0.01
    steps: int = 50
    leaky_similarity: bool = False

    def fit(self, data: Dataset, split: Split, *, seed: int, workdir: Path) -> None:
        """Mine the sets, then train; goes on from the checkpoint in `workdir`."""
        torch.manual_seed(seed)
        self.histories = sp.csr_matrix(split.train)
        weights = sp.csr_matrix(split.train, dtype=np.float64)
        self.mine(weights, sp.csr_matrix(data.relevance, dtype=np.float64) if self.leaky_similarity else weights)
        bias = np.asarray(weights.sum(axis=0)).ravel() / data.n_tasks - weights.sum() / np.prod(weights.shape)
        self.network = Factors(bias.astype(np.float32), data.n_tasks, self.width, self.spread).to(self.place)
        job = Job(seed, workdir, "msbpr", fingerprint(self, seed, self.histories))
        optimiser = torch.optim.SGD(self.network.parameters(), lr=self.learning_rate)
        stage = Stage(self.network, self.draws, self.loss, self.schedule)
        self.progress = self.train(stage, split, job, optimiser=optimiser)

    def finish(self) -> None:
        """Take over the vectors and the bias."""
        self.keep(self.network.tasks, self.network.servers, self.network.bias)

    def mine(self, weights: sp.csr_matrix, source: sp.csr_matrix) -> None:
        """Find I, P, J and what is none of them, by the training interactions, shape (n_tasks, n_servers); similarities
        and predictions are taken from `source`, the same unless they leak."""
        unpopular: NDArray[np.bool_] = weights.getnnz(axis=0) <= self.popularity
        alike, threshold = column_cosine(source, self.similarity), self.preference_threshold
        if self.variant == "item":  # I: s(u, j) = mean over the task's servers i of S(i, j)
            threshold = self.item_threshold[self.similarity]
            preference = sp.csr_matrix(normalize(weights, norm="l1") @ alike)
        else:
            if self.variant == "user":
                alike = column_cosine(sp.csr_matrix(source.T), self.similarity)
            else:  # III: S_H(u, v) = mean over the servers i of u and j of v of S(i, j)
                share = normalize(source, norm="l1")
                alike = sp.csr_matrix(share @ alike @ share.T)
            preference = user_preference(source, alike, self.user_threshold[self.similarity])
        self.observed, scores = Pairs(weights), sp.coo_matrix(preference)
        outside = ~unpopular[scores.col] & ~self.observed.hold(scores.row, scores.col)
        liked = select_entries(scores, outside & (scores.data >= threshold - ROUNDING))
        liked.data[:] = 1
        self.potential = Pairs(liked)
        self.taken = Pairs(sp.csr_matrix(weights + liked))  # I_u and P_u
        self.unpopular, self.others = np.flatnonzero(unpopular), np.flatnonzero(~unpopular)
        self.asked = np.flatnonzero(self.observed.counts)
        self.n_disliked, self.n_uncertain = self.observed.outside(self.unpopular), self.taken.outside(self.others)

    def draws(self, rng: np.random.Generator, epoch: int) -> Iterator[Draws]:
        """The steps of an epoch."""
        for _ in range(self.steps):
            tasks = rng.choice(self.asked, size=len(self.observed.counts))
            servers = (
                self.observed.draw(tasks, rng),
                self.potential.draw(tasks, rng),
                self.taken.draw_outside(tasks, rng, self.others),
                self.observed.draw_outside(tasks, rng, self.unpopular),
            )
            sizes = self.observed.counts, self.potential.counts, self.n_uncertain, self.n_disliked
            yield tasks, np.stack(servers), np.stack([size[tasks] > 0 for size in sizes]).astype(np.float32)

    def loss(self, step: Draws) -> Tensor:
        """The sum over the draws of a step."""
        model, (numbers, rows, weight) = self.network, (self.tensor(part) for part in step)
        tasks = embedding(numbers, model.tasks)
        vectors, bias = embedding(rows, model.servers), embedding(rows, model.bias[:, None]).squeeze(2)
        observed, potential, uncertain, disliked = bias + (vectors * tasks).sum(dim=2)
        total = self.decay_tasks / 2 * tasks.square().sum()
        total = total + self.decay_servers / 2 * (weight * vectors.square().sum(dim=2)).sum()
        total = total + self.decay_bias / 2 * (weight * bias.square()).sum()
        for better, has_better in ((observed, weight[0]), (potential, weight[1])):
            for worse, has_worse in ((uncertain, weight[2]), (disliked, weight[3])):
                total = total + (has_better * has_worse * softplus(worse - better)).sum()
        return total
