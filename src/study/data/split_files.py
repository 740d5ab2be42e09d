"""Splits on disk, by ids, so that other programs read the same split; and what each part holds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
import scipy.sparse as sp

from study import files
from study.data.dataset import Dataset, IntArray, read_parquet, relevance_from_lists
from study.data.splits import PARTS, Split, check
from study.errors import StudyError

# Parts beside train, valid and test: the servers to be ranked in a sampled protocol.
CANDIDATE = "candidate"
COLUMNS = ["task_id", "server_id", "part"]
REMAKE = "make the split again: study split"


def save(split: Split, data: Dataset, path: Path) -> None:
    """Write `split` as parquet: task_id, server_id, part (train, valid, test, or candidate in candidate order). The
    protocol's name and whether it is cold stand in the columns protocol and cold, the same in every row."""
    tasks, servers = data.tasks["id"].to_numpy(), data.servers["id"].to_numpy()
    frames = []
    for name in PARTS:
        part = split.part(name).tocoo()
        frames.append(pd.DataFrame({"task_id": tasks[part.row], "server_id": servers[part.col], "part": name}))
    if split.candidates is not None:
        rows = np.repeat(split.tasks("test"), split.candidates.shape[1])
        listed = {"task_id": tasks[rows], "server_id": servers[split.candidates.ravel()], "part": CANDIDATE}
        frames.append(pd.DataFrame(listed))
    table = pd.concat(frames, ignore_index=True)
    files.write_parquet(path, table.assign(protocol=split.protocol, cold=split.cold))


def load(path: Path, data: Dataset) -> Split:
    """Read a split that `save` wrote, and check it against `data`. Raises StudyError: the file is missing or damaged,
    or belongs to another data set."""
    table = read_parquet(path, columns=(*COLUMNS, "protocol", "cold"), fix=REMAKE)
    rows = {}
    for column, known in (("task_id", data.tasks["id"]), ("server_id", data.servers["id"])):
        rows[column] = pd.Index(known).get_indexer(table[column])
        if (rows[column] < 0).any():
            row = int(np.argmax(rows[column] < 0))
            raise StudyError("an id that the data set does not have", file=path, row=row, column=column, fix=REMAKE)
    task, server = rows["task_id"].astype(np.int64), rows["server_id"].astype(np.int64)
    part = table["part"].to_numpy()
    matrices = [_matrix(task[part == name], server[part == name], data) for name in PARTS]
    candidates = None
    if (part == CANDIDATE).any():
        n_test = int((np.diff(matrices[-1].indptr) > 0).sum())
        candidates = _candidates(server[part == CANDIDATE], n_test, path)
    train, valid, test = matrices
    split = Split(str(table["protocol"].iloc[0]), train, valid, test, bool(table["cold"].iloc[0]), candidates)
    check(data, split)
    return split


def _matrix(task: IntArray, server: IntArray, data: Dataset) -> sp.csr_matrix:
    order = np.argsort(task, kind="stable")
    ends = np.cumsum(np.bincount(task, minlength=data.n_tasks))[:-1]
    return relevance_from_lists(tuple(np.split(server[order], ends)), data.n_servers)


def _candidates(server: IntArray, n_test: int, path: Path) -> IntArray:
    if not n_test or len(server) % n_test:
        raise StudyError("test tasks differ in their number of candidates", file=path, fix=REMAKE)
    return server.reshape(n_test, -1)


def summary(data: Dataset, split: Split, tuning: Mapping[str, Split]) -> pd.DataFrame:
    """What each part holds; cold means: without any interaction in training.

    `tuning`: the splits on whose validation parts systems are tuned, by protocol.
    Returns: one row per part: protocol, part, tasks, warm_tasks, cold_tasks, servers, warm_servers, cold_servers,
        interactions, candidates (servers ranked per task), and in_<protocol>_valid for every split of `tuning`: how
        many of the interactions tuning has seen there, which for a test part should be few.
    """
    trained_tasks = np.diff(split.train.indptr) > 0
    trained_servers = np.bincount(split.train.indices, minlength=data.n_servers) > 0
    rows = []
    for name in PARTS:
        part = split.part(name)
        tasks, servers = split.tasks(name), np.unique(part.indices)
        sampled = split.candidates is not None and name == "test"
        rows.append(
            {
                "protocol": split.protocol,
                "part": name,
                "tasks": len(tasks),
                "warm_tasks": int(trained_tasks[tasks].sum()),
                "cold_tasks": int((~trained_tasks[tasks]).sum()),
                "servers": len(servers),
                "warm_servers": int(trained_servers[servers].sum()),
                "cold_servers": int((~trained_servers[servers]).sum()),
                "interactions": int(part.nnz),
                "candidates": split.candidates.shape[1] if sampled and split.candidates is not None else data.n_servers,
            }
            | {f"in_{tuned}_valid": int(part.multiply(other.valid).nnz) for tuned, other in tuning.items()}
        )
    return pd.DataFrame(rows)
