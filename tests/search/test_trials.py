"""Workers on one search: no trial is lost, none runs twice, and a killed worker's trial is begun anew."""

import json
import logging
import multiprocessing
import os
import signal
import time
from functools import partial
from pathlib import Path

import pytest
from optuna.trial import TrialState

from study.base.errors import StudyError
from study.search.trials import Search, earlier_trials, label, run_search
from tests.search import workers as w

POINTS = list(range(8))
spawn = multiprocessing.get_context("spawn")


def noted(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "runs.jsonl").read_text().splitlines()]


def require_each_once(folder: Path, search: Search) -> None:
    """Every point has one result, and ran once to its end."""
    assert sorted(run["point"] for run in noted(folder)) == POINTS
    assert list(search.finished()) == POINTS
    for point, trial in search.finished().items():
        assert {name: trial.params[name] for name in search.points[point]} == search.points[point]


def params(search: Search) -> list[dict]:
    return [trial.params for trial in search.finished().values()]


def command(folder: Path, *words: str, **changes) -> multiprocessing.Process:
    """A command of one worker, started in a process of its own."""
    started = spawn.Process(target=w.run_as_command, args=(partial(w.start, str(folder), *words, **changes),))
    started.start()
    return started


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_workers_share_the_points_and_nothing_runs_again(tmp_path, jobs, caplog):
    with caplog.at_level(logging.INFO):
        search = run_search(partial(w.start, str(tmp_path)), jobs=jobs)
    assert jobs > 1 or [line for line in caplog.messages if line.startswith("planted:")] == [
        f"planted: {number} of 8 trials" for number in range(1, 9)
    ]
    require_each_once(tmp_path, run_search(partial(w.start, str(tmp_path)), jobs=jobs))
    pids = {run["worker"] for run in noted(tmp_path)}
    assert (pids == {os.getpid()}) == (jobs == 1)
    assert search.study.best_trial.params == {"x": 2.0, "seed": 2}
    for other in ({"key": "other"}, {"name": "other"}):  # which share no trial
        assert not w.start(str(tmp_path), **other)[0].finished()


@pytest.mark.slow
def test_a_killed_workers_trial_is_begun_anew_until_workers_die_too_often(tmp_path):
    alone, shared = tmp_path / "alone", tmp_path / "shared"
    alone.mkdir()
    shared.mkdir()
    killed = command(alone, "killer")
    killed.join(60)
    assert killed.exitcode == -signal.SIGKILL
    search = run_search(partial(w.start, str(alone), "killer"))
    require_each_once(alone, search)
    assert [trial.user_attrs["point"] for trial in search.study.get_trials(states=(TrialState.FAIL,))] == [2]
    search = run_search(partial(w.start, str(shared), "killer"), jobs=2)
    assert (shared / "killed").exists()
    assert list(search.finished()) == POINTS  # the other worker goes with the killed one, maybe in the midst of a point
    with pytest.raises(StudyError, match="workers of planted died 3 times"):
        run_search(partial(w.start, str(shared), "always killer", key="other"), jobs=2)


@pytest.mark.slow
@pytest.mark.parametrize("stop", [signal.SIGKILL, signal.SIGINT])
def test_a_stopped_search_equals_an_undisturbed_one(tmp_path, stop):
    for name in ("whole", "stopped"):
        (tmp_path / name).mkdir()
    whole = run_search(partial(w.start, str(tmp_path / "whole"), **w.FREE))
    cut = command(tmp_path / "stopped", **w.FREE)
    deadline = time.monotonic() + 60
    while not (tmp_path / "stopped" / "runs.jsonl").exists() or len(noted(tmp_path / "stopped")) < 4:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(cut.pid, stop)
    cut.join()
    resumed, _ = w.start(str(tmp_path / "stopped"), **w.FREE)
    assert 3 <= len(resumed.finished()) < 8
    resumed = run_search(partial(w.start, str(tmp_path / "stopped"), **w.FREE))
    assert params(resumed) == params(whole)
    assert len(noted(tmp_path / "stopped")) <= 9  # the trial that was cut short began twice


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_stopped_search_goes_on_without_its_journal(tmp_path, jobs):
    """In a fresh clone: the trials that are kept are taken over as they were, and the others are those that follow."""
    for name in ("whole", "stopped", "clone"):
        (tmp_path / name).mkdir()
    kept = tmp_path / "unfinished.csv"
    whole = run_search(partial(w.start, str(tmp_path / "whole"), **w.FREE))
    assert params(whole)[0] == {"x": 0.5, "depth": 4}
    assert len({trial["x"] for trial in params(whole)}) == 8
    cut = partial(w.start, str(tmp_path / "stopped"), unfinished=kept, **(w.FREE | {"points": w.FREE["points"][:5]}))
    short = run_search(cut, jobs=jobs)
    begin = partial(w.start, str(tmp_path / "clone"), **w.FREE)
    search = run_search(begin, kept=earlier_trials(tmp_path, "test"))
    assert params(search)[:5] == params(short)
    assert sorted(run["point"] for run in noted(tmp_path / "clone")) == [5, 6, 7]
    if jobs == 1:  # with several workers, the order of results decides what is drawn
        assert params(search) == params(whole)
    assert not len(earlier_trials(tmp_path, "other"))
    # With its journal, a longer list of points keeps the trials, and a shorter one sees its own alone.
    longer = run_search(partial(w.start, str(tmp_path / "stopped"), **w.FREE))
    assert params(longer)[:5] == params(short)
    require_each_once(tmp_path / "stopped", longer)
    assert list(short.finished()) == [0, 1, 2, 3, 4]


def test_choices_of_every_kind_are_read_back(tmp_path):
    space = {"x": {"choices": [None, True, 1.5, 2, "two", [1, 2]]}, "seed": {"choices": [1]}}
    points = [{"x": label(value), "seed": 1} for value in space["x"]["choices"]]
    kept = tmp_path / "unfinished.csv"
    search = run_search(partial(w.start, str(tmp_path), "constant", space=space, points=points, unfinished=kept))
    (tmp_path / "clone").mkdir()
    again, _ = w.start(str(tmp_path / "clone"), "constant", space=space, points=points)
    again.restore(earlier_trials(tmp_path, "test"))
    assert params(again) == params(search) == points


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{}, w.FREE], ids=["grid", "free"])
def test_two_commands_at_once_share_the_trials(tmp_path, changes):
    commands = [command(tmp_path, **changes) for _ in range(2)]
    for started in commands:
        started.join(120)
        assert started.exitcode == 0
    require_each_once(tmp_path, w.start(str(tmp_path), **changes)[0])


def test_a_trial_that_fails_stops_the_search_and_keeps_the_others(tmp_path):
    points = [{"x": x, "seed": 1} for x in (0.0, 1.0, 2.0, 3.0)]
    for times in (1, 2):  # the same command tries again
        with pytest.raises(StudyError, match="trial 3 of planted failed: ValueError: x is too large"):
            run_search(partial(w.start, str(tmp_path), "failing", points=points))
        assert sum(run["values"]["x"] == 3.0 for run in noted(tmp_path)) == times
    search, _ = w.start(str(tmp_path), "failing", points=points)
    assert list(search.finished()) == [0, 1, 2]


@pytest.mark.slow
def test_a_failing_trial_ends_the_workers_too(tmp_path):
    with pytest.raises(StudyError, match="x is too large"):
        run_search(partial(w.start, str(tmp_path), "failing"), jobs=2)


def test_a_line_that_a_full_disk_cut_short_is_left_out_and_a_damaged_journal_named(tmp_path):
    run_search(partial(w.start, str(tmp_path), points=w.GRID["points"][:3]))
    with (tmp_path / "trials.log").open("ab") as journal:
        journal.write(b'{"op_code": 5, "worker_')
    require_each_once(tmp_path, run_search(partial(w.start, str(tmp_path))))
    (tmp_path / "trials.log").write_bytes(b"no journal\n" * 1000)
    with pytest.raises(StudyError, match="journal of trials cannot be read") as caught:
        w.start(str(tmp_path))
    assert caught.value.file == tmp_path / "trials.log"
    assert "delete it" in caught.value.fix


def test_a_mended_error_is_raised_at_once(tmp_path):
    def wrong(values, point):
        raise StudyError("an input is missing", fix="make it")

    search, _ = w.start(str(tmp_path))
    with pytest.raises(StudyError, match="an input is missing"):
        search.work(wrong)
    assert len(search.study.trials) == 1
