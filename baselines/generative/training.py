"""The training loop of the generative baselines: epochs, schedule, checkpoints that a stopped training goes on from."""

from __future__ import annotations

import hashlib
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from tqdm import tqdm

from study.files import replacing

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
) -> None:  # fmt: skip
    """Minimise `loss` over the trainable parameters of `model`; ends in evaluation mode.

    Everything random depends on (seed, epoch) alone, so that a resumed training equals an undisturbed one.

    Args:
        batches: the batches of an epoch, a function of the epoch's number alone.
        name: of the checkpoint ``<workdir>/<name>.safetensors``, which is kept when the training is complete.
        identity: from `fingerprint`.
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
    start = _load(path, model, optimiser, identity)
    saved = time.monotonic()
    bar = tqdm(total=settings.epochs, initial=start, desc=name, unit="epoch", leave=False,
               disable=not sys.stderr.isatty())  # fmt: skip
    model.train()
    for epoch in range(start, settings.epochs):
        torch.manual_seed(int(np.random.SeedSequence([seed, epoch]).generate_state(1)[0]))
        steps = batches(epoch)
        for number, batch in enumerate(steps):
            # Half a step ahead, so that neither the first nor the last step of a short training is lost.
            progress = (epoch + (number + 0.5) / len(steps)) / settings.epochs
            for group in optimiser.param_groups:
                group["lr"] = settings.learning_rate * rate(progress, settings)
            optimiser.zero_grad()
            value = loss(batch)
            value.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(parameters, settings.clip)
            optimiser.step()
        bar.update()
        if epoch + 1 == settings.epochs or time.monotonic() - saved > settings.checkpoint_seconds:
            _save(path, model, optimiser, epoch + 1, identity)
            saved = time.monotonic()
    bar.close()
    model.eval()


def _save(path: Path, model: nn.Module, optimiser: torch.optim.Optimizer, epoch: int, identity: str) -> None:
    """Write learned tensors and the optimiser's state; shared tensors once."""
    tensors = {f"model.{name}": value.detach().contiguous() for name, value in model.named_parameters()}
    for number, state in optimiser.state_dict()["state"].items():
        tensors |= {f"optimiser.{number}.{key}": torch.as_tensor(value).contiguous() for key, value in state.items()}
    with replacing(path) as temporary:
        save_file(tensors, temporary, metadata={"epoch": str(epoch), "identity": identity})


def _load(path: Path, model: nn.Module, optimiser: torch.optim.Optimizer, identity: str) -> int:
    """Restore the state that `_save` wrote; returns the epochs done, 0 where there is nothing to go on from."""
    if not path.exists():
        return 0
    try:
        with safe_open(path, framework="pt") as stored:
            facts = stored.metadata() or {}
            tensors = {key: stored.get_tensor(key) for key in stored.keys()}  # noqa: SIM118 - it is no dictionary
    except (SafetensorError, OSError):
        return 0
    if facts.get("identity") != identity:
        return 0
    with torch.no_grad():
        for name, value in model.named_parameters():
            value.copy_(tensors[f"model.{name}"])
    state: dict[int, dict[str, Any]] = {}
    for key, value in tensors.items():
        if key.startswith("optimiser."):
            _, number, entry = key.split(".")
            state.setdefault(int(number), {})[entry] = value
    optimiser.load_state_dict({"state": state, "param_groups": optimiser.state_dict()["param_groups"]})
    return int(facts["epoch"])
