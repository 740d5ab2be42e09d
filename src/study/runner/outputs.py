"""The committed files of one row: per-task values, top tens, record."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from study import paths
from study.data.dataset import Dataset
from study.data.splits import Split

# Of the top tens of runs under these protocols only the relevant servers are kept, with their places, a tenth of the
# size. Every metric of relevance follows from them. The judged collection and the audit read those of `cold`.
HITS_ALONE = ("cold_grouped", "warm", "loo", "loo99")


@dataclass(frozen=True)
class Outputs:
    """The committed files of one system under one protocol."""

    per_task: Path
    top10: Path
    record: Path

    @classmethod
    def of(cls, dataset: str, protocol: str, system: str) -> Outputs:
        """The files of (dataset, protocol, system)."""
        base = paths.results(dataset)
        return cls(
            base / "per_task" / protocol / f"{system}.csv.xz",
            base / "top10" / protocol / f"{system}.parquet",
            base / "records" / protocol / f"{system}.json",
        )


def compact(top: pd.DataFrame) -> pd.DataFrame:
    """The run with the smallest types that hold it; the scores, which differ in every digit, are left out."""
    return top.drop(columns="score").astype({"task_id": "int32", "seed": "int16", "rank": "int8", "server_id": "int32"})


def relevant(top: pd.DataFrame, data: Dataset, split: Split) -> pd.DataFrame:
    """The rows of a run whose server is relevant to its task in the test part. `top`: columns task_id, seed, rank,
    server_id."""
    rows, columns = split.test.nonzero()
    known = pd.MultiIndex.from_arrays([data.tasks["id"].to_numpy()[rows], data.servers["id"].to_numpy()[columns]])
    return top[pd.MultiIndex.from_frame(top[["task_id", "server_id"]]).isin(known)]
