"""What quality costs, under both scorings: seconds to train and milliseconds to answer, and what is not dominated."""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from study import paths
from study.analysis.report.runs import APART
from study.config.registry import all_system_settings
from study.errors import StudyError
from study.evaluation import per_task
from study.evaluation.records import read_record
from study.judging import settings, store

METRIC = "ndcg@10"
QUALITIES = {"by_labels": "fitting the released labels", "by_judgements": "being useful"}
# Processor time stands for latency: on one thread both agree where nothing else runs, and other programs slow only
# elapsed time.
COSTS = {"seconds_fit": "seconds to train", "cpu": "processor time per request (ms)"}


def non_dominated(quality: NDArray[np.float64], cost: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Whether no other system is at least as good and as cheap, and better in one of both.

    Args:
        quality, cost: shape (n,); NaN in either leaves a system out.

    Returns: shape (n,).
    """
    known = ~(np.isnan(quality) | np.isnan(cost))
    better = (quality[None, :] >= quality[:, None]) & (cost[None, :] <= cost[:, None])
    strictly = (quality[None, :] > quality[:, None]) | (cost[None, :] < cost[:, None])
    return known & ~(better & strictly & known[None, :]).any(axis=1)


def quality_by_labels(dataset: str, protocol: str) -> pd.Series:
    """NDCG@10 by the released labels: mean over seeds and test tasks, by system."""
    folder = paths.results(dataset) / "per_task" / protocol
    found = {path.name.removesuffix(".csv.xz"): per_task.read(path) for path in sorted(folder.glob("*.csv.xz"))}
    return pd.Series(
        {name: float(frame.groupby("seed")[METRIC].mean().mean()) for name, frame in found.items()}, dtype=float
    )


def quality_by_judgements(dataset: str) -> pd.Series:
    """NDCG@10 by the judgements on test topics, by system; only systems whose answers are judged."""
    scores = pd.read_csv(store.folder(dataset) / "tables" / "scores.csv")
    kept = scores[(scores["part"] == "test") & (scores["metric"] == METRIC) & scores["comparable"]]
    return kept.set_index("system")["mean"]


def training(dataset: str, protocol: str) -> pd.DataFrame:
    """Cost of training from the records, means over seeds.

    Returns: index system; columns seconds_fit, parameters.
    """
    rows = {}
    for path in sorted((paths.results(dataset) / "records" / protocol).glob("*.json")):
        record = read_record(path)
        seconds = [float(seed["seconds_fit"]) for seed in record["seeds"]]
        rows[path.stem] = {"seconds_fit": float(np.mean(seconds)), "parameters": int(record["seeds"][0]["parameters"])}
    return pd.DataFrame.from_dict(rows, orient="index").reindex(columns=["seconds_fit", "parameters"])


def pareto_table(dataset: str) -> pd.DataFrame:
    """Every system with a record, or with judged answers and a latency.

    Returns: columns system, title, family, by_labels, by_judgements, seconds_fit, parameters, milliseconds, p5, p95,
        cpu (see `latency`), and ``front_<quality>_<cost>`` for each pair: whether the system is not dominated.
        Ceilings, which read the answers, and the released lists are left out.

    Raises:
        StudyError: there is no latency yet.
    """
    protocol = settings.read(settings.Topics).protocol
    file = paths.results(dataset) / "best" / "latency.csv"
    if not file.exists():
        raise StudyError("the latencies are missing", file=file, fix="run: study usefulness run --part latency")
    # A system that is timed itself and as a saved model stands for itself.
    asked = pd.read_csv(file).drop_duplicates("system").set_index("system")
    found = pd.DataFrame(
        {"by_labels": quality_by_labels(dataset, protocol), "by_judgements": quality_by_judgements(dataset)}
    )
    found = found.join(training(dataset, protocol))
    # A system that is judged but has no run of its own is trained for the latency alone.
    found = found.join(asked[["seconds_fit"]].add_suffix("_asked")).join(asked[["milliseconds", "p5", "p95", "cpu"]])
    found["seconds_fit"] = found["seconds_fit"].fillna(found.pop("seconds_fit_asked"))
    known = all_system_settings()
    kept = [name for name in found.index if name in known and known[name].family not in APART]
    found = found.loc[kept].dropna(subset=["seconds_fit"])
    for quality in QUALITIES:
        for cost in COSTS:
            sides = (found[name].to_numpy(np.float64) for name in (quality, cost))
            found[f"front_{quality}_{cost}"] = non_dominated(*sides)
    texts = {
        "title": [str(known[name].title) for name in found.index],
        "family": [str(known[name].family) for name in found.index],
    }
    found = found.assign(**texts).rename_axis("system").reset_index()
    first = ["system", "title", "family"]
    return found[[*first, *found.columns.drop(first)]].sort_values(
        "by_judgements", ascending=False, kind="stable", ignore_index=True
    )
