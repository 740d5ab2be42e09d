"""An address on this machine, and what answers there over HTTP: the page and both MCP servers."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from study.base.addresses import Address, resolved, unmapped
from study.base.errors import StudyError

# What to do about a host that stands for every address.
CONCRETE = "name the one address or host name that others use, e.g. --host 192.168.1.20"
SECONDS = 30.0  # for a request to come, head and body; the answer may take any time
CONNECTIONS = 500  # at once, also those of answers that go on


def concrete(host: str) -> str:
    """`host`, if it resolves to addresses of one machine: only requests that name it are answered.

    StudyError: an unknown host, or one that stands for every address of this machine, however it is written (``0``,
    ``0x0``, ``::ffff:0.0.0.0``, a name for one of them).
    """
    if any(unmapped(address).is_unspecified for address in _resolved(host)):
        raise StudyError(f"{host!r:.80} stands for every address of this machine", column="--host", fix=CONCRETE)
    return host


def _resolved(host: str) -> list[Address]:
    try:
        return resolved(host)
    except (OSError, UnicodeError) as error:
        raise StudyError(f"there is no host {host!r:.80}", column="--host", fix=CONCRETE) from error


@contextmanager
def listening(host: str, port: int) -> Iterator[socket.socket]:
    """A socket that listens on host and port. StudyError: the port is taken, or the address is not this machine's."""
    family = socket.AF_INET6 if _resolved(host)[0].version == 6 else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as bound:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            bound.bind((host.strip("[]"), port))
            bound.listen(2048)
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else str(error)
            fix = "--port with another number (0 takes a free one), and a --host of this machine"
            raise StudyError(f"cannot listen on {host} port {port}: {reason}", fix=fix) from error
        yield bound


class Bounded(H11Protocol):
    """A connection that ends where a request, head and body, does not come within `SECONDS`. uvicorn itself bounds
    the time between two requests alone."""

    late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """The time begins."""
        super().connection_made(transport)
        self.watch()

    def data_received(self, data: bytes) -> None:
        """A part of a request, or all of it."""
        super().data_received(data)
        self.watch()

    def on_response_complete(self) -> None:
        """The time of the next request begins."""
        super().on_response_complete()
        self.watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """The time ends."""
        super().connection_lost(exc)
        self.stop()

    def watch(self) -> None:
        """Let the time run while a request is to come, and not while it is answered."""
        if self.cycle is not None and not self.cycle.more_body and not self.cycle.response_complete:
            self.stop()
        elif self.late is None and not self.transport.is_closing():
            self.late = self.loop.call_later(SECONDS, self.transport.close)

    def stop(self) -> None:
        """Let no time run."""
        if self.late is not None:
            self.late.cancel()
            self.late = None


def settings(app: ASGIApp) -> uvicorn.Config:
    """How an application is served."""
    how: Any = {"log_level": "warning", "access_log": False, "server_header": False, "ws": "none"}
    return uvicorn.Config(app, http=Bounded, limit_concurrency=CONNECTIONS, **how)


def serve(app: ASGIApp, bound: socket.socket) -> None:
    """Answer at a listening socket until the program is ended."""
    uvicorn.Server(settings(app)).run(sockets=[bound])
