"""One connection to an MCP server with the official SDK: a transport with bounds, and the server's list of tools."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from http.client import responses
from pathlib import Path
from typing import Any

import httpx2
from mcp import Client, ClientSession, MCPError, StdioServerParameters
from mcp.client.sse import sse_client
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client
from mcp_types import CONNECTION_CLOSED, METHOD_NOT_FOUND, REQUEST_TIMEOUT, ErrorData, JSONRPCError, methods, version
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
NAMED = 5  # tools that are left out, by name
REASON = 400  # characters of a failure that are shown
# Lines of a traceback (Node, Python) that say where, not what.
_PLACE = re.compile(r"^\s*(?:at\s.*|File\s\".*|[~^]+)$", re.MULTILINE)
# What the SDK says in the place of a refusal without words.
_STAND_INS = ("Server returned an error response", "Not Found", "Session terminated")
BROKEN = "\ufffd"  # in the place of bytes, or half of a surrogate pair, that are no letter
OLDER = 5.0  # seconds to try the older HTTP
_BLANK = re.compile(rb"\n\n|\r\n\r\n|\r\r")
Notify = Callable[[Any], Awaitable[None]] | None


@dataclass(frozen=True)
class Listing:
    """What one server answered."""

    name: str
    description: str = ""
    tools: tuple[Mapping[str, Any], ...] = ()  # plain records
    problem: str | None = None  # what kept it from answering
    remark: str = ""  # what is odd about an answer that is taken
    faulty: int = 0  # tools that the protocol does not allow, which are left out
    large: int = 0  # tools whose definition is too long, which are left out
    aliases: tuple[str, ...] = ()  # other names of the server
    day: str = ""  # of the listing (ISO 8601); empty: today
    program: str = ""  # `Endpoint.program` of what answered
    seconds: float = 0.0  # from the start of the program, or the first request, to the end of the list


@dataclass
class Sieve:
    """The reading end of a transport without the tools, and the parts of results, that the protocol does not allow. The
    official client refuses a whole page, or a whole result, for one of them."""

    stream: Any = None
    faulty: list[str] = field(default_factory=list)  # tools left out, by what they call themselves
    failed: dict[Any, int] = field(default_factory=dict)  # the HTTP status of a refused request, by its id
    over: asyncio.Event = field(default_factory=asyncio.Event)  # set when the server says nothing more

    @asynccontextmanager
    async def around(self, transport: Any) -> AsyncIterator[tuple[Any, Any]]:
        """The transport with this reading end."""
        async with transport as (self.stream, writing):
            yield self, writing

    def sift(self, item: Any) -> Any:
        """One incoming message, mended in place: a list of tools, the result of a call, the error of an HTTP status."""
        message = getattr(item, "message", None)
        if isinstance(message, JSONRPCError) and (status := self.failed.pop(message.id, None)):
            phrase, error = responses.get(status, ""), message.error
            reason = "" if error.message in _STAND_INS else f": {error.message}"
            text = f"HTTP {status}{f' ({phrase})' if phrase else ''}{reason}"
            message.error = ErrorData(code=error.code, message=text, data={"status": status})
        result = getattr(message, "result", None)
        if not isinstance(result, dict):
            return item
        if isinstance(listed := result.get("tools"), list):
            # One more than the bound shows that there are too many; checking a million would take minutes.
            result["tools"] = []
            for tool in listed[: MAX_TOOLS + 1]:
                if allowed("tools/list", {"tools": [tool]}) and BROKEN not in json.dumps(tool, ensure_ascii=False):
                    result["tools"].append(tool)
                else:
                    name = tool.get("name") if isinstance(tool, dict) else tool
                    self.faulty.append(printable(f"{name!r:.40}"))
        if isinstance(result.get("content"), list) and not allowed("tools/call", result):
            mend_result(result)
        return item

    async def __aiter__(self) -> AsyncIterator[Any]:
        async for item in self.stream:
            yield self.sift(item)

    async def __aenter__(self) -> Sieve:
        await self.stream.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> Any:
        self.over.set()
        return await self.stream.__aexit__(*error)


def allowed(method: str, result: Any) -> bool:
    """Whether the protocol allows this result of a method."""
    try:
        methods.validate_server_result(method, version.LATEST_HANDSHAKE_VERSION, result)
    except (ValidationError, RecursionError):
        return False
    return True


def mend_result(result: dict[str, Any]) -> None:
    """Take out of a call's result what the protocol does not know, and say so in a text of it."""
    blocks = result["content"]
    rest = [block for block in blocks if allowed("tools/call", {"content": [block]})]
    kinds = [str(block.get("type") if isinstance(block, dict) else block)[:40] for block in blocks if block not in rest]
    odd = [f"a block of the kind {printable(kind)!r}" for kind in dict.fromkeys(kinds)]
    for key in [name for name in result if name != "content"]:
        if not allowed("tools/call", {"content": [], key: result[key]}):
            odd.append(printable(key[:40]))
            del result[key]
    text = f"[left out, as the protocol does not know it: {', '.join(odd[:5])}]"
    result["content"] = [*rest, {"type": "text", "text": text}]


def invalid(error: ValidationError) -> str:
    """The first fault that a check of the protocol found, without the value."""
    first = error.errors(include_url=False, include_input=False)[0]
    return printable(f"{'.'.join(map(str, first['loc']))}: {first['msg']}")[:REASON]


class ConnectionFailedError(Exception):
    """A server cannot be reached, or did not do what a server must; the text says why."""


@dataclass
class Connection:
    """An open session with one server. It must be closed by the task that opened it."""

    client: Client
    session: ClientSession  # the client's; also there when the client is closed, and then every request fails
    sieve: Sieve
    end: str = ""  # after the end: why the program ended by itself, in its guard's words


@asynccontextmanager
async def connected(endpoint: Endpoint, timeout: float, notify: Notify = None) -> AsyncIterator[Connection]:
    """Open a session and close it, with the program that was started for it. `timeout`: seconds for one answer.
    `notify`: receives the server's notifications. Raises ConnectionFailedError: any error, without values of the
    entry."""
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log:
        open_ = None
        try:
            async with AsyncExitStack() as stack:
                open_ = await _opened(endpoint, timeout, stack, log, notify)
                yield open_
        except Exception as error:  # a stranger's program may fail in any way
            raise ConnectionFailedError(_last_words(log, endpoint) or reason_of(error, endpoint)) from error
        finally:
            if open_ is not None:
                open_.end = _last_words(log, endpoint)


async def _opened(endpoint: Endpoint, timeout: float, stack: AsyncExitStack, log: Any, notify: Notify) -> Connection:
    """A session that begins with `initialize`, as every server of today knows it and some end on anything else; only
    with a server that refuses it, one of the protocol's next version, or the older HTTP with server-sent events."""
    ways: list[tuple[str, Endpoint, float | None]] = [("legacy", endpoint, None), ("auto", endpoint, None)]
    if endpoint.transport == "http":
        ways.append(("legacy", replace(endpoint, transport="sse"), OLDER))
    problem: Exception | None = None
    for mode, target, seconds in ways:
        if problem is not None and not _another_way(problem, target):
            break
        attempt, sieve = await stack.enter_async_context(AsyncExitStack()), Sieve()
        try:
            async with asyncio.timeout(seconds):
                transport = sieve.around(await _transport(target, timeout, attempt, log, sieve))
                how: Any = {"read_timeout_seconds": timeout, "cache": None, "mode": mode, "message_handler": notify}
                client = await attempt.enter_async_context(Client(transport, **how))
                return Connection(client, client.session, sieve)
        except Exception as error:  # a stranger's program may fail in any way
            problem = error if target is endpoint else problem
            await attempt.aclose()
    raise problem or AssertionError


def _another_way(problem: Exception, endpoint: Endpoint) -> bool:
    """Whether a server that refused the first message may take another: it answered, and an address did not refuse
    everybody."""
    error = innermost(problem)
    status = status_of(error)
    if endpoint.transport == "sse" or status is not None:
        return status in (400, 404, 405)
    return getattr(error, "code", CONNECTION_CLOSED) not in (CONNECTION_CLOSED, REQUEST_TIMEOUT)


async def _transport(endpoint: Endpoint, timeout: float, stack: AsyncExitStack, log: Any, sieve: Sieve) -> Any:
    if endpoint.command is not None:
        watched = ["-I", "-S", str(Path(guard.__file__)), str(MESSAGE), endpoint.command, *endpoint.args]
        program = {"command": sys.executable, "args": watched, "env": endpoint.environment, "cwd": endpoint.cwd}
        program |= {"encoding_error_handler": "replace"}  # one byte that is no letter must not end the connection
        return stdio_client(StdioServerParameters.model_validate(program), errlog=log)
    assert endpoint.url is not None
    headers = dict(endpoint.headers)
    if endpoint.transport == "sse":
        return sse_client(endpoint.url, headers=headers, timeout=timeout, httpx_client_factory=bounded_http)
    http = await stack.enter_async_context(bounded_http(headers=headers, failed=sieve.failed))
    return streamable_http_client(endpoint.url, http_client=http)


def bounded_http(*parts: Any, failed: dict[Any, int] | None = None, **named: Any) -> httpx2.AsyncClient:
    """The SDK's HTTP client (`create_mcp_http_client`), which breaks off a message of over `MESSAGE` bytes: a body,
    or what stands between two blank lines of an event stream. `failed`: takes the status of a refused request by id."""

    async def bound(response: httpx2.Response) -> None:
        if failed is not None and response.status_code >= 400 and response.request.method == "POST":
            with suppress(ValueError, KeyError):  # a notification has no id
                failed[json.loads(response.request.content)["id"]] = response.status_code
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        events = response.headers.get("content-type", "").startswith("text/event-stream")
        response.stream = Bounded(response.stream, events, "content-encoding" not in response.headers)

    client = create_mcp_http_client(*parts, **named)
    client.event_hooks = {"response": [*client.event_hooks["response"], bound]}
    return client


class Bounded(httpx2.AsyncByteStream):
    """A response's bytes, whole messages at a time, until one is too long. `plain`: they are not compressed, so that
    what is no letter can be seen (`guard.mended`)."""

    def __init__(self, stream: httpx2.AsyncByteStream, events: bool, plain: bool = True) -> None:
        self.stream, self.events, self.plain = stream, events, plain

    async def __aiter__(self) -> AsyncIterator[bytes]:
        held = bytearray()
        async for chunk in self.stream:
            new = max(len(held) - 3, 0)
            held += chunk
            ends = [match.end() for match in _BLANK.finditer(held, new)] if self.events else []
            if (ends[0] if ends else len(held)) > MESSAGE:
                raise ConnectionFailedError(f"a message is longer than {MESSAGE} bytes")
            if ends:
                yield self._mended(held[: ends[-1]])
                del held[: ends[-1]]
        if held:
            yield self._mended(held)

    def _mended(self, content: bytearray) -> bytes:
        return guard.mended(content.decode("utf-8", "replace").encode()) if self.plain else bytes(content)

    async def aclose(self) -> None:
        """Close the response."""
        await self.stream.aclose()


async def list_tools(endpoint: Endpoint, connection: Connection) -> Listing:
    """All pages of a server's tools; a list without end is its problem."""
    client, tools, cursors = connection.client, list[Mapping[str, Any]](), set[str | None]()
    cursor, remark, size, large, before = None, "", 0, 0, len(connection.sieve.faulty)
    for _ in range(MAX_PAGES):
        cursors.add(cursor)
        try:
            page = await client.list_tools(cursor=cursor)
        except MCPError as error:
            offered = client.server_capabilities.model_dump(exclude_none=True)
            if error.code != METHOD_NOT_FOUND or "tools" in offered:
                raise
            raise ConnectionFailedError(f"it offers no tools, but {', '.join(offered) or 'nothing'}") from error
        for tool in page.tools:
            record = tool.model_dump(by_alias=True, include={"name", "description", "input_schema"})
            length = len(json.dumps(record, default=str))
            if length > DEFINITION:
                large += 1
                continue
            tools.append(record)
            size += length
        cursor = page.next_cursor
        if cursor and cursor in cursors:
            remark, cursor = "the cursor of its list leads back", None
            tools = list({json.dumps(tool, sort_keys=True): tool for tool in tools}.values())
        endless = len(tools) > MAX_TOOLS or size > LISTED
        if not cursor or endless:
            break
    problem, faulty = None, connection.sieve.faulty[before:]
    if faulty:
        remark += f"{remark and '; '}left out, as the protocol does not allow it: {', '.join(faulty[:NAMED])}"
    if cursor or endless:
        problem, tools = f"its list does not end ({len(tools)} tools so far)", []
    elif not tools and (faulty or large):
        most = f"a definition has {DEFINITION} characters at most"
        rule = "their entries must follow the MCP schema" if faulty else most
        problem = f"no valid tool among {len(faulty) + large} listed: {rule}"
    text, how = (client.instructions or "")[:2_000], dict[str, Any](aliases=endpoint.aliases, program=endpoint.program)
    return Listing(endpoint.name, text, tuple(tools), problem, remark, len(faulty), large, **how)


def _last_words(log: Any, endpoint: Endpoint) -> str:
    """Why the program ended, in its guard's words; empty where it ended as it should."""
    log.seek(0)
    head, words, last = _PLACE.sub("", log.read(20 * REASON)).partition(guard.LAST_WORDS)
    end = " ".join(printable(endpoint.masked(last)).split())[-REASON:]
    return f"{shortened(head + words, endpoint)} {end}".rstrip()


def shortened(text: str, endpoint: Endpoint) -> str:
    """A failure's text in one line, without values of the server's entry."""
    return " ".join(printable(endpoint.masked(text)).split())[:REASON]


def status_of(error: BaseException) -> Any:
    """The HTTP status of a refusal (`Sieve.failed`), None of anything else."""
    return error.data.get("status") if isinstance(error, MCPError) and isinstance(error.data, dict) else None


def innermost(error: BaseException) -> BaseException:
    """The first failure of a group."""
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    return error


def reason_of(error: BaseException, endpoint: Endpoint) -> str:
    """The innermost failure in one line."""
    error = innermost(error)
    ours = isinstance(error, ConnectionFailedError)
    return str(error) if ours else shortened(f"{type(error).__name__}: {error}", endpoint)
