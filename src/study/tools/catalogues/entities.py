"""One server under several listings: what merging the published catalogues joins (MCP-Flow, deduplication)."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from study import paths
from study.evaluation.records import record
from study.files import write_csv, write_json
from study.tools.catalogues import published
from study.tools.catalogues.catalog import ToolCatalog
from study.tools.catalogues.merge import Merged, merge, names_agree

# The catalogues of MCP servers, in the order of the specification's merge.
MERGED = ("mcptools", "livemcpbench", "mcpflow")


def counts(catalogs: Sequence[ToolCatalog], merged: Merged) -> dict[str, object]:
    """How many listings became how many entities, and how many groups hold names that have nothing in common."""
    listings = [server for catalog in catalogs for server in catalog.servers]
    groups = merged.groups()
    agree = [names_agree([listings[row].name for row in group]) for group in groups]
    return {
        "catalogues": " + ".join(catalog.name for catalog in catalogs),
        "listings": len(merged.entity_of),
        "entities": len(merged.catalog.servers),
        "groups": len(groups),
        "listings_in_groups": sum(map(len, groups)),
        "names_disagree": agree.count(False),
    }


def members(catalogs: Sequence[ToolCatalog], merged: Merged) -> pd.DataFrame:
    """One row per listing of every group: ids alone, no text of a catalogue.

    Returns: columns group (from 1), catalogue, marketplace (MCP-Flow's; empty elsewhere), listing (its id), tools,
    names_agree (of the whole group).
    """
    listings = [(catalog, row) for catalog in catalogs for row in range(len(catalog.servers))]
    lines = []
    for number, group in enumerate(merged.groups(), start=1):
        agree = names_agree([listings[place][0].servers[listings[place][1]].name for place in group])
        for place in group:
            catalog, row = listings[place]
            server = catalog.servers[row]
            lines.append(
                {
                    "group": number,
                    "catalogue": catalog.name,
                    "marketplace": " ".join(server.sources),
                    "listing": server.id,
                    "tools": len(catalog.tools_of(row)),
                    "names_agree": agree,
                }
            )
    return pd.DataFrame(lines, columns=["group", "catalogue", "marketplace", "listing", "tools", "names_agree"])


def run() -> pd.DataFrame:
    """entities.csv (each catalogue alone, and all together) and entity_groups.csv of MCP-Flow, with their record."""
    catalogs = [published.load(name).catalog for name in MERGED]
    whole = merge("merged", catalogs)
    lines = [counts([one], merge(one.name, [one])) for one in catalogs]
    table = pd.DataFrame([*lines, counts(catalogs, whole)])
    folder = paths.tables("mcpflow")
    write_csv(folder / "entities.csv", table)
    write_csv(folder / "entity_groups.csv", members(catalogs, whole))
    hashes = {f"{catalog.name}_sha256": catalog.fingerprint() for catalog in catalogs}
    write_json(folder / "entities.json", record(dataset="mcpflow", table="entities", **hashes))
    return table
