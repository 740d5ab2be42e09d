"""The table that everything is computed from: one row per task and seed, one column per measure and cutoff.

Columns: task_id, seed, then ``<metric>@<k>`` (``ndcg@10``), values in [0, 1], NaN for a task without relevant servers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path

import pandas as pd

from study.base.errors import StudyError
from study.base.files import read_csv
from study.evaluation import metrics

KEYS = ["task_id", "seed"]
CELL = ["dataset", "protocol", "system", "profile"]
AGGREGATE_COLUMNS = [*CELL, "seed", "metric", "k", "value"]


def table(task_ids: Iterable[object], seed: int, values: pd.DataFrame) -> pd.DataFrame:
    """The per-task table of one seed. `values`: from `metrics.per_task`, one row for each of `task_ids`."""
    keys = pd.DataFrame({"task_id": list(task_ids), "seed": seed})
    if len(keys) != len(values):
        raise StudyError(f"{len(keys)} task ids for {len(values)} rows of values", fix="score every task once")
    return check(pd.concat([keys, values.reset_index(drop=True)], axis=1))


def read(path: Path) -> pd.DataFrame:
    """Read and check a per-task file."""
    return check(read_csv(path, fix="run the system again"), file=path)


def measure(column: str) -> tuple[str, int] | None:
    """Metric and cutoff of a column name, None where it is not one: ``ndcg@10`` is ("ndcg", 10)."""
    name, _, cutoff = column.partition("@")
    return (name, int(cutoff)) if name in metrics.PER_TASK and cutoff.isdecimal() and int(cutoff) > 0 else None


def check(frame: pd.DataFrame, file: Path | None = None, *, measures: Collection[str] = ()) -> pd.DataFrame:
    """Return the frame if it is a per-task table of the same tasks for every seed; raise `StudyError` otherwise.

    `measures`: columns that may stand beside ``<metric>@<k>``, with values in [0, 1] as well.
    """
    fix = "run the system again"
    if missing := [key for key in KEYS if key not in frame]:
        raise StudyError("the per-task table lacks a column", file=file, column=missing[0], fix=fix)
    values = frame.drop(columns=KEYS)
    for column in values:
        if column not in measures and measure(str(column)) is None:
            known = ", ".join(metrics.PER_TASK)
            raise StudyError("not a metric@k column", file=file, column=str(column), fix=f"use one of {known}, then @k")
        outside = ~(values[column].isna() | values[column].between(0, 1 + 1e-9)).to_numpy()
        if outside.any():
            row = int(outside.argmax())
            raise StudyError("a value outside [0, 1]", file=file, row=row, column=str(column), fix=fix)
    if (repeated := frame.duplicated(KEYS).to_numpy()).any():
        raise StudyError("a task occurs twice for one seed", file=file, row=int(repeated.argmax()), fix=fix)
    if (frame["task_id"].value_counts() != frame["seed"].nunique()).any():
        raise StudyError("the seeds do not hold the same tasks", file=file, column="seed", fix=fix)
    return frame


def aggregate(frame: pd.DataFrame, dataset: str, protocol: str, system: str, profile: str) -> pd.DataFrame:
    """Means over the tasks that have relevant servers, one row per seed, metric and cutoff (`AGGREGATE_COLUMNS`).
    ``f1_of_means`` is added for every cutoff at which both precision and recall are present."""
    check(frame)
    rows = []
    for seed, part in frame.groupby("seed"):
        means = {measure(str(column)): float(mean) for column, mean in part.drop(columns=KEYS).mean().items()}
        for k in sorted({key[1] for key in means if key}):
            if ("precision", k) in means and ("recall", k) in means:
                pair = means["precision", k], means["recall", k]
                means["f1_of_means", k] = float(metrics.harmonic_mean(*pair))
        rows += [(dataset, protocol, system, profile, seed, *key, mean) for key, mean in means.items() if key]
    order = {name: number for number, name in enumerate(metrics.NAMES)}
    rows.sort(key=lambda row: (row[4], order[row[5]], row[6]))
    return pd.DataFrame(rows, columns=AGGREGATE_COLUMNS)


def overall(frame: pd.DataFrame) -> pd.DataFrame:
    """Mean and standard deviation over seeds of rows of `aggregate`, in order of appearance: columns dataset, protocol,
    system, profile, metric, k, mean, sd, n_seeds. sd has ddof 1 and is NaN for a single seed."""
    grouped = frame.groupby([*CELL, "metric", "k"], sort=False)["value"]
    return grouped.agg(mean="mean", sd="std", n_seeds="size").reset_index()
