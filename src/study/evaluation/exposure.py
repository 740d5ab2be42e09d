"""Measures of a whole set of rankings: how much of the catalogue is shown, how evenly, and how unusual it is.

``ranked`` is as in `study.evaluation.metrics`: server rows, shape (b, K), -1 where a place is unfilled.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from study.data.dataset import IntArray
from study.evaluation.metrics import DEFAULT_KS, check_ranking


def exposure(ranked: IntArray, n_servers: int, k: int) -> IntArray:
    """How often each server is among the first k of a task, shape (n_servers,)."""
    top = ranked[:, :k]
    check_ranking(top, n_servers)
    return np.bincount(top[top >= 0], minlength=n_servers).astype(np.int64)


def coverage(ranked: IntArray, n_servers: int, k: int) -> float:
    """The share of the catalogue that is among the first k of at least one task, in [0, 1]."""
    return float((exposure(ranked, n_servers, k) > 0).mean())


def gini(ranked: IntArray, n_servers: int, k: int) -> float:
    """The Gini coefficient of exposure over the whole catalogue, servers that are never shown included.

    Returns: 0 where all servers are shown equally often, (n_servers - 1) / n_servers where one takes every place, NaN
    where nothing is shown.
    """
    counts = np.sort(exposure(ranked, n_servers, k))
    if not counts.any():
        return float("nan")
    rank = np.arange(1, n_servers + 1)
    return float(2 * (rank @ counts) / (n_servers * counts.sum()) - (n_servers + 1) / n_servers)


def novelty(ranked: IntArray, popularity: IntArray, k: int) -> float:
    """The mean over all filled places of -log2 of the server's share of the training interactions, in bits.

    Args:
        popularity: training interactions of each server, shape (n_servers,). One is added to each, so that a server
            never met in training is the most novel one and not infinitely so.

    Returns: NaN where nothing is ranked.
    """
    counts = exposure(ranked, len(popularity), k)
    if not counts.any():
        return float("nan")
    share = (popularity + 1) / (popularity.sum() + len(popularity))
    return float(counts @ -np.log2(share) / counts.sum())


def list_level(ranked: IntArray, popularity: IntArray, ks: Sequence[int] = DEFAULT_KS) -> dict[str, float]:
    """Coverage, Gini coefficient and novelty at every cutoff, under names like ``coverage@10``."""
    n_servers = len(popularity)
    values: dict[str, float] = {}
    for k in ks:
        values |= {f"coverage@{k}": coverage(ranked, n_servers, k), f"gini@{k}": gini(ranked, n_servers, k)}
        values[f"novelty@{k}"] = novelty(ranked, popularity, k)
    return values
