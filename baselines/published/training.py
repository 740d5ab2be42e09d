"""Training with selection on validation, for baselines with an optimiser of their own; goes on after a stop."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm

from baselines.checkpoints import load_checkpoint, save_checkpoint
from study.data.dataset import FloatArray, IntArray
from study.data.splits import Split
from study.evaluation.metrics import ndcg
from study.evaluation.ranking import chunks, mask_known, tie_order, top_k

Batch = TypeVar("Batch")
SELECTED_AT = 10  # NDCG@10 on validation, the same criterion as every other choice of the study
BEST = "best."  # before the names of the best weights in a checkpoint


@dataclass(frozen=True)
class Schedule:
    """How long a model is trained.

    Attributes:
        epochs: at most.
        evaluate_every: epochs between two looks at validation.
        patience: looks without a better NDCG@10 before the training stops; the best weights are kept. None runs all
            epochs and keeps the last weights.
        validation_tasks: tasks that a look is taken at, drawn by the seed.
        checkpoint_seconds: least time between two checkpoints.
    """

    epochs: int = 40
    evaluate_every: int = 5
    patience: int | None = 5
    validation_tasks: int = 1000
    checkpoint_seconds: float = 20.0


@dataclass
class Progress:
    """Where a training stands: epochs, the best look and when it was, looks without a better one since, seconds."""

    epoch: int = 0
    best: float = -1.0
    best_epoch: int = 0
    stale: int = 0
    seconds: float = 0.0

    def report(self) -> dict[str, Any]:
        """What a run's record says of it; without selection there is no best epoch."""
        chosen = {"best_epoch": self.best_epoch, "validation_ndcg": round(self.best, 6)} if self.best_epoch else {}
        return {"epochs": self.epoch, **chosen, "seconds_trained": round(self.seconds, 3)}


def validation_quality(
    score: Callable[[IntArray], FloatArray], split: Split, schedule: Schedule, *, seed: int, ranks_new: bool = False
) -> Callable[[], float] | None:
    """A function that measures NDCG@10 of `score` on validation; None where nothing is to be chosen.

    Args:
        ranks_new: whether `score` ranks for tasks without training interactions, too. Where it does not, only tasks
            that have some are asked; under the cold protocols there is none, so all epochs run.
    """
    tasks = split.tasks("valid")
    if not ranks_new:
        tasks = np.intersect1d(tasks, split.tasks("train"))
    if schedule.patience is None or not len(tasks):
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
    optimiser: torch.optim.Optimizer,
    batches: Callable[[int], Iterable[Batch]],
    loss: Callable[[Batch], Tensor],
    schedule: Schedule,
    *,
    quality: Callable[[], float] | None,
    seed: int,
    workdir: Path,
    name: str,
    identity: str,
    rate: Callable[[int], float] = lambda epoch: 1.0,
) -> Progress:
    """Minimise `loss` over the parameters of `model`; ends in evaluation mode with the chosen weights.

    Everything random depends on (seed, epoch) alone, so that a resumed training equals an undisturbed one.

    Args:
        batches: the batches of an epoch, a function of the epoch's number alone.
        quality: from `validation_quality`; called in evaluation mode.
        name: of the checkpoint ``<workdir>/<name>.safetensors``, which is kept when the training is complete.
        identity: a hash of all that decides the training; a checkpoint of another one is not taken up.
        rate: factor on the learning rate in each epoch.
    """
    path = workdir / f"{name}.safetensors"
    progress, best = _load(path, model, optimiser, identity)
    base = [group["lr"] for group in optimiser.param_groups]
    saved = time.monotonic()
    bar = tqdm(
        total=schedule.epochs,
        initial=progress.epoch,
        desc=name,
        unit="epoch",
        leave=False,
        disable=not sys.stderr.isatty(),
    )
    while progress.epoch < schedule.epochs and not _stops(progress, schedule, quality):
        started = time.monotonic()
        _one_epoch(model, optimiser, batches, loss, progress.epoch, seed, [lr * rate(progress.epoch) for lr in base])
        progress.epoch += 1
        bar.update()
        last = progress.epoch == schedule.epochs
        if quality is not None and (last or progress.epoch % schedule.evaluate_every == 0):
            model.eval()
            with torch.no_grad():
                value = quality()
            bar.set_postfix(ndcg=f"{value:.4f}")
            progress.stale += 1
            if value > progress.best:
                progress.best, progress.best_epoch, progress.stale = value, progress.epoch, 0
                best = {key: weight.detach().clone() for key, weight in model.named_parameters()}
        progress.seconds += time.monotonic() - started
        ends = last or _stops(progress, schedule, quality)
        if ends or time.monotonic() - saved > schedule.checkpoint_seconds:
            _save(path, model, optimiser, progress, best, identity)
            saved = time.monotonic()
    bar.close()
    if best:
        with torch.no_grad():
            for key, weight in model.named_parameters():
                weight.copy_(best[key])
    model.eval()
    return progress


def _stops(progress: Progress, schedule: Schedule, quality: Callable[[], float] | None) -> bool:
    return quality is not None and schedule.patience is not None and progress.stale >= schedule.patience


def _one_epoch(
    model: nn.Module,
    optimiser: torch.optim.Optimizer,
    batches: Callable[[int], Iterable[Batch]],
    loss: Callable[[Batch], Tensor],
    epoch: int,
    seed: int,
    rates: list[float],
) -> None:
    torch.manual_seed(int(np.random.SeedSequence([seed, epoch]).generate_state(1)[0]))
    for group, lr in zip(optimiser.param_groups, rates, strict=True):
        group["lr"] = lr
    model.train()
    for batch in batches(epoch):
        optimiser.zero_grad()
        loss(batch).backward()  # type: ignore[no-untyped-call]
        optimiser.step()


def _save(
    path: Path,
    model: nn.Module,
    optimiser: torch.optim.Optimizer,
    progress: Progress,
    best: dict[str, Tensor],
    identity: str,
) -> None:
    others = {f"{BEST}{key}": weight for key, weight in best.items()}
    save_checkpoint(path, model, optimiser, identity, {"progress": json.dumps(asdict(progress))}, others)


def _load(
    path: Path, model: nn.Module, optimiser: torch.optim.Optimizer, identity: str
) -> tuple[Progress, dict[str, Tensor]]:
    """Restore what `_save` wrote; where there is nothing to go on from, the training starts."""
    found = load_checkpoint(path, model, optimiser, identity)
    if found is None:
        return Progress(), {}
    facts, others = found
    return Progress(**json.loads(facts["progress"])), {key.removeprefix(BEST): value for key, value in others.items()}
