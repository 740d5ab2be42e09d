"""Does the order of the systems survive other choices: seeds, splits, labels, metric, tie rule, judged usefulness?

Every choice gives one score per system; Kendall's tau-b and Spearman's rho compare its order with the base order
(``conf/audit/robustness.yaml``). Families `APART` take no part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sp
from omegaconf import DictConfig
from tqdm import tqdm

from study.analysis.audit.protocols import labelled
from study.analysis.framework import Context, Fits, Tables, analysis, kept_fits, load_settings, settings_file
from study.analysis.report.runs import APART
from study.base import paths
from study.base.errors import StudyError
from study.base.files import read_csv
from study.config.changes import with_tuned_values
from study.config.compose import build_system, choices, load, sound_systems
from study.data import dataset as datasets
from study.data import splits
from study.data.dataset import Dataset
from study.data.splits import Split
from study.evaluation import metrics
from study.evaluation.per_task import KEYS
from study.evaluation.ranking import chunks, top_k
from study.evaluation.records import git_state
from study.evaluation.runs import KEPT, run_seed
from study.evaluation.statistics import paired, paired_resamples, percentile_limits, rank_correlation
from study.evaluation.system import Ranker
from study.runner.identity import row_key
from study.runner.row_store import list_rows, read_per_task, read_top10, rows_folder

Scores = pd.DataFrame  # one row per system, one column per task
Row = dict[str, object]
USUAL = "seeded permutation"  # the study's tie rule
# How the family of each variant is called, in the order of the tables and figures.
FAMILIES = ("seeds", "metric", "labels", "tie rule", "protocol", "random splits", "judged")


@dataclass(frozen=True)
class Robustness:
    """The order of the systems under other choices."""

    protocol: str
    metric: str
    metrics: list[str]
    prefixes: list[int]
    split_seeds: list[int]
    split_systems: dict[str, list[str]]
    few_splits: dict[str, int]
    differences: dict[str, list[list[str]]]
    system_seed: int
    resamples: int
    seed: int


def ranked_systems() -> list[str]:
    """The configured systems that do not stand apart, as oracles and reference bugs do."""
    settings = sound_systems()
    return [name for name in choices("system") if settings[name].family not in APART]


def correlations(base: Scores, other: Scores, *, resamples: int, seed: int) -> Row:
    """Both rank correlations between the systems' means, with 95 % bootstrap intervals; NaN for fewer than two systems.

    Only systems that both sides have are compared. Tasks are drawn once for both sides where they have the same tasks,
    else for each side on its own.
    """
    common = [name for name in base.index if name in other.index]
    names = [f"{name}{end}" for name in ("tau", "rho") for end in ("", "_low", "_high")]
    if len(common) < 2:
        return {"systems": len(common), **dict.fromkeys(names, np.nan)}
    a, b = (frame.loc[common].to_numpy(np.float64) for frame in (base, other))
    same = base.columns.equals(other.columns)
    resampled = paired_resamples(a.shape[1], b.shape[1], same=same, seed=seed, resamples=resamples)
    drawn = [rank_correlation(a[:, left].mean(axis=1), b[:, right].mean(axis=1)) for left, right in resampled]
    tau, rho = rank_correlation(a.mean(axis=1), b.mean(axis=1))
    taus, rhos = zip(*drawn, strict=True)
    values = (tau, *percentile_limits(taus), rho, *percentile_limits(rhos))
    return {"systems": len(common), **dict(zip(names, values, strict=True))}


def task_scores(frames: Mapping[str, pd.DataFrame], metric: str, seed: int | None = None) -> Scores:
    """One row per system, one column per task: the metric of one seed, or averaged over seeds."""
    parts = {name: frame if seed is None else frame[frame["seed"] == seed] for name, frame in frames.items()}
    rows = {name: part.groupby("task_id")[metric].mean() for name, part in parts.items() if len(part)}
    return pd.DataFrame(rows).T.dropna(axis=1)


def seed_table(frames: Mapping[str, pd.DataFrame], metric: str, *, resamples: int, seed: int) -> list[Row]:
    """The order by one seed against the order by another, for every pair of seeds that two systems or more have."""
    seeds = {name: {int(value) for value in frame["seed"].unique()} for name, frame in frames.items()}
    rows = []
    for a, b in combinations(sorted(set().union(*seeds.values())), 2):
        both = {name: frame for name, frame in frames.items() if {a, b} <= seeds[name]}
        if len(both) > 1:
            scores = (task_scores(both, metric, one) for one in (a, b))
            found = correlations(*scores, resamples=resamples, seed=seed)
            rows.append({"family": "seeds", "variant": f"seed {a} against seed {b}"} | found)
    return rows


def relabelled(split: Split, data: Dataset, runs: Mapping[str, pd.DataFrame], metric: str) -> Scores:
    """As `task_scores`: kept top tens, by system, against the lists that `data` has of the split's test tasks."""
    (name, _, k), tasks = metric.partition("@"), split.tasks("test")
    ids, relevant, rows = data.tasks["id"].to_numpy()[tasks], sp.csr_matrix(data.relevance[tasks]), {}
    task, server = (pd.Series(np.arange(len(known)), index=known) for known in (ids, data.servers["id"]))
    for system, run in runs.items():
        by_seed = []
        for _, part in run.groupby("seed"):
            ranked = np.full((len(ids), KEPT), -1, dtype=np.int64)
            ranked[task.loc[part["task_id"]], part["rank"] - 1] = server.loc[part["server_id"]]
            by_seed.append(metrics.PER_TASK[name](ranked, relevant, int(k)))
        rows[system] = pd.Series(np.mean(by_seed, axis=0), index=ids)
    return pd.DataFrame(rows).T.dropna(axis=1)


def label_table(
    dataset: str, data: Dataset, protocol: str, frames: Mapping[str, pd.DataFrame], settings: Robustness
) -> list[Row]:
    """Longer lists, and lists cut after their first servers, in place of the test labels; training is as it was."""
    split = splits.load(paths.splits(dataset) / f"{protocol}.parquet", data)
    if not split.cold:
        said = "label variants need a protocol that asks a test task for its whole list"
        raise StudyError(said, file=settings_file(Robustness), column="protocol", fix="use cold")
    variants = {f"first {n} labels": labelled(data, "released", n) for n in settings.prefixes}
    if (paths.prepared(dataset) / "labels_all.parquet").exists():
        variants["mcp_task_all.csv"] = labelled(data, "longer", None)
    base, runs, rows = task_scores(frames, settings.metric), read_top10(dataset, protocol, frames), list[Row]()
    for name, changed in variants.items():
        scores = relabelled(split, changed, runs, settings.metric)
        found = correlations(base, scores, resamples=settings.resamples, seed=settings.seed)
        rows.append({"family": "labels", "variant": name} | found)
    return rows


def split_fits(dataset: str) -> Fits:
    """The finished runs on further splits: a row per tie rule and metric with the mean over the test tasks."""
    return kept_fits(dataset, "robustness", "split_fits", ("protocol", "system", "split_seed", "fingerprint"))


def run_splits(config: DictConfig) -> pd.DataFrame:
    """Run the cheap systems on further random splits. Fits of the same fingerprint are kept, others are dropped."""
    settings, dataset = load_settings(Robustness), str(config.dataset.name)
    data, fits = datasets.load(dataset), split_fits(dataset)
    shared = [f"dataset={dataset}", f"profile={config.profile.name}"]
    composed = {
        (protocol, system): with_tuned_values(load([f"system={system}", f"protocol={protocol}", *shared]))
        for protocol, systems in settings.split_systems.items()
        for system in systems
    }
    prints = {key: row_key(chosen) for key, chosen in composed.items()}
    wanted = [
        (protocol, system, seed, made)
        for number, seed in enumerate(settings.split_seeds)
        for (protocol, system), made in prints.items()
        if number < settings.few_splits.get(system, len(settings.split_seeds))
    ]
    finished = fits.finished()
    jobs = [key for key in wanted if key not in finished]
    for key in tqdm(jobs, desc="random splits", unit="run", disable=None):
        protocol, system, seed, _ = key
        split = splits.make(data, protocol, seed=seed)
        rows = split_run(composed[protocol, system], data, split, system_seed=settings.system_seed)
        fits.add(rows.assign(**dict(zip(fits.keys, key, strict=True)), commit=git_state()["commit"]))
    return fits.save(wanted)


def split_run(config: DictConfig, data: Dataset, split: Split, *, system_seed: int) -> pd.DataFrame:
    """Metric means of one system on one split by the study's tie rule and, for systems that score new tasks, by two
    others (a task with a history would have to be spared its own servers)."""
    system = build_system(config.system)
    workdir = paths.cache() / "audit" / str(config.system.name)
    workdir.mkdir(parents=True, exist_ok=True)
    frames = {USUAL: run_seed(system, data, split, seed=system_seed, workdir=workdir).per_task.drop(columns=KEYS)}
    if split.cold and not isinstance(system, Ranker):
        ascending = np.argsort(data.servers["id"].to_numpy(), kind="stable")
        tasks = split.tasks("test")
        for rule, order in (("by id, ascending", ascending), ("by id, descending", ascending[::-1])):
            scores = (np.array(system.score(tasks[piece]), dtype=np.float32) for piece in chunks(tasks))
            ranked = [top_k(each, KEPT, order)[0] for each in scores]
            frames[rule] = metrics.per_task(np.concatenate(ranked), sp.csr_matrix(split.test[tasks]))
    means = [(rule, name, float(value)) for rule, frame in frames.items() for name, value in frame.mean().items()]
    return pd.DataFrame(means, columns=["tie_rule", "metric", "value"])


def split_table(runs: pd.DataFrame, base: Scores, metric: str) -> list[Row]:
    """The order on each further split against the base order, and with other tie rules against the study's; intervals
    are the 2.5 and 97.5 % quantiles over splits."""
    wide = runs[runs["metric"] == metric].pivot_table("value", ["tie_rule", "split_seed"], "system")
    by_rule = {str(rule): part.droplevel(0).dropna(axis=1) for rule, part in wide.groupby(level=0)}
    usual, means = by_rule.pop(USUAL), base.mean(axis=1)
    known = [str(name) for name in usual if name in means.index]
    sides: dict[tuple[str, str], list[tuple[Any, Any]]] = {
        ("random splits", "further split against the study's"): [
            (means[known], usual.loc[split, known]) for split in usual.index
        ],
        ("random splits", "further split against another"): [
            (usual.loc[a], usual.loc[b]) for a, b in combinations(usual.index, 2)
        ],
    }
    for rule, other in by_rule.items():
        names = [name for name in usual if name in other]
        sides["tie rule", rule] = [(usual.loc[split, names], other.loc[split, names]) for split in other.index]
    rows: list[Row] = []
    for (family, variant), both in sides.items():
        row: Row = {"family": family, "variant": variant, "systems": len(known)}
        values = np.array([rank_correlation(a.to_numpy(), b.to_numpy()) for a, b in both])
        for name, side in zip(("tau", "rho"), values.T, strict=False):
            low, high = percentile_limits(side)
            row |= {name: side.mean(), f"{name}_low": low, f"{name}_high": high}
        row |= {"n": len(both), "unit": "pairs of splits" if "another" in variant else "splits"}
        rows += [row] if both else []
    return rows


def components(
    system: pd.DataFrame, reference: pd.DataFrame, metric: str, *, n_tasks: int, over_splits: Sequence[float] = ()
) -> dict[str, float]:
    """The standard deviations of the mean difference of two systems, seeds averaged.

    Args:
        system, reference: per-task tables of the same test tasks.
        n_tasks: of the data set; splits draw their test tasks from them without replacement, so a mean over n of them
            varies less by 1 - n / n_tasks (Cochran 1977, eq. 2.10).
        over_splits: the difference on each further split, one seed each.

    Returns: n (test tasks), diff, task_sd (standard error over tasks), seeds, reference_seeds, seed_sd (both sides'
    means over their seeds), splits, split_diff (mean over the splits), split_sd (over the splits, where tasks and
    seeds differ too), split_alone_sd (what tasks and single seeds leave of it, at least 0). NaN where one seed or too
    few splits tell nothing.
    """
    pairs = paired(system, reference, metric)
    difference, n = pairs["system"] - pairs["reference"], len(pairs)
    by_seed = [frame.groupby("seed")[metric].mean() for frame in (system, reference)]
    (seeds, others), (own, other) = map(len, by_seed), (float(means.var(ddof=1)) for means in by_seed)
    tasks = float(difference.var(ddof=1)) / n
    further = pd.Series(over_splits, dtype=float)
    alone = np.maximum(further.var(ddof=1) - (1 - n / n_tasks) * tasks - own - other, 0)  # keeps NaN
    return {
        "n": n,
        "diff": float(difference.mean()),
        "task_sd": tasks**0.5,
        "seeds": seeds,
        "reference_seeds": others,
        "seed_sd": (own / seeds + other / others) ** 0.5,
        "splits": len(further),
        "split_diff": further.mean(),
        "split_sd": further.std(ddof=1),
        "split_alone_sd": float(alone) ** 0.5,
    }


def variance_table(dataset: str, n_tasks: int, settings: Robustness, runs: pd.DataFrame) -> pd.DataFrame:
    """`components` of the configured differences whose systems both ran; `runs`: of `split_fits`."""
    kept = runs[(runs["metric"] == settings.metric) & (runs["tie_rule"] == USUAL)]
    values, rows = kept.pivot_table("value", "split_seed", ["protocol", "system"]), []
    for protocol, pairs in settings.differences.items():
        for system, reference in pairs:
            frames = list(read_per_task(dataset, protocol, (system, reference)).values())
            if len(frames) == 2:
                own, other = (protocol, system), (protocol, reference)
                further = (values[own] - values[other]).dropna().tolist() if {own, other} <= set(values) else []
                about = {"protocol": protocol, "system": system, "reference": reference, "metric": settings.metric}
                found = components(frames[0], frames[1], settings.metric, n_tasks=n_tasks, over_splits=further)
                rows.append(about | found)
    return pd.DataFrame(rows)


def judged_table(dataset: str) -> list[Row]:
    """The order by judged usefulness against the order by released labels, from the judged collection's tables."""
    path = paths.results(dataset) / "judged" / "tables" / "rank_correlation.csv"
    views = path.with_name("two_views.csv")
    if not path.exists() or not views.exists():
        return []
    means, rows = read_csv(views), []
    for row in read_csv(path).to_dict("records"):
        both = means[means["part"] == row["part"]]
        _, rho = rank_correlation(both["by_labels"].to_numpy(), both["by_judgements"].to_numpy())
        line: Row = {"family": "judged", "variant": f"judged usefulness, {row['part']} topics"}
        line |= {"systems": row["systems"], "tau": row["tau"], "tau_low": row["topics_ci_low"]}
        rows.append(line | {"tau_high": row["topics_ci_high"], "rho": rho, "n": row["topics"], "unit": "topics"})
    return rows


@analysis("robustness", name="order", slow=True)
def robustness(study: Context) -> Tables:
    """Does the order of the systems survive other choices than the study's?

    Runs what is missing of the further splits. Tables: rank_robustness and (where further splits ran) variance. Raises
    StudyError where fewer than two systems ran under the base protocol.
    """
    settings, runs = study.settings(Robustness), run_splits(study.config)
    dataset, metric, ranked = study.dataset, settings.metric, ranked_systems()
    frames = read_per_task(dataset, settings.protocol, ranked)
    if len(frames) < 2:
        said = f"{len(frames)} systems ran under {settings.protocol!r}, an order needs two"
        fix = f"run: study run system=tfidf dataset={dataset}"
        raise StudyError(said, file=rows_folder(dataset), fix=fix)
    base, options = task_scores(frames, metric), {"resamples": settings.resamples, "seed": settings.seed}
    rows = seed_table(frames, metric, **options) + label_table(dataset, study.data, settings.protocol, frames, settings)
    others = [("metric", name, frames, name) for name in settings.metrics]
    for protocol in sorted({protocol for protocol, _ in list_rows(dataset)} - {settings.protocol}):
        there = read_per_task(dataset, protocol, ranked)
        if len(there) > 1 and metric in next(iter(there.values())):
            others.append(("protocol", protocol, there, metric))
    for family, variant, tables, name in others:
        rows.append({"family": family, "variant": variant} | correlations(base, task_scores(tables, name), **options))
    rows = [row | {"n": base.shape[1], "unit": "tasks"} for row in rows]
    if len(same := runs[runs["protocol"] == settings.protocol]):
        rows += split_table(same, base, metric)
    rows += judged_table(dataset)
    frame = pd.DataFrame(rows).assign(base=f"{settings.protocol}, {metric}")
    made = {"rank_robustness": frame.sort_values("family", key=lambda names: names.map(FAMILIES.index), kind="stable")}
    variance = variance_table(dataset, study.data.n_tasks, settings, runs)
    return made | ({"variance": variance} if len(variance) else {})
