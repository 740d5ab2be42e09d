"""Objectives and starts that a worker process can import."""

import json
import os
import signal
import time
from functools import partial
from pathlib import Path

from study.search.settings import Sweep
from study.search.trials import Trials

TINY = ["dataset=synthetic", "profile=smoke", "dataset.generator.n_servers=60", "dataset.generator.n_tasks=80"]
BASE = {
    "name": "planted",
    "title": "Planted",
    "place": "nowhere",
    "paper_best": None,
    "system": "t2mrec",
    "kind": "grid",
    "objective": "ndcg@10",
    "parts": ["valid"],
    "seeds": [1, 2],
    "space": {"x": {"choices": [0.0, 1.0, 2.0, 3.0]}},
    "simplex": [],
    "enqueue": [],
    "trials": 0,
    "attempts": 3,
    "keep_fits": False,
    "sampler_seed": 1,
}


def planted(**changes) -> Sweep:
    """A sweep whose best value is known: 2, or 0.3 for a search."""
    return Sweep(**(BASE | changes))


def note(folder: str, values: dict, seed: int) -> None:
    """Leave a line per run, so that a test can count them; a small append is written whole."""
    with (Path(folder) / "runs.jsonl").open("a") as file:
        file.write(json.dumps({"values": values, "seed": seed, "worker": os.getpid()}) + "\n")


def parabola(folder: str, pause: float, values: dict, seed: int) -> dict[str, float]:
    """Best at x = 2 whatever the seed."""
    note(folder, values, seed)
    time.sleep(pause)
    return {"valid/ndcg@10": 1 - (values["x"] - 2) ** 2 / 10 + seed / 1000}


def killer(folder: str, values: dict, seed: int) -> dict[str, float]:
    """The first worker to run x = 1 kills itself in the middle, as a lack of memory would."""
    mark = Path(folder) / "killed"
    if values["x"] == 1.0 and seed == 1 and not mark.exists():
        mark.touch()
        note(folder, values, -seed)
        os.kill(os.getpid(), signal.SIGKILL)
    return parabola(folder, 0.05, values, seed)


def failing(folder: str, values: dict, seed: int) -> dict[str, float]:
    """x = 3 never works."""
    note(folder, values, seed)
    if values["x"] == 3.0:
        raise ValueError("x is too large")
    return {"valid/ndcg@10": values["x"]}


def start(folder: str, kind: str, changes: dict, storage: str | None = None):
    """Trials and objective of a worker."""
    objective = {
        "parabola": partial(parabola, folder, 0.05),
        "killer": partial(killer, folder),
        "failing": partial(failing, folder),
    }[kind]
    return Trials(planted(**changes), Path(folder), "test", storage), objective
