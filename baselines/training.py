"""Training with checkpoints, where validation chooses the weights; for all baselines that are trained here."""

from __future__ import annotations

import hashlib
import json
import math
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, TypeAlias, TypeVar

import numpy as np
import scipy.sparse as sp
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from tqdm import tqdm

from baselines.collaborative import Representations, unranked_without_history
from study.data.dataset import FloatArray, IntArray
from study.data.splits import Split
from study.evaluation.metrics import ndcg
from study.evaluation.ranking import chunks, mask_known, tie_order, top_k
from study.files import replacing

Batch = TypeVar("Batch")
SELECTED_AT = 10  # every choice of the study is made by NDCG@10 on validation
MODEL, OPTIMISER, BEST, IDENTITY = "model.", "optimiser.", "best.", "identity"  # names in a checkpoint


@dataclass(frozen=True)
class Schedule:
    """Training that stops on validation, for models with an optimiser of their own."""

    epochs: int = 40  # at most
    evaluate_every: int = 5  # epochs between two evaluations on validation
    patience: int | None = 5  # evaluations without a better NDCG@10 before it stops; None keeps the last weights
    validation_tasks: int = 1000  # tasks per evaluation, drawn by the seed
    checkpoint_seconds: float = 20.0  # least time between two checkpoints

    clip: ClassVar[float | None] = None

    @property
    def selects(self) -> bool:
        """Whether validation labels choose the weights."""
        return self.patience is not None

    def evaluates_after(self, epoch: int) -> bool:
        """Whether there is an evaluation after this epoch, counted from 1."""
        return epoch == self.epochs or epoch % self.evaluate_every == 0

    def rate(self, epochs: float) -> float:
        """The learning rate after so many epochs, over the highest one."""
        return 1.0


@dataclass(frozen=True)
class Optimisation:
    """AdamW with warm-up and decay (Loshchilov & Hutter 2019), for the generative baselines and MPT-Rec.

    All epochs run: the rate falls to 0 at their end, and weights of a training cut short have only met high rates.
    """

    epochs: int = 20
    batch_size: int = 256
    learning_rate: float = 1e-3  # the highest, reached after the warm-up
    weight_decay: float = 0.01  # of matrices; vectors (biases, norms) are not decayed
    warm_up: float = 0.05  # share of the training over which the rate grows from 0
    decay: str = "cosine"  # or `linear`, down to 0 at the end
    clip: float | None = 1.0  # longest gradient
    checkpoint_seconds: float = 20.0  # least time between two checkpoints
    evaluations: int = 5  # evaluations on validation, spread evenly up to the last epoch; 0 keeps the last weights
    validation_tasks: int = 300  # tasks per evaluation, drawn by the seed

    patience: ClassVar[int | None] = None

    @property
    def selects(self) -> bool:
        """Whether validation labels choose the weights."""
        return self.evaluations > 0

    def evaluates_after(self, epoch: int) -> bool:
        """Whether there is an evaluation after this epoch, counted from 1."""
        return epoch in {
            math.ceil(self.epochs * number / self.evaluations) for number in range(1, self.evaluations + 1)
        }

    def rate(self, epochs: float) -> float:
        """The learning rate after so many epochs, over the highest one."""
        done = epochs / self.epochs
        if done < self.warm_up:
            return done / self.warm_up
        left = (1 - done) / max(1e-12, 1 - self.warm_up)
        return left if self.decay == "linear" else 0.5 * (1 - math.cos(math.pi * left))

    def optimiser(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        """AdamW with the weight decay on matrices alone."""
        decayed = {"params": [p for p in parameters if p.ndim > 1], "weight_decay": self.weight_decay}
        others = {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0}
        return torch.optim.AdamW([decayed, others], lr=self.learning_rate)


Settings: TypeAlias = Schedule | Optimisation


@dataclass(frozen=True)
class Job:
    """What tells one training from another; its checkpoint ``<workdir>/<name>.safetensors`` is kept at the end."""

    seed: int  # all that is random depends on (seed, epoch), so that a resumed training equals an undisturbed one
    workdir: Path
    name: str
    identity: str  # from `fingerprint`; a checkpoint with another one is never resumed


@dataclass
class Progress:
    """State of a training: epochs, the best evaluation, its epoch, evaluations since then, seconds."""

    epoch: int = 0
    best: float = -1.0
    best_epoch: int = 0
    stale: int = 0
    seconds: float = 0.0

    def report(self) -> dict[str, Any]:
        """The facts for a run's record; without selection there is no best epoch."""
        chosen = {"best_epoch": self.best_epoch, "validation_ndcg": round(self.best, 6)} if self.best_epoch else {}
        return {"epochs": self.epoch, **chosen, "seconds_trained": round(self.seconds, 3)}


def staged_report(last: Progress, **before: Progress) -> dict[str, Any]:
    """The report of a training in stages: the last one with the seconds of all, and each one before."""
    seconds = last.seconds + sum(stage.seconds for stage in before.values())
    return replace(last, seconds=seconds).report() | {name: stage.report() for name, stage in before.items()}


def fingerprint(*parts: object) -> str:
    """A hash of all that decides a training."""
    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part, sp.csr_matrix):
            digest.update(part.indptr.tobytes() + part.indices.tobytes() + part.data.tobytes())
        else:
            digest.update(part.tobytes() if isinstance(part, np.ndarray) else repr(part).encode())
    return digest.hexdigest()


def validation_quality(
    score: Callable[[IntArray], FloatArray], split: Split, settings: Settings, *, seed: int, ranks_new: bool = False
) -> Callable[[], float] | None:
    """A function that measures NDCG@10 of `score` on validation; None where nothing is to be chosen.

    Unless `score` also ranks for new tasks (`ranks_new`), only tasks with training interactions are asked. The cold
    protocols have none, so all epochs run.
    """
    tasks = split.tasks("valid")
    if not ranks_new:
        tasks = np.intersect1d(tasks, split.tasks("train"))
    if not settings.selects or not len(tasks):
        return None
    if len(tasks) > settings.validation_tasks:
        tasks = np.sort(np.random.default_rng(seed).choice(tasks, settings.validation_tasks, replace=False))
    order = tie_order(split.train.shape[1], seed)

    def quality() -> float:
        values = []
        for part in chunks(tasks):
            scores = mask_known(score(tasks[part]), tasks[part], split.train)
            ranked, _ = top_k(scores, SELECTED_AT, order)
            values.append(ndcg(ranked, split.valid[tasks[part]], SELECTED_AT))
        return float(np.mean(np.concatenate(values)))

    return quality


def train(
    model: nn.Module,
    batches: Callable[[int], Iterable[Batch]],
    loss: Callable[[Batch], Tensor],
    settings: Settings,
    job: Job,
    *,
    quality: Callable[[], float] | None = None,
    optimiser: torch.optim.Optimizer | None = None,
    rate: Callable[[float], float] | None = None,
) -> Progress:
    """Minimise `loss` over the trainable parameters of `model`; ends in evaluation mode with the chosen weights.

    Args:
        batches: the batches of an epoch, a function of the epoch's number alone.
        quality: from `validation_quality`; called in evaluation mode.
        optimiser, rate: by default those of `settings`, which must be an `Optimisation` to have an optimiser.

    Returns: how the training went, epochs and seconds before a stop included.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    if optimiser is None:
        assert isinstance(settings, Optimisation)
        optimiser = settings.optimiser(parameters)
    rate, base = rate or settings.rate, [group["lr"] for group in optimiser.param_groups]
    path = job.workdir / f"{job.name}.safetensors"
    facts, best = load_checkpoint(path, model, optimiser, job.identity) or ({"progress": "{}"}, {})
    progress, saved = Progress(**json.loads(facts["progress"])), time.monotonic()
    quiet = not sys.stderr.isatty()
    bar = tqdm(total=settings.epochs, initial=progress.epoch, desc=job.name, unit="epoch", leave=False, disable=quiet)

    def ends() -> bool:
        stops = quality is not None and settings.patience is not None and progress.stale >= settings.patience
        return stops or progress.epoch >= settings.epochs

    while not ends():
        started = time.monotonic()
        torch.manual_seed(int(np.random.SeedSequence([job.seed, progress.epoch]).generate_state(1)[0]))
        steps = list(batches(progress.epoch))
        model.train()
        for number, batch in enumerate(steps):
            # Half a step ahead, so that neither the first nor the last step of a short training is lost.
            factor = rate(progress.epoch + (number + 0.5) / len(steps))
            for group, highest in zip(optimiser.param_groups, base, strict=True):
                group["lr"] = highest * factor
            optimiser.zero_grad()
            loss(batch).backward()  # type: ignore[no-untyped-call]
            if settings.clip is not None:
                nn.utils.clip_grad_norm_(parameters, settings.clip)
            optimiser.step()
        progress.epoch += 1
        bar.update()
        if quality is not None and settings.evaluates_after(progress.epoch):
            model.eval()
            with torch.no_grad():
                value = quality()
            bar.set_postfix(ndcg=f"{value:.4f}")
            progress.stale += 1
            if value > progress.best:
                progress.best, progress.best_epoch, progress.stale = value, progress.epoch, 0
                best = {f"{BEST}{key}": weight.detach().clone() for key, weight in model.named_parameters()}
        progress.seconds += time.monotonic() - started
        if ends() or time.monotonic() - saved > settings.checkpoint_seconds:
            facts = {"progress": json.dumps(asdict(progress))}
            save_checkpoint(path, model, optimiser, job.identity, facts, best)
            saved = time.monotonic()
    bar.close()
    if best:
        with torch.no_grad():
            for key, weight in model.named_parameters():
                weight.copy_(best[f"{BEST}{key}"])
    model.eval()
    return progress


def save_checkpoint(
    path: Path,
    model: nn.Module,
    optimiser: torch.optim.Optimizer,
    identity: str,
    facts: Mapping[str, str],
    others: Mapping[str, Tensor],
) -> None:
    """Write model, optimiser, `facts` and other tensors as one safetensors file; shared tensors once."""
    tensors = {f"{MODEL}{name}": value.detach().contiguous() for name, value in model.named_parameters()}
    tensors |= {name: value.contiguous() for name, value in others.items()}
    for number, state in optimiser.state_dict()["state"].items():
        # Descent without momentum keeps an entry without a value.
        values = {key: torch.as_tensor(value) for key, value in state.items() if value is not None}
        tensors |= {f"{OPTIMISER}{number}.{key}": value.contiguous() for key, value in values.items()}
    with replacing(path) as temporary:
        save_file(tensors, temporary, metadata={**facts, IDENTITY: identity})


def load_checkpoint(
    path: Path, model: nn.Module, optimiser: torch.optim.Optimizer, identity: str
) -> tuple[dict[str, str], dict[str, Tensor]] | None:
    """Restore model and optimiser as `save_checkpoint` wrote them; returns facts and other tensors.

    None, with nothing restored, where the file is missing, damaged, or of a training with another identity.
    """
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="pt") as stored:
            facts: dict[str, str] = stored.metadata() or {}
            tensors: dict[str, Tensor] = {key: stored.get_tensor(key) for key in stored.keys()}  # noqa: SIM118 - it is no dictionary
    except (SafetensorError, OSError):
        return None
    if facts.pop(IDENTITY, None) != identity:
        return None
    with torch.no_grad():
        for name, value in model.named_parameters():
            value.copy_(tensors.pop(f"{MODEL}{name}"))
    state: dict[int, dict[str, Any]] = {}
    for key in [key for key in tensors if key.startswith(OPTIMISER)]:
        number, entry = key.removeprefix(OPTIMISER).split(".")
        state.setdefault(int(number), {})[entry] = tensors.pop(key)
    optimiser.load_state_dict({"state": state, "param_groups": optimiser.state_dict()["param_groups"]})
    return facts, tensors


def n_weights(*models: nn.Module | None) -> int:
    """Entries of all trained tensors."""
    return sum(weight.numel() for model in models if model for weight in model.parameters())


class Scheduled(ABC):
    """A system with one network that is trained until validation stops it."""

    network: Any
    schedule: Schedule
    progress: Progress

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
        batches: Callable[[np.random.Generator], Iterable[Any]],
        optimiser: torch.optim.Optimizer,
        split: Split,
        job: Job,
        *,
        ranks_new: bool = True,
        rate: Callable[[float], float] | None = None,
    ) -> None:
        """Train the network and finish; goes on from a checkpoint."""

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
            optimiser=optimiser,
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


class VectorModel(Scheduled):
    """score(t, m) = e_t . e_m + b_m; a task without training interactions is not ranked."""

    representations: Representations  # e_t, shape (n_tasks, d)
    servers: FloatArray  # e_m, shape (n_servers, d)
    bias: FloatArray  # b, shape (n_servers,)
    histories: sp.csr_matrix  # training interactions, shape (n_tasks, n_servers)

    def keep(self, tasks: Tensor, servers: Tensor, bias: Tensor | None = None) -> None:
        """Take over vectors from the network."""
        self.representations = tasks.detach().numpy()
        self.servers = servers.detach().numpy()
        self.bias = np.zeros(len(self.servers), np.float32) if bias is None else bias.detach().numpy()

    @torch.no_grad()
    def score(self, tasks: IntArray) -> FloatArray:
        """Scores, shape (len(tasks), n_servers)."""
        return unranked_without_history(self.score_representations(self.representations[tasks]), self.histories[tasks])

    def score_representations(self, rows: Representations) -> FloatArray:
        """Scores of the task vectors `rows`, shape (b, n_servers)."""
        return np.asarray(np.asarray(rows, dtype=np.float32) @ self.servers.T + self.bias, dtype=np.float32)
