"""RecBole's models on an accelerator: ``python -m baselines.recbole_device job.json`` is the runner with RecBole's own
device in place of the processor. On resuming, an accelerator's random numbers start anew."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from baselines import recbole_runner
from baselines.recbole_bridge import LOG_FILE, RecBole
from study.errors import StudyError
from study.t2mrec.device import chosen

ROOT = Path(__file__).resolve().parents[1]


@dataclass
class DeviceRecBole(RecBole):
    """A RecBole model trained on a device; everything else is `RecBole`'s.

    Attributes:
        device: auto, cpu or gpu.
    """

    device: str = "auto"

    def __post_init__(self) -> None:
        self.device = "gpu" if chosen(self.device).type == "cuda" else "cpu"

    # RecBole's own, with another module to start: a change there would make every row of RecBole stale.
    def _train(self, folder: Path) -> None:
        log, places = folder / LOG_FILE, (str(ROOT), os.environ.get("PYTHONPATH", ""))
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, places))}
        command = [sys.executable, "-P", "-W", "ignore", "-m", "baselines.recbole_device", "job.json"]
        with log.open("a") as stream:
            done = subprocess.run(  # noqa: S603 - the command is our own, and no shell is involved
                command, cwd=folder, env=environment, stdout=stream, stderr=subprocess.STDOUT, check=False
            )
        if done.returncode:
            problem = f"RecBole's {self.model} stopped with exit code {done.returncode}"
            raise StudyError(problem, file=log, fix="read the log; the same command goes on from the last checkpoint")


class DeviceTraining(recbole_runner.Training):
    """`recbole_runner.Training` whose model is on RecBole's device; what it learned comes back from there."""

    def __init__(self, job: dict[str, Any]) -> None:
        super().__init__(job)
        self.place = next(self.model.parameters()).device
        self.users, self.items = self.users.to(self.place), self.items.to(self.place)

    def learned(self) -> dict[str, Tensor]:
        """As in the runner, on the processor."""
        with torch.device(self.place):
            return {name: tensor.cpu() for name, tensor in super().learned().items()}


def settings(job: dict[str, Any]) -> dict[str, Any]:
    """RecBole's configuration, with the job's device."""
    return _SETTINGS(job) | ({"use_gpu": True, "gpu_id": "0"} if job["device"] == "gpu" else {})


_SETTINGS = recbole_runner.settings

if __name__ == "__main__":
    vars(recbole_runner).update(settings=settings, Training=DeviceTraining)
    recbole_runner.main(Path(sys.argv[1]))
