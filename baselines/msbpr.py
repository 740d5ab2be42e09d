"""MSBPR: matrix factorisation from four pairwise preferences between mined sets of servers (Zeng et al. 2023)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, softplus

from baselines.choices import require_choice
from baselines.generative.training import fingerprint
from baselines.published import preferences
from baselines.published.ratings import counts
from baselines.published.sampling import Pairs
from baselines.published.training import Schedule, train, validation_quality
from baselines.published.vectors import VectorModel
from study.data.dataset import Dataset, FloatArray, IntArray
from study.data.splits import Split


class Draws(NamedTuple):
    """One step: n tasks u with a server of each set; all of shape (n,). A weight is 0 where the set is empty."""

    tasks: IntArray
    observed: IntArray
    potential: IntArray
    uncertain: IntArray
    disliked: IntArray
    has_potential: FloatArray
    has_uncertain: FloatArray
    has_disliked: FloatArray


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

    The servers of a task u are split into I_u (observed), J_u (disliked: unobserved and with at most `popularity`
    training tasks), P_u (potentially liked: similar enough to what u lists) and C_u (uncertain: the rest). Each step
    draws as many tasks as there are and one server of each set, i, p, c, j, and goes down the gradient of the sum of
    softplus(f_uc - f_ui) + softplus(f_uj - f_ui) + softplus(f_uc - f_up) + softplus(f_uj - f_up)
    + decay_tasks / 2 |U_u|^2 + decay_servers / 2 sum |V|^2 + decay_bias / 2 sum b^2.
    Terms with an empty set are left out; there is no term between i and p. Sums, not means: a mean over n draws would
    divide the learning rate by n.

    Deviations: a step updates tasks and servers at the same time; Task2MCP has no counts, so r = 1, or the place in the
    list; the similarities are computed on training interactions, where the reference program takes the held-out ones,
    too (`leaky_similarity`); weights are chosen on validation.

    Args:
        variant: how P_u is found: ``item`` (I), ``user`` (II) or ``hybrid`` (III).
        counts: r, ``binary`` or ``rank``.
        similarity: cosine over common tasks (``corated``, as published) or over all (``full``).
        popularity: theta_pop.
        item_threshold: theta_i of variant I.
        user_threshold: theta_u of variants II and III, least similarity of a neighbour.
        preference_threshold: theta_c of variants II and III, least predicted count.
        width: d.
        spread: standard deviation of the starting vectors.
        learning_rate: of plain SGD.
        decay_tasks, decay_servers, decay_bias: alpha_u, alpha_v, beta_v.
        steps: of an epoch.
        schedule: epochs and selection.
        leaky_similarity: the reference program's fault, to show its effect.
    """

    variant: str = "item"
    counts: str = "binary"
    similarity: str = "corated"
    popularity: int = 1
    item_threshold: float = 0.5
    user_threshold: float = 0.5
    preference_threshold: float = 0.3
    width: int = 20
    spread: float = 0.1
    learning_rate: float = 0.01
    decay_tasks: float = 0.01
    decay_servers: float = 0.01
    decay_bias: float = 0.01
    steps: int = 50
    schedule: Schedule = field(default_factory=Schedule)
    leaky_similarity: bool = False

    CHOICES: ClassVar[dict[str, tuple[str, ...]]] = {
        "variant": ("item", "user", "hybrid"),
        "counts": ("binary", "rank"),
        "similarity": ("corated", "full"),
    }

    def __post_init__(self) -> None:
        for name, allowed in self.CHOICES.items():
            require_choice(name, getattr(self, name), allowed)

    def fit(self, data: Dataset, split: Split, *, seed: int, workdir: Path) -> None:
        """Mine the sets, then train; goes on from the checkpoint in `workdir`."""
        torch.manual_seed(seed)
        self.histories = sp.csr_matrix(split.train)
        weights = counts(data, split, self.counts)
        self.mine(weights, sp.csr_matrix(data.relevance, dtype=np.float64) if self.leaky_similarity else weights)
        bias = (np.asarray(weights.sum(axis=0)).ravel() / data.n_tasks - weights.sum() / np.prod(weights.shape)).astype(
            np.float32
        )
        model = self.network = Factors(bias, data.n_tasks, self.width, self.spread)
        optimiser = torch.optim.SGD(model.parameters(), lr=self.learning_rate)

        def score(tasks: IntArray) -> FloatArray:
            self.keep(model.tasks, model.servers, model.bias)
            return self.score(tasks)

        self.progress = train(
            model,
            optimiser,
            lambda epoch: self.draws(np.random.default_rng([seed, epoch])),
            self.loss,
            self.schedule,
            quality=validation_quality(score, split, self.schedule, seed=seed),
            seed=seed,
            workdir=workdir,
            name="msbpr",
            identity=fingerprint(self, seed, self.histories.indptr, self.histories.indices),
        )
        self.keep(model.tasks, model.servers, model.bias)

    def mine(self, weights: sp.csr_matrix, known: sp.csr_matrix) -> None:
        """Find I, P, J and what is none of them.

        Args:
            weights: training counts r, shape (n_tasks, n_servers).
            known: counts that similarities and predictions are taken from, the training counts unless they leak.
        """
        unpopular = preferences.disliked(weights, self.popularity)
        if self.variant == "item":
            threshold = self.item_threshold
            preference = preferences.item_preference(weights, preferences.column_cosine(known, self.similarity))
        else:
            threshold = self.preference_threshold
            if self.variant == "user":
                alike = preferences.column_cosine(sp.csr_matrix(known.T), self.similarity)
            else:
                alike = preferences.hybrid_similarity(known, preferences.column_cosine(known, self.similarity))
            preference = preferences.user_preference(known, alike, self.user_threshold)
        liked = preferences.potentially_liked(preference, weights, unpopular, threshold)
        self.observed, self.potential = Pairs(weights), Pairs(liked)
        self.taken = Pairs(sp.csr_matrix(weights + liked))  # I_u and P_u
        self.unpopular, self.others = np.flatnonzero(unpopular), np.flatnonzero(~unpopular)
        self.asked = np.flatnonzero(self.observed.counts)
        self.n_disliked, self.n_uncertain = self.observed.outside(self.unpopular), self.taken.outside(self.others)

    def draws(self, rng: np.random.Generator) -> Iterator[Draws]:
        """The steps of an epoch."""
        for _ in range(self.steps):
            tasks = rng.choice(self.asked, size=len(self.observed.counts))
            yield Draws(
                tasks,
                self.observed.draw(tasks, rng),
                self.potential.draw(tasks, rng),
                self.taken.draw_outside(tasks, rng, self.others),
                self.observed.draw_outside(tasks, rng, self.unpopular),
                *(
                    (number[tasks] > 0).astype(np.float32)
                    for number in (self.potential.counts, self.n_uncertain, self.n_disliked)
                ),
            )

    def loss(self, step: Draws) -> Tensor:
        """The sum over the draws of a step."""
        model = self.network
        assert isinstance(model, Factors)
        tasks = embedding(torch.from_numpy(step.tasks), model.tasks)
        rows = torch.from_numpy(np.stack([step.observed, step.potential, step.uncertain, step.disliked]))
        weight = torch.from_numpy(
            np.stack([np.ones_like(step.has_potential), step.has_potential, step.has_uncertain, step.has_disliked])
        )
        vectors, bias = embedding(rows, model.servers), embedding(rows, model.bias[:, None]).squeeze(2)
        observed, potential, uncertain, disliked = bias + (vectors * tasks).sum(dim=2)
        total = self.decay_tasks / 2 * tasks.square().sum()
        total = total + self.decay_servers / 2 * (weight * vectors.square().sum(dim=2)).sum()
        total = total + self.decay_bias / 2 * (weight * bias.square()).sum()
        for better, has_better in ((observed, weight[0]), (potential, weight[1])):
            for worse, has_worse in ((uncertain, weight[2]), (disliked, weight[3])):
                total = total + (has_better * has_worse * softplus(worse - better)).sum()
        return total
