"""A registry with the official interface, polled page by page: GET /v0.1/servers.

The first poll is full; later ones ask for what was updated since, which names deletions, too. Every page is kept on
disk before the next is asked for, so a stopped poll goes on where it was. A full poll starts at most once an hour.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode, urlsplit

from study.advisor.catalog import server_json, store
from study.advisor.catalog.archives import bounded, within
from study.advisor.catalog.records import BAD, Reader
from study.advisor.catalog.settings import OFFICIAL, Registry, Sources
from study.advisor.catalog.store import Batch, now
from study.base.errors import StudyError
from study.base.files import require_plain, write_json, write_text

if TYPE_CHECKING:
    import requests

ADDRESS = "T2M_REGISTRY"
# A poll that was stopped longer ago than this starts again: its cursor and its first pages are out of date.
_RESUME = timedelta(days=1)


@dataclass(frozen=True)
class Progress:
    """What is known of a registry between polls, and (from `began` on) of a poll under way."""

    url: str  # the registry's address; another one starts from nothing
    watermark: str = ""  # the latest `updatedAt` seen in a finished poll; empty before the first
    full: str = ""  # when the last full poll began
    began: str = ""
    since: str = ""
    cursor: str = ""
    pages: int = 0  # that lie on disk, with so many entries and bytes
    entries: int = 0
    bytes: int = 0


def address(url: str | None, settings: Registry) -> str:
    """The registry's address, from the command, the variable T2M_REGISTRY or the settings; StudyError without one."""
    chosen = (url or os.environ.get(ADDRESS) or settings.url).rstrip("/")
    parts = urlsplit(chosen)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or "@" in parts.netloc:
        reason = f"{chosen!r:.80} is no address of a registry" if chosen else "the registry's address is not known"
        raise StudyError(reason, fix=f"give the registry's address: --url https://..., or set {ADDRESS}")
    return chosen


def poll(settings: Sources, *, url: str | None = None, full: bool = False) -> tuple[Batch, Progress]:
    """Ask the registry for what is new, or for everything (`full`, or the first time).

    Returns: the entries, and what `finished` is to keep once they are in the catalogue. Raises StudyError: no address,
    a full poll within the hour, or a registry that fails; pages read so far stay for the next call.
    """
    import requests  # a sync of archives, and each start command, go without

    where = address(url, settings.registry)
    state = _load(where)
    if state.began and (_date(now()) - _date(state.began) > _RESUME or (full and state.since)):
        state = _forget_pages(state)
    if not state.began:
        state = _begin(state, settings.registry, full)
    with requests.Session() as session:
        state = _all_pages(session, state, settings)
    entries = [entry for page in range(state.pages) for entry in json.loads(_page(page).read_text(encoding="utf-8"))]
    batch, latest = _batch(entries, state, settings)
    # A date in the future would hide everything that is updated before it.
    watermark = max(state.watermark, min(latest, _utc(state.began)))
    return batch, _forget_pages(replace(state, watermark=watermark))


def finished(state: Progress) -> None:
    """Keep what the next poll starts from; the pages on disk are not needed any more."""
    _save(state)
    for path in _folder().glob("page-*.json"):
        path.unlink()


def _begin(state: Progress, settings: Registry, full: bool) -> Progress:
    if state.watermark and not full:
        since = _date(state.watermark) - timedelta(seconds=settings.overlap)
        return replace(state, began=now(), since=since.strftime("%Y-%m-%dT%H:%M:%SZ"))
    if state.full and (waited := (_date(now()) - _date(state.full)).total_seconds()) < settings.full_every:
        fix = f"wait {settings.full_every - waited:.0f} seconds"
        fix += ", or sync without --full" if state.watermark else ""
        raise StudyError(f"the last full poll began {waited:.0f} seconds ago", file=state.url, fix=fix)
    started = replace(state, began=now(), full=now(), since="")
    _save(started)  # a poll that fails counts, too
    return started


def _all_pages(session: requests.Session, state: Progress, settings: Sources) -> Progress:
    """Read pages until the last."""
    seen, until, registry = {state.cursor}, time.monotonic() + settings.limits.seconds, settings.registry
    # Stopped after the last page, before the catalogue was written.
    while not (state.pages and not state.cursor):
        query = {"limit": str(registry.page), "version": "latest"}
        query |= {"updated_since": state.since} if state.since else {"include_deleted": "true"}
        query |= {"cursor": state.cursor} if state.cursor else {}
        target = f"{state.url}/v0.1/servers?{urlencode(query)}"
        try:
            body = _get(session, target, settings, until)
        except _GoneError as error:
            if not state.cursor:
                raise StudyError(str(error), file=target, fix="check the address") from error
            state = _forget_pages(state)
            _save(state)
            fix = "run the same command later; it starts from the first page"
            raise StudyError(f"the registry no longer knows the place ({error})", file=state.url, fix=fix) from error
        entries, cursor = _parsed(body, target)
        # As it came: an entry that holds what no file may hold is refused by itself, by `_batch`.
        write_text(_page(state.pages), text := json.dumps(entries, separators=(",", ":")))
        read, size = state.entries + len(entries), state.bytes + len(text)
        state = replace(state, cursor=cursor, pages=state.pages + 1, entries=read, bytes=size)
        _save(state)
        bounds = {"pages": registry.pages, "entries": registry.entries, "bytes": settings.limits.archive}
        over = [
            f"has more than {most} {what}" for what, most in bounds.items() if vars(state)[what] + bool(cursor) > most
        ]
        over += [f"repeats the cursor {cursor!r:.60}"] if cursor and cursor in seen else []
        if over:
            _save(_forget_pages(state))
            fix = "try again later; the limits stand in conf/catalog/sources.yaml"
            raise StudyError(f"the registry {over[0]}", file=target, fix=fix)
        seen.add(cursor)
    return state


class _GoneError(Exception):
    """The registry refuses a request as it is (4xx)."""


def _get(session: requests.Session, target: str, settings: Sources, until: float) -> bytes:
    """Body of one answer, with further attempts after failures, while the poll may last (`until`, as of
    `time.monotonic`). urllib3's own attempts would read the whole body of a failure, however long."""
    registry, problem = settings.registry, ""

    def ask() -> tuple[int, bytes, Mapping[str, str]]:
        # Redirects could lead anywhere, and a registry's own address needs none.
        how: Any = {"timeout": registry.timeout, "stream": True, "allow_redirects": False}
        with session.get(target, headers={"Accept": "application/json"}, **how) as answer:
            body = bounded(answer, settings.limits.answer) if answer.status_code == 200 else b""
            return answer.status_code, body, answer.headers

    for attempt in range(registry.retries + 1):
        wait = registry.pause * 2**attempt
        if (left := until - time.monotonic()) <= 0:
            problem += f"; a poll may take {settings.limits.seconds:g} s"
            break
        try:
            status, body, about = within(left, ask)
            if status == 200:
                return body
            problem = f"HTTP {status}"
            if status not in (429, 500, 502, 503, 504):
                raise _GoneError(problem)
            if (delay := about.get("Retry-After", "")).isdigit():
                wait = max(wait, min(int(delay), 60))
        except (OSError, ValueError) as error:  # OSError: all that `requests` raises
            problem = f"{type(error).__name__}: {error}"
        if attempt < registry.retries:
            time.sleep(min(wait, max(until - time.monotonic(), 0)))
    fix = "run the same command again; it goes on from here"
    raise StudyError(f"the registry does not answer ({problem.lstrip('; '):.200})", file=target, fix=fix)


def _parsed(body: bytes, target: str) -> tuple[list[Any], str]:
    try:
        value = json.loads(body)
        entries, about = value["servers"], value.get("metadata") or {}
        cursor = about.get("nextCursor") or about.get("next_cursor") or ""
        if not isinstance(entries, list) or not isinstance(cursor, str) or len(cursor) > 4000:
            raise TypeError("`servers` is no list, or the cursor no text")
    except BAD as error:
        reason = f"not a list of servers ({type(error).__name__}: {error})"
        raise StudyError(reason, file=target, fix="check the address") from error
    return entries, cursor


def _batch(entries: list[Any], state: Progress, settings: Sources) -> tuple[Batch, str]:
    """The entries as records (of several of one name the one updated last), and the latest date among them."""
    reader = Reader(OFFICIAL, settings.limits.text, settings.limits.tools)
    records: dict[str, Any] = {}
    latest, nameless = "", False
    for entry in entries:
        name = "?"
        try:
            value = entry.get("server", entry)
            name = str(value.get("name"))
            require_plain(entry)
            meta = entry.get("_meta") or {}
            about = meta.get(server_json.META) or {}
            record = server_json.record(reader, value, about, vouched=True)
            latest = max(latest, _utc(record.updated))
            if record.key not in records or _utc(record.updated) >= _utc(records[record.key].updated):
                records[record.key] = record
        except BAD as error:
            nameless |= name == "?"
            reader.refuse(name, "entry", error)
    # Where an entry that was refused has no name, nobody knows what the listing lacks.
    complete = not state.since and not nameless
    about = {"url": state.url, "full": not state.since, "pages": state.pages}
    return Batch(OFFICIAL, list(records.values()), reader.refused, complete, about), latest


def _utc(text: str) -> str:
    """A date of the registry in one form that sorts; empty where it is none."""
    try:
        return _date(text).strftime("%Y-%m-%dT%H:%M:%S.%fZ") if text else ""
    except (ValueError, OverflowError):
        return ""


def _date(text: str) -> datetime:
    date = datetime.fromisoformat(text)
    return date.astimezone(UTC) if date.tzinfo else date.replace(tzinfo=UTC)


def _folder() -> Path:
    return store.folder() / OFFICIAL


def _page(number: int) -> Path:
    return _folder() / f"page-{number:05d}.json"


def _load(url: str) -> Progress:
    path = _folder() / "progress.json"
    try:
        state = Progress(**json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return Progress(url)
    except (ValueError, TypeError) as error:
        fix = "remove the file; the next poll is a full one"
        raise StudyError(f"cannot be read ({error})", file=path, fix=fix) from error
    return state if state.url == url else Progress(url)


def _save(state: Progress) -> None:
    write_json(_folder() / "progress.json", asdict(state))


def _forget_pages(state: Progress) -> Progress:
    return replace(state, began="", since="", cursor="", pages=0, entries=0, bytes=0)
