"""The catalogue on disk: versions, of which one is in force.

A version is a folder with records.json.gz (every source's entries, tombstones included) and servers.json.gz (what they
are merged into), both by columns, refused.csv and about.json. A new one is written beside the old ones;
``current.json`` then names it in one step, so a stopped or failed sync leaves the old catalogue in force.
"""

from __future__ import annotations

import gzip
import json
import shutil
import tempfile
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd

from study.advisor.catalog.merge import COLUMNS, GONE, servers
from study.advisor.catalog.records import Record, Refusal, sha256
from study.advisor.catalog.settings import Sources
from study.base import files, paths
from study.base.errors import StudyError, UnavailableError
from study.base.files import locking

RECORDS = ("source", "key", "sha256", "seen", "changed", "gone", "note", "record")
_FIX = "run: study catalog sync --source toolsdk"


@dataclass(frozen=True)
class Batch:
    """What one source said."""

    source: str
    records: Sequence[Record]  # of an entry that is named twice the last counts
    refused: Sequence[Refusal]
    complete: bool  # whether entries that are not named are gone; one that was refused stays as it was known
    about: Mapping[str, Any]  # what is to be noted of the source, such as its commit


def folder() -> Path:
    """Where the catalogue is (never committed)."""
    return paths.root() / "data" / "catalog"


def now() -> str:
    """This second, UTC, as ISO 8601."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def locked() -> AbstractContextManager[None]:
    """One writer at a time; another one is refused at once."""
    return locking(folder() / "current.json", seconds=0)


def versions() -> list[Path]:
    """The versions on disk, oldest first."""
    return sorted(path for path in folder().glob("v[0-9]*") if (path / "about.json").is_file())


def current() -> Path | None:
    """The version in force, or None before the first sync."""
    path = folder() / "current.json"
    if not path.is_file():
        return None
    try:
        version: Path = folder() / json.loads(path.read_text(encoding="utf-8"))["version"]
    except (ValueError, KeyError, TypeError) as error:
        raise StudyError(f"cannot be read ({error})", file=path, fix=_FIX) from error
    if version not in versions():
        raise StudyError(f"names {version.name}, which is not there", file=path, fix=f"remove the file, then {_FIX}")
    return version


def required() -> Path:
    """The version in force; UnavailableError before the first sync."""
    if (version := current()) is None:
        fix = f"{_FIX}; or for servers of your own: study catalog add FILE"
        raise UnavailableError("there is no catalogue yet", file=folder(), fix=fix)
    return version


def read(version: Path | None, table: str) -> pd.DataFrame:
    """``records`` or ``servers`` of a version; empty without one."""
    if version is None:
        return pd.DataFrame(columns=list(RECORDS if table == "records" else COLUMNS))
    path = version / f"{table}.json.gz"
    try:
        return pd.DataFrame(json.loads(gzip.decompress(path.read_bytes())))
    except (OSError, EOFError, zlib.error, ValueError) as error:
        fix = f"remove the folder, then {_FIX}"
        raise StudyError(f"the catalogue does not load: {error}", file=path, fix=fix) from error


def commit(batches: Sequence[Batch], settings: Sources) -> dict[str, Any]:
    """Take what sources said into a new version; call it `locked`.

    Returns: counts, by source (read, new, changed, gone, refused) and of the merged servers. Where nothing changed, no
    version is made.
    """
    before = current()
    table, when = read(before, "records"), now()
    counts: dict[str, Any] = {}
    for batch in batches:
        table, counts[batch.source] = _updated(table, batch, when)
        counts[batch.source] |= {"refused": dict(Counter(item.what for item in batch.refused))}
    table = table.sort_values(["source", "key"], ignore_index=True)
    alive = table[table["gone"] == ""]
    fresh = {(batch.source, record.key): record for batch in batches for record in batch.records}
    notes, records = {}, []
    for source, key, note, text in alive[["source", "key", "note", "record"]].itertuples(index=False):
        record = fresh.get((source, key)) or Record.of_json(text)
        records += [record] if record.status != "deleted" else []
        if note:
            notes[source, key] = note
    old = read(before, "servers")
    merged = servers(records, settings.order, notes, old, when)
    living = merged[merged["status"] != GONE]
    totals = {"entries": len(alive), "servers": len(living), "tombstones": len(merged) - len(living)}
    answer = {"sources": counts, **totals}
    changed = any(row["new"] or row["changed"] or row["gone"] for row in counts.values())
    if before is not None and not changed and merged.equals(old):
        return answer | {"version": before.name, "unchanged": True}
    noted = {batch.source: {**batch.about, **counts[batch.source]} for batch in batches}
    about = {"made": when, **answer, "sources": noted}
    version = _write(table, merged, [item for batch in batches for item in batch.refused], about)
    for extra in versions()[: -settings.keep]:
        shutil.rmtree(extra)
    return answer | {"version": version.name, "unchanged": False}


def _updated(table: pd.DataFrame, batch: Batch, when: str) -> tuple[pd.DataFrame, dict[str, int]]:
    """The table of records after a batch, and what it changed."""
    mine = table["source"] == batch.source
    old: dict[str, Any] = {row["key"]: row for row in table[mine].to_dict("records")}
    latest = {record.key: record for record in batch.records}
    rows = []
    count = Counter(read=len(batch.records), new=0, changed=0, gone=0)
    for key, record in latest.items():
        text = record.to_json()
        row = dict(zip(RECORDS, (batch.source, key, sha256(text), when, when, "", "", text), strict=True))
        if (past := old.get(key)) is not None:
            equal = past["sha256"] == row["sha256"]
            note = past["note"] or ("" if equal else _changed_owner(Record.of_json(past["record"]), record, when))
            same = equal and not past["gone"]
            row |= {"seen": past["seen"], "note": note, "changed": past["changed"] if same else when}
            count["changed"] += not same
        else:
            count["new"] += 1
        rows.append(row)
    unread = {item.key for item in batch.refused if item.what == "entry"}
    for key, past in old.items():
        if key not in latest:
            lost = batch.complete and not past["gone"] and key not in unread
            count["gone"] += lost
            rows.append(past | ({"gone": when} if lost else {}))
    parts = [table[~mine], pd.DataFrame(rows, columns=list(RECORDS))]
    return pd.concat([part for part in parts if len(part)] or parts[:1], ignore_index=True), dict(count)


def _changed_owner(past: Record, record: Record, when: str) -> str:
    """A note where an entry names another owner's repository than before, one that was made anew, or none any more."""
    owners = [item.repository.rpartition("/")[0] for item in (past, record)]
    for what, (before, after) in (("owner", owners), ("repository id", [past.repository_id, record.repository_id])):
        if before and before != after:
            return f"{what} changed from {before} to {after or 'none'} ({when[:10]})"
    return ""


def _write(records: pd.DataFrame, merged: pd.DataFrame, refused: Sequence[Refusal], about: Mapping[str, Any]) -> Path:
    for left in folder().glob(".new-*"):  # of a killed sync
        shutil.rmtree(left)
    last = max((int(path.name[1:]) for path in versions()), default=0)
    target = folder() / f"v{last + 1:06d}"
    temporary = Path(tempfile.mkdtemp(prefix=".new-", dir=folder()))
    try:
        for table, frame in (("records", records), ("servers", merged)):
            files.write_json(temporary / f"{table}.json.gz", frame.to_dict("list"), compact=True)
        files.write_csv(temporary / "refused.csv", pd.DataFrame(refused, columns=list(Refusal._fields)))
        files.write_json(temporary / "about.json", about)
        temporary.chmod(0o755)
        temporary.rename(target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    files.write_json(folder() / "current.json", {"version": target.name})
    return target


def differences(old: pd.DataFrame, new: pd.DataFrame) -> pd.DataFrame:
    """What changed from one version's servers to another's.

    Returns: columns id, change (added, gone, changed), fields (of a changed one, such as ``description, packages``).
    """
    skipped = ("id", "members", "provenance", "sha256_description", "sha256_tools", "text_changed", "moved_to")
    watched = [name for name in COLUMNS if name not in skipped]
    before = old[old["status"] != GONE].set_index("id")
    after = new[new["status"] != GONE].set_index("id")
    rows = [(name, "added", "") for name in after.index.difference(before.index)]
    rows += [(name, "gone", "") for name in before.index.difference(after.index)]
    both = before.index.intersection(after.index)
    unequal = before.loc[both, watched] != after.loc[both, watched]
    for name in both[unequal.any(axis=1)]:
        rows.append((name, "changed", ", ".join(column for column in watched if unequal.at[name, column])))
    return pd.DataFrame(sorted(rows), columns=["id", "change", "fields"])


def find(name: str, table: pd.DataFrame) -> dict[str, Any]:
    """The server that `name` means: its id, or what only one has as name, package or name in a source, in any case.

    Raises StudyError: none or several; names up to five.
    """
    exact = table[table["id"] == name]
    if not len(exact):
        lower = name.lower()
        alive = table[table["status"] != GONE]
        ends = alive["id"].str.lower().str.endswith((f"/{lower}", f":{lower}"))
        packaged = alive["packages"].str.lower().str.contains(f'"identifier": "{lower}"', regex=False)
        member = alive["members"].str.lower().str.contains(f", {json.dumps(lower, ensure_ascii=False)}]", regex=False)
        same = (alive["id"].str.lower() == lower) | (alive["name"].str.lower() == lower)
        exact = alive[same | ends | packaged | member]
    if len(exact) == 1:
        return {str(key): value for key, value in exact.iloc[0].items()}
    fix = f"one of: {', '.join(exact['id'][:5])}" if len(exact) else "see: study catalog list WORD"
    raise StudyError(f"{f'{len(exact)} servers' if len(exact) else 'no server'} of the name {name!r:.80}", fix=fix)
