"""How quality and latency change as the catalogue grows: by other real catalogues, then by noisy copies."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, replace

import numpy as np
import pandas as pd

from study import paths
from study.data.dataset import FloatArray
from study.encoders.sentence import cosines
from study.evaluation.records import record
from study.files import write_csv, write_json
from study.tools import results
from study.tools.catalogues import livemcp_log, mcpflow, published
from study.tools.catalogues.catalog import ToolCatalog
from study.tools.catalogues.merge import extend
from study.tools.catalogues.queries import QuerySet
from study.tools.discovery.experiments import rank_all
from study.tools.discovery.index import Settings, ToolIndex, best
from study.tools.mcp_zero.log_experiments import requests_by_task, union

# Characters of MCP-Flow's descriptions, which are cut: they only serve as hay.
LIMIT = 220
GROWTH = (500, 1_000, 5_000, 10_000, 12_000, 50_000, 100_000)
TOP = 10
# Tools that one request brings.
PER_REQUEST = (3, TOP)
SYSTEMS = {"discovery_name_desc": Settings("dense", "name_desc"), "bm25_name_desc": Settings("bm25", "name_desc")}
# Before the names of systems on the pool of the reference scores, which reads MCP-Flow in its own way.
REFERENCE = "reference_"


def pools() -> tuple[ToolCatalog, ToolCatalog, ToolCatalog]:
    """LiveMCPBench, with MCP-tools behind it, and with MCP-Flow behind both; its own rows stay the first ones."""
    small, other, last = (published.load(name).catalog for name in ("livemcpbench", "mcptools", "mcpflow"))
    middle = extend("livemcpbench+mcptools", small, other)
    return small, middle, cut(extend("livemcpbench+mcptools+mcpflow", middle, last), len(middle.tools))


def reference_pool(small: ToolCatalog, middle: ToolCatalog) -> ToolCatalog:
    """The 12,618 tools that reference scores exist for: tool names cut in another way, fewer tools known as repeats.

    There MCP-Flow was compared with LiveMCPBench alone, so that tools of MCP-tools stand in it twice.
    """
    plain = mcpflow.plainly_read(paths.raw("mcpflow"))
    return cut(extend("livemcpbench+mcptools+mcpflow", middle, plain, against=small), len(middle.tools))


def cut(catalog: ToolCatalog, own: int) -> ToolCatalog:
    """The catalogue with short texts behind its first `own` tools; repeats are looked for in whole texts, before."""
    short = tuple(replace(tool, description=tool.description[:LIMIT]) for tool in catalog.tools[own:])
    return replace(catalog, tools=catalog.tools[:own] + short)


def run() -> pd.DataFrame:
    """Protocols ``query_<pool>`` and ``request_<pool>`` of LiveMCPBench over pools of real tools, and scaling.csv.

    The fall has a part that is not the searches' fault: tools of other servers that would serve the task as well have
    no label.
    """
    small, middle, large = pools()
    queries = published.load("livemcpbench").queries["tasks"]
    requests, _ = requests_by_task(livemcp_log.load(paths.raw("livemcpbench"), small), queries.ids)
    owner = [task for task, own in enumerate(requests) for _ in own]
    asked = [f"{request.server} {request.tool}" for own in requests for request in own]
    lines = []
    for prefix, catalog in (("", small), ("", middle), ("", large), (REFERENCE, reference_pool(small, middle))):
        for name, settings in SYSTEMS.items():
            index, size = ToolIndex(catalog, settings), len(catalog.tools)
            tables = {
                "query": results.measure(rank_all(index.scores(queries.texts)), queries, size),
                "request": of_requests(index.scores(asked), owner, queries),
            }
            for kind, table in tables.items():
                protocol, config = f"{kind}_{size}", asdict(settings)
                results.save("livemcpbench", protocol, f"{prefix}{name}", table, (catalog, queries), config=config)
            line = {"tools": size, "servers": len(catalog.servers), "system": f"{prefix}{name}"}
            line |= {"mrr": tables["query"][f"mrr@{size}"].mean()}
            line |= {column: tables["query"][column].mean() for column in ("hit_rate@5", "recall@10")}
            line |= {f"requests_recall@{k}": tables["request"][f"recall@{k}"].mean() for k in PER_REQUEST}
            lines.append(line)
    frame = pd.DataFrame(lines)
    write_csv(paths.tables("livemcpbench") / "scaling.csv", frame)
    return frame


def of_requests(scores: FloatArray, owner: Sequence[int], queries: QuerySet) -> pd.DataFrame:
    """Per-task recall and hit rate of the tools that all requests of a task bring, `PER_REQUEST` per request.

    Args:
        scores: shape (n_requests, n_tools).
        owner: the task of each request, shape (n_requests,).
    """
    ranked, mine = rank_all(scores, TOP), np.array(owner)
    parts = []
    for k in PER_REQUEST:
        sets = [union([ranked[row] for row in np.flatnonzero(mine == task)], k) for task in range(len(queries))]
        parts.append(results.measure_sets(sets, queries, scores.shape[1], k).set_index(["task_id", "seed"]))
    return pd.concat(parts, axis=1).reset_index()


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
