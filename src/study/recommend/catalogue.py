"""The ranking of `field_dense` over the open catalogue of `study catalog`.

The vectors of a version of the catalogue are kept beside it. A text is encoded once, ever: a new version costs what is
new in it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from study.catalog import store
from study.catalog.merge import GONE
from study.catalog.settings import MINE
from study.config.compose import build_system, plain
from study.config.registry import system_settings
from study.errors import StudyError
from study.recommend.contract import Recommendation
from study.recommend.field_dense import SavedFieldDense
from study.usefulness.field_dense import FieldDense

SYSTEM = "field_dense"
# The open catalogue, with the user's own servers; and those alone.
NAMES = ("open", MINE)


def synced() -> bool:
    """Whether there is an open catalogue."""
    return store.current() is not None


def load(name: str = "open") -> tuple[SavedFieldDense, pd.DataFrame]:
    """The ranking over a catalogue of `NAMES`, and its servers: row i is the answer's `server_id` i.

    Raises StudyError: nothing was synced, or the catalogue has no server.
    """
    version = store.required()
    servers = _living(version, name)
    settings = system_settings(SYSTEM)
    folder = version / f"{SYSTEM}-{name}-{_digest(plain(settings)['model'])}"
    try:
        model = SavedFieldDense.load(folder)
    except StudyError:  # not made yet, or damaged, or of another version of the encoder
        system = build_system(settings)
        assert isinstance(system, FieldDense)
        table = as_dataset(servers)
        system.index(table)
        SavedFieldDense(SYSTEM, system, table, seed=int(settings.seeds[0])).save(folder)
        model = SavedFieldDense.load(folder)
    return model, servers


def only_vouched(found: Sequence[Recommendation], servers: pd.DataFrame) -> list[Recommendation]:
    """The answers that a source vouches for, ranked anew; `servers` as `load` returns them."""
    ways = zip(servers["packages"], servers["remotes"], strict=True)
    known = [any(way["vouched"] for text in texts for way in json.loads(text)) for texts in ways]
    kept = (item for item in found if known[item.server_id])
    return [replace(item, rank=rank) for rank, item in enumerate(kept, start=1)]


def _living(version: Path, name: str) -> pd.DataFrame:
    table = store.read(version, "servers")
    table = table[table["status"] != GONE]
    if name == MINE:
        table = table[[json.loads(members)[0][0] == MINE for members in table["members"]]]
    if table.empty:
        raise StudyError(f"the catalogue {name!r} has no server", file=version, fix="run: study catalog add FILE")
    return table.reset_index(drop=True)


def _digest(settings: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:8]


def as_dataset(servers: pd.DataFrame) -> pd.DataFrame:
    """Servers of the catalogue with the columns of `Dataset.servers`; the id is the row. Of tools, names are read."""
    table = servers[["name", "description"]].assign(id=range(len(servers)), language="", system="", subcategory="")
    table["url"] = [f"https://{place}" if place else "" for place in servers["repository"]]
    table["tools"] = [", ".join(tool["name"] for tool in json.loads(tools)) for tools in servers["tools"]]
    table["category"] = servers["category"].str.replace("-", " ")
    return table
