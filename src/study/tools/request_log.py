"""MCP-Zero's main test here: the 282 real request blocks that LiveMCPBench's agent wrote.

The unit is the task: the tools of all its requests together are what the agent was handed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
import pandas as pd

from study.advisor.retrieval.documents import ToolCatalog
from study.advisor.retrieval.index import Settings, ToolIndex
from study.advisor.retrieval.route import MATCHING, PAPER, Request, Router, Routing, count_malformed, parse_requests
from study.advisor.retrieval.texts import definition_tokens
from study.data.dataset import FloatArray, IntArray
from study.tools import results
from study.tools.collections.livemcpbench import Episode
from study.tools.discovery import Handed, hand_over, union
from study.tools.queries import QuerySet, query_set, rank_all
from study.tools.results import Run, Table

TOP = (1, 3, 5)
KS = (1, 3, 5, 10)
VARIANTS: dict[str, Routing] = {
    "mcp_zero": PAPER,
    "mcp_zero_description": replace(PAPER, matching="description"),
    "mcp_zero_summary": replace(PAPER, matching="summary"),
    "mcp_zero_1_server": replace(PAPER, servers=1),
    "mcp_zero_3_servers": replace(PAPER, servers=3),
    "mcp_zero_10_servers": replace(PAPER, servers=10),
    "mcp_zero_20_servers": replace(PAPER, servers=20),
    "mcp_zero_all_servers": replace(PAPER, servers=None),
    "mcp_zero_named": replace(PAPER, named=True),
    "mcp_zero_default": Routing(),
    "mcp_zero_product": replace(PAPER, score="product"),
    "mcp_zero_tool": replace(PAPER, score="tool"),
    "mcp_zero_sum": replace(PAPER, score="sum"),
}


def query_runs(catalog: ToolCatalog, queries: QuerySet, variants: Mapping[str, Routing] = VARIANTS) -> Iterator[Run]:
    """The raw query in both fields of the request, protocol ``query``: the server stage without an agent."""
    for name, routing in variants.items():
        router = Router(catalog, routing)

        def scores(texts: tuple[str, ...], router: Router = router) -> FloatArray:
            return router.scores([Request(text, text) for text in texts])

        inputs, config = (catalog, queries), asdict(routing)
        yield results.ranking_run("query", f"{name}_query", inputs, scores, config=config)


def requests_by_task(episodes: Sequence[Episode], tasks: Sequence[str]) -> tuple[list[list[Request]], int]:
    """The well-formed requests of every task in order, and how many blocks were malformed."""
    routes = {episode.task: episode.routes for episode in episodes}
    found = [[request for route in routes[task] for request in parse_requests(route.text)] for task in tasks]
    return found, sum(count_malformed(route.text) for task in tasks for route in routes[task])


def same_number(scores: FloatArray, budget: Handed) -> Handed:
    """As many tools per task as `budget` hands over, from one ranking per task."""
    ranked = rank_all(scores, max(len(rows) for sets in budget.values() for rows in sets))
    return {
        k: [ranked[task, : len(rows)][ranked[task, : len(rows)] >= 0].tolist() for task, rows in enumerate(sets)]
        for k, sets in budget.items()
    }


def request_runs(catalog: ToolCatalog, queries: QuerySet, episodes: Sequence[Episode]) -> Iterator[Run | Table]:
    """Protocol ``request`` of LiveMCPBench, and its table requests.csv (tools and tokens handed over)."""
    requests, broken = requests_by_task(episodes, queries.ids)
    owner = [task for task, own in enumerate(requests) for _ in own]
    flat = [request for own in requests for request in own]
    systems = handed_tools(catalog, queries, episodes, flat, owner)
    sizes, lines = definition_tokens(catalog), []
    for name, handed in systems.items():
        table = results.measure_sets(handed, queries, len(catalog.tools))
        config = asdict(VARIANTS[name]) if name in VARIANTS else {}
        facts = {"config": config, "requests": len(flat), "malformed": broken}
        yield Run("request", name, table, (catalog, queries), facts)
        for k, sets in handed.items():
            tokens, recall = np.array([sizes[rows].sum() for rows in sets]), table[f"recall@{k}"]
            hits = table[f"hit_rate@{k}"].sum()
            line = {"system": name, "k": k, "mean_tools": np.mean([len(rows) for rows in sets])}
            line |= {"recall": recall.mean(), "hit_rate": hits / len(sets), "completeness": recall.eq(1).mean()}
            line |= {"mean_tokens": tokens.mean(), "tokens_per_hit": tokens.sum() / hits if hits else np.nan}
            lines.append(line | {"token_reduction": 1 - tokens.mean() / sizes.sum()})
    yield Table("requests", pd.DataFrame(lines))


def handed_tools(
    catalog: ToolCatalog, queries: QuerySet, episodes: Sequence[Episode], flat: Sequence[Request], owner: Sequence[int]
) -> dict[str, Handed]:
    """What every system hands over. `flat`, `owner`: all requests, and the task of each."""
    first, n = [row for row, task in enumerate(owner) if row == 0 or owner[row - 1] != task], len(queries)
    systems: dict[str, Handed] = {}
    for name, routing in VARIANTS.items():
        scores = Router(catalog, routing).scores(flat)
        systems[name] = hand_over(scores, owner, n, TOP)
        if name == "mcp_zero":
            systems["mcp_zero_first"] = hand_over(scores[first], [owner[row] for row in first], n, TOP)
    dense, words = ToolIndex(catalog, Settings(document="name_desc")), ToolIndex(catalog, Settings("bm25", "server"))
    both, tool = [f"{request.server} {request.tool}" for request in flat], [request.tool for request in flat]
    systems["requests_flat"] = hand_over(dense.scores(both), owner, n, TOP)
    systems["requests_flat_tool"] = hand_over(dense.scores(tool), owner, n, TOP)
    systems["requests_bm25"] = hand_over(words.scores(both), owner, n, TOP)
    shown = {
        episode.task: [np.array(route.returned) for route in episode.routes if parse_requests(route.text)]
        for episode in episodes
    }
    systems["recorded"] = {3: [union(shown[task], 3) for task in queries.ids]}
    systems["recorded_first"] = {3: [union(shown[task][:1], 3) for task in queries.ids]}
    routed = Router(catalog, PAPER).scores([Request(text, text) for text in queries.texts])
    for name, scores in {"query_flat": dense.scores(queries.texts), "query_routed": routed}.items():
        systems[name] = hand_over(scores, range(n), n, TOP)
        # As many as the recorded router brought; MCP-Zero's own requests bring 6.6 tools instead of its 6.8.
        systems[f"{name}_same_number"] = same_number(scores, systems["recorded"])
    return systems


@dataclass(frozen=True)
class Asks:
    """What a recommender is asked."""

    queries: QuerySet  # texts and labels; their groups are task ids
    episode: IntArray  # the row of the log that each belongs to, shape (len(queries),)
    selected: tuple[tuple[int, ...], ...]  # the tools that the agent ran for it
    returned: IntArray  # what the recorded router answered with, shape (len(queries), width), -1 where unfilled
    blocks: tuple[Request, ...] = ()  # the requests, where the agent wrote some


def requests(episodes: Sequence[Episode]) -> Asks:
    """The agent's requests that were followed by a known tool; the label is the first tool that it then ran."""
    found = []
    for row, episode in enumerate(episodes):
        for number, route in enumerate(episode.routes, start=1):
            ran = next((run.tool for run in episode.executions if run.after == number), None)
            if ran is not None and (asked := parse_requests(route.text)):
                query = f"{episode.task}:{number}", " ".join(asked[0]), ((ran,),), episode.task
                found.append((query, row, (ran,), route.returned, asked[0]))
    queries, rows, selected, returned, blocks = zip(*found, strict=True)
    return Asks(query_set("requests", queries), np.array(rows), selected, results.padded(returned), blocks)


def recorded_tables(catalog: ToolCatalog, queries: QuerySet, episodes: Sequence[Episode]) -> Iterator[Table]:
    """request_servers.csv, request_agreement.csv and request_executed.csv of LiveMCPBench."""
    scores = {kind: Router(catalog, replace(PAPER, matching=kind)).server_scores(queries.texts) for kind in MATCHING}
    lines = [{"matching": kind} | server_measures(own, catalog, queries) for kind, own in scores.items()]
    yield Table("request_servers", pd.DataFrame(lines))
    asked = [episode for episode in episodes if episode.task in set(queries.ids)]
    routes = [(found[0], r.returned) for one in asked for r in one.routes if (found := parse_requests(r.text))]
    ranked = rank_all(Router(catalog, PAPER).scores([request for request, _ in routes]), max(KS))
    yield Table("request_agreement", pd.DataFrame([agreement(ranked, [shown for _, shown in routes])]))
    asks = requests(episodes)
    flat = ToolIndex(catalog, Settings(document="name_desc"))
    rankings = {
        "mcp_zero": rank_all(Router(catalog, PAPER).scores(asks.blocks), max(KS)),
        "requests_flat": rank_all(flat.scores(asks.queries.texts), max(KS)),
        "recorded": asks.returned,
    }
    yield Table("request_executed", executed(rankings, asks.queries, len(catalog.tools)))


def server_measures(scores: FloatArray, catalog: ToolCatalog, queries: QuerySet) -> dict[str, float]:
    """How well servers alone are found: MRR and hit rates of the servers that satisfy some label of a task. `scores`:
    shape (len(queries), n_servers)."""
    ranks = []
    for row, labels in zip(rank_all(scores), queries.labels, strict=True):
        right = {catalog.tools[tool].server for label in labels for tool in label}
        ranks.append(1 + int(np.flatnonzero(np.isin(row, list(right)))[0]))
    found = np.array(ranks)
    return {"mrr": float((1 / found).mean())} | {f"hit_rate@{k}": float((found <= k).mean()) for k in KS}


def agreement(ranked: IntArray, recorded: Sequence[Sequence[int]]) -> dict[str, float]:
    """Over requests, how often two routers name the same tool first, and the Jaccard index of their first three.

    `ranked`: shape (n_requests, K), K >= 3. `recorded`: known tools of the recorded answer, per request, best first;
    none counts as disagreement.
    """
    same, jaccard = [], []
    for own, other in zip(ranked, recorded, strict=True):
        ours, theirs = set(own[:3][own[:3] >= 0].tolist()), set(other[:3])
        same.append(bool(other) and own[0] == other[0])
        jaccard.append(len(ours & theirs) / len(ours | theirs) if ours | theirs else 0.0)
    return {"requests": len(same), "same_first": float(np.mean(same)), "jaccard@3": float(np.mean(jaccard))}


def executed(rankings: Mapping[str, IntArray], queries: QuerySet, n_tools: int) -> pd.DataFrame:
    """Hit rates of the tool that the agent ran first after a request, one row per router, means over requests. It
    favours the recorded router, among whose answers the agent chose."""
    tables = {name: results.measure(ranked, queries, n_tools, ks=KS[:2]) for name, ranked in rankings.items()}
    columns = [f"hit_rate@{k}" for k in KS[:2]]
    lines = [{"system": name, "requests": len(own)} | own[columns].mean().to_dict() for name, own in tables.items()]
    return pd.DataFrame(lines)
