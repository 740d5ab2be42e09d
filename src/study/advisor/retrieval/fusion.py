"""Fused score, anchors and centroid expansion (paper, eq. 17-22)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from study.advisor.arrays import FloatArray, IntArray
from study.advisor.retrieval.ranking import top_k


def fuse(semantic: FloatArray, structural: FloatArray, *, weight: float) -> FloatArray:
    """s = alpha_sem s_sem + (1 - alpha_sem) s_str (eq. 18), shape (b, n_servers); `weight` is alpha_sem."""
    return np.float32(weight) * semantic + np.float32(1 - weight) * structural


def centroids(tasks: FloatArray, servers: FloatArray, anchors: IntArray) -> FloatArray:
    """c(t), the mean of a task's embedding and its anchors' (eq. 20), shape (b, d'). It is not normalised, as in the
    paper: length changes no order.

    `tasks`: z_t, shape (b, d'). `servers`: z_m, shape (n_servers, d'). `anchors`: server rows, shape (b, K1); -1 where
    a task has fewer.
    """
    members = np.zeros_like(tasks)
    # In the order of the catalogue: another order of adding changes the last digit.
    for rows in np.sort(anchors, axis=1).T:
        members += np.where(rows[:, None] >= 0, servers[rows], np.float32(0))
    share = (1 / ((anchors >= 0).sum(axis=1) + 1)).astype(np.float32)
    means: FloatArray = share[:, None] * (tasks + members)
    return means


def expand(
    fused: FloatArray, similarity_to: Callable[[IntArray], FloatArray], *, anchors: int, pool: int, order: IntArray
) -> tuple[IntArray, FloatArray]:
    """Anchors by fused score, then the servers nearest to the centroid of task and anchors (eq. 19-22).

    Args:
        fused: s(m, t), shape (b, n_servers); -inf for servers that must not be returned.
        similarity_to: gives the similarity of every server to the centroids, shape (b, n_servers), from the rows of the
            anchors, shape (b, K1), -1 where a task has fewer.
        anchors, pool: K1, and the size of the pool, of which the rest comes from the centroid.

    Returns: server rows and scores, shape (b, pool); anchors first with their fused scores, then the expansion with its
        centroid similarity shifted below the last anchor, so that scores never increase along a row.
    """
    anchor_rows, anchor_scores = top_k(fused, anchors, order)
    similarity = similarity_to(anchor_rows)
    np.copyto(similarity, -np.inf, where=fused == -np.inf)
    rows, places = np.nonzero(anchor_rows >= 0)
    similarity[rows, anchor_rows[rows, places]] = -np.inf
    near_rows, near_scores = top_k(similarity, max(pool - anchors, 0), order)
    # Cosines lie in [-1, 1]: a shift to two below the last anchor keeps the expansion under it and its order intact.
    last = anchor_scores[:, -1:] if anchor_scores.shape[1] else np.zeros((len(fused), 1), np.float32)
    near_scores = near_scores + np.where(np.isfinite(last), last, 0) - 2
    scores = np.concatenate([anchor_scores, near_scores], 1).astype(np.float32)
    return np.concatenate([anchor_rows, near_rows], 1), scores
