"""A sweep from its name to its tables in results/<dataset>/sweeps/<name>.

Always trials.csv, best.yaml and record.json; per_task.csv.xz and separation.csv (`study.search.details`) where the
trainings are kept and test tasks are measured.
"""

from __future__ import annotations

import hashlib
import json
import logging
import sys
import time
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path
from typing import Any

import pandas as pd
import yaml
from omegaconf import DictConfig, OmegaConf
from tqdm import tqdm

from study import paths
from study.config.compose import plain
from study.errors import StudyError
from study.evaluation.metrics import PAPER_METRICS
from study.evaluation.records import record
from study.files import write_csv, write_json, write_text
from study.runner.inputs import load_inputs
from study.runner.processes import limit_threads
from study.runner.provenance import require_same_profile
from study.search import details
from study.search.fits import fit_key, fitted, measures, training_seconds, with_values
from study.search.fusion import PARAMETER, fusion_sweep
from study.search.rows import chosen, in_order, row_of, timing
from study.search.settings import Sweep, load
from study.search.trials import Objective, Trials
from study.search.workers import run

# Where the joint search leaves its choice: the tuned values of this system (`tuned:` in its yaml).
TUNED = {"joint": "t2mrec_joint"}
# What changes no trial, so that trials outlive a change of it. Three keys enter the hash as constants instead of being
# left out, so that the trials of earlier searches, which had these values, are still found.
UNHASHED = ("title", "place", "trials")
CONSTANT = {"paper_best": None, "attempts": 3, "keep_fits": False}
LOG = logging.getLogger(__name__)


def folder_of(dataset: str, name: str) -> Path:
    """Where the results of a sweep lie."""
    return paths.results(dataset) / "sweeps" / TUNED.get(name, name)


@cache
def _inputs(settings: str) -> Any:
    """Data and split, read once per worker."""
    config = OmegaConf.create(json.loads(settings))
    limit_threads(config.profile.threads)
    return load_inputs(config.dataset.name, config.protocol.name)


def measure_trial(settings: str, keep: bool, parts: list[str], values: dict[str, Any], seed: int) -> dict[str, float]:
    """Train with the given settings and seed, and measure on every part.

    Args:
        settings: the composed configuration as JSON.
    """
    config = with_values(OmegaConf.create(json.loads(settings)), values)
    data, split = _inputs(settings)
    system = fitted(config, data, split, seed=seed, keep=keep)
    return {name: value for part in parts for name, value in measures(system, data, split, part, seed=seed).items()}


def start(name: str, settings: str, storage: str | None) -> tuple[Trials, Objective]:
    """The shared trials of a sweep and what measures one; called in every worker."""
    sweep, config = load(name), OmegaConf.create(json.loads(settings))
    key = sweep_key(sweep, config)
    folder = paths.cache() / "sweeps" / config.dataset.name / name / key
    return Trials(sweep, folder, key, storage), partial(measure_trial, settings, sweep.keep_fits, sweep.parts)


def sweep_key(sweep: Sweep, config: DictConfig) -> str:
    """A hash of what decides the trials: what is varied and measured, and code, data and settings of the system."""
    described = {name: value for name, value in asdict(sweep).items() if name not in UNHASHED} | CONSTANT
    return hashlib.sha256((json.dumps(described, sort_keys=True) + fit_key(config)).encode()).hexdigest()[:16]


def sweep(name: str, config: DictConfig, *, jobs: int = 1, storage: str | None = None, replace: bool = False) -> Path:
    """Run a sweep and write its tables; returns their folder. A stopped sweep goes on where it stood.

    Args:
        config: composed with the sweep's system; `dataset`, `protocol` and `profile` are the user's.
        jobs: workers, each in a process of its own.
        storage: an Optuna database address instead of a journal file.
        replace: also replace results that were made under another profile.

    Raises:
        StudyError: the sweep or the configuration is wrong, or a trial failed too often.
    """
    found = load(name)
    if jobs < 1:
        raise StudyError(f"{jobs} workers", fix="give --jobs 1 or more")
    if config.system.name != found.system:
        raise StudyError(
            f"the sweep {name} varies {found.system}, not {config.system.name}",
            fix=f"leave out system=..., or write a sweep for {config.system.name}",
        )
    if config.protocol.name != "cold":
        raise StudyError(f"sweeps are chosen and reported under cold, not {config.protocol.name}", fix="protocol=cold")
    folder = folder_of(config.dataset.name, name)
    if not replace:
        require_same_profile(folder / "record.json", config)
    # A wrong name in `space` is an error before the first training, not after it.
    for parameter in found.space:
        if OmegaConf.select(config, f"system.model.{parameter}") is None:
            raise StudyError(
                f"{found.system} has no setting {parameter!r}",
                file=Sweep.file(name),
                column="space",
                fix=f"see conf/system/{found.system}.yaml",
            )
    if found.kind == "scores":
        if jobs > 1 or storage is not None:
            LOG.warning(
                "%s has one training per seed and no trials to share: one process measures all of it, without "
                "--jobs and --storage",
                name,
            )
        table, facts = _scores(found, config)
    else:
        trials = run(partial(start, name, json.dumps(plain(config)), storage), jobs=jobs)
        table = pd.DataFrame([row_of(found, trial) for trial in trials.finished()])
        if found.kind == "grid":
            table = in_order(found, table)
        if found.kind == "grid" and found.keep_fits:
            table["seconds"] = [
                training_seconds(with_values(config, {key: row[key] for key in found.space}), row["seed"])
                for row in table.to_dict("records")
            ]
        facts = timing(found, table)
    _write(found, config, folder, table, facts)
    if found.keep_fits and found.kind != "search" and "test" in found.parts:
        details.write(found, config, folder, chosen(found, table)["values"])
    return folder


def _scores(sweep: Sweep, config: DictConfig) -> tuple[pd.DataFrame, dict[str, Any]]:
    """The trials of a sweep over the fusion weight, and the seconds of scoring and ranking, by the clock and of
    the processor (which other work on the machine does not lengthen), without the trainings."""
    if list(sweep.space) != [PARAMETER]:
        raise StudyError(
            f"only {PARAMETER} can be varied without training",
            file=Sweep.file(sweep.name),
            column="space",
            fix="kind: grid",
        )
    limit_threads(config.profile.workers * config.profile.threads)
    data, split = load_inputs(config.dataset.name, config.protocol.name)
    weights, rows, seconds, processor = sweep.space[PARAMETER]["choices"], [], 0.0, 0.0
    tasks = sum(len(split.tasks(part)) for part in sweep.parts)
    with tqdm(
        total=tasks * len(sweep.seeds), desc=f"sweep {sweep.name}", unit="task", disable=not sys.stderr.isatty()
    ) as bar:
        for seed in sweep.seeds:
            system = fitted(config, data, split, seed=seed, keep=sweep.keep_fits)
            before = time.process_time()
            found, took = fusion_sweep(system, data, split, weights, sweep.parts, done=bar.update)
            rows += [{"seed": seed, "seconds": round(took / len(found), 3)} | row for row in found]
            seconds, processor = seconds + took, processor + time.process_time() - before
    facts = {"seconds": round(seconds, 3), "processor_seconds": round(processor, 3), "tasks": tasks}
    return in_order(sweep, pd.DataFrame(rows)), facts


def _write(sweep: Sweep, config: DictConfig, folder: Path, trials: pd.DataFrame, facts: dict[str, Any]) -> None:
    order = ["trial", "seed", *sweep.space, *(f"{part}/{name}" for part in sweep.parts for name in PAPER_METRICS)]
    table = trials.sort_values("trial")[[*order, "seconds"]]
    summary = {
        "system": TUNED.get(sweep.name, sweep.system),
        "sweep": sweep.name,
        "protocol": config.protocol.name,
        "objective": f"valid/{sweep.objective}",
        "trials": len(table),
        **facts,
        **chosen(sweep, table),
    }
    write_csv(folder / "trials.csv", table)
    made = record(config=plain(config), dataset=config.dataset.name, profile=config.profile.name, **summary)
    write_json(folder / "record.json", made)
    head = f"# Chosen by `study sweep {sweep.name}` on valid/{sweep.objective}.\n"
    write_text(folder / "best.yaml", head + yaml.safe_dump(summary, sort_keys=False))
