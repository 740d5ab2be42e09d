"""A search: trials that any number of workers share, in one table from which they go on, also in a fresh clone.

A search is a list of points: fixed values, or free ones that Optuna's sampler draws. A worker holds the lock of the
point that it runs, which the operating system frees when the worker ends or dies; then the point is begun again.
"""

from __future__ import annotations

import json
import logging
import shutil
import time
from collections.abc import Callable, Iterable
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
import pandas as pd
import yaml
from filelock import FileLock, Timeout
from omegaconf import DictConfig
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.samplers import TPESampler

from study.base import paths
from study.base.errors import StudyError, explained
from study.base.files import read_csv, write_csv, write_json, write_text
from study.config.compose import format_for_record
from study.evaluation.records import read_record, record
from study.runner.processes import worker_pool

# (values by parameter, number of the point) -> measures, such as "valid/ndcg@10".
Objective = Callable[[dict[str, Any], int], dict[str, float]]
Space = dict[str, dict[str, Any]]  # parameter -> {choices: [...]} or {low, high, log, type}
PAUSE = 0.5  # s between two tries to get a point that others run
LOG = logging.getLogger(__name__)
optuna.logging.set_verbosity(optuna.logging.ERROR)


@dataclass(frozen=True)
class Search:
    """The shared trials of one search.

    `key`: a hash of all that decides a trial; searches with another key share none.
    `work`: the folder of the table of finished trials and of the locks, which workers on several machines share.
    `backup`: a copy of that table among the results until all trials are finished, for a clone without `work`.
    `points`: the fixed values of every trial, as `label` writes them; an empty one is free.
    `objective`: the measure that is maximised.
    `seed`: of the sampler. Point i is drawn with `seed` + i, so a resumed search equals an undisturbed one.
    `startup`: trials before the sampler (TPE, Bergstra et al. 2011) learns from those before it.
    """

    name: str
    key: str
    work: Path
    backup: Path
    space: Space
    points: list[dict[str, Any]]
    objective: str
    seed: int
    startup: int = 10

    @property
    def _file(self) -> Path:
        return self.work / f"{self.key}.csv"

    def _lock(self, name: str, timeout: float = -1) -> FileLock:
        self.work.mkdir(parents=True, exist_ok=True)
        return FileLock(self.work / f"{self.key}-{name}.lock", timeout=timeout)

    def table(self) -> pd.DataFrame:
        """The finished trials by point: trial (its point), seconds, the measures, the values as `label` writes them."""
        return pd.DataFrame(list(self._read_finished().values()))

    def _read_finished(self) -> dict[int, dict[str, Any]]:
        rows = {row["trial"]: row for row in read_trials(self._file)}
        return {point: rows[point] for point in range(len(self.points)) if point in rows}

    def params(self) -> dict[int, dict[str, Any]]:
        """Point -> values of its finished trial, as Optuna has them."""
        return {point: self._params(row) for point, row in self._read_finished().items()}

    def _params(self, row: dict[str, Any]) -> dict[str, Any]:
        return {name: read_value(domain, row[name]) for name, domain in distributions(self.space).items()}

    def begin(self, whole: Iterable[dict[str, Any]], *, again: bool = False) -> None:
        """Take the trials among the results where `work` has none: those of this search, which was stopped, or else of
        a `whole` one, as far as its points are the same.

        `again`: forget what `work` has, unless the search was stopped.
        """
        if again and not self.backup.exists():
            shutil.rmtree(self.work, ignore_errors=True)
        points = dict(enumerate(self.points))
        with self._lock("table"):
            rows = [row for row in whole if row["trial"] in points]
            same = [row for row in rows if points[row["trial"]].items() <= self._params(row).items()]
            if not self._file.exists() and (rows := read_trials(self.backup) or same):
                _write_rows(self._file, rows)

    def run(self, measure: Objective) -> None:
        """Run trials until all points are finished, by this worker or by others. Raises StudyError: one failed."""
        while missing := sorted({*range(len(self.points))} - self._read_finished().keys()):
            for point in missing:
                with suppress(Timeout), self._lock(str(point), timeout=0):
                    if point not in self._read_finished():
                        self._run(measure, point)
                    break
            else:
                time.sleep(PAUSE)  # others run the last ones

    def _run(self, measure: Objective, point: int) -> None:
        """One trial of a point whose lock this worker holds."""
        domains = distributions(self.space)
        sampler = TPESampler(seed=self.seed + point, n_startup_trials=self.startup)
        study = optuna.create_study(direction="maximize", sampler=sampler)
        for earlier in self._read_finished().values():
            parts = {"params": self._params(earlier), "distributions": domains, "value": earlier[self.objective]}
            study.add_trial(optuna.trial.create_trial(**parts))
        study.enqueue_trial(self.points[point])
        params, started = study.ask(domains).params, time.perf_counter()
        try:
            measures = measure(values_of(params, self.space), point)
        except Exception as error:
            if explanation := explained(error):
                raise explanation from error
            problem = f"trial {point} of {self.name} failed: {type(error).__name__}: {error}"
            LOG.exception(problem)
            raise StudyError(problem, fix="mend what the error names; the same command goes on from here") from error
        row = {"trial": point, "seconds": round(time.perf_counter() - started, 3), **measures, **params}
        with self._lock("table"):
            rows = [*read_trials(self._file), row]
            for file in (self._file, self.backup):
                _write_rows(file, rows)
        LOG.info("%s: %d of %d trials", self.name, len(self._read_finished()), len(self.points))


def read_trials(file: Path) -> list[dict[str, Any]]:
    """The rows of a table of trials, with every digit; none where there is no file."""
    if not file.exists():
        return []
    table = read_csv(file, fix="delete it", columns=["trial"], keep_default_na=False, na_values=[""])
    return [{str(name): value for name, value in row.items()} for row in table.to_dict("records")]


def _write_rows(file: Path, rows: list[dict[str, Any]] | pd.DataFrame) -> None:
    write_text(file, pd.DataFrame(rows).to_csv(index=False, lineterminator="\n"))


def distributions(space: Space, prefix: str = "search", **where: Any) -> dict[str, BaseDistribution]:
    """A search space as Optuna's. Raises StudyError: one that is none, with its key below `prefix`."""
    domains: dict[str, BaseDistribution] = {}
    for name, domain in space.items():
        try:
            if "choices" in domain:
                domains[name] = CategoricalDistribution([label(value) for value in domain["choices"]])
            else:
                kind = IntDistribution if domain.get("type") == "int" else FloatDistribution
                domains[name] = kind(domain["low"], domain["high"], log=domain.get("log", False))
        except (KeyError, ValueError, TypeError) as error:
            reason = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
            problem = f"the search space of {name!r} is none: {reason}"
            fix = "choices: [...], or low and high, above 0 where log is true"
            raise StudyError(problem, column=f"{prefix}.{name}", fix=fix, **where) from error
    return domains


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


def values_of(params: dict[str, Any], space: Space) -> dict[str, Any]:
    """The values that the parameters of a trial stand for, in the order of the space."""
    choices = {name: {label(value): value for value in domain.get("choices", ())} for name, domain in space.items()}
    return {name: choices[name].get(params[name], params[name]) for name in space}


def label(value: Any) -> Any:
    """How Optuna and trials.csv have a choice: lists, which Optuna does not store, as JSON."""
    return json.dumps(value) if isinstance(value, list) else value


def run_search(start: Callable[[], tuple[Search, Objective]], *, jobs: int = 1) -> pd.DataFrame:
    """Finish a search; returns its table. One job works in this process, several are processes of their own.

    `start`: makes the search and the objective in a worker; must be importable there.
    Raises StudyError: a trial failed, or a worker died.
    """
    search, measure = start()
    if jobs == 1:
        search.run(measure)
        return search.table()
    try:
        with worker_pool(jobs) as pool:
            for worker in [pool.submit(run_search, start) for _ in range(jobs)]:
                worker.result()
    except BrokenProcessPool as error:  # a signal ended a worker (a kill, too little memory)
        raise StudyError(f"a worker of {search.name} died", fix="the same command goes on from here") from error
    return search.table()


def unfinished_file(dataset: str, name: str, key: str) -> Path:
    """Where the trials of a search lie until it is whole: in git, and in no folder that a stage of DVC hashes."""
    return paths.results(dataset) / "unfinished" / f"{name}-{key}.csv"


def is_whole(folder: Path, key: str, trials: int) -> bool:
    """Whether a folder holds the results of a whole search with this key and so many trials."""
    if not all((folder / name).exists() for name in ("trials.csv", "best.yaml", "record.json")):
        return False
    about = read_record(folder / "record.json")
    return about.get("key") == key and about.get("trials") == trials


def whole_trials(folder: Path, key: str) -> list[dict[str, Any]]:
    """The trials in a folder of results, if they are of a search with this key."""
    file = folder / "record.json"
    return read_trials(folder / "trials.csv") if file.exists() and read_record(file).get("key") == key else []


def write_search(
    config: DictConfig,
    folder: Path,
    trials: pd.DataFrame,
    choice: dict[str, Any],
    searches: Iterable[Search],
    *,
    by: str,
    key: str,
    exact: bool,
    **about: Any,
) -> None:
    """Write trials.csv, record.json (with `about`) and best.yaml of searches that are whole.

    `by`: the command that chose. `exact`: with all digits, from which a search with more trials goes on as if it had
    not ended.
    """
    if exact:
        _write_rows(folder / "trials.csv", trials)
    else:
        write_csv(folder / "trials.csv", trials)
    search_record = record(profile=config.profile.name, key=key, config=format_for_record(config), **about, **choice)
    write_json(folder / "record.json", search_record)
    write_text(folder / "best.yaml", f"# Chosen by {by}\n{yaml.safe_dump(choice, sort_keys=False)}")
    for search in searches:
        search.backup.unlink(missing_ok=True)
