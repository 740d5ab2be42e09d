"""Known-item requests: is a server that must be found the first answer, or among the first three or ten?"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from study import paths
from study.analysis.usefulness.other_requests import scores, unlabelled
from study.config.compose import build_system, load
from study.data.dataset import Dataset
from study.errors import StudyError
from study.evaluation.ranking import tie_order, top_k

DEPTHS = (1, 3, 10)


@dataclass(frozen=True)
class KnownItems:
    """``conf/usefulness/known_items.yaml``, where every key is explained."""

    systems: list[str]
    requests: str
    batch: int


@dataclass(frozen=True)
class Asked:
    """Requests of one kind, and for each the rows of the servers of which one must be found."""

    kind: str
    requests: Sequence[str]
    wanted: Sequence[frozenset[int]]


def plain(name: str) -> str:
    """A name without the case of its letters, and with one space for all that is neither letter nor digit."""
    return " ".join(re.findall(r"[^\W_]+", name.casefold()))


def by_name(kind: str, names: Sequence[tuple[str, int]]) -> Asked:
    """Names as requests, each once. Wanted are all servers with that name. `names`: name and row of the server."""
    rows: dict[str, set[int]] = {}
    asked: dict[str, str] = {}
    for name, row in names:
        if word := plain(name):
            rows.setdefault(word, set()).add(row)
            asked.setdefault(word, name)
    return Asked(kind, list(asked.values()), [frozenset(rows[word]) for word in asked])


def written(settings: KnownItems, servers: pd.DataFrame) -> Asked:
    """The requests of the settings' file; StudyError where it names a server that the catalogue lacks."""
    path = paths.conf() / "usefulness" / settings.requests
    table = pd.read_csv(path)
    row = pd.Index(servers["id"]).get_indexer(pd.Index(table["server_id"]))
    if (row < 0).any():
        raise StudyError("no server of the catalogue", file=path, row=int((row < 0).argmax()), column="server_id")
    return Asked("request", table["request"].tolist(), [frozenset({int(place)}) for place in row])


def all_kinds(settings: KnownItems, servers: pd.DataFrame) -> Iterator[Asked]:
    """Names of servers, names of tools and written requests."""
    yield by_name("server name", list(zip(servers["name"], range(len(servers)), strict=True)))
    listed = [(tool.strip(), row) for row, tools in enumerate(servers["tools"]) for tool in tools.split(",")]
    yield by_name("tool name", listed)
    yield written(settings, servers)


def places(ranked: np.ndarray, wanted: Sequence[frozenset[int]]) -> np.ndarray:
    """The place of the first wanted server, from 1; infinity where none is there. `ranked`: rows, shape (n, depth)."""
    found = [[row in own for row in line] for line, own in zip(ranked.tolist(), wanted, strict=True)]
    return np.array([line.index(True) + 1 if True in line else np.inf for line in found])


def known_items_table(settings: KnownItems, data: Dataset) -> pd.DataFrame:
    """Columns kind, system, requests (their number), and the shares first, first_3 and first_10."""
    order, rows = tie_order(data.n_servers, 0), []
    kinds = [asked for asked in all_kinds(settings, data.servers) if asked.requests]
    for name in settings.systems:
        system = build_system(load([f"system={name}"]).system)
        for asked in kinds:
            found = []
            for start in range(0, len(asked.requests), settings.batch):
                part = unlabelled("known_items", data.servers, asked.requests[start : start + settings.batch])
                found.append(top_k(scores(system, part, seed=0), max(DEPTHS), order)[0])
            place = places(np.concatenate(found), asked.wanted)
            row = {"kind": asked.kind, "system": name, "requests": len(place)}
            rows.append(row | {"first" if k == 1 else f"first_{k}": float((place <= k).mean()) for k in DEPTHS})
    return pd.DataFrame(rows)
