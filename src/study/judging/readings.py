"""Further readings of judged pairs: how far they agree with the grades, and every system's score by each of them.

Three of them test the collection (UMBRELA's form, and another definition of the need, read twice). A fourth asks
whether a useful server also fits the language and system that the task states. The guidelines of usefulness never lower
a grade for the wrong language, which rules the structural idea of T2MRec out by definition; here it is built in.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from study.base.errors import StudyError
from study.data.dataset import IntArray
from study.evaluation.statistics import rank_correlation
from study.judging import agreement, store, workflow
from study.judging.collection import Collection, Float64Array
from study.judging.evaluate import comparable, mean_interval

# A grade of UMBRELA's form -> ours: what seems related but does not answer is of no use.
OUR_SCALE = {0: 0, 1: 0, 2: 1, 3: 2}
# What a useful server must be besides -> the lowest grade for language and system.
DEMANDS = {"useful": 0, "callable": 1, "in_language": 2}


def converted(readings: pd.DataFrame, name: str) -> pd.DataFrame:
    """The grades of one reading on our scale: columns task_id, server_id, grade. ``need`` is the lower of its two."""
    rows = readings[readings["reading"].isin(workflow.NEED if name == "need" else [name])]
    grade = rows["given"].map(OUR_SCALE) if name == workflow.UMBRELA else rows["given"]
    return rows.assign(grade=grade.astype(np.int64)).groupby(store.PAIR)[["grade"]].min().reset_index()


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


def agreement_row(rows: pd.DataFrame) -> dict[str, float]:
    """Agreement of two grades. `rows`: columns task_id, one, other, weight (how many pairs a drawn one stands for).

    Returns: pairs, kappa_quadratic with its 95 % interval over topics, positive_agreement, alpha.
    """
    counts = agreement.confusions(rows["one"], rows["other"], rows["task_id"], rows["weight"])
    row, total = {"pairs": len(rows), **agreement.kappa_row(counts)}, counts.sum(axis=0)
    return row | {"positive_agreement": positive_agreement(total), "alpha": ordinal_alpha(total)}


def agreements(judged: pd.DataFrame, rejudged: pd.DataFrame, readings: pd.DataFrame) -> pd.DataFrame:
    """One row for every two readings that can be compared: columns first, second and those of `agreement_row`. A pair
    without use stands for ten where one in ten was read (UMBRELA's form)."""
    again = rejudged.drop_duplicates(store.PAIR, keep="last")[[*store.PAIR, "grade"]]
    first, second = (readings[readings["reading"] == name] for name in workflow.NEED)
    grades = {"read again": again} | {name: converted(readings, name) for name in (workflow.UMBRELA, "need")}
    compared = {("first pass", "second pass"): (judged, "grade_1", "grade_2")}
    for name, graded in grades.items():
        compared["final", name] = (judged[[*store.PAIR, "final"]].merge(graded, on=store.PAIR), "final", "grade")
    both = first.merge(second, on=store.PAIR, suffixes=("_1", "_2"))
    compared["need, first pass", "need, second pass"] = (both, "given_1", "given_2")
    comparisons = []
    for (one, other), (table, left, right) in compared.items():
        if len(table):
            rows = table[["task_id", left, right]].set_axis(["task_id", "one", "other"], axis=1)
            sampled = (rows["one"] == 0) & (other == workflow.UMBRELA)
            weighted = rows.assign(weight=np.where(sampled, 1 / workflow.SHARE_ZEROS, 1.0))
            comparisons.append({"first": one, "second": other, **agreement_row(weighted)})
    return pd.DataFrame(comparisons)


def umbrela_confusion(judged: pd.DataFrame, readings: pd.DataFrame) -> pd.DataFrame:
    """Pairs by final grade and grade of UMBRELA's form: columns final, umbrela, pairs (as read, not weighted)."""
    graded = readings[readings["reading"] == workflow.UMBRELA].rename(columns={"given": "umbrela"})
    rows = judged[[*store.PAIR, "final"]].merge(graded, on=store.PAIR)
    return rows.groupby(["final", "umbrela"]).size().rename("pairs").reset_index()


def scores_by_reading(collection: Collection, readings: pd.DataFrame, compared: str) -> pd.DataFrame:
    """NDCG@10 of every pooled run by the final grades and by each reading, over the same topics.

    Returns: columns reading (final, umbrela, need), part, against (the reading that shares these topics), system, n,
        ndcg@10, ci_low, ci_high, gain over the run `compared` with gain_ci_low and gain_ci_high (95 %, bootstrap over
        topics).
    """
    rows = []
    for name in (workflow.UMBRELA, "need"):
        grades, topics, judged = converted(readings, name), collection.topics, collection.judgements
        if name == "need":
            topics = topics[topics["task_id"].isin(grades["task_id"])]
            judged = judged[judged["task_id"].isin(topics["task_id"])]
        by_final = Collection.of(topics, judged)
        for reading, graded in (("final", by_final), (name, by_final.regraded(grades))):
            ndcg = pd.DataFrame({system: graded.ndcg(run) for system, run in collection.runs.items()})
            for part, ids in topics.groupby("part")["task_id"]:
                of_part = ndcg.reindex(ids)
                for system in ndcg:
                    both = of_part[[system, compared]].dropna()
                    if len(both):
                        values, gain = both.iloc[:, 0], both.iloc[:, 0] - both.iloc[:, -1]
                        row = {"reading": reading, "part": part, "against": name, "system": system, "n": len(both)}
                        row |= mean_interval(values, name="ndcg@10") | mean_interval(gain, name="gain", prefix="gain_")
                        rows.append(row)
    return pd.DataFrame(rows)


def order_by_reading(scores: pd.DataFrame, settings: store.PoolSettings) -> pd.DataFrame:
    """Kendall's tau between the systems' order by a reading and by the final grades, over the same topics; without
    variants, as near copies are no further evidence. Returns: reading, part, systems, n (topics), tau."""
    compared = scores[[name != store.LABELS and not settings.is_variant(name) for name in scores["system"]]]
    rows = []
    for (reading, part), of_part in compared.groupby(["against", "part"]):
        wide = of_part.pivot_table(index="system", columns="reading", values="ndcg@10").dropna()
        tau, _ = rank_correlation(wide["final"].to_numpy(), wide[reading].to_numpy())
        rows.append({"reading": reading, "part": part, "systems": len(wide), "n": int(of_part["n"].max()), "tau": tau})
    return pd.DataFrame(rows)


def reading_tables(collection: Collection) -> dict[str, pd.DataFrame]:
    """readings, umbrela, reading_scores and reading_order; empty without further readings."""
    readings, settings = collection.table("readings"), store.pool_settings()
    if not len(readings):
        return {}
    scores = scores_by_reading(collection, readings, settings.compared[1])
    return {
        "readings": agreements(collection.judgements, collection.table("rejudged"), readings),
        "umbrela": umbrela_confusion(collection.judgements, readings),
        "reading_scores": scores,
        "reading_order": order_by_reading(scores, settings),
    }


def demanded(judgements: pd.DataFrame, fit: pd.DataFrame, least: int) -> pd.DataFrame:
    """The useful pairs whose grade for language and system, `final` of `fit`, is at least `least`: columns task_id,
    server_id, grade (of usefulness). StudyError: a useful pair has no such grade."""
    useful = judgements.loc[judgements["final"] >= 1, [*store.PAIR, "final"]].rename(columns={"final": "grade"})
    rows = useful.merge(fit[[*store.PAIR, "final"]], on=store.PAIR, how="left")
    if len(absent := rows[rows["final"].isna()]):
        task, server = absent[store.PAIR].iloc[0]
        reason = f"{len(absent)} useful pairs have no second grade, the first is server {server} for task {task}"
        raise StudyError(reason, fix=f"run: {store.STEP['language_grades']}")
    return rows[rows["final"] >= least]


def language_scores(
    collection: Collection, fit: pd.DataFrame, scores: pd.DataFrame, runs: Mapping[str, pd.DataFrame]
) -> pd.DataFrame:
    """Judged NDCG@10 of every run under each of `DEMANDS`.

    Returns: columns demand, part, system, n (topics with a server that meets the demand), ndcg@10, ci_low, ci_high
        (95 %, bootstrap over topics). Runs with more than 5 % of unjudged answers by `scores` are left out.
    """
    parts, rows = {str(part): ids for part, ids in collection.topics.groupby("part")["task_id"]}, []
    compared = {part: comparable(scores, part) for part in parts}
    for demand, least in DEMANDS.items():
        graded = collection.regraded(demanded(collection.judgements, fit, least))
        for system, run in runs.items():
            ndcg = graded.ndcg(run)
            for part, ids in parts.items():
                if system in compared[part]:
                    defined = ndcg[ndcg.index.isin(ids)].dropna()
                    row = {"demand": demand, "part": part, "system": system, "n": len(defined)}
                    rows.append(row | mean_interval(defined, name="ndcg@10"))
    return pd.DataFrame(rows)


def language_agreement(fit: pd.DataFrame) -> pd.DataFrame:
    """How far the two readings of language and system agree, and what they found.

    Returns: one row: pairs, kappa_quadratic, kappa_ci_low, kappa_ci_high (95 %, bootstrap over topics), equal (share of
        equal grades), tied, callable, in_language (shares of the final grades 0, 1 and 2).
    """
    counts = agreement.confusions(fit["grade_1"], fit["grade_2"], fit["task_id"])
    row: dict[str, object] = {"pairs": len(fit), **agreement.kappa_row(counts)}
    row["equal"] = float((fit["grade_1"] == fit["grade_2"]).mean())
    names = ("tied", "callable", "in_language")
    return pd.DataFrame([row | {name: float((fit["final"] == grade).mean()) for grade, name in enumerate(names)}])


def language_tables(
    collection: Collection, scores: pd.DataFrame, runs: Mapping[str, pd.DataFrame]
) -> dict[str, pd.DataFrame]:
    """language_scores and language_agreement; empty where no pair has a second grade."""
    fit = collection.table("language_grades")
    if not len(fit):
        return {}
    scored = language_scores(collection, fit, scores, runs)
    return {"language_scores": scored, "language_agreement": language_agreement(fit)}
