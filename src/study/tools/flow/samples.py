"""Instructions with their function calls: MCP-Flow's public ones, and those that this package makes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from study.errors import StudyError
from study.tools.catalogues.catalog import ToolCatalog
from study.tools.catalogues.files import AGAIN, Loaded, read_list
from study.tools.catalogues.mcpflow import SAMPLES_FOLDER
from study.tools.catalogues.queries import QuerySet


@dataclass(frozen=True)
class Sample:
    """An instruction and the call that it asks for.

    Attributes:
        id: unique in its collection.
        text: the instruction.
        tool: row of the tool in the catalogue.
        server: row of the tool's server.
        arguments: of the call, by parameter name.
        group: samples that were made from one call share it, and never stand on both sides of a split.
    """

    id: str
    text: str
    tool: int
    server: int
    arguments: Mapping[str, Any]
    group: str


def load(folder: Path, loaded: Loaded) -> tuple[list[Sample], int]:
    """The public samples that hold a call, and how many hold none (they name a tool but no call).

    Args:
        folder: of the raw files.
        loaded: what `mcpflow.load` made of the same folder.
    """
    entries: dict[str, Any] = {}
    for path in sorted((folder / SAMPLES_FOLDER).glob("*/*.json")):
        for number, entry in enumerate(read_list(path, ("function_call",))):
            entries[f"{path.stem}:{number}"] = entry["function_call"]
    catalog, queries = loaded.catalog, loaded.queries["instructions"]
    found: list[Sample] = []
    for name, text, labels, group in zip(queries.ids, queries.texts, queries.labels, queries.groups, strict=True):
        call = entries.get(name)
        if not call:
            continue
        if not isinstance(call, dict) or not isinstance(call.get("arguments"), dict):
            raise StudyError("not a function call", file=folder / SAMPLES_FOLDER, row=name, fix=AGAIN)
        tool = labels[0][0]
        found.append(Sample(name, text, tool, catalog.tools[tool].server, call["arguments"], group))
    return found, len(queries) - len(found)


def as_queries(found: Sequence[Sample]) -> QuerySet:
    """The samples as queries; the group of a sample names its call."""
    return QuerySet(
        "instructions",
        tuple(one.id for one in found),
        tuple(one.text for one in found),
        tuple(((one.tool,),) for one in found),
        tuple(one.group for one in found),
    )


def key(catalog: ToolCatalog, tool: int) -> str:
    """The id of a tool in result files: server id and tool name."""
    return f"{catalog.servers[catalog.tools[tool].server].id}::{catalog.tools[tool].name}"
