"""Agreement of two annotation passes: weighted kappa (Cohen 1968) with intervals over topics; drift between rounds."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd

from study.data.dataset import IntArray
from study.errors import StudyError
from study.judging import store
from study.judging.collection import Float64Array

Weights = Literal["linear", "quadratic"]
RESAMPLES = 2_000
N_GRADES = len(store.GRADES)


def confusions(first: IntArray, second: IntArray, groups: IntArray) -> IntArray:
    """Counts of (first grade, second grade) per group.

    Args:
        first, second: grades of the same pairs, shape (n,).
        groups: group number of each pair from 0, shape (n,).

    Returns: shape (n_groups, 3, 3).
    """
    counts = np.zeros((int(groups.max()) + 1, N_GRADES, N_GRADES), dtype=np.int64)
    np.add.at(counts, (groups, first, second), 1)
    return counts


def weighted_kappa(counts: IntArray, weights: Weights) -> Float64Array:
    """1 - observed / expected disagreement, disagreements weighted by |i - j| or (i - j)^2.

    Args:
        counts: shape (..., 3, 3), rows the first pass.

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


def kappa_interval(
    counts: IntArray, weights: Weights, *, seed: int, resamples: int = RESAMPLES, level: float = 0.95
) -> tuple[float, float]:
    """Percentile bootstrap interval over topics, as the pairs of a topic are not independent.

    Args:
        counts: per topic, shape (n_topics, 3, 3).
    """
    n = len(counts)
    drawn = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=resamples)
    values = weighted_kappa(np.tensordot(drawn, counts, axes=1), weights)
    if np.isnan(values).all():
        return float("nan"), float("nan")
    low, high = np.nanquantile(values, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def agreement_table(judgements: pd.DataFrame, topics: pd.DataFrame, *, seed: int = 0) -> pd.DataFrame:
    """Agreement overall, per round and per subcategory.

    Returns: columns scope, name, topics, pairs, then kappa, low, high for quadratic and linear weights (suffixes),
        equal (share of equal grades), third (share graded a third time).
    """
    rows = judgements.merge(topics, on="task_id", how="left", validate="many_to_one")
    if rows["subcategory"].isna().any():
        raise StudyError("a judged task is not a topic", row=int(rows["subcategory"].isna().to_numpy().argmax()))
    scopes = [("all", "all", rows)]
    scopes += [("round", str(name), part) for name, part in rows.groupby("round")]
    scopes += [("subcategory", str(name), part) for name, part in rows.groupby("subcategory")]
    found = []
    for scope, name, part in scopes:
        first, second = (part[column].to_numpy(np.int64) for column in ("grade_1", "grade_2"))
        counts = confusions(first, second, pd.factorize(part["task_id"])[0].astype(np.int64))
        border = (first != second) & (np.minimum(first, second) == 0)
        row: dict[str, object] = {"scope": scope, "name": name, "topics": len(counts), "pairs": len(part)}
        for weights in ("quadratic", "linear"):
            low, high = kappa_interval(counts, weights, seed=seed)
            kappa = float(weighted_kappa(counts.sum(axis=0), weights))
            row |= {f"kappa_{weights}": kappa, f"low_{weights}": low, f"high_{weights}": high}
        found.append(row | {"equal": float((first == second).mean()), "third": float(border.mean())})
    return pd.DataFrame(found)


def confusion_table(judgements: pd.DataFrame) -> pd.DataFrame:
    """Pairs by first and second grade: columns grade_1, grade_2, pairs, all nine combinations."""
    first, second = (judgements[column].to_numpy(np.int64) for column in ("grade_1", "grade_2"))
    counts = confusions(first, second, np.zeros(len(first), dtype=np.int64))[0]
    return pd.DataFrame(
        [(i, j, int(counts[i, j])) for i in store.GRADES for j in store.GRADES], columns=["grade_1", "grade_2", "pairs"]
    )


def drift(judgements: pd.DataFrame, rejudged: pd.DataFrame, *, seed: int = 0) -> pd.DataFrame:
    """Re-annotated pairs against their first and final grades, per round of the first and of the later annotation.

    Args:
        rejudged: columns task_id, server_id, grade, round (after which it was judged again).

    Returns: columns round, again (both rounds, "all" in the first row), pairs, mean_first (of both first grades),
        mean_again, shift (again - first) with low and high (95 %, bootstrap over topics), useful_final and useful_again
        (shares with grade 1 or 2), kappa_quadratic (final against again).
    """
    later = rejudged[[*store.PAIR, "grade", "round"]].rename(columns={"round": "again"})
    rows = judgements.merge(later, on=store.PAIR, how="inner", validate="one_to_many")
    if len(rows) < len(rejudged):
        raise StudyError("a pair was judged again that was not judged before", fix="collect the rounds before")
    parts = [(("all", "all"), rows), *rows.groupby(["round", "again"])]
    return pd.DataFrame([{"round": one, "again": two, **_drift(part, seed)} for (one, two), part in parts])


def _drift(rows: pd.DataFrame, seed: int) -> dict[str, float]:
    """One row of `drift`."""
    before = rows[["grade_1", "grade_2"]].astype(np.float64).mean(axis=1).to_numpy()
    again, final = (rows[name].to_numpy(np.int64) for name in ("grade", "final"))
    _, topic = np.unique(rows["task_id"].to_numpy(), return_inverse=True)
    sums, sizes = np.bincount(topic, weights=again - before), np.bincount(topic)
    drawn = np.random.default_rng(seed).integers(len(sizes), size=(RESAMPLES, len(sizes)))
    low, high = np.quantile(sums[drawn].sum(axis=1) / sizes[drawn].sum(axis=1), [0.025, 0.975])
    counts = confusions(final, again, np.zeros(len(rows), dtype=np.int64))[0]
    return {
        "pairs": len(rows),
        "mean_first": before.mean(),
        "mean_again": again.mean(),
        "shift": (again - before).mean(),
        "low": low,
        "high": high,
        "useful_final": (final > 0).mean(),
        "useful_again": (again > 0).mean(),
        "kappa_quadratic": float(weighted_kappa(counts, "quadratic")),
    }


def by_hand(judgements: pd.DataFrame, folder: Path) -> pd.DataFrame:
    """Persons' spot checks against the final grades.

    Args:
        folder: ``by_hand``, holding ``<judge>/<task>.csv``; may be absent.

    Returns: one row per judge: judge, topics, pairs, mean_final, mean_hand, equal, kappa_quadratic.
    """
    found = []
    for place in sorted(path for path in folder.glob("*") if path.is_dir()):
        grades = pd.concat([pd.read_csv(path) for path in sorted(place.glob("*.csv"))])
        rows = judgements.merge(grades, on=store.PAIR, validate="one_to_one")
        final, hand = (rows[name].to_numpy(np.int64) for name in ("final", "grade"))
        counts = confusions(final, hand, np.zeros(len(rows), dtype=np.int64))[0]
        row: dict[str, object] = {"judge": place.name, "topics": rows["task_id"].nunique(), "pairs": len(rows)}
        row |= {"mean_final": final.mean(), "mean_hand": hand.mean(), "equal": (final == hand).mean()}
        found.append(row | {"kappa_quadratic": float(weighted_kappa(counts, "quadratic"))})
    return pd.DataFrame(found)


def agreement_tables(dataset: str) -> dict[str, pd.DataFrame]:
    """agreement, confusion and, where pairs were judged again or by a person, drift and by_hand, by file name."""
    judgements, topics = store.read_table(dataset, "judgements"), store.read_table(dataset, "topics")
    found = {
        "tables/agreement.csv": agreement_table(judgements, topics),
        "tables/confusion.csv": confusion_table(judgements),
    }
    rejudged = store.read_table_if_there(dataset, "rejudged")
    if len(rejudged):
        found["tables/drift.csv"] = drift(judgements, rejudged)
    hand = by_hand(judgements, store.folder(dataset) / "by_hand")
    if len(hand):
        found["tables/by_hand.csv"] = hand
    return found
