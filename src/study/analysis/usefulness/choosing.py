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
from study.evaluation.statistics import (
    RESAMPLES,
    compare,
    compare_all,
    holm,
    mean_interval,
    percentile_limits,
    resampled,
)
from study.judging.collection import DEPTH, Collection
from study.judging.evaluate import MOST_UNJUDGED, all_runs, per_task
from study.judging.store import load_split

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
    ranked, best = top_k(scores, DEPTH, tie_order(data.n_servers, seed))
    return run_table(data, topics["task_id"].to_numpy(), ranked, best, seed)


def judged_rows(collection: Collection, runs: Mapping[Hashable, pd.DataFrame], *, seed: int) -> list[dict[str, Any]]:
    """A row per run: n (topics), ndcg@10, ci_low, ci_high, diff (from the first run), diff_ci_low, diff_ci_high (95 %,
    bootstrap over topics), unjudged@10."""
    values = [per_task(collection, run).set_index("task_id") for run in runs.values()]
    scores = [own[METRIC].dropna() for own in values]
    return [
        {"n": len(score), **mean_interval(score, seed=seed, name=METRIC)}
        | mean_interval(score - scores[0], seed=seed, name="diff", prefix="diff_")
        | {"unjudged@10": own["unjudged@10"].mean()}
        for own, score in zip(values, scores, strict=True)
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


def judged_values(dataset: str, part: str, needed: Sequence[str]) -> dict[str, pd.DataFrame]:
    """`evaluate.per_task` on the topics of a part, for every system with at most 5 % of unjudged answers. Raises
    StudyError: one that is needed has more, or no answers."""
    collection, values = Collection.load(dataset).part(part), {}
    topics = set(collection.topics["task_id"])
    for name, run in all_runs(dataset).items():
        if topics <= set(run["task_id"]):
            frame = per_task(collection, run)
            if frame["unjudged@10"].mean() <= MOST_UNJUDGED:
                values[name] = frame
    for name in needed:
        if name not in values:
            raise StudyError(f"the answers of {name} are not judged", column="system", fix="run: study judge pool")
    return values


@analysis("usefulness", name="compare")
def compare_judged(study: Context) -> Tables:
    """Is `field_dense` more useful than the other judged systems on the test topics, `field_dense_mpnet` on fresh ones?

    Each was frozen before its answers on these topics were judged. Returns: the rows of `compare_all`, Holm over the
    family ``judged``; `system` is the other one, so a negative difference says that it is worse.
    """
    systems, tables, seed = {"test": "field_dense", "fresh": "field_dense_mpnet"}, {}, 0
    study.facts["systems"] = systems
    for part, system in systems.items():
        values = judged_values(study.dataset, part, [system])
        frames = {name: frame[["task_id", "seed", METRIC]] for name, frame in values.items()}
        tested = compare_all(frames, system, [METRIC], seed, family=read_statistics().judged)
        tables[f"judged_{part}"] = tested.sort_values("mean_system", ascending=False, ignore_index=True)
    return tables


def one_at_a_time(values: Values, steps: Sequence[str], metrics: Sequence[str], *, seed: int) -> pd.DataFrame:
    """Each system of a chain (the one before it and one idea more) with its paired difference from the one before.

    Returns: columns metric, step (from 0), system, n, mean, ci_low, ci_high; before, diff, diff_ci_low, diff_ci_high,
        wins, ties, losses, p (randomisation test), and p_holm (over the steps of all metrics).
    """
    rows, kept = [], ("diff", "diff_ci_low", "diff_ci_high", "wins", "ties", "losses")
    for metric, (step, name) in product(metrics, enumerate(steps)):
        score = values[name].groupby("task_id")[metric].mean().dropna()
        row = {"metric": metric, "step": step, "system": name, "n": len(score), **mean_interval(score, seed=seed)}
        if step:
            before = steps[step - 1]
            own, other = (values[system][["task_id", "seed", metric]] for system in (name, before))
            tested = compare(own, other, metric, seed)
            row |= {"before": before, **{key: tested[key] for key in kept}, "p": tested["randomisation_p"]}
        rows.append(row)
    table = pd.DataFrame(rows)
    later = table["step"] > 0
    table.loc[later, "p_holm"] = holm(table.loc[later, "p"].to_numpy(np.float64))
    return table


def closed(gains: pd.Series, way: pd.Series, *, seed: int) -> dict[str, float]:
    """The share of a way that is gone, from gains and way by topic: closed, closed_ci_low, closed_ci_high (95 %
    bootstrap interval over topics; draws in which the end is not above the start are left out)."""
    (drawn,) = resampled(len(way), seed=seed, resamples=RESAMPLES)
    gained, whole = (side.to_numpy(np.float64)[drawn].mean(axis=1) for side in (gains, way))
    low, high = percentile_limits(gained[whole > 0] / whole[whole > 0])
    return {"closed": gains.mean() / way.mean(), "closed_ci_low": low, "closed_ci_high": high}


def supervision(values: Mapping[str, Values], settings: Supervision, *, seed: int) -> pd.DataFrame:
    """Model or labels? Systems that differ from the start by what they learn from, or by their text vectors.

    Returns: columns part, system, n, mean, ci_low, ci_high, diff (from the start), diff_ci_low, diff_ci_high, and those
    of `closed`, on the way from the start to the end; the best mean of each part first.
    """
    rows = []
    for part, own in values.items():
        names = [name for name in (settings.start, *settings.systems, settings.end) if name in own]
        scores = pd.DataFrame({name: own[name].groupby("task_id")[settings.metric].mean() for name in names}).dropna()
        way = scores[settings.end] - scores[settings.start]
        for name in names:
            row = {"part": part, "system": name, "n": len(scores), **mean_interval(scores[name], seed=seed)}
            if name != settings.start:
                gains = scores[name] - scores[settings.start]
                row |= mean_interval(gains, seed=seed, name="diff", prefix="diff_") | closed(gains, way, seed=seed)
            rows.append(row)
    return pd.DataFrame(rows).sort_values(["part", "mean"], ascending=False, kind="stable", ignore_index=True)


@analysis("usefulness")
def steps(study: Context) -> Tables:
    """What does each idea of `field_dense` add, and is it T2MRec's model or its labels that fall short of it?"""
    settings = study.settings(Steps)
    needed = [*settings.steps, settings.supervision.start, settings.supervision.end]
    values = {part: judged_values(study.dataset, part, needed) for part in ("valid", "test")}
    chains = [
        one_at_a_time(own, settings.steps, settings.metrics, seed=settings.seed).assign(part=part)
        for part, own in values.items()
    ]
    taught = supervision(values, settings.supervision, seed=settings.seed)
    return {"steps": pd.concat(chains, ignore_index=True), "supervision": taught}
