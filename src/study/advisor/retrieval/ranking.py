"""From scores to a ranking, with a stated rule for ties."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from study.advisor.arrays import FloatArray, IntArray

# Rows ranked at a time: 512 x 5,642 float32 scores are 12 MB, small enough to stay near the cache.
CHUNK = 512


def tie_order(n_servers: int, seed: int) -> IntArray:
    """The order in which equally scored servers are ranked: a seeded random permutation of the server rows, never the
    id order (ids are alphabetical in Task2MCP, and a quarter of the label lists is sorted by id)."""
    return np.random.default_rng([seed, 0x71E5]).permutation(n_servers).astype(np.int64)


def top_k(scores: FloatArray, k: int, order: IntArray) -> tuple[IntArray, FloatArray]:
    """The server rows and scores of the `k` highest scores of each row, both (b, k), best first, ties in the order of
    `tie_order`; -inf and NaN are never ranked, unfilled places hold -1 and -inf."""
    k, position = min(k, scores.shape[1]), np.argsort(order)
    if (unknown := np.isnan(scores)).any():
        scores = np.where(unknown, -np.inf, scores)
    servers, best = np.full((len(scores), k), -1, dtype=np.int64), np.full((len(scores), k), -np.inf)
    lowest = np.partition(scores, -k, axis=1)[:, -k] if k else np.full(len(scores), np.inf)
    for row, (values, least) in enumerate(zip(scores, lowest, strict=True)):
        # Only what can be among the k best is sorted: ten of thousands, and all that tie for the last place.
        candidates = np.flatnonzero(values >= least)
        chosen = candidates[np.lexsort((position[candidates], -values[candidates]))[:k]]
        servers[row], best[row] = chosen, values[chosen]
    servers[np.isneginf(best)] = -1
    return servers, best.astype(np.float32)


def best(scores: FloatArray, k: int, order: IntArray) -> tuple[IntArray, FloatArray]:
    """The rows and scores of the `k` highest of `scores`, shape (n,), both of length at most k; as `top_k`."""
    (rows,), (values,) = top_k(scores[None, :], k, order)
    return rows[rows >= 0], values[rows >= 0]


def chunks(tasks: IntArray, size: int = CHUNK) -> Iterator[slice]:
    """Slices that cover `tasks`, `size` rows at a time."""
    for start in range(0, len(tasks), size):
        yield slice(start, min(start + size, len(tasks)))
