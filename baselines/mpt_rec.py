"""MPT-Rec: experts of several scenarios trained against one another, then a small prompt for each new task."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from baselines.choices import require_choice
from baselines.generative.training import Optimisation, fingerprint, quality_of, staged_report, train
from baselines.mpt_networks import Additive, Experts, Prompt, Reader, Stage1, reverse_gradient
from baselines.pair_features import PairFeatures, codes
from baselines.published.sampling import Pairs
from study.data.dataset import Dataset, FloatArray, IntArray
from study.data.normalise import spelling_key
from study.data.splits import Split


class Batch(NamedTuple):
    """A batch: rows of tasks and servers, labels, each of shape (n,); the share of the training that is done."""

    tasks: IntArray
    servers: IntArray
    labels: FloatArray
    progress: float


@dataclass
class MPTRec:
    """Multi-task prompt tuning (Bai et al., TOIS 2025), a model of (task, server) pairs, no language model.

    Stage 1 trains a shared expert, which an adversary keeps from telling scenarios apart, and one expert for each
    scenario; stage 2 freezes them and tunes a small prompt for each new task. The T2MRec paper does not say what a
    "task" of the method is on Task2MCP. Here a scenario is one of the four categories and a new task one of the 16
    subcategories, both of which are known for every development task. score(t, m) = logit of the prompt of t's
    subcategory; tasks of a subcategory without training tasks are scored by their scenario's own head.

    L1 = BCE(f_k) + general_weight BCE(g) + adversary_weight NLL(k | reversed g) + decay_tables / 2 |tables|^2
    + decay_layers / 2 |weights of experts and towers|^2, where k is the scenario of the task: the terms of the other
    scenarios, which have no label for it, are left out. The strength of the reversal grows as 2 / (1 + e^(-10 p)) - 1
    with p the share of steps done. L2 = BCE + decay_layers / 2 |tower|^2.

    Deviations: one label per sample (the method expects one per objective), so environments are the scenarios and are
    not re-assigned; negatives are drawn; all epochs of a stage run, and the best weights of a few looks at validation
    are kept, those of stage 1 by the heads of the scenarios; frozen experts are in evaluation mode in stage 2.

    Args:
        embedding: width of the tables.
        dense: principal components of the text vectors.
        experts: widths of the two layers of an expert.
        towers: widths of a tower.
        attention: width inside a prompt's attention.
        dropout: rate.
        negatives: servers drawn per training interaction, among those that the task does not list in training.
        general_weight, adversary_weight, decay_tables, decay_layers: of L1 and L2.
        first, second: optimisation of the stages.
        head: ``prompt``, or ``scenario`` to leave out stage 2.
    """

    embedding: int = 8
    dense: int = 32
    experts: Sequence[int] = (256, 128)
    towers: Sequence[int] = (64, 32)
    attention: int = 64
    dropout: float = 0.1
    negatives: int = 4
    general_weight: float = 0.9
    adversary_weight: float = 0.1
    decay_tables: float = 1e-5
    decay_layers: float = 1e-6
    first: Optimisation = field(default_factory=Optimisation)
    second: Optimisation = field(default_factory=Optimisation)
    head: str = "prompt"

    HEADS: ClassVar[tuple[str, ...]] = ("prompt", "scenario")

    @property
    def uses_validation(self) -> bool:
        """Whether the weights of a stage are chosen on validation labels."""
        return self.first.looks > 0 or (self.head == "prompt" and self.second.looks > 0)

    def fit(self, data: Dataset, split: Split, *, seed: int, workdir: Path) -> None:
        """Train both stages; goes on from the checkpoints in `workdir`."""
        require_choice("head", self.head, self.HEADS)
        torch.manual_seed(seed)
        known = split.tasks("train")
        features = PairFeatures(data, split, width=self.dense)
        # A category or subcategory without training tasks counts as unknown, number 0.
        self.scenario = np.maximum(codes(data.tasks["category"], spelling_key, known) - 1, 0)
        self.prompt = codes(data.tasks["subcategory"], spelling_key, known) - 1
        self.n_servers, self.listed = data.n_servers, Pairs(split.train)
        reader = Reader(features, self.embedding)
        shape = {"towers": self.towers, "dropout": self.dropout}
        experts = Experts(sum(reader.widths), int(self.scenario.max()) + 1, experts=self.experts, **shape)  # type: ignore[arg-type]
        self.stage1 = Stage1(reader, experts)
        self.prompts = nn.ModuleList()  # while there are none, tasks are scored by the heads of their scenarios
        identity = fingerprint(self, seed, split.train, split.valid, features.task_dense)
        first, second = (
            quality_of(self.score, split, stage, seed=seed, ranks_new=True) for stage in (self.first, self.second)
        )
        trained = train(
            self.stage1,
            lambda epoch: self.batches(epoch, seed, 1),
            self.loss1,
            self.first,
            seed=seed,
            workdir=workdir,
            name="mpt_rec_experts",
            identity=identity,
            quality=first,
        )
        self.trained = trained.report()
        self.stage1.requires_grad_(requires_grad=False)
        torch.manual_seed(seed)
        n_prompts = int(self.prompt.max()) + 1 if self.head == "prompt" else 0
        self.prompts = nn.ModuleList(
            Prompt(experts, sum(reader.widths), attention=self.attention, **shape)  # type: ignore[arg-type]
            for _ in range(n_prompts)
        )
        if n_prompts:
            prompted = train(
                self.prompts,
                lambda epoch: self.batches(epoch, seed, 2),
                self.loss2,
                self.second,
                seed=seed,
                workdir=workdir,
                name="mpt_rec_prompts",
                identity=identity,
                quality=second,
            )
            self.trained = staged_report(prompted, experts=trained)

    def batches(self, epoch: int, seed: int, stage: int) -> list[Batch]:
        """Every training interaction once with its negatives, in random order, both of them others in each stage."""
        rng = np.random.default_rng([seed, epoch, stage])
        settings = self.first if stage == 1 else self.second
        listed, each = self.listed, 1 + self.negatives
        tasks = np.repeat(np.arange(len(listed.counts)), listed.counts * each)
        servers = np.repeat(listed.indices, each)
        labels = np.tile(np.eye(1, each, dtype=np.float32)[0], len(listed.indices))
        drawn = labels == 0
        servers[drawn] = self.listed.draw_outside(tasks[drawn], rng)
        order = rng.permutation(len(tasks))
        starts = range(0, len(tasks), settings.batch_size)
        parts = [order[start : start + settings.batch_size] for start in starts]
        done = (epoch + np.arange(len(parts)) / len(parts)) / settings.epochs
        return [
            Batch(tasks[part], servers[part], labels[part], float(share))
            for part, share in zip(parts, done, strict=True)
        ]

    def loss1(self, batch: Batch) -> Tensor:
        """L1 of a batch."""
        reader, experts = self.stage1.reader, self.stage1.experts
        x = reader(batch.tasks, batch.servers)
        strength = 2 / (1 + np.exp(-10 * batch.progress)) - 1
        total = x.new_zeros(())
        for scenario, rows in groups(self.scenario[batch.tasks]):
            part, labels = x[rows], torch.from_numpy(batch.labels)[rows]
            fused, general, shared = experts.finish(scenario, [layer(part) for layer in experts.linears(scenario)])
            guess = experts.classifier(reverse_gradient(shared, strength))
            total = total + binary_cross_entropy_with_logits(fused, labels, reduction="sum")
            total = total + self.general_weight * binary_cross_entropy_with_logits(general, labels, reduction="sum")
            environment = torch.full((len(rows),), scenario)
            total = total + self.adversary_weight * cross_entropy(guess, environment, reduction="sum")
        layers = [experts.shared, experts.specific, experts.towers]
        penalty = self.decay_tables / 2 * squares([reader]) + self.decay_layers / 2 * squares(layers)
        loss: Tensor = total / len(x) + penalty
        return loss

    def loss2(self, batch: Batch) -> Tensor:
        """L2 of a batch; samples of tasks without a prompt do not count."""
        with torch.no_grad():
            x = self.stage1.reader(batch.tasks, batch.servers)
        total = squares([prompt.tower for prompt in self.prompts]) * self.decay_layers / 2  # type: ignore[misc]
        for number, rows in groups(self.prompt[batch.tasks]):
            if number >= 0:
                prompt, labels = self.prompts[number], torch.from_numpy(batch.labels)[rows]
                logits = prompt.finish([layer(x[rows]) for layer in prompt.linears()])  # type: ignore[operator]
                total = total + binary_cross_entropy_with_logits(logits, labels, reduction="sum") / len(x)
        return total

    @torch.no_grad()
    def score(self, tasks: IntArray) -> FloatArray:
        """Logits, shape (len(tasks), n_servers)."""
        scores = np.empty((len(tasks), self.n_servers), dtype=np.float32)
        numbers = np.where(self.prompt[tasks] < len(self.prompts), self.prompt[tasks], -1)
        for head in sorted(set(zip(numbers.tolist(), self.scenario[tasks].tolist(), strict=True))):
            places = np.flatnonzero((numbers == head[0]) & (self.scenario[tasks] == head[1]))
            layers, finish = self._head(*head)
            parts = Additive(self.stage1.reader, layers, tasks[places], self.n_servers)
            for place, first in zip(places, parts, strict=True):
                scores[place] = finish(first).numpy()
        return scores

    def _head(self, prompt: int, scenario: int) -> tuple[list[nn.Linear], Callable[[Sequence[Tensor]], Tensor]]:
        """First layers, and what turns their outputs into logits."""
        if prompt >= 0:
            chosen = self.prompts[prompt]
            return chosen.linears(), chosen.finish  # type: ignore[operator, return-value]
        experts = self.stage1.experts
        return experts.linears(scenario), lambda first: experts.finish(scenario, first)[0]

    def report(self) -> dict[str, Any]:
        """How the prompts were trained, and the experts before them."""
        return self.trained

    def parameters(self) -> int:
        """Weights of both stages."""
        return sum(weight.numel() for model in (self.stage1, self.prompts) for weight in model.parameters())


def groups(numbers: IntArray) -> Iterator[tuple[int, Tensor]]:
    """Each number and the places where it stands."""
    for number in np.unique(numbers):
        yield int(number), torch.from_numpy(np.flatnonzero(numbers == number))


def squares(modules: Sequence[nn.Module]) -> Tensor:
    """Sum of the squares of all matrices."""
    found = [(weight**2).sum() for module in modules for weight in module.parameters() if weight.ndim > 1]
    return torch.stack(found).sum()
