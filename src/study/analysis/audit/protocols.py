"""The grid of protocols: every system under each, resumable fit by fit; `rq1` says which one gives a printed row."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
import scipy.sparse as sp
from omegaconf import DictConfig
from tqdm import tqdm

from study.analysis.audit.consistency import CELLS, DISCOUNT, IDEAL
from study.analysis.framework import Context, Fits, Tables, analysis, kept_fits
from study.base import paths
from study.base.errors import require_file
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

Key = tuple[str, str, int, str]  # protocol, system, seed and, as JSON, all else that decides the values of a cell


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
    draws: int
    seed: int
    protocols: dict[str, Variant]
    metric_definitions: dict[str, Definition]

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


def replace_lists(data: Dataset, labels: str, prefix: int | None) -> Dataset:
    """The data set with the released or the longer lists, or their first `prefix` servers."""
    if labels == "longer":
        path, fix = paths.prepared(data.name) / "labels_all.parquet", f"run: study prepare dataset={data.name}"
        longer = pd.read_parquet(require_file(path, fix, "there are no longer lists"))
        data = datasets.build(data.name, data.servers, data.tasks, longer)
    if prefix is None:
        return data
    lists = tuple(row[:prefix] for row in data.lists)
    return replace(data, lists=lists, relevance=datasets.relevance_from_lists(lists, data.n_servers))


def sample_candidates(data: Dataset, test: sp.csr_matrix, *, negatives: int, seed: int) -> IntArray:
    """For every test task its test servers and at least `negatives` servers outside its whole list, in random order.
    Shape (n_test_tasks, n_candidates): tasks with fewer test servers get more negatives."""
    rng = np.random.default_rng([seed, negatives])
    rows = np.flatnonzero(np.diff(test.indptr))
    width = negatives + int(np.diff(test.indptr).max())
    chosen = np.empty((len(rows), width), dtype=np.int64)
    for out, row in zip(chosen, rows, strict=True):
        relevant = test.indices[test.indptr[row] : test.indptr[row + 1]]
        outside = np.setdiff1d(np.arange(data.n_servers), data.lists[row])
        out[:] = rng.permutation(np.r_[relevant, rng.choice(outside, width - len(relevant), replace=False)])
    return chosen


def make(data: Dataset, variant: Variant, *, seed: int) -> Split:
    """The split of a protocol; `data` already has its labels."""
    split = splits.make(data, variant.split, seed=seed)
    if variant.training == "everything":
        split = Exposed(split.protocol, data.relevance, split.valid, split.test, cold=False)
    if variant.negatives is None:
        return split
    return replace(split, candidates=sample_candidates(data, split.test, negatives=variant.negatives, seed=seed))


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
        n_hits, best = hits.sum(axis=1), np.minimum(k, in_pool.sum(axis=1))
        table[f"recall_capped@{k}"] = n_hits / np.minimum(k, n_relevant)
        table[f"ndcg_found@{k}"] = hits @ DISCOUNT[:k] / IDEAL[n_hits]
        table[f"best_recall@{k}"], table[f"best_precision@{k}"] = best / n_relevant, best / k
        table[f"best_ndcg@{k}"] = np.where(best, IDEAL[best], 0.0) / IDEAL[np.minimum(k, n_relevant)]
    kinds = ["recall", "recall_capped", "hit_rate", "precision", "f1", "ndcg", "ndcg_found"]
    kinds += ["best_recall", "best_precision", "best_ndcg"]
    return table[[f"{name}@{k}" for name in kinds for k in CUTOFFS]]


def applicable(variant: Variant, protocols: Collection[str], data: Dataset) -> bool:
    """Whether a system can rank, as one that is not for new tasks needs a history of every test task, and the catalogue
    is large enough for a protocol's negatives."""
    ranks = "cold" in protocols or variant.split != "cold" or variant.training == "everything"
    return ranks and (variant.negatives or 0) + 2 * max(map(len, data.lists)) <= data.n_servers


def key_of(grid: Protocols, variant: Variant, config: DictConfig, seed: int) -> Key:
    """What names a cell of the grid: protocol, system, seed, and as JSON all else that decides its values."""
    about = {"split_seed": grid.split_seed, "pool": grid.pool, "system": plain(config.system)["model"]}
    about["protocol"] = {name: value for name, value in vars(variant).items() if name not in ("name", "title")}
    return normal_key((variant.name, str(config.system.name), seed, json.dumps(about)))


def normal_key(key: Key) -> Key:
    """A key with its settings in today's form, so that a class of another name or a size in another form is no other
    cell."""
    protocol, system, seed, settings = key
    about = json.loads(settings)
    about["system"] = normal_form(about["system"])
    return protocol, system, seed, json.dumps(about, separators=(",", ":"), sort_keys=True)


def measured_rows(system: System, split: Split, *, pool: int, seed: int) -> pd.DataFrame:
    """A cell of `protocol_fits`: every measure with its mean over the test tasks and the covariances of the means,
    which are what intervals of any function of them need."""
    tasks = split.tasks("test")
    ranked, _ = rank_tasks(system, split, tasks, part="test", k=pool, seed=seed)
    table = measures(ranked, split.test[tasks])
    covariance = pd.DataFrame(np.cov(table.to_numpy().T) / len(table), columns="covariance " + table.columns)
    rows = pd.DataFrame({"measure": list(table), "mean": table.mean().round(9).to_numpy()})
    rows = rows.join(covariance.map(lambda value: float(f"{value:.6g}")))
    return rows.assign(tasks=len(tasks), commit=git_state()["commit"])


class Measured(NamedTuple):
    """One protocol and system of the grid as run."""

    variant: str
    title: str
    system: str
    seeds: int
    tasks: int
    mean: pd.Series  # over tasks and seeds, by measure
    draws: pd.DataFrame  # normal draws of the mean over tasks, a column per measure: the uncertainty


def printed_form(means: pd.Series | pd.DataFrame, definition: Definition) -> Float64Array:
    """The eight columns of the paper's tables under one definition of the metrics, as `PAPER_METRICS`. means: of
    measures like ``recall_capped@5``, or a row of them each. Returns: shape (8,), or (rows, 8)."""
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
    measured: list[Measured] = []
    stored = protocol_fits(dataset).load()
    of_cell = dict(list(stored[stored["seed"].isin(grid.seeds)].groupby(["protocol", "system"], sort=False)))
    for variant, system in product(grid.variants, grid.systems):
        if (rows := of_cell.get((variant.name, system))) is not None:
            by_seed = [part.set_index("measure") for _, part in rows.groupby("seed", sort=False)]
            names = by_seed[0].index
            mean = np.mean([part["mean"].to_numpy() for part in by_seed], axis=0)
            # The seeds ask the same tasks, so averaging them does not make the tasks more.
            covariance = np.mean([part["covariance " + names].to_numpy() for part in by_seed], axis=0)
            rng = np.random.default_rng([grid.seed, len(measured)])
            draws = mean + rng.standard_normal((grid.draws, len(mean))) @ symmetric_root(covariance)
            about = (variant.name, variant.title, system, len(by_seed), int(by_seed[0]["tasks"].iloc[0]))
            measured.append(Measured(*about, pd.Series(mean, names), pd.DataFrame(draws, columns=names)))
    return measured


def symmetric_root(covariance: Float64Array) -> Float64Array:
    """The symmetric R with R R = `covariance`, shape (d, d). There is one alone, whatever signs and order a processor
    gives the eigenvectors, so that draws by it are the same everywhere."""
    values, vectors = np.linalg.eigh(covariance)
    return np.asarray((vectors * np.sqrt(values.clip(min=0.0))) @ vectors.T)


def measured_table(measured: list[Measured]) -> pd.DataFrame:
    """What every cell of the grid gives, with 95 % intervals over tasks."""
    lines = [
        (*cell[:5], *str(name).split("@"), float(value), *percentile_limits(cell.draws[name]))
        for cell in measured
        for name, value in cell.mean.items()
    ]
    columns = [*Measured._fields[:5], "measure", "k", "value", "ci_low", "ci_high"]
    return pd.DataFrame(lines, columns=columns).astype({"k": int})


@analysis("audit", slow=True, packed=("protocol_cells",))
def protocols(study: Context) -> Tables:
    """What does each protocol give? All systems of the grid under all of its protocols.

    A stopped run goes on from the finished fits; cells whose settings have changed are run again.
    """
    grid, dataset, config = study.settings(Protocols), study.dataset, study.config
    limit_threads(config.profile.threads)
    store, groups = protocol_fits(dataset), dict[tuple[Any, ...], dict[tuple[Any, ...], Variant]]()
    finished = {normal_key(key): key for key in store.read_keys()}
    shared = [f"dataset={dataset}", f"profile={config.profile.name}"]
    composed = {name: with_tuned_values(load([f"system={name}", *shared])) for name in grid.systems}
    for (name, chosen), variant, seed in product(composed.items(), grid.variants, grid.seeds):
        if applicable(variant, chosen.system.protocols, study.data):
            key = key_of(grid, variant, chosen, seed)
            groups.setdefault((name, variant.fit, seed), {})[finished.get(key, key)] = variant
    for (name, (labels, prefix, _), seed), cells_of in tqdm(groups.items(), desc="protocols", unit="fit", disable=None):
        if missing := {key: variant for key, variant in cells_of.items() if key not in finished.values()}:
            data, system = replace_lists(study.data, labels, prefix), build_system(composed[name].system)
            splits_of = {key: make(data, variant, seed=grid.split_seed) for key, variant in missing.items()}
            with TemporaryDirectory() as workdir:
                first = replace(next(iter(splits_of.values())), candidates=None)
                system.fit(data, first, seed=seed, workdir=Path(workdir))
                for key, split in splits_of.items():
                    rows = measured_rows(system, split, pool=grid.pool, seed=seed)
                    store.add(rows.assign(**dict(zip(store.keys, key, strict=True))))
    store.save(key for cells_of in groups.values() for key in cells_of)
    return {"protocol_cells": measured_table(cells(dataset, grid))}
