"""The sets that MSBPR mines from the training interactions: disliked, potentially liked and uncertain servers."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

# Sums of shares that equal a threshold on paper may fall short of it by rounding.
ROUNDING = 1e-9


def disliked(train: sp.csr_matrix, threshold: int) -> NDArray[np.bool_]:
    """J: servers with at most `threshold` training tasks, shape (n_servers,)."""
    unpopular: NDArray[np.bool_] = train.getnnz(axis=0) <= threshold
    return unpopular


def column_cosine(counts: sp.csr_matrix, kind: str) -> sp.csr_matrix:
    """Cosine between the columns of `counts`.

    Args:
        counts: r, shape (n, m).
        kind: ``corated`` takes the norms over the rows that both columns have, as the method does (so binary counts
            give 1 wherever there is such a row); ``full`` takes the ordinary norms.

    Returns: shape (m, m), stored where two columns share a row.
    """
    products = _sorted(counts.T @ counts)
    squares = sp.csr_matrix((counts.data**2, counts.indices, counts.indptr), shape=counts.shape)
    if kind == "full":
        norms = np.asarray(squares.sum(axis=0)).ravel()
        row = np.repeat(np.arange(products.shape[0]), np.diff(products.indptr))
        norm = norms[row] * norms[products.indices]
    else:
        present = sp.csr_matrix((np.ones(counts.nnz), counts.indices, counts.indptr), shape=counts.shape)
        own = _sorted(squares.T @ present)  # the same stored entries as `products`
        norm = own.data * _sorted(own.T).data
    return sp.csr_matrix((products.data / np.sqrt(norm), products.indices, products.indptr), shape=products.shape)


def item_preference(counts: sp.csr_matrix, similarity: sp.csr_matrix) -> sp.csr_matrix:
    """s(u, j) = sum over the task's servers i of (r_ui / sum r_u) S(i, j) (variant I), shape (n_tasks, n_servers)."""
    return sp.csr_matrix(_rows_to_one(counts) @ similarity)


def hybrid_similarity(counts: sp.csr_matrix, similarity: sp.csr_matrix) -> sp.csr_matrix:
    """S_H(u, v) = sum r_ui r_vj S(i, j) / (sqrt(|r_u|^2 |I_v|) sqrt(|r_v|^2 |I_u|)) (variant III), shape (n, n)."""
    total = sp.coo_matrix(counts @ similarity @ counts.T)
    norm = np.asarray(counts.power(2).sum(axis=1)).ravel() * np.diff(counts.indptr)
    return sp.csr_matrix((total.data / np.sqrt(norm[total.row] * norm[total.col]), (total.row, total.col)), total.shape)


def user_preference(counts: sp.csr_matrix, similarity: sp.csr_matrix, threshold: float) -> sp.csr_matrix:
    """rhat(u, j): mean count of j among the tasks v != u with S(u, v) >= threshold, weighted by S (variants II, III).

    A task without such neighbours has an empty row. Returns: shape (n_tasks, n_servers).
    """
    near = sp.coo_matrix(similarity)
    kept = (near.row != near.col) & (near.data >= threshold - ROUNDING)
    weights = sp.csr_matrix((near.data[kept], (near.row[kept], near.col[kept])), shape=near.shape)
    return sp.csr_matrix(_rows_to_one(weights) @ counts)


def potentially_liked(
    preference: sp.csr_matrix, train: sp.csr_matrix, unpopular: NDArray[np.bool_], threshold: float
) -> sp.csr_matrix:
    """P: servers outside I_u and J whose preference reaches `threshold`; entries 1, shape (n_tasks, n_servers)."""
    found = sp.coo_matrix(preference)
    kept = (found.data >= threshold - ROUNDING) & ~unpopular[found.col]
    liked = sp.csr_matrix((np.ones(kept.sum()), (found.row[kept], found.col[kept])), shape=found.shape)
    observed = sp.csr_matrix((np.ones(train.nnz), train.indices, train.indptr), shape=train.shape)
    liked = sp.csr_matrix(liked - liked.multiply(observed))
    liked.eliminate_zeros()
    return liked


def _rows_to_one(matrix: sp.csr_matrix) -> sp.csr_matrix:
    """Each row divided by its sum; empty rows stay empty."""
    total = np.asarray(matrix.sum(axis=1)).ravel()
    return sp.csr_matrix(sp.diags_array(np.divide(1, total, out=np.zeros_like(total), where=total > 0)) @ matrix)


def _sorted(matrix: sp.spmatrix) -> sp.csr_matrix:
    rows = sp.csr_matrix(matrix)
    rows.sort_indices()
    return rows
