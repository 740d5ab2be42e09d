"""How quality and latency change as the catalogue grows: by other real catalogues, then by noisy copies."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, replace

import numpy as np
import pandas as pd

from study import paths
from study.data.dataset import FloatArray
from study.encoders import cosines
from study.evaluation.records import record
from study.files import write_csv, write_json
from study.tools import results
from study.tools.catalogues import livemcp_log, published
from study.tools.catalogues.catalog import ToolCatalog
from study.tools.catalogues.merge import extend
from study.tools.catalogues.queries import QuerySet
from study.tools.discovery.experiments import rank_all
from study.tools.discovery.index import Settings, ToolIndex, best
from study.tools.mcp_zero.log_experiments import hand_over, requests_by_task, union

# Characters of MCP-Flow's descriptions, which are cut: they only serve as hay.
LIMIT = 220
GROWTH = (500, 1_000, 5_000, 10_000, 12_000, 50_000, 100_000)
TOP = 10


def pools() -> tuple[ToolCatalog, ToolCatalog, ToolCatalog]:
    """LiveMCPBench, with MCP-tools behind it, and with MCP-Flow behind both; its own rows stay the first ones."""
    small, other, last = (published.load(name).catalog for name in ("livemcpbench", "mcptools", "mcpflow"))
    middle = extend("livemcpbench+mcptools", small, other)
    large = extend("livemcpbench+mcptools+mcpflow", middle, last)
    # Cut after the comparison with what is known, which reads whole texts.
    own = len(middle.tools)
    cut = tuple(replace(tool, description=tool.description[:LIMIT]) for tool in large.tools[own:])
    return small, middle, replace(large, tools=large.tools[:own] + cut)


def run() -> pd.DataFrame:
    """Protocols ``query_<pool>`` of LiveMCPBench over three pools of real tools, and scaling.csv.

    The fall has a part that is not the searches' fault: tools of other servers that would serve the task as well have
    no label.
    """
    small, middle, large = pools()
    queries = published.load("livemcpbench").queries["tasks"]
    requests, _ = requests_by_task(livemcp_log.load(paths.raw("livemcpbench"), small), queries.ids)
    owner = [task for task, own in enumerate(requests) for _ in own]
    asked = [f"{request.server} {request.tool}" for own in requests for request in own]
    lines = []
    for catalog in (small, middle, large):
        for name, settings in {
            "discovery_name_desc": Settings("dense", "name_desc"),
            "bm25_name_desc": Settings("bm25", "name_desc"),
        }.items():
            index = ToolIndex(catalog, settings)
            ranked = rank_all(index.scores(queries.texts))
            table = results.measure(ranked, queries, len(catalog.tools))
            protocol = f"query_{len(catalog.tools)}"
            results.save("livemcpbench", protocol, name, table, (catalog, queries), config=asdict(settings))
            line = {"tools": len(catalog.tools), "servers": len(catalog.servers), "system": name}
            line |= {"mrr": table[f"mrr@{len(catalog.tools)}"].mean()}
            line |= {column: table[column].mean() for column in ("hit_rate@5", "recall@10")}
            lines.append(line | _requests(index.scores(asked), owner, queries))
    frame = pd.DataFrame(lines)
    write_csv(paths.tables("livemcpbench") / "scaling.csv", frame)
    return frame


def _requests(scores: FloatArray, owner: Sequence[int], queries: QuerySet) -> dict[str, float]:
    """Recall of the tools that all requests of a task bring, 3 and 10 per request."""
    n = len(queries)
    found = {"requests_recall@3": _recall(hand_over(scores, owner, n)[3], queries, scores.shape[1], 3)}
    ranked = rank_all(scores, TOP)
    sets = [union([ranked[row] for row in np.flatnonzero(np.array(owner) == task)], TOP) for task in range(n)]
    return found | {f"requests_recall@{TOP}": _recall(sets, queries, scores.shape[1], TOP)}


def _recall(sets: Sequence[Sequence[int]], queries: QuerySet, n_tools: int, k: int) -> float:
    return float(results.measure_sets(sets, queries, n_tools, k)[f"recall@{k}"].mean())


def grown(vectors: FloatArray, size: int, rng: np.random.Generator, noise: float = 0.1) -> FloatArray:
    """`size` unit vectors: the given ones first, then copies of them with Gaussian noise of this length."""
    if size <= len(vectors):
        return vectors[:size]
    copies = vectors[rng.integers(len(vectors), size=size - len(vectors))]
    copies = copies + rng.normal(scale=noise / np.sqrt(vectors.shape[1]), size=copies.shape).astype(np.float32)
    whole: FloatArray = np.concatenate([vectors, copies / np.linalg.norm(copies, axis=1, keepdims=True)])
    return whole


def growth(index: ToolIndex, queries: Sequence[str], sizes: Sequence[int] = GROWTH) -> pd.DataFrame:
    """Milliseconds per query, one at a time, as the number of tools grows; synthetic above the real ones.

    Returns: one row per size with the embedding, search and whole latency (median and 95th percentile).
    """
    rng = np.random.default_rng(results.SEED)
    index.embedder.encode([queries[0]], store=False)
    lines = []
    for size in sizes:
        vectors = grown(index.vectors, size, rng)
        order = rng.permutation(size)
        parts = []
        for query in queries:
            started = time.perf_counter()
            vector = index.embedder.encode([query], store=False)
            embedded = time.perf_counter()
            best(cosines(vector, vectors)[0], TOP, order)
            parts.append((embedded - started, time.perf_counter() - embedded))
        milliseconds = 1e3 * np.array(parts)
        shown = {"embed": milliseconds[:, 0], "search": milliseconds[:, 1], "whole": milliseconds.sum(axis=1)}
        line: dict[str, float] = {"tools": size, "synthetic": max(0, size - len(index.vectors))}
        for name, values in shown.items():
            line |= {f"{name}_p50_ms": float(np.median(values)), f"{name}_p95_ms": float(np.quantile(values, 0.95))}
        lines.append(line)
    return pd.DataFrame(lines)


def run_growth() -> pd.DataFrame:
    """Latency of the largest real pool and of its noisy copies, for LiveMCPBench's tasks: growth.csv."""
    queries, chosen = published.load("livemcpbench").queries["tasks"], Settings("dense", "name_desc")
    index = ToolIndex(pools()[-1], chosen)
    table = growth(index, queries.texts)
    write_csv(paths.tables("livemcpbench") / "growth.csv", table)
    facts = results.sources(index.catalog, queries) | {"config": asdict(chosen) | {"top": TOP}}
    write_json(paths.tables("livemcpbench") / "growth.json", record(dataset="livemcpbench", table="growth", **facts))
    return table
