"""`study tune`: choose a system's hyper-parameters on validation, by successive halving (Jamieson and Talwalkar 2016).

Only validation is measured here: the objective's name says so, and the test part is not read.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import optuna
import pandas as pd
from omegaconf import DictConfig, OmegaConf

from study.base import paths
from study.base.errors import StudyError
from study.base.registry import system_file
from study.config.changes import ABSENT, change_settings, setting_key, value_of, with_values
from study.config.compose import build_system, plain
from study.data.dataset import Dataset
from study.data.splits import Split
from study.evaluation.runs import run_seed
from study.runner.identity import row_key, short_hash
from study.runner.inputs import load_inputs, require_applicable
from study.runner.own_system import require_sound
from study.runner.processes import limit_threads
from study.runner.provenance import require_own_row, require_same_profile
from study.search.trials import (
    Search,
    distributions,
    is_whole,
    label,
    unfinished_file,
    values_of,
    whole_trials,
    write_search,
)

OBJECTIVE = "valid/ndcg@10"
ETA = 3  # one of so many trials goes on to the next rung


def present_values(config: DictConfig) -> dict[str, Any]:
    """What the system's yaml says for every parameter of its search space: the values of an untuned run.

    Raises StudyError: a malformed space, a parameter that is no setting of the system or one of another profile, or
        the yaml's value lies outside the space.
    """
    present: dict[str, Any] = {}
    file, profile = system_file(config.system.name), config.profile.name
    for name, domain in distributions(plain(config.system.search), file=file).items():
        value, (setting, _, size) = value_of(config, name), name.rpartition(".")
        if setting_key(config, name) is None:
            problem = f"{name!r} is a setting of the profile {size}; under {profile} all trials would be the same"
            fix = f"search {setting}.{profile}, with a space for that size"
        elif value is ABSENT:
            problem = f"{name!r} is searched and is no setting of {config.system.name}"
            fix = "write it below `model`, also if the class has a default, or search a key that stands there"
        else:
            present[name] = OmegaConf.to_container(value) if OmegaConf.is_list(value) else value
            try:
                optuna.create_trial(value=0, params={name: label(present[name])}, distributions={name: domain})
                continue
            except ValueError:
                problem = f"the present value of {name!r}, {value!r}, lies outside its search space, so the search "
                problem += "could end below the system as it is"
                fix = "add the value to the space; the first trial measures it"
        raise StudyError(problem, file=file, column=f"search.{name}", fix=fix)
    return present


def first_point(config: DictConfig) -> dict[str, Any]:
    """The first trial of a search, the present values. Raises StudyError: as `tune` does for a search space."""
    system = config.system.name
    if not config.system.search:
        fix = "add one, or run the system as it is"
        raise StudyError(f"{system} has no search space", file=system_file(system), column="search", fix=fix)
    require_applicable(config)
    return {name: label(value) for name, value in present_values(config).items()}


def tune(config: DictConfig, *, replace: bool = False, again: bool = False) -> Path:
    """Search ``system.search`` on the validation part of the configured protocol; returns the folder of results.

    The trials of the first rung train the first share of ``system.rungs`` of a run's epochs; the best third of a rung
    trains again for the next share. The system as its yaml says is trial 0 and in every rung, so the choice is never
    worse on validation. ``tuning.startup`` trials, the first included, come before the seeded TPE draws on what it has
    seen. The same command goes on after a stop, and started twice at once it shares the trials.

    `replace`: also replace values that were chosen under another profile.
    `again`: make the trials of a finished search again; one that was stopped goes on.
    Raises StudyError: no search space or a malformed one, one without the present values, a protocol that does not
        apply, settings that are not those that the system's name stands for, values chosen under another profile, an
        input missing or damaged, or a system of one's own that breaks a rule.
    """
    points: list[dict[str, Any]] = [first_point(config), *({} for _ in range(1, int(config.tuning.trials)))]
    folder = sweep_folder(config)
    require_own_row(config)
    if not replace:
        require_same_profile(folder / "record.json", config)
    limit_threads(config.profile.threads)
    data, split = load_inputs(config.dataset.name, config.protocol.name)
    require_sound(config.system.name)
    whole = [] if again else whole_trials(folder, tuning_key(config))
    rungs = dict[float, Search]()
    for share in map(float, config.system.rungs):
        search = _rung(config, share, points)
        same = [row for row in whole if row.get("share", share) == share]
        search.begin([row | {"trial": number} for number, row in enumerate(same)], again=again and not rungs)
        search.run(partial(_measure, config, data, split, share, search.work / search.key))
        points, rungs[share] = promote_points(search), search
    _write(config, rungs)
    return folder


def _measure(
    config: DictConfig, data: Dataset, split: Split, share: float, files: Path, values: dict[str, Any], point: int
) -> dict[str, float]:
    """One trial, which goes on from its checkpoint below `files`."""
    score = validation_score(config, values, data, split, files / str(point), share=share)
    shutil.rmtree(files / str(point), ignore_errors=True)
    return {OBJECTIVE: score}


def _rung(config: DictConfig, share: float, points: list[dict[str, Any]]) -> Search:
    """The search that measures points after a share of a run's epochs."""
    dataset, protocol, system = config.dataset.name, config.protocol.name, config.system.name
    key = search_key(config, share, points)
    return Search(
        name=f"tune {system} {protocol}" + (f", {share:.0%} of the epochs" if config.system.trains else ""),
        key=key,
        work=paths.cache().joinpath("tune", dataset, protocol, system),
        backup=unfinished_file(dataset, system, key),
        space=plain(config.system.search),
        points=points,
        objective=OBJECTIVE,
        seed=int(config.tuning.seed),
        startup=int(config.tuning.startup),
    )


def promote_points(search: Search) -> list[dict[str, Any]]:
    """The points of the next rung: the best of `ETA` trials each, rounded up and at least two, the first among them."""
    values = search.table()[OBJECTIVE]
    best = list(values.sort_values(ascending=False, kind="stable").index[: _size(len(values))])
    if 0 not in best:
        best[-1] = 0
    return [params for point, params in search.params().items() if point in best]


def _size(trials: int) -> int:
    """How many of so many trials go on to the next rung."""
    return min(trials, max(2, math.ceil(trials / ETA)))


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
    return short_hash(keys)


def is_tuned(config: DictConfig) -> bool:
    """Whether the committed values of the configured system are those that `tune` would choose: its settings, search
    space and budget, the data, the split and the versions are the same."""
    sizes = [int(config.tuning.trials)]
    for _ in config.system.rungs[1:]:
        sizes.append(_size(sizes[-1]))
    return is_whole(sweep_folder(config), tuning_key(config), sum(sizes))


def sweep_folder(config: DictConfig) -> Path:
    """Where the results of the configured system's search lie."""
    return paths.tuned(config.dataset.name, str(config.system.name))


def validation_score(
    config: DictConfig, values: dict[str, Any], data: Dataset, split: Split, workdir: Path, *, share: float
) -> float:
    """Mean NDCG@10 on the validation part with the first seed, after `share` of the epochs of a run."""
    settings = change_settings(with_values(config, values), {"profile.scale": float(config.profile.scale) * share})
    workdir.mkdir(parents=True, exist_ok=True)
    seed = int(config.system.seeds[0])
    measured = run_seed(build_system(settings.system), data, split, seed=seed, workdir=workdir, part="valid")
    return float(measured.per_task["ndcg@10"].mean())


def _write(config: DictConfig, rungs: dict[float, Search]) -> None:
    """Write trials.csv, best.yaml and record.json; the best is that of the last rung."""
    tables = [search.table().assign(share=share) for share, search in rungs.items()]
    *_, search = rungs.values()
    trials = pd.concat(tables, ignore_index=True)
    trials = trials.assign(trial=trials.index)[["trial", "share", OBJECTIVE, "seconds", *search.space]]
    choice = {
        "system": config.system.name,
        "protocol": config.protocol.name,
        "objective": OBJECTIVE,
        "value": round(float(tables[-1][OBJECTIVE].max()), 6),
        "trials": len(trials),
        "seconds": round(float(trials["seconds"].sum()), 1),
        "values": values_of(search.params()[int(tables[-1][OBJECTIVE].to_numpy().argmax())], search.space),
    }
    by, key = f"`study tune` on {OBJECTIVE}; `study run` reads it.", tuning_key(config)
    write_search(config, sweep_folder(config), trials, choice, rungs.values(), by=by, key=key, exact=True)
