"""`ToolCatalog`: MCP servers and their tools, in one form for every source."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from study import files
from study.data.dataset import IntArray
from study.errors import StudyError
from study.tools.catalogues.schema import Parameter, Schema, parameters

FORMAT = 1
# What a running server's listing went like, see `Server`.
STATES = ("listed", "problem")


@dataclass(frozen=True)
class Server:
    """One MCP server.

    Attributes:
        id: unique inside its catalogue.
        name: as published.
        description: as published; empty where there is none.
        sources: the catalogues or marketplaces that list it.
        aliases: other names under which logs mention it.
        listed: of a running server, the day (ISO 8601) on which its tools were listed last; empty for published ones.
        problem: why it could not be listed again since then; empty where nothing went wrong.
    """

    id: str
    name: str
    description: str
    sources: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    listed: str = ""
    problem: str = ""


@dataclass(frozen=True)
class Tool:
    """One tool of a server.

    Attributes:
        server: row number of its server.
        name, description: as published.
        schema: its input schema (JSON Schema), empty where there is none.
    """

    server: int
    name: str
    description: str
    schema: Schema = field(default_factory=dict, hash=False)

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        """The arguments that the input schema names."""
        return parameters(self.schema)

    def definition(self) -> dict[str, Any]:
        """What an agent is given: name, description and parameters."""
        return {"name": self.name, "description": self.description, "parameters": dict(self.schema)}


@dataclass(frozen=True)
class ToolCatalog:
    """Servers and tools; row numbers are their positions, and tools of a server need not stand together."""

    name: str
    servers: tuple[Server, ...]
    tools: tuple[Tool, ...]

    def __post_init__(self) -> None:
        """Refuse a catalogue whose tools have no server or whose server ids repeat."""
        ids = [server.id for server in self.servers]
        if len(set(ids)) < len(ids):
            raise StudyError(f"the catalogue {self.name} repeats a server id", fix="give every server its own id")
        if any(not 0 <= tool.server < len(ids) for tool in self.tools):
            raise StudyError(f"a tool of the catalogue {self.name} has no server", fix="build it again")

    @cached_property
    def server_of(self) -> IntArray:
        """The server row of every tool, shape (n_tools,)."""
        return np.array([tool.server for tool in self.tools], dtype=np.int64)

    @cached_property
    def rows_by_name(self) -> Mapping[str, tuple[int, ...]]:
        """Tool rows by exact tool name; several servers may offer tools of one name."""
        found: dict[str, list[int]] = {}
        for row, tool in enumerate(self.tools):
            found.setdefault(tool.name, []).append(row)
        return {name: tuple(rows) for name, rows in found.items()}

    def tools_of(self, server: int) -> list[int]:
        """Tool rows of one server, in listed order."""
        return np.flatnonzero(self.server_of == server).tolist()

    def subset(self, servers: Sequence[int], name: str | None = None) -> tuple[ToolCatalog, IntArray]:
        """The catalogue of some servers, and the old row of each kept tool."""
        place = {old: new for new, old in enumerate(servers)}
        kept = [row for row, tool in enumerate(self.tools) if tool.server in place]
        tools = tuple(
            Tool(place[tool.server], tool.name, tool.description, tool.schema)
            for tool in (self.tools[row] for row in kept)
        )
        chosen = ToolCatalog(name or self.name, tuple(self.servers[old] for old in servers), tools)
        return chosen, np.array(kept, dtype=np.int64)

    def fingerprint(self) -> str:
        """SHA-256 of everything a system can read, in hex."""
        return hashlib.sha256(json.dumps(_texts(self), sort_keys=True).encode()).hexdigest()


def to_json(catalog: ToolCatalog) -> dict[str, Any]:
    """The catalogue as plain data."""
    value = _texts(catalog)
    for entry, server in zip(value["servers"], catalog.servers, strict=True):
        entry |= {name: text for name in STATES if (text := getattr(server, name))}
    return value


def _texts(catalog: ToolCatalog) -> dict[str, Any]:
    """What a system can read; when a server was listed is none of it."""
    return {
        "format": FORMAT,
        "name": catalog.name,
        "servers": [
            {"id": s.id, "name": s.name, "description": s.description, "sources": [*s.sources], "aliases": [*s.aliases]}
            for s in catalog.servers
        ],
        "tools": [
            {"server": t.server, "name": t.name, "description": t.description, "schema": dict(t.schema)}
            for t in catalog.tools
        ],
    }


def from_json(value: Any, file: Path | None = None) -> ToolCatalog:
    """Rebuild what `to_json` gave; anything else is a `StudyError`."""
    try:
        if value["format"] != FORMAT:
            raise StudyError("the catalogue has another format", file=file, fix="index it again")
        servers = tuple(
            Server(
                s["id"],
                s["name"],
                s["description"],
                tuple(s["sources"]),
                tuple(s["aliases"]),
                *(str(s.get(name, "")) for name in STATES),
            )
            for s in value["servers"]
        )
        tools = tuple(Tool(int(t["server"]), t["name"], t["description"], dict(t["schema"])) for t in value["tools"])
        return ToolCatalog(value["name"], servers, tools)
    except (KeyError, TypeError, ValueError) as error:
        raise StudyError(f"not a tool catalogue ({error})", file=file, fix="index it again") from error


def save(path: Path, catalog: ToolCatalog) -> None:
    """Write the catalogue as JSON."""
    files.write_json(path, to_json(catalog))


def load(path: Path) -> ToolCatalog:
    """Read a catalogue that `save` wrote."""
    if not path.is_file():
        raise StudyError(
            "there is no such catalogue", file=path, fix=f"make it: study tools index --catalogue {path.stem}"
        )
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise StudyError(f"not readable JSON ({error})", file=path, fix="index it again") from error
    return from_json(value, path)


def concatenate(name: str, catalogs: Iterable[ToolCatalog]) -> ToolCatalog:
    """All servers and tools one after the other; server ids get the catalogue's name in front."""
    servers: list[Server] = []
    tools: list[Tool] = []
    for catalog in catalogs:
        first = len(servers)
        servers += [
            replace(s, id=f"{catalog.name}/{s.id}", sources=s.sources or (catalog.name,)) for s in catalog.servers
        ]
        tools += [Tool(first + t.server, t.name, t.description, t.schema) for t in catalog.tools]
    return ToolCatalog(name, tuple(servers), tuple(tools))
