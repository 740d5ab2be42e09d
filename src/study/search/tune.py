"""`study tune`: choose a system's hyper-parameters on validation, by successive halving (Jamieson and Talwalkar 2016).

Only validation is measured here: the objective's name says so, and the test part is not read.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from pathlib import Path
from typing import Any

import optuna
import pandas as pd
from omegaconf import DictConfig, OmegaConf

from study.base import paths
from study.base.errors import StudyError
from study.base.registry import system_file
from study.config.changes import ABSENT, changed, setting_key, value_of, with_values
from study.config.compose import build_system, plain, recorded
from study.data.dataset import Dataset
from study.data.splits import Split
from study.evaluation.records import read_record, record
from study.evaluation.runs import run_seed
from study.runner.identity import row_key
from study.runner.inputs import load_inputs, require_applicable
from study.runner.processes import limit_threads
from study.runner.provenance import require_own_row, require_same_profile
from study.search.trials import (
    Search,
    distributions,
    earlier_trials,
    label,
    read_table,
    values_of,
    was_stopped,
    write_search,
)

OBJECTIVE = "valid/ndcg@10"
ETA = 3  # one of so many trials goes on to the next rung


def present_values(config: DictConfig) -> dict[str, Any]:
    """What the system's yaml says for every parameter of its search space: the values of an untuned run.

    Raises StudyError: a malformed space, a parameter that is no setting of the system or one of another profile, or
        the yaml's value lies outside the space.
    """
    found: dict[str, Any] = {}
    file = system_file(config.system.name)
    for name, domain in distributions(plain(config.system.search), file=file).items():
        value, (setting, _, size) = value_of(config, name), name.rpartition(".")
        if setting_key(config, name) is None:
            problem = f"{name!r} is a setting of the profile {size}; under {config.profile.name} all trials would be "
            problem, fix = f"{problem}the same", f"search {setting}.{config.profile.name}, with a space for that size"
        elif value is ABSENT:
            problem = f"{name!r} is searched and is no setting of {config.system.name}"
            fix = "write it below `model`, also if the class has a default, or search a key that stands there"
        else:
            found[name] = OmegaConf.to_container(value) if OmegaConf.is_list(value) else value
            try:
                optuna.create_trial(value=0, params={name: label(found[name])}, distributions={name: domain})
                continue
            except ValueError:
                problem = f"the present value of {name!r}, {value!r}, lies outside its search space, so the search "
                problem += "could end below the system as it is"
                fix = "add the value to the space; the first trial measures it"
        raise StudyError(problem, file=file, column=f"search.{name}", fix=fix)
    return found


def first_point(config: DictConfig) -> dict[str, Any]:
    """The first trial of a search, the present values. Raises StudyError: as `tune` does for a search space."""
    system = config.system.name
    if not config.system.search:
        fix = "add one, or run the system as it is"
        raise StudyError(f"{system} has no search space", file=system_file(system), column="search", fix=fix)
    require_applicable(config)
    return {name: label(value) for name, value in present_values(config).items()}


def tune(config: DictConfig, *, replace: bool = False, again: bool = False) -> Path:
    """Search ``system.search`` on the validation part of the configured protocol; returns the sweep's folder.

    The trials of the first rung train the first share of ``system.rungs`` of a run's epochs; the best third of a rung
    trains again for the next share. The system as its yaml says is trial 0 and in every rung, so the choice is never
    worse on validation. ``tuning.startup`` trials, the first included, come before the seeded TPE draws on what it has
    seen. The same command goes on after a stop, and started twice at once it shares the trials. A trial's own files are
    removed once its result is kept.

    `replace`: also replace values that were chosen under another profile.
    `again`: make the trials of a finished search again; one that was stopped goes on.
    Raises StudyError: no search space or a malformed one, one without the present values, a protocol that does not
        apply, settings that are not those that the system's name stands for, values chosen under another profile, an
        input missing or damaged.
    """
    system, folder = config.system.name, sweep_folder(config)
    first = first_point(config)
    require_own_row(config)
    if not replace:
        require_same_profile(folder / "record.json", config)
    limit_threads(config.profile.threads)
    data, split = load_inputs(config.dataset.name, config.protocol.name)
    work = paths.cache().joinpath("tune", config.dataset.name, config.protocol.name, system)
    points: list[dict[str, Any]] = [first, *({} for _ in range(1, int(config.tuning.trials)))]
    if again := again and not was_stopped(folder, search_key(config, float(config.system.rungs[0]), points)):
        shutil.rmtree(work, ignore_errors=True)
    rungs: dict[float, Search] = {}
    for share in map(float, config.system.rungs):
        search = rungs[share] = _rung(config, share, points, work)
        kept = None if again else _earlier(config, search, share)

        def measure(
            values: dict[str, Any], point: int, search: Search = search, share: float = share
        ) -> dict[str, float]:
            for done in search.finished():
                shutil.rmtree(work / search.key / str(done), ignore_errors=True)
            workdir = work / search.key / str(point)
            return {OBJECTIVE: validation_score(config, values, data, split, workdir, share=share)}

        if kept is not None:
            search.restore(kept)
        search.work(measure)
        shutil.rmtree(work / search.key, ignore_errors=True)
        points = promoted(search)
    return _write(config, rungs)


def _rung(config: DictConfig, share: float, points: list[dict[str, Any]], work: Path) -> Search:
    """The search that measures points after a share of a run's epochs."""
    return Search(
        name=f"tune {config.system.name} {config.protocol.name}, {share:.0%} of the epochs",
        key=search_key(config, share, points),
        folder=work,
        space=plain(config.system.search),
        points=points,
        objective=OBJECTIVE,
        seed=int(config.tuning.seed),
        startup=int(config.tuning.startup),
        unfinished=sweep_folder(config) / "unfinished.csv",
    )


def _earlier(config: DictConfig, search: Search, share: float) -> pd.DataFrame:
    """The trials of a rung that the results hold: of a stopped search, or of a whole one with fewer trials."""
    folder = sweep_folder(config)
    found, made = earlier_trials(folder, search.key), folder / "record.json"
    if not len(found) and made.exists() and read_record(made).get("key") == tuning_key(config):
        table = read_table(folder / "trials.csv")
        found = table[table["share"] == share].assign(trial=lambda rung: range(len(rung)))
    return found


def promoted(search: Search) -> list[dict[str, Any]]:
    """The points of the next rung: the best of `ETA` trials each, rounded up and at least two, the first among them."""
    done = search.finished()
    values = {point: trial.user_attrs["measures"][OBJECTIVE] for point, trial in done.items()}
    best = sorted(done, key=lambda point: (-values[point], point))[: max(2, math.ceil(len(done) / ETA))]
    if 0 not in best:
        best[-1] = 0
    return [dict(done[point].params) for point in sorted(best)]


def search_key(config: DictConfig, share: float, points: list[dict[str, Any]]) -> str:
    """A short hash of all that decides the trials of a rung: what decides a run (the values of trial 0 among it), the
    space, the share of the epochs, the trials before the sampler learns, the seeds of sampler and fit, and the fixed
    values of all points but of the first one."""
    tuning, fixed = config.tuning, [point for point in points[1:] if point]
    settings = [plain(config.system.search), share, tuning.startup, tuning.seed, config.system.seeds[0]]
    settings += [fixed] if fixed else []
    return hashlib.sha256(json.dumps([row_key(config), *settings]).encode()).hexdigest()[:16]


def tuning_key(config: DictConfig) -> str:
    """A short hash of all that decides a tuning but the number of its trials: what decides each of its rungs."""
    keys = [search_key(config, float(share), []) for share in config.system.rungs]
    return hashlib.sha256(json.dumps(keys).encode()).hexdigest()[:16]


def is_tuned(config: DictConfig) -> bool:
    """Whether the committed values of the configured system are those that `tune` would choose: its settings, search
    space and budget, the data, the split and the versions are the same."""
    best, made = (sweep_folder(config) / name for name in ("best.yaml", "record.json"))
    if not (best.exists() and made.exists()):
        return False
    found = read_record(made)
    same_trials = found["config"]["tuning"]["trials"] == config.tuning.trials
    return bool(same_trials and found.get("key") == tuning_key(config))


def sweep_folder(config: DictConfig) -> Path:
    """Where the results of the configured system's search lie."""
    return paths.tuned(config.dataset.name, str(config.system.name))


def validation_score(
    config: DictConfig, values: dict[str, Any], data: Dataset, split: Split, workdir: Path, *, share: float
) -> float:
    """Mean NDCG@10 on the validation part with the first seed, after `share` of the epochs of a run."""
    chosen = changed(with_values(config, values), {"profile.scale": float(config.profile.scale) * share})
    workdir.mkdir(parents=True, exist_ok=True)
    seed = int(config.system.seeds[0])
    measured = run_seed(build_system(chosen.system), data, split, seed=seed, workdir=workdir, part="valid")
    return float(measured.per_task["ndcg@10"].mean())


def _write(config: DictConfig, rungs: dict[float, Search]) -> Path:
    """Write trials.csv, best.yaml and record.json; the best is that of the last rung."""
    tables, start = list[pd.DataFrame](), 0
    for share, search in rungs.items():
        table = search.table()[["trial", OBJECTIVE, "seconds", *search.space]]
        table.insert(1, "share", share)
        tables.append(table.assign(trial=table["trial"] + start))
        start += len(table)
    trials, last = pd.concat(tables, ignore_index=True), tables[-1]
    best = search.finished()[int(last[OBJECTIVE].to_numpy().argmax())]
    summary = {
        "system": config.system.name,
        "protocol": config.protocol.name,
        "objective": OBJECTIVE,
        "value": round(best.user_attrs["measures"][OBJECTIVE], 6),
        "trials": len(trials),
        "seconds": round(float(trials["seconds"].sum()), 1),
        "values": values_of(best.params, search.space),
    }
    made = record(profile=config.profile.name, key=tuning_key(config), config=recorded(config), **summary)
    by = f"`study tune` on {OBJECTIVE}; `study run` reads it."
    return write_search(sweep_folder(config), trials, summary, made, by, exact=True)
