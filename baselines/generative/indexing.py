"""Identifiers without content, as OpenP5 has them: random numbers, sequential numbers, collaborative clusters.

An identifier is a tuple of symbols; symbols of one character are digits.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import scipy.sparse as sp
from sklearn.cluster import SpectralClustering

from study.data.dataset import IntArray
from study.errors import StudyError

FIRST_NUMBER = 1001
INDEXINGS = ("random", "sequential", "collaborative")
OTHER = "<other>"  # the cluster of items without a training interaction
# Added to every affinity, so that the graph of co-occurrences is connected and its spectrum defined.
LINK = 1e-6

Identifier = tuple[str, ...]


def identifiers(
    indexing: str, lists: Sequence[IntArray], train: sp.csr_matrix, *, clusters: int, largest: int, seed: int
) -> list[Identifier]:
    """One identifier per item.

    Args:
        indexing: ``random``, ``sequential`` or ``collaborative`` (Hua et al. 2023, sections 3 and 4).
        lists: training items of each user, in order.
        train: the same interactions, shape (n_users, n_items).
        clusters: parts into which a cluster is cut (N of the paper).
        largest: items of a cluster that is cut no further (K).
    """
    if indexing == "random":
        return random_numbers(train.shape[1], seed)
    if indexing == "sequential":
        return sequential_numbers(lists, train.shape[1], seed)
    if indexing == "collaborative":
        return collaborative(train, clusters=clusters, largest=largest, seed=seed)
    raise StudyError(
        f"unknown indexing {indexing!r}", column="system.model.indexing", fix=f"one of: {', '.join(INDEXINGS)}"
    )


def random_numbers(n_items: int, seed: int) -> list[Identifier]:
    """Shuffled numbers from 1001."""
    numbers = FIRST_NUMBER + np.random.default_rng([seed, 2]).permutation(n_items)
    return [tuple(str(number)) for number in numbers]


def sequential_numbers(lists: Sequence[IntArray], n_items: int, seed: int) -> list[Identifier]:
    """Numbers from 1001 in the order in which items first appear in the training lists; items without one follow in
    random order.
    """
    rest = np.random.default_rng([seed, 2]).permutation(n_items).tolist()
    order = list(dict.fromkeys([int(item) for row in lists for item in row] + rest))
    number = {item: FIRST_NUMBER + place for place, item in enumerate(order)}
    return [tuple(str(number[item])) for item in range(n_items)]


def collaborative(train: sp.csr_matrix, *, clusters: int, largest: int, seed: int) -> list[Identifier]:
    """The path of spectral clusters of the co-occurrence graph, then the place in the last cluster."""
    seen = np.flatnonzero(train.getnnz(axis=0))
    together = sp.csr_matrix(train[:, seen].T @ train[:, seen]).astype(np.float64)
    together.setdiag(0)
    found: list[Identifier] = [()] * train.shape[1]
    counter = 0
    queue: list[tuple[IntArray, Identifier]] = [(np.arange(len(seen)), ())]
    while queue:
        group, path = queue.pop(0)
        if len(group) <= largest:
            for place, item in enumerate(group):
                found[seen[item]] = (*path, f"<{place}>")
            continue
        labels = cut(together[group][:, group].toarray(), clusters, seed)
        for label in range(labels.max() + 1):
            # As in the reference program, symbols of clusters are counted on through all of them.
            queue.append((group[labels == label], (*path, f"<{counter % max(largest, clusters)}>")))
            counter += 1
    for place, item in enumerate(np.setdiff1d(np.arange(train.shape[1]), seen)):
        found[item] = (OTHER, f"<{place // largest}>", f"<{place % largest}>")
    return found


def cut(affinity: np.ndarray, clusters: int, seed: int) -> IntArray:
    """Spectral clusters of an affinity matrix, numbered from 0 without gaps; equal parts where it sees only one."""
    affinity = affinity + LINK
    model = SpectralClustering(clusters, affinity="precomputed", assign_labels="cluster_qr", random_state=seed)
    labels = np.unique(model.fit_predict(affinity), return_inverse=True)[1]
    return labels if labels.max() else np.arange(len(labels)) * clusters // len(labels)
