"""A search on Optuna's storage: trials that any number of workers share, and that go on in a fresh clone.

A search is a list of points: fixed values, or free ones that the sampler draws. Optuna keeps the trials, finds dead
workers by their heartbeats and hands their trials on. Grids are enqueued, since `GridSampler` shuffles them and takes
a failed point for a visited one.
"""

from __future__ import annotations

import json
import logging
import math
import multiprocessing
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import optuna
import pandas as pd
import yaml
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.exceptions import ExperimentalWarning, StorageInternalError
from optuna.storages import RDBStorage, RetryHeartbeatStaleTrialCallback, fail_stale_trials
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy import event
from sqlalchemy.exc import SQLAlchemyError
from tqdm import tqdm

from study.errors import StudyError, explained
from study.evaluation.records import read_record
from study.files import read_csv, write_csv, write_json, write_text
from study.runner.processes import start_worker

# (values by parameter, number of the point) -> measures, such as "valid/ndcg@10".
Objective = Callable[[dict[str, Any], int], dict[str, float]]
HEARTBEAT, GRACE = 15, 60  # s: between two signs of life of a trial; silence after which its worker counts as dead
PAUSE = 0.5  # s: between two looks at trials that others run
LOG = logging.getLogger(__name__)


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
    `attempts`: how often a trial is begun whose workers die.
    `unfinished`: a table of the finished trials, kept until all are, for a clone without the database.
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
    unfinished: Path | None = None
    heartbeat: int = HEARTBEAT
    grace: int = GRACE
    backend: RDBStorage = field(init=False, repr=False)
    study: optuna.Study = field(init=False, repr=False)

    def __post_init__(self) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        warnings.filterwarnings("ignore", category=ExperimentalWarning)
        self.backend = open_storage(self.storage, self.heartbeat, self.grace, self.attempts)
        self.study = optuna.create_study(
            storage=self.backend, study_name=f"{self.name} {self.key}", direction="maximize", load_if_exists=True
        )

    def finished(self) -> dict[int, FrozenTrial]:
        """The finished trials by the number of their point, in its order."""
        complete = self.study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        found = {trial.user_attrs["point"]: trial for trial in complete}
        return {point: found[point] for point in range(len(self.points)) if point in found}

    def table(self) -> pd.DataFrame:
        """The finished trials: trial (its point), seconds, the measures, the values as `label` writes them."""
        return pd.DataFrame(
            {"trial": point, "seconds": trial.user_attrs["seconds"], **trial.user_attrs["measures"], **trial.params}
            for point, trial in self.finished().items()
        )

    def restore(self, table: pd.DataFrame) -> None:
        """Take the trials of a `table` into a study that has none: a clone without the database goes on from there."""
        if self.study.get_trials(deepcopy=False):
            return
        domains = distributions(self.space)
        for row in table.to_dict("records"):
            attributes: dict[str, Any] = {
                "point": int(row["trial"]),
                "seconds": float(row["seconds"]),
                "measures": {str(name): float(value) for name, value in row.items() if "/" in str(name)},
            }
            values = {name: read_value(domains[name], row[name]) for name in self.space}
            value = attributes["measures"][self.objective]
            self.study.add_trial(
                optuna.create_trial(params=values, distributions=domains, value=value, user_attrs=attributes)
            )

    def work(self, measure: Objective, done: Callable[[], object] = lambda: None) -> None:
        """Run trials until all points are finished, by this worker or by others. `done`: called after every trial.
        Raises StudyError: a trial ended with an error."""
        self._wait_for_dead()
        while self._enqueue_next():
            self.study.optimize(lambda trial: self._run(measure, trial), n_trials=1, gc_after_trial=True)
            done()

    def _wait_for_dead(self) -> None:
        """Wait until the trials of dead workers are found out, since what is drawn depends on earlier results."""
        since = time.monotonic()
        while (
            not all(self.points) and self._fail_dead(since) and time.monotonic() - since < self.grace + self.heartbeat
        ):
            time.sleep(PAUSE)

    def _fail_dead(self, since: float) -> list[FrozenTrial]:
        """Fail the trials of dead workers; returns those that run. `since`: when this worker began to wait."""
        fail_stale_trials(self.study)
        running = self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
        for trial in running if time.monotonic() - since > self.grace else ():
            if "worker" not in trial.user_attrs:  # killed before its first heartbeat, without which Optuna never knows
                self.study.tell(trial.number, state=TrialState.FAIL, skip_if_finished=True)
        return running

    def _enqueue_next(self) -> bool:
        """See that a trial is queued, and wait while others run the last ones; False once all points are finished."""
        since = time.monotonic()
        while True:
            running = self._fail_dead(since)
            trials = [trial for trial in self.study.get_trials(deepcopy=False) if trial.state != TrialState.FAIL]
            if any(trial.state == TrialState.WAITING for trial in trials):
                return True
            known = {trial.user_attrs.get("point") for trial in trials}
            missing = next((point for point in range(len(self.points)) if point not in known), None)
            if missing is not None:
                self.study.enqueue_trial(self.points[missing], user_attrs={"point": missing})
                return True
            if not running:
                return False
            time.sleep(PAUSE)

    def _run(self, measure: Objective, trial: optuna.Trial) -> float:
        point = trial.user_attrs.get("point", -1)
        earlier = self.study.get_trials(deepcopy=False)[: trial.number]
        alive = [other.user_attrs.get("point") for other in earlier if other.state != TrialState.FAIL]
        if point in alive or not 0 <= point < len(self.points):
            return math.nan  # two workers queued the same point; Optuna fails a trial without a number
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
        except Exception as error:
            if known := explained(error):
                raise known from error
            problem = f"trial {point} of {self.name} failed: {type(error).__name__}: {error}"
            LOG.exception(problem)
            raise StudyError(problem, fix="mend what the error names; the same command goes on from here") from error
        trial.set_user_attr("measures", measures)
        trial.set_user_attr("seconds", round(time.perf_counter() - started, 3))
        return measures[self.objective]


def local_storage(folder: Path) -> str:
    """The address of the SQLite file of a folder, which workers on this machine share."""
    folder.mkdir(parents=True, exist_ok=True)
    return f"sqlite:///{folder / 'trials.db'}"


def open_storage(address: str, heartbeat: int, grace: int, attempts: int) -> RDBStorage:
    """Optuna's storage, whose dead trials are begun again, as many times. Raises StudyError: it cannot be opened."""
    local = address.startswith("sqlite")
    settings = {"connect_args": {"timeout": 60, "isolation_level": None}} if local else {"pool_pre_ping": True}
    again = RetryHeartbeatStaleTrialCallback(max_retry=attempts)
    problem: Exception | None = None
    for pause in (0.2, 1, 0):  # two workers that make the tables of a new database at once get in each other's way
        try:
            opened = RDBStorage(
                address,
                settings,
                heartbeat_interval=heartbeat,
                grace_period=grace,
                heartbeat_stale_trial_callback=again,
            )
            if local:  # SQLite locks no rows, so a worker locks the file before it looks for a queued trial
                event.listen(opened.engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))
            return opened
        except (SQLAlchemyError, StorageInternalError, ImportError) as error:
            problem = error
            time.sleep(pause)
    reason = f"the database of trials cannot be opened: {str(problem).splitlines()[0]}"
    file = Path(address.removeprefix("sqlite:///"))
    if local and file.is_file():
        raise StudyError(reason, file=file, fix="delete it; finished trials are read from the results") from problem
    raise StudyError(reason, fix="see --storage in docs/scaling.md") from problem


def distributions(space: dict[str, dict[str, Any]], place: str = "search", **where: Any) -> dict[str, BaseDistribution]:
    """A search space as Optuna's. Raises StudyError: one that is none, with its key below `place`."""
    found: dict[str, BaseDistribution] = {}
    for name, domain in space.items():
        try:
            if "choices" in domain:
                found[name] = CategoricalDistribution([label(value) for value in domain["choices"]])
            else:
                kind = IntDistribution if domain.get("type") == "int" else FloatDistribution
                found[name] = kind(domain["low"], domain["high"], log=domain.get("log", False))
        except (KeyError, ValueError, TypeError) as error:
            reason = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
            problem = f"the search space of {name!r} is none: {reason}"
            fix = "choices: [...], or low and high, above 0 where log is true"
            raise StudyError(problem, column=f"{place}.{name}", fix=fix, **where) from error
    return found


def read_value(domain: BaseDistribution, written: Any) -> Any:
    """A cell of a table as the value of a distribution; six digits may lie beyond an end."""
    if not isinstance(domain, CategoricalDistribution):
        assert isinstance(domain, IntDistribution | FloatDistribution)
        inside = min(max(written, domain.low), domain.high)
        return int(inside) if isinstance(domain, IntDistribution) else float(inside)
    text = "None" if pd.isna(written) else str(written)
    if text in (names := [str(choice) for choice in domain.choices]):
        return domain.choices[names.index(text)]
    numbers = [choice for choice in domain.choices if isinstance(choice, int | float)]
    return min(numbers, key=lambda choice: abs(choice - float(written)))


def suggest(trial: optuna.Trial, space: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Ask for one value per parameter of a search space."""
    for name, domain in space.items():
        if "choices" in domain:
            trial.suggest_categorical(name, [label(value) for value in domain["choices"]])
        else:
            ask = trial.suggest_int if domain.get("type") == "int" else trial.suggest_float
            ask(name, domain["low"], domain["high"], log=domain.get("log", False))
    return values_of(trial.params, space)


def values_of(params: dict[str, Any], space: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The values that the parameters of a trial stand for, in the order of the space."""
    choices = {name: {label(value): value for value in domain.get("choices", ())} for name, domain in space.items()}
    return {name: choices[name].get(params[name], params[name]) for name in space}


def label(value: Any) -> Any:
    """How the database and trials.csv write a choice: lists, which Optuna does not store, as JSON."""
    return json.dumps(value) if isinstance(value, list) else value


def run_search(
    start: Callable[[], tuple[Search, Objective]], *, jobs: int = 1, kept: pd.DataFrame | None = None
) -> Search:
    """Finish a search with `jobs` workers; returns it.

    One job works in this process. Several are processes of their own; one that a signal ended is replaced, as often in
    all as the search allows attempts.

    `start`: makes the search and the objective in a worker; must be importable there.
    `kept`: a table of finished trials for a study that has none (`Search.restore`).
    Raises StudyError: a trial failed, or workers died too often.
    """
    search, measure = start()
    if kept is not None:
        search.restore(kept)
    count, quiet = len(search.finished()), not sys.stderr.isatty()
    with tqdm(total=len(search.points), initial=count, desc=search.name, unit="trial", disable=quiet) as bar:

        def show() -> None:
            nonlocal count
            if (now := len(search.finished())) > count:
                bar.update(now - count)
                count = now
                keep_unfinished(search)
                if quiet:
                    LOG.info("%s: %d of %d trials", search.name, now, len(search.points))

        if jobs == 1:
            search.work(measure, show)
        else:
            _share(search, start, jobs, show)
    return search


def _share(search: Search, start: Callable[[], object], jobs: int, show: Callable[[], object]) -> None:
    """Let worker processes finish a search; one that a signal ended (a kill, too little memory) is replaced."""
    spawn, left, words = multiprocessing.get_context("spawn"), search.attempts * jobs, (start, LOG.getEffectiveLevel())
    workers = [spawn.Process(target=_work, args=words) for _ in range(jobs)]
    try:
        for worker in workers:
            worker.start()
        while workers:
            time.sleep(PAUSE)
            show()
            for worker in [worker for worker in workers if not worker.is_alive()]:
                workers.remove(worker)
                if worker.exitcode == 0:
                    continue
                if (worker.exitcode or 0) > 0 or not left:
                    problem = f"a worker of {search.name} ended with exit code {worker.exitcode}"
                    raise StudyError(problem, fix="see the message above; the same command goes on from here")
                workers.append(spawn.Process(target=_work, args=words))
                workers[-1].start()
                left -= 1
    finally:
        for worker in workers:
            worker.terminate()
        for worker in workers:
            worker.join()


def _work(start: Callable[[], tuple[Search, Objective]], level: int) -> None:
    """The life of one worker process. Asked to end, it hands its trial back first."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    start_worker(level)
    try:
        search, measure = start()
        search.work(measure)
    except KeyboardInterrupt:
        sys.exit(130)
    except StudyError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(2)


def keep_unfinished(search: Search) -> None:
    """Write the finished trials beside the results, with the key of their search and every digit; lines of other
    searches stay."""
    if search.unfinished is not None:
        others = read_table(search.unfinished)
        others = others[others["key"] != search.key] if len(others) else others
        table = pd.concat([others, search.table().assign(key=search.key)])
        write_text(search.unfinished, table.to_csv(index=False, lineterminator="\n"))


def read_table(path: Path) -> pd.DataFrame:
    """A table of trials; empty where there is none."""
    return read_csv(path, fix="delete it") if path.exists() else pd.DataFrame()


def earlier_trials(folder: Path, key: str) -> pd.DataFrame:
    """The trials of a search that its folder of results holds: of a stopped one, or of a whole one."""
    unfinished, record = read_table(folder / "unfinished.csv"), folder / "record.json"
    if len(unfinished) and (found := unfinished[unfinished["key"] == key].drop(columns="key")).size:
        return found.dropna(axis="columns", how="all")
    if record.exists() and read_record(record).get("key") == key:
        return read_table(folder / "trials.csv")
    return pd.DataFrame()


def write_search(
    folder: Path, trials: pd.DataFrame, summary: dict[str, Any], record: dict[str, Any], by: str, *, exact: bool
) -> Path:
    """Write trials.csv, record.json and best.yaml; returns the folder. `by`: the command that chose. `exact`: with all
    digits, from which a search with more trials goes on as if it had not ended."""
    if exact:
        write_text(folder / "trials.csv", trials.to_csv(index=False, lineterminator="\n"))
    else:
        write_csv(folder / "trials.csv", trials)
    write_json(folder / "record.json", record)
    write_text(folder / "best.yaml", f"# Chosen by {by}\n{yaml.safe_dump(summary, sort_keys=False)}")
    (folder / "unfinished.csv").unlink(missing_ok=True)
    return folder
