"""Records of marketplaces in one form (section 3.1): who offers a server, how it is started, which secrets it wants.

Marketplaces describe a server in their own ways: a client configuration (``mcpServers`` with a command or an address),
a search result (``content_name``, ``detail_url``), or a row of server information (``all_paths``). One listing is not
one server: listings become servers by their tool descriptions, see `study.tools.catalogues.merge`.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from study.data.raw_files import read_text
from study.errors import StudyError

# Marketplaces by the spellings under which records and folders name them.
MARKETS = {name: name for name in ("smithery", "glama", "mcpso", "mcphub", "pipedream", "deepnlp", "manual")}
MARKETS |= {"mcp.so": "mcpso", "pulsemcp": "deepnlp"}
NAMES, TEXTS = ("name", "content_name", "title", "qualifiedName"), ("description", "summary", "subtitle")
# An option whose value is a secret or a placeholder for one.
SECRET = re.compile(r"(key|token|secret|password|profile|auth)", re.IGNORECASE)
MAX_NAME = 200


@dataclass(frozen=True)
class Listing:
    """One server as one marketplace lists it."""

    market: str  # a value of `MARKETS`
    name: str  # name, description: as listed, white space unified; the description may be empty
    description: str
    transport: str = ""  # stdio, http, or empty where the record does not say
    command: tuple[str, ...] = ()  # program and arguments without secrets, or the address without its query
    needs: tuple[str, ...] = ()  # names of the secrets that it must be given; never their values


def read_listings(path: Path) -> list[Any]:
    """The records of a JSON file."""
    fix = "give a JSON list of records"
    try:
        value = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise StudyError(f"not valid JSON ({error})", file=path, fix=fix) from error
    if not isinstance(value, list):
        raise StudyError("not a list", file=path, fix=fix)
    return value


def normalise(records: Iterable[Any], market: str | None = None) -> tuple[list[Listing], Counter[str]]:
    """Listings in the order of the records, and how often each problem left one out. `records`: plain JSON values.
    `market`: of all records; None reads it from each (``market``, ``source``, ``marketplace``)."""
    found: list[Listing] = []
    problems: Counter[str] = Counter()
    for record in records:
        if not isinstance(record, Mapping):
            problems["not an object"] += 1
            continue
        given = market or next((record[k] for k in ("market", "source", "marketplace") if k in record), None)
        known = MARKETS.get(str(given).strip().lower())
        if known is None:
            problems["unknown marketplace"] += 1
            continue
        configured = record.get("mcpServers")
        parts = configured.items() if isinstance(configured, Mapping) else [(None, record)]
        for name, part in parts:
            listing = _listing(known, name, record, part if isinstance(part, Mapping) else {})
            if listing is None:
                problems["no name"] += 1
            elif any((listing.market, listing.name) == (other.market, other.name) for other in found):
                problems["listed twice in one marketplace"] += 1
            else:
                found.append(listing)
    return found, problems


def _listing(market: str, name: Any, record: Mapping[str, Any], part: Mapping[str, Any]) -> Listing | None:
    title = _first(record, NAMES) or _text(name)
    if not title:
        return None
    description = _first(record, TEXTS)
    url = _text(part.get("url"))
    if url:
        return Listing(market, title, description, "http", (_address(url),), _needs(part, ()))
    arguments, program = part.get("args"), _text(part.get("command"))
    if not program:
        return Listing(market, title, description, needs=_needs(part, ()))
    words = [item for item in arguments if isinstance(item, str)] if isinstance(arguments, list) else []
    return Listing(market, title, description, "stdio", (program, *_public(words)), _needs(part, words))


def _public(words: list[str]) -> list[str]:
    """Arguments without the values that follow an option for a secret."""
    kept, hide = [], False
    for word in words:
        option = word.startswith("-") and SECRET.search(word.partition("=")[0]) is not None
        if not hide:
            kept.append(word.partition("=")[0] if option else word)
        hide = option and "=" not in word
    return kept


def _needs(part: Mapping[str, Any], words: Iterable[str]) -> tuple[str, ...]:
    named = [word.partition("=")[0].lstrip("-") for word in words if word.startswith("-") and SECRET.search(word)]
    for own in (part.get("env"), part.get("headers")):
        named += map(str, own) if isinstance(own, Mapping) else ()
    return tuple(dict.fromkeys(named))


def _address(url: str) -> str:
    """An address without user, query and fragment, where keys are often put."""
    try:
        parts = urlsplit(url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}" if parts.netloc else ""
    except ValueError:
        return ""


def _first(record: Mapping[str, Any], keys: Iterable[str]) -> str:
    return next((text for key in keys if (text := _text(record.get(key)))), "")


def _text(value: Any) -> str:
    clean = " ".join(value.split()).encode("utf-8", "replace").decode() if isinstance(value, str) else ""
    return clean if len(clean) <= MAX_NAME * 100 else clean[: MAX_NAME * 100]
