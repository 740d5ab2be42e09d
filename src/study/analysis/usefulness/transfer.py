"""Other people's benchmarks, asked of systems that learn nothing from labels: which servers hold the labelled tools?

Nothing was tuned on them. LiveMCPBench: its tasks over its own 70 servers, and over these inside Task2MCP's catalogue.
MCP-Atlas: its steps over the servers of MCP-tools.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import scipy.sparse as sp

from study.config.compose import build_system, load
from study.config.registry import changed
from study.data import dataset as datasets
from study.data.dataset import Dataset, IntArray, relevance_from_lists
from study.data.splits import Split
from study.evaluation import metrics, per_task
from study.evaluation.ranking import chunks, tie_order, top_k
from study.evaluation.system import System
from study.judging.evaluate import mean_interval
from study.tools.catalogues import published
from study.tools.catalogues.catalog import QuerySet

SETS = {"livemcpbench": "tasks", "mcptools": "atlas"}
# setting -> the benchmark, and whether its servers are ranked inside Task2MCP's catalogue
SETTINGS = {
    "livemcpbench": ("livemcpbench", False),
    "livemcpbench_inside": ("livemcpbench", True),
    "mcptools": ("mcptools", False),
}
KS = (1, 5, 10)
SHOWN = ["ndcg@5", "ndcg@10", "recall@10", "hit_rate@1"]
COLUMNS = ("name", "description", "language", "system", "tools", "category", "subcategory", "theme", "url")


@dataclass(frozen=True)
class Transfer:
    """``conf/usefulness/transfer.yaml``, where every key is explained."""

    systems: list[str]
    fusion: list[str]
    system: str
    metric: str
    seed: int


def as_dataset(benchmark: str, *, inside: Dataset | None = None) -> tuple[Dataset, sp.csr_matrix, QuerySet]:
    """A tool benchmark as servers (name, description, names of the tools) and tasks (the query as description).

    Args:
        benchmark: a key of `SETS`.
        inside: a catalogue whose servers are put in front of the benchmark's own.

    Returns: the data set (no training labels), the relevant servers (shape (n_queries, n_servers): every server that
    holds a tool which satisfies a label), and the queries.
    """
    loaded = published.load_collection(benchmark)
    queries, catalog = loaded.queries[SETS[benchmark]], loaded.catalog
    tools: list[list[str]] = [[] for _ in catalog.servers]
    for tool in catalog.tools:
        tools[tool.server].append(tool.name)
    rows = [
        (server.name, server.description, ", ".join(own)) for server, own in zip(catalog.servers, tools, strict=True)
    ]
    servers, offset = _filled(pd.DataFrame(rows, columns=["name", "description", "tools"])), 0
    if inside is not None:
        offset = inside.n_servers
        servers = pd.concat([inside.servers[servers.columns.intersection(inside.servers.columns)], servers])
        servers = _filled(servers.reset_index(drop=True).fillna(""))
    tasks = _filled(pd.DataFrame({"description": list(queries.texts)}))

    def lists(rows: list[list[int]]) -> tuple[IntArray, ...]:
        return tuple(np.unique(np.array(own, dtype=np.int64)) for own in rows)

    wanted = [[offset + catalog.tools[tool].server for label in own for tool in label] for own in queries.labels]
    empty = lists([[] for _ in wanted])
    data = Dataset(benchmark, servers, tasks, relevance_from_lists(empty, len(servers)), empty)
    return data, relevance_from_lists(lists(wanted), len(servers)), queries


def _filled(table: pd.DataFrame) -> pd.DataFrame:
    """The table with every text column that a system may read, and an id."""
    missing = {name: "" for name in COLUMNS if name not in table}
    return table.assign(**missing, id=np.arange(len(table)))


def build_systems(settings: Transfer) -> dict[str, System]:
    """The systems to ask, by name; `fusion` is the rank fusion of the named systems with equal weights."""
    models = {name: load([f"system={name}"]).system for name in dict.fromkeys([*settings.systems, *settings.fusion])}
    fusion = load(["system=rrf"])
    members = {name: models[name].model for name in settings.fusion}
    model = {"members": members, "weights": {}, "_target_": fusion.system.model._target_}
    fused = changed(fusion, {"system.model": model}, merge=False).system
    return {name: build_system(models[name]) for name in settings.systems} | {"fusion": build_system(fused)}


def measure(data: Dataset, relevant: sp.csr_matrix, ids: tuple[str, ...], system: System, *, seed: int) -> pd.DataFrame:
    """Per-query measures of one system, in the evaluator's form."""
    nothing = data.relevance
    split = Split("cold", nothing, nothing, nothing, cold=True)
    with tempfile.TemporaryDirectory() as folder:
        system.fit(data, split, seed=seed, workdir=Path(folder))
        order, rows = tie_order(data.n_servers, seed), np.arange(data.n_tasks)
        ranked = np.concatenate([top_k(system.score(rows[part]), max(KS), order)[0] for part in chunks(rows)])
    return per_task.table(ids, seed, metrics.per_task(ranked, relevant, KS))


def transfer_table(settings: Transfer) -> pd.DataFrame:
    """Every setting and system: columns setting, system, queries, those of `SHOWN`, diff, diff_ci_low, diff_ci_high.
    diff is how much better the chosen system is, paired by query (95 % interval, bootstrap over queries)."""
    catalogue, rows = datasets.load("task2mcp"), []
    for setting, (benchmark, inside) in SETTINGS.items():
        data, relevant, queries = as_dataset(benchmark, inside=catalogue if inside else None)
        values = {
            name: measure(data, relevant, queries.ids, system, seed=settings.seed)
            for name, system in build_systems(settings).items()
        }
        reference = values[settings.system][settings.metric]
        for name, frame in values.items():
            row = {"setting": setting, "system": name, "queries": len(frame), **frame[SHOWN].mean().to_dict()}
            lead = reference - frame[settings.metric]
            rows.append(row | mean_interval(lead, seed=settings.seed, name="diff", prefix="diff_"))
    return pd.DataFrame(rows)
