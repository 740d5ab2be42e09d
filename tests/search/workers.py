"""Searches whose best value is known, and objectives that a worker process can import."""

import itertools
import json
import os
import signal
import time
from functools import partial
from pathlib import Path

from study.search.trials import Search, run_search

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


def note(folder: str, values: dict, point: int) -> None:
    """Leave a line per run, so that a test can count them; a small append is written whole."""
    with (Path(folder) / "runs.jsonl").open("a") as file:
        file.write(json.dumps({"values": values, "point": point, "worker": os.getpid()}) + "\n")


def parabola(folder: str, values: dict, point: int) -> dict[str, float]:
    """Best at x = 2, and at the larger seed."""
    note(folder, values, point)
    time.sleep(0.02)
    return {MEASURE: 1 - (values["x"] - 2) ** 2 / 10 + values.get("seed", 0) / 1000}


def killer(folder: str, values: dict, point: int) -> dict[str, float]:
    """The first worker to run point 2 kills itself in the middle, as a lack of memory would."""
    mark = Path(folder) / "killed"
    if point == 2 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return parabola(folder, values, point)


def always_killer(folder: str, values: dict, point: int) -> dict[str, float]:
    """Every worker kills itself."""
    os.kill(os.getpid(), signal.SIGKILL)
    return {}


def constant(folder: str, values: dict, point: int) -> dict[str, float]:
    """All values are equally good."""
    return {MEASURE: 0.5}


def failing(folder: str, values: dict, point: int) -> dict[str, float]:
    """x = 3 never works."""
    note(folder, values, point)
    if values["x"] == 3.0:
        raise ValueError("x is too large")
    return {MEASURE: values["x"]}


def run_as_command(started) -> None:
    """A search in a process of its own that Ctrl-C stops, also where the tests run in the background of a shell."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    run_search(started)


def start(folder: str, kind: str = "parabola", **changes):
    """Search and objective of a worker."""
    others = {"failing": failing, "always killer": always_killer, "constant": constant, "killer": killer}
    objective = partial((others | {"parabola": parabola})[kind], folder)
    settings = {"name": "planted", "key": "test", "objective": MEASURE, "seed": 1, "folder": Path(folder)}
    return Search(**(settings | GRID | changes)), objective
