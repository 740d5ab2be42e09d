"""Reading the records of published collections: errors say where, and every change is counted."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from study.data.raw_files import read_records, read_text
from study.errors import StudyError
from study.tools.catalogues.catalog import QuerySet, Server, Tool, ToolCatalog, fault

AGAIN = "fetch the data set again (study fetch dataset=..., study fetch --help)"


class Loaded(NamedTuple):
    """One published collection."""

    catalog: ToolCatalog  # its servers and tools
    queries: Mapping[str, QuerySet]  # its query sets by name; empty where it has none
    cleaning: pd.DataFrame  # what was mended, left out or noticed, columns `CLEANING_COLUMNS`


def json_object(text: str) -> dict[str, Any]:
    """The JSON object that a text holds, also between other words; empty where there is none."""
    try:
        value = json.loads(text[text.index("{") : text.rindex("}") + 1])
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


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


CLEANING_COLUMNS = ["rule", "table", "column", "rows", "action"]
CHANGED, LEFT_OUT, REPORTED = "changed", "left out", "reported only"


class Builder:
    """Collects servers and tools and counts what had to be mended."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.servers: list[Server] = []
        self.tools: list[Tool] = []
        self.counts: Counter[tuple[str, str, str, str]] = Counter()
        self._ids: Counter[str] = Counter()

    def count(self, rule: str, table: str, column: str, action: str, rows: int = 1) -> None:
        """Add `rows` to one line of the cleaning table (0 shows that a rule met nothing)."""
        self.counts[rule, table, column, action] += rows

    def server(
        self,
        server_id: str,
        name: Any,
        description: Any,
        *,
        sources: tuple[str, ...] = (),
        aliases: tuple[str, ...] = (),
        tags: tuple[str, ...] = (),
    ) -> int:
        """Add a server and return its row; a repeated id gets `#2`, `#3`, ... behind it."""
        self._ids[server_id] += 1
        if (times := self._ids[server_id]) > 1:
            self.count("repeated server id numbered", "servers", "id", CHANGED)
            server_id = f"{server_id}#{times}"
        text = self.text(description, "servers", "description")
        known = self.text(name, "servers", "name") or server_id
        self.servers.append(Server(server_id, known, text, sources, aliases, tags=tags))
        return len(self.servers) - 1

    def tool(self, server: int, name: Any, description: Any, schema: Any) -> int | None:
        """Add a tool and return its row; None for one without a name, which nobody could call."""
        if not isinstance(name, str) or not name.strip():
            self.count("tool without a name left out", "tools", "name", LEFT_OUT)
            return None
        if schema is None:
            self.count("no input schema: no parameters", "tools", "schema", CHANGED)
            schema = {}
        elif problem := fault(schema):
            self.count(problem, "tools", "schema", CHANGED)
            schema = {}
        clean = self.text(name, "tools", "name")
        self.tools.append(Tool(server, clean, self.text(description, "tools", "description"), dict(schema)))
        return len(self.tools) - 1

    def text(self, value: Any, table: str, column: str) -> str:
        """A text that UTF-8 can hold; null and non-text become the empty text."""
        if not isinstance(value, str):
            self.count("null or not text becomes empty text", table, column, CHANGED)
            return ""
        clean = value.encode("utf-8", "replace").decode()
        if clean != value:
            self.count("letters that UTF-8 cannot hold replaced", table, column, CHANGED)
        if not clean.strip():
            self.count("empty text", table, column, REPORTED)
        return clean

    def build(self) -> ToolCatalog:
        """The catalogue."""
        return ToolCatalog(self.name, tuple(self.servers), tuple(self.tools))

    def cleaning(self) -> pd.DataFrame:
        """One line per rule, columns `CLEANING_COLUMNS`, after counting what the finished catalogue repeats."""
        names = Counter(tool.name for tool in self.tools)
        inside = Counter((tool.server, tool.name) for tool in self.tools)
        texts = Counter(tool.description for tool in self.tools if tool.description.strip())
        repeats = {
            "name shared with another tool": sum(n for n in names.values() if n > 1),
            "name repeated inside one server": sum(n - 1 for n in inside.values() if n > 1),
            "description shared with another tool": sum(n for n in texts.values() if n > 1),
        }
        lines = [(rule, table, column, rows, action) for (rule, table, column, action), rows in self.counts.items()]
        lines += [(rule, "tools", rule.split()[0], rows, REPORTED) for rule, rows in repeats.items()]
        sizes = {"servers": len(self.servers), "tools": len(self.tools)}
        lines += [("kept", table, "", rows, REPORTED) for table, rows in sizes.items()]
        return pd.DataFrame(lines, columns=CLEANING_COLUMNS)
