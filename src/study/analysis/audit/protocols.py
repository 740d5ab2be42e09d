"""Running systems under every protocol of the grid, resumable fit by fit."""

from __future__ import annotations

import json
import logging
import shutil
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sp
from omegaconf import DictConfig
from tqdm import tqdm

from study import paths
from study.analysis.audit import protocols_inference
from study.analysis.audit.protocols_inference import protocol_fits
from study.analysis.audit.settings import Protocols, Variant, read
from study.config.compose import build_system, load, plain
from study.data import dataset as datasets
from study.data import splits
from study.data.dataset import Dataset, IntArray
from study.data.splits import Split
from study.errors import StudyError
from study.evaluation import metrics
from study.evaluation.records import git_state
from study.evaluation.runs import CUTOFFS, KEPT, rank_tasks
from study.evaluation.system import System
from study.runner.rows import limit_threads, with_tuned_values

LOG = logging.getLogger(__name__)
DISCOUNT = 1 / np.log2(np.arange(2, KEPT + 2))


@dataclass(frozen=True)
class Exposed(Split):
    """A split whose training interactions hold what is asked for, and which hides nothing of it."""

    def known(self, name: str) -> sp.csr_matrix:
        """No interaction is left out of the ranking."""
        return sp.csr_matrix(self.train.shape, dtype=np.float32)


def labelled(data: Dataset, labels: str, prefix: int | None) -> Dataset:
    """The data set with the released or the longer lists, or their first `prefix` servers.

    Raises:
        StudyError: the data set has no longer lists.
    """
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

    Tasks with fewer test servers than others get more negatives, so that all rank equally many.

    Returns: shape (n_test_tasks, n_candidates).
    """
    rng = np.random.default_rng([seed, negatives])
    rows = np.flatnonzero(np.diff(test.indptr))
    width = negatives + int(np.diff(test.indptr).max())
    if data.n_servers < negatives + 2 * max(len(row) for row in data.lists):
        said = f"the catalogue of {data.n_servers} servers is too small for {negatives} negatives"
        raise StudyError(said, fix="take it out of conf/audit/protocols.yaml, or use a larger catalogue")
    chosen = np.empty((len(rows), width), dtype=np.int64)
    for out, row in zip(chosen, rows, strict=True):
        asked = test.indices[test.indptr[row] : test.indptr[row + 1]]
        outside = np.setdiff1d(np.arange(data.n_servers), data.lists[row])
        out[:] = rng.permutation(np.r_[asked, rng.choice(outside, width - len(asked), replace=False)])
    return chosen


def make(data: Dataset, variant: Variant, *, seed: int) -> Split:
    """The split of a protocol; `data` already has its labels."""
    split = splits.make(data, variant.split, seed=seed)
    if variant.training == "everything":
        split = Exposed(split.protocol, data.relevance, split.valid, split.test, cold=False)
    if variant.negatives is None:
        return split
    return replace(split, candidates=sampled(data, split.test, negatives=variant.negatives, seed=seed))


def measures(ranked: IntArray, relevant: sp.csr_matrix) -> pd.DataFrame:
    """Per task every measure of the metric definitions at both cutoffs, one column like ``recall_capped@5`` each.

    recall_capped is H / min(k, |M+|). ndcg_found divides by the best order of the servers that were found: a slip that
    makes NDCG 1 as soon as the found servers come first, however many are missing. best_recall, best_precision and
    best_ndcg are what the best re-ranking of the whole of `ranked` gives, a bound for every re-ranker of that pool.

    Args:
        ranked: the pool, shape (b, at least 10).
    """
    table = metrics.per_task(ranked, relevant, ks=CUTOFFS)
    n_relevant, in_pool = metrics.n_relevant(relevant), metrics.ranked_gains(ranked, relevant, ranked.shape[1]) > 0
    for k in CUTOFFS:
        hits = in_pool[:, :k]
        found, best = hits.sum(axis=1), np.minimum(k, in_pool.sum(axis=1))
        ideal = np.r_[0.0, DISCOUNT.cumsum()]  # DCG of so many right servers in the first places
        table[f"recall_capped@{k}"] = found / np.minimum(k, n_relevant)
        table[f"ndcg_found@{k}"] = np.divide(
            hits @ DISCOUNT[:k], ideal[found], out=np.zeros(len(found)), where=found > 0
        )
        table[f"best_recall@{k}"], table[f"best_precision@{k}"] = best / n_relevant, best / k
        table[f"best_ndcg@{k}"] = ideal[best] / ideal[np.minimum(k, n_relevant)]
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


def key_of(grid: Protocols, variant: Variant, config: DictConfig, seed: int) -> tuple[str, str, int, str]:
    """What names a cell of the grid: protocol, system, seed, and as JSON all else that decides its values."""
    own = {name: value for name, value in vars(variant).items() if name not in ("name", "title")}
    about = {"protocol": own, "split_seed": grid.split_seed, "pool": grid.pool, "system": plain(config.system)["model"]}
    return variant.name, str(config.system.name), seed, json.dumps(about, separators=(",", ":"))


def run_fit(data: Dataset, grid: Protocols, variants: list[Variant], config: DictConfig, seed: int) -> None:
    """Fit a system once and keep the cells of all protocols that share the fit.

    Args:
        data: with the labels of these protocols.
        variants: protocols of equal `fit`, at least one.
    """
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
        ranked, _ = rank_tasks(system, split, tasks, part="test", k=grid.pool, seed=seed, n_servers=data.n_servers)
        table = measures(ranked, split.test[tasks])
        # The covariance of the means is what intervals of any function of them need; per-task values are not kept.
        covariance = np.cov(table.to_numpy().T) / len(table)
        columns = [[float(f"{value:.6g}") for value in row] for row in covariance]
        rows = pd.DataFrame({"measure": list(table), "mean": table.mean().round(9).to_numpy()})
        rows = rows.assign(**{f"covariance {one}": column for one, column in zip(table, columns, strict=True)})
        about: dict[str, Any] = dict(zip(kept.keys, key_of(grid, variant, config, seed), strict=True))
        about |= {"tasks": len(tasks), "seconds_fit": round(seconds, 2), "profile": str(config.profile.name)}
        kept.add(rows.assign(**about, commit=git_state()["commit"]))
    shutil.rmtree(workdir)


def compute(config: DictConfig) -> list[Path]:
    """Run what is missing of the grid for the configured data set and profile, then write the inference.

    A stopped run goes on from the finished fits; cells whose settings have changed are run again.
    """
    grid, dataset = read(Protocols), config.dataset.name
    limit_threads(config.profile.threads)
    data, kept, jobs = datasets.load(dataset), protocol_fits(dataset), []
    wanted: list[tuple[str, str, int, str]] = []
    finished = kept.finished()
    for name in grid.systems:
        chosen = with_tuned_values(load([f"dataset={dataset}", f"system={name}", f"profile={config.profile.name}"]))
        able = [each for each in grid.variants if fits(data, each) and applicable(each, list(chosen.system.protocols))]
        for fit in dict.fromkeys(variant.fit for variant in able):
            for seed in grid.seeds:
                keys = {variant: key_of(grid, variant, chosen, seed) for variant in able if variant.fit == fit}
                wanted += keys.values()
                missing = [variant for variant, key in keys.items() if key not in finished]
                jobs += [(chosen, fit, missing, seed)] if missing else []
    for chosen, fit, variants, seed in tqdm(jobs, desc="protocols", unit="fit", disable=not sys.stderr.isatty()):
        LOG.info("%s under %s, seed %d", chosen.system.name, ", ".join(variant.name for variant in variants), seed)
        run_fit(labelled(data, fit[0], fit[1]), grid, variants, chosen, seed)
    kept.save(wanted)
    return protocols_inference.compute(config)
