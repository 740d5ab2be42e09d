"""A baseline that was written for a processor, trained and asked on an accelerator.

Such code makes tensors by torch's factories and by `torch.from_numpy`, and leaves them by `Tensor.numpy`. Within a fit
or an answer, both ends lead to the device; what lies between follows its operands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from study.evaluation.system import System
from study.t2mrec.device import chosen


@contextmanager
def placed(device: torch.device) -> Iterator[None]:
    """Within the block, new tensors are made on the device, and arrays come from it, in the thread of a backward pass
    too."""
    entering, leaving = torch.from_numpy, Tensor.numpy
    with (
        torch.device(device),
        patch.object(torch, "from_numpy", lambda array: entering(array).to(device)),
        patch.object(Tensor, "numpy", lambda tensor, **options: leaving(tensor.cpu(), **options)),
    ):
        yield


def on_device(system: System, device: str = "auto") -> System:
    """The system itself, whose `fit`, `score` and `rank` now work on a device of `study.t2mrec.device.DEVICES`.

    Raises StudyError: there is no such device.
    """
    place = chosen(device)

    def moved(method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def call(*args: Any, **options: Any) -> Any:
            with placed(place):
                return method(*args, **options)

        return call

    for name in ("fit", "score", "rank"):
        if hasattr(system, name):
            setattr(system, name, moved(getattr(system, name)))
    return system
