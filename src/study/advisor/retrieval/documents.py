"""`ToolCatalog`: MCP servers and their tools, in one form for every source."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from study.advisor.arrays import IntArray
from study.base import files
from study.base.errors import StudyError, require_file

# Characters of a schema's JSON: the largest of 12,777 public tools has 36,000. A larger one is not a tool's interface.
MAX_CHARACTERS = 200_000
MAX_PARAMETERS = 500
MAX_STEPS = 50

Schema = Mapping[str, Any]


@dataclass(frozen=True)
class Parameter:
    """One argument of a tool."""

    name: str
    type: str
    description: str
    required: bool


def parameters(schema: Schema) -> tuple[Parameter, ...]:
    """The top-level parameters of an input schema, in its order, each name once. ``$ref`` inside the document and
    ``allOf``, ``anyOf``, ``oneOf`` at the top are followed; a reference that leads back to itself ends there. Anything
    that is not a JSON Schema object gives no parameters."""
    by_name: dict[str, Parameter] = {}
    seen: set[int] = set()
    waiting: list[Any] = [schema]
    for _ in range(MAX_STEPS):
        if not waiting or len(by_name) >= MAX_PARAMETERS:
            break
        part = resolve(waiting.pop(0), schema)
        if not isinstance(part, Mapping) or id(part) in seen:
            continue
        seen.add(id(part))
        required = part.get("required")
        needed = {name for name in required if isinstance(name, str)} if isinstance(required, list) else set()
        properties = part.get("properties")
        for name, value in properties.items() if isinstance(properties, Mapping) else ():
            if name not in by_name and len(by_name) < MAX_PARAMETERS:
                by_name[str(name)] = _parameter(str(name), resolve(value, schema), name in needed)
        for key in ("allOf", "anyOf", "oneOf"):
            branches = part.get(key)
            waiting += branches if isinstance(branches, list) else []
    return tuple(by_name.values())


def _parameter(name: str, value: Any, required: bool) -> Parameter:
    entry = value if isinstance(value, Mapping) else {}
    kind, text = entry.get("type"), entry.get("description")
    if isinstance(kind, list):
        kind = " or ".join(item for item in kind if isinstance(item, str))
    return Parameter(name, kind if isinstance(kind, str) else "", text if isinstance(text, str) else "", required)


def resolve(part: Any, document: Schema) -> Any:
    """Follow ``$ref`` pointers into `document` (RFC 6901); None where one leads nowhere or round in a circle."""
    seen: set[str] = set()
    while isinstance(part, Mapping) and isinstance(part.get("$ref"), str):
        pointer = part["$ref"]
        if pointer in seen or not pointer.startswith("#"):
            return None
        seen.add(pointer)
        part = _at(document, pointer[1:])
    return part


def _at(document: Any, pointer: str) -> Any:
    for step in pointer.split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        if isinstance(document, Mapping):
            document = document.get(key)
        elif isinstance(document, list) and key.isdecimal() and int(key) < len(document):
            document = document[int(key)]
        else:
            return None
    return document


def fault(schema: Any) -> str | None:
    """What makes a schema unusable, in words that name a cleaning rule; None where it can be kept."""
    if not isinstance(schema, Mapping):
        return "input schema is not an object, left out"
    try:
        size = len(json.dumps(schema, ensure_ascii=False))
    except (RecursionError, ValueError, TypeError):
        return "input schema nests too deeply, left out"
    return "input schema is too large, left out" if size > MAX_CHARACTERS else None


FORMAT = 1
# What no system reads, see `Server`; it is no part of a catalogue's hash.
BESIDE = ("listed", "problem", "tags", "program")


@dataclass(frozen=True)
class Server:
    """One MCP server."""

    id: str  # unique inside its catalogue
    name: str  # as published
    description: str  # as published; empty where there is none
    sources: tuple[str, ...] = ()  # the catalogues or marketplaces that list it
    aliases: tuple[str, ...] = ()  # other names under which logs mention it
    listed: str = ""  # the day (ISO 8601) on which a running server's tools were listed last; empty for published ones
    problem: str = ""  # why it could not be listed again since then; empty where nothing went wrong
    tags: tuple[str, ...] = ()  # the categories that its source gives it
    program: str = ""  # what was started or asked, `Endpoint.program`; empty for published ones


@dataclass(frozen=True)
class Tool:
    """One tool of a server."""

    server: int  # row number of its server
    name: str  # name, description: as published
    description: str
    schema: Schema = field(default_factory=dict, hash=False)  # JSON Schema of its input, empty where there is none

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        """The arguments that the input schema names."""
        return parameters(self.schema)

    @property
    def required(self) -> list[str]:
        """Names of the arguments that every call must set."""
        return [parameter.name for parameter in self.parameters if parameter.required]

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
        by_name: dict[str, list[int]] = {}
        for row, tool in enumerate(self.tools):
            by_name.setdefault(tool.name, []).append(row)
        return {name: tuple(rows) for name, rows in by_name.items()}

    def tools_of(self, server: int) -> list[int]:
        """Tool rows of one server, in listed order."""
        return np.flatnonzero(self.server_of == server).tolist()

    def subset(self, servers: Sequence[int], name: str | None = None) -> tuple[ToolCatalog, IntArray]:
        """The catalogue of some servers, and the old row of each kept tool."""
        new_rows = {old: new for new, old in enumerate(servers)}
        rows = [row for row, tool in enumerate(self.tools) if tool.server in new_rows]
        tools = tuple(replace(self.tools[row], server=new_rows[self.tools[row].server]) for row in rows)
        chosen = ToolCatalog(name or self.name, tuple(self.servers[old] for old in servers), tools)
        return chosen, np.array(rows, dtype=np.int64)

    def fingerprint(self) -> str:
        """SHA-256 of everything a system can read, in hex."""
        return hashlib.sha256(json.dumps(_texts(self), sort_keys=True).encode()).hexdigest()


def tool_keys(catalog: ToolCatalog) -> tuple[str, ...]:
    """A stable name of every tool, ``server/tool``; repeats inside a server get ``#2``, ``#3``, ... behind."""
    seen, keys = Counter[str](), []
    for tool in catalog.tools:
        key = f"{catalog.servers[tool.server].id}/{tool.name}"
        seen[key] += 1
        keys.append(key if seen[key] == 1 else f"{key}#{seen[key]}")
    return tuple(keys)


def _texts(catalog: ToolCatalog) -> dict[str, Any]:
    """What a system can read; when a server was listed is none of it."""
    servers = [{name: part for name, part in asdict(s).items() if name not in BESIDE} for s in catalog.servers]
    tools = [
        {"server": t.server, "name": t.name, "description": t.description, "schema": dict(t.schema)}
        for t in catalog.tools
    ]
    return {"format": FORMAT, "name": catalog.name, "servers": servers, "tools": tools}


def save_catalog(path: Path, catalog: ToolCatalog) -> None:
    """Write the catalogue as JSON."""
    value = _texts(catalog)
    for entry, server in zip(value["servers"], catalog.servers, strict=True):
        entry |= {name: part for name in BESIDE if (part := getattr(server, name))}
    files.write_json(path, value)


def load_catalog(path: Path) -> ToolCatalog:
    """Read a catalogue that `save_catalog` wrote; anything else is a `StudyError`."""
    require_file(path, f"make it: study tools index --catalogue {path.stem}", "there is no such catalogue")
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        if value["format"] != FORMAT:
            raise StudyError("the catalogue has another format", file=path, fix="index it again")
        lists = [
            {name: tuple(s[name]) for name in ("sources", "aliases")} | {"tags": tuple(s.get("tags", ()))}
            for s in value["servers"]
        ]
        servers = tuple(Server(**s | fields) for s, fields in zip(value["servers"], lists, strict=True))
        tools = tuple(Tool(int(t["server"]), t["name"], t["description"], dict(t["schema"])) for t in value["tools"])
        return ToolCatalog(value["name"], servers, tools)
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise StudyError(f"not a tool catalogue ({error})", file=path, fix="index it again") from error


def concatenate(name: str, catalogs: Iterable[ToolCatalog]) -> ToolCatalog:
    """All servers and tools one after the other; server ids get the catalogue's name in front."""
    servers: list[Server] = []
    tools: list[Tool] = []
    for catalog in catalogs:
        tools += [replace(tool, server=len(servers) + tool.server) for tool in catalog.tools]
        for server in catalog.servers:
            servers.append(replace(server, id=f"{catalog.name}/{server.id}", sources=server.sources or (catalog.name,)))
    return ToolCatalog(name, tuple(servers), tuple(tools))
