"""Reading the records of published collections: errors say where, and every change is counted."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from study.advisor.retrieval.documents import ToolCatalog
from study.base.errors import StudyError
from study.data.raw_files import read_records, read_text
from study.tools.queries import QuerySet

AGAIN = "fetch the data set again (study fetch dataset=..., study fetch --help)"


class Loaded(NamedTuple):
    """One published collection."""

    catalog: ToolCatalog  # its servers and tools
    queries: Mapping[str, QuerySet]  # its query sets by name; empty where it has none
    cleaning: pd.DataFrame  # what was mended, left out or noticed, columns `CLEANING_COLUMNS`


def read_list(path: Path, keys: Sequence[str]) -> list[dict[str, Any]]:
    """A JSON list of objects that all have `keys`."""
    return require(read_records(path), keys, path)


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
    return require(records, keys, path)


def require(records: list[dict[str, Any]], keys: Sequence[str], path: Path) -> list[dict[str, Any]]:
    """The records; a `StudyError` where one lacks a key."""
    for row, record in enumerate(records):
        for key in keys:
            if key not in record:
                raise StudyError("the key is missing", file=path, row=row, column=key, fix=AGAIN)
    return records


def text_of(record: Mapping[str, Any], key: str, path: str | Path, row: int) -> str:
    """A text value; anything else is a `StudyError`."""
    value = record.get(key)
    if not isinstance(value, str) or not value.strip():
        raise StudyError("must be a text", file=path, row=row, column=key, fix=AGAIN)
    return value.encode("utf-8", "replace").decode()


def tags_of(record: Mapping[str, Any], key: str) -> tuple[str, ...]:
    """The category that a source gives a server; none where it is no text."""
    value = record.get(key)
    return (value.encode("utf-8", "replace").decode(),) if isinstance(value, str) and value.strip() else ()
