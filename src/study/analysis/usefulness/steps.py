"""`best` one idea at a time, and T2MRec's architecture under other supervision, both from committed judged values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from study.errors import StudyError
from study.evaluation.multiplicity import holm
from study.evaluation.significance import bootstrap_interval, compare
from study.judging.collection import Collection
from study.judging.evaluate import MOST_UNJUDGED, all_runs, per_task

Tables = Mapping[str, pd.DataFrame]


def judged(dataset: str, part: str) -> dict[str, pd.DataFrame]:
    """Judged values of every system on the topics of a part (columns of `evaluate.per_task`), where at most 5 % of its
    answers are unjudged.
    """
    collection, found = Collection.load(dataset).part(part), {}
    topics = set(collection.topics["task_id"])
    for name, run in all_runs(dataset).items():
        if topics <= set(run["task_id"]):
            frame = per_task(collection, run[run["task_id"].isin(topics)])
            if frame["unjudged@10"].mean() <= MOST_UNJUDGED:
                found[name] = frame
    return found


def paired(values: Tables, system: str, reference: str, metric: str, seed: int) -> dict[str, float | int | str]:
    """`study.evaluation.significance.compare` of two systems on one judged measure."""
    own, other = (values[name][["task_id", "seed", metric]] for name in (system, reference))
    return compare(own, other, metric, seed)


def one_at_a_time(values: Tables, steps: Sequence[str], metrics: Sequence[str], *, seed: int) -> pd.DataFrame:
    """Each system of a chain with its paired difference from the one before it.

    Args:
        values: judged values by system, all of one part.
        steps: systems, each the one before it and one idea more.

    Returns: columns metric, step (from 0), system, topics, mean, low, high (95 % bootstrap interval over topics),
        before (the system of the step before), difference, difference_low, difference_high, wins, ties, losses, p
        (randomisation test), p_holm (over the steps of all metrics).

    Raises:
        StudyError: a step's answers are not judged.
    """
    rows = []
    for name in steps:
        if name not in values:
            raise StudyError(f"the answers of {name} are not judged", column="steps", fix="study judge pool, packets")
    for metric in metrics:
        for step, name in enumerate(steps):
            score = values[name].groupby("task_id")[metric].mean().dropna().to_numpy(np.float64)
            low, high = bootstrap_interval(score, seed=seed)
            row = {
                "metric": metric,
                "step": step,
                "system": name,
                "topics": len(score),
                "mean": score.mean(),
                "low": low,
                "high": high,
            }
            if step:
                found = paired(values, name, steps[step - 1], metric, seed)
                row |= {
                    "before": steps[step - 1],
                    "difference": found["difference"],
                    "difference_low": found["ci_low"],
                    "difference_high": found["ci_high"],
                    "wins": found["wins"],
                    "ties": found["ties"],
                    "losses": found["losses"],
                    "p": found["randomisation_p"],
                }
            rows.append(row)
    table = pd.DataFrame(rows)
    tested = table["step"] > 0
    table.loc[tested, "p_holm"] = holm(table.loc[tested, "p"].to_numpy(np.float64))
    return table


def closed(
    values: Tables, system: str, *, floor: str, goal: str, metric: str, seed: int, resamples: int = 10_000
) -> dict[str, float]:
    """The share of the way from `floor` to `goal` that a system goes: (system - floor) / (goal - floor) of the means.

    Returns: closed, low, high (95 % bootstrap interval over topics; draws in which the goal is not above the floor are
        left out).
    """
    sides = pd.DataFrame({name: values[name].groupby("task_id")[metric].mean() for name in {system, floor, goal}})
    sides = sides.dropna()
    over = (sides[system] - sides[floor]).to_numpy(np.float64), (sides[goal] - sides[floor]).to_numpy(np.float64)
    drawn = np.random.default_rng(seed).integers(len(sides), size=(resamples, len(sides)))
    gained, whole = (side[drawn].mean(axis=1) for side in over)
    shares = gained[whole > 0] / whole[whole > 0]
    low, high = np.quantile(shares, [0.025, 0.975]) if len(shares) else (np.nan, np.nan)
    whole_mean = over[1].mean()
    return {"closed": over[0].mean() / whole_mean if whole_mean > 0 else np.nan, "low": float(low), "high": float(high)}


def supervision(
    values: Mapping[str, Tables], systems: Sequence[str], *, floor: str, goal: str, metric: str, seed: int
) -> pd.DataFrame:
    """Model or labels? Systems that differ from `floor` by what they learn from, or by their text vectors.

    Args:
        values: part -> judged values by system.

    Returns: one row per part and system that is judged: part, system, topics, mean, low, high, difference,
        difference_low, difference_high (from `floor`), closed, closed_low, closed_high (see `closed`). The best mean of
        each part first.

    Raises:
        StudyError: floor or goal is not judged.
    """
    rows = []
    for part, own in values.items():
        for name in (floor, goal):
            if name not in own:
                raise StudyError(f"the answers of {name} are not judged", column="supervision", fix="study judge pool")
        for name in dict.fromkeys([floor, *systems, goal]):
            if name not in own:
                continue
            score = own[name].groupby("task_id")[metric].mean().dropna().to_numpy(np.float64)
            low, high = bootstrap_interval(score, seed=seed)
            row = {"part": part, "system": name, "topics": len(score), "mean": score.mean(), "low": low, "high": high}
            if name != floor:
                found = paired(own, name, floor, metric, seed)
                share = closed(own, name, floor=floor, goal=goal, metric=metric, seed=seed)
                row |= {
                    "difference": found["difference"],
                    "difference_low": found["ci_low"],
                    "difference_high": found["ci_high"],
                    "closed": share["closed"],
                    "closed_low": share["low"],
                    "closed_high": share["high"],
                }
            rows.append(row)
    table = pd.DataFrame(rows)
    return table.sort_values(["part", "mean"], ascending=False, kind="stable", ignore_index=True)
