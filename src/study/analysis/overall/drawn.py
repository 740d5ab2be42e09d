"""Servers drawn around those of a catalogue, to measure what larger catalogues cost: vectors, and words.

The first servers are the real ones. A drawn server has the vector of a random server i, moved by the difference of two
others, x_i + s (x_j - x_k), so that servers vary in the directions in which the real ones do. s is such that the median
cosine between a drawn server and its i is that between a real server and its nearest neighbour.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from study.data.dataset import FloatArray

STEPS, DRAWS = 20, 4096


@dataclass(frozen=True, eq=False)
class DrawnVectors:
    """Vectors of any number of servers.

    `real`: shape (n_real, d); its columns are blocks of `width`, each of length 1, and whatever follows the last block,
    which a drawn server has from its i. `blocks`: their number.
    """

    real: FloatArray
    blocks: int
    width: int
    seed: int

    def piece(self, start: int, stop: int) -> FloatArray:
        """The servers from `start` to `stop`, shape (stop - start, d); depends on both, the seed and nothing else."""
        known = self.real[start:stop]
        count = stop - start - len(known)
        if not count:
            return known
        rng = np.random.default_rng([self.seed, start])
        drawn = self._moved(rng.integers(0, len(self.real), (3, count)), self.length)
        return np.vstack([known, drawn]) if len(known) else drawn

    def _moved(self, chosen: NDArray[np.int64], length: float) -> FloatArray:
        made: FloatArray = self.real[chosen[0]]
        for block in range(self.blocks):
            own = slice(block * self.width, (block + 1) * self.width)
            moved = made[:, own]
            moved += np.float32(length) * (self.real[chosen[1], own] - self.real[chosen[2], own])
            moved /= np.maximum(np.linalg.norm(moved, axis=1, keepdims=True), 1e-12)
        return made

    @cached_property
    def length(self) -> float:
        """s, by bisection."""
        wanted = np.median(np.concatenate([_nearest(self._block(self.real, at)) for at in range(self.blocks)]))
        chosen = np.random.default_rng(self.seed).integers(0, len(self.real), (3, DRAWS))
        low, high = 0.0, 4.0
        for _ in range(STEPS):
            middle = (low + high) / 2
            moved = self._moved(chosen, middle)
            pairs = ((self._block(moved, at), self._block(self.real[chosen[0]], at)) for at in range(self.blocks))
            cosine = np.median(np.concatenate([np.einsum("nd,nd->n", one, other) for one, other in pairs]))
            low, high = (middle, high) if cosine > wanted else (low, middle)
        return (low + high) / 2

    def _block(self, rows: FloatArray, at: int) -> FloatArray:
        return rows[:, at * self.width : (at + 1) * self.width]


def _nearest(vectors: FloatArray) -> FloatArray:
    """The cosine of each row to its nearest other row, shape (n,)."""
    found = []
    for start in range(0, len(vectors), DRAWS):
        cosines = vectors[start : start + DRAWS] @ vectors.T
        cosines[np.arange(len(cosines)), start + np.arange(len(cosines))] = -np.inf
        found.append(cosines.max(axis=1))
    return np.concatenate(found)


def drawn_words(real: Sequence[Sequence[int]], n: int, replaced: float, seed: int) -> Iterator[list[int]]:
    """The words (as numbers) of `n` servers: the real ones, and copies of random ones of which each word is replaced by
    one of another random server with the probability `replaced`."""
    rng, filled = np.random.default_rng(seed), [np.asarray(words) for words in real if len(words)]
    yield from (list(words) for words in real[:n])
    for _ in range(len(real), n):
        own, other = (filled[at] for at in rng.integers(0, len(filled), 2))
        swapped = rng.random(len(own)) < replaced
        yield np.where(swapped, other[rng.integers(0, len(other), len(own))], own).tolist()
