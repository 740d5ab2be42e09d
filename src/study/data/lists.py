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


def places(data: Dataset) -> IntArray:
    """The place of each server row in the order of ids, shape (n_servers,)."""
    return np.argsort(np.argsort(data.servers["id"].to_numpy())).astype(np.int64)


def padded(lists: tuple[IntArray, ...], new_row: IntArray) -> IntArray:
    """The lists as places, shape (n_tasks, longest list), -1 where a list has ended."""
    matrix = np.full((len(lists), max(map(len, lists))), -1, dtype=np.int64)
    for row, servers in zip(matrix, lists, strict=True):
        row[: len(servers)] = new_row[servers]
    return matrix


def shuffled(matrix: IntArray, rng: np.random.Generator) -> IntArray:
    """Every list in a random order of its own, same shape."""
    keys = np.where(matrix >= 0, rng.random(matrix.shape), 2.0)
    return np.take_along_axis(matrix, np.argsort(keys, axis=1, kind="stable"), axis=1)


def steps(matrix: IntArray, gap: int | None = None) -> BoolArray:
    """Whether entry j + 1 lies behind entry j by at most `gap` places (any number for None); shape (n, width - 1)."""
    forward = matrix[:, 1:] - matrix[:, :-1]
    filled = (matrix[:, 1:] >= 0) & (matrix[:, :-1] >= 0)
    return filled & (forward > 0) & (forward <= (np.inf if gap is None else gap))


def run_lengths(step: BoolArray) -> IntArray:
    """The number of entries of the unbroken run that each entry belongs to, shape (n, width); 1 for an entry alone."""
    run = np.cumsum(np.pad(~step, ((0, 0), (1, 0))), axis=1)  # number of an entry's run within its row
    run += run.shape[1] * np.arange(len(run))[:, None]
    return np.bincount(run.ravel())[run]


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
    return np.unique(np.sort(matrix, axis=1), axis=0, return_inverse=True)[1].ravel()


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
    training = np.split(split.train.indices, split.train.indptr[1:-1])
    return tuple(row[np.isin(row, servers)] for row, servers in zip(data.lists, training, strict=True))
