"""One connection to an MCP server with the official SDK: a transport with bounds, and the server's list of tools."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
from mcp import Client, ClientSession, StdioServerParameters
from mcp.client.sse import sse_client
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client
from mcp_types import CONNECTION_CLOSED, REQUEST_TIMEOUT, methods, version
from pydantic import ValidationError

from study.advisor.gateway import guard
from study.advisor.gateway.client_config import Endpoint
from study.base.errors import printable

# The SDK writes a traceback for every line that is no message.
logging.getLogger("mcp.client").setLevel(logging.CRITICAL)
logging.getLogger("httpx2").setLevel(logging.WARNING)  # it tells of every request, with its whole address
# Bounds on what one server may say; a server without end would otherwise fill the memory.
MAX_TOOLS, MAX_PAGES = 5_000, 200
MESSAGE = 16_000_000  # bytes of one message
DEFINITION = 100_000  # characters of one tool's definition; of real ones the largest known has a tenth
LISTED = 20_000_000  # characters of all definitions
REASON = 400  # characters of a failure that are shown
# Lines of a traceback (Node, Python) that say where, not what.
_PLACE = re.compile(r"^\s*(?:at\s.*|File\s\".*|[~^]+)$", re.MULTILINE)
Notify = Callable[[Any], Awaitable[None]]


@dataclass(frozen=True)
class Listing:
    """What one server answered."""

    name: str
    description: str = ""
    tools: tuple[Mapping[str, Any], ...] = ()  # plain records
    problem: str | None = None  # what kept it from answering
    faulty: int = 0  # tools that the protocol does not allow, which are left out
    large: int = 0  # tools whose definition is too long, which are left out
    aliases: tuple[str, ...] = ()  # other names of the server
    day: str = ""  # of the listing (ISO 8601); empty: today
    program: str = ""  # `Endpoint.program` of what answered
    seconds: float = 0.0  # from the start of the program, or the first request, to the end of the list


class Sieve:
    """The reading end of a transport without the tools that the protocol does not allow; `faulty` counts these. The
    official client refuses a whole page for one of them. `over` is set when the server says nothing more."""

    def __init__(self) -> None:
        self.stream: Any = None
        self.faulty = 0
        self.over = asyncio.Event()

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
            # One more than the bound shows that there are too many; checking a million would take minutes.
            result["tools"] = [tool for tool in listed[: MAX_TOOLS + 1] if allowed(tool)]
            self.faulty += min(len(listed), MAX_TOOLS + 1) - len(result["tools"])
        return item

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    async def receive(self) -> Any:
        """The next message."""
        return self.sift(await self.stream.receive())

    def __aiter__(self) -> Sieve:
        return self

    async def __anext__(self) -> Any:
        try:
            return self.sift(await self.stream.__anext__())
        except BaseException:
            self.over.set()
            raise

    async def __aenter__(self) -> Sieve:
        await self.stream.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> Any:
        self.over.set()
        return await self.stream.__aexit__(*error)


def allowed(tool: Any) -> bool:
    """Whether the protocol allows this entry of a list of tools."""
    try:
        methods.validate_server_result("tools/list", version.LATEST_HANDSHAKE_VERSION, {"tools": [tool]})
    except (ValidationError, RecursionError):
        return False
    return True


class ConnectionFailedError(Exception):
    """A server cannot be reached, or did not do what a server must; the text says why."""


@dataclass
class Connection:
    """An open session with one server. It must be closed by the task that opened it."""

    client: Client
    session: ClientSession  # the client's; also there when the client is closed, and then every request fails
    sieve: Sieve
    said: str = ""  # after the end: why the program ended by itself, in its guard's words


@asynccontextmanager
async def connected(endpoint: Endpoint, timeout: float, *, notify: Notify | None = None) -> AsyncIterator[Connection]:
    """Open a session and close it, with the program that was started for it.

    `timeout`: seconds for one answer. `notify`: receives the server's notifications.
    Raises: ConnectionFailedError, for any error inside as well, without values of the entry.
    """
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log:
        open_ = None
        try:
            async with AsyncExitStack() as stack:
                open_ = await _opened(endpoint, timeout, stack, log, notify)
                yield open_
        except Exception as error:  # a stranger's program may fail in any way
            raise ConnectionFailedError(_said(log, endpoint) or reason_of(error, endpoint)) from error
        finally:
            if open_ is not None:
                open_.said = _said(log, endpoint)


async def _opened(
    endpoint: Endpoint, timeout: float, stack: AsyncExitStack, log: Any, notify: Notify | None
) -> Connection:
    """A session that begins with `initialize`, as every server of today knows it and some end on anything else; only
    with a server that refuses it, one of the protocol's next version."""
    for mode in ("legacy", "auto"):
        attempt, sieve = await stack.enter_async_context(AsyncExitStack()), Sieve()
        try:
            transport = sieve.around(await _transport(endpoint, timeout, attempt, log))
            how: Any = {"read_timeout_seconds": timeout, "cache": None, "mode": mode, "message_handler": notify}
            client = await attempt.enter_async_context(Client(transport, **how))
            return Connection(client, client.session, sieve)
        except Exception as error:
            refused = getattr(innermost(error), "code", CONNECTION_CLOSED) not in (CONNECTION_CLOSED, REQUEST_TIMEOUT)
            if mode == "auto" or not refused:
                raise
            await attempt.aclose()
    raise AssertionError


async def _transport(endpoint: Endpoint, timeout: float, stack: AsyncExitStack, log: Any) -> Any:
    if endpoint.command is not None:
        watched = ["-I", "-S", str(Path(guard.__file__)), str(MESSAGE), endpoint.command, *endpoint.args]
        program = {"command": sys.executable, "args": watched, "env": endpoint.env, "cwd": endpoint.cwd}
        return stdio_client(StdioServerParameters.model_validate(program), errlog=log)
    assert endpoint.url is not None
    headers = dict(endpoint.headers)
    if endpoint.transport == "sse":
        return sse_client(endpoint.url, headers=headers, timeout=timeout, httpx_client_factory=bounded_http)
    http = await stack.enter_async_context(bounded_http(headers=headers))
    return streamable_http_client(endpoint.url, http_client=http)


def bounded_http(
    headers: dict[str, str] | None = None, timeout: httpx2.Timeout | None = None, auth: httpx2.Auth | None = None
) -> httpx2.AsyncClient:
    """The SDK's HTTP client, which breaks off a message of more than `MESSAGE` bytes: a whole body, or what stands
    between two blank lines of an event stream."""

    async def bound(response: httpx2.Response) -> None:
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        events = response.headers.get("content-type", "").startswith("text/event-stream")
        response.stream = Bounded(response.stream, events)

    client = create_mcp_http_client(headers, timeout, auth)
    client.event_hooks = {"response": [*client.event_hooks["response"], bound]}
    return client


class Bounded(httpx2.AsyncByteStream):
    """A response's bytes until one message is too long."""

    def __init__(self, stream: httpx2.AsyncByteStream, events: bool) -> None:
        self.stream, self.events, self.length = stream, events, 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self.stream:
            self.length += len(chunk)
            if self.length > MESSAGE:
                raise ConnectionFailedError(f"a message is longer than {MESSAGE} bytes")
            if self.events and (b"\n\n" in chunk or b"\r\n\r\n" in chunk):
                self.length = 0
            yield chunk

    async def aclose(self) -> None:
        """Close the response."""
        await self.stream.aclose()


async def list_tools(endpoint: Endpoint, connection: Connection) -> Listing:
    """All pages of a server's tools; a list without end is its problem."""
    tools: list[Mapping[str, Any]] = []
    cursor: str | None = None
    kept, size, large, before = {"name", "description", "input_schema"}, 0, 0, connection.sieve.faulty
    for _ in range(MAX_PAGES):
        page = await connection.client.list_tools(cursor=cursor)
        for tool in page.tools:
            record = tool.model_dump(by_alias=True, include=kept)
            length = len(json.dumps(record, default=str))
            large += length > DEFINITION
            if length <= DEFINITION:
                tools.append(record)
                size += length
        cursor = page.next_cursor
        if not cursor or len(tools) > MAX_TOOLS or size > LISTED:
            break
    faulty = connection.sieve.faulty - before
    problem = None
    if cursor or len(tools) > MAX_TOOLS or size > LISTED:
        problem, tools = f"its list does not end ({len(tools)} tools so far)", []
    elif not tools and (faulty or large):
        rule = (
            "their entries must follow the MCP schema"
            if faulty
            else f"a definition has {DEFINITION} characters at most"
        )
        problem = f"no valid tool among {faulty + large} listed: {rule}"
    text = (connection.client.instructions or "")[:2_000]
    how: Any = {"aliases": endpoint.aliases, "program": endpoint.program}
    return Listing(endpoint.name, text, tuple(tools), problem, faulty, large, **how)


def _said(log: Any, endpoint: Endpoint) -> str:
    """Why the program ended, in its guard's words; empty where it ended as it should."""
    log.seek(0)
    head, words, last = _PLACE.sub("", log.read(20 * REASON)).partition(guard.LAST_WORDS)
    end = " ".join(printable(endpoint.masked(last)).split())[-REASON:]
    return f"{shortened(head + words, endpoint)} {end}".rstrip()


def shortened(text: str, endpoint: Endpoint) -> str:
    """A failure's text in one line, without values of the server's entry."""
    return " ".join(printable(endpoint.masked(text)).split())[:REASON]


def innermost(error: BaseException) -> BaseException:
    """The first failure of a group."""
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    return error


def reason_of(error: BaseException, endpoint: Endpoint) -> str:
    """The innermost failure in one line."""
    error = innermost(error)
    if isinstance(error, ConnectionFailedError):
        return str(error)
    return shortened(f"{type(error).__name__}: {error}", endpoint)
