"""Experiments of Semantic Tool Discovery: searches, popularity, the form of Tables 1 to 6, larger catalogues."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
import pandas as pd

from study.advisor.encoders.sentence import cosines
from study.advisor.retrieval.documents import ToolCatalog
from study.advisor.retrieval.index import Settings, ToolIndex, above
from study.advisor.retrieval.merge import extend
from study.advisor.retrieval.ranking import best
from study.advisor.retrieval.texts import definition_tokens
from study.base import paths
from study.base.settings import read_settings
from study.data.dataset import FloatArray, IntArray
from study.evaluation.metrics import harmonic_mean
from study.tools import results
from study.tools.collections.published import plainly_read
from study.tools.queries import QuerySet, query_set, rank_all
from study.tools.results import Run, Table

KS = (1, 2, 3, 5, 10)
TEMPLATE = Settings(document="template")
MACRO_METRICS = ("hit_rate@1", "recall@5")
LIMIT = 220  # characters of MCP-Flow's descriptions, which are cut: they only serve as hay
GROWTH = (500, 1_000, 5_000, 10_000, 12_000, 50_000, 100_000)
TOP = 10
PER_REQUEST = (3, TOP)  # tools that one request brings
Handed = dict[int, list[list[int]]]  # k -> the tools that each task is handed
SYSTEMS = {"discovery_name_desc": Settings("dense", "name_desc"), "bm25_name_desc": Settings("bm25", "name_desc")}
REFERENCE = "reference_"  # before the names of systems on the pool of the reference scores


@dataclass(frozen=True)
class Discovery:
    """``conf/tools/discovery.yaml``, where every key is explained."""

    systems: Mapping[str, Settings]
    # collection -> protocol -> the system that the others are compared with, and the metric
    references: Mapping[str, Mapping[str, tuple[str, str]]]
    # collection -> protocol -> further comparisons: system, reference, metric
    pairs: Mapping[str, Mapping[str, tuple[tuple[str, str, str], ...]]]
    targets: Mapping[str, float]
    thresholds: tuple[float, ...]
    ten_servers: tuple[str, ...]


def discovery_settings() -> Discovery:
    """Read ``conf/tools/discovery.yaml``."""
    return read_settings(Discovery, paths.conf() / "tools" / "discovery.yaml")


def definition_quarters(catalog: ToolCatalog) -> IntArray:
    """A quarter of each definition's characters, the usual rule of thumb for tokens, shape (n_tools,)."""
    texts = [json.dumps(tool.definition(), ensure_ascii=False) for tool in catalog.tools]
    return np.array([len(text) // 4 for text in texts], dtype=np.int64)


def handed_over(ranked: IntArray, sizes: IntArray) -> IntArray:
    """Tokens of the tools in each ranking, shape (b,). `ranked`: tool rows, shape (b, K), -1 where unfilled. `sizes`:
    tokens per tool, shape (n_tools,)."""
    total: IntArray = np.where(ranked >= 0, sizes[np.maximum(ranked, 0)], 0).sum(axis=1)
    return total


def search_runs(
    protocol: str, catalog: ToolCatalog, queries: QuerySet, systems: Mapping[str, Settings]
) -> Iterator[Run]:
    """Every query searched with every system."""
    for name, chosen in systems.items():
        index, config = ToolIndex(catalog, chosen), asdict(chosen)
        yield results.ranking_run(protocol, name, (catalog, queries), index.scores, index.order, config=config)


def ten_servers(catalog: ToolCatalog, queries: QuerySet, ids: Sequence[str]) -> tuple[ToolCatalog, QuerySet]:
    """The stand-in for the paper's five servers: ten servers of MCP-tools and the queries for their tools. Where
    several servers were published under one id, all of them are kept, as a label names the id."""
    kept_servers = [row for row, server in enumerate(catalog.servers) if server.id.partition("#")[0] in ids]
    chosen, rows = catalog.subset(kept_servers, "mcptools10")
    place = {int(old): new for new, old in enumerate(rows)}
    asked = []
    for name, text, labels, group in queries.rows():
        kept = [tuple(place[tool] for tool in label if tool in place) for label in labels]
        asked.append((name, text, tuple(filter(None, kept)), group))
    return chosen, query_set(queries.name, [row for row in asked if row[2]])


def popularity(queries: QuerySet, units: Sequence[str], n_tools: int) -> FloatArray:
    """How often each tool is a label of the queries of all other units, shape (len(queries), n_tools). `units`: queries
    of one unit know nothing of each other's labels, shape (len(queries),)."""
    counts = np.zeros((len(queries), n_tools), dtype=np.float32)
    for row, labels in enumerate(queries.labels):
        counts[row, [tool for label in labels for tool in label]] = 1
    others: FloatArray = counts.sum(axis=0) - pd.DataFrame(counts).groupby(list(units)).transform("sum").to_numpy()
    return others


def popularity_run(protocol: str, catalog: ToolCatalog, queries: QuerySet, units: Sequence[str] | None = None) -> Run:
    """The most used tools for every query, counted in the labels of the other units (default: the queries' groups)."""
    scores = popularity(queries, units or queries.groups, len(catalog.tools))
    return results.ranking_run(protocol, "popularity", (catalog, queries), lambda _: scores, config={})


def macro_means(
    runs: Mapping[str, pd.DataFrame], catalog: ToolCatalog, queries: QuerySet, metrics: Sequence[str]
) -> pd.DataFrame:
    """Means over tools and servers (those of a query's first label) beside those over queries.

    `runs`: per-task tables by system. Returns: columns system, metric, by_query, by_tool, by_server, tools, servers,
    largest_server (its share of the queries).
    """
    tool_of = {name: labels[0][0] for name, labels in zip(queries.ids, queries.labels, strict=True)}
    lines = []
    for system, table in runs.items():
        tools = table["task_id"].astype(str).map(tool_of)
        servers = tools.map(lambda tool: catalog.tools[tool].server)
        shares: dict[str, float] = {"tools": tools.nunique(), "servers": servers.nunique()}
        shares["largest_server"] = servers.value_counts(normalize=True).max()
        for metric in metrics:
            means = {"system": system, "metric": metric, "by_query": table[metric].mean()}
            for name, unit in (("by_tool", tools), ("by_server", servers)):
                means[name] = table[metric].groupby(unit.to_numpy()).mean().mean()
            lines.append(means | shares)
    return pd.DataFrame(lines)


def macro_table(collection: str, asked: Mapping[str, tuple[ToolCatalog, QuerySet]]) -> Table:
    """macro.csv of a collection, from its kept runs. `asked`: protocol -> the catalogue searched, and the queries."""
    runs = results.collect_runs(collection)
    parts = [macro_means(runs[at], *own, MACRO_METRICS).assign(protocol=at) for at, own in asked.items()]
    table = pd.concat(parts, ignore_index=True)
    return Table("macro", table[["protocol", *table.columns.drop("protocol")]])


def by_k(catalog: ToolCatalog, queries: QuerySet, scores: FloatArray, *, pool_tokens: int) -> pd.DataFrame:
    """One row per K: precision, recall, F1 of these two means (as the paper), hit rate, MRR at K, token reduction.
    `scores`: shape (len(queries), n_tools). `pool_tokens`: of all definitions that are handed over otherwise."""
    ranked = rank_all(scores)
    table = results.measure(ranked, queries, len(catalog.tools), ks=KS)
    sizes, quarters = definition_tokens(catalog), definition_quarters(catalog)
    rows = []
    for k in KS:
        tokens = handed_over(ranked[:, :k], sizes).mean()
        precision, recall = (table[f"{name}@{k}"].to_numpy() for name in ("precision", "recall"))
        line = {"k": k, "precision": precision.mean(), "recall": recall.mean()}
        line["f1"] = float(harmonic_mean(line["precision"], line["recall"]))
        line |= {name: table[f"{name}@{k}"].mean() for name in ("hit_rate", "mrr")}
        by_characters = handed_over(ranked[:, :k], quarters).mean()
        reduction = 1 - tokens / pool_tokens
        rows.append(line | {"token_reduction": reduction, "tokens": tokens, "tokens_by_characters": by_characters})
    return pd.DataFrame(rows)


def by_threshold(
    catalog: ToolCatalog, queries: QuerySet, scores: FloatArray, thresholds: Sequence[float], k: int
) -> pd.DataFrame:
    """One row per threshold (section 6.4): at most `k` tools that score as much, or the best `k` where none does.
    `scores`: shape (len(queries), n_tools). Column fell_back: share of the queries where none does."""
    ranked, sizes, rows = rank_all(scores, k), definition_tokens(catalog), []
    for threshold in thresholds:
        handed = [above(own, scores[row, own], threshold)[0].tolist() for row, own in enumerate(ranked)]
        table = results.measure_sets({k: handed}, queries, len(catalog.tools))
        counts = np.array([len(rows) for rows in handed])
        found = table[f"recall@{k}"].to_numpy() * [len(labels) for labels in queries.labels]
        line = {"threshold": threshold, "fell_back": float((scores.max(axis=1) < threshold).mean())}
        line |= {"mean_tools": counts.mean(), "precision": float((found / counts).mean())}
        line |= {name: table[f"{name}@{k}"].mean() for name in ("recall", "hit_rate")}
        rows.append(line | {"mean_tokens": float(np.mean([sizes[rows].sum() for rows in handed]))})
    return pd.DataFrame(rows)


def template_tables(catalog: ToolCatalog, queries: QuerySet, thresholds: Sequence[float]) -> Iterator[Table]:
    """Table 1's form: discovery_table.csv, dense search over the paper's template; and its thresholds."""
    scores = ToolIndex(catalog, TEMPLATE).scores(queries.texts)
    table = by_k(catalog, queries, scores, pool_tokens=int(definition_tokens(catalog).sum()))
    facts = results.sources(catalog, queries) | {"config": asdict(TEMPLATE) | {"thresholds": thresholds}}
    yield Table("discovery_table", table, facts)
    yield Table("discovery_thresholds", by_threshold(catalog, queries, scores, thresholds, max(KS)))


def server_table(catalog: ToolCatalog, queries: QuerySet) -> Table:
    """Tables 2-6's form: discovery_servers.csv, queries grouped by the server of their first label. Every query
    searches the whole catalogue; tokens are compared with the definitions of all its tools."""
    scores = ToolIndex(catalog, TEMPLATE).scores(queries.texts)
    total = int(definition_tokens(catalog).sum())
    owner = [catalog.servers[catalog.tools[labels[0][0]].server].id.partition("#")[0] for labels in queries.labels]
    parts = [by_k(catalog, queries, scores, pool_tokens=total).assign(server="all", queries=len(queries))]
    for server, count in sorted(Counter(owner).items(), key=lambda item: (-item[1], item[0])):
        rows = [row for row, name in enumerate(owner) if name == server]
        part = by_k(catalog, queries.take(rows), scores[rows], pool_tokens=total)
        parts.append(part.assign(server=server, queries=count))
    table = pd.concat(parts)
    return Table("discovery_servers", table[["server", "queries", *table.columns.drop(["server", "queries"])]])


def latency(index: ToolIndex, queries: tuple[str, ...], k: int) -> dict[str, float]:
    """Milliseconds per query, one at a time: the whole search, and its part after the embedding."""
    vectors = [index.embedder.encode([query], store=False) for query in queries]
    times = []
    index.search(queries[0], k)
    for query, vector in zip(queries, vectors, strict=True):
        started = time.perf_counter()
        index.search(query, k)
        searched = time.perf_counter()
        best(cosines(vector, index.vectors)[0], k, index.order)
        times.append((searched - started, time.perf_counter() - searched))
    whole, search = np.array(times).T
    found = results.percentiles("latency", whole) | results.percentiles("search", search)
    del found["search_p50_ms"]
    return found


def latency_table(catalog: ToolCatalog, queries: QuerySet) -> Table:
    """discovery_latency.csv: milliseconds per query of the template search, to be measured while nothing else runs."""
    line: dict[str, float] = {"tools": len(catalog.tools), "queries": len(queries)}
    line |= latency(ToolIndex(catalog, TEMPLATE), queries.texts, max(KS))
    facts = results.sources(catalog, queries) | {"config": asdict(TEMPLATE)}
    return Table("discovery_latency", pd.DataFrame([line]), facts)


def pools(small: ToolCatalog, other: ToolCatalog, last: ToolCatalog) -> tuple[ToolCatalog, ToolCatalog, ToolCatalog]:
    """LiveMCPBench, with MCP-tools behind it, and with MCP-Flow behind both; its own rows stay the first ones."""
    middle = extend("livemcpbench+mcptools", small, other)
    return small, middle, cut(extend("livemcpbench+mcptools+mcpflow", middle, last), len(middle.tools))


def reference_pool(small: ToolCatalog, middle: ToolCatalog) -> ToolCatalog:
    """The 12,618 tools that reference scores exist for: tool names cut in another way, fewer tools known as repeats.
    There MCP-Flow was compared with LiveMCPBench alone, so that tools of MCP-tools stand in it twice."""
    plain = plainly_read(paths.raw("mcpflow"))
    return cut(extend("livemcpbench+mcptools+mcpflow", middle, plain, against=small), len(middle.tools))


def cut(catalog: ToolCatalog, own: int) -> ToolCatalog:
    """The catalogue with short texts behind its first `own` tools; repeats are looked for in whole texts, before."""
    short = tuple(replace(tool, description=tool.description[:LIMIT]) for tool in catalog.tools[own:])
    return replace(catalog, tools=catalog.tools[:own] + short)


def pool_runs(
    named: Sequence[tuple[str, ToolCatalog]], queries: QuerySet, asked: Sequence[str], owner: Sequence[int]
) -> Iterator[Run | Table]:
    """Protocols ``query_<pool>`` and ``request_<pool>`` of LiveMCPBench over pools of real tools, and scaling.csv.

    Part of the fall is not the searches' fault: tools of other servers that would serve as well have no label.
    `named`: what stands before the systems' names, and the pool. `asked`, `owner`: requests, and the task of each.
    """
    lines = []
    for prefix, catalog in named:
        for name, settings in SYSTEMS.items():
            index, size = ToolIndex(catalog, settings), len(catalog.tools)
            by_query = results.measure(rank_all(index.scores(queries.texts)), queries, size)
            handed = hand_over(index.scores(asked), owner, len(queries), PER_REQUEST)
            by_request = results.measure_sets(handed, queries, size)
            for kind, table in (("query", by_query), ("request", by_request)):
                facts = {"config": asdict(settings)}
                yield Run(f"{kind}_{size}", f"{prefix}{name}", table, (catalog, queries), facts)
            line = {"tools": size, "servers": len(catalog.servers), "system": f"{prefix}{name}"}
            line |= {"mrr": by_query[f"mrr@{size}"].mean()}
            line |= {column: by_query[column].mean() for column in ("hit_rate@5", "recall@10")}
            lines.append(line | {f"requests_recall@{k}": by_request[f"recall@{k}"].mean() for k in PER_REQUEST})
    yield Table("scaling", pd.DataFrame(lines))


def hand_over(scores: FloatArray, owner: Sequence[int], n_tasks: int, ks: Sequence[int]) -> Handed:
    """Per k and task, the tools that all its requests bring, the first k of each. `scores`: shape (n_requests,
    n_tools). `owner`: the task of each request, shape (n_requests,)."""
    ranked, mine = rank_all(scores, max(ks)), np.asarray(owner)
    return {k: [union(ranked[mine == task], k) for task in range(n_tasks)] for k in ks}


def union(rankings: Iterable[IntArray], k: int) -> list[int]:
    """The first `k` tools of each ranking, each tool once, in order."""
    return list(dict.fromkeys(int(row) for ranking in rankings for row in ranking[:k] if row >= 0))


def grown(vectors: FloatArray, size: int, rng: np.random.Generator, noise: float = 0.1) -> FloatArray:
    """`size` unit vectors: the given ones first, then copies of them with Gaussian noise of this length."""
    if size <= len(vectors):
        return vectors[:size]
    copies = vectors[rng.integers(len(vectors), size=size - len(vectors))]
    copies = copies + rng.normal(scale=noise / np.sqrt(vectors.shape[1]), size=copies.shape).astype(np.float32)
    whole: FloatArray = np.concatenate([vectors, copies / np.linalg.norm(copies, axis=1, keepdims=True)])
    return whole


def growth_table(catalog: ToolCatalog, queries: QuerySet) -> Table:
    """growth.csv: milliseconds per query, one at a time, by number of tools; above the real ones noisy copies."""
    chosen, rng, lines = SYSTEMS["discovery_name_desc"], np.random.default_rng(results.SEED), []
    index = ToolIndex(catalog, chosen)
    index.embedder.encode([queries.texts[0]], store=False)
    for size in GROWTH:
        vectors = grown(index.vectors, size, rng)
        order = rng.permutation(size)
        parts = []
        for query in queries.texts:
            started = time.perf_counter()
            vector = index.embedder.encode([query], store=False)
            embedded = time.perf_counter()
            best(cosines(vector, vectors)[0], TOP, order)
            parts.append((embedded - started, time.perf_counter() - embedded))
        embed, search = np.array(parts).T
        line: dict[str, float] = {"tools": size, "synthetic": max(0, size - len(index.vectors))}
        for name, seconds in {"embed": embed, "search": search, "whole": embed + search}.items():
            line |= results.percentiles(name, seconds)
        lines.append(line)
    facts = results.sources(catalog, queries) | {"config": asdict(chosen) | {"top": TOP}}
    return Table("growth", pd.DataFrame(lines), facts)
