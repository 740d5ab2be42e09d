"""The pools that kept replies belong to.

A cassette keeps a request's hash and its reply alone, and the request quotes the pool. A training on another kind of
processor rounds otherwise and can have another pool, for which no reply is there. ``results/<dataset>/pools.parquet``
therefore keeps the pools of the re-ranked training: columns protocol, seed, task_id, rank (from 1), server_id; the
settings of that training stand in the record beside it.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sp

from study.base import paths
from study.base.errors import StudyError
from study.data.dataset import Dataset, FloatArray, IntArray
from study.data.splits import Split
from study.evaluation.records import read_record
from study.t2mrec.system import T2MRec


def file_of(dataset: str) -> Path:
    """The committed pools of a data set; their record has the same name with the ending .json."""
    return paths.results(dataset) / "pools.parquet"


def same_training(system: T2MRec, stored: dict[str, dict[str, Any]]) -> bool:
    """Whether a system has the kept settings of lexical, towers, training and scoring; a key that was not kept counts
    as its default."""
    parts = [getattr(system, name) for name in stored]
    stated = [type(part)(**values) for part, values in zip(parts, stored.values(), strict=True)]
    return json.dumps([asdict(part) for part in parts]) == json.dumps([asdict(part) for part in stated])


def read_pools(data: Dataset, protocol: str, seed: int) -> IntArray | None:
    """The kept pools under a protocol, shape (n_tasks, pool): server rows, best first, -1 where a task has no pool.

    None where the file has none for the protocol and the seed. Raises StudyError: a server that the data set lacks.
    """
    table = pd.read_parquet(file_of(data.name))
    table = table[(table["protocol"] == protocol) & (table["seed"] == seed)]
    if table.empty:
        return None
    tasks = pd.Index(data.tasks["id"]).get_indexer(pd.Index(table["task_id"]))
    servers = pd.Index(data.servers["id"]).get_indexer(pd.Index(table["server_id"]))
    if min(tasks.min(), servers.min()) < 0:
        fix = "prepare the data again (study prepare), or take the file from git"
        raise StudyError("a pool names a task or server that the data set lacks", file=file_of(data.name), fix=fix)
    pools = np.full((data.n_tasks, int(table["rank"].max())), -1, dtype=np.int64)
    pools[tasks, table["rank"].to_numpy() - 1] = servers
    return pools


class PooledT2MRec(T2MRec):
    """T2MRec that takes its pools from the file where one was made by the same training, and trains where none was.

    A kept pool says nothing of scores: they fall from 0 in steps of one.
    """

    def fit(self, data: Dataset, split: Split, *, seed: int, workdir: Path) -> None:
        """Read the kept pools of this data set, protocol and seed, or train."""
        self.kept: IntArray | None = None
        file = file_of(data.name)
        if file.exists() and same_training(self, read_record(file.with_suffix(".json"))["training"]):
            self.kept = read_pools(data, split.protocol, seed)
        if self.kept is None:
            super().fit(data, split, seed=seed, workdir=workdir)
        else:
            self.data, self.module = data, None

    def rank(self, tasks: IntArray, k: int, known: sp.csr_matrix) -> tuple[IntArray, FloatArray]:
        """The first `k` places of the kept pools, or T2MRec's ranking; StudyError for a task without a kept pool."""
        if self.kept is None:
            return super().rank(tasks, k, known)
        rows = self.kept[tasks][:, :k]
        if (unknown := rows[:, 0] < 0).any():
            number = int(self.data.tasks["id"].iloc[tasks[int(unknown.argmax())]])
            fix = "ask for tasks that the file has, or name a system with another training"
            raise StudyError("no pool was kept for a task", file=file_of(self.data.name), row=number, fix=fix)
        places = -np.arange(rows.shape[1], dtype=np.float32)
        return rows, np.where(rows < 0, -np.inf, places).astype(np.float32)
