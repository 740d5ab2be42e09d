"""Measures that know about unjudged servers, as pure functions of the grades of the ranked places.

``grades`` holds the grade of each place, best first, shape (b, k): 0, 1 or 2, `UNJUDGED` where nobody read the server,
`UNFILLED` where the system named none. NDCG and the reciprocal rank are those of `study.evaluation.metrics`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Float64Array = NDArray[np.float64]
GradeArray = NDArray[np.int8]
UNJUDGED, UNFILLED = -1, -2


def precision(grades: GradeArray, k: int, *, least: int) -> Float64Array:
    """The share of the first k places with a grade of at least `least`, shape (b,).

    Defined for every topic, also where the pool holds no such server: then no answer is useful, and 0 says so.
    """
    return np.asarray((grades[:, :k] >= least).sum(axis=1) / k)


def unjudged(grades: GradeArray, k: int) -> Float64Array:
    """The share of the filled places among the first k that nobody judged, shape (b,); 0 where none is filled."""
    filled = (grades[:, :k] != UNFILLED).sum(axis=1)
    return np.asarray((grades[:, :k] == UNJUDGED).sum(axis=1) / np.maximum(filled, 1))


def bpref(grades: GradeArray, n_useful: NDArray[np.int64], n_useless: NDArray[np.int64]) -> Float64Array:
    """Preference for useful over useless servers among the judged ones (Buckley and Voorhees 2004; as in trec_eval).

    The mean over the R useful servers of 1 - min(useless ones above it, R) / min(R, N), useful servers that are not
    ranked counting 0. Unjudged servers are skipped, so that being unjudged costs nothing.

    Args:
        n_useful, n_useless: R and N, judged servers of the topic with a grade of at least 1, and of 0; shape (b,).

    Returns: shape (b,), NaN where R is 0.
    """
    useful, useless = grades >= 1, grades == 0
    above = np.minimum(useless.cumsum(axis=1), n_useful[:, None])
    bound = np.minimum(n_useful, n_useless)[:, None]
    penalty = np.zeros(grades.shape)
    np.divide(above, bound, out=penalty, where=(above > 0) & (bound > 0))
    gained = ((1 - penalty) * useful).sum(axis=1)
    result = np.full(len(grades), np.nan)
    np.divide(gained, n_useful, out=result, where=n_useful > 0)
    return result


def rbp(grades: GradeArray, p: float) -> tuple[Float64Array, Float64Array]:
    """Rank-biased precision with its residual (Moffat and Zobel 2008); a grade of at least 1 counts.

    A reader looks at the next place with probability p. The value is a lower bound; value + residual is what it would
    be if every unjudged place, and every place below the last one, were useful. Unfilled places are useless.

    Returns: value and residual, both of shape (b,).
    """
    weight = (1 - p) * p ** np.arange(grades.shape[1])
    value = (grades >= 1) @ weight
    residual = (grades == UNJUDGED) @ weight + p ** grades.shape[1]
    return np.asarray(value), np.asarray(residual)
