"""Paired comparisons where several queries have one origin: the origin is the unit that is resampled.

Queries made from one task, one dialogue or one target are no independent evidence. Intervals come from the cluster
bootstrap (origins are drawn, each with all its queries), p-values from tests on one value per origin.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from study.errors import StudyError
from study.evaluation.multiplicity import holm
from study.evaluation.significance import RESAMPLES, Float64Array, paired, randomisation, wilcoxon


def interval(
    difference: Float64Array, groups: np.ndarray, *, seed: int, resamples: int = RESAMPLES, level: float = 0.95
) -> tuple[float, float]:
    """Percentile bootstrap interval of the mean over queries; whole groups are drawn with replacement.

    Args:
        difference, groups: value and group of every query, shapes (n,).
    """
    _, place = np.unique(groups, return_inverse=True)
    sums, sizes = np.bincount(place, difference), np.bincount(place)
    if len(sums) < 2:
        return float("nan"), float("nan")
    drawn = np.random.default_rng(seed).integers(len(sums), size=(resamples, len(sums)))
    means = sums[drawn].sum(axis=1) / sizes[drawn].sum(axis=1)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def clustered(
    table: pd.DataFrame, frames: Mapping[str, pd.DataFrame], groups: Mapping[str, str], seed: int
) -> pd.DataFrame:
    """A table of `compare_all` with intervals and p-values over groups, and their number in the column ``groups``.

    Args:
        frames: the per-task tables that were compared, by system.
        groups: the group of every query.

    Raises:
        StudyError: a query without a group.
    """
    lines = []
    for line in table.to_dict("records"):
        pairs = paired(frames[str(line["system"])], frames[str(line["reference"])], str(line["metric"]))
        unknown = [query for query in pairs.index.astype(str) if query not in groups]
        if unknown:
            raise StudyError("a query has no group", row=unknown[0], fix="run the protocol again")
        difference = (pairs["system"] - pairs["reference"]).to_numpy(np.float64)
        own = np.array([groups[str(query)] for query in pairs.index])
        low, high = interval(difference, own, seed=seed)
        by_group = pd.Series(difference).groupby(own)
        # The mean over queries is the sum over groups, up to a constant: signs of whole groups are flipped.
        lines.append(
            line
            | {
                "ci_low": low,
                "ci_high": high,
                "groups": by_group.ngroups,
                "wilcoxon_p": wilcoxon(by_group.mean().to_numpy()),
                "randomisation_p": randomisation(
                    by_group.sum().to_numpy(), seed=seed, resamples=max(RESAMPLES, 100 * len(table))
                ),
            }
        )
    found = pd.DataFrame(lines)
    for test in ("wilcoxon_p", "randomisation_p"):
        found[f"{test}_holm"] = holm(found[test].to_numpy())
    return found
