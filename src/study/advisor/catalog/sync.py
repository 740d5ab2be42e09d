"""Bringing the catalogue up to date: all sources that were asked for, or nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from study.advisor.catalog import official, store
from study.advisor.catalog.archived import READERS
from study.advisor.catalog.archives import archive_files
from study.advisor.catalog.own import own_servers
from study.advisor.catalog.records import Reader, Record
from study.advisor.catalog.settings import MINE, OFFICIAL, Sources
from study.advisor.catalog.store import Batch
from study.base.errors import StudyError, require_one_of, without_secrets


def sync(names: Sequence[str], *, url: str | None = None, full: bool = False) -> dict[str, Any]:
    """Read the named sources and make a new version of the catalogue.

    `url`, `full`: of the source ``official``: its address, and whether to ask for everything. Returns: the counts of
    `store.commit`. Raises StudyError: an unknown source, or one that cannot be read; the catalogue then stays as it is.
    """
    settings = Sources.read()
    for name in names:
        require_one_of(name, "source", [*READERS, OFFICIAL])
    with store.locked():
        batches, progress = [], None
        for name in dict.fromkeys(names):
            if name == OFFICIAL:
                batch, progress = official.poll(settings, url=url, full=full)
            else:
                archive, limits = settings.archives[name], settings.limits
                reader = Reader(name, limits.text, limits.tools)
                records = READERS[name](archive_files(archive, limits), reader, limits.file)
                about = {"repository": archive.repository, "commit": archive.commit}
                batch = Batch(name, records, reader.refused, True, about)
            batches.append(batch)
        counts = store.commit(batches, settings)
        if progress is not None:
            official.finished(progress)
    return counts


def add(source: str) -> dict[str, Any]:
    """Add the servers of a file or address to the user's own; one of the same name is replaced."""
    settings, file = Sources.read(), without_secrets(source)
    with store.locked():
        items, reader = own_servers(source, settings.limits)
        if not items:
            reason = "; ".join(f"{item.key}: {item.reason}" for item in reader.refused[:3]) or "it names none"
            raise StudyError(f"no server is taken ({reason})", file=file, fix="correct the entries")
        by_name = {record.key: record for record in [*_mine(), *items]}
        batch = Batch(MINE, list(by_name.values()), reader.refused, True, {"file": file})
        return store.commit([batch], settings) | {"added": [record.key for record in items], "refused": reader.refused}


def remove(name: str) -> str:
    """Take one of the user's own servers out; returns its id. StudyError for another server."""
    settings = Sources.read()
    with store.locked():
        server = store.find(name, store.read(store.required(), "servers"))
        before = _mine()
        remaining = [record for record in before if f"{MINE}:{record.key}" != server["id"]]
        if len(remaining) == len(before):
            fix = f"only your own servers (ids {MINE}:...) can be removed"
            raise StudyError(f"{server['id']} comes from a source, which would bring it back", fix=fix)
        store.commit([Batch(MINE, remaining, [], True, {})], settings)
    return str(server["id"])


def _mine() -> list[Record]:
    """The user's own servers."""
    table = store.read(store.current(), "records")
    return [Record.of_json(text) for text in table[(table["source"] == MINE) & (table["gone"] == "")]["record"]]
