"""Fused score, anchors and centroid expansion (paper, eq. 18-22)."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from study.data.dataset import FloatArray, IntArray
from study.evaluation.ranking import top_k


def fuse(semantic: FloatArray, structural: FloatArray, *, weight: float) -> FloatArray:
    """s = alpha_sem s_sem + (1 - alpha_sem) s_str (eq. 18).

    Args:
        semantic, structural: shape (b, n_servers).
        weight: alpha_sem, between 0 and 1.
    """
    return np.float32(weight) * semantic + np.float32(1 - weight) * structural


def centroids(
    tasks: FloatArray | sp.csr_matrix, servers: FloatArray | sp.csr_matrix, anchors: IntArray
) -> FloatArray | sp.csr_matrix:
    """c(t), the mean of a task's embedding and its anchors' (eq. 20).

    Args:
        tasks: z_t, shape (b, d'), dense or sparse.
        servers: z_m, shape (n_servers, d'), dense or sparse.
        anchors: server rows, shape (b, K1); -1 where a task has fewer anchors.

    Returns: shape (b, d'), dense or sparse as the input. Not normalised, as in the paper: length changes no order.
    """
    rows, places = np.nonzero(anchors >= 0)
    chosen = (np.ones(len(rows), np.float32), (rows, anchors[rows, places]))
    members = sp.csr_matrix(chosen, shape=(len(anchors), servers.shape[0]))
    share = sp.diags_array((1 / ((anchors >= 0).sum(axis=1) + 1)).astype(np.float32))
    return share @ (tasks + members @ servers)


def expand(
    fused: FloatArray,
    tasks: FloatArray | sp.csr_matrix,
    servers: FloatArray | sp.csr_matrix,
    *,
    anchors: int,
    pool: int,
    order: IntArray,
) -> tuple[IntArray, FloatArray]:
    """Anchors by fused score, then the servers nearest to the centroid of task and anchors (eq. 19-22).

    Args:
        fused: s(m, t), shape (b, n_servers); -inf for servers that must not be returned.
        tasks: z_t, unit rows, shape (b, d').
        servers: z_m, unit rows, shape (n_servers, d').
        anchors: K1.
        pool: size of the pool; pool - K1 servers come from the centroid.
        order: tie order from `study.evaluation.ranking.tie_order`.

    Returns: server rows and scores, shape (b, pool); anchors first with their fused scores, then the expansion with its
        centroid similarity shifted below the last anchor, so that scores never increase along a row.
    """
    anchor_rows, anchor_scores = top_k(fused, anchors, order)
    product: Any = centroids(tasks, servers, anchor_rows) @ servers.T
    similarity = np.asarray(product.toarray() if sp.issparse(product) else product, np.float32)
    np.copyto(similarity, -np.inf, where=fused == -np.inf)
    rows, places = np.nonzero(anchor_rows >= 0)
    similarity[rows, anchor_rows[rows, places]] = -np.inf
    near_rows, near_scores = top_k(similarity, max(pool - anchors, 0), order)
    # Cosines lie in [-1, 1]: a shift to two below the last anchor keeps the expansion under it and its order intact.
    last = anchor_scores[:, -1:] if anchor_scores.shape[1] else np.zeros((len(fused), 1), np.float32)
    near_scores = near_scores + np.where(np.isfinite(last), last, 0) - 2
    return np.concatenate([anchor_rows, near_rows], 1), np.concatenate([anchor_scores, near_scores], 1).astype(
        np.float32
    )
