"""`trainer=gpu`: a system trained on an accelerator, in a row of its own beside the processor's."""

from __future__ import annotations

import inspect
from typing import Any

from hydra.utils import get_object
from omegaconf import DictConfig

from study.base.errors import StudyError
from study.config.changes import changed, with_tuned_values
from study.config.compose import choices, plain

T2MREC = "study.t2mrec.system.T2MRec"


def on_trainer(config: DictConfig) -> DictConfig:
    """The configuration as its trainer wants it: as it is for cpu, and for auto where torch sees no GPU.

    Raises StudyError: there is no GPU, or a system that a GPU does not serve.
    """
    trainer = config.trainer
    return on_gpu(config, bf16=trainer.precision == "bf16-mixed") if uses_gpu(trainer.accelerator) else config


def uses_gpu(accelerator: str) -> bool:
    """Whether an accelerator of ``conf/trainer`` has systems train on a GPU here; auto does where torch sees one.

    Raises StudyError: there is no GPU.
    """
    if accelerator == "cpu":
        return False
    from study.t2mrec.device import chosen

    return chosen(accelerator, "trainer").type != "cpu"


def on_gpu(config: DictConfig, *, bf16: bool = False) -> DictConfig:
    """The configured system with its training on a GPU, tuned values filled in: every class of it that takes a `device`
    gets that. A system of ``conf/system`` gets the name NAME_gpu, so that its row stays the processor's.

    `bf16`: in mixed precision, T2MRec alone. Raises StudyError: a system that a GPU does not serve so.
    """
    config = with_tuned_values(config)
    system, model = config.system, plain(config.system)["model"]
    if bf16:
        if model["_target_"] != T2MREC:
            raise StudyError(f"{system.name} has no mixed precision", column="trainer", fix="trainer=gpu")
        model["bf16"] = True
    placed = placed_on_gpu(model) if system.trains else model
    if placed == model:
        raise StudyError(f"{system.name} trains nothing on a GPU", column="trainer", fix="trainer=cpu")
    suffix, words = ("_gpu_bf16", "GPU, bf16") if bf16 else ("_gpu", "GPU")
    name = f"{system.name}{suffix}" if system.name in choices("system") else system.name
    values = {"name": name, "title": f"{system.title} ({words})", "tuned": None, "model": placed}
    return changed(config, {f"system.{key}": value for key, value in values.items()}, merge=False)


def placed_on_gpu(value: Any) -> Any:
    """A tree of settings in which every class that takes a `device` gets a GPU."""
    if not isinstance(value, dict):
        return value
    found = {key: placed_on_gpu(item) for key, item in value.items()}
    target = value.get("_target_")
    if target and "device" in inspect.signature(get_object(target)).parameters:
        found["device"] = "gpu"
    return found
