"""Workers on one search: no trial is lost, none runs twice, and a killed worker's trial is begun anew."""

import itertools
import json
import logging
import multiprocessing
import os
import shutil
import signal
import time
from functools import partial
from pathlib import Path

import pytest

from study.base.errors import StudyError
from study.search.trials import Search, label, read_trials, run_search

POINTS = list(range(8))
spawn = multiprocessing.get_context("spawn")
# Searches whose best value is known.
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


def noted(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "runs.jsonl").read_text().splitlines()]


def require_each_once(folder: Path, search: Search) -> None:
    """Every point has one result, and ran once."""
    assert sorted(run["point"] for run in noted(folder)) == POINTS
    assert list(search.params()) == POINTS
    for point, values in search.params().items():
        assert {name: values[name] for name in search.points[point]} == search.points[point]


def command(folder: Path, *words: str, **changes) -> multiprocessing.Process:
    """A command of one worker, started in a process of its own."""
    started = spawn.Process(target=run_search, args=(partial(start, str(folder), *words, **changes),))
    started.start()
    return started


def finished(folder: Path, *words: str, jobs: int = 1, **changes) -> Search:
    """A search, run to its end."""
    begin = partial(start, str(folder), *words, **changes)
    run_search(begin, jobs=jobs)
    return begin()[0]


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_workers_share_the_points_and_nothing_runs_again(tmp_path, jobs, caplog):
    with caplog.at_level(logging.INFO):
        finished(tmp_path, jobs=jobs)
    said = [line for line in caplog.messages if line.startswith("planted:")]
    assert jobs > 1 or said == [f"planted: {number} of 8 trials" for number in range(1, 9)]
    search = finished(tmp_path, jobs=jobs)
    require_each_once(tmp_path, search)
    pids = {run["worker"] for run in noted(tmp_path)}
    assert (pids == {os.getpid()}) == (jobs == 1)
    table = search.table()
    assert search.params()[int(table[MEASURE].idxmax())] == {"x": 2.0, "seed": 2}
    assert not start(str(tmp_path), key="other")[0].params()  # shares no trial


@pytest.mark.slow
def test_a_killed_workers_trial_is_begun_anew(tmp_path):
    killed = command(tmp_path, "killer")
    killed.join(60)
    assert killed.exitcode == -signal.SIGKILL
    assert list(finished(tmp_path, "killer").params()) == POINTS
    assert sorted(run["point"] for run in noted(tmp_path)) == sorted([*POINTS, 2])
    (tmp_path / "killed").unlink()
    with pytest.raises(StudyError, match="a worker of planted died"):
        finished(tmp_path, "killer", key="other", jobs=2)
    assert list(finished(tmp_path, "killer", key="other", jobs=2).params()) == POINTS


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_stopped_search_goes_on_in_a_fresh_clone(tmp_path, jobs):
    """The trials that are kept are taken over as they were, and the others are those that follow."""
    for name in ("whole", "clone"):
        (tmp_path / name).mkdir()
    whole = finished(tmp_path / "whole", **FREE)
    assert whole.params()[0] == {"x": 0.5, "depth": 4}
    assert len({trial["x"] for trial in whole.params().values()}) == 8
    short = finished(tmp_path / "clone", jobs=jobs, **(FREE | {"points": FREE["points"][:5]})).params()
    shutil.rmtree(tmp_path / "clone" / "work")
    search, measure = start(str(tmp_path / "clone"), **FREE)
    search.begin([])
    search.run(measure)
    assert {point: search.params()[point] for point in short} == short
    require_each_once(tmp_path / "clone", search)
    if jobs == 1:  # with several workers, the order of results decides what is drawn
        assert search.params() == whole.params()


def test_a_whole_search_lends_the_trials_of_its_points_and_another_start_forgets_them(tmp_path):
    finished(tmp_path, points=GRID["points"][:3])
    rows = read_trials(tmp_path / "kept.csv")
    (tmp_path / "kept.csv").unlink()
    shutil.rmtree(tmp_path / "work")
    search, measure = start(str(tmp_path), points=[*GRID["points"][:2], *GRID["points"][3:]])
    search.begin(rows)
    assert list(search.params()) == [0, 1]  # the third point is another one
    search.begin([], again=True)
    assert not search.params()
    search.run(measure)
    before = search.params()
    search.begin([], again=True)  # it was stopped before its results were written
    assert search.params() == before


def test_choices_of_every_kind_are_read_back(tmp_path):
    space = {"x": {"choices": [None, True, 1.5, 2, "two", "NA", [1, 2]]}, "seed": {"choices": [1]}}
    points = [{"x": label(value), "seed": 1} for value in space["x"]["choices"]]
    search = start(str(tmp_path), space=space, points=points)[0]
    search.run(lambda values, point: {MEASURE: 0.5})
    assert list(search.params().values()) == points


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_trial_that_fails_stops_the_search_and_keeps_the_others(tmp_path, jobs):
    points = [{"x": x, "seed": 1} for x in (0.0, 1.0, 2.0, 3.0)]
    for times in (1, 2):  # the same command tries again
        with pytest.raises(StudyError, match="trial 3 of planted failed: ValueError: x is too large"):
            finished(tmp_path, "failing", points=points, jobs=jobs)
        assert jobs > 1 or sum(run["values"]["x"] == 3.0 for run in noted(tmp_path)) == times
    assert list(start(str(tmp_path), "failing", points=points)[0].params()) == [0, 1, 2]


def test_an_error_that_says_what_to_do_is_raised_as_it_is_and_a_damaged_table_named(tmp_path):
    def wrong(values, point):
        raise StudyError("an input is missing", fix="make it")

    search, _ = start(str(tmp_path))
    with pytest.raises(StudyError, match="an input is missing"):
        search.run(wrong)
    search.backup.write_text("<<<<<<< HEAD\n")
    with pytest.raises(StudyError, match="column is missing") as caught:
        search.begin([])
    assert (caught.value.file, caught.value.fix) == (search.backup, "delete it")
