"""Splits on disk, by ids, so that other programs read the same split; and what each part holds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
import scipy.sparse as sp

from study import files
from study.data.dataset import Dataset, read_parquet
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
    parts = {name: own.index for name, own in table.groupby("part")}

    def interactions(name: str) -> sp.csr_matrix:
        own = parts.get(name, [])
        places = rows["task_id"][own], rows["server_id"][own]
        return sp.csr_matrix((np.ones(len(own), np.float32), places), shape=data.relevance.shape)

    train, valid, test = map(interactions, PARTS)
    candidates = None
    if CANDIDATE in parts:
        candidates, n_test = rows["server_id"][parts[CANDIDATE]].astype(np.int64), np.count_nonzero(test.getnnz(axis=1))
        if not n_test or len(candidates) % n_test:
            raise StudyError("test tasks differ in their number of candidates", file=path, fix=REMAKE)
        candidates = candidates.reshape(n_test, -1)
    split = Split(str(table["protocol"].iloc[0]), train, valid, test, bool(table["cold"].iloc[0]), candidates)
    check(data, split)
    return split


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
