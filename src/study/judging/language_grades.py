"""Scores where a useful server must also fit the language and system that the task states.

The guidelines of usefulness never lower a grade for the wrong language, which rules the structural idea of T2MRec out
by definition. With a second grade of the useful pairs (``language_grades.csv``) the same runs are scored with that idea
built in.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from study.errors import StudyError
from study.evaluation.statistics import mean_interval
from study.judging import agreement, store
from study.judging.collection import Collection
from study.judging.evaluate import MOST_UNJUDGED, per_task

# What a useful server must be besides -> the lowest second grade.
DEMANDS = {"useful": 0, "callable": 1, "in_language": 2}


def demanded(judgements: pd.DataFrame, fit: pd.DataFrame, least: int) -> pd.DataFrame:
    """The judgements, with `final` 0 where a useful server's second grade is below `least`."""
    second = judgements[store.PAIR].merge(fit[[*store.PAIR, "final"]], on=store.PAIR, how="left")["final"]
    useful = (judgements["final"] >= 1).to_numpy()
    if (absent := useful & second.isna().to_numpy()).any():
        task, server = judgements[absent][store.PAIR].iloc[0]
        reason = f"{absent.sum()} useful pairs have no second grade, the first is server {server} for task {task}"
        raise StudyError(reason, fix=f"run: {store.STEP['language_grades']}")
    meets = useful & (second.fillna(0).to_numpy(np.int64) >= least)
    return judgements.assign(final=judgements["final"].where(pd.Series(meets, judgements.index), 0))


def scores(collection: Collection, fit: pd.DataFrame, runs: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Judged NDCG@10 of every run under each of `DEMANDS`.

    Returns: columns demand, part, system, n (topics with a server that meets the demand), ndcg@10, ci_low, ci_high
        (95 %, bootstrap over topics). Runs with more than 5 % of unjudged answers are left out.
    """
    topics, rows = collection.topics, []
    for demand, least in DEMANDS.items():
        graded = Collection.of(topics, demanded(collection.judgements, fit, least))
        for system, run in runs.items():
            values = per_task(graded, run)[["task_id", "ndcg@10", "unjudged@10"]]
            means = values.groupby("task_id").mean().reset_index().merge(topics, on="task_id")
            for part, own in means.groupby("part"):
                if own["unjudged@10"].mean() <= MOST_UNJUDGED:
                    defined = own["ndcg@10"].dropna()
                    key = {"demand": demand, "part": str(part), "system": system, "n": len(defined)}
                    rows.append(key | mean_interval(defined, seed=0, name="ndcg@10"))
    return pd.DataFrame(rows)


def agreement_row(fit: pd.DataFrame) -> pd.DataFrame:
    """How far the two readings agree, and what they found.

    Returns: one row: pairs, kappa_quadratic, kappa_ci_low, kappa_ci_high (95 %, bootstrap over topics), equal (share of
        equal grades), tied, callable, in_language (shares of the final grades 0, 1 and 2).
    """
    counts = agreement.confusions(fit["grade_1"], fit["grade_2"], fit["task_id"])
    low, high = agreement.kappa_interval(counts, "quadratic", seed=0)
    kappa = float(agreement.weighted_kappa(counts.sum(axis=0), "quadratic"))
    row = {"pairs": len(fit), "kappa_quadratic": kappa, "kappa_ci_low": low, "kappa_ci_high": high}
    row["equal"] = float((fit["grade_1"] == fit["grade_2"]).mean())
    names = ("tied", "callable", "in_language")
    return pd.DataFrame([row | {name: float((fit["final"] == grade).mean()) for grade, name in enumerate(names)}])


def language_tables(collection: Collection, runs: Mapping[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """language_scores and language_agreement by file name; empty where no pair has a second grade."""
    fit = collection.table("language_grades")
    if not len(fit):
        return {}
    tables = {"language_scores": scores(collection, fit, runs), "language_agreement": agreement_row(fit)}
    return {f"tables/{name}.csv": table for name, table in tables.items()}
