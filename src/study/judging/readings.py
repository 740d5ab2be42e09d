"""The further readings against the grades of the collection: agreement of each, and every system's score by it."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase

import numpy as np
import pandas as pd
from scipy.stats import kendalltau

from study.data.dataset import IntArray
from study.evaluation import metrics
from study.evaluation.statistics import NORMAL, mean_interval
from study.judging import agreement, passes, store
from study.judging.collection import DEPTH, Collection, Float64Array

# A grade of UMBRELA's form -> ours: what seems related but does not answer is of no use.
OUR_SCALE = {0: 0, 1: 0, 2: 1, 3: 2}
Places = list[tuple[IntArray, IntArray]]


def converted(readings: pd.DataFrame, name: str) -> pd.DataFrame:
    """The grades of one reading on our scale: columns task_id, server_id, grade. ``need`` is the lower of its two."""
    own = readings[readings["reading"].isin(passes.NEED if name == "need" else [name])]
    grade = own["given"].map(OUR_SCALE) if name == passes.UMBRELA else own["given"]
    return own.assign(grade=grade.astype(np.int64)).groupby(store.PAIR)[["grade"]].min().reset_index()


def positive_agreement(counts: IntArray | Float64Array) -> float:
    """2a / (2a + b + c): a pairs that both readers find useful (grade above 0), b and c that one does."""
    both, either = counts[1:, 1:].sum(), counts[1:].sum() + counts[:, 1:].sum()
    return float(2 * both / either) if either else float("nan")


def ordinal_alpha(counts: IntArray | Float64Array) -> float:
    """Krippendorff's alpha of two readers for ordered grades (Krippendorff 2011). `counts`: shape (3, 3)."""
    coincidences = counts + counts.T
    of_grade = coincidences.sum(axis=0)
    total = of_grade.sum()
    upto = np.cumsum(of_grade)
    # The distance of two grades: what lies between them, with half of both ends.
    between = np.abs((upto - of_grade / 2)[:, None] - (upto - of_grade / 2)[None, :]) ** 2
    expected = (np.outer(of_grade, of_grade) * between).sum()
    return float(1 - (total - 1) * (coincidences * between).sum() / expected) if expected else float("nan")


def agreement_row(rows: pd.DataFrame, *, seed: int = 0) -> dict[str, float]:
    """Agreement of two grades. `rows`: columns task_id, one, other, weight (how many pairs a drawn one stands for).

    Returns: pairs, kappa_quadratic with its 95 % interval over topics, positive_agreement, alpha.
    """
    topic = pd.factorize(rows["task_id"])[0]
    counts = np.zeros((topic.max(initial=-1) + 1, agreement.N_GRADES, agreement.N_GRADES))
    place = (topic, rows["one"].to_numpy(np.int64), rows["other"].to_numpy(np.int64))
    np.add.at(counts, place, rows["weight"].to_numpy(np.float64))
    low, high = agreement.kappa_interval(counts, "quadratic", seed=seed)
    total = counts.sum(axis=0)
    row = {"pairs": len(rows), "kappa_quadratic": float(agreement.weighted_kappa(total, "quadratic"))}
    row |= {"kappa_ci_low": low, "kappa_ci_high": high}
    return row | {"positive_agreement": positive_agreement(total), "alpha": ordinal_alpha(total)}


def agreements(judged: pd.DataFrame, rejudged: pd.DataFrame, readings: pd.DataFrame) -> pd.DataFrame:
    """One row for every two readings that can be compared: columns first, second and those of `agreement_row`.

    A pair without use stands for ten where one in ten was read (UMBRELA's form).
    """
    final = judged[[*store.PAIR, "final"]].rename(columns={"final": "one"})
    again = rejudged.drop_duplicates(store.PAIR, keep="last")[[*store.PAIR, "grade"]]
    compared = {
        ("first pass", "second pass"): judged.rename(columns={"grade_1": "one", "grade_2": "other"}),
        ("final", "read again"): final.merge(again.rename(columns={"grade": "other"}), on=store.PAIR),
    }
    for name in (passes.UMBRELA, "need"):
        compared["final", name] = final.merge(converted(readings, name), on=store.PAIR).rename(
            columns={"grade": "other"}
        )
    first, second = (readings[readings["reading"] == name] for name in passes.NEED)
    both = first.merge(second, on=store.PAIR, suffixes=("_1", "_2"))
    compared["need, first pass", "need, second pass"] = both.rename(columns={"given_1": "one", "given_2": "other"})
    found = []
    for (one, other), rows in compared.items():
        if not len(rows):
            continue
        drawn = (rows["one"] == 0) & (other == passes.UMBRELA)
        weighted = rows.assign(weight=np.where(drawn, 1 / passes.SHARE_ZEROS, 1.0))
        found.append({"first": one, "second": other, **agreement_row(weighted)})
    return pd.DataFrame(found)


def umbrela_confusion(judged: pd.DataFrame, readings: pd.DataFrame) -> pd.DataFrame:
    """Pairs by final grade and grade of UMBRELA's form: columns final, umbrela, pairs (as read, not weighted)."""
    own = readings[readings["reading"] == passes.UMBRELA]
    rows = judged[[*store.PAIR, "final"]].merge(own, on=store.PAIR)
    table = rows.groupby(["final", "given"]).size().rename("pairs").reset_index()
    return table.rename(columns={"given": "umbrela"})


def regraded(judged: pd.DataFrame, grades: pd.DataFrame) -> pd.DataFrame:
    """The judgements with other final grades; a pair without one counts as without use."""
    rows = judged.merge(grades, on=store.PAIR, how="left")
    return rows.assign(final=rows["grade"].fillna(0).astype(np.int64)).drop(columns="grade")


def places(collection: Collection, run: pd.DataFrame) -> Places:
    """Where a run's answers lie in a collection, and in every other one of the same pairs: per seed the topic rows and
    the ranked columns of `Collection.look_up`."""
    return [collection.look_up(own)[:2] for _, own in run.groupby("seed")]


def values(collection: Collection, places: Places) -> pd.Series:
    """NDCG@10 by topic, averaged over seeds."""
    frames = []
    for rows, ranked in places:
        ndcg = metrics.ndcg(ranked, collection.relevant(rows), DEPTH, graded=True)
        frames.append(pd.Series(ndcg, index=collection.topics["task_id"].to_numpy()[rows]))
    return pd.concat(frames).groupby(level=0).mean()


def scores_by_reading(
    topics: pd.DataFrame,
    judged: pd.DataFrame,
    readings: pd.DataFrame,
    runs: Mapping[str, pd.DataFrame],
    compared: str,
) -> pd.DataFrame:
    """NDCG@10 of every run by the final grades and by each reading, over the same topics.

    Returns: columns reading (final, umbrela, need), part, against (the reading that shares these topics), system, n,
        ndcg@10, ci_low, ci_high, gain over the run `compared` with gain_ci_low and gain_ci_high (95 %, bootstrap over
        topics).
    """
    rows = []
    for name in (passes.UMBRELA, "need"):
        grades = converted(readings, name)
        asked = topics if name == passes.UMBRELA else topics[topics["task_id"].isin(grades["task_id"])]
        own = judged[judged["task_id"].isin(asked["task_id"])]
        for reading, table in (("final", own), (name, regraded(own, grades))):
            collection = Collection.of(asked, table)
            by_system = pd.DataFrame(
                {system: values(collection, places(collection, run)) for system, run in runs.items()}
            )
            for part, ids in asked.groupby("part")["task_id"]:
                of_part = by_system.reindex(ids)
                for system in by_system:
                    found = of_part[[system, compared]].dropna()
                    if not len(found):
                        continue
                    gain = (found.iloc[:, 0] - found.iloc[:, -1]).to_numpy(np.float64)
                    key = {"reading": reading, "part": part, "against": name, "system": system, "n": len(found)}
                    key |= mean_interval(found.iloc[:, 0].to_numpy(np.float64), seed=0, name="ndcg@10")
                    rows.append(key | mean_interval(gain, seed=0, name="gain", prefix="gain_"))
    return pd.DataFrame(rows)


def order_by_reading(scores: pd.DataFrame, variants: list[str]) -> pd.DataFrame:
    """Kendall's tau between the systems' order by a reading and by the final grades, over the same topics.

    `variants`: patterns of systems left out, as near copies are no further evidence. Returns: reading, part, systems, n
        (topics), tau.
    """
    kept = scores[[not any(fnmatchcase(name, pattern) for pattern in variants) for name in scores["system"]]]
    rows = []
    for (reading, part), own in kept.groupby(["against", "part"]):
        wide = (
            own.pivot_table(index="system", columns="reading", values="ndcg@10")
            .drop(store.LABELS, errors="ignore")
            .dropna()
        )
        tau = kendalltau(wide["final"], wide[reading]).statistic
        rows.append({"reading": reading, "part": part, "systems": len(wide), "n": int(own["n"].max()), "tau": tau})
    return pd.DataFrame(rows)


def prediction_powered(judge: Float64Array, person: Float64Array) -> tuple[float, float, float]:
    """A mean over topics, corrected by topics that a person graded too (Angelopoulos et al. 2023).

    The judge's mean over all topics, plus the mean of (person - judge) over those of both.

    Args:
        judge: a system's values by the judge's grades, shape (n,).
        person: by the person's grades, NaN where no person graded the topic, shape (n,).

    Returns: mean, and the ends of its 95 % interval (normal approximation); NaN for fewer than two topics of both.
    """
    both = ~np.isnan(person) & ~np.isnan(judge)
    if both.sum() < 2:
        return float("nan"), float("nan"), float("nan")
    known, error = judge[~np.isnan(judge)], (person - judge)[both]
    mean = known.mean() + error.mean()
    width = NORMAL * np.sqrt(known.var(ddof=1) / len(known) + error.var(ddof=1) / len(error))
    return float(mean), float(mean - width), float(mean + width)


def reading_tables(dataset: str) -> dict[str, pd.DataFrame]:
    """readings, umbrela, reading_scores and reading_order by file name; empty without further readings."""
    readings = store.read_table_if_there(dataset, "readings")
    if not len(readings):
        return {}
    judged, topics = store.final(dataset), store.read_table(dataset, "topics")
    settings = store.pool_settings()
    scores = scores_by_reading(topics, judged, readings, store.read_runs(dataset), settings.compared[1])
    return {
        "tables/readings.csv": agreements(judged, store.read_table_if_there(dataset, "rejudged"), readings),
        "tables/umbrela.csv": umbrela_confusion(judged, readings),
        "tables/reading_scores.csv": scores,
        "tables/reading_order.csv": order_by_reading(scores, settings.variants),
    }
