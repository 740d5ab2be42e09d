"""The address that the page and the MCP server listen on."""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from study.base.errors import StudyError

CONCRETE = "name the one address or host name that others use, e.g. --host 192.168.1.20"


def concrete(host: str) -> str:
    """`host`, if it resolves to addresses of one machine: the page answers only requests that name it.

    StudyError: an unknown host, or one that stands for every address of this machine, however it is written (``0``,
    ``0x0``, ``::ffff:0.0.0.0``, a name for one of them).
    """
    for address in _resolved(host):
        plain = getattr(address, "ipv4_mapped", None) or address
        if plain.is_unspecified:
            raise StudyError(f"{host!r:.80} stands for every address of this machine", column="--host", fix=CONCRETE)
    return host


def _resolved(host: str) -> list[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    if not host.strip("[] "):
        raise StudyError("an empty host stands for every address of this machine", column="--host", fix=CONCRETE)
    try:
        entries = socket.getaddrinfo(host.strip("[]"), None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise StudyError(f"there is no host {host!r:.80}", column="--host", fix=CONCRETE) from error
    return [ipaddress.ip_address(str(entry[4][0]).partition("%")[0]) for entry in entries]


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
