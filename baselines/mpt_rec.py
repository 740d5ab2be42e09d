"""MPT-Rec: experts for several scenarios, trained against one another, then a small prompt for each new task."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from baselines.interactions import Pairs
from baselines.mpt_networks import (
    UNKNOWN,
    Additive,
    Experts,
    PairFeatures,
    Prompt,
    Reader,
    Stage1,
    codes,
    reverse_gradient,
)
from baselines.settings import require_choice
from baselines.training import (
    Job,
    Optimisation,
    Progress,
    fingerprint,
    n_weights,
    staged_report,
    train,
    validation_quality,
)
from study.data.dataset import Dataset, FloatArray, IntArray
from study.data.normalise import spelling_key
from study.data.splits import Split
from study.errors import StudyError


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
    subcategories; both are known for every development task. score(t, m) = logit of the prompt of t's subcategory;
    tasks of a subcategory without training tasks are scored by the head of their scenario.

    L1 = BCE(f_k) + general_weight BCE(g) + adversary_weight NLL(k | reversed g) + decay_tables / 2 |tables|^2
    + decay_layers / 2 |weights of experts and towers|^2, where k is the scenario of the task: the other scenarios have
    no label for it and their terms are left out. The strength of the reversal grows as 2 / (1 + e^(-10 p)) - 1 with p
    the share of steps done. L2 = BCE + decay_layers / 2 |tower|^2.

    Deviations: one label per sample (the method expects one per objective), so environments are the scenarios and are
    not re-assigned; negatives are drawn; all epochs of a stage run, and the best of a few evaluations on validation
    gives the weights, those of stage 1 by the heads of the scenarios; frozen experts are in evaluation mode in stage 2.

    `conf/system/paper/mpt_rec.yaml` explains every setting.
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
        return self.first.selects or (self.head == "prompt" and self.second.selects)

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
        quality = validation_quality(self.score, split, self.first, seed=seed, ranks_new=True)
        job = Job(seed, workdir, "mpt_rec_experts", identity)
        batches = partial(self.batches, seed=seed, stage=1)
        trained = train(self.stage1, batches, self.loss1, self.first, job, quality=quality)
        self.trained = trained.report()
        self.stage1.requires_grad_(requires_grad=False)
        if self.head == "prompt" and self.prompt.max() >= 0:
            self.trained = staged_report(self.tune(split, seed, workdir, identity), experts=trained)

    def tune(self, split: Split, seed: int, workdir: Path, identity: str) -> Progress:
        """Stage 2: one prompt for each subcategory on the frozen experts."""
        torch.manual_seed(seed)
        width, shape = sum(self.stage1.reader.widths), {"towers": self.towers, "dropout": self.dropout}
        self.prompts = nn.ModuleList(
            Prompt(self.stage1.experts, width, attention=self.attention, **shape)  # type: ignore[arg-type]
            for _ in range(int(self.prompt.max()) + 1)
        )
        quality = validation_quality(self.score, split, self.second, seed=seed, ranks_new=True)
        job = Job(seed, workdir, "mpt_rec_prompts", identity)
        batches = partial(self.batches, seed=seed, stage=2)
        return train(self.prompts, batches, self.loss2, self.second, job, quality=quality)

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
        parts = [order[start : start + settings.batch_size] for start in range(0, len(tasks), settings.batch_size)]
        done = ((epoch + np.arange(len(parts)) / len(parts)) / settings.epochs).tolist()
        return [Batch(tasks[part], servers[part], labels[part], share) for part, share in zip(parts, done, strict=True)]

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
        return n_weights(self.stage1, self.prompts)


def groups(numbers: IntArray) -> Iterator[tuple[int, Tensor]]:
    """Each number and the places where it stands."""
    for number in np.unique(numbers):
        yield int(number), torch.from_numpy(np.flatnonzero(numbers == number))


def squares(modules: Sequence[nn.Module]) -> Tensor:
    """Sum of the squares of all matrices."""
    found = [(weight**2).sum() for module in modules for weight in module.parameters() if weight.ndim > 1]
    return torch.stack(found).sum()


@dataclass
class MPTRecEmerging(MPTRec):
    """MPT-Rec (Bai et al., TOIS 2025) for a task that emerges after the experts were trained, as the article tells it.

    Every category k has its own model: stage 1 learns from the training tasks of the other categories alone, each a
    scenario, and stage 2 tunes the prompts of k's subcategories on the training tasks of k, with stage 1 frozen.
    score(t, m) comes from the model to which t's category is new, so only its prompt has seen a label of that category.
    Each stage is evaluated on validation tasks of the categories that it trains on.

    Settings are those of `MPTRec`, with ``head: prompt``.
    """

    def fit(self, data: Dataset, split: Split, *, seed: int, workdir: Path) -> None:
        """Train both stages once for each category; `StudyError` where the training tasks have one category alone."""
        require_choice("head", self.head, ("prompt",))
        known = split.tasks("train")
        self.category = codes(data.tasks["category"], spelling_key, known)
        numbers = [int(number) for number in np.unique(self.category[known]) if number != UNKNOWN]
        if len(numbers) < 2:
            raise StudyError(
                "the training tasks have one category, and another one is needed to learn from", fix="system=mpt_rec"
            )
        settings = {setting.name: getattr(self, setting.name) for setting in fields(MPTRec)}
        self.models: dict[int, MPTRec] = {}
        for number in numbers:
            model, folder, new = MPTRec(**settings), workdir / f"new_{number}", self.category == number
            model.head = "scenario"
            model.fit(data, only(split, ~new), seed=seed, workdir=folder)
            _tune(model, data, only(split, new), seed, folder)
            self.models[number] = model

    def score(self, tasks: IntArray) -> FloatArray:
        """Logits, shape (len(tasks), n_servers); tasks of an unknown category are scored by the first model."""
        first = min(self.models)
        which = np.array([number if number in self.models else first for number in self.category[tasks]])
        scores = np.empty((len(tasks), self.models[first].n_servers), dtype=np.float32)
        for number in np.unique(which):
            places = np.flatnonzero(which == number)
            scores[places] = self.models[int(number)].score(tasks[places])
        return scores

    def report(self) -> dict[str, Any]:
        """How the prompts of each new category were trained, and the experts before them."""
        return {f"new_{number}": model.trained for number, model in self.models.items()}

    def parameters(self) -> int:
        """Weights of all models."""
        return sum(model.parameters() for model in self.models.values())


def only(split: Split, tasks: np.ndarray) -> Split:
    """The split without the training and validation interactions of other tasks; `tasks` is a mask."""
    keep = sp.diags_array(tasks.astype(np.float32))
    kept = {name: sp.csr_matrix(keep @ split.part(name)) for name in ("train", "valid")}
    for part in kept.values():
        part.eliminate_zeros()
    return replace(split, **kept)


def _tune(model: MPTRec, data: Dataset, split: Split, seed: int, workdir: Path) -> None:
    """Stage 2 on the frozen experts of `model`: a prompt for every subcategory of the training tasks of `split`."""
    model.head, model.listed = "prompt", Pairs(split.train)
    model.prompt = codes(data.tasks["subcategory"], spelling_key, split.tasks("train")) - 1
    prompted = model.tune(split, seed, workdir, fingerprint(model, seed, split.train, split.valid))
    model.trained = prompted.report() | {"experts": model.trained}
