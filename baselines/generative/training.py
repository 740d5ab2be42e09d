"""The training loop of the generative baselines: epochs, schedule, checkpoints that a stopped training goes on from."""

from __future__ import annotations

import hashlib
import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor, nn
from tqdm import tqdm

from baselines.checkpoints import load_checkpoint, save_checkpoint
from baselines.published.training import BEST, Progress, Schedule, validation_quality
from study.data.dataset import FloatArray, IntArray
from study.data.splits import Split

Batch = TypeVar("Batch")


@dataclass(frozen=True)
class Optimisation:
    """AdamW with warm-up and decay (Loshchilov & Hutter 2019).

    Attributes:
        epochs: passes over the examples.
        batch_size: examples per step.
        learning_rate: the highest, reached after the warm-up.
        weight_decay: of matrices; vectors (biases, norms) are not decayed.
        warm_up: share of the training over which the rate grows from 0.
        decay: ``cosine`` or ``linear``, down to 0 at the end.
        clip: longest gradient.
        checkpoint_seconds: least time between two checkpoints.
        looks: at validation, where a training has a measure of quality: spread evenly over the epochs, the last one
            after the last epoch. The best weights are kept. 0 keeps the last weights.
        validation_tasks: tasks that a look is taken at, drawn by the seed.
    """

    epochs: int = 20
    batch_size: int = 256
    learning_rate: float = 1e-3
    weight_decay: float = 0.01
    warm_up: float = 0.05
    decay: str = "cosine"
    clip: float = 1.0
    checkpoint_seconds: float = 20.0
    looks: int = 5
    validation_tasks: int = 300

    def look_epochs(self) -> frozenset[int]:
        """The epochs, counted from 1, after which there is a look; all where there are fewer epochs than looks."""
        return frozenset(math.ceil(self.epochs * number / self.looks) for number in range(1, self.looks + 1))


def fingerprint(*parts: object) -> str:
    """A hash of all that decides a training, so that a checkpoint of another one is never taken up."""
    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part, sp.csr_matrix):
            digest.update(part.indptr.tobytes() + part.indices.tobytes() + part.data.tobytes())
        else:
            digest.update(part.tobytes() if isinstance(part, np.ndarray) else repr(part).encode())
    return digest.hexdigest()


def rate(progress: float, settings: Optimisation) -> float:
    """The learning rate after the share `progress` of the training, over the highest one."""
    if progress < settings.warm_up:
        return progress / settings.warm_up
    left = (1 - progress) / max(1e-12, 1 - settings.warm_up)
    return left if settings.decay == "linear" else 0.5 * (1 - math.cos(math.pi * left))


def quality_of(
    score: Callable[[IntArray], FloatArray], split: Split, settings: Optimisation, *, seed: int, ranks_new: bool
) -> Callable[[], float] | None:
    """What `validation_quality` measures, at the looks of `settings`; None where the last weights are to be kept."""
    if not settings.looks:
        return None
    schedule = Schedule(validation_tasks=settings.validation_tasks)
    return validation_quality(score, split, schedule, seed=seed, ranks_new=ranks_new)


def train(
    model: nn.Module,
    batches: Callable[[int], Sequence[Batch]],
    loss: Callable[[Batch], Tensor],
    settings: Optimisation,
    *,
    seed: int,
    workdir: Path,
    name: str,
    identity: str,
    quality: Callable[[], float] | None = None,
) -> Progress:
    """Minimise `loss` over the trainable parameters of `model`; ends in evaluation mode with the chosen weights.

    All epochs run, whatever validation says: the rate falls to 0 at their end, and weights of a training that is cut
    short have only met high rates. Everything random depends on (seed, epoch) alone, so that a resumed training equals
    an undisturbed one.

    Args:
        batches: the batches of an epoch, a function of the epoch's number alone.
        name: of the checkpoint ``<workdir>/<name>.safetensors``, which is kept when the training is complete.
        identity: from `fingerprint`.
        quality: from `quality_of`; called in evaluation mode.

    Returns: the epochs done, the best of them, and their seconds, those before a stop included.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimiser = torch.optim.AdamW(
        [
            {"params": [p for p in parameters if p.ndim > 1], "weight_decay": settings.weight_decay},
            {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
        ],
        lr=settings.learning_rate,
    )
    path = workdir / f"{name}.safetensors"
    facts, best = load_checkpoint(path, model, optimiser, identity) or ({"progress": "{}"}, {})
    progress, looks = Progress(**json.loads(facts["progress"])), settings.look_epochs()
    saved = time.monotonic()
    bar = tqdm(
        total=settings.epochs,
        initial=progress.epoch,
        desc=name,
        unit="epoch",
        leave=False,
        disable=not sys.stderr.isatty(),
    )
    for epoch in range(progress.epoch, settings.epochs):
        started = time.monotonic()
        torch.manual_seed(int(np.random.SeedSequence([seed, epoch]).generate_state(1)[0]))
        steps = batches(epoch)
        model.train()
        for number, batch in enumerate(steps):
            # Half a step ahead, so that neither the first nor the last step of a short training is lost.
            done = (epoch + (number + 0.5) / len(steps)) / settings.epochs
            for group in optimiser.param_groups:
                group["lr"] = settings.learning_rate * rate(done, settings)
            optimiser.zero_grad()
            value = loss(batch)
            value.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(parameters, settings.clip)
            optimiser.step()
        bar.update()
        progress.epoch = epoch + 1
        if quality is not None and progress.epoch in looks:
            model.eval()
            with torch.no_grad():
                looked = quality()
            bar.set_postfix(ndcg=f"{looked:.4f}")
            if looked > progress.best:
                progress.best, progress.best_epoch = looked, progress.epoch
                best = {f"{BEST}{key}": weight.detach().clone() for key, weight in model.named_parameters()}
        progress.seconds += time.monotonic() - started
        if progress.epoch == settings.epochs or time.monotonic() - saved > settings.checkpoint_seconds:
            save_checkpoint(path, model, optimiser, identity, {"progress": json.dumps(asdict(progress))}, best)
            saved = time.monotonic()
    bar.close()
    if best:
        with torch.no_grad():
            for key, weight in model.named_parameters():
                weight.copy_(best[f"{BEST}{key}"])
    model.eval()
    return progress


def staged_report(last: Progress, **before: Progress) -> dict[str, Any]:
    """What a run's record says of a training in stages: the last one with the seconds of all, and each one before."""
    seconds = last.seconds + sum(stage.seconds for stage in before.values())
    return replace(last, seconds=seconds).report() | {name: stage.report() for name, stage in before.items()}
