"""MCP-Zero's main test here: the 282 real request blocks that LiveMCPBench's agent wrote.

The unit is the task: the tools of all its requests together are what the agent was handed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

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
from study.tools.discovery.experiments import score_and_save
from study.tools.discovery.index import Settings, ToolIndex
from study.tools.discovery.tokens import definition_tokens
from study.tools.mcp_zero.request import Request, malformed, parse
from study.tools.mcp_zero.routing import Router, Routing

TOP = (1, 3, 5)
PAPER = Routing()
VARIANTS: dict[str, Routing] = {
    "mcp_zero": PAPER,
    "mcp_zero_description": replace(PAPER, matching="description"),
    "mcp_zero_summary": replace(PAPER, matching="summary"),
    "mcp_zero_1_server": replace(PAPER, servers=1),
    "mcp_zero_3_servers": replace(PAPER, servers=3),
    "mcp_zero_10_servers": replace(PAPER, servers=10),
    "mcp_zero_all_servers": replace(PAPER, servers=None),
    "mcp_zero_product": replace(PAPER, score="product"),
    "mcp_zero_tool": replace(PAPER, score="tool"),
    "mcp_zero_sum": replace(PAPER, score="sum"),
}
Handed = dict[int, list[list[int]]]


def run_queries(
    catalogue: str, catalog: ToolCatalog, queries: QuerySet, variants: Mapping[str, Routing] = VARIANTS
) -> None:
    """The raw query in both fields of the request, protocol ``query``: the server stage without an agent."""
    for name, routing in variants.items():
        router = Router(catalog, routing)

        def scores(texts: tuple[str, ...], router: Router = router) -> FloatArray:
            return router.scores([Request(text, text) for text in texts])

        score_and_save(catalogue, "query", f"{name}_query", catalog, queries, scores, config=asdict(routing))


def requests_by_task(episodes: Sequence[livemcp_log.Episode], tasks: Sequence[str]) -> tuple[list[list[Request]], int]:
    """The well-formed requests of every task in order, and how many blocks were malformed."""
    routes = {episode.task: episode.routes for episode in episodes}
    found = [[request for route in routes[task] for request in parse(route.text)] for task in tasks]
    return found, sum(malformed(route.text) for task in tasks for route in routes[task])


def union(rankings: Sequence[IntArray], k: int) -> list[int]:
    """The first `k` tools of each ranking, each tool once, in order."""
    return list(dict.fromkeys(int(row) for ranking in rankings for row in ranking[:k] if row >= 0))


def hand_over(scores: FloatArray, owner: Sequence[int], n_tasks: int) -> Handed:
    """Per k of `TOP` and task, the tools that its requests bring.

    Args:
        scores: shape (n_requests, n_tools).
        owner: the task of each request, shape (n_requests,).
    """
    ranked, _ = top_k(scores, max(TOP), tie_order(scores.shape[1], results.SEED))
    own = [[ranked[row] for row in np.flatnonzero(np.array(owner) == task)] for task in range(n_tasks)]
    return {k: [union(rankings, k) for rankings in own] for k in TOP}


def same_number(scores: FloatArray, budget: Handed) -> Handed:
    """As many tools per task as `budget` hands over, from one ranking per task."""
    widest = max(len(rows) for sets in budget.values() for rows in sets)
    ranked, _ = top_k(scores, widest, tie_order(scores.shape[1], results.SEED))
    return {
        k: [ranked[task, : len(rows)][ranked[task, : len(rows)] >= 0].tolist() for task, rows in enumerate(sets)]
        for k, sets in budget.items()
    }


def run_requests() -> pd.DataFrame:
    """Protocol ``request`` of LiveMCPBench, and its table requests.csv (tools and tokens handed over)."""
    loaded = published.load("livemcpbench")
    catalog, queries = loaded.catalog, loaded.queries["tasks"]
    episodes = livemcp_log.load(paths.raw("livemcpbench"), catalog)
    requests, broken = requests_by_task(episodes, queries.ids)
    owner = [task for task, own in enumerate(requests) for _ in own]
    flat = [request for own in requests for request in own]
    first = [row for row, task in enumerate(owner) if row == 0 or owner[row - 1] != task]
    n = len(queries)
    systems: dict[str, Handed] = {}
    for name, routing in VARIANTS.items():
        scores = Router(catalog, routing).scores(flat)
        systems[name] = hand_over(scores, owner, n)
        if name == "mcp_zero":
            systems["mcp_zero_first"] = hand_over(scores[first], [owner[row] for row in first], n)
    dense, words = ToolIndex(catalog, Settings(document="name_desc")), ToolIndex(catalog, Settings("bm25", "server"))
    both, tool = [f"{request.server} {request.tool}" for request in flat], [request.tool for request in flat]
    systems["requests_flat"] = hand_over(dense.scores(both), owner, n)
    systems["requests_flat_tool"] = hand_over(dense.scores(tool), owner, n)
    systems["requests_bm25"] = hand_over(words.scores(both), owner, n)
    shown = {
        episode.task: [np.array(route.returned) for route in episode.routes if parse(route.text)]
        for episode in episodes
    }
    systems["recorded"] = {3: [union(shown[task], 3) for task in queries.ids]}
    systems["recorded_first"] = {3: [union(shown[task][:1], 3) for task in queries.ids]}
    by_query = {
        "query_flat": dense.scores(queries.texts),
        "query_routed": Router(catalog, PAPER).scores([Request(text, text) for text in queries.texts]),
    }
    for name, scores in by_query.items():
        systems[name] = hand_over(scores, range(n), n)
        # As many as the recorded router brought; MCP-Zero's own requests bring 6.6 tools instead of its 6.8.
        systems[f"{name}_same_number"] = same_number(scores, systems["recorded"])
    return _save(catalog, queries, systems, {"requests": len(flat), "malformed": broken})


def _save(
    catalog: ToolCatalog, queries: QuerySet, systems: Mapping[str, Handed], facts: Mapping[str, Any]
) -> pd.DataFrame:
    sizes, lines = definition_tokens(catalog), []
    for name, handed in systems.items():
        tables = [
            results.measure_sets(sets, queries, len(catalog.tools), k).set_index(["task_id", "seed"])
            for k, sets in handed.items()
        ]
        table = pd.concat(tables, axis=1).reset_index()
        config = asdict(VARIANTS[name]) if name in VARIANTS else {}
        results.save("livemcpbench", "request", name, table, (catalog, queries), config=config, **facts)
        for k, sets in handed.items():
            tokens = np.array([sizes[rows].sum() for rows in sets])
            hits = table[f"hit_rate@{k}"].sum()
            lines.append(
                {
                    "system": name,
                    "k": k,
                    "mean_tools": np.mean([len(rows) for rows in sets]),
                    "recall": table[f"recall@{k}"].mean(),
                    "hit_rate": hits / len(sets),
                    "completeness": table[f"recall@{k}"].eq(1).mean(),
                    "mean_tokens": tokens.mean(),
                    "tokens_per_hit": tokens.sum() / hits if hits else np.nan,
                    "token_reduction": 1 - tokens.mean() / sizes.sum(),
                }
            )
    summary = pd.DataFrame(lines)
    write_csv(paths.tables("livemcpbench") / "requests.csv", summary)
    return summary
