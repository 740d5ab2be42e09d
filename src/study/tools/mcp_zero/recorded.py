"""MCP-Zero's routing beside the recorded router of LiveMCPBench: servers alone, agreement, and what the agent ran."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from study import paths
from study.data.dataset import FloatArray, IntArray
from study.evaluation.ranking import tie_order, top_k
from study.files import write_csv
from study.tools import results
from study.tools.catalogues import livemcp_log, published
from study.tools.catalogues.catalog import ToolCatalog
from study.tools.catalogues.queries import QuerySet
from study.tools.discovery.index import Settings, ToolIndex
from study.tools.intent import log as history
from study.tools.mcp_zero.request import parse
from study.tools.mcp_zero.routing import MATCHING, Router, Routing

KS = (1, 3, 5, 10)


def run() -> None:
    """Tables request_servers.csv, request_agreement.csv and request_executed.csv of LiveMCPBench."""
    loaded, folder = published.load("livemcpbench"), paths.tables("livemcpbench")
    catalog, queries = loaded.catalog, loaded.queries["tasks"]
    episodes = livemcp_log.load(paths.raw("livemcpbench"), catalog)
    write_csv(
        folder / "request_servers.csv",
        pd.DataFrame(
            [
                {"matching": kind}
                | servers(Router(catalog, Routing(matching=kind)).server_scores(queries.texts), catalog, queries)
                for kind in MATCHING
            ]
        ),
    )
    routes = [
        (parsed[0], route.returned)
        for episode in episodes
        if episode.task in set(queries.ids)
        for route in episode.routes
        if (parsed := parse(route.text))
    ]
    ranked = _first(Router(catalog).scores([request for request, _ in routes]))
    write_csv(folder / "request_agreement.csv", pd.DataFrame([agreement(ranked, [shown for _, shown in routes])]))
    asks = history.requests(episodes)
    asked = history.blocks(episodes)
    texts = [f"{request.server} {request.tool}" for request in asked]
    rankings = {
        "mcp_zero": _first(Router(catalog).scores(asked)),
        "requests_flat": _first(ToolIndex(catalog, Settings(document="name_desc")).scores(texts)),
        "recorded": asks.returned,
    }
    write_csv(folder / "request_executed.csv", executed(rankings, asks.queries, len(catalog.tools)))


def _first(scores: FloatArray) -> IntArray:
    ranked, _ = top_k(scores, max(KS), tie_order(scores.shape[1], results.SEED))
    return ranked


def servers(scores: FloatArray, catalog: ToolCatalog, queries: QuerySet) -> dict[str, float]:
    """How well servers alone are found: MRR and hit rates of the servers that satisfy some label of a task.

    Args:
        scores: shape (len(queries), n_servers).
    """
    ranked, _ = top_k(scores, scores.shape[1], tie_order(scores.shape[1], results.SEED))
    ranks = []
    for row, labels in zip(ranked, queries.labels, strict=True):
        right = {catalog.tools[tool].server for label in labels for tool in label}
        ranks.append(1 + int(np.flatnonzero(np.isin(row, list(right)))[0]))
    found = np.array(ranks)
    return {"mrr": float((1 / found).mean())} | {f"hit_rate@{k}": float((found <= k).mean()) for k in KS}


def agreement(ranked: IntArray, recorded: Sequence[Sequence[int]]) -> dict[str, float]:
    """Over requests, how often two routers name the same tool first, and the Jaccard index of their first three.

    Args:
        ranked: shape (n_requests, K), K >= 3.
        recorded: known tools of the recorded answer, per request, best first; none counts as disagreement.
    """
    same, jaccard = [], []
    for own, other in zip(ranked, recorded, strict=True):
        ours, theirs = set(own[:3][own[:3] >= 0].tolist()), set(other[:3])
        same.append(bool(other) and own[0] == other[0])
        jaccard.append(len(ours & theirs) / len(ours | theirs) if ours | theirs else 0.0)
    return {"requests": len(same), "same_first": float(np.mean(same)), "jaccard@3": float(np.mean(jaccard))}


def executed(rankings: Mapping[str, IntArray], queries: QuerySet, n_tools: int) -> pd.DataFrame:
    """Hit rates of the tool that the agent ran first after a request, one row per router, means over requests.

    It favours the recorded router, among whose answers the agent chose.
    """
    lines = []
    for name, ranked in rankings.items():
        table = results.measure(ranked, queries, n_tools, ks=KS[:2])
        lines.append(
            {"system": name, "requests": len(table)} | {f"hit_rate@{k}": table[f"hit_rate@{k}"].mean() for k in KS[:2]}
        )
    return pd.DataFrame(lines)
