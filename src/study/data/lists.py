"""Label lists as matrices, and what their order and their repetition look like.

Lists are held as a matrix of places: the place of a server is its rank by id, and ids follow the alphabet. A row holds
one task's list in listed order; -1 fills up and comes last.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from study.data.dataset import Dataset, IntArray
from study.data.splits import Split

BoolArray = NDArray[np.bool_]
Float64Array = NDArray[np.float64]


def places(data: Dataset) -> IntArray:
    """The place of each server row in the order of ids, shape (n_servers,)."""
    found: IntArray = np.argsort(np.argsort(data.servers["id"].to_numpy(), kind="stable"), kind="stable")
    return found


def padded(lists: tuple[IntArray, ...], place: IntArray) -> IntArray:
    """The lists as places, shape (n_tasks, longest list), -1 where a list has ended."""
    matrix = np.full((len(lists), max(map(len, lists))), -1, dtype=np.int64)
    for row, servers in zip(matrix, lists, strict=True):
        row[: len(servers)] = place[servers]
    return matrix


def shuffled(matrix: IntArray, rng: np.random.Generator) -> IntArray:
    """Every list in a random order of its own, same shape."""
    keys = np.where(matrix >= 0, rng.random(matrix.shape), 2.0)
    return np.take_along_axis(matrix, np.argsort(keys, axis=1, kind="stable"), axis=1)


def steps(matrix: IntArray, gap: int | None = None) -> BoolArray:
    """Whether entry j + 1 lies behind entry j by at most `gap` places (any number for None); shape (n, width - 1)."""
    forward = matrix[:, 1:] - matrix[:, :-1]
    filled = (matrix[:, 1:] >= 0) & (matrix[:, :-1] >= 0)
    found: BoolArray = filled & (forward > 0) & (True if gap is None else forward <= gap)
    return found


def run_lengths(step: BoolArray) -> IntArray:
    """The number of entries of the unbroken run that each entry belongs to, shape (n, width); 1 for an entry alone."""
    n, width = step.shape[0], step.shape[1] + 1
    before, after = np.ones((n, width), dtype=np.int64), np.ones((n, width), dtype=np.int64)
    for place in range(1, width):
        before[:, place] += np.where(step[:, place - 1], before[:, place - 1], 0)
    for place in range(width - 2, -1, -1):
        after[:, place] += np.where(step[:, place], after[:, place + 1], 0)
    found: IntArray = before + after - 1
    return found


def order_measures(matrix: IntArray, gap: int, long_run: int) -> dict[str, float]:
    """What the order of the lists says, as shares of lists or of labels."""
    filled = matrix >= 0
    size = filled.sum(axis=1)
    ascending, close = run_lengths(steps(matrix)), run_lengths(steps(matrix, gap))
    longest = np.where(filled, ascending, 0).max(axis=1)
    return {
        "lists wholly ascending by id": float(((longest == size) & (size > 1)).mean()),
        f"labels in an ascending run of {long_run} or more": float((ascending[filled] >= long_run).mean()),
        f"labels in a run of 3 or more with gaps of at most {gap}": float((close[filled] >= 3).mean()),
        "labels whose server follows its predecessor in the catalogue": float(steps(matrix, 1).sum() / filled.sum()),
        "mean longest ascending run (entries)": float(longest.mean()),
    }


def set_keys(matrix: IntArray) -> IntArray:
    """A number per list, equal for equal sets of servers, shape (n,)."""
    found: IntArray = np.unique(np.sort(matrix, axis=1), axis=0, return_inverse=True)[1].ravel().astype(np.int64)
    return found


def repetition_measures(matrix: IntArray) -> dict[str, float]:
    """How far lists repeat each other."""
    counts = np.bincount(set_keys(matrix))
    return {
        "lists whose set of servers another task has": float(counts[counts > 1].sum() / len(matrix)),
        "lists beyond the first of each set": float(1 - len(counts) / len(matrix)),
        "largest group of identical sets (tasks)": float(counts.max()),
    }


def training_lists(data: Dataset, split: Split) -> tuple[IntArray, ...]:
    """The training servers of every task, in the order in which the task lists them."""
    train = split.train
    rows = (train.indices[train.indptr[row] : train.indptr[row + 1]] for row in range(data.n_tasks))
    return tuple(
        listed[np.isin(listed, known)] if len(known) else known.astype(np.int64)
        for listed, known in zip(data.lists, rows, strict=True)
    )
