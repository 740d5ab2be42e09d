"""Experiments of Semantic Tool Discovery: searches, popularity, the form of Tables 1 to 6, larger catalogues."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
import pandas as pd

from study.advisor.encoders.sentence import cosines
from study.advisor.retrieval.documents import ToolCatalog
from study.advisor.retrieval.index import Settings, ToolIndex
from study.advisor.retrieval.merge import extend
from study.advisor.retrieval.ranking import best, tie_order
from study.advisor.retrieval.texts import definition_tokens
from study.base import paths
from study.base.settings import read_settings
from study.data.dataset import FloatArray, IntArray
from study.evaluation.metrics import harmonic_mean
from study.tools import results
from study.tools.collections import plainly_read
from study.tools.queries import QuerySet, query_set, rank_all
from study.tools.results import Inputs, Run, Table

KS = (1, 2, 3, 5, 10)
TEMPLATE = Settings(document="template")
MACRO_METRICS = ("hit_rate@1", "recall@5")
GROWTH = (500, 1_000, 5_000, 10_000, 12_000, 50_000, 100_000)
TOP = 10  # tools of a timed answer
LIMIT = 220  # characters of MCP-Flow's descriptions, which are cut: they only serve as hay
PER_REQUEST = (3, 10)  # tools that one request brings
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


def search_runs(
    protocol: str, inputs: Inputs, systems: Mapping[str, Settings], units: Sequence[str] | None = None
) -> Iterator[Run]:
    """Every query searched with every system, and answered with tools by chance and with the most used ones, counted in
    the labels of the other `units` (default: the queries' groups)."""
    catalog, queries = inputs
    n_tools = len(catalog.tools)
    chance = np.random.default_rng(0).random((len(queries), n_tools), dtype=np.float32)
    config = asdict(Settings(document="name_desc")) | {"mode": "random"}
    yield results.ranking_run(protocol, "random", inputs, lambda _: chance, tie_order(n_tools, 0), config=config)
    for name, chosen in systems.items():
        index = ToolIndex(catalog, chosen)
        yield results.ranking_run(protocol, name, inputs, index.scores, index.order, config=asdict(chosen))
    used = popularity(queries, units or queries.groups, n_tools)
    yield results.ranking_run(protocol, "popularity", inputs, lambda _: used, config={})


def popularity(queries: QuerySet, units: Sequence[str], n_tools: int) -> FloatArray:
    """How often each tool is a label of the queries of all other units, shape (len(queries), n_tools). `units`: queries
    of one unit know nothing of each other's labels, shape (len(queries),)."""
    counts = np.zeros((len(queries), n_tools), dtype=np.float32)
    for row, labels in enumerate(queries.labels):
        counts[row, [tool for label in labels for tool in label]] = 1
    others: FloatArray = counts.sum(axis=0) - pd.DataFrame(counts).groupby(list(units)).transform("sum").to_numpy()
    return others


def ten_servers(catalog: ToolCatalog, queries: QuerySet, ids: Sequence[str]) -> Inputs:
    """The stand-in for the paper's five servers: ten servers of MCP-tools and the queries for their tools. Where
    several servers were published under one id, all of them are kept, as a label names the id."""
    kept_servers = [row for row, server in enumerate(catalog.servers) if server.id.partition("#")[0] in ids]
    chosen, rows = catalog.subset(kept_servers, "mcptools10")
    row_of = {int(old): new for new, old in enumerate(rows)}
    rows_inside = []
    for name, text, labels, group in queries.rows():
        inside = [tuple(row_of[tool] for tool in label if tool in row_of) for label in labels]
        rows_inside.append((name, text, tuple(filter(None, inside)), group))
    return chosen, query_set(queries.name, [row for row in rows_inside if row[2]])


def macro_table(collection: str, protocols: Mapping[str, Inputs]) -> Table:
    """macro.csv of a collection, from its kept runs: means over tools and servers (those of a query's first label)
    beside those over queries, and how many queries the largest server has. `protocols`: what is searched and asked."""
    runs, lines = results.collect_runs(collection), []
    for protocol, inputs in protocols.items():
        for system, table in runs[protocol].items():
            lines += [{"protocol": protocol, **line} for line in macro_means(system, table, inputs)]
    return Table("macro", pd.DataFrame(lines))


def macro_means(
    system: str, table: pd.DataFrame, inputs: Inputs, metrics: Sequence[str] = MACRO_METRICS
) -> Iterator[dict[str, object]]:
    """One line per metric; `table`: per task."""
    catalog, queries = inputs
    tool_of = {name: labels[0][0] for name, labels in zip(queries.ids, queries.labels, strict=True)}
    tools = table["task_id"].astype(str).map(tool_of).to_numpy()
    servers = pd.Series(catalog.server_of[tools])
    counts: dict[str, float] = {"tools": len(set(tools)), "servers": servers.nunique()}
    counts["largest_server"] = servers.value_counts(normalize=True).max()
    for metric in metrics:
        by_tool, by_server = (table[metric].groupby(unit).mean().mean() for unit in (tools, servers.to_numpy()))
        means = {"by_query": table[metric].mean(), "by_tool": by_tool, "by_server": by_server}
        yield {"system": system, "metric": metric, **means, **counts}


def by_k(inputs: Inputs, scores: FloatArray) -> pd.DataFrame:
    """One row per K: precision, recall, F1 of these two means (as the paper), hit rate, MRR at K, and how many tokens
    are saved of the definitions of all tools. `scores`: shape (len(queries), n_tools)."""
    catalog, queries = inputs
    ranked, sizes, rows = rank_all(scores), definition_tokens(catalog), []
    # A quarter of the characters, the usual rule of thumb for tokens.
    quarters = np.array([len(json.dumps(tool.definition(), ensure_ascii=False)) // 4 for tool in catalog.tools])
    table = results.measure(ranked, queries, len(catalog.tools), ks=KS)
    for k in KS:
        tokens, by_characters = (token_counts[ranked[:, :k]].sum(axis=1).mean() for token_counts in (sizes, quarters))
        precision, recall = (table[f"{name}@{k}"].to_numpy() for name in ("precision", "recall"))
        line = {"k": k, "precision": precision.mean(), "recall": recall.mean()}
        line["f1"] = float(harmonic_mean(line["precision"], line["recall"]))
        line |= {name: table[f"{name}@{k}"].mean() for name in ("hit_rate", "mrr")}
        line |= {"token_reduction": 1 - tokens / sizes.sum(), "tokens": tokens}
        rows.append(line | {"tokens_by_characters": by_characters})
    return pd.DataFrame(rows)


def by_threshold(inputs: Inputs, scores: FloatArray, thresholds: Sequence[float], k: int) -> pd.DataFrame:
    """One row per threshold (section 6.4): at most `k` tools that score as much, or the best `k` where none does.
    `scores`: shape (len(queries), n_tools). Column fell_back: share of the queries where none does."""
    catalog, queries = inputs
    ranked, sizes, rows = rank_all(scores, k), definition_tokens(catalog), []
    for threshold in thresholds:
        reaching = [tools[scores[row, tools] >= threshold] for row, tools in enumerate(ranked)]
        handed = [(some if len(some) else tools).tolist() for some, tools in zip(reaching, ranked, strict=True)]
        table, counts = results.measure_sets({k: handed}, queries, len(catalog.tools)), np.array([*map(len, handed)])
        right = table[f"recall@{k}"].to_numpy() * [len(labels) for labels in queries.labels]
        line = {"threshold": threshold, "fell_back": float((scores.max(axis=1) < threshold).mean())}
        line |= {"mean_tools": counts.mean(), "precision": float((right / counts).mean())}
        line |= {name: table[f"{name}@{k}"].mean() for name in ("recall", "hit_rate")}
        rows.append(line | {"mean_tokens": float(np.mean([sizes[tools].sum() for tools in handed]))})
    return pd.DataFrame(rows)


def template_tables(inputs: Inputs, thresholds: Sequence[float]) -> Iterator[Table]:
    """Table 1's form: discovery_table.csv, dense search over the paper's template; and its thresholds."""
    scores = ToolIndex(inputs[0], TEMPLATE).scores(inputs[1].texts)
    facts = results.sources(*inputs) | {"config": asdict(TEMPLATE) | {"thresholds": thresholds}}
    yield Table("discovery_table", by_k(inputs, scores), facts)
    yield Table("discovery_thresholds", by_threshold(inputs, scores, thresholds, max(KS)))


def server_table(inputs: Inputs) -> Table:
    """Tables 2-6's form: discovery_servers.csv, queries grouped by the server of their first label. Every query
    searches the whole catalogue; tokens are compared with the definitions of all its tools."""
    catalog, queries = inputs
    scores = ToolIndex(catalog, TEMPLATE).scores(queries.texts)
    names = [server.id.partition("#")[0] for server in catalog.servers]
    owner = pd.Series([names[catalog.tools[labels[0][0]].server] for labels in queries.labels])
    counts = owner.value_counts().sort_index().sort_values(ascending=False, kind="stable")
    parts = [by_k(inputs, scores).assign(server="all", queries=len(queries))]
    for server, count in counts.items():
        rows = np.flatnonzero(owner == server).tolist()
        parts.append(by_k((catalog, queries.take(rows)), scores[rows]).assign(server=str(server), queries=count))
    table = pd.concat(parts)
    return Table("discovery_servers", table[["server", "queries", *table.columns.drop(["server", "queries"])]])


def pools(small: ToolCatalog, other: ToolCatalog, last: ToolCatalog) -> list[tuple[str, ToolCatalog]]:
    """LiveMCPBench, with MCP-tools behind it, and with MCP-Flow behind both, whose texts are cut after repeats are
    looked for; its own rows stay the first ones. Each with what stands before the names of systems on it.

    The last one is the pool of 12,618 tools that reference scores exist for: tool names cut in another way, fewer tools
    known as repeats. There MCP-Flow was compared with LiveMCPBench alone, so that tools of MCP-tools stand in it twice.
    """
    middle = extend("livemcpbench+mcptools", small, other)
    name, plain = "livemcpbench+mcptools+mcpflow", plainly_read(paths.raw("mcpflow"))
    large = [extend(name, middle, last), extend(name, middle, plain, against=small)]
    for number, whole in enumerate(large):
        n_before = len(middle.tools)
        short = tuple(replace(tool, description=tool.description[:LIMIT]) for tool in whole.tools[n_before:])
        large[number] = replace(whole, tools=whole.tools[:n_before] + short)
    return [("", small), ("", middle), ("", large[0]), (REFERENCE, large[1])]


def pool_runs(
    named: Sequence[tuple[str, ToolCatalog]], queries: QuerySet, requests: Sequence[str], owner: Sequence[int]
) -> Iterator[Run | Table]:
    """Protocols ``query_<pool>`` and ``request_<pool>`` of LiveMCPBench over pools of real tools, and scaling.csv.

    Part of the fall is not the searches' fault: tools of other servers that would serve as well have no label.
    `named`: from `pools`. `requests`, `owner`: texts, and the task of each.
    """
    lines = []
    for prefix, catalog in named:
        for name, settings in SYSTEMS.items():
            index, size = ToolIndex(catalog, settings), len(catalog.tools)
            by_query = results.measure(rank_all(index.scores(queries.texts)), queries, size)
            handed = hand_over(index.scores(requests), owner, len(queries), PER_REQUEST)
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


def growth_table(inputs: Inputs) -> Table:
    """growth.csv: milliseconds per query, one at a time, by number of tools; above the real ones noisy copies."""
    (catalog, queries), rng, lines = inputs, np.random.default_rng(results.SEED), []
    index = ToolIndex(catalog, SYSTEMS["discovery_name_desc"])
    index.embedder.encode([queries.texts[0]], store=False)
    real = index.embedder.encode(index.documents)
    for size in GROWTH:
        vectors, order, times = grown(real, size, rng), rng.permutation(size), []
        for query in queries.texts:
            started = time.perf_counter()
            vector = index.embedder.encode([query], store=False)
            embedded = time.perf_counter()
            best(cosines(vector, vectors)[0], TOP, order)
            times.append((embedded - started, time.perf_counter() - embedded))
        embed, search = np.array(times).T
        line: dict[str, float] = {"tools": size, "synthetic": max(0, size - len(real))}
        for name, seconds in {"embed": embed, "search": search, "whole": embed + search}.items():
            line |= results.percentiles(name, seconds)
        lines.append(line)
    facts = results.sources(*inputs) | {"config": asdict(SYSTEMS["discovery_name_desc"]) | {"top": TOP}}
    return Table("growth", pd.DataFrame(lines), facts)
