"""The functions behind the public names of `study`: a data set, a split, a system, a run, and what it is worth."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from study.analysis.framework import GROUPS, OTHERS, read_group_table
from study.base import paths
from study.base.errors import StudyError, require_one_of
from study.config.compose import build_system, load
from study.data import dataset as datasets
from study.data import splits
from study.data.dataset import Dataset
from study.data.splits import Split
from study.data.stages import fetch, make_split, prepare
from study.evaluation import metrics, per_task, statistics
from study.evaluation.runs import CUTOFFS, KEPT, rank_tasks, run_table
from study.evaluation.system import System


def load_data(name: str = "synthetic") -> Dataset:
    """A prepared data set; a generated one is made on the spot. Raises StudyError: an unknown name, or a published data
    set that is not prepared yet."""
    config = load([f"dataset={name}"])
    if config.dataset.generator is not None and not (paths.prepared(name) / "servers.parquet").exists():
        fetch(config)
        prepare(config)
    return datasets.load(name)


def load_split(data: Dataset, protocol: str = "cold") -> Split:
    """Which labels of `data` a system learns from and which it is asked for; made on the spot if no file holds it."""
    path = paths.splits(data.name) / f"{protocol}.parquet"
    if path.exists():
        return splits.load(path, data)
    return make_split(data, protocol)


def load_system(name: str, **settings: Any) -> System:
    """The system of ``conf/system`` with this name, not fitted yet. `settings`: other values of its `model`; two
    underscores stand for a dot (``training__epochs=5``)."""
    words = [f"system.model.{key.replace('__', '.')}={value}" for key, value in settings.items()]
    system: System = build_system(load([f"system={name}", *words]).system)
    return system


def run(system: System, data: Dataset, split: Split, *, seed: int = 1, part: str = "test") -> pd.DataFrame:
    """Fit a system on the training part and rank the ten best servers for every task of `part`: columns task_id, seed,
    rank (from 1), server_id, score."""
    with tempfile.TemporaryDirectory() as folder:
        system.fit(data, split, seed=seed, workdir=Path(folder))
        tasks = split.tasks(part)
        rows, scores = rank_tasks(system, split, tasks, part=part, k=KEPT, seed=seed)
    return run_table(data, data.tasks["id"].to_numpy()[tasks], rows, scores, seed)


def evaluate(ranking: pd.DataFrame, data: Dataset, split: Split, *, part: str = "test") -> pd.DataFrame:
    """Measures of every task of a run: recall, precision, F1, NDCG, ... at 5 and 10, one row a task and seed;
    ``.mean(numeric_only=True)`` gives a table's cells.

    `ranking`: columns task_id, seed, rank, server_id, of `run` or of a file. Raises StudyError: it is empty, or holds a
    task, server or rank that there is not, or a rank twice.
    """
    tasks = split.tasks(part)
    task_ids, relevant = data.tasks["id"].to_numpy()[tasks], split.part(part)[tasks]
    fix = "rank the ten best servers of each task of the part"
    for column, known in (("task_id", task_ids), ("server_id", data.servers["id"]), ("rank", range(1, KEPT + 1))):
        if (unknown := ~ranking[column].isin(known).to_numpy()).any():
            row = int(unknown.argmax())
            reason = f"{ranking[column].iloc[row]} is no {column.replace('_', ' ')} of {data.name}'s {part} part"
            raise StudyError(reason, row=row, column=column, fix=fix)
    if (twice := ranking.duplicated(["task_id", "seed", "rank"]).to_numpy()).any():
        raise StudyError("a rank stands twice", row=int(twice.argmax()), column="rank", fix=fix)
    tables = []
    for seed in sorted(ranking["seed"].unique()):
        own = ranking[ranking["seed"] == seed]
        ranked = np.full((len(tasks), KEPT), -1, dtype=np.int64)
        places = pd.Index(task_ids).get_indexer(pd.Index(own["task_id"])), own["rank"].to_numpy() - 1
        ranked[places] = pd.Index(data.servers["id"]).get_indexer(pd.Index(own["server_id"]))
        tables.append(per_task.table(task_ids, int(seed), metrics.per_task(ranked, relevant, CUTOFFS)))
    if not tables:
        raise StudyError("the run is empty", fix="rank at least one task")
    return pd.concat(tables, ignore_index=True)


def compare(first: pd.DataFrame, second: pd.DataFrame, metric: str = "ndcg@10") -> pd.Series:
    """The paired comparison of two runs' measures: difference of means with a 95 % interval, tests, wins and losses.
    `first`, `second`: of `evaluate`, on the same tasks; the second is the reference."""
    return pd.Series(statistics.compare(first, second, metric, seed=0), name=metric)


def table(dataset: str, name: str) -> pd.DataFrame:
    """A table of results by "GROUP/NAME": ``table("task2mcp", "audit/leakage")``, "report/overall", "judged/scores".

    Raises StudyError: no such group, or a table that has not been made, with the command that makes it.
    """
    group, _, own = name.partition("/")
    require_one_of(group, "group of tables", [*OTHERS, *GROUPS])
    return read_group_table(dataset, group, own)
