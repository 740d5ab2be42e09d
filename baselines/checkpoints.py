"""Checkpoints of a training: learned tensors and the optimiser's state, in one safetensors file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from study.files import replacing

MODEL, OPTIMISER, IDENTITY = "model.", "optimiser.", "identity"


def save_checkpoint(
    path: Path,
    model: nn.Module,
    optimiser: torch.optim.Optimizer,
    identity: str,
    facts: Mapping[str, str],
    others: Mapping[str, Tensor] | None = None,
) -> None:
    """Write where a training stands; shared tensors once.

    Args:
        identity: a hash of all that decides the training.
        facts: what the training loop knows beside the tensors.
        others: further tensors by name, none of which begins with ``model.`` or ``optimiser.``.
    """
    tensors = {f"{MODEL}{name}": value.detach().contiguous() for name, value in model.named_parameters()}
    tensors |= {name: value.contiguous() for name, value in (others or {}).items()}
    for number, state in optimiser.state_dict()["state"].items():
        # Descent without momentum keeps an entry without a value.
        values = {key: torch.as_tensor(value) for key, value in state.items() if value is not None}
        tensors |= {f"{OPTIMISER}{number}.{key}": value.contiguous() for key, value in values.items()}
    with replacing(path) as temporary:
        save_file(tensors, temporary, metadata={**facts, IDENTITY: identity})


def load_checkpoint(
    path: Path, model: nn.Module, optimiser: torch.optim.Optimizer, identity: str
) -> tuple[dict[str, str], dict[str, Tensor]] | None:
    """Restore model and optimiser as `save_checkpoint` met them.

    Returns: facts and other tensors, as they were saved; None, with nothing restored, where there is nothing to go on
        from: no file, a damaged one, or one of a training with another identity.
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
