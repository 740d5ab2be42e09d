"""From entries of several sources to servers: which entries are one server, and which source says what of it.

Entries are one server if they name the same package and their sources vouch for it, or if they name the same
repository (and folder) and no source has several entries there. A repository that one source lists several times holds
several servers. Nothing follows chains of names, so renames cannot run in a circle.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from study.advisor.catalog.records import Package, Record, Remote, sha256
from study.advisor.catalog.settings import MINE

# Fields that come from the first source that has one.
_PLAIN = ("name", "description", "repository", "subfolder", "version", "licence", "category", "updated")
COLUMNS = (
    *("id", *_PLAIN, "status", "official", "stars", "tags", "tools", "packages", "remotes"),
    *("members", "provenance", "notes", "sha256_description", "sha256_tools", "text_changed", "moved_to"),
)
GONE = "gone"
# One for all; `vars` takes a tenth of the time of `asdict`.
_ENCODER = json.JSONEncoder(default=vars, ensure_ascii=False)


def clusters(records: Sequence[Record]) -> list[list[int]]:
    """Rows of `records` that are one server, each group in order. A user's own entries stay alone."""
    joined = list(range(len(records)))  # of each row one that it is joined to; itself for the group's first

    def group_of(row: int) -> int:
        while joined[row] != row:
            joined[row] = row = joined[joined[row]]
        return row

    first: dict[Any, int] = {}
    places = defaultdict(list)
    for row, record in enumerate(records):
        if record.source == MINE:
            continue
        place = record.repository, record.subfolder
        for package in record.packages:
            keys: list[Any] = [package.key] if package.vouched else []
            # A claim that nobody checked joins entries of one repository only.
            keys += [(package.key, *place)] if record.repository else []
            for key in keys:
                joined[group_of(row)] = group_of(first.setdefault(key, row))
        if record.repository and record.owns:
            places[place].append(row)
    for rows in places.values():
        groups = {(records[row].source, group_of(row)) for row in rows}
        if len(groups) == len({source for source, _ in groups}):
            for row in rows:
                joined[group_of(row)] = group_of(rows[0])
    members = defaultdict(list)
    for row in range(len(records)):
        members[group_of(row)].append(row)
    return sorted(members.values())


def ways(server: Mapping[Any, Any]) -> list[dict[str, Any]]:
    """The ways to start a server (a row of `COLUMNS`): its packages, which have a `registry`, and its addresses."""
    return [*json.loads(server["packages"]), *json.loads(server["remotes"])]


def servers(
    records: Sequence[Record],
    order: Sequence[str],
    notes: Mapping[tuple[str, str], str],
    gone: pd.DataFrame | None = None,
    when: str = "",
) -> pd.DataFrame:
    """The servers that `records` describe, one row each, columns `COLUMNS`, sorted by id.

    `order`: sources, the first wins a field. `notes`: by source and key what is to be known of an entry, such as a
    change of owner; its packages are then vouched for by nobody. `gone`: the servers before (columns `COLUMNS`); those
    whose id is no more stay as tombstones of status ``gone``, and `moved_to` names the servers that have their entries.
    `when`: the date that `text_changed` has where description or tools are not what they were in `gone`.
    """
    rank = {source: position for position, source in enumerate(order)}
    records = [_doubted(item) if (item.source, item.key) in notes else item for item in records]

    def place(record: Record) -> tuple[int, str]:
        return rank[record.source], record.key

    groups = [sorted((records[row] for row in rows), key=place) for rows in clusters(records)]
    claims: dict[str, list[bool]] = defaultdict(list)
    for group in groups:
        claims[_repository_name(group)].append(_vouched(group))
    rows, used = [], set()
    for group in sorted(groups, key=lambda group: place(group[0])):
        server = _server(group, notes)
        address = _repository_name(group)
        # The repository's name is for its only server, or the only one that a source vouches for.
        alone = len(claims[address]) == 1 or (_vouched(group) and sum(claims[address]) == 1)
        choices = [
            *([address] if address and alone else []),
            *(package.key for record in group for package in record.packages if package.vouched),
        ]
        server["id"] = next((name for name in choices if name not in used), f"{group[0].source}:{group[0].key}")
        used.add(server["id"])
        rows.append(server)
    gone = pd.DataFrame(columns=list(COLUMNS)) if gone is None else gone
    watched = ["sha256_description", "sha256_tools"]
    rows_before = {row["id"]: row for row in gone[["id", *watched, "text_changed"]].to_dict("records")}
    for server in rows:
        if (past := rows_before.get(server["id"])) is not None:
            same = all(past[name] == server[name] for name in watched)
            server["text_changed"] = past["text_changed"] if same else when
    frame = pd.DataFrame(rows, columns=list(COLUMNS))
    return _with_tombstones(frame, gone).sort_values("id", ignore_index=True)


def _vouched(group: Sequence[Record]) -> bool:
    return any(way.vouched for item in group for way in item.packages) or any(
        away.vouched for item in group for away in item.remotes
    )


def _repository_name(group: Sequence[Record]) -> str:
    """Owner and name of the repository, with the folder inside; the host where it is not GitHub."""
    owned = next((item for item in group if item.repository and item.owns and item.source != MINE), None)
    return f"{owned.repository.removeprefix('github.com/')}/{owned.subfolder}".rstrip("/") if owned else ""


def _server(group: Sequence[Record], notes: Mapping[tuple[str, str], str]) -> dict[str, Any]:
    """One row without its id."""
    row: dict[str, Any] = {"moved_to": "", "text_changed": ""}
    provenance = {}
    for name in _PLAIN:
        source = next((item for item in group if getattr(item, name)), group[0])
        row[name], provenance[name] = getattr(source, name), source.source
    described = max(group, key=lambda item: (sum(bool(tool.description) for tool in item.tools), len(item.tools)))
    row["tools"], provenance["tools"] = _json(described.tools), described.source
    starred = next((item for item in group if item.stars is not None), group[0])
    row["stars"], provenance["stars"] = -1 if starred.stars is None else starred.stars, starred.source
    row["official"] = any(item.official for item in group)
    provenance["official"] = next((item.source for item in group if item.official), group[0].source)
    states = {item.status for item in group}
    row["status"] = min(states, key=("active", "deprecated", "deleted").index)
    provenance["status"] = next(item.source for item in group if item.status == row["status"])
    aside = {f"{item.source}: {item.status}" for item in group if item.status != row["status"]}
    row["tags"] = _json(sorted({tag for item in group for tag in item.tags if tag}))
    noted = {note for item in group if (note := notes.get((item.source, item.key)))}
    row["notes"] = _json(sorted(noted | aside))
    row |= {kind: _json(_ways(group, kind)) for kind in ("packages", "remotes")}
    row["members"] = _json([[item.source, item.key] for item in group])
    row["provenance"] = _json(provenance)
    row["sha256_description"], row["sha256_tools"] = sha256(row["description"]), sha256(row["tools"])
    return row


def _doubted(record: Record) -> Record:
    """An entry whose packages and addresses nobody vouches for any more."""
    packages = tuple(replace(package, vouched=False) for package in record.packages)
    remotes = tuple(replace(remote, vouched=False) for remote in record.remotes)
    return replace(record, packages=packages, remotes=remotes)


def _ways(group: Sequence[Record], kind: str) -> list[dict[str, Any]]:
    """The packages or remotes, one per name or address, the ones vouched for first; of equals the first that names a
    version. `vouched`: the sources that vouch for it; `failed`: which others could not start it."""
    by_key: dict[Any, list[tuple[str, Package | Remote]]] = defaultdict(list)
    for item in group:
        for way in getattr(item, kind):
            by_key[way.key].append((item.source, way))
    values = []
    for pairs in by_key.values():
        source, chosen = next((pair for pair in pairs if getattr(pair[1], "version", "")), pairs[0])
        vouched = {name for name, way in pairs if way.vouched}
        failed = {name for name, way in pairs if way.failed} - vouched
        value = vars(chosen) | ({"source": source} if isinstance(chosen, Package) else {})
        values.append(value | {"vouched": sorted(vouched), "failed": sorted(failed)})
    return sorted(values, key=lambda value: (not value["vouched"], not value.get("version")))


def _with_tombstones(frame: pd.DataFrame, gone: pd.DataFrame) -> pd.DataFrame:
    lost = gone[~gone["id"].isin(frame["id"])].copy()
    holders = {
        tuple(member): name
        for name, members in zip(frame["id"], frame["members"], strict=True)
        for member in json.loads(members)
    }
    lost["status"] = GONE
    lost["moved_to"] = [
        ", ".join(sorted({holders[tuple(member)] for member in json.loads(members) if tuple(member) in holders}))
        for members in lost["members"]
    ]
    return pd.concat([frame, lost], ignore_index=True) if len(lost) else frame


def _json(value: Iterable[Any]) -> str:
    return _ENCODER.encode(value)
