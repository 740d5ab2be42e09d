"""What the towers are trained on: tasks beside servers, drawn anew for every epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

from study.base.errors import StudyError
from study.data.dataset import IntArray
from study.evaluation.ranking import chunks, mask_known, top_k


@dataclass(frozen=True)
class Pairs:
    """The pairs of an epoch in their order: rows of tasks, shape (n,), of a relevant server each, shape (n,), and of
    sampled negatives, shape (n, any)."""

    tasks: IntArray
    positives: IntArray
    negatives: IntArray

    def batches(self, size: int, *, as_set: bool = False) -> Iterator[tuple[IntArray, IntArray, IntArray | None]]:
        """Rows of tasks, shape (b,), and of servers: the positives in the same order, then all negatives.

        `as_set`: every server once, and third the place of each task's own one among them, shape (b,).
        """
        for start in range(0, len(self.tasks), size):
            part, targets = slice(start, start + size), None
            tasks, servers = self.tasks[part], np.concatenate([self.positives[part], self.negatives[part].ravel()])
            if as_set:
                servers, places = np.unique(servers, return_inverse=True)
                targets = places[: len(tasks)]
            yield tasks, servers, targets


Sampler = Callable[[np.random.Generator], Pairs]  # draws the pairs of an epoch


def draw_pairs(
    positives: sp.csr_matrix, rng: np.random.Generator, *, hard: IntArray | None = None, count: int = 0
) -> Pairs:
    """Every training task once, with one of its servers drawn uniformly, and `count` different ones of its row of
    `hard`, see `nearest_negatives`."""
    lengths = np.diff(positives.indptr)
    tasks = rng.permutation(np.flatnonzero(lengths))
    pick = positives.indptr[tasks] + np.floor(rng.random(len(tasks)) * lengths[tasks]).astype(np.int64)
    negatives = np.zeros((len(tasks), 0), np.int64)
    if hard is not None:
        columns = rng.random((len(tasks), hard.shape[1])).argsort(axis=1)[:, :count]
        negatives = np.take_along_axis(hard[tasks], columns, axis=1)
    return Pairs(tasks, positives.indices[pick], negatives)


def nearest_negatives(
    tasks: sp.csr_matrix, servers: sp.csr_matrix, positives: sp.csr_matrix, *, pool: int, order: IntArray
) -> IntArray:
    """The servers nearest to each task in the input space that are none of its training positives, shape (n_tasks,
    pool); tasks without positives are left at zero. Raises StudyError: a task has fewer such servers than `pool`."""
    counts = np.diff(positives.indptr)
    if pool > servers.shape[0] - counts.max(initial=0):
        raise StudyError(
            f"a pool of {pool} hard negatives is more than {servers.shape[0]} servers can give",
            column="system.model.training.hard_pool",
            fix="lower it",
        )
    rows = np.flatnonzero(counts)
    nearest = np.zeros((tasks.shape[0], pool), dtype=np.int64)
    for piece in chunks(rows):
        task_rows = rows[piece]
        similarity = np.asarray((tasks[task_rows] @ servers.T).toarray(), dtype=np.float32)
        nearest[task_rows], _ = top_k(mask_known(similarity, task_rows, positives), pool, order)
    return nearest


def draw_triples(positives: sp.csr_matrix, *, negatives: int, seed: int) -> IntArray:
    """Every positive of every task with `negatives` servers, or all where there are fewer, drawn uniformly, none twice,
    from those that the task does not list (the authors' program, ``--loss_type bce``): shape (any, 3)."""
    rng, triples = np.random.default_rng(seed), [np.zeros((0, 3), np.int64)]
    for task in np.flatnonzero(np.diff(positives.indptr)):
        listed = positives.indices[positives.indptr[task] : positives.indptr[task + 1]]
        others = np.setdiff1d(np.arange(positives.shape[1]), listed)
        for server in listed:
            sample = rng.choice(others, min(negatives, len(others)), replace=False)
            triples.append(np.stack([np.full_like(sample, task), np.full_like(sample, server), sample], axis=1))
    return np.concatenate(triples)


def shuffle_triples(triples: IntArray, rng: np.random.Generator) -> Pairs:
    """Every triple once."""
    order = rng.permutation(triples)
    return Pairs(order[:, 0], order[:, 1], order[:, 2:])
