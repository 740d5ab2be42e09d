"""A user's own servers: from a server.json, or from the configuration of a client (`mcpServers`, `servers`).

Values of variables and arguments of commands may hold secrets: names are kept, values never.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from study.catalog import server_json
from study.catalog.archives import bounded
from study.catalog.records import Package, Reader, Record, RefusedError, Variable, package, remote, variable
from study.catalog.settings import MINE, Limits
from study.errors import StudyError

_FORMS = "give a server.json, or a client's configuration with `mcpServers` or `servers`"


def own_servers(source: str, limits: Limits, *, timeout: float = 30.0) -> tuple[list[Record], Reader]:
    """The servers that a file or https address describes.

    Raises StudyError: not readable, too large, not JSON, a key given twice, or no server in it.
    """
    try:
        text = _text(source, limits.file, timeout)
        value = json.loads(text, object_pairs_hook=unique_keys)
    except (OSError, ValueError, RecursionError) as error:  # OSError: all that `requests` raises, too
        raise StudyError(f"cannot be read ({type(error).__name__}: {error})", file=source, fix=_FORMS) from error
    reader, found = Reader(MINE, limits.text, limits.tools), []
    for name, item in _entries(value, source):
        try:
            if "/" in name and not isinstance(item.get("command"), str) and "url" not in item:
                found.append(server_json.record(reader, item, {}, vouched=False))
            else:
                found.append(_of_client(reader, name, item))
        except (RefusedError, TypeError, AttributeError, ValueError, KeyError) as error:
            reader.refuse(name, "entry", error)
    return found, reader


def _text(source: str, most: int, timeout: float) -> str:
    if re.match(r"https?://", source):
        if urlsplit(source).scheme != "https" and urlsplit(source).hostname not in ("localhost", "127.0.0.1"):
            raise ValueError("an address must use https")
        import requests

        with requests.get(source, stream=True, timeout=timeout) as answer:
            answer.raise_for_status()
            return bounded(answer, most).decode()
    if Path(source).stat().st_size > most:
        raise ValueError(f"more than {most:,} bytes")
    return Path(source).read_text(encoding="utf-8")


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose keys are given once; JSON would silently keep the last."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"a key is given twice: {next(name for name in names if names.count(name) > 1)!r:.80}")
    return found


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
        raise RefusedError(f"not a name of a server: {key!r:.80}")
    for part, kind in (("args", list), ("env", dict), ("headers", dict)):
        if not isinstance(item.get(part) or kind(), kind):  # a text would be taken letter by letter
            raise RefusedError(f"{part} of {key} must be {'a list of texts' if kind is list else 'names with values'}")
    url = item.get("url") or item.get("serverUrl")
    if url:
        headers = tuple(variable(header, header=True, secret=True) for header in item.get("headers") or {})
        transport = str(item.get("type") or "http")
        # Addresses, too, may carry a secret.
        place = str(url).partition("?")[0]
        return Record(MINE, key, key, remotes=(remote(transport, place, headers),))
    variables = tuple(variable(each, secret=True) for each in item.get("env") or {})
    packages: tuple[Package, ...] = ()
    try:
        packages = (of_command(str(item["command"]), [str(word) for word in item.get("args") or []], variables),)
    except RefusedError as error:
        reader.refuse(key, "package", error)
    return Record(MINE, key, key, packages=packages)


def of_command(command: str, words: Sequence[str], variables: tuple[Variable, ...]) -> Package:
    """The package that a command starts; words after it are not kept. RefusedError for another program."""
    program = Path(command).stem
    kinds = {"npx": "npm", "uvx": "pypi", "docker": "oci"}
    if program not in kinds:
        raise RefusedError(f"only packages started by npx, uvx or docker are kept, not {program!r:.40}")
    beside = [word for before, word in pairwise(words) if before == "--with"]
    apart = ("run", *beside, *(item.name for item in variables))
    plain = [word for word in words if not word.startswith("-") and word not in apart]
    if not plain:
        raise RefusedError(f"{program} is given no package")
    name, version = plain[0], ""
    if program == "npx" and "@" in name[1:]:
        name, _, version = name.rpartition("@")
    elif program == "uvx":
        name, version = (*re.split(r"==|@", name, maxsplit=1), "")[:2]
    return package(kinds[program], name, "" if version == "latest" else version, variables=variables)


def combined(known: Sequence[Record], found: Sequence[Record]) -> list[Record]:
    """A user's servers after some more; one of the same name is replaced."""
    return list(({record.key: record for record in known} | {record.key: record for record in found}).values())
