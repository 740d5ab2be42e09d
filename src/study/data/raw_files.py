"""Reading the published files against their schemas; an error names file, row and column.

``study fetch`` checks every published file by its SHA-256. What is refused here is a file of another kind.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Annotated, Any, Literal

import pandas as pd
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, conlist, create_model

from study.base import files, paths
from study.base.errors import StudyError

SERVER_TEXT = ("name", "url", "description", "author", "category", "origin")
SERVER_NULLABLE = ("license", "language", "subcategory", "system", "tools", "web_url")
SERVER_NUMBERS = ("stars_count", "watching_count", "activity")
TASK_TEXT = ("name", "description", "language", "category", "subcategory", "theme")
# Whole numbers (no text, no true or false) that int64 holds with room for arithmetic.
ID, COUNT = (Annotated[int, Field(ge=least, lt=2**53, strict=True)] for least in (1, 0))


def _object(**fields: Any) -> type[BaseModel]:
    """The form of a JSON object with these keys, and perhaps others."""
    return create_model("Object", __config__=ConfigDict(strict=True, extra="allow"), **fields)


_SERVER: dict[str, Any] = dict.fromkeys(SERVER_TEXT, str) | dict.fromkeys(SERVER_NULLABLE, str | None)
_SERVER |= dict.fromkeys(SERVER_NUMBERS, COUNT) | {"official": Literal["official", "non-official"]}
SERVERS = TypeAdapter(conlist(_object(id=ID, **_SERVER), min_length=1))
TASKS = TypeAdapter(conlist(_object(task_raw=_object(id=ID, **dict.fromkeys(TASK_TEXT, str))), min_length=1))
RECORDS = TypeAdapter(conlist(dict[str, Any], min_length=1))
SERVER_IDS = TypeAdapter(list[int])


def again(file: Path) -> str:
    """How to get a file anew, as the end of a fix; the command where the file is one of a data set's."""
    if file.is_relative_to(paths.raw("")):
        return f"fetch the file again (study fetch dataset={file.relative_to(paths.raw('')).parts[0]})"
    return "get the file again from where it came"


def read_text(path: Path) -> str:
    """A UTF-8 file of the data set without its byte order mark; `StudyError` where it is not UTF-8."""
    return files.read_text(path, fix=again(path))


def read_records(path: Path, form: TypeAdapter[Any] = RECORDS) -> Any:
    """A JSON list of objects. Raises StudyError: naming the first value that is not of this form."""
    try:
        return form.validate_json(read_text(path))
    except ValidationError as error:
        first = error.errors()[0]
        row, *keys = first["loc"] or (None,)
        reason, fix = f"{first['msg']}, not {first['input']!r:.60}", f"correct the value, or {again(path)}"
        column = str(keys[-1]) if keys else None
        raise StudyError(reason, file=path, row=row, column=column, fix=fix) from error


def read_table(path: Path, form: TypeAdapter[Any]) -> tuple[pd.DataFrame, list[str]]:
    """`SERVERS` or `TASKS` as a checked table, its columns in the form's order. Returns: the table (object columns,
    nulls as None) and the names of keys that the form does not know."""
    records = [record.task_raw if form is TASKS else record for record in read_records(path, form)]
    table = pd.DataFrame([record.model_dump() for record in records], dtype=object)
    if (twice := table["id"].duplicated()).any():
        raise StudyError("an id stands twice", file=path, row=int(twice.argmax()), column="id", fix=again(path))
    columns = list(type(records[0]).model_fields)
    return table[columns], sorted(map(str, set(table) - {*columns}))


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
        reason = f"{task:.20} {cell!r:.60} is no task with server ids"
        try:
            number, servers = int(task), SERVER_IDS.validate_json(cell, strict=True)
            reason = f"task {number} stands twice" if number in lists else ""
        except ValueError:
            pass
        if reason:
            raise StudyError(reason, file=path, row=f"line {line}", column="mcp_ids", fix='write: 7,"[12, 7, 3]"')
        lists[number] = servers
    return lists


def check_references(lists: dict[int, list[int]], tasks: set[int], servers: set[int], path: Path) -> None:
    """Raise unless every task has a list, every list has a server, and every id other than 0 is known. `lists`: from
    `read_lists` of `path`, which errors name."""
    ids = servers | {0}
    for line, (task, listed) in enumerate(lists.items(), start=2):
        reason, column = "", "mcp_ids"
        if task not in tasks:
            reason, column = f"task {task} is not in the task file", "task_id"
        elif unknown := set(listed) - ids:
            reason = f"server {min(unknown)} is not in the server file"
        elif not any(listed):
            reason = f"task {task} has no labels"
        if reason:
            fix = "remove it, or complete the files"
            raise StudyError(reason, file=path, row=f"line {line}", column=column, fix=fix)
    if without := tasks - lists.keys():
        reason = f"{len(without)} tasks have no row, the first is task {min(without)}"
        raise StudyError(reason, file=path, column="task_id", fix="add a row for each, or remove the tasks")
