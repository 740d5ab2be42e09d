"""Stage `evaluate`: per-task values computed again from the kept top tens, so that a new metric trains nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sp
from omegaconf import DictConfig

from study import paths
from study.data import dataset as datasets
from study.data import splits
from study.data.dataset import Dataset, IntArray
from study.data.splits import Split
from study.errors import StudyError
from study.evaluation import per_task
from study.evaluation.metrics import per_task as measure
from study.evaluation.runs import CUTOFFS, KEPT
from study.runner.row_store import Row, list_rows, read_row, rows_folder, write_rows


def measured(
    top: pd.DataFrame,
    seeds: Sequence[int],
    data: Dataset,
    split: Split,
    *,
    part: str = "test",
    file: Path | None = None,
    fix: str = "rank the ten best servers of each task of the part",
) -> pd.DataFrame:
    """The per-task table of a kept run. `top`: columns task_id, seed, rank (from 1), server_id; the best ten of the
    part's tasks, or the relevant ones among them. `seeds`: of the run; one without any hit has no row.

    Raises StudyError, with `file` and `fix`: a task, server or rank that there is not, or a rank that is there twice.
    """
    tasks = split.tasks(part)
    task_ids = data.tasks["id"].to_numpy()[tasks]
    for column, known in (("task_id", task_ids), ("server_id", data.servers["id"]), ("rank", range(1, KEPT + 1))):
        unknown = ~top[column].isin(known).to_numpy()
        if unknown.any():
            row = int(np.argmax(unknown))
            reason = f"{top[column].iloc[row]} is no {column.replace('_', ' ')} of {data.name}'s {part} part"
            raise StudyError(reason, file=file, row=row, column=column, fix=fix)
    if (twice := top.duplicated(["task_id", "seed", "rank"]).to_numpy()).any():
        raise StudyError("a rank stands twice", file=file, row=int(np.argmax(twice)), column="rank", fix=fix)
    place = pd.Series(np.arange(len(tasks)), index=task_ids)
    server = pd.Series(np.arange(data.n_servers), index=data.servers["id"])
    tables = []
    for seed in seeds:
        own = top[top["seed"] == seed]
        ranked = np.full((len(tasks), KEPT), -1, dtype=np.int64)
        ranked[place.loc[own["task_id"]], own["rank"] - 1] = server.loc[own["server_id"]]
        relevant = split.part(part)[tasks]
        tables.append(per_task.table(task_ids, seed, measure(without_gaps(ranked, relevant), relevant, ks=CUTOFFS)))
    return pd.concat(tables)


def without_gaps(ranked: IntArray, relevant: sp.csr_matrix) -> IntArray:
    """Rankings whose misses were left out, with servers that are not relevant to the task in their places.

    `ranked`: server rows, shape (b, k); -1 where a place is unfilled, which those after the last hit stay.
    `relevant`: shape (b, n_servers).
    """
    filled = ranked.copy()
    later = np.maximum.accumulate((ranked >= 0)[:, ::-1], axis=1)[:, ::-1]
    gaps = (ranked < 0) & later
    for row in np.flatnonzero(gaps.any(axis=1)):
        taken = np.union1d(relevant[row].indices, ranked[row])
        misses = np.setdiff1d(np.arange(len(taken) + ranked.shape[1]), taken)
        filled[row, gaps[row]] = misses[: gaps[row].sum()]
    return filled


def evaluate(config: DictConfig) -> int:
    """Compute the per-task values of every row of a data set again, from its top ten. Returns: how many rows there are.

    Raises StudyError: there is none, or a top ten holds what the data set or its split does not have.
    """
    dataset = config.dataset.name
    data, rows = datasets.load(dataset), {}
    for protocol, system in list_rows(dataset):
        split = splits.load(paths.splits(dataset) / f"{protocol}.parquet", data)
        _, top, record = read_row(dataset, protocol, system)
        seeds = [int(facts["seed"]) for facts in record["seeds"]]
        about: dict[str, Any] = {"file": rows_folder(dataset) / "top10" / protocol}
        about["fix"] = f"run: study run system={system} protocol={protocol} dataset={dataset}"
        rows[protocol, system] = Row(measured(top, seeds, data, split, **about), top, record)
    if not rows:
        raise StudyError("there are no runs to evaluate", file=rows_folder(dataset), fix="run: make repro")
    write_rows(dataset, rows)
    return len(rows)
