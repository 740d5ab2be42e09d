"""The experiments of Semantic Tool Discovery: which catalogue, which queries, which systems."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from study.data.dataset import FloatArray, IntArray
from study.encoders.endpoint import KEYS
from study.evaluation.ranking import tie_order, top_k
from study.tools import results, settings
from study.tools.catalogues import published
from study.tools.catalogues.catalog import ToolCatalog
from study.tools.catalogues.queries import QuerySet
from study.tools.discovery.index import Settings, ToolIndex


def configured() -> dict[str, Settings]:
    """The systems of ``conf/tools/discovery.yaml``."""
    listed = settings.read("discovery", KEYS)["systems"]
    return {name: settings.build(Settings, values, "conf/tools/discovery.yaml") for name, values in listed.items()}


def references(catalogue: str) -> dict[str, tuple[str, str]]:
    """Protocol -> (reference system, metric) of a catalogue."""
    listed = settings.read("discovery", KEYS)["references"].get(catalogue, {})
    return {protocol: (system, metric) for protocol, (system, metric) in listed.items()}


def pairs(catalogue: str) -> dict[str, list[tuple[str, str, str]]]:
    """Protocol -> further comparisons of two systems: system, reference, metric."""
    listed = settings.read("discovery", KEYS)["pairs"].get(catalogue, {})
    return {protocol: [(system, other, metric) for system, other, metric in own] for protocol, own in listed.items()}


def rank_all(scores: FloatArray, k: int | None = None, order: IntArray | None = None) -> IntArray:
    """Every row's tools, best first (the first `k`), -1 where not ranked.

    Args:
        order: of tools with one score; default: a seeded random one.
    """
    chosen = tie_order(scores.shape[1], results.SEED) if order is None else order
    ranked, _ = top_k(scores, k or scores.shape[1], chosen)
    return ranked


def run(catalogue: str, protocol: str, catalog: ToolCatalog, queries: QuerySet, systems: dict[str, Settings]) -> None:
    """Search for every query with every system and keep the per-query measures."""
    for name, chosen in systems.items():
        index = ToolIndex(catalog, chosen)
        score_and_save(
            catalogue, protocol, name, catalog, queries, index.scores, order=index.order, config=asdict(chosen)
        )


def score_and_save(
    catalogue: str,
    protocol: str,
    name: str,
    catalog: ToolCatalog,
    queries: QuerySet,
    scores: Callable[[tuple[str, ...]], FloatArray],
    *,
    order: IntArray | None = None,
    **facts: Any,
) -> None:
    """Measure one system's ranking of the whole catalogue and keep it.

    Args:
        order: of tools with one score, as in `rank_all`.
    """
    started = time.perf_counter()
    ranked = rank_all(scores(queries.texts), order=order)
    seconds = round(time.perf_counter() - started, 3)
    table = results.measure(ranked, queries, len(catalog.tools))
    counts: dict[str, Any] = {"queries": len(queries), "tools": len(catalog.tools), "servers": len(catalog.servers)}
    results.save(catalogue, protocol, name, table, (catalog, queries), **counts, seconds=seconds, **facts)


def ten_servers(catalog: ToolCatalog, queries: QuerySet) -> tuple[ToolCatalog, QuerySet]:
    """The stand-in for the paper's five servers: ten servers of MCP-tools and the queries for their tools.

    Where several servers were published under one id, all of them are kept, as a label names the id.
    """
    ids = settings.read("discovery", KEYS)["ten_servers"]
    kept_servers = [row for row, server in enumerate(catalog.servers) if server.id.partition("#")[0] in ids]
    chosen, rows = catalog.subset(kept_servers, "mcptools10")
    place = {int(old): new for new, old in enumerate(rows)}
    labels = [
        tuple(kept for label in own if (kept := tuple(place[tool] for tool in label if tool in place)))
        for own in queries.labels
    ]
    answerable = [row for row, own in enumerate(labels) if own]
    taken = queries.take(answerable)
    return chosen, QuerySet(taken.name, taken.ids, taken.texts, tuple(labels[row] for row in answerable), taken.groups)


def without(systems: dict[str, Settings], *documents: str) -> dict[str, Settings]:
    """The systems whose documents have other forms."""
    return {name: chosen for name, chosen in systems.items() if chosen.document not in documents}


def run_livemcpbench() -> None:
    """Table A: 94 tasks, 527 tools."""
    loaded = published.load("livemcpbench")
    run("livemcpbench", "query", loaded.catalog, loaded.queries["tasks"], configured())


def popularity(queries: QuerySet, units: Sequence[str], n_tools: int) -> FloatArray:
    """How often each tool is a label of the queries of all other units, shape (len(queries), n_tools).

    Args:
        units: queries of one unit know nothing of each other's labels, shape (len(queries),).
    """
    counts = np.zeros((len(queries), n_tools), dtype=np.float32)
    for row, labels in enumerate(queries.labels):
        counts[row, [tool for label in labels for tool in label]] = 1
    _, unit = np.unique(units, return_inverse=True)
    own = np.zeros((unit.max() + 1, n_tools), dtype=np.float32)
    np.add.at(own, unit, counts)
    others: FloatArray = counts.sum(axis=0) - own[unit]
    return others


def run_popularity(
    catalogue: str, protocol: str, catalog: ToolCatalog, queries: QuerySet, units: Sequence[str] | None = None
) -> None:
    """The most used tools for every query, counted in the labels of the other units (default: the queries' groups)."""
    scores = popularity(queries, units or queries.groups, len(catalog.tools))
    score_and_save(catalogue, protocol, "popularity", catalog, queries, lambda _: scores, config={})


def run_mcptools() -> None:
    """Atlas queries on all 2,797 tools, and table B: on ten servers."""
    loaded = published.load("mcptools")
    asked = {
        "query": (loaded.catalog, loaded.queries["atlas"]),
        "query_ten": ten_servers(loaded.catalog, loaded.queries["atlas"]),
    }
    for protocol, own in asked.items():
        run("mcptools", protocol, *own, configured())
        run_popularity("mcptools", protocol, *own)


def run_mcptoolbench() -> None:
    """Single-label check, labelled tool alone and with its published equivalents; servers have no text of their own."""
    loaded = published.load("mcptoolbench")
    for name, queries in loaded.queries.items():
        run("mcptoolbench", name, loaded.catalog, queries, without(configured(), "server"))
        # Its groups are the domains; what one query may not know is the same text with its label.
        run_popularity("mcptoolbench", name, loaded.catalog, queries, queries.texts)
