"""A search on Optuna's journal: trials that any number of workers share, and that go on in a fresh clone.

A search is a list of points: fixed values, or free ones that the sampler draws. A worker holds the lock of the point
that it runs, which the operating system frees when the worker ends or dies; then the point is begun again.
"""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import optuna
import pandas as pd
import yaml
from filelock import FileLock, Timeout
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.exceptions import ExperimentalWarning
from optuna.samplers import PartialFixedSampler, TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock
from optuna.trial import FrozenTrial, TrialState

from study.base.errors import StudyError, explained
from study.base.files import read_csv, write_csv, write_json, write_text
from study.evaluation.records import read_record
from study.runner.processes import start_worker

# (values by parameter, number of the point) -> measures, such as "valid/ndcg@10".
Objective = Callable[[dict[str, Any], int], dict[str, float]]
Space = dict[str, dict[str, Any]]  # parameter -> {choices: [...]} or {low, high, log, type}
PAUSE = 0.5  # s: between two looks at points that others run
ATTEMPTS = 3  # times that worker processes are started, if one of them dies
LOG = logging.getLogger(__name__)


@dataclass
class Search:
    """The shared trials of one search.

    `key`: a hash of all that decides a trial; trials with another key are never mixed in.
    `folder`: of the journal and the locks of the points; workers on several machines share it.
    `points`: the fixed values of every trial, as `label` writes them; an empty one is free.
    `objective`: the measure that is maximised.
    `seed`: of the sampler. Point i is drawn with `seed` + i, so a resumed search equals an undisturbed one.
    `startup`: trials before the sampler (TPE, Bergstra et al. 2011) learns from those before it.
    `unfinished`: a table of the finished trials, kept until all are, for a clone without the journal.
    """

    name: str
    key: str
    folder: Path
    space: Space
    points: list[dict[str, Any]]
    objective: str
    seed: int
    startup: int = 10
    unfinished: Path | None = None
    study: optuna.Study = field(init=False, repr=False)

    def __post_init__(self) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        warnings.filterwarnings("ignore", category=ExperimentalWarning)
        self.folder.mkdir(parents=True, exist_ok=True)
        journal, name = self.folder / "trials.log", f"{self.name} {self.key}"
        try:
            lock = JournalFileSymlinkLock(str(journal))
            if _torn(journal):
                lock.acquire()  # no other worker is in the midst of a line
                try:
                    os.truncate(journal, journal.stat().st_size - _torn(journal))
                finally:
                    lock.release()
            storage = JournalStorage(JournalFileBackend(str(journal), lock))
            self.study = optuna.create_study(
                storage=storage, study_name=name, direction="maximize", load_if_exists=True
            )
        except ValueError as error:
            fix = "delete it; finished trials are read from the results"
            raise StudyError(f"the journal of trials cannot be read: {error}", file=journal, fix=fix) from error

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
        """Take the trials of a `table` into a study that has none: a clone without the journal goes on from there."""
        domains = distributions(self.space)
        with self._lock("restore", blocking=True):
            for row in table.to_dict("records") if not self.study.get_trials(deepcopy=False) else ():
                measures = {str(name): float(value) for name, value in row.items() if "/" in str(name)}
                made = optuna.create_trial(
                    params={name: read_value(domain, row[name]) for name, domain in domains.items()},
                    distributions=domains,
                    value=measures[self.objective],
                    user_attrs={"point": int(row["trial"]), "seconds": float(row["seconds"]), "measures": measures},
                )
                self.study.add_trial(made)

    def work(self, measure: Objective) -> None:
        """Run trials until all points are finished, by this worker or by others. Raises StudyError: one failed."""
        while missing := sorted({*range(len(self.points))} - self.finished().keys()):
            for point in missing:
                with suppress(Timeout), self._lock(str(point)):
                    if point not in self.finished():
                        self._run(measure, point)
                    break
            else:
                time.sleep(PAUSE)  # others run the last ones

    def _lock(self, name: str, *, blocking: bool = False) -> FileLock:
        return FileLock(self.folder / f"{self.key}-{name}.lock", blocking=blocking)

    def _run(self, measure: Objective, point: int) -> None:
        """One trial of a point whose lock this worker holds."""
        for trial in self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            if trial.user_attrs.get("point") == point:  # of a worker that died
                self.study.tell(trial.number, state=TrialState.FAIL)
        # Running trials count as bad ones, so that workers do not try the same place.
        sampler = TPESampler(seed=self.seed + point, n_startup_trials=self.startup, constant_liar=True)
        self.study.sampler = PartialFixedSampler(self.points[point], sampler)
        asked = self.study.ask()
        asked.set_user_attr("point", point)
        asked.set_user_attr("worker", os.getpid())
        values, started = suggest(asked, self.space), time.perf_counter()
        try:
            measures = measure(values, point)
        except Exception as error:
            if known := explained(error):
                raise known from error
            problem = f"trial {point} of {self.name} failed: {type(error).__name__}: {error}"
            LOG.exception(problem)
            raise StudyError(problem, fix="mend what the error names; the same command goes on from here") from error
        asked.set_user_attr("measures", measures)
        asked.set_user_attr("seconds", round(time.perf_counter() - started, 3))
        self.study.tell(asked, measures[self.objective])
        keep_unfinished(self)
        LOG.info("%s: %d of %d trials", self.name, len(self.finished()), len(self.points))


def _torn(journal: Path) -> int:
    """The bytes after the last whole line, which a full disk cut short; the next line would follow on them."""
    return len(journal.read_bytes().rpartition(b"\n")[2]) if journal.exists() else 0


def distributions(space: Space, place: str = "search", **where: Any) -> dict[str, BaseDistribution]:
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


def suggest(trial: optuna.Trial, space: Space) -> dict[str, Any]:
    """Ask for one value per parameter of a search space."""
    for name, domain in distributions(space).items():
        if isinstance(domain, CategoricalDistribution):
            trial.suggest_categorical(name, domain.choices)
        elif isinstance(domain, IntDistribution):
            trial.suggest_int(name, domain.low, domain.high, log=domain.log)
        elif isinstance(domain, FloatDistribution):
            trial.suggest_float(name, domain.low, domain.high, log=domain.log)
    return values_of(trial.params, space)


def values_of(params: dict[str, Any], space: Space) -> dict[str, Any]:
    """The values that the parameters of a trial stand for, in the order of the space."""
    choices = {name: {label(value): value for value in domain.get("choices", ())} for name, domain in space.items()}
    return {name: choices[name].get(params[name], params[name]) for name in space}


def label(value: Any) -> Any:
    """How the database and trials.csv write a choice: lists, which Optuna does not store, as JSON."""
    return json.dumps(value) if isinstance(value, list) else value


def run_search(
    start: Callable[[], tuple[Search, Objective]], *, jobs: int = 1, kept: pd.DataFrame | None = None
) -> Search:
    """Finish a search; returns it. One job works in this process, several are processes of their own.

    `start`: makes the search and the objective in a worker; must be importable there.
    `kept`: a table of finished trials for a study that has none (`Search.restore`).
    Raises StudyError: a trial failed, or workers died too often.
    """
    search, measure = start()
    if kept is not None:
        search.restore(kept)
    if jobs == 1:
        search.work(measure)
        return search
    spawn, words = multiprocessing.get_context("spawn"), (LOG.getEffectiveLevel(),)
    for _ in range(ATTEMPTS):
        with ProcessPoolExecutor(jobs, spawn, initializer=start_worker, initargs=words) as pool:
            try:
                for worker in as_completed([pool.submit(_work, start) for _ in range(jobs)]):
                    worker.result()
                return search
            except BrokenProcessPool:  # a signal ended a worker (a kill, too little memory)
                LOG.warning("a worker of %s died; its trial is begun again", search.name)
            except BaseException:
                for process in multiprocessing.active_children():
                    process.terminate()
                raise
    raise StudyError(f"workers of {search.name} died {ATTEMPTS} times", fix="the same command goes on from here")


def _work(start: Callable[[], tuple[Search, Objective]]) -> None:
    search, measure = start()
    search.work(measure)


def keep_unfinished(search: Search) -> None:
    """Write the finished trials beside the results, with the key of their search and every digit; lines of other
    searches stay until one of them is whole."""
    if search.unfinished is not None:
        others = read_table(search.unfinished)
        others = others[others["key"] != search.key] if len(others) else others
        table = pd.concat([others, search.table().assign(key=search.key)])
        write_text(search.unfinished, table.to_csv(index=False, lineterminator="\n"))


def read_table(path: Path) -> pd.DataFrame:
    """A table of trials; empty where there is none."""
    return read_csv(path, fix="delete it") if path.exists() else pd.DataFrame()


def was_stopped(folder: Path, key: str) -> bool:
    """Whether a folder of results holds trials of a search that was stopped."""
    unfinished = read_table(folder / "unfinished.csv")
    return len(unfinished) > 0 and bool((unfinished["key"] == key).any())


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
