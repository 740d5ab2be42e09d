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
import torch
from torch import Tensor, nn
from tqdm import tqdm

from baselines.checkpoints import load_checkpoint, save_checkpoint
from baselines.published.training import Progress

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
    """

    epochs: int = 20
    batch_size: int = 256
    learning_rate: float = 1e-3
    weight_decay: float = 0.01
    warm_up: float = 0.05
    decay: str = "cosine"
    clip: float = 1.0
    checkpoint_seconds: float = 20.0


def fingerprint(*parts: object) -> str:
    """A hash of all that decides a training, so that a checkpoint of another one is never taken up."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.tobytes() if isinstance(part, np.ndarray) else repr(part).encode())
    return digest.hexdigest()


def rate(progress: float, settings: Optimisation) -> float:
    """The learning rate after the share `progress` of the training, over the highest one."""
    if progress < settings.warm_up:
        return progress / settings.warm_up
    left = (1 - progress) / max(1e-12, 1 - settings.warm_up)
    return left if settings.decay == "linear" else 0.5 * (1 - math.cos(math.pi * left))


def train(
    model: nn.Module, batches: Callable[[int], Sequence[Batch]], loss: Callable[[Batch], Tensor],
    settings: Optimisation, *, seed: int, workdir: Path, name: str, identity: str,
) -> Progress:  # fmt: skip
    """Minimise `loss` over the trainable parameters of `model`; ends in evaluation mode.

    Everything random depends on (seed, epoch) alone, so that a resumed training equals an undisturbed one.

    Args:
        batches: the batches of an epoch, a function of the epoch's number alone.
        name: of the checkpoint ``<workdir>/<name>.safetensors``, which is kept when the training is complete.
        identity: from `fingerprint`.

    Returns: the epochs done and their seconds, those before a stop included.
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
    found = load_checkpoint(path, model, optimiser, identity)
    progress = Progress(**json.loads(found[0]["progress"])) if found else Progress()
    saved = time.monotonic()
    bar = tqdm(total=settings.epochs, initial=progress.epoch, desc=name, unit="epoch", leave=False,
               disable=not sys.stderr.isatty())  # fmt: skip
    model.train()
    for epoch in range(progress.epoch, settings.epochs):
        started = time.monotonic()
        torch.manual_seed(int(np.random.SeedSequence([seed, epoch]).generate_state(1)[0]))
        steps = batches(epoch)
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
        progress.seconds += time.monotonic() - started
        if progress.epoch == settings.epochs or time.monotonic() - saved > settings.checkpoint_seconds:
            save_checkpoint(path, model, optimiser, identity, {"progress": json.dumps(asdict(progress))})
            saved = time.monotonic()
    bar.close()
    model.eval()
    return progress


def staged_report(last: Progress, **before: Progress) -> dict[str, Any]:
    """What a run's record says of a training in stages: the last one with the seconds of all, and each one before."""
    seconds = last.seconds + sum(stage.seconds for stage in before.values())
    return replace(last, seconds=seconds).report() | {name: stage.report() for name, stage in before.items()}
