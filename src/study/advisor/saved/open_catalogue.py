"""The ranking of `field_dense` over the open catalogue of `study catalog`.

The vectors of a version of the catalogue are kept beside it. A text is encoded once, ever: a new version costs what is
new in it.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from study.advisor.catalog import store
from study.advisor.catalog.merge import COLUMNS, GONE
from study.advisor.catalog.records import repository
from study.advisor.catalog.settings import MINE
from study.advisor.encoders import nearest
from study.advisor.encoders.sentence import WITHOUT_TORCH
from study.advisor.retrieval.field_dense import FieldDense
from study.advisor.saved.field_dense import SavedFieldDense
from study.advisor.saved.large import LargeFieldDense
from study.advisor.saved.saved import BRING, DATASET
from study.base import paths
from study.base.errors import StudyError, require_file
from study.base.registry import system_file, system_settings
from study.base.settings import build_settings

LOG = logging.getLogger(__name__)
SYSTEM = "field_dense"
# What a server's text holds of Task2MCP beside the columns of the catalogue.
TEXTS = ("language", "system", "subcategory")
# The open catalogue, with the user's own servers; those alone; and the servers of the paper's data set.
NAMES = ("open", MINE, DATASET)


def synced() -> bool:
    """Whether there is an open catalogue."""
    return store.current() is not None


def load(*names: str) -> tuple[SavedFieldDense, pd.DataFrame]:
    """The ranking over one or several of `NAMES` (default: open), and their servers (columns `merge.COLUMNS`): row i is
    the answer's `server_id` i.

    A server of Task2MCP whose repository the others have is left out. Raises StudyError: nothing was synced, or there
    is no server.
    """
    names, version = names or ("open",), store.required()
    servers = living(version, names)
    stated, table = system_settings(SYSTEM), as_dataset(servers)
    options = {key: value for key, value in stated["model"].items() if key != "_target_"}
    system, seed = build_settings(FieldDense, options, system_file(SYSTEM), "model"), int(stated["seeds"][0])
    # Of other texts or settings the folder has another name.
    contents = json.dumps([stated["model"], table.to_csv(index=False)], sort_keys=True)
    digest = hashlib.sha256(contents.encode()).hexdigest()[:8]
    folder = version / f"{SYSTEM}-{'-'.join(sorted(names))}-{digest}"
    if nearest.Settings.read().kind(len(servers)) != nearest.EXACT:
        return LargeFieldDense.of(SYSTEM, system, table, seed=seed, folder=folder), servers
    try:
        model = SavedFieldDense.load(folder)
    except StudyError:  # not made yet, damaged, or of another version of the encoder
        # As fast as with PyTorch, whose import alone takes longer than the texts of most syncs.
        system.encoder = WITHOUT_TORCH.get(system.encoder, system.encoder)
        LOG.info("encoding the texts of %d servers, once: minutes on a processor", len(table))
        system.index(table)
        model = SavedFieldDense(SYSTEM, system, table, seed=seed)
        model.save(folder)
    return model, servers


def living(version: Path, names: Sequence[str]) -> pd.DataFrame:
    """The servers of one or several of `NAMES` in a version, without tombstones, rows from 0."""
    table = store.read(version, "servers")
    table = table[table["status"] != GONE]
    if "open" not in names:
        is_mine = [json.loads(members)[0][0] == MINE for members in table["members"]]
        table = table[is_mine] if MINE in names else table.iloc[:0]
    if DATASET in names:
        table = pd.concat([table, _listed(set(table["repository"]))], ignore_index=True)
    if table.empty:
        label = " and ".join(names)
        raise StudyError(f"the catalogue {label} has no server", file=version, fix="run: study catalog add FILE")
    return table.reset_index(drop=True)


def _listed(repositories: set[str]) -> pd.DataFrame:
    """The servers of Task2MCP that are in none of `repositories`, with the columns of the catalogue and `TEXTS`."""
    file = paths.prepared(DATASET) / "servers.parquet"
    listing = pd.read_parquet(require_file(file, f"run: {BRING}", "the servers of Task2MCP are not here"))
    places = [repository(url) for url in listing["url"]]
    facts = ("name", "description", "repository", "stars", "licence", "official", "category")
    table = listing[["name", "description", "category", *TEXTS]].assign(
        id=[f"{DATASET}:{name}" for name in listing["id"]],
        repository=[address for address, _ in places],
        subfolder=[inside for _, inside in places],
        stars=listing["stars_count"].astype(int),
        licence=listing["license_clean"].where(listing["license_clean"] != "other", ""),
        official=listing["is_official"],
        provenance=json.dumps(dict.fromkeys(facts, DATASET)),
        members=[json.dumps([[DATASET, str(name)]]) for name in listing["id"]],
        status="active",
        **dict.fromkeys(("tags", "tools", "packages", "remotes", "notes"), "[]"),
    )
    table[[name for name in COLUMNS if name not in table]] = ""
    return table[~table["repository"].isin(repositories - {""})]


def as_dataset(servers: pd.DataFrame) -> pd.DataFrame:
    """Servers of the catalogue with the columns of `Dataset.servers`; the id is the row. Of tools, names are read."""
    table = servers[["name", "description"]].assign(id=range(len(servers)))
    for name in TEXTS:
        table[name] = servers[name].fillna("") if name in servers else ""
    table["url"] = [f"https://{address}" if address else "" for address in servers["repository"]]
    table["tools"] = [", ".join(tool["name"] for tool in json.loads(tools)) for tools in servers["tools"]]
    table["category"] = servers["category"].str.replace("-", " ")
    return table
