"""Stage `tune`: choose a system's hyper-parameters on validation, seeded and resumable, with Optuna's ask and tell.

Only validation is ever measured here: the objective's name says so, and the test part is not read.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import optuna
import pandas as pd
import yaml
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState
from tqdm import tqdm

from study import paths
from study.config.compose import build_system, plain
from study.errors import StudyError
from study.evaluation.records import record
from study.evaluation.runs import run_seed
from study.files import write_csv, write_json, write_text
from study.runner.fingerprint import fingerprint
from study.runner.inputs import load_inputs
from study.runner.processes import limit_threads
from study.runner.provenance import require_own_row, require_same_profile

OBJECTIVE = "valid/ndcg@10"
LOG = logging.getLogger(__name__)


def suggest(trial: optuna.Trial, space: dict[str, Any]) -> dict[str, Any]:
    """Ask for one value per parameter.

    Args:
        space: parameter (dotted, below ``system.model``) -> ``{choices: [...]}`` or ``{low, high, log, type}``.
    """
    values: dict[str, Any] = {}
    for name, domain in space.items():
        if "choices" in domain:
            named = {label(value): value for value in domain["choices"]}
            values[name] = named[trial.suggest_categorical(name, list(named))]
        elif domain.get("type") == "int":
            values[name] = trial.suggest_int(name, domain["low"], domain["high"], log=domain.get("log", False))
        elif "low" in domain and "high" in domain:
            values[name] = trial.suggest_float(name, domain["low"], domain["high"], log=domain.get("log", False))
        else:
            raise StudyError(
                f"the search space of {name!r} is neither choices nor low and high",
                column=f"search.{name}",
                fix="see conf/system",
            )
    return values


def present_values(config: DictConfig) -> dict[str, Any]:
    """What the system's yaml says for every parameter of its search space: the values of an untuned run.

    Raises:
        StudyError: a parameter is no setting of the system or one of another profile, or the yaml's value lies outside
            the space.
    """
    file = paths.conf() / "system" / f"{config.system.name}.yaml"
    found: dict[str, Any] = {}
    for name, domain in plain(config.system.search).items():
        key = f"system.model.{name}"
        if OmegaConf.select(config, key, default=_ABSENT) is _ABSENT:
            raise StudyError(
                f"{name!r} is searched and is no setting of {config.system.name}",
                file=file,
                column=f"search.{name}",
                fix=f"write it below `model` in {_states_model(file)}, also if the class has a default, or search a "
                "key that stands there",
            )
        holder, _, size = key.rpartition(".")
        sizes = OmegaConf.select(config, holder)
        profile = sizes.get("profile", size) if OmegaConf.is_dict(sizes) else size
        if profile != size:  # written as a call that takes one of several sizes
            setting = name.rpartition(".")[0]
            raise StudyError(
                f"{name!r} is a setting of the profile {size}; under {profile} all trials would be the same",
                file=file,
                column=f"search.{name}",
                fix=f"search {setting}.{profile} in a yaml of its own, with a space made for that size",
            )
        value = OmegaConf.select(config, key)
        if OmegaConf.is_config(value):  # a list, or a size by profile, which is written as a call
            value = instantiate(value, _convert_="all")
        if not _inside(value, domain):
            raise StudyError(
                f"the present value of {name!r}, {value!r}, lies outside its search space, so the search could end "
                "below the system as it is",
                file=file,
                column=f"search.{name}",
                fix="add the value to the space; the first trial measures it",
            )
        found[name] = value
    return found


_ABSENT = object()


def _states_model(file: Path) -> str:
    """The yaml that states the settings below `model` of a system: its own, or one that it builds on."""
    if not file.exists():  # a variant named on the command line
        return "the yaml of the system"
    own = yaml.safe_load(file.read_text(encoding="utf-8"))
    bases = [base for base in own.get("defaults", []) if base != "_self_"]
    if bases and "model" not in own:
        return _states_model(file.with_stem(bases[0]))
    return str(file.relative_to(paths.root()))


def _inside(value: Any, domain: dict[str, Any]) -> bool:
    """Whether a value is one that a domain offers; a malformed domain is left to `suggest`."""
    if "choices" in domain:
        return label(value) in map(label, domain["choices"])
    if not {"low", "high"} <= domain.keys():
        return True
    whole = domain.get("type") != "int" or isinstance(value, int)
    return isinstance(value, int | float) and whole and domain["low"] <= value <= domain["high"]


def label(value: Any) -> Any:
    """What stands for a choice in a journal and in trials.csv: lists, which Optuna does not store, as JSON."""
    return json.dumps(value) if isinstance(value, list) else value


def tune(config: DictConfig, *, replace: bool = False) -> Path:
    """Search ``system.search`` on the validation part of the configured protocol; returns the sweep's folder.

    Trial 0 measures the system as its yaml says, so the choice is never worse on validation; ``tuning.startup`` trials,
    the first included, come before the seeded TPE (Bergstra et al. 2011) draws on what it has seen. One process, one
    trial after another; searches of different systems share no file and may run side by side.

    A stopped search goes on where it stood: trials are kept in a journal file whose name holds a hash of configuration,
    space, code and data, so that trials of another state of the study are never mixed in. A trial's own files are
    removed once its result is kept.

    Args:
        replace: also replace values that were chosen under another profile.

    Raises:
        StudyError: no search space or a malformed one, one without the present values, a protocol that does not apply,
            settings that are not those that the system's name stands for, values chosen under another profile, an input
            missing or damaged.
    """
    system, protocol, dataset = config.system.name, config.protocol.name, config.dataset.name
    space = plain(config.system.search)
    if not space:
        raise StudyError(
            f"{system} has no search space",
            file=paths.conf() / "system" / f"{system}.yaml",
            column="search",
            fix="add one, or run the system as it is",
        )
    if protocol not in config.system.protocols:
        raise StudyError(
            f"{system} is not applicable under {protocol!r}", fix=f"one of: {', '.join(config.system.protocols)}"
        )
    require_own_row(config)
    first = present_values(config)
    if not replace:
        require_same_profile(sweep_folder(config) / "record.json", config)
    limit_threads(config.profile.workers * config.profile.threads)
    data, split = load_inputs(config.dataset.name, config.protocol.name)
    journal = paths.cache() / "tune" / dataset / protocol / system / f"{search_key(config)}.journal"
    journal.parent.mkdir(parents=True, exist_ok=True)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    seed, budget = int(config.tuning.seed), int(config.tuning.trials)
    study = optuna.create_study(
        storage=JournalStorage(JournalFileBackend(str(journal))),
        study_name=system,
        direction="maximize",
        load_if_exists=True,
    )
    finished = [trial for trial in study.trials if trial.state.is_finished()]
    bar = tqdm(
        total=budget,
        initial=len(finished),
        desc=f"tune {system} {protocol}",
        unit="trial",
        disable=not sys.stderr.isatty(),
    )
    workdirs = journal.with_suffix("")
    for number in range(len(finished)):  # a stop between keeping a result and removing its files leaves them behind
        shutil.rmtree(workdirs / str(number), ignore_errors=True)
    # A first trial that was cut short counts as asked, and a stop before asking leaves it in the queue.
    if not finished and not any(trial.state is TrialState.WAITING for trial in study.trials):
        study.enqueue_trial({name: label(value) for name, value in first.items()})
    for number in range(len(finished), budget):
        # The sampler's state is not stored; seeding it by trial makes a resumed search equal an undisturbed one.
        study.sampler = optuna.samplers.TPESampler(seed=seed + number, n_startup_trials=int(config.tuning.startup))
        trial = study.ask()
        values = suggest(trial, space)
        started = time.perf_counter()
        score = validation_score(config, values, data, split, workdirs / str(number))
        trial.set_user_attr("seconds", round(time.perf_counter() - started, 3))
        study.tell(trial, score)
        shutil.rmtree(workdirs / str(number), ignore_errors=True)
        bar.update()
    bar.close()
    shutil.rmtree(workdirs, ignore_errors=True)
    return _write(config, study, budget)


def search_key(config: DictConfig) -> str:
    """A short hash of all that decides a search: what decides a run (the values of trial 0 among it), the space, the
    trials before the sampler learns, the seeds of sampler and fit."""
    tuning = config.tuning
    parts = [
        fingerprint(config),
        plain(config.system.search),
        tuning.scale,
        tuning.startup,
        tuning.seed,
        config.system.seeds[0],
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def sweep_folder(config: DictConfig) -> Path:
    """Where the sweep of the configured system lives."""
    return paths.results(config.dataset.name) / "sweeps" / str(config.system.name)


def validation_score(config: DictConfig, values: dict[str, Any], data: Any, split: Any, workdir: Path) -> float:
    """Mean NDCG@10 on the validation part with the first seed, after ``tuning.scale`` times the epochs of a run."""
    chosen = config.copy()
    OmegaConf.update(chosen, "profile.scale", float(config.profile.scale) * float(config.tuning.scale))
    for name, value in values.items():
        OmegaConf.update(chosen, f"system.model.{name}", value)
    workdir.mkdir(parents=True, exist_ok=True)
    seed = int(config.system.seeds[0])
    measured = run_seed(build_system(chosen.system), data, split, seed=seed, workdir=workdir, part="valid")
    return float(measured.per_task["ndcg@10"].mean())


def _write(config: DictConfig, study: optuna.Study, budget: int) -> Path:
    """Write trials.csv, best.yaml and record.json."""
    folder = sweep_folder(config)
    done = [trial for trial in study.trials if trial.value is not None][:budget]
    # Trial numbers come from the order of asking; a trial cut short by a stop has no value and leaves a gap.
    rows = [
        {"trial": i, OBJECTIVE: trial.value, "seconds": trial.user_attrs["seconds"], **trial.params}
        for i, trial in enumerate(done)
    ]
    best = max(done, key=lambda trial: (trial.value, -trial.number))
    domains = plain(config.system.search)
    values = {
        name: next((choice for choice in domains[name].get("choices", ()) if label(choice) == value), value)
        for name, value in best.params.items()
    }
    write_csv(folder / "trials.csv", pd.DataFrame(rows))
    summary = {
        "system": config.system.name,
        "protocol": config.protocol.name,
        "objective": OBJECTIVE,
        "value": round(float(best.value or 0), 6),
        "trials": len(done),
        "seconds": round(sum(row["seconds"] for row in rows), 1),
        "values": values,
    }
    write_json(folder / "record.json", record(profile=config.profile.name, config=plain(config), **summary))
    write_text(
        folder / "best.yaml",
        f"# Chosen by `study tune` on {OBJECTIVE}; `study run` reads it.\n" + yaml.safe_dump(summary, sort_keys=False),
    )
    return folder
