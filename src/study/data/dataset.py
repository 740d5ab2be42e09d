"""The `Dataset`: servers, tasks, and which servers are listed for which task."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import scipy.sparse as sp
from pandas.api.types import is_integer_dtype

from study.advisor.arrays import FloatArray as FloatArray
from study.advisor.arrays import IntArray as IntArray
from study.advisor.retrieval.fields import FIELD_SEPARATOR as FIELD_SEPARATOR
from study.advisor.retrieval.fields import SERVER_FIELDS as SERVER_FIELDS
from study.advisor.retrieval.fields import TASK_FIELDS as TASK_FIELDS
from study.advisor.retrieval.fields import join_values as join_values
from study.base import paths
from study.base.errors import StudyError, require_file

# The prepared tables and the columns without which they are of no use.
PREPARED = {
    "servers": ("id", "url", *SERVER_FIELDS),
    "tasks": ("id", *TASK_FIELDS, "subcategory"),
    "labels": ("task_id", "server_id", "position"),
}
NUMBERS = ("id", "task_id", "server_id", "position")


@dataclass(frozen=True)
class Dataset:
    """One data set. Rows keep the order of the source files and never change.

    Attributes:
        name: the data set's name, as in ``conf/dataset``.
        servers: one row per MCP server: id, name, url, description, ..., shape (n_servers, columns). Text is never
            null: an absent value is the empty string.
        tasks: one row per task: id, name, description, language, category, subcategory, theme.
        relevance: gain of each labelled server (M+ of eq. 1; 1.0 for binary labels), shape (n_tasks, n_servers).
        lists: row numbers of the labelled servers of each task, in listed order, without repeats or unknown ids.
    """

    name: str
    servers: pd.DataFrame
    tasks: pd.DataFrame
    relevance: sp.csr_matrix
    lists: tuple[IntArray, ...]

    @property
    def n_servers(self) -> int:
        """M, the size of the catalogue."""
        return len(self.servers)

    @property
    def n_tasks(self) -> int:
        """N, the number of tasks."""
        return len(self.tasks)

    def task_texts(self, fields: tuple[str, ...] = TASK_FIELDS) -> list[str]:
        """x_t of every task: its fields joined, empty ones left out, shape (n_tasks,)."""
        return [join_values(row) for row in zip(*(self.tasks[field] for field in fields), strict=True)]

    def server_texts(self, fields: tuple[str, ...] = SERVER_FIELDS) -> list[str]:
        """x_m of every server, shape (n_servers,)."""
        return [join_values(row) for row in zip(*(self.servers[field] for field in fields), strict=True)]


def relevance_from_lists(lists: tuple[IntArray, ...], n_servers: int) -> sp.csr_matrix:
    """Binary gains from row-number lists, shape (len(lists), n_servers), float32."""
    indptr = np.concatenate([[0], np.cumsum([len(row) for row in lists])])
    indices = np.concatenate([*lists, np.empty(0, dtype=np.int64)])
    matrix = sp.csr_matrix((np.ones(len(indices), np.float32), indices, indptr), shape=(len(lists), n_servers))
    matrix.sort_indices()
    return matrix


def build(name: str, servers: pd.DataFrame, tasks: pd.DataFrame, labels: pd.DataFrame) -> Dataset:
    """Assemble a data set from prepared tables. `labels`: columns task_id, server_id, position (from 1), only known
    ids, no repeats."""
    rows = pd.Index(tasks["id"]).get_indexer(pd.Index(labels["task_id"]))
    columns = pd.Index(servers["id"]).get_indexer(pd.Index(labels["server_id"])).astype(np.int64)
    ends = np.cumsum(np.bincount(rows, minlength=len(tasks)))
    lists = tuple(np.split(columns[np.lexsort((labels["position"], rows))], ends[:-1]))
    return Dataset(name, servers, tasks, relevance_from_lists(lists, len(servers)), lists)


def read_parquet(path: Path, *, columns: Iterable[str], fix: str) -> pd.DataFrame:
    """Read a parquet file of the study. Raises StudyError: the file is missing or damaged, or lacks one of the
    `columns`; `fix` says how it is made."""
    require_file(path, fix)
    try:
        table = pd.read_parquet(path)
    except (OSError, ValueError) as error:  # what pyarrow raises derives from these
        raise StudyError(f"not a readable parquet file ({error})", file=path, fix=fix) from error
    for column in columns:
        if column not in table:
            raise StudyError("a column is missing", file=path, column=column, fix=fix)
    return table


def load(name: str, folder: Path | None = None) -> Dataset:
    """Read the prepared data set `name`.

    Raises StudyError: a table is missing, damaged or empty; an id or a position is no whole number, a text no text; an
        id stands twice; or the labels name an id that the other tables lack.
    """
    folder, fix = folder or paths.prepared(name), f"run: study prepare dataset={name}"
    if not paths.raw(name).exists():
        fix = f"run: study fetch dataset={name}, then the same with prepare and with split in place of fetch"
    files = {part: folder / f"{part}.parquet" for part in PREPARED}
    tables = {part: read_parquet(files[part], columns=columns, fix=fix) for part, columns in PREPARED.items()}
    for part, table in tables.items():
        if table.empty and part != "labels":
            raise StudyError("the table is empty", file=files[part], fix=fix)
        for column in PREPARED[part]:
            number, values = column in NUMBERS, table[column]
            if not (is_integer_dtype(values) if number else all(isinstance(text, str) for text in values)):
                reason = f"holds something that is no {'whole number' if number else 'text'}"
                raise StudyError(reason, file=files[part], column=column, fix=fix)
    for column, part in (("task_id", "tasks"), ("server_id", "servers")):
        if tables[part]["id"].duplicated().any():
            raise StudyError("an id stands twice", file=files[part], column="id", fix=fix)
        if (unknown := ~tables["labels"][column].isin(tables[part]["id"])).any():
            reason, row = f"an id that {part}.parquet does not have", int(unknown.argmax())
            raise StudyError(reason, file=files["labels"], row=row, column=column, fix=fix)
    return build(name, tables["servers"], tables["tasks"], tables["labels"])
