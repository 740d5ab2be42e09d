"""Variants of `best` on the judged validation topics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from study.config.compose import load, plain
from study.data.dataset import Dataset
from study.errors import StudyError
from study.evaluation.ranking import mask_known, tie_order, top_k
from study.evaluation.significance import bootstrap_interval, compare_all
from study.judging.collection import DEPTH, Collection
from study.judging.evaluate import MOST_UNJUDGED, all_runs, per_task
from study.judging.topics import load_split
from study.usefulness.field_dense import FieldDense


def variants(settings: Mapping[str, Any]) -> dict[str, FieldDense]:
    """The systems of ``conf/best/choice.yaml``: `best` with some settings replaced.

    Raises:
        StudyError: a variant names a setting that `best` does not have.
    """
    base = {key: value for key, value in plain(load(["system=best"]).system)["model"].items() if key != "_target_"}
    built = {}
    for name, changes in settings["variants"].items():
        if unknown := set(changes) - set(base):
            raise StudyError(
                f"{name!r} sets {sorted(unknown)}", column=f"variants.{name}", fix=f"one of: {sorted(base)}"
            )
        built[name] = FieldDense(**(base | changes))
    return built


def answers(system: FieldDense, data: Dataset, known: Any, topics: pd.DataFrame, seed: int) -> pd.DataFrame:
    """The first ten servers of each topic as a run: task_id, seed, rank, server_id."""
    rows = pd.Series(np.arange(data.n_tasks), index=data.tasks["id"]).loc[topics["task_id"]].to_numpy()
    system.index(data.servers)
    scores = mask_known(system.score_requests(data.tasks.iloc[rows]), rows, known)
    ranked, _ = top_k(scores, DEPTH, tie_order(data.n_servers, seed))
    frame = pd.DataFrame({"task_id": np.repeat(topics["task_id"].to_numpy(), DEPTH), "seed": seed})
    return frame.assign(
        rank=np.tile(np.arange(1, DEPTH + 1), len(rows)), server_id=data.servers["id"].to_numpy()[ranked.ravel()]
    )


def table(dataset: str, settings: Mapping[str, Any], *, seed: int = 0) -> pd.DataFrame:
    """NDCG@10 of every variant, with its difference from `best`.

    Returns: columns variant, topics, ndcg@10, low, high, difference, difference_low, difference_high (95 %, bootstrap
        over topics), unjudged@10; the best first.
    """
    data, split = load_split(dataset)
    collection = Collection.load(dataset).part(str(settings["part"]))
    values = {}
    for name, system in variants(settings).items():
        run = answers(system, data, split.known(str(settings["part"])), collection.topics, seed)
        values[name] = per_task(collection, run).set_index("task_id")
    reference = values["best"]["ndcg@10"].dropna()
    rows = []
    for name, frame in values.items():
        score = frame["ndcg@10"].dropna()
        difference = (score - reference).to_numpy(np.float64)
        low, high = bootstrap_interval(score.to_numpy(np.float64), seed=seed)
        less, more = bootstrap_interval(difference, seed=seed)
        rows.append(
            {
                "variant": name,
                "topics": len(score),
                "ndcg@10": score.mean(),
                "low": low,
                "high": high,
                "difference": difference.mean(),
                "difference_low": less,
                "difference_high": more,
                "unjudged@10": frame["unjudged@10"].mean(),
            }
        )
    return pd.DataFrame(rows).sort_values("ndcg@10", ascending=False, kind="stable", ignore_index=True)


def against(dataset: str, system: str, part: str, metric: str = "ndcg@10", *, seed: int = 0) -> pd.DataFrame:
    """A system's judged answers against those of every system with at most 5 % of unjudged answers: one family, Holm.

    Returns: one row per other system, see `study.evaluation.significance.compare_all`: `system` is the other one, so a
        negative difference says that it is worse.

    Raises:
        StudyError: the system's own answers are not judged.
    """
    collection = Collection.load(dataset).part(part)
    frames = {}
    for name, run in all_runs(dataset).items():
        asked = run[run["task_id"].isin(collection.topics["task_id"])]
        if not len(asked):
            continue
        frame = per_task(collection, asked)
        if frame["unjudged@10"].mean() <= MOST_UNJUDGED:
            frames[name] = frame[["task_id", "seed", metric]]
    if system not in frames:
        raise StudyError(f"the answers of {system} are not judged", fix="study judge pool, packets, collect")
    return compare_all(frames, system, [metric], seed).sort_values("mean_system", ascending=False, ignore_index=True)
