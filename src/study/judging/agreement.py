"""Agreement of annotation passes: weighted kappa (Cohen 1968) with intervals over topics; drift between rounds."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from study.base.errors import StudyError
from study.base.files import read_csv
from study.data.dataset import IntArray
from study.evaluation.statistics import FEW_RESAMPLES, cluster_interval, percentile_limits, resample_counts
from study.judging import store
from study.judging.collection import Collection, Float64Array

Weights = Literal["linear", "quadratic"]
N_GRADES = len(store.GRADES)


def confusions(
    first: ArrayLike, second: ArrayLike, groups: pd.Series | None = None, weight: ArrayLike = 1
) -> IntArray | Float64Array:
    """Counts of (first grade, second grade), shape (3, 3); with `groups` one such table per group, by appearance.
    `first`, `second`, `groups`: of the same pairs, shape (n,), as is `weight`: for how many a pair stands."""
    one, two, shares = np.asarray(first, np.int64), np.asarray(second, np.int64), np.asarray(weight)
    number = np.zeros(len(one), np.int64) if groups is None else pd.factorize(groups)[0]
    counts = np.zeros((number.max(initial=0) + 1, N_GRADES, N_GRADES), dtype=shares.dtype)
    np.add.at(counts, (number, one, two), shares)
    return counts[0] if groups is None else counts


def weighted_kappa(counts: IntArray | Float64Array, weights: Weights) -> Float64Array:
    """1 - observed / expected disagreement, disagreements weighted by |i - j| or (i - j)^2.

    `counts`: shape (..., 3, 3), rows the first pass. scikit-learn's takes one table at a time, and pairs, not counts.
    Returns: shape (...); NaN where chance alone leaves no disagreement (both passes use one and the same grade).
    """
    distance = np.abs(np.subtract.outer(np.arange(N_GRADES), np.arange(N_GRADES)))
    cost = distance if weights == "linear" else distance**2
    total = counts.sum(axis=(-2, -1))
    observed = (counts * cost).sum(axis=(-2, -1)) * total
    chance = counts.sum(axis=-1)[..., :, None] * counts.sum(axis=-2)[..., None, :]
    expected = (chance * cost).sum(axis=(-2, -1)).astype(np.float64)
    ratio = np.full(expected.shape, np.nan)
    np.divide(observed, expected, out=ratio, where=expected > 0)
    return np.asarray(1 - ratio)


def kappa_interval(counts: IntArray | Float64Array, weights: Weights, *, seed: int) -> tuple[float, float]:
    """95 % percentile bootstrap interval over topics, as the pairs of a topic are not independent. `counts`: per topic,
    shape (n_topics, 3, 3)."""
    resamples = resample_counts(len(counts), seed=seed, resamples=FEW_RESAMPLES)
    return percentile_limits(weighted_kappa(np.tensordot(resamples, counts, axes=1), weights))


def kappa_row(
    counts: IntArray | Float64Array, weights: Weights = "quadratic", prefix: str = "kappa_"
) -> dict[str, float]:
    """kappa_quadratic (or kappa_linear) of counts per topic, and its interval under ``ci_low`` and ``ci_high`` behind
    the prefix."""
    low, high = kappa_interval(counts, weights, seed=0)
    kappa = float(weighted_kappa(counts.sum(axis=0), weights))
    return {f"kappa_{weights}": kappa, f"{prefix}ci_low": low, f"{prefix}ci_high": high}


def agreement_table(collection: Collection) -> pd.DataFrame:
    """Agreement overall, per round and per subcategory.

    Returns: columns scope, name, topics, pairs, then kappa_quadratic and kappa_linear, each with _ci_low and _ci_high,
        equal (share of equal grades), third (share graded a third time).
    """
    judged = collection.judgements.merge(collection.topics, on="task_id", validate="many_to_one")
    scopes = [("all", "all", judged)]
    scopes += [(scope, str(name), part) for scope in ("round", "subcategory") for name, part in judged.groupby(scope)]
    rows = []
    for scope, name, part in scopes:
        first, second = part["grade_1"], part["grade_2"]
        counts = confusions(first, second, part["task_id"])
        border = (first != second) & (part[["grade_1", "grade_2"]].min(axis=1) == 0)
        row: dict[str, object] = {"scope": scope, "name": name, "topics": len(counts), "pairs": len(part)}
        row |= kappa_row(counts, "quadratic", "kappa_quadratic_") | kappa_row(counts, "linear", "kappa_linear_")
        rows.append(row | {"equal": float((first == second).mean()), "third": float(border.mean())})
    return pd.DataFrame(rows)


def confusion_table(judgements: pd.DataFrame) -> pd.DataFrame:
    """Pairs by first and second grade: columns grade_1, grade_2, pairs, all nine combinations."""
    counts = confusions(judgements["grade_1"], judgements["grade_2"])
    return pd.DataFrame([(i, j, n) for (i, j), n in np.ndenumerate(counts)], columns=["grade_1", "grade_2", "pairs"])


def drift(judgements: pd.DataFrame, rejudged: pd.DataFrame) -> pd.DataFrame:
    """Re-annotated pairs against their first and final grades, per round of the first and of the later annotation.

    `rejudged`: columns task_id, server_id, grade, round (after which it was judged again).
    Returns: columns round, again (both rounds, "all" in the first row), pairs, mean_first (of both first grades),
        mean_again, shift (again - first) with ci_low and ci_high (95 %, bootstrap over topics), useful_final and
        useful_again (shares with grade 1 or 2), kappa_quadratic (final against again).
    """
    later = rejudged[[*store.PAIR, "grade", "round"]].rename(columns={"round": "again"})
    both = judgements.merge(later, on=store.PAIR, how="inner", validate="one_to_many")
    if len(both) < len(rejudged):
        raise StudyError("a pair was judged again that was not judged before", fix="collect the rounds before")
    rows = []
    for (one, two), part in ((("all", "all"), both), *both.groupby(["round", "again"])):
        before = part[["grade_1", "grade_2"]].astype(np.float64).mean(axis=1).to_numpy()
        again, final = (part[name].to_numpy(np.int64) for name in ("grade", "final"))
        low, high = cluster_interval(again - before, part["task_id"].to_numpy(), seed=0, resamples=FEW_RESAMPLES)
        row: dict[str, object] = {"round": one, "again": two, "pairs": len(part), "mean_first": before.mean()}
        row |= {"mean_again": again.mean(), "shift": (again - before).mean(), "ci_low": low, "ci_high": high}
        row |= {"useful_final": (final > 0).mean(), "useful_again": (again > 0).mean()}
        rows.append(row | {"kappa_quadratic": float(weighted_kappa(confusions(final, again), "quadratic"))})
    return pd.DataFrame(rows)


def by_hand(judgements: pd.DataFrame, folder: Path) -> pd.DataFrame:
    """Persons' spot checks against the final grades. `folder`: ``by_hand``, holding ``<judge>/<task>.csv`` (columns
    task_id, server_id, grade); may be absent. Returns: one row per judge: judge, topics, pairs, mean_final, mean_hand,
    equal, kappa_quadratic."""
    rows = []
    for judge_folder in sorted(path for path in folder.glob("*") if path.is_dir()):
        grades = pd.concat([read_csv(path) for path in sorted(judge_folder.glob("*.csv"))])
        pairs = judgements.merge(grades, on=store.PAIR, validate="one_to_one")
        final, hand = pairs["final"], pairs["grade"]
        row: dict[str, object] = {"judge": judge_folder.name, "topics": pairs["task_id"].nunique(), "pairs": len(pairs)}
        row |= {"mean_final": final.mean(), "mean_hand": hand.mean(), "equal": (final == hand).mean()}
        rows.append(row | {"kappa_quadratic": float(weighted_kappa(confusions(final, hand), "quadratic"))})
    return pd.DataFrame(rows)


def agreement_tables(collection: Collection) -> dict[str, pd.DataFrame]:
    """agreement, confusion and, where pairs were judged again or by a person, drift and by_hand."""
    judged, rejudged = collection.judgements, collection.table("rejudged")
    tables = {"agreement": agreement_table(collection), "confusion": confusion_table(judged)}
    if len(rejudged):
        tables["drift"] = drift(judged, rejudged)
    if len(hand := by_hand(judged, store.folder(collection.dataset) / "by_hand")):
        tables["by_hand"] = hand
    return tables
