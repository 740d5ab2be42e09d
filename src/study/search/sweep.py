"""`study sweep`: what a sweep varies (``conf/sweep/<name>.yaml``), its trials, and its tables in
results/<dataset>/sweeps/<name>.

Always trials.csv, best.yaml and record.json. Where this machine has measured every trial, also comparisons.csv (every
value against the best on the validation tasks) and, with test tasks, per_task.csv.xz; separation.csv for T2MRec.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
import math
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd
import yaml
from omegaconf import DictConfig, OmegaConf

from study.base import paths
from study.base.errors import StudyError, require_one_of
from study.base.files import write_csv, write_parquet
from study.base.registry import FEW, NAME, choices
from study.base.settings import parsed, read_settings, read_yaml
from study.config.changes import ABSENT, value_of, with_values
from study.config.compose import build_system, plain, recorded
from study.data.dataset import Dataset, FloatArray, IntArray
from study.data.splits import Split
from study.evaluation import per_task as per_task_table
from study.evaluation.metrics import PAPER_METRICS, per_task
from study.evaluation.records import read_record, record
from study.evaluation.runs import CUTOFFS, KEPT, rank_tasks
from study.evaluation.separation import embedding_settings, mean_separation
from study.evaluation.statistics import bootstrap_interval, compare_all
from study.evaluation.system import System
from study.runner.identity import row_key
from study.runner.inputs import load_inputs, require_applicable, split_file
from study.runner.processes import limit_threads
from study.runner.provenance import as_configured, differences, require_same_profile, summary
from study.search.trials import (
    Objective,
    Search,
    Space,
    distributions,
    earlier_trials,
    label,
    read_table,
    run_search,
    values_of,
    was_stopped,
    write_search,
)
from study.t2mrec.system import T2MRec

Kind = Literal["scores", "grid", "search"]
# Where the joint search leaves its choice: the tuned values of this system (`tuned:` in its yaml).
TUNED = {"joint": "t2mrec_joint"}
# What changes no trial, so that trials outlive a change of it.
UNHASHED = ("title", "place", "trials", "paper_best")
PART = "test"  # whose single tasks and separation are written
FUSION_WEIGHT = "scoring.semantic_weight"
LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Sweep:
    """One sweep; the keys are explained in ``conf/sweep/fusion_weight.yaml``."""

    name: str
    title: str
    system: str
    space: Space
    place: str = "not in the paper"
    paper_best: float | None = None
    kind: Kind = "grid"
    protocol: str = "cold"
    objective: str = "ndcg@10"
    parts: list[str] = field(default_factory=lambda: ["valid", "test"])
    seeds: list[int] = field(default_factory=lambda: [1])
    simplex: list[str] = field(default_factory=list)
    enqueue: list[dict[str, Any]] = field(default_factory=list)
    trials: int = 0

    def __post_init__(self) -> None:
        listed = all("choices" in domain for domain in self.space.values())
        complete = all(set(point) == set(self.space) for point in self.enqueue)
        # Checked before the first trial: a misspelt measure would fail after hours, or choose by nothing.
        for key, right, fix in (
            ("kind", self.kind in get_args(Kind), f"one of: {', '.join(get_args(Kind))}"),
            ("objective", self.objective in PAPER_METRICS, f"one of: {', '.join(PAPER_METRICS)}"),
            ("parts", "valid" in self.parts and {*self.parts} <= {"valid", "test"}, "valid, or valid and test"),
            ("seeds", self.seeds and len(set(self.seeds)) == len(self.seeds), "distinct whole numbers"),
            ("space", self.space, "at least one parameter"),
            ("space", self.kind == "search" or listed, "a grid needs choices: [...] for every parameter"),
            ("space", self.kind != "scores" or [*self.space] == [FUSION_WEIGHT], f"{FUSION_WEIGHT}, or kind: grid"),
            ("trials", self.kind != "search" or self.trials > 0, "at least one trial"),
            ("simplex", set(self.simplex) <= set(self.space), "parameters of `space` alone"),
            ("enqueue", complete, "a value for every parameter of `space`"),
        ):
            if not right:
                raise StudyError("not a valid sweep", file=self.file(self.name), column=key, fix=fix)
        distributions(self.space, "space", file=self.file(self.name))

    @staticmethod
    def file(name: str) -> Path:
        """Where the sweep is written down."""
        return paths.conf() / "sweep" / f"{name}.yaml"

    def points(self) -> list[dict[str, Any]]:
        """The fixed values of every trial, its ``seed`` among them: every combination of a grid, in the order of the
        file; what a search tries first, then empty ones."""
        if self.kind == "search":
            first = [point | {"seed": self.seeds[0]} for point in self.enqueue]
            return [*first, *({} for _ in range(self.trials - len(first)))]
        values = itertools.product(*(map(label, domain["choices"]) for domain in self.space.values()), self.seeds)
        return [dict(zip([*self.space, "seed"], combination, strict=True)) for combination in values]

    def first_point(self) -> dict[str, Any]:
        """What is tried first, or the paper's value, or else the first value of every parameter."""
        if self.enqueue:
            return self.enqueue[0]
        if self.paper_best is not None and len(self.space) == 1:
            return dict.fromkeys(self.space, self.paper_best)
        return {
            name: label(domain["choices"][0]) if "choices" in domain else domain["low"]
            for name, domain in self.space.items()
        }

    def settle(self, values: dict[str, Any]) -> dict[str, Any]:
        """The settings that a trial's raw values stand for: weights of the simplex divided by their sum."""
        total = sum(float(values[name]) for name in self.simplex)
        shares = {name: values[name] / total if total > 0 else 1 / len(self.simplex) for name in self.simplex}
        return values | shares


def load_sweep(name: str) -> Sweep:
    """Read one sweep. Raises StudyError: an unknown sweep, an unknown or missing key, or a wrong value."""
    require_one_of(name, "sweep", choices("sweep"), file=paths.conf() / "sweep")
    return read_settings(Sweep, Sweep.file(name))


def renamed(
    sweep: Sweep, name: str | None, *, values: str | None = None, trials: int | None = None, protocol: str | None = None
) -> Sweep:
    """A sweep with other values (as ``0.1,0.2``), another number of trials or another protocol, for once.

    Raises StudyError: it has no name of its own, one that is taken, or the change does not apply to the sweep.
    """
    changes: dict[str, Any] = {}
    if values is not None:
        if len(sweep.space) != 1:
            problem = f"{sweep.name} varies {len(sweep.space)} parameters"
            raise StudyError(problem, column="--values", fix="write a sweep of one in conf/sweep")
        ((parameter, domain),) = sweep.space.items()
        listed = _listed(values)
        known = domain.get("choices", (0,))
        numbers = all(_is_number(value) for value in known)
        if wrong := [value for value in listed if numbers and not _is_number(value)]:
            raise StudyError(f"{wrong[0]!r:.40} is no number", column="--values", fix=f"numbers for {parameter}")
        if len({str(label(value)) for value in listed}) < len(listed) or not listed:
            raise StudyError(f"{values!r:.40}", column="--values", fix="one or more values, each once")
        space = {parameter: {"choices": listed}}
        changes |= {"space": space, "enqueue": [], "simplex": []}
        changes |= {"kind": "grid"} if sweep.kind == "search" else {}
    if trials is not None:
        if sweep.kind != "search":
            raise StudyError(f"{sweep.name} has a trial for every value", column="--trials", fix="--values")
        changes["trials"] = trials
    if protocol is not None and protocol != sweep.protocol:
        changes["protocol"] = protocol
    if name is None and changes:
        options = {"space": "values", "trials": "trials", "protocol": "protocols"}
        other = " and ".join(options[key] for key in changes if key in options)
        fix = f"add --name {sweep.name}_own"
        raise StudyError(f"with other {other} this would replace the results of the sweep {sweep.name}", fix=fix)
    if name is not None and not NAME.fullmatch(name):
        fix = "small letters, digits and underscores, such as temperature_short"
        raise StudyError(f"{name!r:.80} is no name for a sweep", column="--name", fix=fix)
    if name is not None and name in {*choices("sweep"), *choices("system")}:
        raise StudyError(f"a sweep or system is called {name} already", column="--name", fix="give another one")
    return replace(sweep, name=name or sweep.name, **changes)


def _listed(values: str) -> list[Any]:
    """The values of ``--values``, each as a yaml file of the study would read it."""
    try:
        return list(parsed(f"[{values}]"))
    except (ValueError, yaml.YAMLError) as error:
        fix = "values between commas, as in a yaml file: 0.05,0.07"
        raise StudyError(f"{values!r:.40} cannot be read", column="--values", fix=fix) from error


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def means(sweep: Sweep, trials: pd.DataFrame) -> pd.Series:
    """Mean over seeds of the objective on validation by values, in the order of the table. `trials`: trials.csv."""
    return trials.groupby(list(sweep.space), sort=False, dropna=False)[f"valid/{sweep.objective}"].mean()


def best_point(sweep: Sweep, trials: pd.DataFrame) -> dict[str, Any]:
    """The values with the best mean, as the table writes them; the earlier one of equals."""
    best = means(sweep, trials).idxmax()
    values = best if isinstance(best, tuple) else (best,)
    plainly = (value.item() if hasattr(value, "item") else value for value in values)  # numpy's numbers as yaml's
    return {name: None if pd.isna(value) else value for name, value in zip(sweep.space, plainly, strict=True)}


def chosen(sweep: Sweep, trials: pd.DataFrame) -> dict[str, Any]:
    """The settings of `best_point`, and their mean."""
    values = values_of(best_point(sweep, trials), sweep.space)
    return {"value": round(float(means(sweep, trials).max()), 6), "values": sweep.settle(values)}


def folder_of(dataset: str, name: str) -> Path:
    """Where the results of a sweep lie; one that chooses the values of a system lies with the tunings."""
    return paths.tuned(dataset, TUNED[name]) if name in TUNED else paths.results(dataset) / "sweeps" / name


def sweep(sweep: str | Sweep, config: DictConfig, *, jobs: int = 1, replace: bool = False) -> Path:
    """Run a sweep and write its tables; returns their folder. A stopped sweep goes on where it stood.

    `sweep`: one of ``conf/sweep`` by its name, or one with a name of its own.
    `config`: composed with the sweep's system and protocol; `dataset` and `profile` are the user's.
    `jobs`: workers, each in a process of its own; all fusion weights are measured in one.
    `replace`: also replace results that were made under another profile, and make a finished sweep again.
    Raises StudyError: the sweep or the configuration is wrong, or a trial failed.
    """
    found = load_sweep(sweep) if isinstance(sweep, str) else sweep
    _require_sweepable(found, config)
    folder, key = folder_of(config.dataset.name, found.name), sweep_key(found, config)
    if not replace:
        require_same_profile(folder / "record.json", config)
        if _is_current(folder, key, found):
            LOG.info("%s is current", found.name)
            return folder
        if (made := folder / "record.json").exists() and not Sweep.file(found.name).exists():
            fix = "give another --name, or add --replace"
            raise StudyError(f"the sweep {found.name} was made with other values or settings", file=made, fix=fix)
    again = replace and not was_stopped(folder, key)
    if again:
        shutil.rmtree(work_folder(found, config), ignore_errors=True)
    begin, kept = partial(start, found, json.dumps(plain(config))), None if again else earlier_trials(folder, key)
    table = run_search(begin, jobs=1 if found.kind == "scores" else jobs, kept=kept).table()
    _scored.cache_clear()
    _write(found, config, folder, table, key)
    return folder


def is_swept(name: str, config: DictConfig) -> bool:
    """Whether the committed results of a sweep are those that `sweep` would make."""
    found = load_sweep(name)
    return _is_current(folder_of(config.dataset.name, name), sweep_key(found, config), found)


def _is_current(folder: Path, key: str, sweep: Sweep) -> bool:
    """Whether the results of a sweep are whole, and made from what it would be made from now."""
    if not all((folder / name).exists() for name in ("trials.csv", "best.yaml", "record.json")):
        return False
    made = read_record(folder / "record.json")
    return made.get("key") == key and made.get("trials") == len(sweep.points())


def work_folder(sweep: Sweep, config: DictConfig) -> Path:
    """Where the trials of a sweep are kept until it is whole, and each trial's values task by task."""
    return paths.cache() / "sweeps" / str(config.dataset.name) / sweep.name


def start(sweep: Sweep, settings: str) -> tuple[Search, Objective]:
    """The shared trials of a sweep and what measures one; called in every worker. `settings`: the composed
    configuration as JSON."""
    config = OmegaConf.create(json.loads(settings))
    search = Search(
        name=f"sweep {sweep.name}",
        key=sweep_key(sweep, config),
        folder=work_folder(sweep, config),
        space=sweep.space | {"seed": {"choices": sweep.seeds}},
        points=sweep.points(),
        objective=f"valid/{sweep.objective}",
        seed=1,
        unfinished=folder_of(config.dataset.name, sweep.name) / "unfinished.csv",
    )
    return search, partial(measure_trial, sweep, settings, search.folder / search.key)


def sweep_key(sweep: Sweep, config: DictConfig) -> str:
    """A hash of what decides the trials: what is varied and measured, and version, data and settings of the system. A
    key of the sweep that has its default is left out, so that a further one changes no hash."""
    usual = asdict(Sweep(name="", title="", system="", space={"": {"choices": [0]}}))
    own = {name: value for name, value in asdict(sweep).items() if name not in UNHASHED and value != usual[name]}
    # What every trial sets itself decides none, whatever the yaml of the system says: it counts with one value.
    config = with_values(config, sweep.settle(values_of(sweep.first_point(), sweep.space)))
    return hashlib.sha256((json.dumps(own, sort_keys=True) + row_key(config)).encode()).hexdigest()[:16]


@cache
def _inputs(settings: str) -> Any:
    """Configuration, data and split, read once per worker."""
    config = OmegaConf.create(json.loads(settings))
    limit_threads(config.profile.threads)
    return config, *load_inputs(config.dataset.name, config.protocol.name)


@cache
def _scored(settings: str, work: Path, seed: int) -> Any:
    """T2MRec trained with a seed, which computes its two scores of the same tasks once, however they are weighted."""
    config, data, split = _inputs(settings)
    system = _fitted(config, data, split, seed, work / f"training-{seed}")

    def remembered(compute: Callable[[IntArray], FloatArray]) -> Callable[[IntArray], FloatArray]:
        of_bytes = cache(lambda tasks: compute(np.frombuffer(tasks, dtype=np.int64)))
        return lambda tasks: of_bytes(tasks.tobytes())

    system.semantic, system.structural = remembered(system.semantic), remembered(system.structural)
    return system


def _fitted(config: DictConfig, data: Dataset, split: Split, seed: int, workdir: Path) -> Any:
    """The configured system, fitted. A killed training goes on from its checkpoint in `workdir`."""
    system = build_system(config.system)
    workdir.mkdir(parents=True, exist_ok=True)
    system.fit(data, split, seed=seed, workdir=workdir)
    shutil.rmtree(workdir)
    return system


def measure_trial(sweep: Sweep, settings: str, work: Path, values: dict[str, Any], point: int) -> dict[str, float]:
    """Fit with the values of a trial, its seed among them, and measure on every part; values task by task go to `work`.
    ``seconds/own`` and ``seconds/processor``: of scoring and ranking, where no training belongs to the trial."""
    (base, data, split), seed = _inputs(settings), values["seed"]
    if sweep.kind == "scores":
        system = _scored(settings, work, seed)
        system.scoring = replace(system.scoring, semantic_weight=values[FUSION_WEIGHT])
    else:
        config = with_values(base, sweep.settle(values_of(values, sweep.space)))
        system = _fitted(config, data, split, seed, work / f"training-{point}")
    began, before = time.perf_counter(), time.process_time()
    tables = {part: task_values(system, data, split, part, seed=seed) for part in sweep.parts}
    found = {f"{part}/{name}": float(table[name].mean()) for part, table in tables.items() for name in PAPER_METRICS}
    if sweep.kind == "scores":
        took = round(time.perf_counter() - began, 3), round(time.process_time() - before, 3)
        found |= dict(zip(("seconds/own", "seconds/processor"), took, strict=True))
    write_parquet(work / f"{point}.parquet", pd.concat(table.assign(part=part) for part, table in tables.items()))
    if type(system) is T2MRec and sweep.kind != "search" and PART in sweep.parts:
        depth, embedded = embedding_settings()["depth"], (system.task_embeddings, system.server_embeddings)
        apart = mean_separation(*embedded, split, PART, depth=depth)
        found |= {f"separation/{name}": apart[name] for name in ("auc", "recall")}
    return found


def task_values(system: System, data: Dataset, split: Split, part: str, *, seed: int) -> pd.DataFrame:
    """The per-task table of a fitted system with the paper's eight measures, on a part."""
    tasks = split.tasks(part)
    ranked, _ = rank_tasks(system, split, tasks, part=part, k=KEPT, seed=seed)
    found = per_task(ranked, split.part(part)[tasks], ks=CUTOFFS)[list(PAPER_METRICS)]
    return per_task_table.table(data.tasks["id"].to_numpy()[tasks], seed, found)


def _require_sweepable(sweep: Sweep, config: DictConfig) -> None:
    """Raise for what would else be found out by the first training or after it."""
    require_applicable(config)
    split_file(config.dataset.name, config.protocol.name)
    known = Sweep.file(sweep.name).exists()
    file = Sweep.file(sweep.name) if known else None
    found = differences(
        {"system": config.system.name, "protocol": config.protocol.name},
        {"system": sweep.system, "protocol": sweep.protocol},
    )
    if known and not found:
        found = differences(plain(config.system), plain(as_configured(config).system), "system.")
    if found:
        problem = f"these are not the settings of the sweep {sweep.name}: {summary(found)}"
        fix = (
            f"add --name {sweep.name}_own" if known else f"leave system= and protocol= out: it is one of {sweep.system}"
        )
        raise StudyError(f"{problem}; they would replace its results", file=file, fix=fix)
    for parameter in sweep.space:
        if value_of(config, parameter) is ABSENT:
            problem, fix = f"{sweep.system} has no setting {parameter!r}", f"see the yaml of {sweep.system}"
            raise StudyError(problem, file=file, column="space", fix=fix)


def _write(sweep: Sweep, config: DictConfig, folder: Path, table: pd.DataFrame, key: str) -> None:
    """Write all tables of a sweep."""
    measured = [f"{part}/{metric}" for part in sweep.parts for metric in PAPER_METRICS]
    table["seconds"] = table.get("seconds/own", table["seconds"])
    trials = table[["trial", "seed", *sweep.space, *measured, "seconds"]]
    best, facts = best_point(sweep, trials), {"seconds": round(float(table["seconds"].sum()), 1)}
    if "seconds/processor" in table:
        _, split = load_inputs(config.dataset.name, config.protocol.name)
        facts["processor_seconds"] = round(float(table["seconds/processor"].sum()), 3)
        facts["tasks"] = sum(len(split.tasks(part)) for part in sweep.parts)
    said = {
        "system": TUNED.get(sweep.name, sweep.system),
        "sweep": sweep.name,
        "protocol": config.protocol.name,
        "objective": f"valid/{sweep.objective}",
        "trials": len(table),
        **facts,
        **chosen(sweep, trials),
    }
    names = {"dataset": config.dataset.name, "profile": config.profile.name}
    made = record(config=recorded(config), **names, key=key, settings=asdict(sweep), **said)
    files = [work_folder(sweep, config) / key / f"{point}.parquet" for point in table["trial"]]
    if all(file.exists() for file in files):
        values = pd.concat(
            pd.read_parquet(file).assign(**{name: row[name] for name in sweep.space})
            for file, row in zip(files, trials.to_dict("records"), strict=True)
        )
        write_csv(folder / "comparisons.csv", against_best(sweep, values, best))
        if PART in sweep.parts:
            write_csv(folder / "per_task.csv.xz", _single_tasks(sweep, values, best))
    if "separation/auc" in table:
        write_csv(folder / "separation.csv", _separation(sweep, config, table))
    by = f"`study sweep {sweep.name}` on valid/{sweep.objective}."
    write_search(folder, trials, said, made, by, exact=sweep.kind == "search")


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


def standing(folder: Path, sweep: Sweep) -> list[str]:
    """How the values of a sweep stand to the best on validation, in sentences: the best with its interval, the paper's,
    and what the declared test does not tell from the best. Without comparisons.csv the limits are one standard
    deviation over seeds, within which a value is not told from the best."""
    single, names = (folder / "comparisons.csv").exists(), list(sweep.space)
    if single:
        table = read_table(folder / "comparisons.csv")
    else:
        grouped = read_table(folder / "trials.csv").groupby(names, sort=False, dropna=False)[f"valid/{sweep.objective}"]
        table = grouped.agg(["mean", "std"]).sort_values("mean", ascending=False, kind="stable").reset_index()
        table = table.assign(ci_low=table["mean"] - table["std"], ci_high=table["mean"] + table["std"])
        table = table.assign(same=table["mean"] >= table["ci_low"].iloc[0])
    shown, rows = [], table.to_dict("records")
    for row in rows:
        limits = "one seed, no interval" if pd.isna(row["ci_low"]) else f"{row['ci_low']:.4f}, {row['ci_high']:.4f}"
        said = ", ".join("null" if pd.isna(row[name]) else str(row[name]) for name in names)
        shown.append(f"{said}: {row['mean']:.4f} [{limits}]")
    single_best = sweep.paper_best is not None and len(names) == 1
    paper = table.index[table[names[0]] == sweep.paper_best].tolist() if single_best else list[int]()
    first = [f"best {shown[0]}", *(f"the paper's {shown[row]}" for row in paper)]
    if not single and table["std"].isna().all():
        return [*first, "one seed a value and no values task by task: no value can be told from another"]
    same = [text.partition(":")[0] for text, row in zip(shown[1:], rows[1:], strict=True) if row["same"]]
    more = f"; and {len(same) - FEW} more" if len(same) > FEW else ""
    return [
        *first,
        f"cannot be told from the best: {'; '.join(same[:FEW]) or 'none'}{more}",
        "limits: 95 %, over validation tasks" if single else "limits: one standard deviation over seeds, no test",
    ]


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
    return found.assign(auc=table["separation/auc"], recall=table["separation/recall"])
