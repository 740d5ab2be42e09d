"""Other people's benchmarks, asked of systems that learn nothing from labels: which servers hold the labelled tools?

Nothing was tuned on them. LiveMCPBench: its tasks over its own 70 servers, and over these inside Task2MCP's catalogue.
MCP-Atlas: its steps over the servers of MCP-tools.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
import scipy.sparse as sp

from baselines.rrf import ReciprocalRankFusion
from study.config.compose import build_system, load
from study.data import dataset as datasets
from study.data.dataset import Dataset, relevance_from_lists
from study.data.splits import Split
from study.evaluation import metrics, per_task
from study.evaluation.ranking import chunks, tie_order, top_k
from study.evaluation.system import System
from study.tools.catalogues import published
from study.tools.catalogues.queries import QuerySet

SETS = {"livemcpbench": "tasks", "mcptools": "atlas"}
FUSED = ("minilm", "bm25", "tfidf")
FUSION = "fusion"
KS = (1, 5, 10)
COLUMNS = ("name", "description", "language", "system", "tools", "category", "subcategory", "theme", "url")


def as_dataset(benchmark: str, *, inside: Dataset | None = None) -> tuple[Dataset, sp.csr_matrix, QuerySet]:
    """A tool benchmark as servers and tasks.

    A server's text is its name, description and the names of its tools; a task's is the query, as its description.

    Args:
        benchmark: a key of `SETS`.
        inside: a catalogue whose servers are put in front of the benchmark's own.

    Returns: the data set (no training labels), the relevant servers (shape (n_queries, n_servers): every server that
        holds a tool which satisfies a label), and the queries.
    """
    loaded = published.load(benchmark)
    queries, catalog = loaded.queries[SETS[benchmark]], loaded.catalog
    tools: list[list[str]] = [[] for _ in catalog.servers]
    for tool in catalog.tools:
        tools[tool.server].append(tool.name)
    servers = pd.DataFrame(
        {
            "name": [server.name for server in catalog.servers],
            "description": [server.description for server in catalog.servers],
            "tools": [", ".join(names) for names in tools],
        }
    )
    servers = _filled(servers)
    offset = 0
    if inside is not None:
        offset = inside.n_servers
        servers = pd.concat([inside.servers[servers.columns.intersection(inside.servers.columns)], servers])
        servers = _filled(servers.reset_index(drop=True).fillna(""))
    tasks = _filled(pd.DataFrame({"description": list(queries.texts)}))
    wanted = [
        np.unique([offset + catalog.tools[tool].server for label in labels for tool in label])
        for labels in queries.labels
    ]
    relevant = relevance_from_lists(tuple(np.asarray(rows, dtype=np.int64) for rows in wanted), len(servers))
    nothing = relevance_from_lists(tuple(np.empty(0, dtype=np.int64) for _ in wanted), len(servers))
    empty = tuple(np.empty(0, dtype=np.int64) for _ in wanted)
    return Dataset(benchmark, servers, tasks, nothing, empty), relevant, queries


def _filled(table: pd.DataFrame) -> pd.DataFrame:
    """The table with every text column that a system may read, and an id."""
    missing = {name: "" for name in COLUMNS if name not in table}
    return table.assign(**missing, id=np.arange(len(table)))


def systems(names: tuple[str, ...]) -> dict[str, System]:
    """The named systems of ``conf/system``, and the rank fusion of `FUSED`."""
    built: dict[str, System] = {name: build_system(load([f"system={name}"]).system) for name in names}
    members = {name: build_system(load([f"system={name}"]).system) for name in FUSED}
    return built | {FUSION: ReciprocalRankFusion(members=members, weights={})}


def measure(data: Dataset, relevant: sp.csr_matrix, ids: tuple[str, ...], system: System, *, seed: int) -> pd.DataFrame:
    """Per-query measures of one system, in the evaluator's form."""
    nothing = data.relevance
    split = Split("cold", nothing, nothing, nothing, cold=True)
    with tempfile.TemporaryDirectory() as folder:
        system.fit(data, split, seed=seed, workdir=Path(folder))
        order, rows = tie_order(data.n_servers, seed), np.arange(data.n_tasks)
        ranked = np.concatenate([top_k(system.score(rows[part]), max(KS), order)[0] for part in chunks(rows)])
    return per_task.table(ids, seed, metrics.per_task(ranked, relevant, KS))


def run(names: tuple[str, ...], *, seed: int = 0) -> Mapping[str, dict[str, pd.DataFrame]]:
    """Every setting and system: setting -> system -> per-query table."""
    catalogue = datasets.load("task2mcp")
    found: dict[str, dict[str, pd.DataFrame]] = {}
    for setting, benchmark, inside in (
        ("livemcpbench", "livemcpbench", None),
        ("livemcpbench_inside", "livemcpbench", catalogue),
        ("mcptools", "mcptools", None),
    ):
        data, relevant, queries = as_dataset(benchmark, inside=inside)
        found[setting] = {
            name: measure(data, relevant, queries.ids, system, seed=seed) for name, system in systems(names).items()
        }
    return found
