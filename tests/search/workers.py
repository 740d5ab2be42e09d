"""Searches whose best value is known, and objectives that a worker process can import."""

import itertools
import json
import os
import signal
import time
from functools import partial
from pathlib import Path

from study.search.trials import Search

MEASURE = "valid/ndcg@10"
GRID = {
    "space": {"x": {"choices": [0.0, 1.0, 2.0, 3.0]}, "seed": {"choices": [1, 2]}},
    "points": [{"x": x, "seed": seed} for x, seed in itertools.product((0.0, 1.0, 2.0, 3.0), (1, 2))],
}
FREE = {
    "space": {"x": {"low": 0.0, "high": 3.0}, "depth": {"low": 1, "high": 64, "log": True, "type": "int"}},
    "points": [{"x": 0.5, "depth": 4}, *({} for _ in range(7))],
    "startup": 2,
}


def parabola(folder: str, values: dict, point: int, *, kind: str = "parabola") -> dict[str, float]:
    """Best at x = 2, and at the larger seed; leaves a line a run, so that a test can count them.

    `kind`: `killer`: the first worker at point 2 kills itself, as a lack of memory would; `failing`: x = 3 never works.
    """
    with (Path(folder) / "runs.jsonl").open("a") as file:  # a small append is written whole
        file.write(json.dumps({"values": values, "point": point, "worker": os.getpid()}) + "\n")
    if kind == "failing" and values["x"] == 3.0:
        raise ValueError("x is too large")
    mark = Path(folder) / "killed"
    if kind == "killer" and point == 2 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.02)
    return {MEASURE: 1 - (values["x"] - 2) ** 2 / 10 + values.get("seed", 0) / 1000}


def start(folder: str, kind: str = "parabola", **changes):
    """Search and objective of a worker."""
    place = Path(folder)
    settings = {"name": "planted", "key": "test", "objective": MEASURE, "seed": 1, "work": place / "work"}
    settings["backup"] = place / "kept.csv"
    return Search(**(settings | GRID | changes)), partial(parabola, folder, kind=kind)
