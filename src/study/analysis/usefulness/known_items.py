"""Known-item requests: is a server that must be found the first answer, or among the first three or ten?"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from tqdm import tqdm

from study import paths
from study.analysis.usefulness.other_requests import scores, unlabelled
from study.config.compose import build_system, load
from study.data.dataset import Dataset
from study.errors import StudyError
from study.evaluation.ranking import tie_order, top_k
from study.files import read_csv
from study.recommend.answering import answer
from study.recommend.facts import Shelf
from study.recommend.field_dense import SavedFieldDense
from study.recommend.settings import Answering
from study.recommend.understanding import plain
from study.usefulness.field_dense import FieldDense

DEPTHS = (1, 3, 10)


@dataclass(frozen=True)
class KnownItems:
    """``conf/usefulness/known_items.yaml``, where every key is explained."""

    systems: list[str]
    answering: list[str]
    sample: int
    seed: int
    requests: str
    batch: int


@dataclass(frozen=True)
class Asked:
    """Requests of one kind, and for each the rows of the servers of which one must be found."""

    kind: str
    requests: Sequence[str]
    wanted: Sequence[frozenset[int]]


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
    table = read_csv(path)
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


def drawn(asked: Asked, settings: KnownItems) -> Asked:
    """At most `sample` of the requests, drawn without replacement, in their order."""
    number = min(settings.sample, len(asked.requests))
    rows = np.sort(np.random.default_rng(settings.seed).choice(len(asked.requests), number, replace=False))
    return Asked(asked.kind, [asked.requests[row] for row in rows], [asked.wanted[row] for row in rows])


def ranked_rows(system: FieldDense, data: Dataset, requests: Sequence[str]) -> np.ndarray:
    """Rows of the first servers that `study recommend` names with an indexed system; -1 where it names fewer.

    Returns: shape (len(requests), max(DEPTHS)).
    """
    model, shelf, settings = SavedFieldDense("", system, data.servers, 0), Shelf(None, data.servers), Answering.read()
    row_of = dict(zip(data.servers["id"], range(data.n_servers), strict=True))
    rows = np.full((len(requests), max(DEPTHS)), -1, dtype=np.int64)
    for line, request in zip(rows, tqdm(requests, disable=not sys.stderr.isatty()), strict=True):
        found = answer(
            model,
            request,
            lambda item: shelf.of_task2mcp(item.server_id, item.name, item.description),
            settings,
            k=max(DEPTHS),
        ).found
        line[: len(found)] = [row_of[one.item.server_id] for one in found]
    return rows


def known_items_table(settings: KnownItems, data: Dataset) -> pd.DataFrame:
    """Columns kind, system, requests (their number), and the shares first, first_3 and first_10.

    What `study recommend` answers with a system is named ``recommend`` and the system.
    """
    order, rows = tie_order(data.n_servers, 0), []
    kinds = [asked for asked in all_kinds(settings, data.servers) if asked.requests]
    for name in settings.systems:
        system = build_system(load([f"system={name}"]).system)
        for asked in kinds:
            found = []
            for start in range(0, len(asked.requests), settings.batch):
                part = unlabelled("known_items", data.servers, asked.requests[start : start + settings.batch])
                found.append(top_k(scores(system, part, seed=0), max(DEPTHS), order)[0])
            answers = {name: (np.concatenate(found), asked)}
            if name in settings.answering:
                assert isinstance(system, FieldDense)
                few = drawn(asked, settings)
                answers[f"recommend {name}"] = ranked_rows(system, data, few.requests), few
            for shown, (ranked, own) in answers.items():
                place = places(ranked, own.wanted)
                row = {"kind": asked.kind, "system": shown, "requests": len(place)}
                rows.append(row | {"first" if k == 1 else f"first_{k}": float((place <= k).mean()) for k in DEPTHS})
    return pd.DataFrame(rows)
