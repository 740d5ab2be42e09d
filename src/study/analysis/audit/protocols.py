"""The grid of protocols: every system under each, resumable fit by fit, and which protocol gives the printed rows.

The inference compares the eight cells of a printed row with everything measured, by several metric definitions.
"""

from __future__ import annotations

import json
import logging
import shutil
import time
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Literal

import numpy as np
import pandas as pd
import scipy.sparse as sp
from omegaconf import DictConfig
from tqdm import tqdm

from study.analysis.audit.consistency import CELLS, DISCOUNT, IDEAL
from study.analysis.audit.verdicts import within
from study.analysis.framework import Context, Fits, Tables, analysis, kept_fits
from study.analysis.report import paper
from study.base import paths
from study.base.errors import StudyError
from study.base.registry import require_choice
from study.config.changes import with_tuned_values
from study.config.compose import build_system, load, plain
from study.data import dataset as datasets
from study.data import splits
from study.data.dataset import Dataset, IntArray
from study.data.splits import Split
from study.evaluation import metrics
from study.evaluation.metrics import Float64Array
from study.evaluation.records import git_state
from study.evaluation.runs import CUTOFFS, rank_tasks
from study.evaluation.statistics import harmonic_mean, percentile_limits
from study.evaluation.system import System
from study.runner.identity import normal_form
from study.runner.processes import limit_threads

LOG = logging.getLogger(__name__)
Key = tuple[str, str, int, str]  # protocol, system, seed and, as JSON, all else that decides the values of a cell
CHOICES = ("as defined", "nearest definition")


@dataclass(frozen=True)
class Variant:
    """One protocol of the grid: `prefix` servers of each list count, `negatives` compete (None: all)."""

    title: str
    labels: Literal["released", "longer"]
    prefix: int | None
    split: Literal["cold", "warm", "loo"]
    training: Literal["train", "everything"]
    negatives: int | None
    name: str = ""

    @property
    def fit(self) -> tuple[str, int | None, str]:
        """What decides a fit: variants that agree in it share one training."""
        return self.labels, self.prefix, "everything" if self.training == "everything" else self.split


@dataclass(frozen=True)
class Definition:
    """Which measure stands in a column of the paper's tables."""

    recall: Literal["recall", "recall_capped", "hit_rate"]
    f1: Literal["f1", "of_means"]
    ndcg: Literal["ndcg", "ndcg_found"]


@dataclass(frozen=True)
class Protocols:
    """The grid of protocols and how its result is read."""

    seeds: list[int]
    split_seed: int
    systems: list[str]
    pool: int
    tolerance: float
    draws: int
    seed: int
    protocols: dict[str, Variant]
    metric_definitions: dict[str, Definition]

    def __post_init__(self) -> None:
        for system in self.systems:
            require_choice("system", system)

    @property
    def variants(self) -> list[Variant]:
        """The protocols in the order of the file, with their names."""
        return [replace(variant, name=name) for name, variant in self.protocols.items()]


def protocol_fits(dataset: str) -> Fits:
    """The finished cells of the grid: a row per measure with its mean over tasks and the covariance of the means."""
    return kept_fits(dataset, "audit", "protocol_fits", ("protocol", "system", "seed", "settings"))


@dataclass(frozen=True)
class Exposed(Split):
    """A split whose training interactions hold what is asked for, and which hides nothing of it."""

    def known(self, name: str) -> sp.csr_matrix:
        """No interaction is left out of the ranking."""
        return sp.csr_matrix(self.train.shape, dtype=np.float32)


def labelled(data: Dataset, labels: str, prefix: int | None) -> Dataset:
    """The data set with the released or the longer lists, or their first `prefix` servers."""
    if labels == "longer":
        path = paths.prepared(data.name) / "labels_all.parquet"
        if not path.exists():
            raise StudyError("there are no longer lists", file=path, fix=f"run: study prepare dataset={data.name}")
        data = datasets.build(data.name, data.servers, data.tasks, pd.read_parquet(path))
    if prefix is None:
        return data
    lists = tuple(row[:prefix] for row in data.lists)
    return replace(data, lists=lists, relevance=datasets.relevance_from_lists(lists, data.n_servers))


def sampled(data: Dataset, test: sp.csr_matrix, *, negatives: int, seed: int) -> IntArray:
    """For every test task its test servers and at least `negatives` servers outside its whole list, in random order.

    Shape (n_test_tasks, n_candidates): tasks with fewer test servers get more negatives.
    """
    rng = np.random.default_rng([seed, negatives])
    rows = np.flatnonzero(np.diff(test.indptr))
    width = negatives + int(np.diff(test.indptr).max())
    chosen = np.empty((len(rows), width), dtype=np.int64)
    for out, row in zip(chosen, rows, strict=True):
        asked = test.indices[test.indptr[row] : test.indptr[row + 1]]
        outside = np.setdiff1d(np.arange(data.n_servers), data.lists[row])
        out[:] = rng.permutation(np.r_[asked, rng.choice(outside, width - len(asked), replace=False)])
    return chosen


def make(data: Dataset, variant: Variant, *, seed: int) -> Split:
    """The split of a protocol; `data` already has its labels, and `fits`."""
    split = splits.make(data, variant.split, seed=seed)
    if variant.training == "everything":
        split = Exposed(split.protocol, data.relevance, split.valid, split.test, cold=False)
    if variant.negatives is None:
        return split
    return replace(split, candidates=sampled(data, split.test, negatives=variant.negatives, seed=seed))


def measures(ranked: IntArray, relevant: sp.csr_matrix) -> pd.DataFrame:
    """Per task every measure of the metric definitions at both cutoffs, one column like ``recall_capped@5`` each.

    recall_capped is H / min(k, |M+|). ndcg_found divides by the best order of the servers that were found: it is 1 as
    soon as these come first. best_... is what the best re-ranking of the whole pool `ranked`, shape (b, at least 10),
    gives: a bound for every re-ranker of that pool.
    """
    table = metrics.per_task(ranked, relevant, ks=CUTOFFS)
    n_relevant, in_pool = metrics.n_relevant(relevant), metrics.ranked_gains(ranked, relevant, ranked.shape[1]) > 0
    for k in CUTOFFS:
        hits = in_pool[:, :k]
        found, best = hits.sum(axis=1), np.minimum(k, in_pool.sum(axis=1))
        table[f"recall_capped@{k}"] = found / np.minimum(k, n_relevant)
        table[f"ndcg_found@{k}"] = hits @ DISCOUNT[:k] / IDEAL[found]
        table[f"best_recall@{k}"], table[f"best_precision@{k}"] = best / n_relevant, best / k
        table[f"best_ndcg@{k}"] = np.where(best, IDEAL[best], 0.0) / IDEAL[np.minimum(k, n_relevant)]
    kinds = ["recall", "recall_capped", "hit_rate", "precision", "f1", "ndcg", "ndcg_found"]
    kinds += ["best_recall", "best_precision", "best_ndcg"]
    return table[[f"{name}@{k}" for name in kinds for k in CUTOFFS]]


def applicable(variant: Variant, protocols: list[str]) -> bool:
    """Whether a system can rank: one that is not for new tasks needs a history of every test task."""
    return "cold" in protocols or variant.split != "cold" or variant.training == "everything"


def fits(data: Dataset, variant: Variant) -> bool:
    """Whether the catalogue is large enough for a protocol's negatives; a small data set leaves the others out."""
    longest = max(len(row) for row in data.lists)
    return variant.negatives is None or data.n_servers >= variant.negatives + 2 * longest


def key_of(grid: Protocols, variant: Variant, config: DictConfig, seed: int) -> Key:
    """What names a cell of the grid: protocol, system, seed, and as JSON all else that decides its values."""
    own = {name: value for name, value in vars(variant).items() if name not in ("name", "title")}
    about = {"protocol": own, "split_seed": grid.split_seed, "pool": grid.pool, "system": plain(config.system)["model"]}
    return normal_key((variant.name, str(config.system.name), seed, json.dumps(about)))


def normal_key(key: Key) -> Key:
    """A key with its settings in today's form, so that a class of another name or a size in another form is no other
    cell."""
    protocol, system, seed, settings = key
    about = json.loads(settings)
    about["system"] = normal_form(about["system"])
    return protocol, system, seed, json.dumps(about, separators=(",", ":"), sort_keys=True)


def run_fit(data: Dataset, grid: Protocols, variants: list[Variant], config: DictConfig, seed: int) -> None:
    """Fit a system once and keep the cells of all `variants`, which share the fit; `data` has their labels."""
    made = {variant.name: make(data, variant, seed=grid.split_seed) for variant in variants}
    name, first = str(config.system.name), made[variants[0].name]
    workdir = paths.cache() / "audit" / data.name / f"{'-'.join(map(str, variants[0].fit))}-{name}-{seed}"
    workdir.mkdir(parents=True, exist_ok=True)
    system: System = build_system(config.system)
    started = time.perf_counter()
    system.fit(data, replace(first, candidates=None), seed=seed, workdir=workdir)
    seconds, kept = time.perf_counter() - started, protocol_fits(data.name)
    for variant in variants:
        split = made[variant.name]
        tasks = split.tasks("test")
        ranked, _ = rank_tasks(system, split, tasks, part="test", k=grid.pool, seed=seed)
        table = measures(ranked, split.test[tasks])
        # The covariance of the means is what intervals of any function of them need; per-task values are not kept.
        covariance = pd.DataFrame(np.cov(table.to_numpy().T) / len(table), columns="covariance " + table.columns)
        rows = pd.DataFrame({"measure": list(table), "mean": table.mean().round(9).to_numpy()})
        rows = rows.join(covariance.map(lambda value: float(f"{value:.6g}")))
        about: dict[str, Any] = dict(zip(kept.keys, key_of(grid, variant, config, seed), strict=True))
        about |= {"tasks": len(tasks), "seconds_fit": round(seconds, 2), "profile": str(config.profile.name)}
        kept.add(rows.assign(**about, commit=git_state()["commit"]))
    shutil.rmtree(workdir)


@dataclass(frozen=True)
class Measured:
    """One protocol and system of the grid as run."""

    variant: str
    title: str
    system: str
    seeds: int
    tasks: int
    mean: pd.Series  # over tasks and seeds, by measure
    draws: pd.DataFrame  # normal draws of the mean over tasks, a column per measure: the uncertainty


def printed_form(means: pd.Series | pd.DataFrame, definition: Definition) -> Float64Array:
    """The eight columns of the paper's tables under one definition of the metrics, as `PAPER_METRICS`.

    means: of measures like ``recall_capped@5``, or a row of them each. Returns: shape (8,), or (rows, 8).
    """
    columns: dict[str, Any] = {}
    for k in CUTOFFS:
        precision, recall = means[f"precision@{k}"], means[f"{definition.recall}@{k}"]
        of_means = harmonic_mean(precision, recall)
        columns |= {f"recall@{k}": recall, f"precision@{k}": precision, f"ndcg@{k}": means[f"{definition.ndcg}@{k}"]}
        columns[f"f1@{k}"] = of_means if definition.f1 == "of_means" else means[f"f1@{k}"]
    return np.stack([columns[name] for name in CELLS], axis=-1)


def distance(measured: Float64Array, printed: Float64Array) -> Float64Array:
    """Root mean square difference of the eight cells (the Euclidean norm over the square root of 8), shape (...)."""
    result: Float64Array = np.sqrt(np.mean((measured - printed) ** 2, axis=-1))
    return result


def cells(dataset: str, grid: Protocols) -> list[Measured]:
    """The protocols and systems of the grid that have been run, in its order."""
    found: list[Measured] = []
    known = protocol_fits(dataset).load()
    if missing := {"mean", "measure", "tasks"} - set(known) if len(known) else set():
        fix, path = "remove the file and run: study analyse audit/protocols", protocol_fits(dataset).path
        raise StudyError("not the cells of the protocol grid", file=path, column=min(missing), fix=fix)
    of_cell = dict(list(known[known["seed"].isin(grid.seeds)].groupby(["protocol", "system"], sort=False)))
    for variant, system in product(grid.variants, grid.systems):
        if (rows := of_cell.get((variant.name, system))) is not None:
            kept = [part.set_index("measure") for _, part in rows.groupby("seed", sort=False)]
            names = kept[0].index
            mean = np.mean([part["mean"].to_numpy() for part in kept], axis=0)
            # The seeds ask the same tasks, so averaging them does not make the tasks more.
            covariance = np.mean([part["covariance " + names].to_numpy() for part in kept], axis=0)
            rng = np.random.default_rng([grid.seed, len(found)])
            draws = rng.multivariate_normal(mean, covariance, size=grid.draws, method="eigh", check_valid="ignore")
            about = (variant.name, variant.title, system, len(kept), int(kept[0]["tasks"].iloc[0]))
            found.append(Measured(*about, pd.Series(mean, names), pd.DataFrame(draws, columns=names)))
    return found


def measured_table(found: list[Measured]) -> pd.DataFrame:
    """What every cell of the grid gives, with 95 % intervals over tasks."""
    lines = []
    for cell in found:
        about = (cell.variant, cell.title, cell.system, cell.seeds, cell.tasks)
        for name, value in cell.mean.items():
            measure, k = str(name).split("@")
            lines.append((*about, measure, int(k), float(value), *percentile_limits(cell.draws[name])))
    columns = ["variant", "title", "system", "seeds", "tasks", "measure", "k", "value", "ci_low", "ci_high"]
    return pd.DataFrame(lines, columns=columns)


def infer(rows: pd.DataFrame, found: list[Measured], grid: Protocols) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Distances of printed rows to everything measured, and the nearest protocol of each row.

    `rows` is in the form of `printed_rows`. The distances hold, per row, protocol and system, the first metric
    definition (the paper's) and the nearest one; `largest` is the largest difference of a cell. The inference holds,
    per row, the `nearest` of its own system and of the others.
    """
    distances: list[dict[str, Any]] = []
    inference = []
    for row in rows.to_dict("records"):
        printed = np.array([row[name] for name in CELLS], dtype=np.float64)
        best, drawn = [], []
        for cell in found:
            values = {title: printed_form(cell.mean, columns) for title, columns in grid.metric_definitions.items()}
            gaps = {title: float(distance(value, printed)) for title, value in values.items()}
            for choice, title in zip(CHOICES, (next(iter(gaps)), min(gaps, key=lambda name: gaps[name])), strict=True):
                spread = distance(printed_form(cell.draws, grid.metric_definitions[title]), printed)
                low, high = percentile_limits(spread)
                off = np.abs(values[title] - printed)
                line = {"table": row["table"], "row": row["row"], "variant": cell.variant, "title": cell.title}
                line |= {"system": cell.system, "choice": choice, "definition": title, "distance": gaps[title]}
                line |= {"ci_low": low, "ci_high": high, "largest": float(off.max())}
                line |= {"cells_within": int(within(off, grid.tolerance).sum())}
                distances.append(line | {"trivial": bool((printed <= grid.tolerance).all())})
            best.append(distances[-1])
            drawn.append(spread)
        own = [i for i, cell in enumerate(found) if cell.system == row["own"]]
        others = [i for i in range(len(found)) if i not in own]
        for question, kept in (("own system", own), ("other systems", others)):
            if kept:
                inference.append(nearest([best[i] for i in kept], np.array(drawn)[kept], question, grid))
    return pd.DataFrame(distances), pd.DataFrame(inference)


def nearest(lines: list[dict[str, Any]], draws: Float64Array, question: str, grid: Protocols) -> dict[str, Any]:
    """The line of the nearest protocol, with how sure it is and which one comes next.

    draws: distances of the draws, shape (lines, draws); `share` of them have the same protocol nearest. `compared`
    counts combinations of protocol, system and definition. `gives`: all eight cells are within the tolerance.
    """
    order = np.argsort([line["distance"] for line in lines], kind="stable")
    best, second = lines[order[0]], lines[order[1]] if len(order) > 1 else {}
    taken = ("variant", "title", "system", "definition", "distance", "ci_low", "ci_high", "largest", "cells_within")
    found = {"table": best["table"], "row": best["row"], "question": question} | {name: best[name] for name in taken}
    found |= {"gives": bool(within(best["largest"], grid.tolerance)), "trivial": best["trivial"]}
    found |= {"compared": len(lines) * len(grid.metric_definitions)}
    found |= {"share": float((draws.argmin(axis=0) == order[0]).mean())}
    found |= {"next_variant": second.get("variant", ""), "next_system": second.get("system", "")}
    return found | {"next_distance": second.get("distance", float("nan"))}


def inference_tables(dataset: str, grid: Protocols) -> Tables:
    """protocol_cells and, for the paper's data set, protocol_distances and protocol_inference."""
    found = cells(dataset, grid)
    if not found:
        path, fix = protocol_fits(dataset).path, f"run: study analyse audit/protocols dataset={dataset}"
        raise StudyError("no cell of the protocol grid has been run", file=path, fix=fix)
    tables = {"protocol_cells": measured_table(found)}
    if paper.describes(dataset):
        tables["protocol_distances"], tables["protocol_inference"] = infer(paper.printed_rows(), found, grid)
    return tables


@analysis("audit", slow=True, packed=("protocol_cells", "protocol_distances"))
def protocols(study: Context) -> Tables:
    """Which protocol gives the printed rows? All systems of the grid under all of its protocols.

    A stopped run goes on from the finished fits; cells whose settings have changed are run again.
    """
    grid, dataset, config = study.settings(Protocols), study.dataset, study.config
    limit_threads(config.profile.threads)
    kept, jobs = protocol_fits(dataset), []
    wanted, finished = list[Key](), {normal_key(key) for key in kept.finished()}
    for name in grid.systems:
        chosen = with_tuned_values(load([f"dataset={dataset}", f"system={name}", f"profile={config.profile.name}"]))
        protocols_of = list(chosen.system.protocols)
        able = [each for each in grid.variants if fits(study.data, each) and applicable(each, protocols_of)]
        for fit in dict.fromkeys(variant.fit for variant in able):
            for seed in grid.seeds:
                keys = {variant: key_of(grid, variant, chosen, seed) for variant in able if variant.fit == fit}
                wanted += keys.values()
                missing = [variant for variant, key in keys.items() if key not in finished]
                jobs += [(chosen, fit, missing, seed)] if missing else []
    for chosen, fit, variants, seed in tqdm(jobs, desc="protocols", unit="fit", disable=None):
        LOG.info("%s under %s, seed %d", chosen.system.name, ", ".join(variant.name for variant in variants), seed)
        run_fit(labelled(study.data, fit[0], fit[1]), grid, variants, chosen, seed)
    stored = {normal_key(key): key for key in kept.finished()}
    kept.save(stored[key] for key in wanted)
    return inference_tables(dataset, grid)
