"""Protocol `judged`: how useful the answers are, with what is unknown stated beside every score.

Everything is computed from committed files: topics.csv, judgements.csv, the pooled runs, and the first ten answers of
other systems. A mean has an interval over topics (which tasks were drawn); NDCG and precision also have
that of judge noise (had the judge graded once more). The validation topics serve choices; the test topics never do.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
import scipy.sparse as sp

from study import paths
from study.errors import StudyError
from study.evaluation import metrics
from study.evaluation.significance import bootstrap_interval
from study.judging import collection as measures
from study.judging import settings, store
from study.judging.collection import DEPTH, Collection, Float64Array

CUTOFFS = (5, 10)
PERSISTENCE = 0.8
# Above this share of unjudged answers two systems are not compared.
MOST_UNJUDGED = 0.05
NOISE_RESAMPLES = 200
NOISY = ("ndcg@5", "ndcg@10", "precision@5", "precision@10", "core_precision@5", "core_precision@10")


def per_task(collection: Collection, run: pd.DataFrame) -> pd.DataFrame:
    """Every measure for every topic and seed of a run.

    Args:
        run: columns task_id, seed, rank, server_id; tasks that are no topics are ignored.

    Returns: task_id, seed, ndcg@5 and @10 (gains 2^g - 1), precision@k (grade >= 1), core_precision@k (grade 2), mrr@10
        (first grade >= 1), bpref, rbp, rbp_residual, unjudged@k. NDCG, MRR and bpref are NaN for topics without any
        useful server; bpref and rbp see ten places, as the run does.
    """
    frames = []
    for seed, part in run.groupby("seed"):
        rows, ranked, grades = collection.look_up(part)
        relevant, judged = collection.relevant(rows), collection.grades[rows]
        values = {f"ndcg@{k}": metrics.ndcg(ranked, relevant, k, graded=True) for k in CUTOFFS}
        values |= {f"precision@{k}": measures.precision(grades, k, least=1) for k in CUTOFFS}
        values |= {f"core_precision@{k}": measures.precision(grades, k, least=2) for k in CUTOFFS}
        values[f"mrr@{DEPTH}"] = metrics.mrr(ranked, relevant, DEPTH)
        values["bpref"] = measures.bpref(grades, (judged >= 1).sum(axis=1), (judged == 0).sum(axis=1))
        values["rbp"], values["rbp_residual"] = measures.rbp(grades, PERSISTENCE)
        values |= {f"unjudged@{k}": measures.unjudged(grades, k) for k in CUTOFFS}
        keys = {"task_id": collection.topics["task_id"].to_numpy()[rows], "seed": seed}
        frames.append(pd.DataFrame(keys | values))
    if not frames or not len(frames[0]):
        raise StudyError("the run answers none of the topics", fix="run the system for the topics of topics.csv")
    return pd.concat(frames, ignore_index=True)


def mean_interval(
    values: pd.Series | Float64Array, *, seed: int, name: str = "mean", prefix: str = ""
) -> dict[str, float]:
    """The mean under `name`, and its 95 % bootstrap interval under ``low`` and ``high`` behind the prefix."""
    numbers = np.asarray(values, dtype=np.float64)
    low, high = bootstrap_interval(numbers, seed=seed)
    return {name: float(numbers.mean()) if len(numbers) else np.nan, f"{prefix}low": low, f"{prefix}high": high}


def noise(
    collection: Collection, run: pd.DataFrame, part: str, *, seed: int, resamples: int | None = None
) -> dict[str, tuple[float, float]]:
    """95 % intervals of the means if this judge had graded every pair twice anew.

    The two new grades of a pair are drawn, with replacement, from its first two: equal ones count as that grade,
    unequal ones give the final grade, as they did. The draws are the same for every system.

    Args:
        resamples: None means `NOISE_RESAMPLES`.
    """
    draws, rng = NOISE_RESAMPLES if resamples is None else resamples, np.random.default_rng(seed)
    collection = collection.part(part)
    found = [collection.look_up(own)[:2] for _, own in run.groupby("seed")]
    rows, ranked = (np.concatenate(parts) for parts in zip(*found, strict=True))
    topic, server = np.nonzero(collection.grades != measures.UNJUDGED)
    first, second = collection.passes[:, topic, server]
    final = collection.grades[topic, server]
    pair = np.full((len(collection.topics), len(collection.servers) + DEPTH), -1)
    pair[topic, server] = np.arange(len(topic))
    place = np.where(ranked >= 0, pair[rows[:, None], ranked], -1)
    means = {name: np.full(draws, np.nan) for name in NOISY}
    for draw in range(draws):
        drawn = np.choose(rng.integers(4, size=len(topic)), (first, second, final, final))
        places = np.where(place >= 0, drawn[place], 0).astype(np.int8)
        relevant = sp.csr_matrix((drawn.astype(np.float32), (topic, server)), shape=pair.shape)[rows]
        for k in CUTOFFS:
            values = metrics.ndcg(ranked, relevant, k, graded=True)
            defined = values[~np.isnan(values)]
            means[f"ndcg@{k}"][draw] = defined.mean() if len(defined) else np.nan
            means[f"precision@{k}"][draw] = measures.precision(places, k, least=1).mean()
            means[f"core_precision@{k}"][draw] = measures.precision(places, k, least=2).mean()
    kept = {name: values[~np.isnan(values)] for name, values in means.items()}
    return {name: (float(np.quantile(v, 0.025)), float(np.quantile(v, 0.975))) for name, v in kept.items() if len(v)}


def scores(
    collection: Collection, tables: Mapping[str, pd.DataFrame], runs: Mapping[str, pd.DataFrame], *, seed: int = 0
) -> pd.DataFrame:
    """Means with both intervals.

    Args:
        tables: rows of `per_task` by system.
        runs: the runs they were computed from.

    Returns: columns system, part, metric, n (topics where it is defined), mean, low, high, noise_low, noise_high (empty
        for measures without), unjudged (share among the places that the metric looks at), comparable.
    """
    rows = []
    for system, frame in tables.items():
        averaged = frame.drop(columns="seed").groupby("task_id").mean(skipna=False).reset_index()
        parts = averaged.merge(collection.topics, on="task_id")
        for part, values in parts.groupby("part"):
            noisy = noise(collection, runs[system], str(part), seed=seed)
            for metric in (name for name in averaged.columns[1:] if not name.startswith("unjudged")):
                defined = values[metric].dropna().to_numpy(np.float64)
                k = int(metric.partition("@")[2] or DEPTH)
                unknown = float(values[f"unjudged@{k}"].mean())
                noise_low, noise_high = noisy.get(metric, (np.nan, np.nan))
                row = {"system": system, "part": part, "metric": metric, "n": len(defined)}
                row |= {**mean_interval(defined, seed=seed), "noise_low": noise_low, "noise_high": noise_high}
                rows.append(row | {"unjudged": unknown, "comparable": unknown <= MOST_UNJUDGED})
    return pd.DataFrame(rows)


def all_runs(dataset: str) -> dict[str, pd.DataFrame]:
    """The pooled runs, and the test answers of every other system that ran under the topics' protocol."""
    runs = store.read_runs(dataset)
    protocol = settings.read(settings.Topics).protocol
    for path in sorted((paths.results(dataset) / "top10" / protocol).glob("*.parquet")):
        if path.stem not in runs:
            runs[path.stem] = pd.read_parquet(path)
    return runs


def score_tables(dataset: str) -> dict[str, pd.DataFrame]:
    """Every run scored: ``per_task.csv.xz`` and ``tables/scores.csv``, by file name."""
    collection, runs = Collection.load(dataset), all_runs(dataset)
    values = {name: per_task(collection, run) for name, run in runs.items()}
    every = pd.concat([frame.assign(system=name) for name, frame in values.items()], ignore_index=True)
    every = every[["system", *every.columns.drop("system")]]
    return {"per_task.csv.xz": every, "tables/scores.csv": scores(collection, values, runs)}
