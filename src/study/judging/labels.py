"""What the judgements say about the released labels, and whether both order the systems alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

import numpy as np
import pandas as pd
import scipy.sparse as sp
from scipy import stats

from study import paths
from study.data.dataset import IntArray
from study.errors import StudyError
from study.evaluation import metrics
from study.judging import settings, store
from study.judging.collection import DEPTH, Collection, Float64Array
from study.judging.evaluate import MOST_UNJUDGED, all_runs, mean_interval, per_task

SHARES = {"useful": 1, "core": 2}
RESAMPLES = 2_000


def graded(pairs: pd.DataFrame, judgements: pd.DataFrame) -> pd.DataFrame:
    """The pairs with their final grade; every pair must be judged."""
    rows = pairs.merge(judgements[[*store.PAIR, "final"]], on=store.PAIR, how="left", validate="many_to_one")
    if rows["final"].isna().any():
        raise StudyError(f"{int(rows['final'].isna().sum())} pairs are not judged", fix="judge the whole pool first")
    return rows.assign(final=rows["final"].astype(np.int64))


def shares(rows: pd.DataFrame, *, seed: int = 0) -> dict[str, float]:
    """Share of useful (grade >= 1) and core (2) servers and the mean grade: means over topics, with intervals.

    Args:
        rows: columns task_id, final.

    Returns: topics, pairs, then useful, core and mean_grade, each with _low and _high (95 %).
    """
    values = {name: (rows["final"] >= least).astype(np.float64) for name, least in SHARES.items()}
    values["mean_grade"] = rows["final"].astype(np.float64)
    found: dict[str, float] = {"topics": rows["task_id"].nunique(), "pairs": len(rows)}
    for name, column in values.items():
        by_topic: Float64Array = np.asarray(column.groupby(rows["task_id"]).mean(), dtype=np.float64)
        found |= mean_interval(by_topic, seed=seed, name=name, prefix=f"{name}_")
    return found


def precision(
    labels: pd.DataFrame,
    provenance: pd.DataFrame,
    judgements: pd.DataFrame,
    topics: pd.DataFrame,
    classes: pd.DataFrame | None = None,
) -> pd.DataFrame:
    """How many released labels are useful: overall, by part, position and provenance, and the random control.

    Args:
        labels: the released lists as a run, the listed position as rank.
        classes: of the audit, columns task_id, server_id, class: which rule a label bears the mark of.

    Returns: columns scope (all, part, position, class, control), name, and those of `shares`.
    """
    rows = graded(labels, judgements).merge(topics, on="task_id")
    scopes = [("all", "all", rows)]
    scopes += [("part", str(name), part) for name, part in rows.groupby("part")]
    scopes += [("position", str(name), part) for name, part in rows.groupby("rank")]
    if classes is not None:
        marked = rows.merge(classes[[*store.PAIR, "class"]].drop_duplicates(store.PAIR), on=store.PAIR, how="left")
        scopes += [("class", str(name), part) for name, part in marked.groupby("class")]
    scopes += [("control", "all", graded(provenance[provenance["control"] == 1], judgements))]
    return pd.DataFrame([{"scope": scope, "name": name, **shares(part)} for scope, name, part in scopes])


def by_labels(collection: Collection, run: pd.DataFrame, labels: pd.DataFrame) -> pd.DataFrame:
    """NDCG@10 against the released labels, per topic and seed: columns task_id, seed, by_labels."""
    both = pd.concat([run, labels])
    servers = np.unique(both["server_id"].to_numpy(np.int64))
    everything = Collection(
        collection.topics,
        servers,
        np.zeros((len(collection.topics), len(servers)), np.int8),
        np.zeros((2, len(collection.topics), len(servers)), np.int8),
    )
    topic = pd.Index(collection.topics["task_id"]).get_indexer(pd.Index(labels["task_id"]))
    shape = (len(collection.topics), len(servers) + DEPTH)
    ones = np.ones(len(labels), np.float32)
    relevant = sp.csr_matrix((ones, (topic, np.searchsorted(servers, labels["server_id"]))), shape=shape)
    frames = []
    for seed, part in run.groupby("seed"):
        rows, ranked, _ = everything.look_up(part)
        values = metrics.ndcg(ranked, relevant[rows], DEPTH)
        ids = collection.topics["task_id"].to_numpy()[rows]
        frames.append(pd.DataFrame({"task_id": ids, "seed": seed, "by_labels": values}))
    return pd.concat(frames, ignore_index=True)


def two_views(
    collection: Collection, runs: Mapping[str, pd.DataFrame], part: str, variants: Sequence[str] = ()
) -> pd.DataFrame:
    """NDCG@10 by labels and by judgements per topic of a part, averaged over seeds.

    Left out are the released labels themselves, which score 1 by definition, systems with more than 5 % of unjudged
    answers, variants (patterns of names: near copies of a system would be counted as independent evidence), and topics
    without any useful server.

    Returns: columns system, task_id, by_labels, by_judgements.
    """
    wanted, frames = set(collection.topics.loc[collection.topics["part"] == part, "task_id"]), []
    for name, run in runs.items():
        if name == store.LABELS or any(fnmatchcase(name, pattern) for pattern in variants):
            continue
        judged = per_task(collection, run)
        judged = judged[judged["task_id"].isin(wanted)]
        if judged["unjudged@10"].mean() > MOST_UNJUDGED:
            continue
        view = by_labels(collection, run, runs[store.LABELS]).merge(judged, on=["task_id", "seed"])
        means = view.groupby("task_id")[["by_labels", "ndcg@10"]].mean().dropna().reset_index()
        frames.append(means.rename(columns={"ndcg@10": "by_judgements"}).assign(system=name))
    if not frames:
        raise StudyError("no system can be compared", fix="judge the pool, or a further round of it")
    return pd.concat(frames, ignore_index=True)[["system", "task_id", "by_labels", "by_judgements"]]


def rank_correlation(views: pd.DataFrame, *, seed: int = 0) -> dict[str, float]:
    """Kendall's tau-b between the systems' means by labels and by judgements, with a bootstrap interval over topics.

    Returns: systems, topics, tau, low, high; NaN for fewer than two systems.
    """
    wide = views.pivot_table(index="system", columns="task_id", values=["by_labels", "by_judgements"])
    labels, judged = (np.asarray(wide[name], dtype=np.float64) for name in ("by_labels", "by_judgements"))
    systems, topics = len(labels), labels.shape[-1]
    found: dict[str, float] = {"systems": systems, "topics": topics}
    if systems < 2:
        return found | dict.fromkeys(("tau", "low", "high"), float("nan"))
    drawn = np.random.default_rng(seed).integers(topics, size=(RESAMPLES, topics))
    taus = [_tau(labels, judged, chosen) for chosen in drawn]
    low, high = np.nanquantile(taus, [0.025, 0.975])
    return found | {"tau": _tau(labels, judged, np.arange(topics)), "low": float(low), "high": float(high)}


def _tau(labels: np.ndarray, judged: np.ndarray, topics: IntArray) -> float:
    return float(stats.kendalltau(labels[:, topics].mean(axis=1), judged[:, topics].mean(axis=1)).statistic)


def summary(views: pd.DataFrame, *, seed: int = 0) -> pd.DataFrame:
    """Means of both views with intervals over topics.

    Returns: one row per system: system, by_labels, by_labels_low, by_labels_high, and the same for by_judgements.
    """
    rows = []
    for system, part in views.groupby("system"):
        row: dict[str, object] = {"system": system}
        for name in ("by_labels", "by_judgements"):
            row |= mean_interval(part[name], seed=seed, name=name, prefix=f"{name}_")
        rows.append(row)
    return pd.DataFrame(rows).sort_values("by_judgements", ascending=False, ignore_index=True)


def label_tables(dataset: str) -> dict[str, pd.DataFrame]:
    """label_precision, two_views and rank_correlation (per part; also with every variant, columns ``all_*``)."""
    collection, runs = Collection.load(dataset), all_runs(dataset)
    provenance, judgements, topics = (
        store.read_table(dataset, name) for name in ("provenance", "judgements", "topics")
    )
    variants, parts = settings.read(settings.Pool).variants, collection.topics["part"].unique()
    views = {str(part): two_views(collection, runs, str(part), variants) for part in parts}
    audited = paths.results(dataset) / "audit" / "provenance.parquet"
    classes = pd.read_parquet(audited) if audited.exists() else None
    correlations = []
    for part, view in views.items():
        everyone = rank_correlation(two_views(collection, runs, part))
        every = {f"all_{name}": value for name, value in everyone.items() if name != "topics"}
        correlations.append({"part": part, **rank_correlation(view), **every})
    return {
        "tables/label_precision.csv": precision(runs[store.LABELS], provenance, judgements, topics, classes),
        "tables/two_views.csv": pd.concat([summary(view).assign(part=part) for part, view in views.items()]),
        "tables/rank_correlation.csv": pd.DataFrame(correlations),
    }
