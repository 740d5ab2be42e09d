"""How sure `field_dense` is of its first answer: a map from a signal to the chance that it is useful (grade 1 or 2).
Every map and threshold is fitted on validation topics; what is measured on test topics is fitted nowhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import brier_score_loss, roc_auc_score

from study.advisor.encoders.sentence import encode
from study.advisor.retrieval.field_dense import FieldDense
from study.advisor.retrieval.fields import FIELDS, VIEWS, texts
from study.analysis.framework import Context, Tables, analysis
from study.analysis.usefulness.choosing import topic_scores
from study.base.errors import StudyError
from study.config.compose import build_system, load
from study.data.dataset import FloatArray, IntArray
from study.evaluation.ranking import tie_order, top_k
from study.evaluation.statistics import percentile_limits, share_interval
from study.judging.collection import DEPTH, Collection, Float64Array
from study.judging.pools import load_split

BoolArray = NDArray[np.bool_]
Map = Callable[[Float64Array], Float64Array]


@dataclass(frozen=True)
class Calibration:
    """Signals and maps that are compared, and what is measured with the chosen ones."""

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
    both = np.concatenate([signal, signal])[:, None]
    weights = np.concatenate([target, 1 - target])
    model = LogisticRegression(C=np.inf).fit((both - centre) / scale, np.repeat([1, 0], n), sample_weight=weights)
    return lambda values: np.asarray(model.predict_proba(((values - centre) / scale)[:, None])[:, 1], dtype=np.float64)


def isotonic(signal: Float64Array, useful: BoolArray) -> Map:
    """The non-decreasing step function of least squared error (Zadrozny and Elkan 2002), constant beyond the data."""
    model = IsotonicRegression(y_min=0, y_max=1, out_of_bounds="clip").fit(signal, useful.astype(np.float64))
    return lambda values: np.asarray(model.predict(values), dtype=np.float64)


METHODS: dict[str, Callable[[Float64Array, BoolArray], Map]] = {"logistic": logistic, "isotonic": isotonic}


def left_out(method: str, signal: Float64Array, useful: BoolArray) -> Float64Array:
    """The chance of each request by a map fitted on all others, shape (n,)."""
    kept = ~np.eye(len(signal), dtype=bool)
    return np.array([METHODS[method](signal[k], useful[k])(signal[~k])[0] for k in kept], dtype=np.float64)


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


def share(outcomes: BoolArray) -> tuple[float, float, float]:
    """The share of true outcomes with its exact 95 % binomial interval."""
    return share_interval(int(outcomes.sum()), len(outcomes), "beta")


def reliability(chance: Float64Array, useful: BoolArray, count: int) -> pd.DataFrame:
    """Promised against observed usefulness: columns bin (from 1), requests, chance (mean), useful (share), ci_low and
    ci_high (exact 95 % binomial interval)."""
    place = bins(chance, count)
    kept = [place == own for own in np.unique(place)]
    rows = [(n, int(own.sum()), chance[own].mean(), *share(useful[own])) for n, own in enumerate(kept, start=1)]
    return pd.DataFrame(rows, columns=["bin", "requests", "chance", "useful", "ci_low", "ci_high"])


def risks(useful: BoolArray) -> Float64Array:
    """The share of useless first answers among the first 1 ... n, shape (..., n); its mean over n is the area under the
    risk-coverage curve. `useful`: outcomes from the surest to the least sure, shape (..., n)."""
    return np.asarray(np.cumsum(~useful, axis=-1) / np.arange(1, useful.shape[-1] + 1))


def surest_first(chance: Float64Array, seed: int) -> NDArray[np.int64]:
    """Requests from the surest to the least sure, ties in a seeded random order."""
    return np.lexsort((np.random.default_rng(seed).random(len(chance)), -chance)).astype(np.int64)


def risk_coverage(chance: Float64Array, useful: BoolArray, *, seed: int = 0) -> pd.DataFrame:
    """What is wrong among the answers that would be given if only the surest were (El-Yaniv and Wiener 2010): columns
    answered (from 1), coverage, risk (share of useless first answers among them), chance (of the last one)."""
    order = surest_first(chance, seed)
    answered = np.arange(1, len(order) + 1)
    table = {"answered": answered, "coverage": answered / len(order), "risk": risks(useful[order])}
    return pd.DataFrame(table | {"chance": chance[order]})


def threshold(chance: Float64Array, useful: BoolArray, target: float) -> float:
    """The lowest chance from which at least the share `target` of the answers is useful; infinity where none is.
    Equal chances are answered together. Meant for validation topics."""
    return float(min((c for c in np.unique(chance) if useful[chance >= c].mean() >= target), default=np.inf))


def measures(
    chance: Float64Array, useful: BoolArray, seen: BoolArray, least: float, settings: Calibration
) -> pd.DataFrame:
    """The single numbers of one part: measure, value, ci_low, ci_high (95 %, bootstrap over requests, bins fixed).

    The calibration error of calibrated chances is that of outcomes drawn with them, up to its 95th percentile: a finite
    sample is never perfectly even. The area's gain is over an order that knows nothing, whose area is the overall risk.

    Args:
        seen: outcomes of the validation topics, whose share a map without any signal would promise.
        least: the chance from which an answer is given.
    """
    rng, n, place = np.random.default_rng(settings.seed), len(chance), bins(chance, settings.bins)
    outcome, drawn = useful.astype(np.float64), rng.integers(n, size=(settings.resamples, n))
    error = calibration_error(chance[drawn], outcome[drawn], place[drawn])
    fair = calibration_error(chance, (rng.random(drawn.shape) < chance).astype(np.float64), place)
    in_order, redrawn = useful[surest_first(chance, settings.seed)], np.sort(drawn, axis=1)
    area, areas = float(risks(in_order).mean()), risks(in_order[redrawn]).mean(axis=1)
    gains, answered = (~in_order[redrawn]).mean(axis=1) - areas, chance >= least
    rows: list[tuple[str, float, float | None, float | None]] = [
        ("requests", n, None, None),
        ("useful", *share(useful)),
        ("brier", brier_score_loss(useful, chance), None, None),
        ("brier_without_signal", brier_score_loss(useful, np.full(n, seen.mean())), None, None),
        ("calibration_error", float(calibration_error(chance, outcome, place)), *percentile_limits(error)),
        ("calibration_error_if_calibrated", float(fair.mean()), None, float(np.quantile(fair, 0.95))),
        ("area", area, *percentile_limits(areas)),
        ("area_gain", float((~useful).mean()) - area, *percentile_limits(gains)),
        ("area_least", float(risks(np.sort(useful)[::-1]).mean()), None, None),
        ("threshold", least, None, None),
        ("answered", *share(answered)),
    ]
    for name, kept in (("useful_if_answered", answered), ("useful_if_not_answered", ~answered)):
        if kept.any():
            rows.append((name, *share(useful[kept])))
    return pd.DataFrame(rows, columns=["measure", "value", "ci_low", "ci_high"])


def signals(ranked: IntArray, best: FloatArray, requests: FloatArray, servers: FloatArray) -> pd.DataFrame:
    """Every signal of each request: score (standard deviations above the mean of the catalogue), margin (first minus
    second), lead (first minus tenth), cosine (of the request with the first server).

    `ranked`, `best`: rows and scores of the ten best servers, shape (b, 10). `requests`, `servers`: sentence vectors of
    the descriptions, shapes (b, d) and (n_servers, d).
    """
    scores, cosine = best.astype(np.float64), (requests * servers[ranked[:, 0]]).sum(axis=1).astype(np.float64)
    first = scores[:, 0]
    gaps = {"margin": first - scores[:, 1], "lead": first - scores[:, -1]}
    return pd.DataFrame({"score": first, **gaps, "cosine": cosine})


def confidence(dataset: str, name: str, *, seed: int = 0) -> pd.DataFrame:
    """The first answer of a `FieldDense`, which has to be judged, to every topic: columns task_id, server_id, part,
    grade, and those of `signals`."""
    system: Any = build_system(load([f"system={name}"]).system)
    if not isinstance(system, FieldDense):
        fix = "name field_dense or a variant of it"
        raise StudyError(f"{name} has no scores that are comparable between requests", column="system", fix=fix)
    data, split = load_split(dataset)
    collection, frames = Collection.load(dataset), []
    servers = encode(texts(data.servers, FIELDS, "description"))
    for part in ("valid", "test"):
        judged = collection.part(part)
        scores = topic_scores(system, data, split.known(part), judged.topics)
        ranked, best = top_k(scores, DEPTH, tie_order(data.n_servers, seed))
        keys = pd.DataFrame({"task_id": judged.topics["task_id"], "server_id": data.servers["id"].array[ranked[:, 0]]})
        grades = judged.look_up(keys.assign(rank=1))[2][:, 0]
        if (grades < 0).any():
            problem = f"the first answer of {name} to a {part} topic is not judged"
            raise StudyError(problem, row=int((grades < 0).argmax()), fix="study judge pool, then batches")
        requests = encode(texts(data.tasks.set_index("id").loc[keys["task_id"]], VIEWS, "description"))
        keys = keys.assign(part=part, grade=grades.astype(int))
        frames.append(pd.concat([keys, signals(ranked, best, requests, servers)], axis=1))
    return pd.concat(frames, ignore_index=True)


def signal_choice(valid: pd.DataFrame, settings: Calibration) -> pd.DataFrame:
    """Every signal with every method, each topic of `valid` predicted by a map fitted on the others.

    Returns: columns signal, method, brier, auroc; the smallest Brier score, which is the choice, first. The row `none`
    is the share of useful first answers among the others, which knows nothing about the request.
    """
    useful = (valid["grade"] >= 1).to_numpy()
    nothing = (useful.sum() - useful) / (len(useful) - 1)
    rows: list[dict[str, Any]] = [{"signal": "none", "method": "share", "brier": brier_score_loss(useful, nothing)}]
    for name in settings.signals:
        signal = valid[name].to_numpy(np.float64)
        for method in settings.methods:
            brier = brier_score_loss(useful, left_out(method, signal, useful))
            rows.append({"signal": name, "method": method, "brier": brier, "auroc": roc_auc_score(useful, signal)})
    return pd.DataFrame(rows).sort_values("brier", kind="stable", ignore_index=True)


def calibration_tables(asked: pd.DataFrame, settings: Calibration) -> dict[str, pd.DataFrame]:
    """Everything that follows from `confidence`: fitted and chosen on validation topics, measured on both parts.

    Returns: calibration_choice (see `signal_choice`), reliability, risk_coverage and calibration (see `measures`), by
    part. Raises StudyError: the validation topics' first answers are all useful or all useless.
    """
    valid = asked[asked["part"] == "valid"]
    seen = (valid["grade"] >= 1).to_numpy()
    if seen.all() or not seen.any():
        raise StudyError("the validation topics do not tell useful from useless", column="grade", fix="judge more")
    compared = signal_choice(valid, settings)
    signal, method = compared.loc[compared["signal"] != "none", ["signal", "method"]].iloc[0]
    chance_of = METHODS[method](valid[signal].to_numpy(np.float64), seen)
    least = threshold(chance_of(valid[signal].to_numpy(np.float64)), seen, settings.target)
    found: dict[str, list[pd.DataFrame]] = {"reliability": [], "risk_coverage": [], "calibration": []}
    for part, rows in asked.groupby("part", sort=False):
        chance, useful = chance_of(rows[signal].to_numpy(np.float64)), (rows["grade"] >= 1).to_numpy()
        found["reliability"].append(reliability(chance, useful, settings.bins).assign(part=part))
        found["risk_coverage"].append(risk_coverage(chance, useful, seed=settings.seed).assign(part=part))
        found["calibration"].append(measures(chance, useful, seen, least, settings))
        found["calibration"][-1].insert(0, "part", part)
    tables = {name: pd.concat(frames, ignore_index=True) for name, frames in found.items()}
    return {"calibration_choice": compared, **tables}


@analysis("usefulness", slow=True)  # margins of field_dense differ by processor in the sixth digit
def calibration(study: Context) -> Tables:
    """Does the score of the first answer say whether it is useful?"""
    settings = study.settings(Calibration)
    asked = confidence(study.dataset, settings.system)
    return {"confidence": asked, **calibration_tables(asked, settings)}
