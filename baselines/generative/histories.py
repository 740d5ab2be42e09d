"""What a task's training servers are as a sequence, and the examples that are drawn from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import numpy as np

from baselines.choices import require_choice
from study.data.dataset import Dataset, IntArray
from study.data.splits import Split

ORDERS = ("random", "list")
Example = TypeVar("Example")


def training_lists(data: Dataset, split: Split) -> tuple[IntArray, ...]:
    """The training servers of every task, in the order in which the task lists them."""
    train = split.train
    rows = (train.indices[train.indptr[row] : train.indptr[row + 1]] for row in range(data.n_tasks))
    return tuple(
        listed[np.isin(listed, known)] if len(known) else known.astype(np.int64)
        for listed, known in zip(data.lists, rows, strict=True)
    )


def prefixes(
    lists: Sequence[IntArray], order: str, rng: np.random.Generator
) -> Iterator[tuple[int, IntArray, IntArray]]:
    """One example per task with two servers or more: its row, the servers seen, the servers to be named.

    ``random``: a beginning (of uniform length, one at least) of a random permutation, and all the rest. A list is a
    set, so every server that is not seen is an equally right next one; one reading of the history then serves several
    targets. ``list``: a beginning of the list and the next server alone, as the sequential methods have it.
    """
    require_choice("order", order, ORDERS)
    for row, servers in enumerate(lists):
        if len(servers) < 2:
            continue
        cut = int(rng.integers(1, len(servers)))
        if order == "list":
            yield row, servers[:cut], servers[cut : cut + 1]
        else:
            mixed = rng.permutation(servers)
            yield row, mixed[:cut], mixed[cut:]


def batched(
    examples: Sequence[Example], length: Callable[[Example], int], size: int, rng: np.random.Generator
) -> list[list[Example]]:
    """Batches of examples of similar length, in random order: little padding, and little regularity."""
    order = np.lexsort((rng.random(len(examples)), np.array([length(example) for example in examples])))
    parts = [[examples[i] for i in order[start : start + size]] for start in range(0, len(examples), size)]
    return [parts[i] for i in rng.permutation(len(parts))]
