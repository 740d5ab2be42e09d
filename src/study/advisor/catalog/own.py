"""A user's own servers: from a server.json, or from the configuration of a client (`mcpServers`, `servers`).

Values of variables and arguments of commands may hold secrets: names are kept, values never.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from study.advisor.catalog import server_json
from study.advisor.catalog.archives import fetched, within
from study.advisor.catalog.commands import of_command
from study.advisor.catalog.records import Reader, Record, RefusedError, Variable, remote, variable
from study.advisor.catalog.settings import MINE, Limits
from study.base.errors import StudyError, without_secrets
from study.base.files import require_regular, strangers_json

_ADDRESS = re.compile(r"https?://", re.IGNORECASE)
OWN_MACHINE = ("localhost", "127.0.0.1", "::1")
_READ = 30.0  # seconds without a byte
_FORMS = "give a server.json, or a client's configuration with `mcpServers` or `servers`"


def own_servers(source: str, limits: Limits) -> tuple[list[Record], Reader]:
    """The servers that a file or https address describes.

    Raises StudyError: not readable, too large, not JSON, a key given twice, or no server in it.
    """
    file = without_secrets(source)
    try:
        value = strangers_json(within(limits.seconds, lambda: _content(source, limits.file)))
    except (OSError, ValueError) as error:
        # What `requests` raises (an OSError) holds the whole address.
        status = getattr(getattr(error, "response", None), "status_code", "")
        quotes = _ADDRESS.match(source) and isinstance(error, OSError) and not isinstance(error, TimeoutError)
        reason = status if quotes else error
        raise StudyError(f"cannot be read ({type(error).__name__}: {reason})", file=file, fix=_FORMS) from None
    reader = Reader(MINE, limits.text, limits.tools, quoting=False)

    def record(pair: tuple[str, Mapping[str, Any]]) -> Record:
        name, item = pair
        if "/" in name and not isinstance(item.get("command"), str) and "url" not in item:
            return server_json.record(reader, item, {}, vouched=False)
        return _of_client(reader, name, item)

    pairs = _entries(value, file)
    return [each for pair in pairs for each in reader.taken(pair[0], "entry", [pair], record)], reader


def _content(source: str, most: int) -> bytes:
    if not _ADDRESS.match(source):
        require_regular(Path(source))
        if Path(source).stat().st_size > most:
            raise ValueError(f"more than {most:,} bytes")
        return Path(source).read_bytes()
    parts = urlsplit(source)
    if parts.scheme != "https" and parts.hostname not in OWN_MACHINE:
        raise ValueError("an address must use https, also one that it redirects to")
    return fetched(source, most, _READ)


def _entries(value: object, source: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if isinstance(value, dict):
        if isinstance(value.get("name"), str) and ("packages" in value or "remotes" in value):
            yield value["name"], value
            return
        listed = next(
            (value[key] for key in ("mcpServers", "servers", "context_servers") if isinstance(value.get(key), dict)),
            None,
        )
        if listed:
            yield from listed.items()
            return
    raise StudyError("describes no server", file=source, fix=_FORMS)


def _of_client(reader: Reader, name: str, item: Mapping[str, Any]) -> Record:
    """One entry of a client's configuration."""
    key = reader.words(name, what="name")
    if not re.fullmatch(r"[\w.@/ -]{1,200}", key) or ".." in key:
        raise RefusedError("not a name of a server", key)
    for part, kind in (("args", list), ("env", dict), ("headers", dict)):
        if not isinstance(item.get(part) or kind(), kind):  # a text would be taken letter by letter
            raise RefusedError(f"{part} of {key} must be {'a list of texts' if kind is list else 'names with values'}")
    url = item.get("url") or item.get("serverUrl")
    if url:
        headers = _variables(reader, key, item.get("headers") or {}, header=True)
        address = re.split(r"[?#]", str(url), maxsplit=1)[0]  # what follows may be secret
        return Record(MINE, key, key, remotes=(remote(str(item.get("type") or "http"), address, headers),))
    words = [str(item["command"]), *map(str, item.get("args") or [])]
    packages = reader.taken(key, "package", [words], lambda words: of_command(words[0], words[1:]))
    variables = _variables(reader, key, item.get("env") or {}) if packages else ()
    return Record(MINE, key, key, packages=tuple(replace(each, variables=variables) for each in packages))


def _variables(reader: Reader, key: str, names: Mapping[str, Any], *, header: bool = False) -> tuple[Variable, ...]:
    """The variables or headers that can be kept; another one is refused by itself."""
    what = "header" if header else "variable"
    return reader.taken(key, what, names, lambda name: variable(name, header=header, secret=True))
