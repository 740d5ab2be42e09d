"""What RecBole 1.2.1 needs to run on today's numpy and scipy. Applied in the runner's own process and nowhere else."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

# Aliases that numpy 2 removed and that `recbole.config.Config` copies at construction (RecBole issue 2162).
REMOVED_ALIASES = {"float_": np.float64, "complex_": np.complex128, "unicode_": np.str_, "bool8": np.bool_}


def apply() -> None:
    """Restore the removed names. Call it before the first import of ``recbole``.

    `recbole.quick_start` must never be imported: it alone needs ray, and a ray that today's numpy breaks.
    """
    for name, kind in REMOVED_ALIASES.items():
        if name not in np.__dict__:
            setattr(np, name, kind)
    if not hasattr(sp.dok_matrix, "_update"):
        # scipy 1.13 removed this private method, with which RecBole's graph models fill matrices (RecBole issue 2034).
        sp.dok_matrix._update = _update


def _update(matrix: sp.dok_matrix, entries: dict[tuple[int, int], float]) -> None:
    matrix._dict.update(entries)
