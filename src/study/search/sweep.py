"""`study sweep`: a sweep from its name to its tables in results/<dataset>/sweeps/<name>.

Always trials.csv, best.yaml and record.json. Where this run has measured every trial, also comparisons.csv (every value
against the best on the validation tasks) and, with test tasks, per_task.csv.xz; separation.csv for T2MRec's trainings.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
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
from study.config.changes import ABSENT, value_of, with_values
from study.config.compose import plain
from study.config.reader import read_yaml
from study.errors import StudyError
from study.evaluation.metrics import PAPER_METRICS
from study.evaluation.records import read_record, record
from study.evaluation.statistics import bootstrap_interval, compare_all
from study.files import write_csv, write_parquet
from study.runner.inputs import load_inputs, require_applicable
from study.runner.processes import limit_threads
from study.runner.provenance import as_configured, differences, require_same_profile
from study.runner.provenance import summary as few
from study.search import fits
from study.search.fits import FUSION_WEIGHT, fit_key, fitted, kept_fit, measure_fusion_weights, training_seconds
from study.search.settings import Sweep, best_point, chosen, load_sweep
from study.search.trials import (
    Objective,
    Search,
    earlier_trials,
    local_storage,
    read_table,
    run_search,
    values_of,
    write_search,
)
from study.t2mrec.system import T2MRec

# Where the joint search leaves its choice: the tuned values of this system (`tuned:` in its yaml).
TUNED = {"joint": "t2mrec_joint"}
# What changes no trial, so that trials outlive a change of it.
UNHASHED = ("title", "place", "trials", "paper_best", "attempts", "keep_fits")
PART = "test"  # whose single tasks and separation are written
SEPARATION = ("auc", "recall")
LOG = logging.getLogger(__name__)


def folder_of(dataset: str, name: str) -> Path:
    """Where the results of a sweep lie; one that chooses the values of a system lies with the tunings."""
    return paths.tuned(dataset, TUNED[name]) if name in TUNED else paths.results(dataset) / "sweeps" / name


def sweep(
    sweep: str | Sweep, config: DictConfig, *, jobs: int = 1, storage: str | None = None, replace: bool = False
) -> Path:
    """Run a sweep and write its tables; returns their folder. A stopped sweep goes on where it stood.

    `sweep`: one of ``conf/sweep`` by its name, or one with a name of its own.
    `config`: composed with the sweep's system and protocol; `dataset` and `profile` are the user's.
    `jobs`: workers, each in a process of its own.
    `storage`: address of a database for the trials, instead of a file in .cache.
    `replace`: also replace results that were made under another profile, and make a finished sweep again.
    Raises StudyError: the sweep or the configuration is wrong, or a trial failed.
    """
    found = load_sweep(sweep) if isinstance(sweep, str) else sweep
    folder, work = folder_of(config.dataset.name, found.name), work_folder(found, config)
    _require_sweepable(found, config, jobs)
    if not replace:
        require_same_profile(folder / "record.json", config)
    again = replace and not (folder / "unfinished.csv").exists()
    if again:
        shutil.rmtree(work, ignore_errors=True)
        for point in found.points() if found.kind != "search" else ():
            kept_fit(_configured(found, config, point), point["seed"]).unlink(missing_ok=True)
    key = sweep_key(found, config)
    if found.kind == "scores" and (jobs > 1 or storage is not None):
        LOG.warning("%s has no trials to share: one process measures it, without --jobs and --storage", found.name)
    if not replace and _is_current(folder, key, found):
        LOG.info("%s is current", found.name)
        return folder
    if found.kind == "scores":
        table, facts = _scores(found, config)
    else:
        begin = partial(start, found, json.dumps(plain(config)), storage)
        table = run_search(begin, jobs=jobs, kept=None if again else earlier_trials(folder, key)).table()
        if found.kind == "grid" and "seconds/fit" in table:
            table["seconds"] = table["seconds/fit"]
        facts = {"seconds": round(float(table["seconds"].sum()), 1)}
        # Of a grid, each training counts by what it took when it was made; those that nobody timed are `untimed`.
        facts |= {"untimed": int(table["seconds"].isna().sum())} if found.kind == "grid" else {}
    _write(found, config, folder, table, facts | {"key": key})
    return folder


def _is_current(folder: Path, key: str, sweep: Sweep) -> bool:
    """Whether the results of a sweep are whole, and made from what it would be made from now."""
    if not all((folder / name).exists() for name in ("trials.csv", "best.yaml", "record.json")):
        return False
    made = read_record(folder / "record.json")
    return made.get("key") == key and made.get("trials") == len(sweep.points())


def work_folder(sweep: Sweep, config: DictConfig) -> Path:
    """Where the trials of a sweep are kept until it is whole, and each trial's values task by task."""
    return paths.cache() / "sweeps" / str(config.dataset.name) / sweep.name


def start(sweep: Sweep, settings: str, storage: str | None) -> tuple[Search, Objective]:
    """The shared trials of a sweep and what measures one; called in every worker. `settings`: the composed
    configuration as JSON."""
    config = OmegaConf.create(json.loads(settings))
    search = Search(
        name=f"sweep {sweep.name}",
        key=sweep_key(sweep, config),
        storage=storage or local_storage(work_folder(sweep, config)),
        space=sweep.space | {"seed": {"choices": sweep.seeds}},
        points=sweep.points(),
        objective=f"valid/{sweep.objective}",
        seed=sweep.sampler_seed,
        attempts=sweep.attempts,
        unfinished=folder_of(config.dataset.name, sweep.name) / "unfinished.csv",
    )
    return search, partial(measure_trial, sweep, settings)


def sweep_key(sweep: Sweep, config: DictConfig) -> str:
    """A hash of what decides the trials: what is varied and measured, and version, data and settings of the system. A
    key of the sweep that has its default is left out, so that a further one changes no hash."""
    usual = asdict(Sweep(name="", title="", system="", space={"": {"choices": [0]}}))
    own = {name: value for name, value in asdict(sweep).items() if name not in UNHASHED and value != usual[name]}
    return hashlib.sha256((json.dumps(own, sort_keys=True) + fit_key(config)).encode()).hexdigest()[:16]


@cache
def _inputs(settings: str) -> Any:
    """Data and split, read once per worker."""
    config = OmegaConf.create(json.loads(settings))
    limit_threads(config.profile.threads)
    return load_inputs(config.dataset.name, config.protocol.name)


def _configured(sweep: Sweep, config: DictConfig, values: dict[str, Any]) -> DictConfig:
    """The configuration with the values of a trial."""
    own = values_of({name: values[name] for name in sweep.space}, sweep.space)
    return with_values(config, sweep.settle(own))


def measure_trial(sweep: Sweep, settings: str, values: dict[str, Any], point: int) -> dict[str, float]:
    """Fit with the values of a trial, its seed among them, and measure on every part."""
    base, (data, split), seed = OmegaConf.create(json.loads(settings)), _inputs(settings), values["seed"]
    config = _configured(sweep, base, values)
    system = fitted(config, data, split, seed=seed, keep=sweep.keep_fits)
    tables = {part: fits.task_values(system, data, split, part, seed=seed) for part in sweep.parts}
    found = _kept(tables, work_folder(sweep, base), sweep_key(sweep, base), point)
    if type(system) is T2MRec and sweep.keep_fits and sweep.kind == "grid":
        found["seconds/fit"] = training_seconds(config, seed) or float("nan")
        if PART in sweep.parts:
            found |= {f"separation/{name}": value for name, value in fits.separation(system, split, PART).items()}
    return found


def _kept(tables: dict[str, pd.DataFrame], work: Path, key: str, point: int) -> dict[str, float]:
    """Keep the per-task tables of a trial; returns their means, such as ``valid/ndcg@10``."""
    write_parquet(_values_file(work, key, point), pd.concat(table.assign(part=part) for part, table in tables.items()))
    return {f"{part}/{name}": float(table[name].mean()) for part, table in tables.items() for name in PAPER_METRICS}


def _values_file(work: Path, key: str, point: int) -> Path:
    return work / key / f"{point}.parquet"


def _require_sweepable(sweep: Sweep, config: DictConfig, jobs: int) -> None:
    """Raise for what would else be found out by the first training or after it."""
    if jobs < 1:
        raise StudyError(f"{jobs} workers", fix="give --jobs 1 or more")
    known = Sweep.file(sweep.name).exists()
    file = Sweep.file(sweep.name) if known else None
    if config.system.name != sweep.system:
        fix = f"leave out system=..., or write a sweep for {config.system.name}"
        raise StudyError(f"the sweep {sweep.name} varies {sweep.system}, not {config.system.name}", fix=fix)
    require_applicable(config)
    base = as_configured(config)
    found = differences(plain(config.system), plain(base.system), "system.") if known else []
    found += differences({"protocol": config.protocol.name}, {"protocol": sweep.protocol})
    if found:
        problem = f"these are not the settings of the sweep {sweep.name}: {few(found)}; they would replace its results"
        raise StudyError(problem, file=file, fix=f"add --name {sweep.name}_own")
    for parameter in sweep.space:
        if value_of(config, parameter) is ABSENT:
            problem, fix = f"{sweep.system} has no setting {parameter!r}", f"see the yaml of {sweep.system}"
            raise StudyError(problem, file=file, column="space", fix=fix)
    if sweep.kind == "scores" and list(sweep.space) != [FUSION_WEIGHT]:
        problem = f"only {FUSION_WEIGHT} can be varied without training"
        raise StudyError(problem, file=file, column="space", fix="kind: grid")


def _scores(sweep: Sweep, config: DictConfig) -> tuple[pd.DataFrame, dict[str, Any]]:
    """The trials of a sweep over the fusion weight, and the seconds of scoring and ranking, by the clock and of
    the processor (which other work on the machine does not lengthen), without the trainings."""
    limit_threads(config.profile.threads)
    data, split = load_inputs(config.dataset.name, config.protocol.name)
    weights, seconds, processor, rows = sweep.space[FUSION_WEIGHT]["choices"], 0.0, 0.0, []
    points, work, key = sweep.points(), work_folder(sweep, config), sweep_key(sweep, config)
    tasks = sum(len(split.tasks(part)) for part in sweep.parts)
    hidden = not sys.stderr.isatty()
    with tqdm(total=tasks * len(sweep.seeds), desc=f"sweep {sweep.name}", unit="task", disable=hidden) as bar:
        for seed in sweep.seeds:
            system = fitted(config, data, split, seed=seed, keep=sweep.keep_fits)
            started, before = time.perf_counter(), time.process_time()
            found = measure_fusion_weights(system, data, split, weights, sweep.parts, seed=seed, done=bar.update)
            took = time.perf_counter() - started
            own = {f"separation/{name}": value for name, value in fits.separation(system, split, PART).items()}
            for weight, tables in zip(weights, found, strict=True):
                point = {FUSION_WEIGHT: weight, "seed": seed}
                number = points.index(point)
                means = _kept(tables, work, key, number)
                rows.append({"trial": number, **point, **means, **own, "seconds": round(took / len(found), 3)})
            seconds, processor = seconds + took, processor + time.process_time() - before
    facts = {"seconds": round(seconds, 3), "processor_seconds": round(processor, 3), "tasks": tasks}
    return pd.DataFrame(rows).sort_values("trial", ignore_index=True), facts


def _write(sweep: Sweep, config: DictConfig, folder: Path, table: pd.DataFrame, facts: dict[str, Any]) -> None:
    """Write all tables of a sweep."""
    measured = [f"{part}/{metric}" for part in sweep.parts for metric in PAPER_METRICS]
    trials = table[["trial", "seed", *sweep.space, *measured, "seconds"]]
    best, key = best_point(sweep, trials), facts.pop("key")
    summary = {
        "system": TUNED.get(sweep.name, sweep.system),
        "sweep": sweep.name,
        "protocol": config.protocol.name,
        "objective": f"valid/{sweep.objective}",
        "trials": len(table),
        **facts,
        **chosen(sweep, trials),
    }
    made = record(
        config=plain(config),
        dataset=config.dataset.name,
        profile=config.profile.name,
        key=key,
        settings=asdict(sweep),
        **summary,
    )
    files = [_values_file(work_folder(sweep, config), key, int(point)) for point in table["trial"]]
    if all(file.exists() for file in files):
        values = pd.concat(
            pd.read_parquet(file).assign(**{name: row[name] for name in sweep.space})
            for file, row in zip(files, trials.to_dict("records"), strict=True)
        )
        write_csv(folder / "comparisons.csv", against_best(sweep, values, best))
        if PART in sweep.parts:
            write_csv(folder / "per_task.csv.xz", _single_tasks(sweep, values, best))
    if f"separation/{SEPARATION[0]}" in table and PART in sweep.parts:
        write_csv(folder / "separation.csv", _separation(sweep, config, table))
    by = f"`study sweep {sweep.name}` on valid/{sweep.objective}."
    write_search(folder, trials, summary, made, by, exact=sweep.kind == "search")


def _same(table: pd.DataFrame, values: dict[str, Any]) -> pd.Series:
    """The rows with these values."""
    same = (table[name].isna() if value is None else table[name] == value for name, value in values.items())
    matching: pd.Series = pd.concat(same, axis=1).all(axis=1)
    return matching


def against_best(sweep: Sweep, values: pd.DataFrame, best: dict[str, Any]) -> pd.DataFrame:
    """Every setting of a sweep against the one that was chosen, on the validation tasks, seeds averaged task by task.

    Returns: the parameters, mean, ci_low and ci_high (95 %, bootstrap over tasks), diff (to the best) with
        diff_ci_low and diff_ci_high, wilcoxon_p_holm and randomisation_p_holm over all other settings of the sweep, and
        same: the declared test does not tell it from the best. Best first.
    """
    metric, declared = sweep.objective, read_yaml(paths.conf() / "statistics.yaml")
    valid = values[values["part"] == "valid"].drop(columns="part")
    names, rows, frames = list(sweep.space), [], {}
    for number, (setting, frame) in enumerate(valid.groupby(names, sort=False, dropna=False)):
        own = frame.groupby("task_id")[metric].mean().dropna().to_numpy()
        low, high = bootstrap_interval(own, seed=0)
        rows.append(dict(zip(names, setting, strict=True)) | {"mean": own.mean(), "ci_low": low, "ci_high": high})
        frames[str(number)] = frame.drop(columns=names)
    table = pd.DataFrame(rows)
    reference = str(_same(table, best).to_numpy().argmax())
    found = pd.DataFrame(columns=["system"])
    if len(frames) > 1:
        found = compare_all(frames, reference, [metric], seed=0)
    kept = ["diff", "diff_ci_low", "diff_ci_high", "wilcoxon_p_holm", "randomisation_p_holm"]
    found = (
        found.set_index("system").reindex([str(row) for row in range(len(table))], columns=kept).reset_index(drop=True)
    )
    same = found[f"{declared['test']}_p_holm"].fillna(1.0).astype(float) >= declared["alpha"]
    joined: pd.DataFrame = pd.concat([table, found.astype(float), same.rename("same")], axis=1)
    return joined.sort_values("mean", ascending=False)


def standing(folder: Path) -> pd.DataFrame:
    """How each value of a sweep stands to the best on validation: the parameters, mean, ci_low, ci_high, same; best
    first. Without comparisons.csv the limits are one standard deviation over seeds (NaN for one seed)."""
    if (folder / "comparisons.csv").exists():
        return read_table(folder / "comparisons.csv")
    settings = read_record(folder / "record.json")
    names, objective = list(settings["values"]), settings["objective"]
    grouped = read_table(folder / "trials.csv").groupby(names, sort=False, dropna=False)[objective]
    found: pd.DataFrame = grouped.agg(["mean", "std"]).sort_values("mean", ascending=False, kind="stable").reset_index()
    found = found.assign(ci_low=found["mean"] - found["std"], ci_high=found["mean"] + found["std"])
    return found.assign(same=~(found["mean"] < found["ci_low"].iloc[0]))


def _single_tasks(sweep: Sweep, values: pd.DataFrame, best: dict[str, Any]) -> pd.DataFrame:
    """The test tasks one by one, for the value that validation chose and for the paper's: what the tests of RQ3
    compare."""
    test = values[values["part"] == PART]
    settings = [best]
    if len(sweep.space) == 1 and sweep.paper_best is not None:
        settings.append({next(iter(sweep.space)): sweep.paper_best})
    parts = [test[_same(test, each)] for each in settings[: 1 if settings[-1] == best else 2]]
    return pd.concat(parts)[[*sweep.space, "task_id", "seed", *PAPER_METRICS]]


def _separation(sweep: Sweep, config: DictConfig, table: pd.DataFrame) -> pd.DataFrame:
    """How far the servers that a test task lists stand out from the others, one row per training of the sweep. The
    fusion weight decides no embedding: its sweep has one row per seed, with the weight of the configuration."""
    if sweep.kind == "scores":
        weight = OmegaConf.select(config, f"system.model.{FUSION_WEIGHT}")
        table = table.drop_duplicates("seed").assign(**{FUSION_WEIGHT: weight})
    found = table[[*sweep.space, "seed"]].assign(part=PART)
    return found.assign(**{name: table[f"separation/{name}"] for name in SEPARATION})
