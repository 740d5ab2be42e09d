"""Reading the published files strictly, and the schemas of raw and prepared tables: an error names the cell."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pandera.errors
import pandera.pandas as pa

from study import paths
from study.errors import StudyError, require_file

# The longest text of Task2MCP has 2,645 characters; a text longer than this is a damaged or hostile file.
MAX_TEXT = 1_000_000
# Ids and counts are kept as int64; the bound leaves room for arithmetic on them.
MAX_NUMBER = 2**53
# 100,000 ids of ten digits and their separators; the longest list of Task2MCP has 108 characters.
MAX_CELL = 1_200_000
# Half of a pair: JSON can spell it, and no UTF-8 file (and no parquet file) can hold it.
SURROGATE = re.compile("[\ud800-\udfff]")

SERVER_TEXT = ("name", "url", "description", "author", "category", "official", "origin")
SERVER_NULLABLE = ("license", "language", "subcategory", "system", "tools", "web_url")
SERVER_NUMBERS = ("stars_count", "watching_count", "activity")
TASK_TEXT = ("name", "description", "language", "category", "subcategory", "theme")
OFFICIAL = ("official", "non-official")


def _cells(test: Callable[[object], bool], reason: str) -> pa.Check:
    # Nulls are tested too (ignore_na): pandas would count a NaN in a text column as an allowed null.
    return pa.Check(lambda values: values.map(test).astype(bool), error=reason, ignore_na=False)


def _column(*checks: pa.Check, unique: bool = False) -> pa.Column:
    return pa.Column(object, list(checks), nullable=True, unique=unique)


def whole(low: int) -> pa.Check:
    """A whole number (not text, not true or false) of at least `low`."""
    return _cells(
        lambda value: type(value) is int and low <= value <= MAX_NUMBER,
        f"must be a whole number from {low} to {MAX_NUMBER}",
    )


def text(*, nullable: bool = False) -> pa.Check:
    """Text of at most `MAX_TEXT` characters."""

    def test(value: object) -> bool:
        if not isinstance(value, str):
            return nullable and value is None
        return len(value) <= MAX_TEXT

    either = " or null" if nullable else ""
    return _cells(test, f"must be text of at most {MAX_TEXT} characters{either}")


def one_of(values: Sequence[str]) -> pa.Check:
    """One of the given texts."""
    return _cells(lambda value: value in values, "must be one of: " + ", ".join(values))


RAW_SERVERS = pa.DataFrameSchema(
    {
        "id": _column(whole(1), unique=True),
        **{name: _column(text()) for name in SERVER_TEXT if name != "official"},
        **{name: _column(text(nullable=True)) for name in SERVER_NULLABLE},
        **{name: _column(whole(0)) for name in SERVER_NUMBERS},
        "official": _column(one_of(OFFICIAL)),
    }
)
RAW_TASKS = pa.DataFrameSchema({"id": _column(whole(1), unique=True), **{name: _column(text()) for name in TASK_TEXT}})
RAW_LABELS = pa.DataFrameSchema({"task_id": _column(whole(1), unique=True), "mcp_ids": _column()})

_TEXT = pa.Column(str)
SERVERS = pa.DataFrameSchema(
    {
        "id": pa.Column("int64", pa.Check.ge(1), unique=True),
        **dict.fromkeys((*SERVER_TEXT, *SERVER_NULLABLE), _TEXT),
        **{name: pa.Column("int64", pa.Check.ge(0)) for name in SERVER_NUMBERS},
        **dict.fromkeys(
            ("category_clean", "subcategory_clean", "license_clean", "language_tokens", "system_tokens"), _TEXT
        ),
        "is_official": pa.Column(bool),
    },
    strict=True,
)
TASKS = pa.DataFrameSchema(
    {
        "id": pa.Column("int64", pa.Check.ge(1), unique=True),
        **dict.fromkeys(TASK_TEXT, _TEXT),
        **dict.fromkeys(("category_clean", "subcategory_clean", "theme_clean", "language_tokens"), _TEXT),
    },
    strict=True,
)
LABELS = pa.DataFrameSchema(
    {"task_id": pa.Column("int64"), "server_id": pa.Column("int64"), "position": pa.Column("int64", pa.Check.ge(1))},
    unique=["task_id", "server_id"],
    strict=True,
)


def again(file: str | Path) -> str:
    """How to get a data file anew, as the end of a fix: with the command where the file is one of a data set's."""
    for folder in (paths.raw(""), paths.prepared("")):
        if Path(file).is_relative_to(folder) and (parts := Path(file).relative_to(folder).parts[:-1]):
            return f"fetch the file again (study fetch dataset={parts[0]})"
    return "get the file again from where it came"


def validate(schema: pa.DataFrameSchema, table: pd.DataFrame, file: str | Path, rows: Sequence[str] = ()) -> None:
    """Check `table` against `schema`.

    `file`: named in the error.
    `rows`: where each row is, such as "line 2"; record numbers from 0 where not given.
    Raises StudyError: naming the first violation by row, and how many cells are wrong in all.
    """
    try:
        schema.validate(table, lazy=True)
    except pandera.errors.SchemaErrors as error:
        cases = error.failure_cases
        missing = cases[cases["check"] == "column_in_dataframe"]
        if len(missing):
            raise StudyError(
                "a column is missing", file=file, column=str(missing.iloc[0]["failure_case"]), fix="add the column"
            ) from None
        cases = cases[pd.to_numeric(cases["index"]).notna()]
        if not len(cases):
            raise StudyError(f"the table does not fit its schema ({error.args[0]})", file=file) from None
        first = cases.loc[pd.to_numeric(cases["index"]).idxmin()]
        row = int(first["index"])
        value = repr(first["failure_case"])
        shown = value if len(value) <= 60 else f"{value[:57]}..."
        reason = first["check"]
        if reason == "field_uniqueness":
            codes = pd.factorize(table[first["column"]])[0]
            same = next(other for other, code in enumerate(codes) if code == codes[row] and other != row)
            reason = f"occurs {f'at {rows[same]}' if rows else f'in row {same}'} too"
        raise StudyError(
            f"{shown} {reason} ({len(cases)} wrong in all)",
            file=file,
            row=rows[row] if rows else row,
            column=str(first["column"]),
            fix=f"correct the value, or {again(file)}",
        ) from None


def read_text(path: Path) -> str:
    """A whole UTF-8 file, or a `StudyError` that says at which line it is not UTF-8."""
    content = require_file(path, again(path)).read_bytes()
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise StudyError(
            f"not UTF-8 (line {line}, byte {error.start} of the file)",
            file=path,
            fix=f"save it as UTF-8, or {again(path)}",
        ) from error


def _no_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entry = dict(pairs)
    if len(entry) < len(pairs):
        raise ValueError(f"a key is given twice in one object: {[key for key, _ in pairs]}")
    return entry


def read_records(path: Path, wrapper: str | None = None) -> list[dict[str, Any]]:
    """A JSON list of objects, each inside `{wrapper: ...}` where a wrapper is given."""
    try:
        records = json.loads(read_text(path), object_pairs_hook=_no_repeats)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise StudyError(f"not valid JSON ({place}: {error.msg})", file=path, fix=again(path)) from error
    except (ValueError, RecursionError) as error:
        raise StudyError(f"JSON that cannot be accepted ({error})", file=path, fix=again(path)) from error
    if not isinstance(records, list) or not records:
        raise StudyError("must be a list of at least one object", file=path, fix=again(path))
    rows = []
    for row, record in enumerate(records):
        inner = record.get(wrapper) if wrapper and isinstance(record, dict) else record
        if not isinstance(inner, dict):
            raise StudyError("must be an object", file=path, row=row, column=wrapper, fix=again(path))
        rows.append(inner)
    return rows


def read_table(path: Path, schema: pa.DataFrameSchema, wrapper: str | None = None) -> tuple[pd.DataFrame, list[str]]:
    """Records as a checked table, its columns in the schema's order. Returns: the table (object columns, nulls as None)
    and the names of keys that the schema does not know."""
    records = read_records(path, wrapper)
    columns = list(schema.columns)
    for row, record in enumerate(records):
        for column in columns:
            if column not in record:
                raise StudyError(
                    "the key is missing", file=path, row=row, column=column, fix=f"add it, or {again(path)}"
                )
            if isinstance(record[column], str) and SURROGATE.search(record[column]):
                raise StudyError("text that UTF-8 cannot hold", file=path, row=row, column=column, fix=again(path))
    unknown = sorted({key for record in records for key in record} - set(columns))
    table = pd.DataFrame({column: pd.Series([r[column] for r in records], dtype=object) for column in columns})
    validate(schema, table, path)
    return table, unknown


def read_lists(path: Path) -> tuple[dict[int, list[int]], dict[int, str]]:
    """The label file.

    Returns: task id -> listed server ids, as printed, in file order; task id -> the line where its row begins, as an
        editor counts ("line 2" is the first row below the header). Every error about a label names such a line.
    Raises StudyError: missing columns, a repeated task, a cell that is not a list of whole numbers of at least 0.
    """
    reader = csv.reader(io.StringIO(read_text(path), newline=""), strict=True)
    columns = list(RAW_LABELS.columns)
    cells: list[list[Any]] = []
    places: list[str] = []
    try:
        csv.field_size_limit(MAX_CELL)
        header = next(reader, [])
        for column in columns:
            if column not in header:
                raise StudyError("a column is missing", file=path, row="line 1", column=column, fix="add the column")
        begins = reader.line_num + 1  # a quoted cell may go over several lines
        for values in reader:
            place, begins = f"line {begins}", reader.line_num + 1
            if len(values) != len(header):
                raise StudyError(
                    f"has {len(values)} cells, the header has {len(header)}", file=path, row=place, fix=again(path)
                )
            named = dict(zip(header, values, strict=True))
            cells.append([_number(named["task_id"]), _list(named["mcp_ids"], path, place)])
            places.append(place)
    except csv.Error as error:
        raise StudyError(
            f"not valid CSV ({error})", file=path, row=f"line {reader.line_num}", fix=again(path)
        ) from error
    table = pd.DataFrame({name: pd.Series([row[i] for row in cells], dtype=object) for i, name in enumerate(columns)})
    validate(RAW_LABELS, table, path, places)
    tasks = table["task_id"].tolist()
    return dict(zip(tasks, table["mcp_ids"], strict=True)), dict(zip(tasks, places, strict=True))


def _number(cell: str) -> int | str:
    return int(cell) if cell.isascii() and cell.isdigit() and len(cell) < 20 else cell


def _list(cell: str, path: Path, place: str) -> list[int]:
    reason = None
    try:
        values = json.loads(cell)
    except (ValueError, RecursionError):
        values, reason = None, "is not a printed list of server ids"
    if reason is None and not (isinstance(values, list) and all(type(v) is int and v >= 0 for v in values)):
        reason = "must be a list of whole numbers of at least 0"
    if reason:
        shown = cell if len(cell) <= 60 else f"{cell[:57]}..."
        raise StudyError(f"{shown!r} {reason}", file=path, row=place, column="mcp_ids", fix="write it as [12, 7, 3]")
    return list(values)


def check_references(
    lists: dict[int, list[int]], places: dict[int, str], tasks: Iterable[int], servers: Iterable[int], path: Path
) -> None:
    """Raise unless every task has a list, every list has a known server, and every id other than 0 is known.

    `lists`, `places`: from `read_lists`.
    `tasks`, `servers`: the ids that there are.
    `path`: the label file, named in the error.
    """
    known_tasks, known_servers = set(tasks), set(servers)
    both = "remove it, or complete the other file"
    for task, listed in lists.items():
        unknown = [server for server in listed if server and server not in known_servers]
        if task not in known_tasks:
            reason, column, fix = f"task {task} is not in the task file", "task_id", both
        elif unknown:
            reason, column, fix = f"server {unknown[0]} is not in the server file", "mcp_ids", both
        elif not any(listed):
            reason, column, fix = f"task {task} has no labels", "mcp_ids", "list its servers, or remove the task"
        else:
            continue
        raise StudyError(reason, file=path, row=places[task], column=column, fix=fix)
    without = known_tasks - lists.keys()
    if without:
        raise StudyError(
            f"{len(without)} tasks have no row, the first is task {min(without)}",
            file=path,
            column="task_id",
            fix="add a row for each, or remove the tasks",
        )
