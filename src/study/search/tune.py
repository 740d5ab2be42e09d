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

import pandas as pd
from omegaconf import DictConfig, OmegaConf

from study import paths
from study.config.changes import ABSENT, changed, setting_key, value_of, with_values
from study.config.compose import build_system, plain
from study.config.registry import system_file
from study.data.dataset import Dataset
from study.data.splits import Split
from study.errors import StudyError
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
    local_storage,
    read_table,
    run_search,
    values_of,
    write_search,
)

OBJECTIVE = "valid/ndcg@10"
ETA = 3  # one of so many trials goes on to the next rung


def space_of(config: DictConfig) -> dict[str, Any]:
    """The search space: a setting below `model` -> its domain."""
    return plain(config.system.search)


def present_values(config: DictConfig) -> dict[str, Any]:
    """What the system's yaml says for every parameter of its search space: the values of an untuned run.

    Raises StudyError: a parameter is no setting of the system or one of another profile, or the yaml's value lies
        outside the space.
    """
    return {name: _present_value(config, name, domain) for name, domain in space_of(config).items()}


def _present_value(config: DictConfig, name: str, domain: dict[str, Any]) -> Any:
    def wrong(problem: str, fix: str) -> StudyError:
        return StudyError(problem, file=system_file(config.system.name), column=f"search.{name}", fix=fix)

    setting, _, size = name.rpartition(".")
    if setting_key(config, name) is None:
        problem = (
            f"{name!r} is a setting of the profile {size}; under {config.profile.name} all trials would be the same"
        )
        raise wrong(problem, f"search {setting}.{config.profile.name}, with a space made for that size")
    value = value_of(config, name)
    if value is ABSENT:
        fix = "write it below `model`, also if the class has a default, or search a key that stands there"
        raise wrong(f"{name!r} is searched and is no setting of {config.system.name}", fix)
    if OmegaConf.is_list(value):
        value = OmegaConf.to_container(value)
    if not _inside(value, domain):
        problem = f"the present value of {name!r}, {value!r}, lies outside its search space, so the search could end "
        raise wrong(f"{problem}below the system as it is", "add the value to the space; the first trial measures it")
    return value


def _inside(value: Any, domain: dict[str, Any]) -> bool:
    """Whether a value is one that a domain offers; a malformed domain is left to `suggest`."""
    if "choices" in domain:
        return label(value) in map(label, domain["choices"])
    if not {"low", "high"} <= domain.keys():
        return True
    whole = domain.get("type") != "int" or isinstance(value, int)
    return isinstance(value, int | float) and whole and domain["low"] <= value <= domain["high"]


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
    system, protocol, tuning = config.system.name, config.protocol.name, config.tuning
    space = space_of(config)
    if not space:
        fix = "add one, or run the system as it is"
        raise StudyError(f"{system} has no search space", file=system_file(system), column="search", fix=fix)
    require_applicable(config)
    require_own_row(config)
    distributions(space, file=system_file(system))
    first = {name: label(value) for name, value in present_values(config).items()}
    if not replace:
        require_same_profile(sweep_folder(config) / "record.json", config)
    limit_threads(config.profile.threads)
    data, split = load_inputs(config.dataset.name, protocol)
    if again := again and not (sweep_folder(config) / "unfinished.csv").exists():
        shutil.rmtree(work_folder(config), ignore_errors=True)
    points: list[dict[str, Any]] = [first, *({} for _ in range(1, int(tuning.trials)))]
    rungs: dict[float, Search] = {}
    for share in config.system.rungs:
        kept = None if again else earlier_rung(config, float(share), points)
        rungs[share] = search = _rung(config, space, points, float(share), data, split, kept)
        points = promoted(search)
    return _write(config, rungs)


def work_folder(config: DictConfig) -> Path:
    """Where the trials of the configured system's search are kept until it is whole."""
    names = (config.dataset.name, config.protocol.name, config.system.name)
    return paths.cache().joinpath("tune", *map(str, names))


def earlier_rung(config: DictConfig, share: float, points: list[dict[str, Any]]) -> pd.DataFrame:
    """The trials of a rung that the results hold: of a stopped search, or of a whole one with fewer trials."""
    folder, key = sweep_folder(config), search_key(config, share, points)
    found = earlier_trials(folder, key)
    record = folder / "record.json"
    if not len(found) and record.exists() and read_record(record).get("key") == tuning_key(config):
        table = read_table(folder / "trials.csv")
        found = table[table["share"] == share].assign(trial=lambda rung: range(len(rung)))
    return found


def _rung(
    config: DictConfig,
    space: dict[str, Any],
    points: list[dict[str, Any]],
    share: float,
    data: Dataset,
    split: Split,
    kept: pd.DataFrame | None,
) -> Search:
    """Measure points after a share of a run's epochs. `kept`: those that were measured before."""
    system, protocol, tuning = config.system.name, config.protocol.name, config.tuning
    folder = work_folder(config)
    search = Search(
        name=f"tune {system} {protocol} {share:.0%}",
        key=search_key(config, share, points),
        storage=local_storage(folder),
        space=space,
        points=points,
        objective=OBJECTIVE,
        seed=int(tuning.seed),
        startup=int(tuning.startup),
        unfinished=sweep_folder(config) / "unfinished.csv",
    )
    workdirs = folder / search.key

    def measure(values: dict[str, Any], point: int) -> dict[str, float]:
        for done in search.finished():
            shutil.rmtree(workdirs / str(done), ignore_errors=True)
        return {OBJECTIVE: validation_score(config, values, data, split, workdirs / str(point), share=share)}

    run_search(lambda: (search, measure), kept=kept)
    shutil.rmtree(workdirs, ignore_errors=True)
    return search


def going_on(trials: int) -> int:
    """How many of a rung's trials have a place in the next one."""
    return max(2, math.ceil(trials / ETA))


def promoted(search: Search) -> list[dict[str, Any]]:
    """The points of the next rung: the best of `ETA` trials each, rounded up and at least two, the first among them."""
    done = search.finished()
    values = {point: trial.user_attrs["measures"][OBJECTIVE] for point, trial in done.items()}
    best = sorted(done, key=lambda point: (-values[point], point))[: going_on(len(done))]
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


def is_tuned(config: DictConfig) -> bool:
    """Whether the committed values of the configured system are those that `tune` would choose: its settings, search
    space and budget, the data, the split and the versions are the same."""
    folder = sweep_folder(config)
    if not (folder / "best.yaml").exists() or not (folder / "record.json").exists():
        return False
    made = read_record(folder / "record.json")
    trials = made["config"]["tuning"]["trials"]
    return bool(made.get("key") == tuning_key(config) and trials == config.tuning.trials)


def tuning_key(config: DictConfig) -> str:
    """A short hash of all that decides a tuning but the number of its trials: what decides each of its rungs."""
    keys = [search_key(config, float(share), []) for share in config.system.rungs]
    return hashlib.sha256(json.dumps(keys).encode()).hexdigest()[:16]


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
    made = record(profile=config.profile.name, key=tuning_key(config), config=plain(config), **summary)
    by = f"`study tune` on {OBJECTIVE}; `study run` reads it."
    return write_search(sweep_folder(config), trials, summary, made, by, exact=True)
