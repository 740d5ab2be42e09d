"""From a confidence to the chance that the first answer is useful, and what abstaining would gain. Pure functions.

``useful`` says for each request whether its first answer has a grade of at least 1. Every map and threshold is fitted
on validation topics; what is measured with them on test topics is fitted nowhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import binomtest
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression

from study.errors import StudyError

Float64Array = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
Map = Callable[[Float64Array], Float64Array]


def logistic(signal: Float64Array, useful: BoolArray) -> Map:
    """1 / (1 + exp(-(a + b signal))), fitted with Platt's smoothed targets (1999), so that it never reaches 0 or 1."""
    positives, n = int(useful.sum()), len(useful)
    target = np.where(useful, (positives + 1) / (positives + 2), 1 / (n - positives + 2))
    centre, scale = signal.mean(), signal.std() or 1.0
    model = LogisticRegression(C=np.inf)
    both = np.concatenate([signal, signal])[:, None]
    model.fit((both - centre) / scale, np.repeat([1, 0], n), sample_weight=np.concatenate([target, 1 - target]))
    return lambda values: np.asarray(model.predict_proba(((values - centre) / scale)[:, None])[:, 1], dtype=np.float64)


def isotonic(signal: Float64Array, useful: BoolArray) -> Map:
    """The non-decreasing step function of least squared error (Zadrozny and Elkan 2002), constant beyond the data."""
    model = IsotonicRegression(y_min=0, y_max=1, out_of_bounds="clip").fit(signal, useful.astype(np.float64))
    return lambda values: np.asarray(model.predict(values), dtype=np.float64)


METHODS: dict[str, Callable[[Float64Array, BoolArray], Map]] = {"logistic": logistic, "isotonic": isotonic}


def fit(method: str, signal: Float64Array, useful: BoolArray) -> Map:
    """The map of `METHODS` fitted on one signal.

    Raises:
        StudyError: there is no such method.
    """
    if method not in METHODS:
        raise StudyError(f"there is no calibration {method!r}", column="methods", fix=f"one of: {', '.join(METHODS)}")
    return METHODS[method](signal, useful)


def brier(chance: Float64Array, useful: BoolArray) -> float:
    """Mean squared difference between chance and outcome (Brier 1950); 0 is best, 0.25 is what a half always gets."""
    return float(np.mean((chance - useful) ** 2))


def left_out(method: str, signal: Float64Array, useful: BoolArray) -> Float64Array:
    """The chance of each request by a map fitted on all others, shape (n,)."""
    kept = ~np.eye(len(signal), dtype=bool)
    found = [fit(method, signal[k], useful[k])(signal[~k])[0] for k in kept]
    return np.array(found, dtype=np.float64)


def bins(chance: Float64Array, count: int) -> NDArray[np.int64]:
    """The bin of each chance, shape (n,): about equally many in each, equal chances never apart."""
    edges = np.unique(np.quantile(chance, np.linspace(0, 1, count + 1)))
    return np.searchsorted(edges[1:-1], chance, side="right").astype(np.int64)


def calibration_error(chance: Float64Array, useful: Float64Array, place: NDArray[np.int64]) -> Float64Array:
    """Expected calibration error (Naeini et al. 2015): sum over bins of n_b / n |mean chance - share useful|.

    Args:
        chance, useful: shape (..., n); each row of the last axis is one sample.
        place: bins of the chances, shape (..., n).

    Returns: shape (...,).
    """
    gap = np.asarray(chance - useful)
    per_bin = [np.abs(np.where(place == b, gap, 0).sum(axis=-1)) for b in range(int(place.max()) + 1)]
    return np.asarray(np.sum(per_bin, axis=0) / gap.shape[-1])


def reliability(chance: Float64Array, useful: BoolArray, count: int) -> pd.DataFrame:
    """Promised against observed usefulness by bin.

    Returns: columns bin (from 1), requests, chance (mean), useful (share), low, high (exact 95 % binomial interval).
    """
    place = bins(chance, count)
    rows: list[dict[str, float]] = []
    for number in range(int(place.max()) + 1):
        kept = place == number
        if not kept.any():
            continue
        interval = binomtest(int(useful[kept].sum()), int(kept.sum())).proportion_ci(method="exact")
        rows.append(
            {
                "bin": len(rows) + 1,
                "requests": int(kept.sum()),
                "chance": chance[kept].mean(),
                "useful": useful[kept].mean(),
                "low": interval.low,
                "high": interval.high,
            }
        )
    return pd.DataFrame(rows)


@dataclass(frozen=True)
class Error:
    """Expected calibration error with what chance alone would give.

    Attributes:
        value: of the sample.
        low, high: 95 % bootstrap interval over requests, bins fixed.
        if_calibrated, if_calibrated_high: mean and 95th percentile where every outcome is drawn with its own chance. A
            finite sample is never perfectly even, so a value below the latter speaks against nothing.
    """

    value: float
    low: float
    high: float
    if_calibrated: float
    if_calibrated_high: float


def expected_error(chance: Float64Array, useful: BoolArray, count: int, *, seed: int, resamples: int) -> Error:
    """`calibration_error` with its interval and its distribution for a perfectly calibrated map."""
    rng, place, outcome = np.random.default_rng(seed), bins(chance, count), useful.astype(np.float64)
    drawn = rng.integers(len(chance), size=(resamples, len(chance)))
    boot = calibration_error(chance[drawn], outcome[drawn], place[drawn])
    fair = calibration_error(chance, (rng.random(drawn.shape) < chance).astype(np.float64), place)
    low, high = np.quantile(boot, [0.025, 0.975])
    value = float(calibration_error(chance, outcome, place))
    return Error(value, float(low), float(high), float(fair.mean()), float(np.quantile(fair, 0.95)))


def ordered(chance: Float64Array, seed: int) -> NDArray[np.int64]:
    """Requests from the surest to the least sure, ties in a seeded random order."""
    return np.lexsort((np.random.default_rng(seed).random(len(chance)), -chance)).astype(np.int64)


def risk_coverage(chance: Float64Array, useful: BoolArray, *, seed: int = 0) -> pd.DataFrame:
    """What is wrong among the answers that would be given if only the surest were (El-Yaniv and Wiener 2010).

    Returns: columns answered (from 1), coverage, risk (share of useless first answers among them),
        chance (of the last).
    """
    order = ordered(chance, seed)
    answered = np.arange(1, len(order) + 1)
    risk = np.cumsum(~useful[order]) / answered
    return pd.DataFrame(
        {"answered": answered, "coverage": answered / len(order), "risk": risk, "chance": chance[order]}
    )


def area(useful: BoolArray | NDArray[np.bool_]) -> Float64Array:
    """Area under the risk-coverage curve: mean risk over coverages 1/n ... 1, shape (...,) for (..., n).

    Args:
        useful: outcomes from the surest to the least sure.
    """
    n = useful.shape[-1]
    return np.asarray((np.cumsum(~useful, axis=-1) / np.arange(1, n + 1)).mean(axis=-1))


def area_interval(chance: Float64Array, useful: BoolArray, *, seed: int, resamples: int) -> dict[str, float]:
    """The area, its gain over an order that knows nothing (whose expected area is the overall risk), and the least one.

    Returns: area, low, high, gain, gain_low, gain_high (95 % bootstrap intervals over requests), least.
    """
    sorted_ = useful[ordered(chance, seed)]
    drawn = np.sort(np.random.default_rng(seed).integers(len(sorted_), size=(resamples, len(sorted_))), axis=1)
    areas = area(sorted_[drawn])
    gains = (~sorted_[drawn]).mean(axis=1) - areas
    value, (low, high), (less, more) = float(area(sorted_)), *(np.quantile(x, [0.025, 0.975]) for x in (areas, gains))
    return {
        "area": value,
        "low": low,
        "high": high,
        "gain": float((~useful).mean()) - value,
        "gain_low": less,
        "gain_high": more,
        "least": float(area(np.sort(useful)[::-1])),
    }


def threshold(chance: Float64Array, useful: BoolArray, target: float) -> float:
    """The lowest chance from which at least the share `target` of the answers is useful; infinity where none is.

    Equal chances are answered together. Meant for validation topics.
    """
    values = np.unique(chance)
    reached = [value for value in values if useful[chance >= value].mean() >= target]
    return float(min(reached)) if reached else float("inf")
