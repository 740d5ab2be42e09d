"""Reading the published files against their schemas; an error names file, row and column.

``study fetch`` checks every published file by its SHA-256. What is refused here is a file of another kind.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd
import pandera.errors
import pandera.pandas as pa

from study.base import files, paths
from study.base.errors import StudyError

SERVER_TEXT = ("name", "url", "description", "author", "category", "origin")
SERVER_NULLABLE = ("license", "language", "subcategory", "system", "tools", "web_url")
SERVER_NUMBERS = ("stars_count", "watching_count", "activity")
TASK_TEXT = ("name", "description", "language", "category", "subcategory", "theme")
# Half of a pair: JSON can spell it, and no UTF-8 file (and no parquet file) can hold it.
SURROGATE = re.compile("[\ud800-\udfff]")


def _whole(least: int, *, unique: bool = False) -> pa.Column:
    """Whole numbers (no text, no true or false) that int64 holds with room for arithmetic."""
    error = f"is no whole number from {least}"
    check = pa.Check(lambda value: type(value) is int and least <= value < 2**53, element_wise=True, error=error)
    return pa.Column(object, check, unique=unique)


def _text(*, nullable: bool = False) -> pa.Column:
    check = pa.Check(
        lambda value: isinstance(value, str) and not SURROGATE.search(value), element_wise=True, error="is no text"
    )
    return pa.Column(object, check, nullable=nullable)


SERVERS = pa.DataFrameSchema(
    {
        "id": _whole(1, unique=True),
        **{name: _text() for name in SERVER_TEXT},
        **{name: _text(nullable=True) for name in SERVER_NULLABLE},
        **{name: _whole(0) for name in SERVER_NUMBERS},
        "official": pa.Column(object, pa.Check.isin(["official", "non-official"])),
    }
)
TASKS = pa.DataFrameSchema({"id": _whole(1, unique=True), **{name: _text() for name in TASK_TEXT}})


def again(file: Path) -> str:
    """How to get a file anew, as the end of a fix; the command where the file is one of a data set's."""
    if file.is_relative_to(paths.raw("")):
        return f"fetch the file again (study fetch dataset={file.relative_to(paths.raw('')).parts[0]})"
    return "get the file again from where it came"


def read_text(path: Path) -> str:
    """A UTF-8 file of the data set without its byte order mark; `StudyError` where it is not UTF-8."""
    return files.read_text(path, fix=again(path))


def read_records(path: Path, wrapper: str | None = None) -> list[dict[str, Any]]:
    """A JSON list of objects, each inside `{wrapper: ...}` where a wrapper is given."""
    try:
        records = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise StudyError(f"not valid JSON ({error})", file=path, fix=again(path)) from error
    if not isinstance(records, list) or not records:
        raise StudyError("must be a list of at least one object", file=path, fix=again(path))
    if wrapper:
        records = [record.get(wrapper) if isinstance(record, dict) else None for record in records]
    for row, record in enumerate(records):
        if not isinstance(record, dict):
            raise StudyError("must be an object", file=path, row=row, column=wrapper, fix=again(path))
    return records


def read_table(path: Path, schema: pa.DataFrameSchema, wrapper: str | None = None) -> tuple[pd.DataFrame, list[str]]:
    """Records as a checked table, its columns in the schema's order. Returns: the table (object columns, nulls as None)
    and the names of keys that the schema does not know.

    Raises StudyError: naming the first row that does not fit the schema.
    """
    table = pd.DataFrame(read_records(path, wrapper), dtype=object)
    try:
        schema.validate(table, lazy=True)
    except pandera.errors.SchemaErrors as error:
        cases = error.failure_cases.assign(row=pd.to_numeric(error.failure_cases["index"]))
        first = cases.sort_values("row", na_position="first", kind="stable").iloc[0]
        if first["check"] == "column_in_dataframe":
            raise StudyError("the key is missing", file=path, column=first["failure_case"], fix=again(path)) from None
        raise StudyError(
            f"{str(first['failure_case'])!r:.60} {first['check']} ({len(cases)} wrong in all)",
            file=path,
            row=int(first["row"]) if pd.notna(first["row"]) else None,
            column=first["column"],
            fix=f"correct the value, or {again(path)}",
        ) from None
    known = table[list(schema.columns)]
    return known.where(known.notna(), None), sorted(map(str, set(table) - set(known)))


def read_lists(path: Path) -> dict[int, list[int]]:
    """The label file: task id -> labelled server ids, as printed, in file order.

    Raises StudyError: another form of file, a repeated task, a cell that is no list of whole numbers of at least 0.
    """
    try:
        table = pd.read_csv(io.StringIO(read_text(path)), dtype=str, keep_default_na=False)
        cells = list(zip(table["task_id"], table["mcp_ids"], strict=True))
    except (ValueError, KeyError) as error:
        reason = f"not a table with the columns task_id and mcp_ids ({error})"
        raise StudyError(reason, file=path, fix=again(path)) from error
    lists: dict[int, list[int]] = {}
    for line, (task, cell) in enumerate(cells, start=2):
        try:
            number, servers = int(task), json.loads(cell)
            valid = isinstance(servers, list) and all(type(server) is int and server >= 0 for server in servers)
        except (ValueError, RecursionError):
            valid = False
        if not valid or number in lists:
            reason = f"task {number} stands twice" if valid else f"{task:.20} {cell!r:.60} is no task with server ids"
            raise StudyError(reason, file=path, row=f"line {line}", column="mcp_ids", fix='write: 7,"[12, 7, 3]"')
        lists[number] = servers
    return lists


def check_references(lists: dict[int, list[int]], tasks: Iterable[int], servers: Iterable[int], path: Path) -> None:
    """Raise unless every task has a list, every list has a server, and every id other than 0 is known.

    `lists`: from `read_lists` of `path`, which errors name.
    """
    known_tasks, known_servers = set(tasks), {*servers, 0}
    for line, (task, listed) in enumerate(lists.items(), start=2):
        reason, column = "", "mcp_ids"
        if task not in known_tasks:
            reason, column = f"task {task} is not in the task file", "task_id"
        elif unknown := set(listed) - known_servers:
            reason = f"server {min(unknown)} is not in the server file"
        elif not any(listed):
            reason = f"task {task} has no labels"
        if reason:
            fix = "remove it, or complete the files"
            raise StudyError(reason, file=path, row=f"line {line}", column=column, fix=fix)
    if without := known_tasks - lists.keys():
        reason = f"{len(without)} tasks have no row, the first is task {min(without)}"
        raise StudyError(reason, file=path, column="task_id", fix="add a row for each, or remove the tasks")
