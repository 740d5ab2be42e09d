"""Every row of a data set that is not in git: those that are up to date stay, the others are searched and run."""

from __future__ import annotations

import logging

from omegaconf import DictConfig
from tqdm import tqdm

from study import paths
from study.config.compose import load
from study.errors import StudyError
from study.evaluation.records import read_record
from study.files import write_text
from study.pipeline.plan import Row, rows, under
from study.runner.fingerprint import inputs
from study.runner.freshness import CURRENT, state
from study.runner.outputs import Outputs
from study.runner.rows import run
from study.search.tune import tune

LOG = logging.getLogger(__name__)


def run_all(config: DictConfig) -> list[str]:
    """Make every row of the configured data set that is missing or stale.

    A row that fails is named; the others are made all the same.

    Returns: what failed, one text a row.
    """
    dataset, profile = config.dataset.name, config.profile.name
    failed: list[str] = []
    for row, settings in tqdm(list(rows(dataset)), desc=f"rows of {dataset}", unit="row", disable=None):
        try:
            if settings.system.tuned is not None and settings.system.search:
                _tune(row, under(settings, settings.system.tuned), profile)
            if not _current(row):
                run(load([*_names(row, profile), f"protocol={row.protocol}"]), replace=True)
        except StudyError as error:
            failed.append(f"{row.system} under {row.protocol}: {error.reason}")
            LOG.error("FAILED: %s", failed[-1])
    return failed


def _names(row: Row, profile: str) -> list[str]:
    return [f"dataset={row.dataset}", f"system={row.system}", f"profile={profile}"]


def _current(row: Row) -> bool:
    """Whether the row's files are there and today's settings, code and data would make them again."""
    outputs = Outputs.of(row.dataset, row.protocol, row.system)
    if not all(path.exists() for path in (outputs.per_task, outputs.top10, outputs.record)):
        return False
    return state(read_record(outputs.record), {})[0] == CURRENT


def _tune(row: Row, config: DictConfig, profile: str) -> None:
    """Search the system's settings unless the same search was done before."""
    done = paths.cache() / "tuned" / row.dataset / f"{row.system}.txt"
    key = f"{inputs(config)} {profile} {config.system.search}"
    best = paths.results(row.dataset) / "sweeps" / row.system / "best.yaml"
    if best.exists() and done.exists() and done.read_text(encoding="utf-8") == key:
        return
    tune(load([*_names(row, profile), f"protocol={config.protocol.name}"]), replace=True)
    write_text(done, key)
