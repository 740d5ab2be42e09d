"""Training with checkpoints, where validation chooses the weights; for all baselines that are trained here."""

from __future__ import annotations

import hashlib
import math
import pickle
import sys
import time
from abc import ABC
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor, nn
from tqdm import tqdm

from study.base.errors import require_one_of
from study.base.files import replacing
from study.data.dataset import FloatArray, IntArray
from study.data.splits import Split
from study.evaluation.metrics import ndcg
from study.evaluation.ranking import chunks, mask_known, tie_order, top_k
from study.t2mrec.device import chosen

Batch = TypeVar("Batch")
SELECTED_AT = 10  # every choice of the study is made by NDCG@10 on validation


@dataclass(frozen=True)
class Schedule:
    """How long a network is trained, and when validation evaluates it.

    Either it is evaluated every few epochs and stops by `patience`; or `evaluations` are spread over all epochs, which
    then all run, since the rate falls to 0 at their end, and weights of a training cut short have only met high rates.

    The last six settings are those of AdamW with warm-up and decay (Loshchilov & Hutter 2019), for the generative
    baselines and MPT-Rec; other systems have an optimiser of their own.
    """

    epochs: int = 40  # at most
    evaluate_every: int = 5  # epochs between two evaluations on validation
    patience: int | None = 5  # evaluations without a better NDCG@10 before it stops; None keeps the last weights
    evaluations: int | None = None  # a number of them up to the last epoch instead; 0 keeps the last weights
    validation_tasks: int = 1000  # tasks per evaluation, drawn by the seed
    checkpoint_seconds: float = 20.0  # least time between two checkpoints
    batch_size: int = 256
    learning_rate: float = 1e-3  # the highest, reached after the warm-up
    weight_decay: float = 0.01  # of matrices; vectors (biases, norms) are not decayed
    warm_up: float = 0.0  # share of the training over which the rate grows from 0
    decay: str | None = None  # `cosine` or `linear`, down to 0 at the end; None keeps the rate
    clip: float | None = None  # longest gradient

    @property
    def selects(self) -> bool:
        """Whether validation labels choose the weights."""
        return self.patience is not None if self.evaluations is None else self.evaluations > 0

    def evaluates_after(self, epoch: int) -> bool:
        """Whether there is an evaluation after this epoch, counted from 1."""
        if self.evaluations is None:
            return epoch == self.epochs or epoch % self.evaluate_every == 0
        return epoch in {math.ceil(self.epochs * n / self.evaluations) for n in range(1, self.evaluations + 1)}

    def ends(self, epoch: int, stale: int) -> bool:
        """Whether the training is over, after so many epochs and evaluations without a better one."""
        stops = self.evaluations is None and self.patience is not None and stale >= self.patience
        return stops or epoch >= self.epochs

    def rate(self, epochs: float) -> float:
        """The learning rate after so many epochs, over the highest one."""
        done = epochs / self.epochs
        if done < self.warm_up:
            return done / self.warm_up
        if self.decay is None:
            return 1.0
        left = (1 - done) / max(1e-12, 1 - self.warm_up)
        return left if self.decay == "linear" else 0.5 * (1 - math.cos(math.pi * left))

    def optimiser(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        """AdamW with the weight decay on matrices alone."""
        decayed = {"params": [p for p in parameters if p.ndim > 1], "weight_decay": self.weight_decay}
        others = {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0}
        return torch.optim.AdamW([decayed, others], lr=self.learning_rate)


@dataclass(frozen=True)
class Job:
    """What tells one training from another; its checkpoint ``<workdir>/<name>.pt`` is kept at the end."""

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
        selected = {"best_epoch": self.best_epoch, "validation_ndcg": round(self.best, 6)} if self.best_epoch else {}
        return {"epochs": self.epoch, **selected, "seconds_trained": round(self.seconds, 3)}


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
    score: Callable[[IntArray], FloatArray], split: Split, schedule: Schedule, *, seed: int, ranks_new: bool = False
) -> Callable[[], float] | None:
    """A function that measures NDCG@10 of `score` on validation; None where nothing is to be chosen.

    Unless `score` also ranks for new tasks (`ranks_new`), only tasks with training interactions are asked. The cold
    protocols have none, so all epochs run.
    """
    tasks = split.tasks("valid")
    if not ranks_new:
        tasks = np.intersect1d(tasks, split.tasks("train"))
    if not schedule.selects or not len(tasks):
        return None
    if len(tasks) > schedule.validation_tasks:
        tasks = np.sort(np.random.default_rng(seed).choice(tasks, schedule.validation_tasks, replace=False))
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
    schedule: Schedule,
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
        optimiser, rate: by default those of the schedule.

    Returns: how the training went, epochs and seconds before a stop included.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimiser, rate = optimiser or schedule.optimiser(parameters), rate or schedule.rate
    highest = [group["lr"] for group in optimiser.param_groups]
    path, saved = job.workdir / f"{job.name}.pt", time.monotonic()
    stored = load_checkpoint(path, job.identity)
    progress, best = Progress(**stored.get("progress", {})), stored.get("best")
    if stored:
        model.load_state_dict(stored["model"])
        optimiser.load_state_dict(stored["optimiser"])
    quiet = not sys.stderr.isatty()
    bar = tqdm(total=schedule.epochs, initial=progress.epoch, desc=job.name, unit="epoch", leave=False, disable=quiet)
    while not schedule.ends(progress.epoch, progress.stale):
        started = time.monotonic()
        torch.manual_seed(int(np.random.SeedSequence([job.seed, progress.epoch]).generate_state(1)[0]))
        steps = list(batches(progress.epoch))
        model.train()
        for number, batch in enumerate(steps):
            # Half a step ahead, so that neither the first nor the last step of a short training is lost.
            factor = rate(progress.epoch + (number + 0.5) / len(steps))
            for group, base in zip(optimiser.param_groups, highest, strict=True):
                group["lr"] = base * factor
            optimiser.zero_grad()
            loss(batch).backward()  # type: ignore[no-untyped-call]
            if schedule.clip is not None:
                nn.utils.clip_grad_norm_(parameters, schedule.clip)
            optimiser.step()
        progress.epoch += 1
        bar.update()
        if quality is not None and schedule.evaluates_after(progress.epoch):
            model.eval()
            with torch.no_grad():
                value = quality()
            bar.set_postfix(ndcg=f"{value:.4f}")
            progress.stale += 1
            if value > progress.best:
                progress.best, progress.best_epoch, progress.stale = value, progress.epoch, 0
                best = {name: weight.detach().clone() for name, weight in model.named_parameters()}
        progress.seconds += time.monotonic() - started
        if schedule.ends(progress.epoch, progress.stale) or time.monotonic() - saved > schedule.checkpoint_seconds:
            state = {"model": model.state_dict(), "optimiser": optimiser.state_dict(), "best": best}
            save_checkpoint(path, state | {"identity": job.identity, "progress": asdict(progress)})
            saved = time.monotonic()
    bar.close()
    if best:
        model.load_state_dict(best, strict=False)  # of tied tensors it has one
    model.eval()
    return progress


def save_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Write the state of a training in one step."""
    with replacing(path) as temporary:
        torch.save(state, temporary)


def load_checkpoint(path: Path, identity: str) -> dict[str, Any]:
    """The state as `save_checkpoint` wrote it; empty where it is missing, damaged or of another training."""
    try:  # tensors and plain values alone, so that nothing in the file is executed
        state = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError):
        return {}
    return state if isinstance(state, dict) and state.get("identity") == identity else {}


def n_weights(*models: nn.Module | None) -> int:
    """Entries of all trained tensors."""
    return sum(weight.numel() for model in models if model for weight in model.parameters())


def array(tensor: Tensor) -> FloatArray:
    """The values of a tensor, from whatever device."""
    values: FloatArray = tensor.detach().cpu().numpy()
    return values


@dataclass(kw_only=True)
class Trained(ABC):  # noqa: B024 - it is no system by itself
    """A system with a network that is trained here, on `device`: cpu, gpu, or auto, a GPU where torch sees one."""

    device: str = "cpu"

    def __post_init__(self) -> None:
        """Refuse a setting whose type is a `Literal` that it is none of."""
        for name, kind in get_type_hints(type(self)).items():
            if get_origin(kind) is Literal:
                require_one_of(getattr(self, name), name, get_args(kind), column=f"system.model.{name}")

    @cached_property
    def place(self) -> torch.device:
        """Where tensors are. Raises StudyError: torch sees no GPU."""
        return chosen(self.device)

    def tensor(self, values: np.ndarray) -> Tensor:
        """An array on the device."""
        return torch.from_numpy(values).to(self.place)
