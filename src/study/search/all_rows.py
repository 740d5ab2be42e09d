"""`study run --all`: every row of a data set that is missing or stale, tuned first where it takes tuned values."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from omegaconf import DictConfig
from tqdm import tqdm

from study.base import paths
from study.base.errors import StudyError
from study.base.files import write_json
from study.base.registry import OWN, choices, folder_of, left_out
from study.base.settings import read_yaml
from study.config.changes import change_settings, with_tuned_values
from study.config.compose import load
from study.evaluation.records import read_record
from study.reranking.replies import awaits_replies
from study.runner.cluster import Launcher, run_seeds
from study.runner.devices import on_trainer, uses_gpu
from study.runner.identity import data_hash, short_hash
from study.runner.own_system import require_sound
from study.runner.provenance import CURRENT, require_own_row, state
from study.runner.row_store import find_record
from study.runner.rows import run_row
from study.search.sweep import TUNED, is_swept, load_sweep, sweep
from study.search.sweep import folder_of as folder_of_sweep
from study.search.tune import is_tuned, sweep_folder, tune

LOG = logging.getLogger(__name__)


def datasets() -> list[str]:
    """The data sets whose tasks are ranked against servers (those that name protocols)."""
    return [name for name in choices("dataset") if load([f"dataset={name}"]).dataset.get("protocols")]


def rows(overrides: list[str], broken: list[str] | None = None) -> Iterator[DictConfig]:
    """The configuration of every row that a data set asks for, without tuned values.

    `overrides`: Hydra's, as for one row; ``system=`` and ``protocol=`` leave the others out.
    `broken`: takes what is wrong with a system's settings, which then stop no other system's rows.
    Raises StudyError: settings of a system that is not named, or, without `broken`, a system that cannot run;
        no GPU for `trainer`.
    """
    given = dict(word.split("=", 1) for word in overrides if "=" in word)
    if "system" not in given and (one := next((key for key in given if key.lstrip("+~").startswith("system.")), None)):
        raise StudyError(f"{one} is a setting of one system", column=one, fix="add system=NAME")
    named = "system" in given
    words = [word for word in overrides if not word.startswith("system=")]
    uses_gpu(load(overrides).trainer.accelerator)  # a wrong override is one error, and not one for every system
    for name in [given["system"]] if named else choices("system"):
        try:
            config = load([*words, f"system={name}"])
        except StudyError as error:
            if broken is None:
                raise
            broken.append(f"{name}: {error.reason}")
            LOG.error("FAILED: %s", error)
            continue
        system = config.system
        if named:
            require_own_row(config)
        elif left_out(name, system.family, list(config.dataset.leave_out)):
            if folder_of(name) == OWN:
                where = f"leave_out of conf/dataset/{config.dataset.name}.yaml"
                LOG.info("%s is not among the rows (%s); study run system=%s makes its row", name, where, name)
            continue
        elif awaits_replies(config.dataset.name, system):
            continue
        for protocol in [given["protocol"]] if "protocol" in given else config.dataset.protocols:
            if protocol in system.protocols:
                yield under(config, protocol)


def under(config: DictConfig, protocol: str) -> DictConfig:
    """The configuration under another protocol."""
    if config.protocol.name == protocol:
        return config
    settings = read_yaml(paths.conf() / "protocol" / f"{protocol}.yaml")
    return change_settings(config, {"protocol": settings | {"name": protocol}}, merge=False)


class Job(NamedTuple):
    """One row, or the search for tuned values that comes before it."""

    config: DictConfig
    searches: bool = False
    sweep: str | None = None  # the sweep that searches, where it is not `tune`

    @property
    def name(self) -> str:
        """As messages name it."""
        name = f"{self.config.system.name} under {self.config.protocol.name}"
        return f"sweep {self.sweep}" if self.sweep else f"tuning of {name}" if self.searches else name

    def is_current(self) -> bool:
        """Whether the committed results are those that it would have."""
        if self.searches:
            return is_swept(self.sweep, self.config) if self.sweep else is_tuned(self.config)
        return is_current(self.config)

    def do(self, *, again: bool) -> None:
        """Make the row or the search, whatever profile earlier results were made under. `again`: trials of a finished
        search, too."""
        if self.sweep:
            sweep(self.sweep, self.config, jobs=self.config.profile.workers, replace=True, again=again)
        elif self.searches:
            tune(self.config, replace=True, again=again)
        else:
            run_row(on_trainer(self.config), replace=True)

    def hours(self) -> float | None:
        """About how long it takes, by what it took; None without a record."""
        dataset, system, workers = self.config.dataset.name, self.config.system, self.config.profile.workers
        if self.searches:
            folder = folder_of_sweep(dataset, self.sweep) if self.sweep else sweep_folder(self.config)
            record_file = folder / "record.json"
            return float(read_record(record_file)["seconds"]) / 3600 if record_file.exists() else None
        record = find_record(dataset, self.config.protocol.name, system.name)
        if record is None:
            return None
        mean = sum(seed["seconds_fit"] + seed["seconds_score"] for seed in record["seeds"]) / len(record["seeds"])
        return float(mean * len(system.seeds) / (min(workers, len(system.seeds)) if system.trains else 1) / 3600)


def search_for(row: DictConfig, overrides: list[str]) -> Job | None:
    """The search that chooses the values which a row takes, if it takes any."""
    for name, system in TUNED.items():
        if system == row.system.name:
            words = [word for word in overrides if not word.startswith(("system=", "protocol="))]
            by = load_sweep(name)
            return Job(load([*words, f"system={by.system}", f"protocol={by.protocol}"]), True, name)
    return Job(under(row, row.system.tuned), searches=True) if row.system.tuned and row.system.search else None


def summary(jobs: list[Job]) -> str:
    """How many rows and searches there are, and about how many hours they take by the records of earlier ones."""
    hours = [value for value in (job.hours() for job in jobs) if value is not None]
    searches = sum(job.searches for job in jobs)
    rows = len(jobs) - searches
    text = f"{rows} row{'s' * (rows != 1)} and {searches} search{'es' * (searches != 1)}"
    text += f", about {sum(hours):.1f} hours by earlier records" if hours else ""
    return text + (f"; {len(jobs) - len(hours)} of them have no record" if len(hours) < len(jobs) else "")


def due(overrides: list[str], failed: list[str], *, every: bool = False, dry: bool = False) -> list[Job]:
    """What is missing or stale, each search before the rows that take its values. `every`: what is current, too.
    `failed`: takes what cannot be asked about. `dry`: write nothing. Raises StudyError: the data are not prepared."""
    LOG.info("comparing rows and searches with their records")  # a minute of a slow processor
    jobs, stale = list[Job](), dict[str, bool]()  # systems that compute something else, or whose values are due
    for number, row in enumerate(rows(overrides, failed)):
        name = row.system.name
        if number == 0:
            data_hash(row.dataset.name)
        if row.trainer.accelerator != "cpu" and not row.system.trains:
            continue
        with naming(Job(row).name, failed):
            if name not in stale:
                stale[name] = require_sound(name, store=not dry)
                search = search_for(row, overrides)
                if search is not None and (every or stale[name] or not search.is_current()):
                    jobs.append(search)
                    stale[name] = True
            if every or stale[name] or not is_current(row):
                jobs.append(Job(row))
    return jobs


def is_current(config: DictConfig) -> bool:
    """Whether the row has all its parts, and its settings, code and data would make them again."""
    try:
        config = with_tuned_values(on_trainer(config))
    except StudyError:  # tuned values are missing: running the row says so
        return False
    record = find_record(config.dataset.name, config.protocol.name, config.system.name)
    return record is not None and record["profile"] == config.profile.name and state(record, config)[0] == CURRENT


def run_all(overrides: list[str], launcher: Launcher = "local", *, replace: bool = False) -> list[str]:
    """Make every row of a data set that is missing or stale. A row that fails is named; the others are made all the
    same. Returns: what failed, one text a row.

    `overrides`: as for `rows`. `launcher`: see `study.runner.cluster`.
    `replace`: make every row again, without anything that earlier trainings left.
    """
    failed = list[str]()
    if jobs := due(overrides, failed, every=replace):
        LOG.info("missing or stale: %s", summary(jobs))
    left = None
    if replace:  # a note of what is left to make, by which a stopped one goes on
        dataset = load(overrides).dataset.name
        left = paths.cache() / "replace" / f"{dataset}-{short_hash(overrides)}.json"
        if not left.exists() or not _names(left):
            for folder in (f"runs/{dataset}", f"tune/{dataset}", f"sweeps/{dataset}", "quantisers", "recbole"):
                shutil.rmtree(paths.cache() / folder, ignore_errors=True)
            write_json(left, [job.name for job in jobs])
        jobs = [job for job in jobs if job.name in _names(left)]
    if launcher != "local":
        _do([job for job in jobs if job.searches], failed, left)
        jobs = [job for job in jobs if not job.searches]
        run_seeds([on_trainer(job.config) for job in jobs], launcher, replace=True)
    _do(jobs, failed, left)
    return failed


def _names(note: Path) -> list[str]:
    return list(json.loads(note.read_text(encoding="utf-8")))


def tune_all(overrides: list[str]) -> list[str]:
    """Run every search for tuned values that is missing or stale. Returns: what failed, one text a search."""
    failed = list[str]()
    paths.tuned(load(overrides).dataset.name, "").mkdir(parents=True, exist_ok=True)  # DVC asks for it in any case
    if jobs := due(overrides, list[str]()):  # the rows follow in a stage of their own, for which this is the first sign
        LOG.info("missing or stale: %s", summary(jobs))
    _do([job for job in jobs if job.searches], failed)
    return failed


def _do(jobs: list[Job], failed: list[str], left: Path | None = None) -> None:
    """Do jobs. `left`: the note of what a ``--replace`` has to make, the trials of finished searches among it."""
    for number, job in enumerate(bar := tqdm(jobs, desc="rows", unit="row", disable=None), 1):
        if bar.disable:
            LOG.info("%d of %d: %s", number, len(jobs), job.name)
        with naming(job.name, failed):
            job.do(again=left is not None)
            if left is not None:
                write_json(left, [name for name in _names(left) if name != job.name])


@contextmanager
def naming(name: str, failed: list[str]) -> Iterator[None]:
    """Name what fails, and go on."""
    try:
        yield
    except StudyError as error:
        failed.append(f"{name}: {error.reason}")
        LOG.error("FAILED: %s", failed[-1])
