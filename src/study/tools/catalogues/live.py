"""A catalogue from running MCP servers: those of a client configuration, asked for their tools with the official SDK.

Every server gets its own time limit and its own outcome. One that hangs, dies, or sends what is no tool list is
reported and leaves the others alone; what it listed before is kept. A configuration starts programs: use only one that
you would give to an MCP client.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pandas as pd

from study.data.raw_files import read_text
from study.errors import StudyError, require_file
from study.tools.catalogues.catalog import ToolCatalog, tool_keys
from study.tools.catalogues.files import LEFT_OUT, REPORTED, Builder

# Bounds on what one server may say; a server without end would otherwise fill the memory.
MAX_TOOLS, MAX_PAGES = 5_000, 200
# Programs that start together compete for the processor, and their time limits run.
AT_ONCE = 4
# Of a catalogue that was indexed before the day of a listing was kept.
UNKNOWN_DAY = "an earlier day"
FIX = 'use {"mcpServers": {NAME: {"command": ..., "args": [...]} or {"url": ...}}}'


@dataclass(frozen=True)
class Endpoint:
    """How to reach one server: a program on this machine (stdio), or an address (streamable HTTP)."""

    name: str
    command: str | None = None
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None
    url: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Listing:
    """What one server answered."""

    name: str
    description: str = ""
    tools: tuple[Mapping[str, Any], ...] = ()  # plain records
    problem: str | None = None  # what kept it from answering
    faulty: int = 0  # tools that the protocol does not allow, which are left out


def read_config(path: Path) -> list[Endpoint]:
    """The servers of a standard client configuration (key ``mcpServers``)."""
    require_file(path, f"name a file; {FIX}", "there is no such client configuration")
    try:
        value = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise StudyError(f"not valid JSON ({error})", file=path, fix=FIX) from error
    servers = value.get("mcpServers") if isinstance(value, dict) else None
    if not isinstance(servers, dict) or not servers:
        raise StudyError("names no servers", file=path, column="mcpServers", fix=FIX)
    return [_endpoint(name, entry, path) for name, entry in servers.items()]


def _endpoint(name: str, entry: Any, path: Path) -> Endpoint:
    if not isinstance(entry, dict) or ("command" in entry) == ("url" in entry):
        raise StudyError("needs either a command or a url", file=path, column=name, fix=FIX)
    command, url, cwd, given = (entry.get(key) for key in ("command", "url", "cwd", "args"))
    env, headers = (own if isinstance(own := entry.get(key), dict) else {} for key in ("env", "headers"))
    args = given if isinstance(given, list) else [] if given is None else [given]
    texts = [command if "command" in entry else url, cwd or "", *args, *env.values(), *headers.values()]
    if not all(isinstance(text, str) for text in texts):
        raise StudyError("every part of a server must be a text", file=path, column=name, fix=FIX)
    if url is not None and not url.startswith(("http://", "https://")):
        raise StudyError("the address must begin with http:// or https://", file=path, column=name, fix=FIX)
    return Endpoint(name, command, tuple(args), env, cwd, url, headers)


async def ask(endpoint: Endpoint, timeout: float) -> Listing:
    """Connect, list all pages of tools, disconnect; any failure becomes the listing's problem."""
    try:
        async with asyncio.timeout(timeout):
            return await _list_tools(endpoint, timeout)
    except TimeoutError:
        return Listing(endpoint.name, problem=f"no complete answer within {timeout:g} s")
    except Exception as error:  # a stranger's program may fail in any way
        return Listing(endpoint.name, problem=_reason(error))


async def _list_tools(endpoint: Endpoint, timeout: float) -> Listing:
    from mcp import Client, StdioServerParameters
    from mcp.client.stdio import stdio_client
    from mcp.client.streamable_http import streamable_http_client
    from mcp.shared._httpx_utils import create_mcp_http_client

    async with AsyncExitStack() as stack:
        if endpoint.command is not None:
            silent = stack.enter_context(Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115
            program = {"command": endpoint.command, "args": endpoint.args, "env": endpoint.env, "cwd": endpoint.cwd}
            transport: Any = stdio_client(StdioServerParameters.model_validate(program), errlog=silent)
        else:
            assert endpoint.url is not None
            http = await stack.enter_async_context(create_mcp_http_client(headers=dict(endpoint.headers)))
            transport = streamable_http_client(endpoint.url, http_client=http)
        sieve = Sieve()
        transport = sieve.around(transport)
        client = await stack.enter_async_context(Client(transport, read_timeout_seconds=timeout, cache=None))
        tools: list[Mapping[str, Any]] = []
        cursor: str | None = None
        kept = {"name", "description", "input_schema"}
        for _ in range(MAX_PAGES):
            page = await client.list_tools(cursor=cursor)
            tools += [tool.model_dump(by_alias=True, include=kept) for tool in page.tools]
            cursor = page.next_cursor
            if not cursor or len(tools) > MAX_TOOLS:
                break
        if cursor or len(tools) > MAX_TOOLS:
            return Listing(endpoint.name, problem=f"its list does not end ({len(tools)} tools so far)")
        if sieve.faulty and not tools:
            return Listing(
                endpoint.name,
                problem=f"no valid tool among {sieve.faulty} listed: their entries must follow the MCP schema",
            )
        return Listing(endpoint.name, (client.instructions or "")[:2_000], tuple(tools), faulty=sieve.faulty)


class Sieve:
    """The reading end of a transport without the tools that the protocol does not allow; `faulty` counts these. The
    official client refuses a whole page for one of them."""

    def __init__(self) -> None:
        self.stream: Any = None
        self.faulty = 0

    @asynccontextmanager
    async def around(self, transport: Any) -> AsyncIterator[tuple[Any, Any]]:
        """The transport with this reading end."""
        async with transport as (self.stream, writing):
            yield self, writing

    def sift(self, item: Any) -> Any:
        """One incoming message, mended in place; errors and everything but lists of tools stay as they are."""
        result = getattr(getattr(item, "message", None), "result", None)
        listed = result.get("tools") if isinstance(result, dict) else None
        if isinstance(result, dict) and isinstance(listed, list):
            result["tools"] = [tool for tool in listed if allowed(tool)]
            self.faulty += len(listed) - len(result["tools"])
        return item

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    async def receive(self) -> Any:
        """The next message."""
        return self.sift(await self.stream.receive())

    def __aiter__(self) -> Sieve:
        return self

    async def __anext__(self) -> Any:
        return self.sift(await self.stream.__anext__())

    async def __aenter__(self) -> Sieve:
        await self.stream.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> Any:
        return await self.stream.__aexit__(*error)


def allowed(tool: Any) -> bool:
    """Whether the protocol allows this entry of a list of tools."""
    from mcp_types import methods, version
    from pydantic import ValidationError

    try:
        methods.validate_server_result("tools/list", version.LATEST_HANDSHAKE_VERSION, {"tools": [tool]})
    except (ValidationError, RecursionError):
        return False
    return True


def _reason(error: BaseException) -> str:
    """The innermost failure in one line."""
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def list_all(endpoints: list[Endpoint], timeout: float = 30.0) -> list[Listing]:
    """Ask the servers, `AT_ONCE` at a time; one listing each, in order."""

    async def everyone() -> list[Listing]:
        free = asyncio.Semaphore(AT_ONCE)

        async def one(endpoint: Endpoint) -> Listing:
            async with free:
                return await ask(endpoint, timeout)

        return list(await asyncio.gather(*(one(endpoint) for endpoint in endpoints)))

    return asyncio.run(everyone())


def build(
    name: str, listings: list[Listing], *, before: ToolCatalog | None = None, day: str | None = None
) -> tuple[ToolCatalog, pd.DataFrame]:
    """The catalogue of all servers that answered, and the cleaning table; `day`: of the listings, default today.

    A server that did not answer keeps its tools from `before` (the catalogue that is replaced), with the day of that
    listing and the problem: an outage says nothing about what a server offers. One without a listing has left.
    """
    builder, today = Builder(name), day or datetime.now().astimezone().date().isoformat()
    known = {server.id: row for row, server in enumerate(before.servers)} if before else {}
    for listing in listings:
        tools, text, listed = listing.tools, listing.description, today
        if listing.problem is not None:
            if before is None or listing.name not in known:
                builder.count("server without a usable answer left out", "servers", "id", LEFT_OUT)
                continue
            builder.count("server without a usable answer kept from before", "servers", "id", REPORTED)
            old = before.servers[known[listing.name]]
            rows = before.tools_of(known[listing.name])
            tools = tuple({**before.tools[row].definition(), "inputSchema": before.tools[row].schema} for row in rows)
            text, listed = old.description, old.listed or UNKNOWN_DAY
        server = builder.server(listing.name, listing.name, text)
        builder.servers[server] = replace(builder.servers[server], listed=listed, problem=listing.problem or "")
        if listing.faulty:
            builder.count("tool that the protocol does not allow left out", "tools", "", LEFT_OUT, listing.faulty)
        for tool in tools:
            builder.tool(server, tool.get("name"), tool.get("description"), tool.get("inputSchema"))
    return builder.build(), builder.cleaning()


def changes(before: ToolCatalog | None, after: ToolCatalog) -> dict[str, int]:
    """How many tools are new, changed, gone and unchanged, by server id and tool name."""

    def keyed(catalog: ToolCatalog) -> dict[str, tuple[str, str]]:
        texts = [(tool.description, json.dumps(dict(tool.schema), sort_keys=True)) for tool in catalog.tools]
        return dict(zip(tool_keys(catalog), texts, strict=True))

    old, new = keyed(before) if before else {}, keyed(after)
    same = sum(old.get(key) == value for key, value in new.items())
    changed, gone = len(new.keys() & old.keys()) - same, len(old.keys() - new.keys())
    return {"new": len(new.keys() - old.keys()), "changed": changed, "gone": gone, "unchanged": same}
