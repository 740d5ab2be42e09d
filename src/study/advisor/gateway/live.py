"""A catalogue from running MCP servers: those of a client configuration, asked for their tools with the official SDK.

Every server gets its own time limit and its own outcome. One that hangs, dies, or sends what is no tool list is
reported and leaves the others alone; what it listed before is kept. A configuration starts programs: use only one that
you would give to an MCP client.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

import pandas as pd

from study.advisor.catalog.checks import today
from study.advisor.catalog.commands import of_command
from study.advisor.catalog.records import RefusedError
from study.advisor.gateway.client_config import Endpoint
from study.advisor.gateway.connection import Listing, connected, list_tools, reason_of
from study.advisor.retrieval.building import LEFT_OUT, REPORTED, Builder
from study.advisor.retrieval.documents import ToolCatalog, tool_keys
from study.base.errors import without_secrets

# Programs that start together compete for the processor, and their time limits run.
AT_ONCE = 4
# Of a catalogue that was indexed before the day of a listing was kept.
UNKNOWN_DAY = "an earlier day"
# A variable as a failing program speaks of it; codes of errors are written alike.
_VARIABLE = re.compile(r"\b(?!ERR_)[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+\b(?<!_NOT_FOUND)")
_OPTION = re.compile(r"(?:missing|requires?d?)\b[^.;\n]{0,60}?\s(--[a-z][a-z-]{1,40})", re.IGNORECASE)


async def list_all(endpoints: Sequence[Endpoint], timeout: float) -> list[Listing]:
    """Ask the servers for all pages of tools, `AT_ONCE` at a time; one listing each, in order. Any failure becomes the
    listing's problem."""
    free = asyncio.Semaphore(AT_ONCE)

    async def ask(endpoint: Endpoint) -> Listing:
        async with free:
            began = time.perf_counter()
            try:
                async with asyncio.timeout(timeout), connected(endpoint, timeout) as connection:
                    listing = await list_tools(endpoint, connection)
                    return replace(listing, seconds=time.perf_counter() - began)
            except TimeoutError:
                problem = f"no complete answer within {timeout:g} s"
            except Exception as error:  # a stranger's program may fail in any way
                problem = reason_of(error, endpoint)
            return Listing(endpoint.name, problem=problem, aliases=endpoint.aliases, program=endpoint.program)

    return list(await asyncio.gather(*map(ask, endpoints)))


def starts(endpoints: Sequence[Endpoint], listings: Sequence[Listing]) -> dict[str, dict[str, Any]]:
    """Which servers answered and which did not, as `catalog.checks` keeps it: by the package or the address."""
    checks: dict[str, dict[str, Any]] = {}
    for endpoint, listing in zip(endpoints, listings, strict=True):
        url, command = endpoint.url, str(endpoint.command)
        try:
            key = without_secrets(url) if url else of_command(command, endpoint.args).key
        except RefusedError:  # a program that no catalogue names
            continue
        seen = {"started": today(), "tools": len(listing.tools), "seconds": round(listing.seconds, 2)}
        failed = {"failed": today(), "lacks": lacks(endpoint, listing.problem or "")}
        checks[key] = seen | {"failed": "", "lacks": ""} if listing.problem is None else failed
    return checks


def lacks(endpoint: Endpoint, problem: str) -> str:
    """The first variables and options that a program said at its end it was not given: ``A_KEY, --project-id``.

    Nothing that stands in a value or argument is named: it could be a secret.
    """
    given = "\n".join([*endpoint.env, *endpoint.env.values(), *endpoint.args])
    names = dict.fromkeys([*_VARIABLE.findall(problem), *_OPTION.findall(problem)])
    return ", ".join([name for name in names if len(name) <= 60 and name not in given][:3])


def build(
    name: str, listings: Iterable[Listing], *, before: ToolCatalog | None = None, day: str | None = None
) -> tuple[ToolCatalog, pd.DataFrame]:
    """The catalogue of all servers that answered, and the cleaning table; `day`: of the listings, default today.

    A server that did not answer keeps its tools from `before` (the catalogue that is replaced), with the day of that
    listing and the problem: an outage says nothing about what a server offers. One without a listing has left.
    """
    builder, today = Builder(name), day or datetime.now().astimezone().date().isoformat()
    # One of the same name that is another program offers nothing of what was listed.
    rows = {(server.id, server.program): row for row, server in enumerate(before.servers)} if before else {}
    for listing in listings:
        tools, text, listed = listing.tools, listing.description, listing.day or today
        if listing.problem is not None:
            row = rows.get((listing.name, listing.program))
            if before is None or row is None:
                builder.count("server without a usable answer left out", "servers", "id", LEFT_OUT)
                continue
            builder.count("server without a usable answer kept from before", "servers", "id", REPORTED)
            old = as_listing(before, row)
            tools, text, listed = old.tools, old.description, old.day
        server = builder.server(listing.name, listing.name, text, aliases=listing.aliases)
        beside: dict[str, Any] = {"listed": listed, "problem": listing.problem or "", "program": listing.program}
        builder.servers[server] = replace(builder.servers[server], **beside)
        if listing.faulty:
            builder.count("tool that the protocol does not allow left out", "tools", "", LEFT_OUT, listing.faulty)
        if listing.large:
            builder.count("tool with too long a definition left out", "tools", "", LEFT_OUT, listing.large)
        for tool in tools:
            builder.tool(server, tool.get("name"), tool.get("description"), tool.get("inputSchema"))
    return builder.build(), builder.cleaning()


def as_listing(catalog: ToolCatalog, row: int) -> Listing:
    """What a server of a catalogue answered when it was indexed."""
    server, tools = catalog.servers[row], [catalog.tools[tool] for tool in catalog.tools_of(row)]
    records = tuple({**tool.definition(), "inputSchema": tool.schema} for tool in tools)
    beside: Any = {"aliases": server.aliases, "day": server.listed or UNKNOWN_DAY, "program": server.program}
    return Listing(server.id, server.description, records, **beside)


def changes(before: ToolCatalog | None, after: ToolCatalog) -> dict[str, int]:
    """How many tools are new, changed, gone and unchanged, by server id and tool name."""

    def keyed(catalog: ToolCatalog) -> dict[str, tuple[str, str]]:
        texts = [(tool.description, json.dumps(dict(tool.schema), sort_keys=True)) for tool in catalog.tools]
        return dict(zip(tool_keys(catalog), texts, strict=True))

    old, new = keyed(before) if before else {}, keyed(after)
    same = sum(old.get(key) == value for key, value in new.items())
    changed, gone = len(new.keys() & old.keys()) - same, len(old.keys() - new.keys())
    return {"new": len(new.keys() - old.keys()), "changed": changed, "gone": gone, "unchanged": same}
