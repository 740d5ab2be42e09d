"""How `field_dense` was chosen, and what each of its ideas adds, from the judged values of committed runs.

`choice_table` scores variants on the validation topics, `against` compares with every judged system on the test topics,
`one_at_a_time` adds one idea per step, and `supervision` teaches T2MRec's architecture by something else than labels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sp

from study.analysis.report.runs import read_statistics
from study.config.compose import load, plain
from study.data.dataset import Dataset, FloatArray, IntArray
from study.errors import StudyError
from study.evaluation.ranking import mask_known, tie_order, top_k
from study.evaluation.statistics import compare, compare_all, holm, mean_interval, percentile_limits, resampled
from study.judging.collection import DEPTH, Collection
from study.judging.evaluate import MOST_UNJUDGED, all_runs, per_task
from study.judging.pools import load_split
from study.usefulness.field_dense import FieldDense

Tables = Mapping[str, pd.DataFrame]


@dataclass(frozen=True)
class Choice:
    """``conf/usefulness/choice.yaml``, where every key is explained."""

    part: str
    compared: int
    variants: dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Supervision:
    """The key ``supervision`` of ``conf/usefulness/steps.yaml``."""

    start: str
    end: str
    systems: list[str]
    metric: str


@dataclass(frozen=True)
class Steps:
    """``conf/usefulness/steps.yaml``, where every key is explained."""

    steps: list[str]
    metrics: list[str]
    supervision: Supervision
    seed: int


def variants(changed: Mapping[str, Mapping[str, Any]]) -> dict[str, FieldDense]:
    """`field_dense` with some settings replaced, by the name of the variant; an unknown setting raises `StudyError`."""
    base = plain(load(["system=field_dense"]).system)["model"]
    base.pop("_target_")
    for name, changes in changed.items():
        if unknown := set(changes) - set(base):
            fix = f"one of: {sorted(base)}"
            raise StudyError(f"{name!r} sets {sorted(unknown)}", column=f"variants.{name}", fix=fix)
    return {name: FieldDense(**(base | dict(changes))) for name, changes in changed.items()}


def first_ten(
    system: FieldDense, data: Dataset, known: sp.csr_matrix, topics: pd.DataFrame, seed: int
) -> tuple[pd.DataFrame, IntArray, FloatArray]:
    """A system asked for every topic: the topics' tasks, and rows and scores of their ten best servers (b, 10)."""
    rows = pd.Series(np.arange(data.n_tasks), index=data.tasks["id"]).loc[topics["task_id"]].to_numpy()
    asked = data.tasks.iloc[rows]
    system.index(data.servers)
    scores = mask_known(system.score_requests(asked), rows, known)
    return asked, *top_k(scores, DEPTH, tie_order(data.n_servers, seed))


def answers(system: FieldDense, data: Dataset, known: sp.csr_matrix, topics: pd.DataFrame, seed: int) -> pd.DataFrame:
    """The first ten servers of each topic as a run: task_id, seed, rank, server_id."""
    _, ranked, _ = first_ten(system, data, known, topics, seed)
    frame = pd.DataFrame({"task_id": np.repeat(topics["task_id"].to_numpy(), DEPTH), "seed": seed})
    ids = data.servers["id"].to_numpy()[ranked.ravel()]
    return frame.assign(rank=np.tile(np.arange(1, DEPTH + 1), len(topics)), server_id=ids)


def choice_table(dataset: str, settings: Choice, *, seed: int = 0) -> pd.DataFrame:
    """NDCG@10 of every variant, the best first. Returns: columns variant, n (topics), ndcg@10, ci_low, ci_high, diff
    (from `field_dense`), diff_ci_low, diff_ci_high (95 %, bootstrap over topics), unjudged@10."""
    data, split = load_split(dataset)
    collection = Collection.load(dataset).part(settings.part)
    values = {}
    for name, system in variants(settings.variants).items():
        run = answers(system, data, split.known(settings.part), collection.topics, seed)
        values[name] = per_task(collection, run).set_index("task_id")
    reference = values["field_dense"]["ndcg@10"].dropna()
    rows = []
    for name, frame in values.items():
        score = frame["ndcg@10"].dropna()
        row = {"variant": name, "n": len(score), **mean_interval(score, seed=seed, name="ndcg@10")}
        row |= mean_interval(score - reference, seed=seed, name="diff", prefix="diff_")
        rows.append(row | {"unjudged@10": frame["unjudged@10"].mean()})
    return pd.DataFrame(rows).sort_values("ndcg@10", ascending=False, kind="stable", ignore_index=True)


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


def require_judged(values: Tables, names: Sequence[str], column: str) -> None:
    """Raise `StudyError` for the first system whose answers are not judged."""
    for name in names:
        if name not in values:
            raise StudyError(f"the answers of {name} are not judged", column=column, fix="run: study judge pool")


def against(dataset: str, system: str, part: str, metric: str = "ndcg@10", *, seed: int = 0) -> pd.DataFrame:
    """A system's judged answers against those of every other judged system; Holm over the family ``judged``.
    Returns: the rows of `compare_all`; `system` is the other one, so a negative difference says that it is worse."""
    values = judged_values(dataset, part)
    require_judged(values, [system], "system")
    frames = {name: frame[["task_id", "seed", metric]] for name, frame in values.items()}
    tested = compare_all(frames, system, [metric], seed, family=read_statistics().judged)
    return tested.sort_values("mean_system", ascending=False, ignore_index=True)


def paired(values: Tables, system: str, reference: str, metric: str, seed: int) -> dict[str, float | int | str]:
    """Two systems on one judged measure: difference with interval, wins, ties, losses, p (randomisation test)."""
    own, other = (values[name][["task_id", "seed", metric]] for name in (system, reference))
    found = compare(own, other, metric, seed)
    kept = ("diff", "diff_ci_low", "diff_ci_high", "wins", "ties", "losses")
    return {name: found[name] for name in kept} | {"p": found["randomisation_p"]}


def _scores(frame: pd.DataFrame, metric: str) -> pd.Series:
    return frame.groupby("task_id")[metric].mean().dropna()


def one_at_a_time(values: Tables, steps: Sequence[str], metrics: Sequence[str], *, seed: int) -> pd.DataFrame:
    """Each system of a chain (the one before it and one idea more) with its paired difference from the one before.

    Returns: columns metric, step (from 0), system, n (topics), mean, ci_low, ci_high (95 % bootstrap interval),
    before (the system of the step before), diff, diff_ci_low, diff_ci_high, wins, ties, losses, p
    (randomisation test), p_holm (over the steps of all metrics).
    """
    require_judged(values, steps, "steps")
    rows: list[dict[str, Any]] = []
    for metric, (step, name) in product(metrics, enumerate(steps)):
        score = _scores(values[name], metric)
        row = {"metric": metric, "step": step, "system": name, "n": len(score)}
        if step:
            row |= {"before": steps[step - 1], **paired(values, name, steps[step - 1], metric, seed)}
        rows.append(row | mean_interval(score, seed=seed))
    table = pd.DataFrame(rows)
    tested = table["step"] > 0
    table.loc[tested, "p_holm"] = holm(table.loc[tested, "p"].to_numpy(np.float64))
    return table


def closed(
    values: Tables, system: str, *, start: str, end: str, metric: str, seed: int, resamples: int = 10_000
) -> dict[str, float]:
    """The share of the way from `start` to `end` that a system goes: (system - start) / (end - start) of the means.

    Returns: closed, closed_ci_low, closed_ci_high (95 % bootstrap interval over topics; draws in which the end is
    not above the start are left out).
    """
    sides = pd.DataFrame({name: _scores(values[name], metric) for name in {system, start, end}}).dropna()
    over = (sides[system] - sides[start]).to_numpy(np.float64), (sides[end] - sides[start]).to_numpy(np.float64)
    (drawn,) = resampled(len(sides), seed=seed, resamples=resamples)
    gained, whole = (side[drawn].mean(axis=1) for side in over)
    low, high = percentile_limits(gained[whole > 0] / whole[whole > 0])
    mean = over[0].mean() / over[1].mean() if over[1].mean() > 0 else np.nan
    return {"closed": mean, "closed_ci_low": low, "closed_ci_high": high}


def supervision(values: Mapping[str, Tables], settings: Supervision, *, seed: int) -> pd.DataFrame:
    """Model or labels? Systems that differ from the start by what they learn from, or by their text vectors.

    Returns: columns part, system, n (topics), mean, ci_low, ci_high, diff, diff_ci_low, diff_ci_high (from the
    start), and those of `closed`; the best mean of each part first.
    """
    start, end, metric = settings.start, settings.end, settings.metric
    rows = []
    for part, own in values.items():
        require_judged(own, [start, end], "supervision")
        for name in dict.fromkeys([start, *settings.systems, end]):
            if name not in own:
                continue
            score = _scores(own[name], metric)
            row = {"part": part, "system": name, "n": len(score), **mean_interval(score, seed=seed)}
            if name != start:
                found = paired(own, name, start, metric, seed)
                row |= {key: found[key] for key in ("diff", "diff_ci_low", "diff_ci_high")}
                row |= closed(own, name, start=start, end=end, metric=metric, seed=seed)
            rows.append(row)
    table = pd.DataFrame(rows)
    return table.sort_values(["part", "mean"], ascending=False, kind="stable", ignore_index=True)
