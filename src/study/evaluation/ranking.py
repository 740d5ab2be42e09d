"""From scores to a ranking, with a stated rule for ties."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from study.advisor.arrays import FloatArray, IntArray

if TYPE_CHECKING:
    import scipy.sparse as sp

# Rows ranked at a time: 512 x 5,642 float32 scores are 12 MB, small enough to stay near the cache.
CHUNK = 512


def tie_order(n_servers: int, seed: int) -> IntArray:
    """The order in which equally scored servers are ranked: a seeded random permutation of the server rows, never the
    id order (ids are alphabetical in Task2MCP, and a quarter of the label lists is sorted by id)."""
    return np.random.default_rng([seed, 0x71E5]).permutation(n_servers).astype(np.int64)


def top_k(scores: FloatArray, k: int, order: IntArray) -> tuple[IntArray, FloatArray]:
    """The server rows and scores of the `k` highest scores of each row, both (b, k), best first, ties in the order of
    `tie_order`; -inf and NaN are never ranked, unfilled places hold -1 and -inf."""
    k, place = min(k, scores.shape[1]), np.argsort(order)
    if (unknown := np.isnan(scores)).any():
        scores = np.where(unknown, -np.inf, scores)
    servers, best = np.full((len(scores), k), -1, dtype=np.int64), np.full((len(scores), k), -np.inf)
    lowest = np.partition(scores, -k, axis=1)[:, -k] if k else np.full(len(scores), np.inf)
    for row, (values, least) in enumerate(zip(scores, lowest, strict=True)):
        # Only what can be among the k best is sorted: ten of thousands, and all that tie for the last place.
        candidates = np.flatnonzero(values >= least)
        chosen = candidates[np.lexsort((place[candidates], -values[candidates]))[:k]]
        servers[row], best[row] = chosen, values[chosen]
    servers[np.isneginf(best)] = -1
    return servers, best.astype(np.float32)


def mask_known(scores: FloatArray, tasks: IntArray, known: sp.csr_matrix) -> FloatArray:
    """Set the scores of known interactions to -inf, in place. `scores`: shape (b, n_servers), one row per entry of
    `tasks`. `known`: shape (n_tasks, n_servers)."""
    rows, columns = known[tasks].nonzero()
    scores[rows, columns] = -np.inf
    return scores


def restrict(scores: FloatArray, candidates: IntArray) -> FloatArray:
    """Keep only the given candidates of each row rankable. `candidates`: server rows, shape (b, n_candidates)."""
    kept = np.full_like(scores, -np.inf)
    np.put_along_axis(kept, candidates, np.take_along_axis(scores, candidates, axis=1), axis=1)
    return kept


def chunks(tasks: IntArray, size: int = CHUNK) -> Iterator[slice]:
    """Slices that cover `tasks`, `size` rows at a time."""
    for start in range(0, len(tasks), size):
        yield slice(start, min(start + size, len(tasks)))


def tied(scores: FloatArray, k: int) -> np.ndarray:
    """Whether a tie decides what a task's top `k` holds or in which order, shape (b,), bool. `scores`: ranked, with at
    least k + 1 columns where the catalogue allows."""
    window = scores[:, : k + 1]
    ties: np.ndarray = ((window[:, 1:] == window[:, :-1]) & (window[:, 1:] > -np.inf)).any(axis=1)
    return ties
