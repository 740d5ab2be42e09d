"""Reading published JSON with errors that say where, and what every loader returns."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from study.data.raw_files import read_records, read_text
from study.errors import StudyError
from study.tools.catalogues.catalog import ToolCatalog
from study.tools.catalogues.queries import QuerySet

AGAIN = "fetch the data set again (study fetch dataset=..., study fetch --help)"


class Loaded(NamedTuple):
    """One published collection.

    Attributes:
        catalog: its servers and tools.
        queries: its query sets by name; empty where it has none.
        cleaning: what was mended, left out or noticed, columns `builder.CLEANING_COLUMNS`.
    """

    catalog: ToolCatalog
    queries: Mapping[str, QuerySet]
    cleaning: pd.DataFrame


def read_list(path: Path, keys: Sequence[str]) -> list[dict[str, Any]]:
    """A JSON list of objects that all have `keys`."""
    records = read_records(path)
    require(records, keys, path)
    return records


def read_lines(path: Path, keys: Sequence[str]) -> list[dict[str, Any]]:
    """A file of one JSON object a line, all with `keys`; an empty file gives no records."""
    records = []
    for line, text in enumerate(read_text(path).splitlines(), start=1):
        if not text.strip():
            continue
        try:
            record = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise StudyError(f"not valid JSON ({error})", file=path, row=f"line {line}", fix=AGAIN) from error
        if not isinstance(record, dict):
            raise StudyError("must be an object", file=path, row=f"line {line}", fix=AGAIN)
        records.append(record)
    require(records, keys, path)
    return records


def require(records: Sequence[Mapping[str, Any]], keys: Sequence[str], path: Path) -> None:
    """Raise `StudyError` where a record lacks a key."""
    for row, record in enumerate(records):
        for key in keys:
            if key not in record:
                raise StudyError("the key is missing", file=path, row=row, column=key, fix=AGAIN)


def text_of(record: Mapping[str, Any], key: str, path: str | Path, row: int) -> str:
    """A text value; anything else is a `StudyError`."""
    value = record.get(key)
    if not isinstance(value, str) or not value.strip():
        raise StudyError("must be a text", file=path, row=row, column=key, fix=AGAIN)
    return value.encode("utf-8", "replace").decode()
