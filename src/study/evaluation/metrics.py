"""The measures of the study, as pure functions of rankings and relevant servers.

* ``ranked`` holds server rows, best first, shape (b, K), int64; -1 is an unfilled place and comes last. Ties were
  broken before (`study.evaluation.ranking`). A list shorter than k counts as one of k with useless servers at its end.
* ``relevant`` holds the gain of each relevant server, CSR of shape (b, n_servers), row i belonging to row i of
  ``ranked``. M+ of a task is its servers of positive gain; a stored zero is a server judged useless.
* Per-task measures have shape (b,) and lie in [0, 1]; NaN for a task without relevant servers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray

from study.base.errors import StudyError
from study.data.dataset import IntArray

Float64Array = NDArray[np.float64]

DEFAULT_KS = (5, 10)
# The columns of the paper's Table 3, in its order.
PAPER_METRICS = ("recall@5", "recall@10", "precision@5", "precision@10", "f1@5", "f1@10", "ndcg@5", "ndcg@10")


def check_ranking(ranked: IntArray, n_servers: int) -> None:
    """Raise `StudyError` unless every row is a ranking: known servers, each once at most, unfilled places last."""
    ordered = np.sort(ranked, axis=1)
    faults = {
        "names a server outside the catalogue": (ranked < -1) | (ranked >= n_servers),
        "names a server twice": (ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0),
        "fills a place after an unfilled one": (ranked[:, :-1] < 0) & (ranked[:, 1:] >= 0),
    }
    for fault, where in faults.items():
        if where.any():
            row = int(np.flatnonzero(where.any(axis=1))[0])
            raise StudyError(f"the ranking {fault}", row=row, fix="mend the system's rank or score")


def n_relevant(relevant: sp.csr_matrix) -> IntArray:
    """|M+(t)|, the number of servers of positive gain per task, shape (b,)."""
    if relevant.nnz and relevant.data.min() < 0:
        raise StudyError("a relevant server has a negative gain", fix="use gains of 0 (useless) and above")
    return np.asarray((relevant > 0).sum(axis=1), dtype=np.int64).ravel()


def ranked_gains(ranked: IntArray, relevant: sp.csr_matrix, k: int) -> Float64Array:
    """The gains of the first k places, shape (b, k); 0 where a place is unfilled or its server is not relevant."""
    if k < 1:
        raise StudyError(f"the cutoff k is {k}", fix="use k of at least 1")
    if ranked.shape[0] != relevant.shape[0]:
        raise StudyError(f"{ranked.shape[0]} rankings for {relevant.shape[0]} tasks", fix="align ranked and relevant")
    top = ranked[:, :k]
    check_ranking(top, relevant.shape[1])
    gains = np.zeros((len(top), k))
    row, place = np.nonzero(top >= 0)
    gains[row, place] = np.asarray(relevant[row, top[row, place]]).ravel()
    return gains


def _ratio(part: Float64Array | IntArray, whole: Float64Array | IntArray) -> Float64Array:
    """Part / whole, NaN where whole is 0."""
    ratio = np.full(len(whole), np.nan)
    np.divide(part, whole, out=ratio, where=whole > 0)
    return ratio


def _defined(values: Float64Array, relevant: sp.csr_matrix) -> Float64Array:
    """The values, NaN for tasks without relevant servers."""
    return np.where(n_relevant(relevant) > 0, values, np.nan)


def recall(ranked: IntArray, relevant: sp.csr_matrix, k: int) -> Float64Array:
    """R_k(t) = H_k(t) / |M+(t)| (eq. 24-25): below 1 by construction where a task has more than k relevant servers."""
    return _ratio((ranked_gains(ranked, relevant, k) > 0).sum(axis=1), n_relevant(relevant))


def precision(ranked: IntArray, relevant: sp.csr_matrix, k: int) -> Float64Array:
    """P_k(t) = H_k(t) / k (eq. 24-25), divided by k even where fewer servers were ranked or are relevant."""
    return _defined((ranked_gains(ranked, relevant, k) > 0).sum(axis=1) / k, relevant)


def f1(ranked: IntArray, relevant: sp.csr_matrix, k: int) -> Float64Array:
    """F1_k(t), the harmonic mean of a task's precision and recall; 0 where both are 0 (eq. 27, averaged in eq. 28)."""
    # 2PR / (P + R) with P = H/k and R = H/|M+| is 2H / (k + |M+|), which needs no case for H = 0.
    hits = (ranked_gains(ranked, relevant, k) > 0).sum(axis=1)
    return _defined(2 * hits / (k + n_relevant(relevant)), relevant)


def harmonic_mean(precision: ArrayLike, recall: ArrayLike) -> Float64Array:
    """F1 of each pair of precision and recall, 0 for 0 and 0. Of means it is not F1@k of eq. 28, the mean of the tasks'
    F1, but what the T2MRec row of the paper's Table 3 holds."""
    p, r = np.asarray(precision, dtype=np.float64), np.asarray(recall, dtype=np.float64)
    with np.errstate(invalid="ignore"):
        return np.where(p + r == 0, 0.0, 2 * p * r / (p + r))


def ndcg(ranked: IntArray, relevant: sp.csr_matrix, k: int, *, graded: bool = False) -> Float64Array:
    """NDCG_k(t) with discount 1 / log2(i + 1); the ideal list holds min(k, |M+|) servers (eq. 29-31).

    `graded`: a server is worth 2^gain - 1 (Burges et al. 2005) instead of 1; the ideal list starts with the highest.
    """
    discount = 1 / np.log2(np.arange(2, k + 2))

    def worth(gains: Float64Array) -> Float64Array:
        return np.exp2(gains) - 1 if graded else (gains > 0).astype(np.float64)

    n_stored = np.diff(relevant.indptr)
    task = np.repeat(np.arange(len(n_stored)), n_stored)
    best_first = np.lexsort((-relevant.data, task))
    place = np.arange(relevant.nnz) - np.repeat(relevant.indptr[:-1], n_stored)
    kept = place < k
    ideal_gains = worth(relevant.data[best_first].astype(np.float64)[kept]) * discount[place[kept]]
    ideal = np.bincount(task[kept], weights=ideal_gains, minlength=len(n_stored))
    return _ratio((worth(ranked_gains(ranked, relevant, k)) * discount).sum(axis=1), ideal)


def mrr(ranked: IntArray, relevant: sp.csr_matrix, k: int) -> Float64Array:
    """1 / rank of the first relevant server, 0 where none is among the first k."""
    hits = ranked_gains(ranked, relevant, k) > 0
    first = hits.argmax(axis=1) + 1
    return _defined(hits.any(axis=1) / first, relevant)


def hit_rate(ranked: IntArray, relevant: sp.csr_matrix, k: int) -> Float64Array:
    """1 where at least one of the first k servers is relevant, else 0."""
    found = (ranked_gains(ranked, relevant, k) > 0).any(axis=1)
    return _defined(np.where(found, 1.0, 0.0), relevant)


def average_precision(ranked: IntArray, relevant: sp.csr_matrix, k: int) -> Float64Array:
    """AP@k: the sum of P_i(t) over the ranks i <= k of relevant servers, divided by min(k, |M+|), so that a perfect
    list scores 1 whatever k is (trec_eval's map_cut divides by |M+|). Its mean over tasks is MAP@k."""
    hits = ranked_gains(ranked, relevant, k) > 0
    precision_at_rank = hits.cumsum(axis=1) / np.arange(1, k + 1)
    return _ratio((precision_at_rank * hits).sum(axis=1), np.minimum(k, n_relevant(relevant)))


PER_TASK: dict[str, Callable[[IntArray, sp.csr_matrix, int], Float64Array]] = {
    "recall": recall,
    "precision": precision,
    "f1": f1,
    "ndcg": ndcg,
    "mrr": mrr,
    "hit_rate": hit_rate,
    "map": average_precision,
}
# In the order in which tables show them; f1_of_means exists for a set of tasks only.
NAMES = ("recall", "precision", "f1", "f1_of_means", "ndcg", "mrr", "hit_rate", "map")


def per_task(
    ranked: IntArray, relevant: sp.csr_matrix, ks: Sequence[int] = DEFAULT_KS, *, graded: bool = False
) -> pd.DataFrame:
    """Every per-task measure at every cutoff: one row per task in the order of `ranked`, columns like ``ndcg@10``.

    `graded`: NDCG uses the gains; the other measures are binary in any case.
    """
    columns = {f"{name}@{k}": measure(ranked, relevant, k) for name, measure in PER_TASK.items() for k in ks}
    if graded:
        columns |= {f"ndcg@{k}": ndcg(ranked, relevant, k, graded=True) for k in ks}
    return pd.DataFrame(columns)


def list_level(ranked: IntArray, popularity: IntArray, ks: Sequence[int] = DEFAULT_KS) -> dict[str, float]:
    """How the first k places of all lists spread over the catalogue, under names like ``coverage@10``:

    * coverage: the share of the catalogue that is in at least one list,
    * gini: the Gini coefficient of the servers' counts, 0 where all are shown equally often,
    * novelty: the mean of -log2 of a shown server's share of the training interactions, in bits. One is added to each
      count, so that a server never met in training is the most novel one and not infinitely so.

    `popularity`: training interactions of each server, shape (n_servers,). Gini and novelty of empty lists are NaN.
    """
    check_ranking(ranked, n := len(popularity))
    bits = -np.log2((popularity + 1) / (popularity.sum() + n))
    values: dict[str, float] = {}
    for k in ks:
        top = ranked[:, :k]
        counts = np.bincount(top[top >= 0], minlength=n)
        total, weighted = int(counts.sum()), int(np.arange(1, n + 1) @ np.sort(counts))
        values[f"coverage@{k}"] = float((counts > 0).mean())
        values[f"gini@{k}"] = 2 * weighted / (n * total) - (n + 1) / n if total else float("nan")
        values[f"novelty@{k}"] = float(counts @ bits / total) if total else float("nan")
    return values
