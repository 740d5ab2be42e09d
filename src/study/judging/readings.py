"""The further readings against the grades of the collection: agreement of each, and every system's score by it."""

from __future__ import annotations

from fnmatch import fnmatchcase

import numpy as np
import pandas as pd
from scipy.stats import kendalltau

from study.data.dataset import IntArray
from study.evaluation import metrics
from study.evaluation.statistics import mean_interval
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


def scores_by_reading(collection: Collection, readings: pd.DataFrame, compared: str) -> pd.DataFrame:
    """NDCG@10 of every pooled run by the final grades and by each reading, over the same topics.

    Returns: columns reading (final, umbrela, need), part, against (the reading that shares these topics), system, n,
        ndcg@10, ci_low, ci_high, gain over the run `compared` with gain_ci_low and gain_ci_high (95 %, bootstrap over
        topics).
    """
    rows = []
    for name in (passes.UMBRELA, "need"):
        grades, topics = converted(readings, name), collection.topics
        if name == "need":
            topics = topics[topics["task_id"].isin(grades["task_id"])]
        judged = collection.judgements[collection.judgements["task_id"].isin(topics["task_id"])]
        for reading, judgements in (("final", judged), (name, regraded(judged, grades))):
            graded = Collection.of(topics, judgements)
            ndcg = pd.DataFrame(
                {system: values(graded, places(graded, run)) for system, run in collection.runs.items()}
            )
            for part, ids in topics.groupby("part")["task_id"]:
                of_part = ndcg.reindex(ids)
                for system in ndcg:
                    both = of_part[[system, compared]].dropna()
                    if not len(both):
                        continue
                    key = {"reading": reading, "part": part, "against": name, "system": system, "n": len(both)}
                    key |= mean_interval(both.iloc[:, 0], seed=0, name="ndcg@10")
                    rows.append(
                        key | mean_interval(both.iloc[:, 0] - both.iloc[:, -1], seed=0, name="gain", prefix="gain_")
                    )
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


def reading_tables(collection: Collection) -> dict[str, pd.DataFrame]:
    """readings, umbrela, reading_scores and reading_order by file name; empty without further readings."""
    readings = collection.table("readings")
    if not len(readings):
        return {}
    settings = store.pool_settings()
    scores = scores_by_reading(collection, readings, settings.compared[1])
    tables = {
        "readings": agreements(collection.judgements, collection.table("rejudged"), readings),
        "umbrela": umbrela_confusion(collection.judgements, readings),
        "reading_scores": scores,
        "reading_order": order_by_reading(scores, settings.variants),
    }
    return {f"tables/{name}.csv": table for name, table in tables.items()}
