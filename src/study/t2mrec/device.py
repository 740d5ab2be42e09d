"""Where a network is trained: the device that a setting names."""

from __future__ import annotations

import torch

from study.base.errors import StudyError, require_one_of

DEVICES = ("auto", "cpu", "gpu")


def choose_device(device: str, key: str = "device") -> torch.device:
    """The device of a name of `DEVICES`; auto takes an accelerator where torch sees one. `key`: of the setting. Raises
    StudyError: there is none, or no such name."""
    require_one_of(device, key, DEVICES)
    there = torch.cuda.is_available()
    if device == "gpu" and not there:
        raise StudyError("torch sees no GPU here", column=key, fix=f"{key}=cpu, or {key}=auto")
    return torch.device("cuda" if there and device != "cpu" else "cpu")
