"""What a finished sweep says beyond its means, from the embeddings that its trainings left: nothing is trained again.

per_task.csv.xz: the test tasks one by one, for the value that validation chose and for the paper's, which is what the
tests of RQ3 compare. separation.csv: how far the servers that a test task lists stand out from the others.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pandas as pd
from omegaconf import DictConfig, OmegaConf
from tqdm import tqdm

from study import paths
from study.config.compose import plain
from study.data.dataset import Dataset
from study.data.splits import Split
from study.evaluation import metrics
from study.evaluation.metrics import PAPER_METRICS
from study.evaluation.per_task import table
from study.evaluation.runs import CUTOFFS, KEPT, rank_tasks
from study.evaluation.separation import mean_separation
from study.files import write_csv
from study.runner.inputs import load_inputs
from study.runner.processes import limit_threads
from study.search.fits import fitted, with_values
from study.search.settings import Sweep

PART = "test"


def paper_values(sweep: Sweep) -> dict[str, Any] | None:
    """The paper's setting, where a sweep over one setting holds it."""
    name, domain = next(iter(sweep.space.items()))
    known = len(sweep.space) == 1 and sweep.paper_best in domain["choices"]
    return {name: sweep.paper_best} if known else None


def task_rows(
    config: DictConfig, data: Dataset, split: Split, values: dict[str, Any], seed: int, *, keep: bool
) -> pd.DataFrame:
    """The test tasks under one setting and seed: its columns, then a per-task table with the paper's eight measures."""
    system = fitted(with_values(config, values), data, split, seed=seed, keep=keep)
    tasks = split.tasks(PART)
    ranked, _ = rank_tasks(system, split, tasks, part=PART, k=KEPT, seed=seed, n_servers=data.n_servers)
    measured = metrics.per_task(ranked, split.part(PART)[tasks], ks=CUTOFFS)[list(PAPER_METRICS)]
    rows = table(data.tasks["id"].to_numpy()[tasks], seed, measured)
    for place, (name, value) in enumerate(values.items()):
        rows.insert(place, name, value)
    return rows


def write(sweep: Sweep, config: DictConfig, folder: Path, best: dict[str, Any]) -> None:
    """Write per_task.csv.xz and separation.csv. A training whose embeddings are gone is made again.

    Args:
        sweep: a grid, or one over scores.
        best: the setting that validation chose.
    """
    limit_threads(config.profile.threads)
    data, split = load_inputs(config.dataset.name, config.protocol.name)
    paper = paper_values(sweep)
    settings = [best, *([paper] if paper and paper != best else [])]
    write_csv(
        folder / "per_task.csv.xz",
        pd.concat(
            [
                task_rows(config, data, split, values, seed, keep=sweep.keep_fits)
                for values in settings
                for seed in sweep.seeds
            ]
        ),
    )
    write_csv(folder / "separation.csv", separation(sweep, config, data, split))


def separation(sweep: Sweep, config: DictConfig, data: Dataset, split: Split) -> pd.DataFrame:
    """One row per training of the sweep.

    Returns: the columns of the setting, seed, part, auc, recall
        (`study.evaluation.separation.separation`). The fusion weight decides no embedding: its sweep has one row per
        seed, with the weight of the configuration.
    """
    depth = plain(OmegaConf.load(paths.conf() / "analysis" / "embedding.yaml"))["depth"]
    points = sweep.points()
    if sweep.kind == "scores":
        own = {name: OmegaConf.select(config, f"system.model.{name}") for name in sweep.space}
        points = [own | {"seed": seed} for seed in sweep.seeds]
    rows = []
    for point in tqdm(points, desc="separation", unit="training", disable=not sys.stderr.isatty()):
        values = {name: point[name] for name in sweep.space}
        system = fitted(with_values(config, values), data, split, seed=point["seed"], keep=sweep.keep_fits)
        found = mean_separation(system.task_embeddings, system.server_embeddings, split, PART, depth=depth)
        rows.append(point | {"part": PART, "auc": found["auc"], "recall": found["recall"]})
    return pd.DataFrame(rows)
