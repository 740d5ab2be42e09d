"""Workers on one sweep: no trial is lost, none is run twice, and a killed worker's trial is begun anew."""

import json
import multiprocessing
import os
import signal
import time
from collections import Counter
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from optuna.trial import TrialState

from study.errors import StudyError
from study.search.locks import claimed, exclusive
from study.search.trials import Trials, mend
from study.search.workers import run
from tests.search import workers as w

GRID = {(x, seed) for x in (0.0, 1.0, 2.0, 3.0) for seed in (1, 2)}
SEARCH = {
    "kind": "search",
    "trials": 6,
    "seeds": [1],
    "space": {"x": {"low": 0.0, "high": 3.0, "type": "float"}},
    "enqueue": [{"x": 0.5}],
}


def noted(folder):
    return [json.loads(line) for line in (folder / "runs.jsonl").read_text().splitlines()]


def finished(trials):
    return [(trial.params["x"], trial.params["seed"]) for trial in trials.finished()]


def test_one_worker_runs_every_point_once(tmp_path):
    trials = run(partial(w.start, str(tmp_path), "parabola", {}), jobs=1)
    assert Counter(finished(trials)) == Counter(GRID)
    assert len(noted(tmp_path)) == len(GRID)
    assert max(trials.finished(), key=lambda trial: trial.value).params == {"x": 2.0, "seed": 2}


def test_a_finished_sweep_runs_nothing_again(tmp_path):
    for _ in range(2):
        trials = run(partial(w.start, str(tmp_path), "parabola", {}), jobs=1)
    assert Counter(finished(trials)) == Counter(GRID)
    assert len(noted(tmp_path)) == len(GRID)


def test_two_workers_share_the_points(tmp_path):
    trials = run(partial(w.start, str(tmp_path), "parabola", {}), jobs=2)
    assert Counter(finished(trials)) == Counter(GRID)
    runs = noted(tmp_path)
    assert len(runs) == len(GRID)
    assert len({entry["worker"] for entry in runs}) == 2
    assert os.getpid() not in {entry["worker"] for entry in runs}


def test_a_killed_worker_is_replaced_and_its_trial_begun_anew(tmp_path):
    trials = run(partial(w.start, str(tmp_path), "killer", {}), jobs=2)
    assert (tmp_path / "killed").exists()
    assert Counter(finished(trials)) == Counter(GRID)
    runs = noted(tmp_path)
    assert sum(entry["seed"] < 0 for entry in runs) == 1  # the run that was cut short
    assert Counter((entry["values"]["x"], entry["seed"]) for entry in runs if entry["seed"] > 0) == Counter(GRID)
    failed = trials.study.get_trials(states=(TrialState.FAIL,))
    assert [trial.params for trial in failed] == [{"x": 1.0, "seed": 1}]
    again = [trial for trial in trials.study.trials if trial.user_attrs.get("retry_of") == failed[0].number]
    assert [trial.state for trial in again] == [TrialState.COMPLETE]


def test_two_commands_work_on_one_search_within_its_budget(tmp_path):
    spawn = multiprocessing.get_context("spawn")
    changes = SEARCH | {"trials": 8}
    commands = [
        spawn.Process(target=run, args=(partial(w.start, str(tmp_path), "parabola", changes),), kwargs={"jobs": 1})
        for _ in range(2)
    ]
    for command in commands:
        command.start()
    for command in commands:
        command.join(120)
        assert command.exitcode == 0
    trials, _ = w.start(str(tmp_path), "parabola", changes)
    assert len(trials.finished()) == 8
    assert len(noted(tmp_path)) == 8
    assert trials.finished()[0].params["x"] == 0.5  # what was queued comes first
    assert len({trial.params["x"] for trial in trials.finished()}) == 8


def test_a_stopped_search_of_one_worker_equals_an_undisturbed_one(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    whole = run(partial(w.start, str(tmp_path / "a"), "parabola", SEARCH), jobs=1)
    run(partial(w.start, str(tmp_path / "b"), "parabola", SEARCH | {"trials": 3}), jobs=1)
    resumed = run(partial(w.start, str(tmp_path / "b"), "parabola", SEARCH), jobs=1)
    assert finished(whole) == finished(resumed)
    assert len(noted(tmp_path / "b")) == 6


def test_a_kill_from_outside_loses_nothing(tmp_path):
    spawn = multiprocessing.get_context("spawn")
    command = spawn.Process(target=run, args=(partial(w.start, str(tmp_path), "parabola", {}),), kwargs={"jobs": 1})
    command.start()
    deadline = time.monotonic() + 60
    while not (tmp_path / "runs.jsonl").exists() or len(noted(tmp_path)) < 3:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(command.pid, signal.SIGKILL)
    command.join()
    trials = run(partial(w.start, str(tmp_path), "parabola", {}), jobs=1)
    assert Counter(finished(trials)) == Counter(GRID)
    assert len(noted(tmp_path)) <= len(GRID) + 1  # at most the one in mid-trial was begun twice


def test_a_trial_that_always_fails_stops_the_sweep_and_keeps_the_others(tmp_path):
    with pytest.raises(StudyError, match="3 times: ValueError: x is too large"):
        run(partial(w.start, str(tmp_path), "failing", {"seeds": [1]}), jobs=1)
    trials, _ = w.start(str(tmp_path), "failing", {"seeds": [1]})
    assert Counter(finished(trials)) == Counter({(0.0, 1): 1, (1.0, 1): 1, (2.0, 1): 1})
    assert sum(entry["values"]["x"] == 3.0 for entry in noted(tmp_path)) == 3


def test_a_failing_trial_ends_the_workers_too(tmp_path):
    with pytest.raises(StudyError, match="exit code 2"):
        run(partial(w.start, str(tmp_path), "failing", {"seeds": [1], "attempts": 1}), jobs=2)


def test_a_worker_that_died_before_it_read_its_values_loses_none(tmp_path):
    trials, objective = w.start(str(tmp_path), "parabola", {"seeds": [1]})
    trials.study.ask()  # and then nothing: no values were read, nobody holds the trial
    trials.work(objective)
    assert Counter(finished(trials)) == Counter({(x, 1): 1 for x in (0.0, 1.0, 2.0, 3.0)})


def test_a_held_trial_is_left_to_its_worker(tmp_path):
    trials, _ = w.start(str(tmp_path), "parabola", {"seeds": [1]})
    trial = trials.study.ask()
    with claimed(tmp_path / f"trial-{trial.number}.lock") as mine:
        assert mine
        trials._requeue_orphans()
        assert trials.study.trials[trial.number].state == TrialState.RUNNING
    trials._requeue_orphans()
    assert trials.study.trials[trial.number].state == TrialState.FAIL


def test_a_trial_that_ends_during_the_look_is_left_alone(tmp_path, monkeypatch):
    trials, _ = w.start(str(tmp_path), "parabola", {"seeds": [1]})
    trial = trials.study.ask()

    @contextmanager
    def ending(path):
        """Its worker tells the result and lets go of the lock between the look at the trials and at the lock."""
        trials.study.tell(trial, 0.5)
        with claimed(path) as free:
            yield free

    monkeypatch.setattr("study.search.trials.claimed", ending)
    trials._requeue_orphans()
    assert trials.study.trials[trial.number].state == TrialState.COMPLETE
    assert not any("retry_of" in other.user_attrs for other in trials.study.trials)


def test_workers_of_two_folders_do_not_share_a_database(tmp_path):
    storage = f"sqlite:///{tmp_path}/trials.db"
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    trials, _ = w.start(str(tmp_path / "a"), "parabola", {"seeds": [1]}, storage)
    trial = trials.study.ask()
    for _ in range(2):  # the refused folder leaves nothing behind
        with pytest.raises(StudyError, match=rf"locks in .*{tmp_path}/a"):
            w.start(str(tmp_path / "b"), "parabola", {"seeds": [1]}, storage)
    again, _ = w.start(str(tmp_path / "a"), "parabola", {"seeds": [1]}, storage)
    assert again.study.trials[trial.number].state == TrialState.RUNNING


def test_two_workers_share_a_database(tmp_path):
    storage = f"sqlite:///{tmp_path}/trials.db"
    trials = run(partial(w.start, str(tmp_path), "killer", {}, storage), jobs=2)
    assert (tmp_path / "killed").exists()
    assert Counter(finished(trials)) == Counter(GRID)
    assert sum(entry["seed"] > 0 for entry in noted(tmp_path)) == len(GRID)


def test_a_database_serves_as_well(tmp_path):
    storage = f"sqlite:///{tmp_path}/trials.db"
    trials = run(partial(w.start, str(tmp_path), "parabola", {"seeds": [1]}, storage), jobs=1)
    assert Counter(finished(trials)) == Counter({(x, 1): 1 for x in (0.0, 1.0, 2.0, 3.0)})
    assert not (tmp_path / "trials.journal").exists()


def test_jobs_of_submitit_share_a_sweep(tmp_path):
    submitit = pytest.importorskip("submitit", reason="submitit is not installed")
    executor = submitit.AutoExecutor(folder=tmp_path / "log", cluster="local")
    executor.update_parameters(timeout_min=5)
    (tmp_path / "sweep").mkdir()
    begin = partial(w.start, str(tmp_path / "sweep"), "parabola", {"seeds": [1]})
    with pytest.MonkeyPatch.context() as patch:  # the job's interpreter must find the objective, as this one does
        patch.setenv("PYTHONPATH", str(Path(__file__).parent))
        jobs = [executor.submit(run, begin, jobs=1) for _ in range(2)]
        found = [job.result().finished() for job in jobs]
    assert [len(trials) for trials in found] == [4, 4]
    assert len(noted(tmp_path / "sweep")) == 4


def test_a_half_written_line_is_cut_off(tmp_path):
    run(partial(w.start, str(tmp_path), "parabola", {"seeds": [1]}), jobs=1)
    journal = tmp_path / "trials.journal"
    whole = journal.read_bytes()
    journal.write_bytes(whole + b'{"op_code":4,"wor')
    trials = Trials(w.planted(seeds=[1, 2]), tmp_path, "test")
    assert len(trials.finished()) == 4
    assert journal.read_bytes().startswith(whole)
    empty = tmp_path / "none"
    mend(empty)
    assert not empty.exists()


def test_locks_exclude(tmp_path):
    with exclusive(tmp_path / "x.lock"), claimed(tmp_path / "x.lock") as mine:
        assert not mine
    with claimed(tmp_path / "x.lock") as mine:
        assert mine
