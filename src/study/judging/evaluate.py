"""Protocol `judged`: how useful the answers of systems are, with what is unknown beside every score.

A mean has an interval over topics (which tasks were drawn); NDCG and precision also have one for judge noise (had the
judge graded once more). The validation topics serve choices; the test topics never do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from study.base.errors import StudyError
from study.evaluation import metrics, statistics
from study.judging import collection as measures
from study.judging import store
from study.judging.collection import DEPTH, Collection, Float64Array
from study.runner.row_store import read_top10

CUTOFFS = (5, 10)
LEAST = {"precision": 1, "core_precision": 2}  # the lowest grade that counts
PERSISTENCE = 0.8
# Above this share of unjudged answers two systems are not compared.
MOST_UNJUDGED = 0.05
NOISE_RESAMPLES = 200
SEED = 0  # of every interval of the collection
mean_interval = partial(statistics.mean_interval, seed=SEED)


def per_task(collection: Collection, run: pd.DataFrame) -> pd.DataFrame:
    """Every measure for every topic and seed of a run.

    `run`: columns task_id, seed, rank, server_id; tasks that are no topics are ignored.
    Returns: task_id, seed, ndcg@5 and @10 (gains 2^g - 1), precision@k (grade >= 1), core_precision@k (grade 2), mrr@10
        (first grade >= 1), bpref, rbp, rbp_residual, unjudged@k. NDCG, MRR and bpref are NaN for topics without any
        useful server; bpref and rbp see ten places, as the run does.
    """
    frames = []
    for seed, part in run.groupby("seed"):
        rows, ranked, grades = collection.look_up(part)
        gains, judged = collection.gains[rows], collection.grades[rows]
        values = {f"ndcg@{k}": metrics.ndcg(ranked, gains, k, graded=True) for k in CUTOFFS}
        for name, least in LEAST.items():
            values |= {f"{name}@{k}": measures.precision(grades, k, least=least) for k in CUTOFFS}
        values[f"mrr@{DEPTH}"] = metrics.mrr(ranked, gains, DEPTH)
        values["bpref"] = measures.bpref(grades, (judged >= 1).sum(axis=1), (judged == 0).sum(axis=1))
        values["rbp"], values["rbp_residual"] = measures.rbp(grades, PERSISTENCE)
        values |= {f"unjudged@{k}": measures.unjudged(grades, k) for k in CUTOFFS}
        keys = {"task_id": collection.topics["task_id"].to_numpy()[rows], "seed": seed}
        frames.append(pd.DataFrame(keys | values))
    if not frames or not len(frames[0]):
        raise StudyError("the run answers none of the topics", fix="run the system for the topics of topics.csv")
    return pd.concat(frames, ignore_index=True)


def _discounted(grades: NDArray[np.generic], k: int) -> Float64Array:
    """The sum of (2^g - 1) / log2(i + 1) over the first k places of the last axis (eq. 29-30)."""
    gains = np.exp2(grades[..., :k].astype(np.float64)) - 1
    total: Float64Array = (gains / np.log2(np.arange(2, k + 2))).sum(axis=-1)
    return total


def judge_noise(collection: Collection, part: str) -> Callable[[pd.DataFrame], dict[str, tuple[float, float]]]:
    """For runs over a part: 95 % intervals of their means if the judge had graded every pair twice anew.

    The two new grades of a pair are drawn, with replacement, from its first two: equal ones count as that grade,
    unequal ones give the final grade, as they did. The draws are the same for every run.
    """
    rng, collection = np.random.default_rng(SEED), collection.part(part)
    topic, server = np.nonzero(collection.grades != measures.UNJUDGED)
    first, second = collection.passes[:, topic, server]
    final = collection.grades[topic, server]
    number = np.full((len(collection.topics), len(collection.servers) + DEPTH), -1)  # of a judged pair
    number[topic, server] = np.arange(len(topic))
    noisy = [np.choose(rng.integers(4, size=len(topic)), (first, second, final, final)) for _ in range(NOISE_RESAMPLES)]
    grades = np.array(noisy, dtype=np.int8).reshape(NOISE_RESAMPLES, len(topic))
    best = np.zeros((NOISE_RESAMPLES, len(collection.topics), max(CUTOFFS)))
    for row, pairs in enumerate(number):
        ideal = -np.sort(-grades[:, pairs[pairs >= 0]], axis=1)[:, : max(CUTOFFS)]
        best[:, row, : ideal.shape[1]] = ideal

    def intervals(run: pd.DataFrame) -> dict[str, tuple[float, float]]:
        places = [collection.look_up(of_seed)[:2] for _, of_seed in run.groupby("seed")]
        rows, ranked = (np.concatenate(parts) for parts in zip(*places, strict=True))
        pair = np.where(ranked >= 0, number[rows[:, None], ranked], -1)
        given = np.where(pair >= 0, np.take(grades, pair, axis=1), 0)  # shape (draws, rows, DEPTH)
        draws: dict[str, Float64Array] = {}
        for k in CUTOFFS:
            ideal = _discounted(best, k)[:, rows]
            ndcg = np.divide(_discounted(given, k), ideal, out=np.full_like(ideal, np.nan), where=ideal > 0)
            draws[f"ndcg@{k}"] = np.array([one[~np.isnan(one)].mean() for one in ndcg if not np.isnan(one).all()])
            for name, least in LEAST.items():
                draws[f"{name}@{k}"] = ((given[..., :k] >= least).sum(axis=2) / k).mean(axis=1)
        return {name: statistics.percentile_limits(means) for name, means in draws.items() if len(means)}

    return intervals


def scores(
    collection: Collection, values: Mapping[str, pd.DataFrame], runs: Mapping[str, pd.DataFrame]
) -> pd.DataFrame:
    """Means with both intervals, from tables of `per_task` by system and the runs they were computed from.

    Returns: columns system, part, metric, n (topics where it is defined), mean, ci_low, ci_high, noise_ci_low,
        noise_ci_high (empty for measures without), unjudged (share among the places that the metric looks at),
        comparable.
    """
    rows, noise = [], {part: judge_noise(collection, part) for part in collection.topics["part"].unique()}
    for system, frame in values.items():
        averaged = frame.drop(columns="seed").groupby("task_id").mean(skipna=False).reset_index()
        for part, rows_of_part in averaged.merge(collection.topics, on="task_id").groupby("part"):
            noisy = noise[part](runs[system])
            for metric in (name for name in averaged.columns[1:] if not name.startswith("unjudged")):
                defined = rows_of_part[metric].dropna()
                unknown = float(rows_of_part[f"unjudged@{metric.partition('@')[2] or DEPTH}"].mean())
                noise_low, noise_high = noisy.get(metric, (np.nan, np.nan))
                row = {"system": system, "part": part, "metric": metric, "n": len(defined)}
                row |= {**mean_interval(defined), "noise_ci_low": noise_low, "noise_ci_high": noise_high}
                rows.append(row | {"unjudged": unknown, "comparable": unknown <= MOST_UNJUDGED})
    return pd.DataFrame(rows)


def comparable(scores: pd.DataFrame, part: str) -> list[str]:
    """The systems of a table of `scores` with at most 5 % of unjudged answers among ten in a part."""
    of_part = scores[(scores["part"] == part) & (scores["metric"] == f"ndcg@{DEPTH}")]
    return list(of_part.loc[of_part["comparable"], "system"])


def all_runs(dataset: str) -> dict[str, pd.DataFrame]:
    """The pooled runs, and the test answers of every other system that ran under the topics' protocol."""
    runs, protocol = store.read_runs(dataset), store.topic_settings().protocol
    return runs | {name: run for name, run in read_top10(dataset, protocol).items() if name not in runs}


def score_tables(collection: Collection, runs: Mapping[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """Every run scored: the tables per_task and scores."""
    values = {name: per_task(collection, run) for name, run in runs.items()}
    every = pd.concat([frame.assign(system=name) for name, frame in values.items()], ignore_index=True)
    every = every[["system", *every.columns.drop("system")]]
    return {"per_task": every, "scores": scores(collection, values, runs)}
