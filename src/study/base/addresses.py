"""Which machines an address leads to."""

from __future__ import annotations

import ipaddress
import socket

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def resolved(host: str) -> list[Address]:
    """The IP addresses of a host, in brackets or not; those of an empty one stand for every address of this machine.
    Raises OSError, UnicodeError: there is no such host."""
    named = host.strip("[] ").partition("%")[0].rstrip(".") or "0.0.0.0"  # noqa: S104
    entries = socket.getaddrinfo(named, None, type=socket.SOCK_STREAM)
    return [ipaddress.ip_address(str(entry[4][0]).partition("%")[0]) for entry in entries]


def unmapped(address: Address) -> Address:
    """The IPv4 address that an IPv6 address stands for (``::ffff:127.0.0.1``), else the address."""
    return getattr(address, "ipv4_mapped", None) or address


def is_near(host: str) -> bool:
    """Whether a host is this machine or one of its network, which strangers do not reach. One that is not found here
    is not: a proxy may find it."""
    try:
        return not all(unmapped(address).is_global for address in resolved(host))
    except (OSError, UnicodeError):
        return False
