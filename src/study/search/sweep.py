"""`study sweep`: a sweep from its name to its tables in results/<dataset>/sweeps/<name>.

Always trials.csv, best.yaml and record.json; per_task.csv.xz and separation.csv (`study.search.fits`) where the
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
from omegaconf import DictConfig, OmegaConf
from tqdm import tqdm

from study import paths
from study.config.compose import plain
from study.config.registry import system_file, with_values
from study.errors import StudyError
from study.evaluation.metrics import PAPER_METRICS
from study.evaluation.records import record
from study.runner.inputs import load_inputs
from study.runner.processes import limit_threads
from study.runner.provenance import require_same_profile
from study.search import fits
from study.search.fits import FUSION_WEIGHT, fit_key, fitted, measure_fusion_weights, training_seconds
from study.search.settings import Sweep, chosen, load_sweep
from study.search.trials import Objective, Search, local_storage, run_search, write_search

# Where the joint search leaves its choice: the tuned values of this system (`tuned:` in its yaml).
TUNED = {"joint": "t2mrec_joint"}
# What changes no trial, so that trials outlive a change of it.
UNHASHED = ("title", "place", "trials", "paper_best", "attempts", "keep_fits")
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


def measure_trial(sweep: Sweep, settings: str, values: dict[str, Any], point: int) -> dict[str, float]:
    """Train with the values of a trial, its seed among them, and measure on every part. `settings`: the composed
    configuration as JSON."""
    own = sweep.settle({name: values[name] for name in sweep.space})
    config, (data, split) = with_values(OmegaConf.create(json.loads(settings)), own), _inputs(settings)
    system = fitted(config, data, split, seed=values["seed"], keep=sweep.keep_fits)
    parts = (fits.measures(system, data, split, part, seed=values["seed"]) for part in sweep.parts)
    return {name: value for part in parts for name, value in part.items()}


def start(name: str, settings: str, storage: str | None) -> tuple[Search, Objective]:
    """The shared trials of a sweep and what measures one; called in every worker."""
    sweep, config = load_sweep(name), OmegaConf.create(json.loads(settings))
    search = Search(
        name=f"sweep {name}",
        key=sweep_key(sweep, config),
        storage=storage or local_storage(paths.cache() / "sweeps" / config.dataset.name / name),
        space=sweep.space | {"seed": {"choices": sweep.seeds}},
        points=sweep.points(),
        objective=f"valid/{sweep.objective}",
        seed=sweep.sampler_seed,
        attempts=sweep.attempts,
    )
    return search, partial(measure_trial, sweep, settings)


def sweep_key(sweep: Sweep, config: DictConfig) -> str:
    """A hash of what decides the trials: what is varied and measured, and code, data and settings of the system."""
    described = {name: value for name, value in asdict(sweep).items() if name not in UNHASHED}
    return hashlib.sha256((json.dumps(described, sort_keys=True) + fit_key(config)).encode()).hexdigest()[:16]


def sweep(name: str, config: DictConfig, *, jobs: int = 1, storage: str | None = None, replace: bool = False) -> Path:
    """Run a sweep and write its tables; returns their folder. A stopped sweep goes on where it stood.

    `config`: composed with the sweep's system; `dataset`, `protocol` and `profile` are the user's.
    `jobs`: workers, each in a process of its own.
    `storage`: address of a database for the trials, instead of a file in .cache.
    `replace`: also replace results that were made under another profile.
    Raises StudyError: the sweep or the configuration is wrong, or a trial failed too often.
    """
    found = load_sweep(name)
    folder = folder_of(config.dataset.name, name)
    _require_sweepable(found, config, jobs)
    if not replace:
        require_same_profile(folder / "record.json", config)
    if found.kind == "scores":
        if jobs > 1 or storage is not None:
            LOG.warning("%s has no trials to share: one process measures it, without --jobs and --storage", name)
        table, facts = _scores(found, config)
    else:
        search = run_search(partial(start, name, json.dumps(plain(config)), storage), jobs=jobs)
        table = pd.DataFrame(
            {"trial": point, "seconds": trial.user_attrs["seconds"], **trial.params, **trial.user_attrs["measures"]}
            for point, trial in search.finished().items()
        )
        if found.kind == "grid" and found.keep_fits:
            values = table[list(found.space)].to_dict("records")
            own = [with_values(config, {str(name): value for name, value in row.items()}) for row in values]
            table["seconds"] = [training_seconds(each, seed) for each, seed in zip(own, table["seed"], strict=True)]
        facts = {"seconds": round(float(table["seconds"].sum()), 1)}
        # Of a grid, each training counts by what it took when it was made; those that nobody timed are `untimed`.
        facts |= {"untimed": int(table["seconds"].isna().sum())} if found.kind == "grid" else {}
    measured = [f"{part}/{metric}" for part in found.parts for metric in PAPER_METRICS]
    table = table[["trial", "seed", *found.space, *measured, "seconds"]]
    choice = chosen(found, table)
    summary = {
        "system": TUNED.get(name, found.system),
        "sweep": name,
        "protocol": config.protocol.name,
        "objective": f"valid/{found.objective}",
        "trials": len(table),
        **facts,
        **choice,
    }
    made = record(config=plain(config), dataset=config.dataset.name, profile=config.profile.name, **summary)
    write_search(folder, table, summary, made, f"`study sweep {name}` on valid/{found.objective}.")
    if found.keep_fits and found.kind != "search" and fits.PART in found.parts:
        fits.write_details(found, config, folder, choice["values"])
    return folder


def _require_sweepable(sweep: Sweep, config: DictConfig, jobs: int) -> None:
    """Raise for what would else be found out by the first training or after it."""
    if jobs < 1:
        raise StudyError(f"{jobs} workers", fix="give --jobs 1 or more")
    if config.system.name != sweep.system:
        fix = f"leave out system=..., or write a sweep for {config.system.name}"
        raise StudyError(f"the sweep {sweep.name} varies {sweep.system}, not {config.system.name}", fix=fix)
    if config.protocol.name != "cold":
        raise StudyError(f"sweeps are chosen and reported under cold, not {config.protocol.name}", fix="protocol=cold")
    file = Sweep.file(sweep.name)
    for parameter in sweep.space:
        if OmegaConf.select(config, f"system.model.{parameter}") is None:
            problem, fix = f"{sweep.system} has no setting {parameter!r}", f"see {system_file(sweep.system)}"
            raise StudyError(problem, file=file, column="space", fix=fix)
    if sweep.kind == "scores" and list(sweep.space) != [FUSION_WEIGHT]:
        problem = f"only {FUSION_WEIGHT} can be varied without training"
        raise StudyError(problem, file=file, column="space", fix="kind: grid")


def _scores(sweep: Sweep, config: DictConfig) -> tuple[pd.DataFrame, dict[str, Any]]:
    """The trials of a sweep over the fusion weight, and the seconds of scoring and ranking, by the clock and of
    the processor (which other work on the machine does not lengthen), without the trainings."""
    limit_threads(config.profile.threads)
    data, split = load_inputs(config.dataset.name, config.protocol.name)
    weights, rows, seconds, processor = sweep.space[FUSION_WEIGHT]["choices"], [], 0.0, 0.0
    tasks = sum(len(split.tasks(part)) for part in sweep.parts)
    hidden = not sys.stderr.isatty()
    with tqdm(total=tasks * len(sweep.seeds), desc=f"sweep {sweep.name}", unit="task", disable=hidden) as bar:
        for seed in sweep.seeds:
            system = fitted(config, data, split, seed=seed, keep=sweep.keep_fits)
            started, before = time.perf_counter(), time.process_time()
            found = measure_fusion_weights(system, data, split, weights, sweep.parts, done=bar.update)
            took = time.perf_counter() - started
            rows += [{"seed": seed, "seconds": round(took / len(found), 3)} | row for row in found]
            seconds, processor = seconds + took, processor + time.process_time() - before
    facts = {"seconds": round(seconds, 3), "processor_seconds": round(processor, 3), "tasks": tasks}
    table = pd.DataFrame(sweep.points()).merge(pd.DataFrame(rows), on=[FUSION_WEIGHT, "seed"])
    return table.assign(trial=range(len(table))), facts
