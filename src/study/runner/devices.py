"""`trainer=gpu`: a system trained on an accelerator, in a row of its own beside the processor's."""

from __future__ import annotations

import inspect
from typing import Any

from hydra.utils import get_object
from omegaconf import DictConfig

from study.base.errors import StudyError
from study.config.changes import change_settings, with_tuned_values
from study.config.compose import choices, plain

T2MREC = "study.t2mrec.system.T2MRec"


def uses_gpu(accelerator: str) -> bool:
    """Whether an accelerator of ``conf/trainer`` has systems train on a GPU here; auto does where torch sees one.
    Raises StudyError: there is no GPU."""
    if accelerator == "cpu":
        return False
    from study.t2mrec.device import choose_device

    return choose_device(accelerator, "trainer").type != "cpu"


def on_trainer(config: DictConfig) -> DictConfig:
    """The configuration as its trainer wants it: as it is for cpu, and for auto where torch sees no GPU. On a GPU tuned
    values are filled in, every class of the system that takes a `device` gets that, and a system of ``conf/system`` the
    name NAME_gpu, so that its row stays the processor's. With mixed precision, T2MRec alone: NAME_gpu_bf16.

    Raises StudyError: there is no GPU, or a system that a GPU does not serve so.
    """
    if not uses_gpu(config.trainer.accelerator):
        return config
    config = with_tuned_values(config)
    system, model = config.system, plain(config.system)["model"]
    suffix, words = "_gpu", "GPU"
    if config.trainer.precision == "bf16-mixed":
        if model["_target_"] != T2MREC:
            raise StudyError(f"{system.name} has no mixed precision", column="trainer", fix="trainer=gpu")
        model["bf16"], suffix, words = True, "_gpu_bf16", "GPU, bf16"
    placed = placed_on_gpu(model) if system.trains else model
    if placed == model:
        raise StudyError(f"{system.name} trains nothing on a GPU", column="trainer", fix="trainer=cpu")
    name = f"{system.name}{suffix}" if system.name in choices("system") else system.name
    values = {"name": name, "title": f"{system.title} ({words})", "tuned": None, "model": placed}
    return change_settings(config, {f"system.{key}": value for key, value in values.items()}, merge=False)


def placed_on_gpu(value: Any) -> Any:
    """A tree of settings in which every class that takes a `device` gets a GPU."""
    if not isinstance(value, dict):
        return value
    settings = {key: placed_on_gpu(item) for key, item in value.items()}
    takes = "_target_" in value and "device" in inspect.signature(get_object(value["_target_"])).parameters
    return settings | ({"device": "gpu"} if takes else {})
