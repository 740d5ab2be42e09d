"""Running systems under every protocol of the grid; one small file per (protocol, system, seed), resumable."""

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
from study.analysis.audit.paper_cells import folder
from study.analysis.audit.protocols_settings import Grid, Variant, read
from study.config.compose import build_system, load, plain
from study.data import dataset as datasets
from study.data import splits
from study.data.dataset import Dataset, IntArray
from study.data.splits import Split
from study.errors import StudyError
from study.evaluation import metrics
from study.evaluation.records import record
from study.evaluation.runs import CUTOFFS, KEPT, rank_tasks
from study.evaluation.system import System
from study.files import write_json
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
        raise StudyError(
            f"the catalogue of {data.n_servers} servers is too small for {negatives} negatives",
            fix="take it out of conf/audit/protocols.yaml, or use a larger catalogue",
        )
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
    """Per task every measure that a reading may use, at both cutoffs, one column like ``recall_capped@5`` each.

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
    kinds = (
        "recall",
        "recall_capped",
        "hit_rate",
        "precision",
        "f1",
        "ndcg",
        "ndcg_found",
        "best_recall",
        "best_precision",
        "best_ndcg",
    )
    return table[[f"{name}@{k}" for name in kinds for k in CUTOFFS]]


def applicable(variant: Variant, protocols: list[str]) -> bool:
    """Whether a system can rank: one that is not for new tasks needs a history of every test task."""
    return "cold" in protocols or variant.split != "cold" or variant.training == "everything"


def cell_path(dataset: str, variant: str, system: str, seed: int) -> Path:
    """The file of one cell."""
    return folder(dataset) / "protocols" / variant / f"{system}-{seed}.json"


def settings_of(grid: Grid, variant: Variant, config: DictConfig) -> dict[str, Any]:
    """All that decides a cell, as kept in its file; a cell made with other settings is made again."""
    own = {name: value for name, value in vars(variant).items() if name not in ("name", "title")}
    return {"protocol": own, "split_seed": grid.split_seed, "pool": grid.pool, "system": plain(config.system)["model"]}


def is_done(grid: Grid, variant: Variant, config: DictConfig, dataset: str, seed: int) -> bool:
    """Whether a cell was made with these settings, or the system does not apply to the protocol."""
    try:
        kept = json.loads(cell_path(dataset, variant.name, config.system.name, seed).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return not applicable(variant, list(config.system.protocols))
    return bool(kept.get("settings") == json.loads(json.dumps(settings_of(grid, variant, config))))


def run_fit(data: Dataset, grid: Grid, variants: list[Variant], config: DictConfig, seed: int) -> list[Path]:
    """Fit a system once and write the cells of all protocols that share the fit.

    Args:
        data: with the labels of these protocols.
        variants: protocols of equal `fit`, at least one.
    """
    made = {variant.name: make(data, variant, seed=grid.split_seed) for variant in variants}
    name, first = str(config.system.name), made[variants[0].name]
    key = "-".join(map(str, variants[0].fit))
    workdir = paths.cache() / "audit" / data.name / f"{key}-{name}-{seed}"
    workdir.mkdir(parents=True, exist_ok=True)
    system: System = build_system(config.system)
    started = time.perf_counter()
    system.fit(data, replace(first, candidates=None), seed=seed, workdir=workdir)
    seconds, written = time.perf_counter() - started, []
    for variant in variants:
        split = made[variant.name]
        tasks = split.tasks("test")
        rows, _ = rank_tasks(system, split, tasks, part="test", k=grid.pool, seed=seed, n_servers=data.n_servers)
        table = measures(rows, split.test[tasks])
        written.append(cell_path(data.name, variant.name, name, seed))
        about = {
            "dataset": data.name,
            "protocol": variant.name,
            "system": name,
            "seed": seed,
            "settings": settings_of(grid, variant, config),
            "profile": str(config.profile.name),
            "tasks": len(tasks),
            "seconds_fit": round(seconds, 2),
        }
        # The covariance of the means is what intervals of any function of them need; per-task values are not kept.
        values = {
            "measures": list(table),
            "mean": [round(float(value), 9) for value in table.mean()],
            "covariance": [[float(f"{value:.6g}") for value in row] for row in np.cov(table.to_numpy().T) / len(table)],
        }
        write_json(written[-1], record(**about) | values, compact=True)  # long lists of values
    shutil.rmtree(workdir)
    return written


def compute(config: DictConfig) -> list[Path]:
    """Run what is missing of the grid for the configured data set and profile, then write the inference.

    A stopped run goes on from the files that exist; cells whose settings have changed are run again.
    """
    grid, dataset = read(), config.dataset.name
    limit_threads(config.profile.threads)
    data, jobs = datasets.load(dataset), []
    for name in grid.systems:
        chosen = with_tuned_values(load([f"dataset={dataset}", f"system={name}", f"profile={config.profile.name}"]))
        for fit in dict.fromkeys(variant.fit for variant in grid.variants):
            group = [variant for variant in grid.variants if variant.fit == fit and fits(data, variant)]
            for seed in grid.seeds:
                missing = [variant for variant in group if not is_done(grid, variant, chosen, dataset, seed)]
                jobs += [(chosen, fit, missing, seed)] if missing else []
    for chosen, fit, variants, seed in tqdm(jobs, desc="protocols", unit="fit", disable=not sys.stderr.isatty()):
        LOG.info("%s under %s, seed %d", chosen.system.name, ", ".join(variant.name for variant in variants), seed)
        run_fit(labelled(data, fit[0], fit[1]), grid, variants, chosen, seed)
    return protocols_inference.compute(config)


def fits(data: Dataset, variant: Variant) -> bool:
    """Whether the catalogue is large enough for a protocol's negatives; a small data set leaves the others out."""
    longest = max(len(row) for row in data.lists)
    return variant.negatives is None or data.n_servers >= variant.negatives + 2 * longest
