"""A search: trials that any number of workers share. None is lost, none runs twice, and a dead worker's is begun anew.

Optuna keeps the trials in a database and takes a worker for dead that is silent for too long (its heartbeats). A search
is a list of points: fixed values, or free ones that the sampler draws. A worker queues the first point that has no
trial, or a failed one alone. Two workers may queue the same point; only the trial with the lowest number counts.
"""

from __future__ import annotations

import contextlib
import json
import logging
import multiprocessing
import os
import signal
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import optuna
import pandas as pd
import yaml
from optuna.exceptions import ExperimentalWarning, StorageInternalError, UpdateFinishedTrialError
from optuna.storages import RDBStorage, fail_stale_trials
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy import event
from sqlalchemy.exc import SQLAlchemyError
from tqdm import tqdm

from study.errors import StudyError, explained
from study.files import write_csv, write_json, write_text
from study.runner.processes import end_with_parent

# (values by parameter, number of the point) -> measures, such as "valid/ndcg@10".
Objective = Callable[[dict[str, Any], int], dict[str, float]]
HEARTBEAT, GRACE = 15, 60  # s: between two signs of life of a trial; silence after which its worker counts as dead
PAUSE = 0.5  # s: between two looks at trials that others run
LOG = logging.getLogger(__name__)


class DroppedTrialError(Exception):
    """A trial without a result that does not end its worker."""


@dataclass
class Search:
    """The shared trials of one search.

    `name`: what a progress bar calls it.
    `key`: a hash of all that decides a trial; trials with another key are never mixed in.
    `storage`: address of the database (see `local_storage`).
    `space`: parameter -> ``{choices: [...]}`` or ``{low, high, log, type}``.
    `points`: the fixed values of every trial, as `label` writes them; an empty one is free.
    `objective`: the measure that is maximised.
    `seed`: of the sampler. Point i is drawn with `seed` + i, so a resumed search equals an undisturbed one.
    `startup`: trials before the sampler (TPE, Bergstra et al. 2011) learns from those before it.
    `attempts`: how often a worker begins a trial that ends with an error.
    `heartbeat`, `grace`: seconds.
    """

    name: str
    key: str
    storage: str
    space: dict[str, dict[str, Any]]
    points: list[dict[str, Any]]
    objective: str
    seed: int
    startup: int = 10
    attempts: int = 3
    heartbeat: int = HEARTBEAT
    grace: int = GRACE
    backend: RDBStorage = field(init=False, repr=False)
    study: optuna.Study = field(init=False, repr=False)
    errors: Counter[int] = field(init=False, repr=False, default_factory=Counter)

    def __post_init__(self) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.backend = _open(self.storage, self.heartbeat, self.grace)
        self.study = optuna.create_study(
            storage=self.backend,
            study_name=f"{self.name} {self.key}",
            direction="maximize",
            load_if_exists=True,
        )

    def finished(self) -> dict[int, FrozenTrial]:
        """The finished trials by the number of their point, in its order."""
        complete = self.study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        found = {trial.user_attrs["point"]: trial for trial in complete}
        return {point: found[point] for point in range(len(self.points)) if point in found}

    def work(self, measure: Objective, done: Callable[[], object] = lambda: None) -> None:
        """Run trials until all points are finished, by this worker or by others. `done`: called after every trial.
        Raises StudyError: raised by a trial, or a trial failed too often."""
        while self._queue_next():
            self.study.optimize(
                partial(self._trial, measure), n_trials=1, catch=(DroppedTrialError,), gc_after_trial=True
            )
            done()

    def wait_for_dead(self) -> None:
        """Wait until the trials of dead workers are found out, since the sampler's draws depend on earlier results."""
        deadline = time.monotonic() + self.grace + self.heartbeat
        while self._fail_dead() and time.monotonic() < deadline:
            time.sleep(PAUSE)

    def _fail_dead(self) -> int:
        """Fail the trials of dead workers; returns how many others are running."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            fail_stale_trials(self.study)
        running = self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
        oldest = datetime.now() - timedelta(seconds=self.grace)
        for trial in running:
            # Its worker died before the first heartbeat, without which Optuna never finds out.
            if "worker" not in trial.user_attrs and trial.datetime_start and trial.datetime_start < oldest:
                with contextlib.suppress(UpdateFinishedTrialError):
                    self.study.tell(trial.number, state=TrialState.FAIL, skip_if_finished=True)
        return len(running)

    def _queue_next(self) -> bool:
        """See that a trial is queued, and wait while others run the last ones; False once all points are finished."""
        while True:
            running = self._fail_dead()
            trials = self.study.get_trials(deepcopy=False)
            alive = {trial.user_attrs.get("point") for trial in trials if trial.state != TrialState.FAIL}
            missing = [point for point in range(len(self.points)) if point not in alive]
            if any(trial.state == TrialState.WAITING for trial in trials):
                return True
            if missing:
                self.study.enqueue_trial(self._values(missing[0], trials), user_attrs={"point": missing[0]})
                return True
            if not running:
                return False
            time.sleep(PAUSE)

    def _values(self, point: int, trials: list[FrozenTrial]) -> dict[str, Any]:
        """The fixed values of a point; those of a failed trial, so that it goes on from its own checkpoint."""
        drawn = (trial.params for trial in reversed(trials) if trial.user_attrs.get("point") == point)
        return next((values for values in drawn if values.keys() == self.space.keys()), self.points[point])

    def _trial(self, measure: Objective, trial: optuna.Trial) -> float:
        point, earlier = trial.user_attrs.get("point", -1), self.study.get_trials(deepcopy=False)[: trial.number]
        alive = [other.user_attrs.get("point") for other in earlier if other.state != TrialState.FAIL]
        if point in alive or not 0 <= point < len(self.points):
            raise DroppedTrialError
        # Running trials count as bad ones, so that workers do not try the same place.
        self.study.sampler = optuna.samplers.TPESampler(
            seed=self.seed + point, n_startup_trials=self.startup, constant_liar=True
        )
        values = suggest(trial, self.space)
        # Who has a worker has a heartbeat. Optuna's own thread may write its first one after the worker was killed.
        self.backend.record_heartbeat(trial._trial_id)
        trial.set_user_attr("worker", os.getpid())
        started = time.perf_counter()
        try:
            measures = measure(values, point)
        except StudyError:
            raise
        except Exception as error:
            if known := explained(error):
                raise known from error
            LOG.exception("%s: trial %d failed", self.name, point)
            self.errors[point] += 1
            if self.errors[point] < self.attempts:
                raise DroppedTrialError from error
            problem = f"trial {point} of {self.name} failed {self.attempts} times: {type(error).__name__}: {error}"
            raise StudyError(problem, fix="mend what the error names; the same command goes on from here") from error
        trial.set_user_attr("measures", measures)
        trial.set_user_attr("seconds", round(time.perf_counter() - started, 3))
        return measures[self.objective]


def local_storage(folder: Path) -> str:
    """The address of the SQLite file of a folder, which workers on this machine share."""
    folder.mkdir(parents=True, exist_ok=True)
    return f"sqlite:///{folder / 'trials.db'}"


def _open(storage: str, heartbeat: int, grace: int) -> RDBStorage:
    local = storage.startswith("sqlite")
    settings = {"connect_args": {"timeout": 60, "isolation_level": None}} if local else {"pool_pre_ping": True}
    problem: Exception | None = None
    for pause in (0.2, 1, 0):  # two workers that make the tables of a new database at once get in each other's way
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ExperimentalWarning)
                opened = RDBStorage(storage, settings, heartbeat_interval=heartbeat, grace_period=grace)
            if local:  # SQLite locks no rows, so a worker locks the file before it looks for a queued trial
                event.listen(opened.engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))
            return opened
        except (SQLAlchemyError, StorageInternalError, ImportError) as error:
            problem = error
            time.sleep(pause)
    reason = str(problem).splitlines()[0]
    raise StudyError(f"the database of trials cannot be opened: {reason}", fix="see --storage in docs/scaling.md")


def suggest(trial: optuna.Trial, space: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Ask for one value per parameter of a search space. Raises StudyError: a domain has neither choices nor bounds."""
    for name, domain in space.items():
        if "choices" in domain:
            trial.suggest_categorical(name, [label(value) for value in domain["choices"]])
        elif "low" in domain and "high" in domain:
            ask = trial.suggest_int if domain.get("type") == "int" else trial.suggest_float
            ask(name, domain["low"], domain["high"], log=domain.get("log", False))
        else:
            problem = f"the search space of {name!r} is neither choices nor low and high"
            raise StudyError(problem, column=f"search.{name}", fix="see conf/system")
    return values_of(trial.params, space)


def values_of(params: dict[str, Any], space: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The values that the parameters of a trial stand for, in the order of the space."""
    choices = {name: {label(value): value for value in domain.get("choices", ())} for name, domain in space.items()}
    return {name: choices[name].get(params[name], params[name]) for name in space}


def label(value: Any) -> Any:
    """How the database and trials.csv write a choice: lists, which Optuna does not store, as JSON."""
    return json.dumps(value) if isinstance(value, list) else value


def run_search(start: Callable[[], tuple[Search, Objective]], *, jobs: int = 1) -> Search:
    """Finish a search with `jobs` workers; returns it.

    One job works in this process. Several are processes of their own; one that a signal ended (a kill, too little
    memory) is replaced, as often in all as the search allows attempts.

    `start`: makes the search and the objective in a worker; must be importable there.
    Raises StudyError: raised by a trial, a trial failed too often, or workers died too often.
    """
    search, measure = start()
    if not all(search.points):
        search.wait_for_dead()
    with tqdm(total=len(search.points), desc=search.name, unit="trial", disable=not sys.stderr.isatty()) as bar:

        def show() -> None:
            bar.update(len(search.finished()) - bar.n)

        show()
        if jobs == 1:
            search.work(measure, show)
        else:
            _share(search, start, jobs, show)
    return search


def _share(search: Search, start: Callable[[], object], jobs: int, show: Callable[[], object]) -> None:
    """Let worker processes finish a search."""
    spawn, replaced = multiprocessing.get_context("spawn"), 0

    def begin() -> BaseProcess:
        worker = spawn.Process(target=_worker, args=(start,))
        worker.start()
        return worker

    workers: list[BaseProcess] = [begin() for _ in range(jobs)]
    try:
        while workers:
            time.sleep(PAUSE)
            show()
            for worker in [worker for worker in workers if not worker.is_alive()]:
                workers.remove(worker)
                if worker.exitcode == 0:
                    continue
                if (worker.exitcode or 0) > 0 or replaced >= search.attempts * jobs:
                    problem = f"a worker of {search.name} ended with exit code {worker.exitcode}"
                    raise StudyError(problem, fix="see the message above; the same command goes on from here")
                workers.append(begin())
                replaced += 1
    finally:
        for worker in workers:
            worker.terminate()
        for worker in workers:
            worker.join()


def _worker(start: Callable[[], tuple[Search, Objective]]) -> None:
    """The life of one worker process. Asked to end, it hands its trial back first."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    end_with_parent()
    try:
        search, measure = start()
        search.work(measure)
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        if (known := explained(error)) is None:
            raise
        sys.stderr.write(f"error: {known}\n")
        sys.exit(2)


def write_search(folder: Path, trials: pd.DataFrame, summary: dict[str, Any], record: dict[str, Any], by: str) -> Path:
    """Write trials.csv, record.json and best.yaml; returns the folder. `by`: the command that chose."""
    write_csv(folder / "trials.csv", trials)
    write_json(folder / "record.json", record)
    write_text(folder / "best.yaml", f"# Chosen by {by}\n{yaml.safe_dump(summary, sort_keys=False)}")
    return folder
