"""Reading prepared data at a stage's border: what systems would stumble over is named here, once."""

from __future__ import annotations

from pathlib import Path

from pandas.api.types import is_integer_dtype

from study import paths
from study.data import dataset as datasets
from study.data.dataset import PREPARED, Dataset
from study.errors import StudyError

IDS = ("id", "task_id", "server_id", "position")


def load(name: str, folder: Path | None = None) -> Dataset:
    """The prepared data set `name`, checked: `study.data.dataset.load`, and no table is empty, no id stands twice,
    every text is a text and every place in a list a whole number.

    Raises StudyError: a table is missing or damaged, or not of that kind.
    """
    folder, fix = folder or paths.prepared(name), f"run: study prepare dataset={name}"
    try:
        data = datasets.load(name, folder)
    except (IndexError, KeyError, TypeError, ValueError) as error:
        raise StudyError(f"the tables do not fit together ({error})", file=folder, fix=fix) from error
    labels = folder / "labels.parquet"
    if not is_integer_dtype(datasets.read_parquet(labels, columns=PREPARED["labels"], fix=fix)["position"]):
        raise StudyError("a place in a list is no whole number", file=labels, column="position", fix=fix)
    for part, table in (("servers", data.servers), ("tasks", data.tasks)):
        file = folder / f"{part}.parquet"
        if table.empty:
            raise StudyError("the table is empty", file=file, fix=fix)
        if (twice := table["id"].duplicated()).any():
            raise StudyError("an id stands twice", file=file, row=int(twice.argmax()), column="id", fix=fix)
        for column in (column for column in PREPARED[part] if column not in IDS):
            wrong = ~table[column].map(lambda value: isinstance(value, str)).to_numpy(bool)
            if wrong.any():
                row = int(wrong.argmax())
                reason = f"{table[column].iloc[row]!r:.40} is no text"
                raise StudyError(reason, file=file, row=row, column=column, fix=fix)
    return data
