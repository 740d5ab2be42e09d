"""Data for the collaborative systems' tests, and what every one of them is asked."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import scipy.sparse as sp

from study.data.dataset import Dataset, relevance_from_lists
from study.data.splits import Split
from tests.baselines.toys import N_SERVERS, N_TASKS, WORDS, build, make_dataset, recall10, rows_of, top10


def relabelled(data: Dataset, split: Split, seed: int = 5) -> tuple[Dataset, Split, np.ndarray]:
    """The same data with its servers in another order, and the new row of each server."""
    new_row = np.random.default_rng(seed).permutation(data.n_servers)
    old_row = np.argsort(new_row)
    lists = tuple(new_row[row] for row in data.lists)
    servers = data.servers.iloc[old_row].reset_index(drop=True).assign(id=data.servers["id"])
    moved = {part: sp.csr_matrix(split.part(part)[:, old_row]) for part in ("train", "valid", "test")}
    other = replace(data, servers=servers, lists=lists, relevance=relevance_from_lists(lists, data.n_servers))
    return other, replace(split, **moved), new_row


def without_training(split: Split, gaps: np.ndarray) -> Split:
    """The split without the training interactions of some servers, which are given by row or by mask."""
    train = split.train.tolil()
    train[:, gaps] = 0
    train = sp.csr_matrix(train)
    train.eliminate_zeros()
    return replace(split, train=train)


def group_copies(seed: int = 0) -> tuple[Dataset, Split]:
    """Tasks 20-39 repeat text and list of tasks 0-19, the training tasks, and ten of them are validation tasks.

    A list is one of three sets of ten servers, so that a collaborative system can learn it, and the texts are drawn
    without regard to it, so that only the copied task tells which.
    """
    rng = np.random.default_rng(seed)
    words = np.array([word for block in WORDS for word in block])
    tasks = []
    for number in range(N_TASKS // 2):
        text = " ".join(rng.choice(words, 6, replace=False))
        tasks.append({"name": text, "description": f"unique{number} {text}", "language": "Go", "category": "work"})
    groups = np.arange(N_SERVERS).reshape(3, -1)
    lists = [[int(row) for row in groups[number % 3]] for number in range(N_TASKS // 2)]
    servers = [{"name": f"server {word}", "description": word} for word in rng.choice(words, N_SERVERS)]
    data = make_dataset(tasks * 2, servers, lists * 2)
    row = np.arange(N_TASKS)
    parts = (row < 20, (row >= 20) & (row < 30), row >= 30)
    train, valid, test = (rows_of(data, chosen) for chosen in parts)
    return data, Split("cold", train, valid, test, cold=True)


def fit_and_recall(name: str, data: Dataset, split: Split, tmp_path, **model: object) -> float:
    """Mean Recall@10 on the test part of a configured system with changed constructor arguments."""
    system = build(name, **model)
    system.fit(data, split, seed=1, workdir=tmp_path)
    return quality(system, data, split)


def told_apart(system: object, data: Dataset, split: Split) -> tuple[float, float]:
    """Of a system fitted to two blocks: the share of its first five answers in the task's own block; Recall@10."""
    top = top10(system, data, split)
    own = (top[:, :5] >= N_SERVERS // 2) == (split.tasks("test") >= data.n_tasks // 2)[:, None]
    return float(own.mean()), float(recall10(top, split).mean())


def quality(system: object, data: Dataset, split: Split) -> float:
    """Mean Recall@10 of a fitted system on the test part."""
    return float(recall10(top10(system, data, split), split).mean())
