"""Means over tools and over servers beside means over queries, where a few tools have most of the queries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from study import paths
from study.files import write_csv
from study.tools import results
from study.tools.catalogues.catalog import ToolCatalog
from study.tools.catalogues.queries import QuerySet

METRICS = ("hit_rate@1", "recall@5")


def means(
    runs: Mapping[str, pd.DataFrame], catalog: ToolCatalog, queries: QuerySet, metrics: Sequence[str]
) -> pd.DataFrame:
    """Every metric of every system, averaged three ways. The unit of a query is the tool (server) of its first label.

    Args:
        runs: per-task tables by system, of these queries.
        metrics: columns of the tables.

    Returns: columns system, metric, by_query, by_tool, by_server, tools, servers, largest_server (its share of the
    queries).
    """
    tool_of = {name: labels[0][0] for name, labels in zip(queries.ids, queries.labels, strict=True)}
    lines = []
    for system, table in runs.items():
        tools = table["task_id"].astype(str).map(tool_of)
        servers = tools.map(lambda tool: catalog.tools[tool].server)
        for metric in metrics:
            values = table[metric]
            lines.append(
                {
                    "system": system,
                    "metric": metric,
                    "by_query": values.mean(),
                    "by_tool": values.groupby(tools.to_numpy()).mean().mean(),
                    "by_server": values.groupby(servers.to_numpy()).mean().mean(),
                    "tools": tools.nunique(),
                    "servers": servers.nunique(),
                    "largest_server": servers.value_counts(normalize=True).max(),
                }
            )
    return pd.DataFrame(lines)


def run(
    catalogue: str, asked: Mapping[str, tuple[ToolCatalog, QuerySet]], metrics: Sequence[str] = METRICS
) -> pd.DataFrame:
    """macro.csv of a catalogue, from the per-task files of some protocols.

    Args:
        asked: protocol -> the catalogue that was searched, and the queries.
    """
    runs = results.collect(catalogue)
    parts = [means(runs[at], *own, metrics).assign(protocol=at) for at, own in asked.items()]
    table = pd.concat(parts, ignore_index=True)
    write_csv(paths.tables(catalogue) / "macro.csv", table[["protocol", *table.columns.drop("protocol")]])
    return table
