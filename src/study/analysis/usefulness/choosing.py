"""How `field_dense` was chosen and what each of its ideas adds, from judgements of committed runs."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sp

from study.advisor.retrieval.field_dense import FieldDense
from study.analysis.framework import Context, Tables, analysis
from study.analysis.report.runs import read_statistics
from study.base.errors import StudyError
from study.config.compose import load, plain
from study.data.dataset import Dataset, FloatArray
from study.evaluation.ranking import mask_known, tie_order, top_k
from study.evaluation.runs import run_table
from study.evaluation.statistics import compare, compare_all, holm, mean_interval, percentile_limits, resampled
from study.judging.collection import DEPTH, Collection
from study.judging.evaluate import MOST_UNJUDGED, all_runs, per_task
from study.judging.pools import load_split

Values = Mapping[str, pd.DataFrame]  # system -> values by task
METRIC = "ndcg@10"


@dataclass(frozen=True)
class Choice:
    """Variants of `field_dense`, and the part of the topics on which they are compared."""

    part: str
    variants: dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Supervision:
    """Systems between a start and an end, by what they learn from."""

    start: str
    end: str
    systems: list[str]
    metric: str


@dataclass(frozen=True)
class Steps:
    """A chain of systems, each the one before and one idea more."""

    steps: list[str]
    metrics: list[str]
    supervision: Supervision
    seed: int


def variants(changed: Mapping[str, Mapping[str, Any]]) -> dict[str, FieldDense]:
    """`field_dense` with some settings replaced, by the name of the variant."""
    base = plain(load(["system=field_dense"]).system)["model"]
    base.pop("_target_")
    return {name: FieldDense(**(base | dict(changes))) for name, changes in changed.items()}


def topic_scores(system: FieldDense, data: Dataset, known: sp.csr_matrix, topics: pd.DataFrame) -> FloatArray:
    """What a system gives every server for each topic, known servers left out, shape (n_topics, n_servers)."""
    rows = pd.Index(data.tasks["id"]).get_indexer(pd.Index(topics["task_id"])).astype(np.int64)
    system.index(data.servers)
    return mask_known(system.score_requests(data.tasks.iloc[rows]), rows, known)


def first_ten(scores: FloatArray, data: Dataset, topics: pd.DataFrame, seed: int) -> pd.DataFrame:
    """The ten best servers of each topic by `scores`, as a run: task_id, seed, rank, server_id, score."""
    found = top_k(scores, DEPTH, tie_order(data.n_servers, seed))
    return run_table(data, topics["task_id"].to_numpy(), *found, seed)


def judged_rows(collection: Collection, runs: Mapping[Hashable, pd.DataFrame], *, seed: int) -> list[dict[str, Any]]:
    """A row per run: n (topics), ndcg@10, ci_low, ci_high, diff (from the first run), diff_ci_low, diff_ci_high (95 %,
    bootstrap over topics), unjudged@10."""
    values = [per_task(collection, run).set_index("task_id") for run in runs.values()]
    scores = [found[METRIC].dropna() for found in values]
    return [
        {"n": len(score), **mean_interval(score, seed=seed, name=METRIC)}
        | mean_interval(score - scores[0], seed=seed, name="diff", prefix="diff_")
        | {"unjudged@10": found["unjudged@10"].mean()}
        for found, score in zip(values, scores, strict=True)
    ]


@analysis("usefulness")
def choose(study: Context) -> Tables:
    """What do the variants of `field_dense` score on the judged validation topics?"""
    settings, seed = study.settings(Choice), 0
    data, split = load_split(study.dataset)
    collection = Collection.load(study.dataset).part(settings.part)
    topics, known = collection.topics, split.known(settings.part)
    runs: dict[Hashable, pd.DataFrame] = {
        name: first_ten(topic_scores(system, data, known, topics), data, topics, seed)
        for name, system in variants(settings.variants).items()
    }
    table = pd.DataFrame(judged_rows(collection, runs, seed=seed))
    table.insert(0, "variant", list(runs))
    return {"choice": table.sort_values(METRIC, ascending=False, kind="stable")}


def judged_values(dataset: str, part: str) -> dict[str, pd.DataFrame]:
    """`evaluate.per_task` on the topics of a part, for every system with at most 5 % of unjudged answers."""
    collection, found = Collection.load(dataset).part(part), {}
    topics = set(collection.topics["task_id"])
    for name, run in all_runs(dataset).items():
        if topics <= set(run["task_id"]):
            frame = per_task(collection, run[run["task_id"].isin(topics)])
            if frame["unjudged@10"].mean() <= MOST_UNJUDGED:
                found[name] = frame
    return found


def require_judged(values: Values, names: Sequence[str], column: str) -> None:
    """Raise `StudyError` for the first system whose answers are not judged."""
    for name in names:
        if name not in values:
            raise StudyError(f"the answers of {name} are not judged", column=column, fix="run: study judge pool")


def against(dataset: str, system: str, part: str, metric: str = METRIC, *, seed: int = 0) -> pd.DataFrame:
    """A system's judged answers against those of every other judged system; Holm over the family ``judged``.

    Returns: the rows of `compare_all`; `system` is the other one, so a negative difference says that it is worse.
    """
    values = judged_values(dataset, part)
    require_judged(values, [system], "system")
    frames = {name: frame[["task_id", "seed", metric]] for name, frame in values.items()}
    tested = compare_all(frames, system, [metric], seed, family=read_statistics().judged)
    return tested.sort_values("mean_system", ascending=False, ignore_index=True)


@analysis("usefulness", name="compare")
def compare_judged(study: Context) -> Tables:
    """Is `field_dense` more useful than the other judged systems on the test topics, `field_dense_mpnet` on fresh ones?

    Each was frozen before its answers on these topics were judged.
    """
    systems = {"test": "field_dense", "fresh": "field_dense_mpnet"}
    study.facts["systems"] = systems
    return {f"judged_{part}": against(study.dataset, system, part) for part, system in systems.items()}


def means(frame: pd.DataFrame, metric: str) -> pd.Series:
    """A measure by task, averaged over seeds; tasks without a value are left out."""
    return frame.groupby("task_id")[metric].mean().dropna()


def measured(values: Values, name: str, metric: str, seed: int, *, reference: str = "") -> dict[str, Any]:
    """One system on one measure: n, mean, ci_low, ci_high; and before (the `reference`, if any), the paired difference
    from it as diff, diff_ci_low, diff_ci_high, wins, ties, losses, p (randomisation test)."""
    score = means(values[name], metric)
    row: dict[str, Any] = {"n": len(score), **mean_interval(score, seed=seed)}
    if reference:
        own, other = (values[system][["task_id", "seed", metric]] for system in (name, reference))
        found = compare(own, other, metric, seed)
        kept = ("diff", "diff_ci_low", "diff_ci_high", "wins", "ties", "losses")
        row |= {"before": reference, **{key: found[key] for key in kept}, "p": found["randomisation_p"]}
    return row


def one_at_a_time(values: Values, steps: Sequence[str], metrics: Sequence[str], *, seed: int) -> pd.DataFrame:
    """Each system of a chain (the one before it and one idea more) with its paired difference from the one before.

    Returns: columns metric, step (from 0), system, those of `measured`, and p_holm (over the steps of all metrics).
    """
    require_judged(values, steps, "steps")
    rows = []
    for metric, (step, name) in product(metrics, enumerate(steps)):
        before = steps[step - 1] if step else ""
        found = measured(values, name, metric, seed, reference=before)
        rows.append({"metric": metric, "step": step, "system": name, **found})
    table = pd.DataFrame(rows)
    tested = table["step"] > 0
    table.loc[tested, "p_holm"] = holm(table.loc[tested, "p"].to_numpy(np.float64))
    return table


def closed(
    values: Values, system: str, *, start: str, end: str, metric: str, seed: int, resamples: int = 10_000
) -> dict[str, float]:
    """The share of the way from `start` to `end` that a system goes: (system - start) / (end - start) of the means.

    Returns: closed, closed_ci_low, closed_ci_high (95 % bootstrap interval over topics; draws in which the end is
    not above the start are left out).
    """
    sides = pd.DataFrame({name: means(values[name], metric) for name in {system, start, end}}).dropna()
    over = (sides[system] - sides[start]).to_numpy(np.float64), (sides[end] - sides[start]).to_numpy(np.float64)
    (drawn,) = resampled(len(sides), seed=seed, resamples=resamples)
    gained, whole = (side[drawn].mean(axis=1) for side in over)
    low, high = percentile_limits(gained[whole > 0] / whole[whole > 0])
    mean = over[0].mean() / over[1].mean() if over[1].mean() > 0 else np.nan
    return {"closed": mean, "closed_ci_low": low, "closed_ci_high": high}


def supervision(values: Mapping[str, Values], settings: Supervision, *, seed: int) -> pd.DataFrame:
    """Model or labels? Systems that differ from the start by what they learn from, or by their text vectors.

    Returns: columns part, system, those of `measured` up to diff_ci_high (from the start), and those of `closed`; the
    best mean of each part first.
    """
    start, end, metric = settings.start, settings.end, settings.metric
    rows = []
    for part, own in values.items():
        require_judged(own, [start, end], "supervision")
        for name in dict.fromkeys([start, *settings.systems, end]):
            if name in own:
                row = measured(own, name, metric, seed, reference="" if name == start else start)
                row |= {} if name == start else closed(own, name, start=start, end=end, metric=metric, seed=seed)
                rows.append({"part": part, "system": name, **row})
    table = pd.DataFrame(rows).drop(columns=["before", "wins", "ties", "losses", "p"], errors="ignore")
    return table.sort_values(["part", "mean"], ascending=False, kind="stable", ignore_index=True)


@analysis("usefulness")
def steps(study: Context) -> Tables:
    """What does each idea of `field_dense` add, and is it T2MRec's model or its labels that fall short of it?"""
    settings = study.settings(Steps)
    values = {part: judged_values(study.dataset, part) for part in ("valid", "test")}
    chains = [
        one_at_a_time(own, settings.steps, settings.metrics, seed=settings.seed).assign(part=part)
        for part, own in values.items()
    ]
    taught = supervision(values, settings.supervision, seed=settings.seed)
    return {"steps": pd.concat(chains, ignore_index=True), "supervision": taught}
