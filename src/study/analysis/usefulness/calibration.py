"""How sure `field_dense` is of its first answer: a map from a signal to the chance that it is useful.

``useful`` says for each request whether its first answer has a grade of at least 1. Every map and threshold is fitted
on validation topics; what is measured with them on test topics is fitted nowhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from study.analysis.usefulness.choosing import first_ten
from study.config.compose import build_system, load
from study.data.dataset import FloatArray, IntArray
from study.encoders.sentence import encode
from study.errors import StudyError
from study.evaluation import statistics
from study.judging.collection import Collection, Float64Array
from study.judging.pools import load_split
from study.usefulness.field_dense import FieldDense
from study.usefulness.texts import FIELDS, VIEWS, texts

BoolArray = NDArray[np.bool_]
Map = Callable[[Float64Array], Float64Array]


@dataclass(frozen=True)
class Calibration:
    """``conf/usefulness/calibration.yaml``, where every key is explained."""

    system: str
    signals: list[str]
    methods: list[str]
    target: float
    bins: int
    resamples: int
    seed: int


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


def fitted_map(method: str, signal: Float64Array, useful: BoolArray) -> Map:
    """The map of `METHODS` fitted on one signal; an unknown method raises `StudyError`."""
    if method not in METHODS:
        raise StudyError(f"there is no calibration {method!r}", column="methods", fix=f"one of: {', '.join(METHODS)}")
    return METHODS[method](signal, useful)


def brier(chance: Float64Array, useful: BoolArray) -> float:
    """Mean squared difference between chance and outcome (Brier 1950); 0 is best, 0.25 is what a half always gets."""
    return float(np.mean((chance - useful) ** 2))


def left_out(method: str, signal: Float64Array, useful: BoolArray) -> Float64Array:
    """The chance of each request by a map fitted on all others, shape (n,)."""
    kept = ~np.eye(len(signal), dtype=bool)
    found = [fitted_map(method, signal[k], useful[k])(signal[~k])[0] for k in kept]
    return np.array(found, dtype=np.float64)


def bins(chance: Float64Array, count: int) -> NDArray[np.int64]:
    """The bin of each chance, shape (n,): about equally many in each, equal chances never apart."""
    edges = np.unique(np.quantile(chance, np.linspace(0, 1, count + 1)))
    return np.searchsorted(edges[1:-1], chance, side="right").astype(np.int64)


def calibration_error(chance: Float64Array, useful: Float64Array, place: NDArray[np.int64]) -> Float64Array:
    """Expected calibration error (Naeini et al. 2015): sum over bins of n_b / n |mean chance - share useful|.
    Chances, outcomes and bins have shape (..., n), one sample per row of the last axis; the result has shape (...,)."""
    gap = np.asarray(chance - useful)
    per_bin = [np.abs(np.where(place == b, gap, 0).sum(axis=-1)) for b in range(int(place.max()) + 1)]
    return np.asarray(np.sum(per_bin, axis=0) / gap.shape[-1])


def reliability(chance: Float64Array, useful: BoolArray, count: int) -> pd.DataFrame:
    """Promised against observed usefulness by bin.
    Returns: columns bin (from 1), requests, chance (mean), useful (share), ci_low, ci_high (exact 95 % binomial
    interval)."""
    place, rows = bins(chance, count), []
    for number, own in enumerate(np.unique(place), start=1):
        kept = place == own
        rows.append((number, int(kept.sum()), chance[kept].mean(), *share(useful[kept])))
    return pd.DataFrame(rows, columns=["bin", "requests", "chance", "useful", "ci_low", "ci_high"])


def expected_error(
    chance: Float64Array, useful: BoolArray, count: int, *, seed: int, resamples: int
) -> dict[str, float]:
    """`calibration_error` with what chance alone would give.

    Returns: value; ci_low and ci_high, the 95 % bootstrap interval over requests with fixed bins; if_calibrated and
    if_calibrated_high, mean and 95th percentile where every outcome is drawn with its own chance. A finite sample is
    never perfectly even, so a value below the last one speaks against nothing.
    """
    rng, place, outcome = np.random.default_rng(seed), bins(chance, count), useful.astype(np.float64)
    drawn = rng.integers(len(chance), size=(resamples, len(chance)))
    boot = calibration_error(chance[drawn], outcome[drawn], place[drawn])
    fair = calibration_error(chance, (rng.random(drawn.shape) < chance).astype(np.float64), place)
    low, high = statistics.percentile_limits(boot)
    found = {"value": float(calibration_error(chance, outcome, place)), "ci_low": low, "ci_high": high}
    return found | {"if_calibrated": float(fair.mean()), "if_calibrated_high": float(np.quantile(fair, 0.95))}


def ordered(chance: Float64Array, seed: int) -> NDArray[np.int64]:
    """Requests from the surest to the least sure, ties in a seeded random order."""
    return np.lexsort((np.random.default_rng(seed).random(len(chance)), -chance)).astype(np.int64)


def risk_coverage(chance: Float64Array, useful: BoolArray, *, seed: int = 0) -> pd.DataFrame:
    """What is wrong among the answers that would be given if only the surest were (El-Yaniv and Wiener 2010). Returns:
    columns answered (from 1), coverage, risk (share of useless first answers among them), chance (of the last one)."""
    order = ordered(chance, seed)
    answered = np.arange(1, len(order) + 1)
    table = {"answered": answered, "coverage": answered / len(order), "risk": np.cumsum(~useful[order]) / answered}
    return pd.DataFrame(table | {"chance": chance[order]})


def area(useful: BoolArray) -> Float64Array:
    """Area under the risk-coverage curve: mean risk over coverages 1/n ... 1, shape (...,).
    `useful` has shape (..., n): outcomes from the surest to the least sure."""
    return np.asarray((np.cumsum(~useful, axis=-1) / np.arange(1, useful.shape[-1] + 1)).mean(axis=-1))


def area_interval(chance: Float64Array, useful: BoolArray, *, seed: int, resamples: int) -> dict[str, float]:
    """The area, its gain over an order that knows nothing (whose expected area is the overall risk), and the least one.
    Returns: area, ci_low, ci_high, gain, gain_ci_low, gain_ci_high (95 % bootstrap intervals over requests), least."""
    sorted_ = useful[ordered(chance, seed)]
    drawn = np.sort(statistics.resampled(len(sorted_), seed=seed, resamples=resamples)[0], axis=1)
    areas = area(sorted_[drawn])
    gains = (~sorted_[drawn]).mean(axis=1) - areas
    value, (low, high), (less, more) = float(area(sorted_)), *map(statistics.percentile_limits, (areas, gains))
    found = {"area": value, "ci_low": low, "ci_high": high, "gain": float((~useful).mean()) - value}
    return found | {"gain_ci_low": less, "gain_ci_high": more, "least": float(area(np.sort(useful)[::-1]))}


def threshold(chance: Float64Array, useful: BoolArray, target: float) -> float:
    """The lowest chance from which at least the share `target` of the answers is useful; infinity where none is.
    Equal chances are answered together. Meant for validation topics."""
    values = np.unique(chance)
    reached = [value for value in values if useful[chance >= value].mean() >= target]
    return float(min(reached)) if reached else float("inf")


def signals(ranked: IntArray, best: FloatArray, requests: FloatArray, servers: FloatArray) -> pd.DataFrame:
    """Every signal of each request, one row per request.

    `ranked` and `best` are server rows and scores of the ten best, shape (b, 10); `requests` and `servers` are sentence
    vectors of the descriptions, shapes (b, d) and (n_servers, d).

    Returns: score (standard deviations above the mean of the catalogue), margin (first minus second), lead (first minus
    tenth), cosine (of the request with the first server).
    """
    scores, cosine = best.astype(np.float64), (requests * servers[ranked[:, 0]]).sum(axis=1).astype(np.float64)
    first = scores[:, 0]
    margin, lead = first - scores[:, 1], first - scores[:, -1]
    return pd.DataFrame({"score": first, "margin": margin, "lead": lead, "cosine": cosine})


def confidence(dataset: str, name: str, *, seed: int = 0) -> pd.DataFrame:
    """The first answer of a `FieldDense`, which has to be judged, to every topic.

    Returns: columns task_id, server_id, part, grade, and those of `signals`.
    """
    system: Any = build_system(load([f"system={name}"]).system)
    if not isinstance(system, FieldDense):
        fix = "name a system of study.usefulness"
        raise StudyError(f"{name} has no scores that are comparable between requests", column="system", fix=fix)
    data, split = load_split(dataset)
    collection, frames = Collection.load(dataset), []
    servers = encode(texts(data.servers, FIELDS, "description"))
    for part in ("valid", "test"):
        judged = collection.part(part)
        asked, ranked, best = first_ten(system, data, split.known(part), judged.topics, seed)
        first = data.servers["id"].to_numpy()[ranked[:, 0]]
        answers = pd.DataFrame({"task_id": judged.topics["task_id"], "rank": 1, "server_id": first})
        _, _, grades = judged.look_up(answers)
        if (grades[:, 0] < 0).any():
            problem = f"the first answer of {name} to a {part} topic is not judged"
            raise StudyError(problem, row=int((grades[:, 0] < 0).argmax()), fix="study judge pool, then batches")
        keys = answers[["task_id", "server_id"]].assign(part=part, grade=grades[:, 0].astype(int))
        vectors = encode(texts(asked, VIEWS, "description"))
        frames.append(pd.concat([keys, signals(ranked, best, vectors, servers)], axis=1))
    return pd.concat(frames, ignore_index=True)


def signal_choice(valid: pd.DataFrame, settings: Calibration) -> pd.DataFrame:
    """Every signal with every method, each topic of `valid` predicted by a map fitted on the others.

    Returns: columns signal, method, brier, auroc; the smallest Brier score, which is the choice, first. The row `none`
    is the share of useful first answers among the others, which knows nothing about the request.
    """
    useful = (valid["grade"] >= 1).to_numpy()
    nothing = (useful.sum() - useful) / (len(useful) - 1)
    rows: list[dict[str, Any]] = [{"signal": "none", "method": "share", "brier": brier(nothing, useful)}]
    for name in settings.signals:
        signal = valid[name].to_numpy(np.float64)
        auroc = float(roc_auc_score(useful, signal))
        for method in settings.methods:
            score = brier(left_out(method, signal, useful), useful)
            rows.append({"signal": name, "method": method, "brier": score, "auroc": auroc})
    return pd.DataFrame(rows).sort_values("brier", kind="stable", ignore_index=True)


def calibration_tables(asked: pd.DataFrame, settings: Calibration) -> dict[str, pd.DataFrame]:
    """Everything that follows from `confidence`: fitted and chosen on validation topics, measured on both parts.

    Returns: calibration_choice (see `signal_choice`), reliability, risk_coverage and calibration (see `measures`), by
    part. Validation topics whose first answers are all useful or all useless raise `StudyError`.
    """
    valid = asked[asked["part"] == "valid"]
    useful = (valid["grade"] >= 1).to_numpy()
    if useful.all() or not useful.any():
        raise StudyError("the validation topics do not tell useful from useless", column="grade", fix="judge more")
    compared = signal_choice(valid, settings)
    chosen = compared[compared["signal"] != "none"].iloc[0]
    signal = valid[chosen["signal"]].to_numpy(np.float64)
    chance_of = fitted_map(chosen["method"], signal, useful)
    least = threshold(chance_of(signal), useful, settings.target)
    bins, risks, measured = [], [], []
    for part, rows in asked.groupby("part", sort=False):
        chance = chance_of(rows[chosen["signal"]].to_numpy(np.float64))
        good = (rows["grade"] >= 1).to_numpy()
        bins.append(reliability(chance, good, settings.bins).assign(part=part))
        risks.append(risk_coverage(chance, good, seed=settings.seed).assign(part=part))
        measured.append(measures(chance, good, useful, least, settings).assign(part=part))
    return {
        "calibration_choice": compared,
        "reliability": pd.concat(bins, ignore_index=True),
        "risk_coverage": pd.concat(risks, ignore_index=True),
        "calibration": pd.concat(measured, ignore_index=True)[["part", "measure", "value", "ci_low", "ci_high"]],
    }


def measures(
    chance: Float64Array, useful: BoolArray, seen: BoolArray, least: float, settings: Calibration
) -> pd.DataFrame:
    """The single numbers of one part: measure, value, ci_low, ci_high. `seen` are the outcomes of the validation
    topics, whose share a map without any signal would promise; `least` is the chance from which an answer is given."""
    draws = {"seed": settings.seed, "resamples": settings.resamples}
    error = expected_error(chance, useful, settings.bins, **draws)
    areas, answered = area_interval(chance, useful, **draws), chance >= least
    rows: list[tuple[str, float, float | None, float | None]] = [
        ("requests", len(chance), None, None),
        ("useful", *share(useful)),
        ("brier", brier(chance, useful), None, None),
        ("brier_without_signal", brier(np.full(len(useful), seen.mean()), useful), None, None),
        ("calibration_error", error["value"], error["ci_low"], error["ci_high"]),
        ("calibration_error_if_calibrated", error["if_calibrated"], None, error["if_calibrated_high"]),
        ("area", areas["area"], areas["ci_low"], areas["ci_high"]),
        ("area_gain", areas["gain"], areas["gain_ci_low"], areas["gain_ci_high"]),
        ("area_least", areas["least"], None, None),
        ("threshold", least, None, None),
        ("answered", *share(answered)),
    ]
    if answered.any():
        rows.append(("useful_if_answered", *share(useful[answered])))
    if not answered.all():
        rows.append(("useful_if_not_answered", *share(useful[~answered])))
    return pd.DataFrame(rows, columns=["measure", "value", "ci_low", "ci_high"])


def share(outcomes: BoolArray) -> tuple[float, float, float]:
    """The share of true outcomes with its exact 95 % binomial interval."""
    return statistics.share_interval(int(outcomes.sum()), len(outcomes), "beta")
