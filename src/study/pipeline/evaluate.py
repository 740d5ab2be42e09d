"""Stage `evaluate`: per-task values computed again from the kept top tens, so that a new metric trains nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from omegaconf import DictConfig

from study import paths
from study.data import dataset as datasets
from study.data import split_files
from study.data.dataset import Dataset
from study.data.splits import Split
from study.errors import StudyError
from study.evaluation import per_task
from study.evaluation.metrics import per_task as measure
from study.evaluation.runs import CUTOFFS, KEPT
from study.files import write_csv
from study.pipeline.run import Outputs

# Columns of a kept run.
TOP = ("task_id", "seed", "rank", "server_id")


def measured(top: pd.DataFrame, data: Dataset, split: Split) -> pd.DataFrame:
    """The per-task table of a kept run.

    Args:
        top: columns task_id, seed, rank (from 1), server_id; the best ten of the test tasks.
    """
    tasks = split.tasks("test")
    task_ids = data.tasks["id"].to_numpy()[tasks]
    place = pd.Series(np.arange(len(tasks)), index=task_ids)
    server = pd.Series(np.arange(data.n_servers), index=data.servers["id"])
    tables = []
    for seed, part in top.groupby("seed"):
        ranked = np.full((len(tasks), KEPT), -1, dtype=np.int64)
        ranked[place.loc[part["task_id"]], part["rank"] - 1] = server.loc[part["server_id"]]
        tables.append(per_task.table(task_ids, int(str(seed)), measure(ranked, split.test[tasks], ks=CUTOFFS)))
    return pd.concat(tables)


def evaluate(config: DictConfig) -> list[Path]:
    """Rewrite the per-task files of a data set from its top tens; returns them."""
    dataset = config.dataset.name
    data, written = datasets.load(dataset), []
    for path in sorted((paths.results(dataset) / "top10").glob("*/*.parquet")):
        protocol, system = path.parent.name, path.stem
        split = split_files.load(paths.splits(dataset) / f"{protocol}.parquet", data)
        written.append(Outputs.of(dataset, protocol, system).per_task)
        fix = f"run: study run system={system} protocol={protocol} dataset={dataset}"
        top = datasets.read_parquet(path, columns=TOP, fix=fix)
        for column, known in (("task_id", data.tasks["id"].to_numpy()[split.tasks("test")]),
                              ("server_id", data.servers["id"]), ("rank", range(1, KEPT + 1))):  # fmt: skip
            unknown = ~top[column].isin(known).to_numpy()
            if unknown.any():
                raise StudyError("a value that the data set or its split does not have", file=path,
                                 row=int(np.argmax(unknown)), column=column, fix=fix)  # fmt: skip
        write_csv(written[-1], measured(top, data, split))
    if not written:
        raise StudyError("there are no runs to evaluate", file=paths.results(dataset) / "top10", fix="run: make repro")
    return written
