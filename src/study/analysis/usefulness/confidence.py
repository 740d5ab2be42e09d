"""How sure `best` is of its first answer, for every judged topic, and the tables that follow from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import binomtest
from sklearn.metrics import roc_auc_score

from study.analysis.usefulness import calibration as c
from study.config.compose import build_system, load
from study.data.dataset import FloatArray, IntArray
from study.encoders.sentence import encode
from study.errors import StudyError
from study.evaluation.ranking import mask_known, tie_order, top_k
from study.judging.collection import DEPTH, Collection
from study.judging.topics import load_split
from study.usefulness.field_dense import FieldDense
from study.usefulness.texts import FIELDS, VIEWS, texts

# How each signal is made from the ten best scores of a request, shape (b, 10).
SIGNALS: dict[str, Callable[[c.Float64Array], c.Float64Array]] = {
    "score": lambda best: best[:, 0],
    "margin": lambda best: best[:, 0] - best[:, 1],
    "lead": lambda best: best[:, 0] - best[:, -1],
}
# The one signal that looks at the texts: cosine of the description with that of the first server.
COSINE = "cosine"


def signals(ranked: IntArray, best: FloatArray, requests: FloatArray, servers: FloatArray) -> pd.DataFrame:
    """Every signal of each request.

    Args:
        ranked, best: server rows and scores of the ten best, shape (b, 10).
        requests, servers: sentence vectors of the descriptions, shapes (b, d) and (n_servers, d).

    Returns: one row per request: score (standard deviations above the mean of the catalogue), margin (first minus
        second), lead (first minus tenth), cosine.
    """
    found = {name: rule(best.astype(np.float64)) for name, rule in SIGNALS.items()}
    return pd.DataFrame(found | {COSINE: (requests * servers[ranked[:, 0]]).sum(axis=1).astype(np.float64)})


def confidence(dataset: str, name: str, *, seed: int = 0) -> pd.DataFrame:
    """The first answer of a system to every topic, its grade, and the signals.

    Returns: columns task_id, server_id, part, grade, and those of `signals`.

    Raises:
        StudyError: the system is no `FieldDense`, or a first answer is not judged.
    """
    system: Any = build_system(load([f"system={name}"]).system)
    if not isinstance(system, FieldDense):
        raise StudyError(
            f"{name} has no scores that are comparable between requests",
            column="system",
            fix="name a system of study.usefulness",
        )
    data, split = load_split(dataset)
    collection, frames = Collection.load(dataset), []
    system.index(data.servers)
    servers = encode(texts(data.servers, FIELDS, "description"))
    for part in ("valid", "test"):
        judged = collection.part(part)
        rows = pd.Series(np.arange(data.n_tasks), index=data.tasks["id"]).loc[judged.topics["task_id"]].to_numpy()
        asked = data.tasks.iloc[rows]
        scores = mask_known(system.score_requests(asked), rows, split.known(part))
        ranked, best = top_k(scores, DEPTH, tie_order(data.n_servers, seed))
        first = data.servers["id"].to_numpy()[ranked[:, 0]]
        answers = pd.DataFrame({"task_id": judged.topics["task_id"], "rank": 1, "server_id": first})
        _, _, grades = judged.look_up(answers)
        if (grades[:, 0] < 0).any():
            raise StudyError(
                f"the first answer of {name} to a {part} topic is not judged",
                row=int((grades[:, 0] < 0).argmax()),
                fix="study judge pool, then packets",
            )
        keys = answers[["task_id", "server_id"]].assign(part=part, grade=grades[:, 0].astype(int))
        vectors = encode(texts(asked, VIEWS, "description"))
        frames.append(pd.concat([keys, signals(ranked, best, vectors, servers)], axis=1))
    return pd.concat(frames, ignore_index=True)


def choice(asked: pd.DataFrame, settings: Mapping[str, Any]) -> pd.DataFrame:
    """Every signal with every method on the validation topics, each topic predicted by a map fitted on the others.

    Args:
        asked: rows of `confidence`; only those of part `valid` are looked at.

    Returns: columns signal, method, brier, auroc; the smallest Brier score, which is the choice, first. The row `none`
        is the share of useful first answers among the others, which knows nothing about the request.
    """
    valid = asked[asked["part"] == "valid"]
    useful = (valid["grade"] >= 1).to_numpy()
    nothing = (useful.sum() - useful) / (len(useful) - 1)
    rows: list[dict[str, Any]] = [{"signal": "none", "method": "share", "brier": c.brier(nothing, useful)}]
    for name in settings["signals"]:
        signal = valid[name].to_numpy(np.float64)
        rows += [
            {
                "signal": name,
                "method": method,
                "brier": c.brier(c.left_out(method, signal, useful), useful),
                "auroc": float(roc_auc_score(useful, signal)),
            }
            for method in settings["methods"]
        ]
    return pd.DataFrame(rows).sort_values("brier", kind="stable", ignore_index=True)


def tables(asked: pd.DataFrame, settings: Mapping[str, Any]) -> dict[str, pd.DataFrame]:
    """Everything that follows from `confidence`: fitted and chosen on validation topics, measured on both parts.

    Returns: calibration_choice (see `choice`), reliability and risk_coverage (see `calibration`; test topics, and
        validation topics for orientation), and calibration (part, measure, value, low, high).

    Raises:
        StudyError: the validation topics' first answers are all useful or all useless.
    """
    valid = asked[asked["part"] == "valid"]
    useful = (valid["grade"] >= 1).to_numpy()
    if useful.all() or not useful.any():
        raise StudyError("the validation topics do not tell useful from useless", column="grade", fix="judge more")
    compared = choice(asked, settings)
    chosen = compared[compared["signal"] != "none"].iloc[0]
    chance_of = c.fit(chosen["method"], valid[chosen["signal"]].to_numpy(np.float64), useful)
    least = c.threshold(chance_of(valid[chosen["signal"]].to_numpy(np.float64)), useful, float(settings["target"]))
    bins, risks, measured = [], [], []
    for part, rows in asked.groupby("part", sort=False):
        chance = chance_of(rows[chosen["signal"]].to_numpy(np.float64))
        good = (rows["grade"] >= 1).to_numpy()
        bins.append(c.reliability(chance, good, settings["bins"]).assign(part=part))
        risks.append(c.risk_coverage(chance, good, seed=settings["seed"]).assign(part=part))
        measured.append(measures(chance, good, useful, least, settings).assign(part=part))
    return {
        "calibration_choice": compared,
        "reliability": pd.concat(bins, ignore_index=True),
        "risk_coverage": pd.concat(risks, ignore_index=True),
        "calibration": pd.concat(measured, ignore_index=True)[["part", "measure", "value", "low", "high"]],
    }


def measures(
    chance: c.Float64Array, useful: c.BoolArray, seen: c.BoolArray, least: float, settings: Mapping[str, Any]
) -> pd.DataFrame:
    """The single numbers of one part: measure, value, low, high.

    Args:
        seen: outcomes of the validation topics; their share is what a map without any signal would promise.
        least: chance from which an answer is given.
    """
    draws = {"seed": settings["seed"], "resamples": settings["resamples"]}
    error = c.expected_error(chance, useful, settings["bins"], **draws)
    areas, answered = c.area_interval(chance, useful, **draws), chance >= least
    rows: list[tuple[str, float, float | None, float | None]] = [
        ("requests", len(chance), None, None),
        ("useful", *share(useful)),
        ("brier", c.brier(chance, useful), None, None),
        ("brier_without_signal", c.brier(np.full(len(useful), seen.mean()), useful), None, None),
        ("calibration_error", error.value, error.low, error.high),
        ("calibration_error_if_calibrated", error.if_calibrated, None, error.if_calibrated_high),
        ("area", areas["area"], areas["low"], areas["high"]),
        ("area_gain", areas["gain"], areas["gain_low"], areas["gain_high"]),
        ("area_least", areas["least"], None, None),
        ("threshold", least, None, None),
        ("answered", *share(answered)),
    ]
    if answered.any():
        rows.append(("useful_if_answered", *share(useful[answered])))
    if not answered.all():
        rows.append(("useful_if_not_answered", *share(useful[~answered])))
    return pd.DataFrame(rows, columns=["measure", "value", "low", "high"])


def share(outcomes: c.BoolArray) -> tuple[float, float, float]:
    """The share of true outcomes with its exact 95 % binomial interval."""
    interval = binomtest(int(outcomes.sum()), len(outcomes)).proportion_ci(method="exact")
    return float(outcomes.mean()), float(interval.low), float(interval.high)
