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
from dataclasses import asdict, dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import yaml
from omegaconf import DictConfig, OmegaConf

from study.base import paths
from study.base.errors import StudyError, require_one_of
from study.base.files import read_csv, write_csv, write_parquet
from study.base.registry import FEW, NAME, choices
from study.base.settings import parse_yaml, read_settings, read_yaml
from study.config.changes import ABSENT, value_of, with_values
from study.config.compose import build_system, plain
from study.evaluation import per_task as per_task_table
from study.evaluation.metrics import PAPER_METRICS, per_task
from study.evaluation.records import read_record
from study.evaluation.runs import CUTOFFS, KEPT, rank_tasks
from study.evaluation.separation import embedding_settings, mean_separation
from study.evaluation.statistics import compare_all, mean_interval
from study.runner.identity import row_key
from study.runner.inputs import load_inputs, require_applicable, split_file
from study.runner.own_system import require_sound
from study.runner.processes import limit_threads
from study.runner.provenance import changes_of_own, differences, require_same_profile, summary
from study.search import trials as searches
from study.search.trials import Objective, Search, Space, label
from study.t2mrec.system import T2MRec

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
    kind: Literal["scores", "grid", "search"] = "grid"
    protocol: str = "cold"
    objective: str = "ndcg@10"
    parts: list[Literal["valid", "test"]] = field(default_factory=lambda: ["valid", "test"])
    seeds: list[int] = field(default_factory=lambda: [1])
    simplex: list[str] = field(default_factory=list)
    enqueue: list[dict[str, Any]] = field(default_factory=list)
    trials: int = 0

    def __post_init__(self) -> None:
        listed = all("choices" in domain for domain in self.space.values())
        complete = all(set(point) == set(self.space) for point in self.enqueue)
        # Checked before the first trial: a misspelt measure would fail after hours, or choose by nothing.
        for key, right, fix in (
            ("objective", self.objective in PAPER_METRICS, f"one of: {', '.join(PAPER_METRICS)}"),
            ("parts", "valid" in self.parts, "valid, or valid and test"),
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
        searches.distributions(self.space, "space", file=self.file(self.name))

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
        return {name: label(domain.get("choices", [domain.get("low")])[0]) for name, domain in self.space.items()}

    def settle(self, values: dict[str, Any]) -> dict[str, Any]:
        """The settings that a trial's raw values stand for: weights of the simplex divided by their sum."""
        total = sum(float(values[name]) for name in self.simplex)
        shares = {name: values[name] / total if total > 0 else 1 / len(self.simplex) for name in self.simplex}
        return values | shares


def load_sweep(name: str, dataset: str | None = None) -> Sweep:
    """Read one sweep; of a data set also one that was run there by a name of its own. Raises StudyError: an unknown
    sweep, an unknown or missing key, or a wrong value."""
    if dataset and name not in choices("sweep") and (folder_of(dataset, name) / "record.json").exists():
        return Sweep(**read_record(folder_of(dataset, name) / "record.json")["settings"])
    require_one_of(name, "sweep", choices("sweep"), file=paths.conf() / "sweep")
    return read_settings(Sweep, Sweep.file(name))


def rename_sweep(
    sweep: Sweep, name: str | None, *, values: str | None = None, trials: int | None = None, protocol: str | None = None
) -> Sweep:
    """A sweep with other values (as ``0.1,0.2``), another number of trials or another protocol, for once. Raises
    StudyError: it has no name of its own, one that is taken, or the change does not apply to the sweep."""
    changes: dict[str, Any] = {} if protocol in (None, sweep.protocol) else {"protocol": protocol}
    if trials is not None:
        if sweep.kind != "search":
            raise StudyError(f"{sweep.name} has a trial for every value", column="--trials", fix="--values")
        changes["trials"] = trials
    if values is not None:
        kind = "grid" if sweep.kind == "search" else sweep.kind
        changes |= {"space": _other_space(sweep, values), "enqueue": [], "simplex": [], "kind": kind}
    if name is None and changes:
        problem = f"with other values, trials or protocol this would replace the results of the sweep {sweep.name}"
        raise StudyError(problem, fix=f"add --name {sweep.name}_own")
    if name is not None and (not NAME.fullmatch(name) or name in {*choices("sweep"), *choices("system")}):
        fix = "small letters, digits and underscores, and no sweep or system, such as temperature_short"
        raise StudyError(f"{name!r:.80} is no name for a sweep, or is taken", column="--name", fix=fix)
    return replace(sweep, name=name or sweep.name, **changes)


def _other_space(sweep: Sweep, values: str) -> Space:
    """The space of a sweep of one parameter with the values of ``--values``, read as a yaml file of the study is."""
    if len(sweep.space) != 1:
        problem = f"{sweep.name} varies {len(sweep.space)} parameters"
        raise StudyError(problem, column="--values", fix="write a sweep of one in conf/sweep")
    ((parameter, domain),) = sweep.space.items()
    fix = f"values of {parameter} between commas, each once, as in a yaml file: 0.05,0.07"
    try:
        listed = list(parse_yaml(f"[{values}]"))
    except (ValueError, yaml.YAMLError) as error:
        raise StudyError(f"{values!r:.40} cannot be read", column="--values", fix=fix) from error
    numbers = all(map(_is_number, domain.get("choices", ())))
    once = len({str(label(value)) for value in listed}) == len(listed) > 0
    if not once or (numbers and not all(map(_is_number, listed))):
        raise StudyError(f"{values!r:.40} are no such values", column="--values", fix=fix)
    return {parameter: {"choices": listed}}


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def means(sweep: Sweep, trials: pd.DataFrame) -> pd.Series:
    """Mean over seeds of the objective on validation by values, in the order of the table. `trials`: trials.csv."""
    return trials.groupby(list(sweep.space), sort=False, dropna=False)[f"valid/{sweep.objective}"].mean()


def best_point(sweep: Sweep, trials: pd.DataFrame) -> dict[str, Any]:
    """The values with the best mean, as the table writes them; the earlier one of equals."""
    best = means(sweep, trials).idxmax()
    values = best if isinstance(best, tuple) else (best,)
    plainly = (value.item() if hasattr(value, "item") else value for value in values)  # numpy's numbers as yaml's
    return {name: None if pd.isna(value) else value for name, value in zip(sweep.space, plainly, strict=True)}


def choose_settings(sweep: Sweep, trials: pd.DataFrame) -> dict[str, Any]:
    """The settings of `best_point`, and their mean."""
    values = searches.values_of(best_point(sweep, trials), sweep.space)
    return {"value": round(float(means(sweep, trials).max()), 6), "values": sweep.settle(values)}


def folder_of(dataset: str, name: str) -> Path:
    """Where the results of a sweep lie; one that chooses the values of a system lies with the tunings."""
    return paths.tuned(dataset, TUNED[name]) if name in TUNED else paths.results(dataset) / "sweeps" / name


def sweep(sweep: str | Sweep, config: DictConfig, *, jobs: int = 1, replace: bool = False, again: bool = False) -> Path:
    """Run a sweep and write its tables; returns their folder. A stopped sweep goes on where it stood.

    `sweep`: one of ``conf/sweep`` by its name, or one with a name of its own.
    `config`: composed with the sweep's system and protocol; `dataset` and `profile` are the user's.
    `jobs`: workers, each in a process of its own; all fusion weights are measured in one.
    `replace`: also replace results that were made under another profile, or with other values under a name of its own.
    `again`: make the trials of a finished sweep again; one that was stopped goes on.
    Raises StudyError: the sweep or the configuration is wrong, or a trial failed.
    """
    if isinstance(sweep, str):
        sweep = load_sweep(sweep)
    _require_sweepable(sweep, config)
    begin = partial(start, sweep, json.dumps(plain(config)))
    search, _ = begin()
    folder = folder_of(config.dataset.name, sweep.name)
    record_file = folder / "record.json"
    if not replace:
        require_same_profile(record_file, config)
    if not again and searches.is_whole(folder, search.key, len(search.points)):
        LOG.info("%s is current", sweep.name)
        return folder
    if not replace and record_file.exists() and not Sweep.file(sweep.name).exists():
        fix = "give another --name, or add --replace"
        raise StudyError(f"the sweep {sweep.name} was made with other values or settings", file=record_file, fix=fix)
    search.begin([] if again else searches.whole_trials(folder, search.key), again=again)
    table = searches.run_search(begin, jobs=1 if sweep.kind == "scores" else jobs)
    _train_t2mrec.cache_clear()
    _write(sweep, config, search, folder, table)
    return folder


def is_swept(name: str, config: DictConfig) -> bool:
    """Whether the committed results of a sweep are those that `sweep` would make."""
    definition = load_sweep(name)
    return searches.is_whole(
        folder_of(config.dataset.name, name), sweep_key(definition, config), len(definition.points())
    )


def start(sweep: Sweep, settings: str) -> tuple[Search, Objective]:
    """The shared trials of a sweep and what measures one; called in every worker. `settings`: the composed
    configuration as JSON."""
    config = OmegaConf.create(json.loads(settings))
    key, dataset = sweep_key(sweep, config), str(config.dataset.name)
    search = Search(
        name=f"sweep {sweep.name}",
        key=key,
        work=paths.cache() / "sweeps" / dataset / sweep.name,
        backup=searches.unfinished_file(dataset, sweep.name, key),
        space=sweep.space | {"seed": {"choices": sweep.seeds}},
        points=sweep.points(),
        objective=f"valid/{sweep.objective}",
        seed=1,
    )
    return search, partial(measure_trial, sweep, settings, search.work / key)


def sweep_key(sweep: Sweep, config: DictConfig) -> str:
    """A hash of what decides the trials: what is varied and measured, and version, data and settings of the system. A
    key of the sweep that has its default is left out, so that a further one changes no hash."""
    usual = asdict(Sweep(name="", title="", system="", space={"": {"choices": [0]}}))
    settings = {name: value for name, value in asdict(sweep).items() if name not in UNHASHED and value != usual[name]}
    # What every trial sets itself decides none, whatever the yaml of the system says: it counts with one value.
    config = with_values(config, sweep.settle(searches.values_of(sweep.first_point(), sweep.space)))
    return hashlib.sha256((json.dumps(settings, sort_keys=True) + row_key(config)).encode()).hexdigest()[:16]


@cache
def _inputs(settings: str) -> Any:
    """Configuration, data and split, read once per worker."""
    config = OmegaConf.create(json.loads(settings))
    limit_threads(config.profile.threads)
    return config, *load_inputs(config.dataset.name, config.protocol.name)


def _fit_system(config: DictConfig, settings: str, seed: int, workdir: Path) -> Any:
    """The configured system, fitted. A killed training goes on from its checkpoint in `workdir`."""
    system, (_, data, split) = build_system(config.system), _inputs(settings)
    workdir.mkdir(parents=True, exist_ok=True)
    system.fit(data, split, seed=seed, workdir=workdir)
    shutil.rmtree(workdir)
    return system


@cache
def _train_t2mrec(settings: str, work: Path, seed: int) -> Any:
    """T2MRec trained with a seed, once for every weight of its two scores."""
    return _fit_system(_inputs(settings)[0], settings, seed, work / f"training-{seed}")


def measure_trial(sweep: Sweep, settings: str, work: Path, values: dict[str, Any], point: int) -> dict[str, float]:
    """Fit with the values of a trial, its seed among them, and measure on every part; values task by task go to `work`.
    The paper's eight measures, and for T2MRec the separation of its vectors."""
    (base, data, split), seed = _inputs(settings), values["seed"]
    if sweep.kind == "scores":
        system = _train_t2mrec(settings, work, seed)
        system.scoring = replace(system.scoring, semantic_weight=values[FUSION_WEIGHT])
    else:
        config = with_values(base, sweep.settle({name: values[name] for name in sweep.space}))
        system = _fit_system(config, settings, seed, work / f"training-{point}")
    measures, tables = dict[str, float](), []
    for part in sweep.parts:
        tasks = split.tasks(part)
        ranked, _ = rank_tasks(system, split, tasks, part=part, k=KEPT, seed=seed)
        measured = per_task(ranked, split.part(part)[tasks], ks=CUTOFFS)[list(PAPER_METRICS)]
        table = per_task_table.table(data.tasks["id"].to_numpy()[tasks], seed, measured)
        measures |= {f"{part}/{name}": float(table[name].mean()) for name in PAPER_METRICS}
        tables.append(table.assign(part=part))
    write_parquet(work / f"{point}.parquet", pd.concat(tables))
    if type(system) is T2MRec and sweep.kind != "search" and PART in sweep.parts:
        depth, embedded = embedding_settings()["depth"], (system.task_embeddings, system.server_embeddings)
        apart = mean_separation(*embedded, split, PART, depth=depth)
        measures |= {f"separation/{name}": apart[name] for name in ("auc", "recall")}
    return measures


def _require_sweepable(sweep: Sweep, config: DictConfig) -> None:
    """Raise for what would else be found out by the first training or after it."""
    file = Sweep.file(sweep.name) if sweep.name in choices("sweep") else None
    if file and sweep.protocol not in config.system.protocols:
        problem, protocols = f"{sweep.system} is not applicable under {sweep.protocol!r}", config.system.protocols
        raise StudyError(problem, file=file, column="protocol", fix=f"one of its protocols: {', '.join(protocols)}")
    require_applicable(config)
    split_file(config.dataset.name, config.protocol.name)
    given = {"system": config.system.name, "protocol": config.protocol.name}
    changes = differences(given, {"system": sweep.system, "protocol": sweep.protocol})
    if changes := changes or (changes_of_own(config) if file else []):
        problem = f"these are not the settings of the sweep {sweep.name}: {summary(changes)}"
        fix = f"add --name {sweep.name}_own" if file else f"leave system= and protocol= out: it is of {sweep.system}"
        raise StudyError(f"{problem}; they would replace its results", file=file, fix=fix)
    for parameter in sweep.space:
        if value_of(config, parameter) is ABSENT:
            below = parameter.removeprefix("model.")  # where `study run` has it
            known = below != parameter and value_of(config, below) is not ABSENT
            fix = f"a space leaves out model: {below}" if known else f"see the yaml of {sweep.system}"
            raise StudyError(f"{sweep.system} has no setting {parameter!r}", file=file, column="space", fix=fix)
    require_sound(config.system.name)


def _write(sweep: Sweep, config: DictConfig, search: Search, folder: Path, table: pd.DataFrame) -> None:
    """Write all tables of a sweep. `table`: of its trials."""
    measured = [f"{part}/{metric}" for part in sweep.parts for metric in PAPER_METRICS]
    trials = table[["trial", "seed", *sweep.space, *measured, "seconds"]]
    best = best_point(sweep, trials)
    choice = {
        "system": TUNED.get(sweep.name, sweep.system),
        "sweep": sweep.name,
        "protocol": config.protocol.name,
        "objective": f"valid/{sweep.objective}",
        "trials": len(table),
        "seconds": round(float(table["seconds"].sum()), 1),
        **choose_settings(sweep, trials),
    }
    files = [search.work / search.key / f"{point}.parquet" for point in table["trial"]]
    if all(file.exists() for file in files):
        values = pd.concat(
            pd.read_parquet(file).assign(**{name: row[name] for name in sweep.space})
            for file, row in zip(files, trials.to_dict("records"), strict=True)
        )
        write_csv(folder / "comparisons.csv", against_best(sweep, values, best))
        if PART in sweep.parts:
            write_csv(folder / "per_task.csv.xz", _single_tasks(sweep, values, best))
    if "separation/auc" in table:
        apart = table.rename(columns=lambda name: name.removeprefix("separation/")).assign(part=PART)
        if sweep.kind == "scores":  # the fusion weight decides no embedding: a row a seed, with the configured weight
            weight = OmegaConf.select(config, f"system.model.{FUSION_WEIGHT}")
            apart = apart.drop_duplicates("seed").assign(**{FUSION_WEIGHT: weight})
        write_csv(folder / "separation.csv", apart[[*sweep.space, "seed", "part", "auc", "recall"]])
    about = {"dataset": config.dataset.name, "settings": asdict(sweep), "exact": sweep.kind == "search"}
    by = f"`study sweep {sweep.name}` on valid/{sweep.objective}."
    searches.write_search(config, folder, trials, choice, [search], by=by, key=search.key, **about)


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
    declared, names, rows, frames = read_yaml(paths.conf() / "statistics.yaml"), list(sweep.space), [], {}
    valid = values[values["part"] == "valid"].groupby(names, sort=False, dropna=False)
    for number, (setting, frame) in enumerate(valid):
        by_task = frame.groupby("task_id")[sweep.objective].mean().dropna()
        rows.append({"system": str(number), **dict(zip(names, setting, strict=True)), **mean_interval(by_task, seed=0)})
        frames[str(number)] = frame.drop(columns=[*names, "part"])
    table = pd.DataFrame(rows)
    tests = ["diff", "diff_ci_low", "diff_ci_high", "wilcoxon_p_holm", "randomisation_p_holm"]
    if len(frames) > 1:
        reference = table.loc[_same(table, best), "system"].iloc[0]
        compared = compare_all(frames, reference, [sweep.objective], seed=0)
        table = table.merge(compared[["system", *tests]], how="left", on="system")
    table = table.drop(columns="system").reindex(columns=[*names, "mean", "ci_low", "ci_high", *tests])
    table["same"] = table[f"{declared['test']}_p_holm"].fillna(1.0) >= declared["alpha"]
    return table.sort_values("mean", ascending=False)


def describe_values(folder: Path, sweep: Sweep) -> list[str]:
    """How the values of a sweep stand to the best on validation, in sentences: the best with its interval, the paper's,
    and what the declared test does not tell from the best. Without comparisons.csv the limits are one standard
    deviation over seeds, within which a value is not told from the best."""
    names, tested = list(sweep.space), (folder / "comparisons.csv").exists()
    if tested:
        table, limits = read_csv(folder / "comparisons.csv"), "95 %, over validation tasks"
    else:
        by_value = read_csv(folder / "trials.csv").groupby(names, sort=False, dropna=False)
        table = by_value[f"valid/{sweep.objective}"].agg(["mean", "std"]).reset_index()
        table = table.sort_values("mean", ascending=False, kind="stable", ignore_index=True)
        table = table.assign(ci_low=table["mean"] - table["std"], ci_high=table["mean"] + table["std"])
        # With one seed there are no limits, and every value may be the best.
        table["same"] = ~(table["mean"] < table["ci_low"].iloc[0])
        limits = "one standard deviation over seeds, no test"
    named = table[names].map(lambda value: "null" if pd.isna(value) else str(value)).agg(", ".join, axis=1)
    cells = zip(named, table["mean"], table["ci_low"], table["ci_high"], strict=True)
    lines = [
        f"{name}: {mean:.4f}{'' if pd.isna(low) else f' [{low:.4f}, {high:.4f}]'}" for name, mean, low, high in cells
    ]
    paper = table[names[0]] == sweep.paper_best if len(names) == 1 else pd.Series(False, table.index)
    same = list(named[table["same"]])[1:]
    more = f"; and {len(same) - FEW} more" if len(same) > FEW else ""
    return [
        f"best {lines[0]}",
        *(f"the paper's {lines[row]}" for row in table.index[paper]),
        f"cannot be told from the best: {'; '.join(same[:FEW]) or 'none'}{more}",
        f"limits: {limits}",
    ]


def _single_tasks(sweep: Sweep, values: pd.DataFrame, best: dict[str, Any]) -> pd.DataFrame:
    """The test tasks one by one, for the value that validation chose and for the paper's: what the tests of RQ3
    compare."""
    test, settings = values[values["part"] == PART], [best]
    if len(sweep.space) == 1 and sweep.paper_best not in (None, *best.values()):
        settings.append(dict.fromkeys(sweep.space, sweep.paper_best))
    parts = [test[_same(test, each)] for each in settings]
    return pd.concat(parts)[[*sweep.space, "task_id", "seed", *PAPER_METRICS]]
