"""Sessions with a user's servers: started when first needed, kept, ended when idle, restarted, and always reaped.

A session lives in a task of its own, which opens and closes it. Opened inside a host's request it would break when the
host cancels that request, and take other calls with it.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from mcp import MCPError
from mcp_types import (
    CallToolRequest,
    CallToolRequestParams,
    CallToolResult,
    EmptyResult,
    PingRequest,
    ToolListChangedNotification,
)
from pydantic import ValidationError

from study.advisor.gateway.client_config import Endpoint
from study.advisor.gateway.connection import (
    Connection,
    ConnectionFailedError,
    Listing,
    connected,
    invalid,
    list_tools,
    reason_of,
    shortened,
    status_of,
)
from study.advisor.gateway.view import ServeSettings

PING_SECONDS = 2.0  # for a server whose call took too long to show that it lives
PAUSE_SECONDS = 0.5  # after a changed list, before the next one is asked for
CLOSE_SECONDS = 15.0  # for a session to end; the SDK's own limits add up to less
Listed = Callable[[Listing], Awaitable[object]]


class SessionOverError(ConnectionFailedError):
    """The server does not know the session any more; the call did not reach a tool."""


class Child:
    """One server. `listed` is awaited with its list of tools at every start and whenever it says that they changed."""

    def __init__(self, endpoint: Endpoint, settings: ServeSettings, listed: Listed) -> None:
        self.endpoint, self.settings, self.listed = endpoint, settings, listed
        self.life: asyncio.Task[None] | None = None
        self.ready: asyncio.Future[Connection] | None = None
        self.over, self.changed = asyncio.Event(), asyncio.Event()
        self.starting = asyncio.Lock()
        self.calls, self.used = 0, time.monotonic()  # uses that last; when the last one ended

    @property
    def running(self) -> bool:
        """Whether a session is open, or opens or closes."""
        return self.life is not None and not self.life.done()

    @asynccontextmanager
    async def using(self) -> AsyncIterator[Connection]:
        """The open session, a new one where there is none; it is not ended for being idle while it is used. Raises
        ConnectionFailedError: the server does not start."""
        self.calls += 1
        try:
            async with self.starting:
                if self.over.is_set() or not self.running:
                    await self.close()
                    self.over, self.ready = asyncio.Event(), asyncio.get_running_loop().create_future()
                    self.life = asyncio.create_task(self._live(self.ready, self.over))
            assert self.ready is not None
            yield await asyncio.shield(self.ready)
        finally:
            self.calls, self.used = self.calls - 1, time.monotonic()

    async def _live(self, ready: asyncio.Future[Connection], over: asyncio.Event) -> None:
        settings, reason, open_ = self.settings, "it was ended", None
        try:
            async with asyncio.timeout(settings.start_seconds) as clock:
                async with connected(self.endpoint, 2 * settings.call_seconds, self._notified) as open_:
                    await self._list(open_)
                    clock.reschedule(None)
                    ready.set_result(open_)
                    await self._keep(open_, over)
                    over.set()  # at once: a session that is being closed must not be used
        except TimeoutError:
            reason = f"it did not start within {settings.start_seconds:g} s"
        except Exception as error:  # a stranger's program may fail in any way
            reason = reason_of(error, self.endpoint)
        finally:
            over.set()
            if not ready.done():
                ready.set_exception(ConnectionFailedError((open_ and open_.end) or reason))
                ready.exception()  # seen, also where the host no longer waits

    async def _keep(self, connection: Connection, over: asyncio.Event) -> None:
        """Return when the session is at its end: told so, its server gone, or too long without a call."""
        ends = [asyncio.create_task(event.wait()) for event in (over, connection.sieve.over)]
        try:
            while True:
                idle = self.settings.idle_seconds - (0 if self.calls else time.monotonic() - self.used)
                changed = asyncio.create_task(self.changed.wait())
                done, _ = await asyncio.wait([*ends, changed], timeout=max(idle, 0), return_when="FIRST_COMPLETED")
                changed.cancel()
                if done & {*ends} or (not done and not self.calls):
                    return
                if changed in done:
                    self.changed.clear()
                    await self._list(connection)
                    await asyncio.sleep(PAUSE_SECONDS)
        finally:
            for task in ends:
                task.cancel()

    async def _list(self, connection: Connection) -> None:
        async with asyncio.timeout(self.settings.start_seconds):
            await self.listed(await list_tools(self.endpoint, connection))

    async def _notified(self, message: Any) -> None:
        if isinstance(message, ToolListChangedNotification):
            self.changed.set()

    async def call(self, connection: Connection, tool: str, arguments: dict[str, Any]) -> CallToolResult:
        """What a tool answers. Raises ConnectionFailedError: no answer, or one that is an error of the protocol."""
        # Not the SDK's call_tool: it checks results against schemas of the server's, without any bound.
        request = CallToolRequest(params=CallToolRequestParams(name=tool, arguments=arguments))
        settings, now = self.settings, asyncio.get_running_loop().time
        most = now() + max(settings.longest_seconds, settings.call_seconds)
        try:
            async with asyncio.timeout(settings.call_seconds) as clock:

                async def renew(*_: Any) -> None:
                    clock.reschedule(min(now() + settings.call_seconds, most))

                how: Any = {"request_read_timeout_seconds": 2 * (most - now()), "progress_callback": renew}
                return await connection.session.send_request(request, CallToolResult, **how)
        except TimeoutError:
            alive = await self._answers(connection)
            state = "it still runs" if alive else "it was ended, and starts again with the next call"
            waited = settings.longest_seconds if now() >= most else settings.call_seconds
            raise ConnectionFailedError(f"no answer within {waited:g} s; {state}") from None
        except ValidationError as error:
            raise ConnectionFailedError(f"its answer is no result of a tool: {invalid(error)}") from error
        except MCPError as error:
            said = shortened(error.message, self.endpoint)
            if self.endpoint.url is not None:
                # A server refuses a request for its session by 404, or by 400 with words.
                status = status_of(error)
                if status == 404 or (status == 400 and re.search("session|initializ", error.message, re.IGNORECASE)):
                    await self.close()
                    raise SessionOverError(said) from error
                if not await self._answers(connection):  # which alone shows that it is still there
                    raise ConnectionFailedError(f"it no longer answers: {said}") from error
            if not connection.sieve.over.is_set():
                raise ConnectionFailedError(said) from error
            await self.close()
            raise ConnectionFailedError(f"it ended during the call: {connection.end or 'no reason given'}") from error

    async def _answers(self, connection: Connection) -> bool:
        """Whether the server still answers; one that does not is ended."""
        with suppress(TimeoutError, MCPError):
            async with asyncio.timeout(PING_SECONDS):
                await connection.session.send_request(PingRequest(), EmptyResult)
                return True
        await self.close()
        return False

    async def close(self) -> None:
        """End the session and wait until its program is gone."""
        self.over.set()
        if self.life is not None:
            await asyncio.wait([self.life], timeout=CLOSE_SECONDS)


class Pool:
    """The children by the names of their servers; at most `most_running` of them run."""

    def __init__(self, endpoints: Sequence[Endpoint], settings: ServeSettings, listed: Listed) -> None:
        self.most = settings.most_running
        self.children = {endpoint.name: Child(endpoint, settings, listed) for endpoint in endpoints}

    async def child(self, server: str) -> Child:
        """A server's child, after another one made room for it."""
        chosen = self.children[server]
        running = [child for child in self.children.values() if child.running and child is not chosen]
        if len(running) >= self.most and not chosen.running:
            idle = [child for child in running if not child.calls]
            if not idle:
                raise ConnectionFailedError(f"{len(running)} servers are at work, and no more may run; try again later")
            await min(idle, key=lambda child: child.used).close()
        return chosen

    async def close(self) -> None:
        """End all sessions."""
        await asyncio.gather(*(child.close() for child in self.children.values()))
