"""What the raw files and the prepared tables must look like; a violation is a `StudyError` that names the cell."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd
import pandera.errors
import pandera.pandas as pa

from study import paths
from study.errors import StudyError

# The longest text of Task2MCP has 2,645 characters; a text longer than this is a damaged or hostile file.
MAX_TEXT = 1_000_000
# Ids and counts are kept as int64; the bound leaves room for arithmetic on them.
MAX_NUMBER = 2**53

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

    Args:
        file: named in the error.
        rows: where each row is, such as "line 2"; record numbers from 0 where not given.

    Raises:
        StudyError: naming the first violation by row, and how many cells are wrong in all.
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
