"""The least work that T2MRec needs.

Work is counted with two operations per multiply-add and float32 throughout; what depends on the machine (sorting,
Python) is not counted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import scipy.sparse as sp

from study.t2mrec.settings import Towers

FLOAT = 4  # bytes
# Per (task, server) pair: three features weighted and summed (5), scaled and added to the cosine (3).
FUSION = 8
# Score matrices per pair, each written once and read once: cosine, three features, fused score, centroid similarity.
MATRICES = 6


@dataclass(frozen=True)
class Limits:
    """Measured limits of a machine: float32 operations per second, and bytes read plus written per second."""

    flops_per_second: float
    bytes_per_second: float


@dataclass(frozen=True)
class Work:
    """A number of float32 operations, and of bytes read plus written."""

    flops: float
    bytes: float

    def __add__(self, other: Work) -> Work:
        return Work(self.flops + other.flops, self.bytes + other.bytes)

    def __mul__(self, times: float) -> Work:
        return Work(self.flops * times, self.bytes * times)

    def seconds_at(self, limits: Limits) -> float:
        """The least time at these limits: arithmetic and memory overlap, so the slower of both decides."""
        return max(self.flops / limits.flops_per_second, self.bytes / limits.bytes_per_second)


def narrow_weights(towers: Towers) -> int:
    """Weights and biases of one tower without its first matrix, whose rows belong to terms."""
    widths = [towers.hidden] * (towers.layers - 1) + [towers.output]
    return sum(a * b + b for a, b in pairwise(widths)) + towers.hidden


def training_work(epoch: Iterable[tuple[sp.csr_matrix, sp.csr_matrix]], towers: Towers, *, dense: bool = False) -> Work:
    """One epoch of contrastive training (eq. 6-10). `epoch`: vectors of tasks and of servers of each batch. `dense`:
    AdamW moves every row of the input layers, as on a device.

    FLOPs: forward and backward of all layers (backward twice the forward), the products of the batch's embeddings, and
    12 per weight and AdamW step. Bytes: weights and both moments of every used row of the input layers read and written
    once per step, twice where it is caught up first, and the same for the hidden layers. Dense: weights, gradient and
    both moments of all rows, read and written once.
    """
    narrow, total = narrow_weights(towers), Work(0, 0)
    for batch in epoch:
        for vectors in batch:
            used = vectors.shape[1] if dense else len(np.unique(vectors.indices))
            products = vectors.nnz * towers.hidden + vectors.shape[0] * (narrow - towers.hidden)
            flops = 3 * 2 * products + 12 * (used * towers.hidden + narrow)
            moved = 8 * (used * towers.hidden + narrow) if dense else 6 * (2 * used * towers.hidden + narrow)
            total += Work(flops, FLOAT * moved)
        total += Work(3 * 2 * batch[0].shape[0] * batch[1].shape[0] * towers.output, 0)
    return total


def encoding_work(terms: float, texts: int, towers: Towers) -> Work:
    """`texts` texts, whose lexical vectors have `terms` non-zero entries in all, through one tower (eq. 6-7)."""
    narrow = narrow_weights(towers)
    flops = 2 * (terms * towers.hidden + texts * (narrow - towers.hidden))
    return Work(flops, FLOAT * (terms * towers.hidden + narrow))


def ranking_work(tasks: int, servers: int, output: int) -> Work:
    """Cosine, structure, fusion, anchors and expansion (eq. 8, 17-22) of embedded tasks against a catalogue.

    FLOPs: the two products with the catalogue (tasks, then centroids) and `FUSION` per pair. Bytes: the catalogue's
    embeddings read once per product, and `MATRICES` score matrices written and read.
    """
    pairs = tasks * servers
    moved = 2 * servers * output + 2 * tasks * output + 2 * MATRICES * pairs
    return Work(2 * 2 * pairs * output + FUSION * pairs, FLOAT * moved)
