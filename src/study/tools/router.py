"""One router over all: task -> servers (any server recommender of the study) -> tools (tool retrieval) -> a budget."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sp

from study.advisor.encoders.choose import Embedder
from study.advisor.engine.tools import ServerStage
from study.advisor.retrieval.documents import ToolCatalog
from study.advisor.retrieval.index import Settings, ToolIndex, within
from study.advisor.retrieval.route import PAPER, Request, Router, Routing, best_servers
from study.advisor.retrieval.texts import definition_tokens
from study.base import paths
from study.base.errors import StudyError
from study.base.settings import read_settings
from study.config import compose as config
from study.data.dataset import SERVER_FIELDS, TASK_FIELDS, Dataset, FloatArray, IntArray, relevance_from_lists
from study.data.splits import Split
from study.evaluation.ranking import tie_order, top_k
from study.evaluation.statistics import bootstrap_interval
from study.runner.inputs import load_inputs
from study.tools import results
from study.tools.queries import Label, QuerySet
from study.tools.results import Run, Table

FILE = "conf/tools/router.yaml"
# Columns of the prepared tables that a system may read, with those that no tool catalogue has.
SERVER_COLUMNS, TASK_COLUMNS = (*SERVER_FIELDS, "author", "license", "url"), (*TASK_FIELDS, "subcategory")


@dataclass(frozen=True)
class Stage:
    """One server stage; see ``conf/tools/router.yaml``."""

    system: str
    base: str | None
    protocol: str | None


@dataclass(frozen=True)
class RouterSettings:
    """The whole file."""

    stages: Mapping[str, Stage]
    tools: Settings
    servers: tuple[int, ...]
    default_servers: int
    budgets: tuple[int, ...]
    seed: int


def router_settings() -> RouterSettings:
    """Read ``conf/tools/router.yaml``."""
    return read_settings(RouterSettings, paths.conf() / "tools" / "router.yaml")


def own_tables(catalog: ToolCatalog, texts: Sequence[str]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Servers and tasks in the columns of a prepared data set; what a catalogue does not know stays empty."""
    rows = []
    for row, server in enumerate(catalog.servers):
        names = ", ".join(catalog.tools[tool].name for tool in catalog.tools_of(row))
        known = {"name": server.name, "description": server.description, "tools": names}
        rows.append(dict.fromkeys(SERVER_COLUMNS, "") | known)
    servers = pd.DataFrame(rows).assign(id=range(1, len(rows) + 1))
    columns = dict.fromkeys(TASK_COLUMNS, "")
    tasks = pd.DataFrame([columns | {"id": row, "description": text} for row, text in enumerate(texts, start=1)])
    return servers, tasks


def joined(
    catalog: ToolCatalog, texts: Sequence[str], base: tuple[Dataset, Split] | None
) -> tuple[Dataset, Split, IntArray, IntArray]:
    """The data set that a system is fitted on: the base with the catalogue's servers and the asked tasks behind it.
    These have no label in any part. Returns: data set, split, rows of the tasks, columns of the catalogue's servers."""
    servers, tasks = own_tables(catalog, texts)
    lists: tuple[IntArray, ...] = ()
    first_task = first_server = 0
    if base is not None:
        data, split = base
        first_task, first_server, lists = data.n_tasks, data.n_servers, data.lists
        servers, tasks = _behind(data.servers, servers), _behind(data.tasks, tasks)
    lists = (*lists, *(np.empty(0, dtype=np.int64) for _ in texts))
    shape = len(tasks), len(servers)
    whole = Dataset(catalog.name, servers, tasks, relevance_from_lists(lists, len(servers)), lists)
    parts = [sp.csr_matrix(shape, dtype=np.float32) for _ in range(3)]
    if base is not None:
        parts = [split.part(name).copy() for name in ("train", "valid", "test")]
        for part in parts:
            part.resize(shape)
    rows, columns = np.arange(first_task, shape[0]), np.arange(first_server, shape[1])
    return whole, Split("cold", parts[0], parts[1], parts[2], cold=True), rows, columns


def _behind(base: pd.DataFrame, own: pd.DataFrame) -> pd.DataFrame:
    """`own` below `base`, in the base's columns and types, with ids of its own."""
    filled = {}
    for column, kind in base.dtypes.items():
        empty = pd.Series([kind.type()] * len(own), dtype=kind) if kind.kind in "iufb" else pd.Series([""] * len(own))
        filled[column] = own.get(column, empty)
    filled["id"] = own["id"] + base["id"].max()
    return pd.concat([base, pd.DataFrame(filled)[list(base.columns)]], ignore_index=True)


def server_scores(
    stage: Stage, catalog: ToolCatalog, texts: Sequence[str], *, seed: int, embedder: Embedder | None = None
) -> FloatArray:
    """Scores of all servers for every text, shape (len(texts), n_servers). A trained stage keeps its checkpoints in the
    cache folder: a stopped training goes on, a finished one is reused."""
    if stage.system == "all":
        return np.zeros((len(texts), len(catalog.servers)), dtype=np.float32)
    if stage.system == "mcp_zero":
        return Router(catalog, PAPER, embedder).server_scores(list(texts), store=False)
    if stage.system == "tool_to_agent":
        return tool_to_agent(Router(catalog, Routing(matching="description"), embedder), texts)
    if stage.system not in config.choices("system"):
        fix = "set `system` of the stage to all, mcp_zero, tool_to_agent, oracle or a system of conf/system"
        raise StudyError(f"unknown server stage {stage.system!r}", file=FILE, fix=fix)
    base = None if stage.base is None else load_inputs(stage.base, str(stage.protocol))
    whole, split, rows, columns = joined(catalog, texts, base)
    chosen = config.load([f"system={stage.system}", *([f"dataset={stage.base}"] if stage.base else [])])
    system: Any = config.build_system(chosen.system)
    # Another catalogue, seed, setting or number of texts has another place for its checkpoints.
    name = "-".join([stage.system, stage.base or "none", str(stage.protocol), str(seed), str(len(texts))])
    workdir = paths.cache() / "router" / f"{name.replace('/', '_')}-{catalog.fingerprint()[:16]}"
    workdir.mkdir(parents=True, exist_ok=True)
    system.fit(whole, split, seed=seed, workdir=workdir)
    scores: FloatArray = system.score(rows)[:, columns]
    return scores


def tool_to_agent(router: Router, texts: Sequence[str]) -> FloatArray:
    """Tool-to-Agent Retrieval (arXiv 2511.01854, algorithm 1): servers and tools in one list, in which a server stands
    where the better of its own text and its tools' texts does. Returns: cosines, shape (len(texts), n_servers)."""
    servers, tools = router.similarities([Request(text, text) for text in texts], store=False)
    np.maximum.at(servers.T, router.catalog.server_of, tools.T)
    return servers


def oracle(catalog: ToolCatalog, labels: Sequence[Sequence[Label]]) -> FloatArray:
    """The share of a task's labels that a server's tools satisfy, shape (len(labels), n_servers): an upper bound."""
    scores = np.zeros((len(labels), len(catalog.servers)), dtype=np.float32)
    for row, own in enumerate(labels):
        for label in own:
            scores[row, sorted({catalog.tools[tool].server for tool in label})] += 1 / len(own)
    return scores


def route(servers: FloatArray, tools: FloatArray, server_of: IntArray, keep: int | None, order: IntArray) -> IntArray:
    """Tools of the `keep` best servers (None: of all), best first, shape (b, n_tools), -1 where there are no more.
    `servers`, `tools`: scores, shapes (b, n_servers), (b, n_tools). `order`: of equal servers."""
    place = np.argsort(order, kind="stable")
    passed = best_servers(servers[:, order], keep)[:, place]
    masked = np.where(passed[:, server_of], tools, np.float32(-np.inf))
    ranked, _ = top_k(masked, masked.shape[1], tie_order(masked.shape[1], 0))
    return ranked


def server_stage(name: str) -> ServerStage | None:
    """What scores the servers of a catalogue for one task; None for the stage that keeps all."""
    found = router_settings()
    stage = found.stages[name]
    if stage.system == "all":
        return None
    return lambda catalog, task, embedder: server_scores(stage, catalog, [task], seed=found.seed, embedder=embedder)[0]


def stage_runs(catalog: ToolCatalog, queries: QuerySet, settings: RouterSettings) -> Iterator[Run | Table]:
    """All server stages on LiveMCPBench, and router.csv: one row per stage, number of servers and budget.

    Protocols: ``router_servers`` (recall@s = share of the labels that some tool of the s best servers satisfies: what a
    server recommender alone hands over), ``router`` (the tool ranking among the default number of servers),
    ``router_budget`` (recall@b = recall of the tools handed over within b tokens).
    """
    tools, lines = ToolIndex(catalog, settings.tools).scores(queries.texts), []
    for name, stage in settings.stages.items():
        if stage.system == "oracle":
            servers = oracle(catalog, queries.labels)
        else:
            servers = server_scores(stage, catalog, queries.texts, seed=settings.seed)
        runs, own = measure_stage(name, servers, tools, catalog, queries, settings)
        config = {"stage": asdict(stage), "tools": asdict(settings.tools), "overrides": []}
        yield from (replace(run, facts={**run.facts, "config": config}) for run in runs)
        lines += own
    yield Table("router", pd.DataFrame(lines))


def measure_stage(
    name: str, servers: FloatArray, tools: FloatArray, catalog: ToolCatalog, queries: QuerySet, settings: RouterSettings
) -> tuple[list[Run], list[dict[str, object]]]:
    """One stage's runs, and its lines of router.csv; `servers`, `tools`: scores, (b, n_servers) and (b, n_tools)."""
    sizes, order = definition_tokens(catalog), tie_order(len(catalog.servers), settings.seed)
    every, inputs, n = settings.stages[name].system == "all", (catalog, queries), len(catalog.tools)
    runs: list[Run] = []
    lines: list[dict[str, object]] = []
    sets: dict[int, list[list[int]]] = {}
    for keep in (len(catalog.servers),) if every else settings.servers:
        ranked = route(servers, tools, catalog.server_of, None if every else keep, order)
        best, _ = top_k(servers, keep, order)
        sets[keep] = [[tool for server in row if server >= 0 for tool in catalog.tools_of(server)] for row in best]
        head = {"stage": name, "servers": keep}
        head["server_recall"] = results.measure_sets({keep: sets[keep]}, queries, n)[f"recall@{keep}"].mean()
        head["tokens_of_these_servers"] = np.mean([sizes[own].sum() for own in sets[keep]])
        handed = {budget: within(ranked, sizes, budget) for budget in settings.budgets}
        by_budget = results.measure_sets(handed, queries, n)
        for budget, own in handed.items():
            values = by_budget[f"recall@{budget}"].to_numpy(np.float64)
            low, high = bootstrap_interval(values, seed=results.SEED)
            line = {"budget": budget, "tools": float(np.mean([len(part) for part in own]))}
            line |= {"tokens": float(np.mean([sizes[part].sum() for part in own])), "tool_recall": values.mean()}
            lines.append(
                head | line | {"ci_low": low, "ci_high": high, "hit_rate": by_budget[f"hit_rate@{budget}"].mean()}
            )
        if every or keep == settings.default_servers:
            runs.append(Run("router_budget", f"router_{name}", by_budget, inputs, {"servers": keep}))
            table = results.measure(ranked, queries, n)
            runs.append(Run("router", f"router_{name}", table, inputs, {"servers": keep}))
    if not every:
        table = results.measure_sets(sets, queries, n)
        runs.append(Run("router_servers", f"router_{name}", table, inputs))
    return runs, lines
