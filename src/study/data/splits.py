"""The protocols: which interactions a system may learn from, and which it is asked for; and their files, by ids.

scikit-learn is imported where a split is made: `study recommend` imports this module and must start fast.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components

from study.base import files
from study.base.errors import StudyError
from study.data.dataset import Dataset, IntArray, read_parquet, relevance_from_lists

TRAIN, VALID, TEST = 0, 1, 2
PARTS = {"train": TRAIN, "valid": VALID, "test": TEST}
WARM, LEAVE_ONE_OUT = 0.2, 0.1  # shares of a known task's servers in validation, and as many in test
WORD = r"(?u)\b\w+\b"
# Tasks compared with all others at a time.
CHUNK = 1024
# In a file, beside train, valid and test: the servers to be ranked in a sampled protocol.
CANDIDATE = "candidate"
REMAKE = "make the split again: study split"


@dataclass(frozen=True)
class Split:
    """The interactions of each part; the parts are disjoint.

    Attributes:
        protocol: ``cold``, ``cold_grouped``, ``warm``, ``loo`` or ``loo99``.
        train, valid, test: interactions, each of shape (n_tasks, n_servers), float32.
        cold: True where a test task has no training interaction (tasks are split, not interactions).
        candidates: for sampled protocols the servers to be ranked per test task, shape (n_test_tasks, n_candidates),
            the held-out one among them; otherwise None (the full catalogue is ranked).
    """

    protocol: str
    train: sp.csr_matrix
    valid: sp.csr_matrix
    test: sp.csr_matrix
    cold: bool
    candidates: IntArray | None = None

    def part(self, name: str) -> sp.csr_matrix:
        """The interactions of part `name` (train, valid or test)."""
        matrix: sp.csr_matrix = getattr(self, name)
        return matrix

    def tasks(self, name: str) -> IntArray:
        """Row numbers of the tasks that have an interaction in part `name`, ascending."""
        return np.flatnonzero(np.diff(self.part(name).indptr)).astype(np.int64)

    def known(self, name: str) -> sp.csr_matrix:
        """Interactions a system has already seen when part `name` is asked, and which are therefore not ranked."""
        return self.train if name == "valid" else sp.csr_matrix(self.train + self.valid)


def split_tasks(data: Dataset, *, seed: int) -> IntArray:
    """Part number of each task: 60/20/20 exactly as the authors split (ids in file order, two calls). Returns: shape
    (n_tasks,)."""
    from sklearn.model_selection import train_test_split

    rows = np.arange(data.n_tasks)
    train, rest = train_test_split(rows, test_size=0.4, random_state=seed)
    valid, _ = train_test_split(rest, test_size=0.5, random_state=seed)
    part = np.full(data.n_tasks, TEST, dtype=np.int64)
    part[train], part[valid] = TRAIN, VALID
    return part


def task_groups(data: Dataset, *, similarity: float) -> IntArray:
    """Group number of each task: tasks with the same set of servers, the same text, or TF-IDF cosine of name and
    description of at least `similarity` share one (transitively). Returns: shape (n_tasks,)."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    n = data.n_tasks
    texts = data.task_texts(("name", "description"))
    # Single letters count too: C and R are languages.
    vectors = TfidfVectorizer(sublinear_tf=True, token_pattern=WORD).fit_transform(texts)
    edges = []
    # Common words link nearly all pairs, so the whole product would not fit in memory for many tasks.
    for start in range(0, n, CHUNK):
        near = sp.coo_matrix(vectors[start : start + CHUNK] @ vectors.T)
        # A text is a near copy of itself; rounding may put equal texts just below 1.
        keep = near.data >= similarity - 1e-9
        edges.append(np.stack([near.row[keep] + start, near.col[keep]]))
    for keys in ([tuple(sorted(row)) for row in data.lists], texts):
        first: dict[object, int] = {}
        # An empty list says nothing about the task, so it links it to no other.
        pairs = [(row, first.setdefault(key, row)) for row, key in enumerate(keys) if len(key)]
        edges.append(np.array(pairs, dtype=np.int64).reshape(-1, 2).T)
    row, column = np.concatenate(edges, axis=1)
    graph = sp.coo_matrix((np.ones(len(row), np.int8), (row, column)), shape=(n, n))
    return np.asarray(connected_components(graph, directed=False)[1], dtype=np.int64)


def split_groups(groups: IntArray, *, seed: int) -> IntArray:
    """Part number of each task so that no group straddles parts, 60/20/20 by tasks as nearly as groups allow. Groups
    are dealt in random order, large ones first, each to the part that is furthest below its share."""
    rng = np.random.default_rng(seed)
    sizes = np.bincount(groups)
    order = rng.permutation(len(sizes))
    order = order[np.argsort(-sizes[order], kind="stable")]
    target, tasks = np.array([0.6, 0.2, 0.2]) * len(groups), np.zeros(3)
    part_of_group = np.empty(len(sizes), dtype=np.int64)
    for group in order:
        part_of_group[group] = part = int(np.argmax((target - tasks) / target))
        tasks[part] += sizes[group]
    return part_of_group[groups]


def by_interactions(data: Dataset, *, share: float, seed: int) -> list[np.ndarray]:
    """Part number of each server of each task's list, dealt at random: `share` of them to validation, as many to test.

    Both parts lie within those that a `share` of `WARM` gives with the same seed. So a choice that is made on the
    validation part of the larger share has seen no test label of the smaller one.

    A list of n servers gives round(n * share) to each (at least one where n >= 3); training always keeps one.
    """
    rng = np.random.default_rng(seed)
    assignment = []
    for row in data.lists:
        n = len(row)
        held, reserved = (max(1, round(n * part)) if n >= 3 else 0 for part in (share, WARM))
        kind = np.full(n, TRAIN)
        kind[:held], kind[reserved : reserved + held] = VALID, TEST
        assignment.append(rng.permutation(kind))
    return assignment


def sampled_candidates(data: Dataset, test: sp.csr_matrix, *, negatives: int, seed: int) -> IntArray:
    """For every test task its held-out server and `negatives` servers outside its whole list (He et al. 2017). Returns:
    shape (n_test_tasks, negatives + 1), the held-out server in a random column."""
    rng = np.random.default_rng(seed)
    rows = np.flatnonzero(np.diff(test.indptr))
    if data.n_servers < negatives + 1 + max(len(data.lists[row]) for row in rows):
        reason = f"the catalogue of {data.n_servers} servers is too small for {negatives} sampled negatives"
        raise StudyError(reason, fix="use the full-ranking protocol loo, or a larger catalogue")
    chosen = np.empty((len(rows), negatives + 1), dtype=np.int64)
    for out, row in zip(chosen, rows, strict=True):
        outside = np.setdiff1d(np.arange(data.n_servers), data.lists[row])
        held_out = test.indices[test.indptr[row] : test.indptr[row + 1]]
        out[:] = rng.permutation(np.concatenate([held_out[:1], rng.choice(outside, negatives, replace=False)]))
    return chosen


def make(data: Dataset, protocol: str, *, seed: int = 42, similarity: float = 0.9, negatives: int = 99) -> Split:
    """Split `data` for `protocol`.

    `seed`: random_state of the split (the authors use 42); the seeds of the systems are another matter.
    `similarity`: ``cold_grouped`` only, cosine from which two tasks count as near-copies.
    `negatives`: ``loo99`` only, sampled negatives per test task.
    """
    if protocol == "cold":
        of_task = split_tasks(data, seed=seed)
    elif protocol == "cold_grouped":
        of_task = split_groups(task_groups(data, similarity=similarity), seed=seed)
    elif protocol not in ("warm", "loo", "loo99"):
        raise StudyError(f"unknown protocol {protocol!r}", fix="one of: cold, cold_grouped, warm, loo, loo99")
    if protocol.startswith("cold"):
        dealt = [np.full(len(row), part) for row, part in zip(data.lists, of_task, strict=True)]
    else:
        dealt = by_interactions(data, share=WARM if protocol == "warm" else LEAVE_ONE_OUT, seed=seed)
    lists = ([row[part_of == part] for row, part_of in zip(data.lists, dealt, strict=True)] for part in PARTS.values())
    train, valid, test = (relevance_from_lists(tuple(rows), data.n_servers) for rows in lists)
    candidates = sampled_candidates(data, test, negatives=negatives, seed=seed) if protocol == "loo99" else None
    split = Split(protocol, train, valid, test, protocol.startswith("cold"), candidates)
    check(data, split)
    return split


def check(data: Dataset, split: Split) -> None:
    """Raise unless the parts are disjoint, cover the labels, and (cold) share no task."""
    total = split.train + split.valid + split.test
    if (total != data.relevance).nnz:
        raise StudyError(f"the parts of split {split.protocol!r} overlap or do not add up to the labels")
    if split.cold:
        tasks = np.concatenate([split.tasks(name) for name in PARTS])
        if len(np.unique(tasks)) < len(tasks):
            raise StudyError(f"split {split.protocol!r} puts one task in two parts")
    if not split.train.nnz or not split.test.nnz:
        raise StudyError(f"split {split.protocol!r} leaves training or test empty", fix="use a larger data set")


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
    table = read_parquet(path, columns=("task_id", "server_id", "part", "protocol", "cold"), fix=REMAKE)
    if table.empty:
        raise StudyError("the table is empty", file=path, fix=REMAKE)
    rows = {}
    for column, ids in (("task_id", data.tasks["id"]), ("server_id", data.servers["id"])):
        rows[column] = pd.Index(ids).get_indexer(table[column])
        if (rows[column] < 0).any():
            row = int(np.argmax(rows[column] < 0))
            raise StudyError("an id that the data set does not have", file=path, row=row, column=column, fix=REMAKE)
    part, candidates = table["part"].to_numpy(), None
    pairs = ((rows["task_id"][part == name], rows["server_id"][part == name]) for name in PARTS)
    train, valid, test = (
        sp.csr_matrix((np.ones(len(tasks), np.float32), (tasks, servers)), shape=data.relevance.shape)
        for tasks, servers in pairs
    )
    if (part == CANDIDATE).any():
        candidates, n_test = rows["server_id"][part == CANDIDATE], np.count_nonzero(test.getnnz(axis=1))
        if not n_test or len(candidates) % n_test:
            raise StudyError("test tasks differ in their number of candidates", file=path, fix=REMAKE)
        candidates = candidates.reshape(n_test, -1).astype(np.int64)
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
        row: dict[str, object] = {"protocol": split.protocol, "part": name, "tasks": len(tasks)}
        row |= {"warm_tasks": trained_tasks[tasks].sum(), "cold_tasks": (~trained_tasks[tasks]).sum()}
        row |= {"servers": len(servers), "warm_servers": trained_servers[servers].sum()}
        row |= {"cold_servers": (~trained_servers[servers]).sum(), "interactions": part.nnz}
        sampled = split.candidates if name == "test" else None
        row["candidates"] = data.n_servers if sampled is None else sampled.shape[1]
        rows.append(row | {f"in_{tuned}_valid": part.multiply(other.valid).nnz for tuned, other in tuning.items()})
    return pd.DataFrame(rows)
