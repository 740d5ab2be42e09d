"""Many comparisons at once: what a p-value is worth inside its declared family."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray


def holm(p_values: ArrayLike) -> NDArray[np.float64]:
    """Holm's step-down adjusted p-values (Holm 1979), in the order given.

    The smallest of m is multiplied by m, the next by m - 1, ..., none below an earlier one, none above 1. Calling every
    adjusted value below alpha significant keeps the chance of any false one below alpha, whatever their dependence.

    Args:
        p_values: shape (m,), each in [0, 1].
    """
    p = np.asarray(p_values, dtype=np.float64)
    if not ((p >= 0) & (p <= 1)).all():
        raise ValueError("p-values lie in [0, 1]")
    order = np.argsort(p, kind="stable")
    stepped = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(stepped, 1)
    return adjusted
