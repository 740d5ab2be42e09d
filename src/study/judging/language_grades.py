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
from study.evaluation import metrics
from study.evaluation.statistics import mean_interval
from study.judging import agreement, store
from study.judging.collection import DEPTH, Collection, unjudged
from study.judging.evaluate import MOST_UNJUDGED

# What a useful server must be besides -> the lowest second grade.
DEMANDS = {"useful": 0, "callable": 1, "in_language": 2}


def demanded(judgements: pd.DataFrame, fit: pd.DataFrame, least: int) -> pd.DataFrame:
    """The judgements, with `final` 0 where a useful server's second grade is below `least`."""
    second = judgements[store.PAIR].merge(fit[[*store.PAIR, "final"]], on=store.PAIR, how="left")["final"]
    useful = (judgements["final"] >= 1).to_numpy()
    if (absent := useful & second.isna().to_numpy()).any():
        task, server = judgements[absent][store.PAIR].iloc[0]
        problem = f"{absent.sum()} useful pairs have no second grade, the first is server {server} for task {task}"
        raise StudyError(
            problem, fix="run: study judge batches --pass language-1 and language-2, have them judged, then collect"
        )
    kept = useful & (second.fillna(0).to_numpy(np.int64) >= least)
    return judgements.assign(final=judgements["final"].where(pd.Series(kept, judgements.index), 0))


def scores(
    topics: pd.DataFrame, judgements: pd.DataFrame, fit: pd.DataFrame, runs: Mapping[str, pd.DataFrame]
) -> pd.DataFrame:
    """Judged NDCG@10 of every run under each of `DEMANDS`.

    Returns: columns demand, part, system, n (topics with a server that meets the demand), ndcg@10, ci_low, ci_high
        (95 %, bootstrap over topics). Runs with more than 5 % of unjudged answers are left out.
    """
    rows = []
    for demand, least in DEMANDS.items():
        collection = Collection.of(topics, demanded(judgements, fit, least))
        for system, run in runs.items():
            found = []
            for _, part in run.groupby("seed"):
                row, ranked, grades = collection.look_up(part)
                values = metrics.ndcg(ranked, collection.relevant(row), DEPTH, graded=True)
                task = collection.topics["task_id"].to_numpy()[row]
                columns = {"task_id": task, "ndcg@10": values, "unjudged": unjudged(grades, DEPTH)}
                found.append(pd.DataFrame(columns))
            means = pd.concat(found).groupby("task_id").mean().reset_index().merge(topics, on="task_id")
            for name, own in means.groupby("part"):
                if own["unjudged"].mean() > MOST_UNJUDGED:
                    continue
                defined = own["ndcg@10"].dropna().to_numpy(np.float64)
                key = {"demand": demand, "part": str(name), "system": system, "n": len(defined)}
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
    shares = {
        name: float((fit["final"] == grade).mean()) for grade, name in enumerate(("tied", "callable", "in_language"))
    }
    return pd.DataFrame([row | shares])


def language_tables(dataset: str, runs: Mapping[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """language_scores and language_agreement by file name; empty where no pair has a second grade."""
    fit = store.read_table_if_there(dataset, "language_grades")
    if not len(fit):
        return {}
    found = scores(store.read_table(dataset, "topics"), store.final(dataset), fit, runs)
    return {"tables/language_scores.csv": found, "tables/language_agreement.csv": agreement_row(fit)}
