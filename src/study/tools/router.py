"""One router over all: task -> servers (any server recommender of the study) -> tools (tool retrieval) -> a budget."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
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
from study.base.files import write_parquet
from study.base.settings import read_settings
from study.config import compose
from study.data.dataset import SERVER_FIELDS, TASK_FIELDS, Dataset, FloatArray, IntArray, relevance_from_lists
from study.data.splits import Split
from study.evaluation.ranking import tie_order, top_k
from study.evaluation.statistics import mean_interval
from study.runner.identity import row_key, short_hash
from study.runner.inputs import load_inputs
from study.tools import results
from study.tools.queries import Label
from study.tools.results import Inputs, Run, Table

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


def joined(catalog: ToolCatalog, texts: Sequence[str], base: tuple[Dataset, Split] | None) -> tuple[Dataset, Split]:
    """The data set that a system is fitted on: the base with the catalogue's servers and the tasks behind it. These
    have no label in any part; what a catalogue does not know stays empty."""
    servers = pd.DataFrame({"name": [server.name for server in catalog.servers]})
    servers["description"] = [server.description for server in catalog.servers]
    tools = [[catalog.tools[tool].name for tool in catalog.tools_of(row)] for row in range(len(servers))]
    servers["tools"] = [", ".join(names) for names in tools]
    servers = _behind(base and base[0].servers, SERVER_COLUMNS, servers)
    tasks = _behind(base and base[0].tasks, TASK_COLUMNS, pd.DataFrame({"description": list(texts)}))
    lists = (*(base[0].lists if base else ()), *(np.empty(0, dtype=np.int64) for _ in texts))
    data = Dataset(catalog.name, servers, tasks, relevance_from_lists(lists, len(servers)), lists)
    parts = [sp.csr_matrix(data.relevance.shape, dtype=np.float32) for _ in range(3)]
    if base is not None:
        parts = [base[1].part(name).copy() for name in ("train", "valid", "test")]
        for part in parts:
            part.resize(data.relevance.shape)
    return data, Split("cold", parts[0], parts[1], parts[2], cold=True)


def _behind(base: pd.DataFrame | None, columns: Sequence[str], further: pd.DataFrame) -> pd.DataFrame:
    """`further` below `base` (None: an empty table of `columns`), in its columns and types, with ids of its own."""
    if base is None:
        base = pd.DataFrame(columns=["id", *columns], dtype=str).astype({"id": int})
    lacking = {str(name): kind for name, kind in base.dtypes.items() if name not in further}
    filled = further.assign(**{name: kind.type() if kind.kind in "iufb" else "" for name, kind in lacking.items()})
    filled["id"] = np.arange(len(further)) + 1 + base["id"].to_numpy().max(initial=0)
    return pd.concat([base, filled[base.columns].astype(base.dtypes)], ignore_index=True)


def server_scores(
    stage: Stage, catalog: ToolCatalog, texts: Sequence[str], *, seed: int, embedder: Embedder | None = None
) -> FloatArray:
    """Scores of all servers for every text, shape (len(texts), n_servers). A trained stage keeps its checkpoints in the
    cache folder: a stopped training goes on."""
    if stage.system == "all":
        return np.zeros((len(texts), len(catalog.servers)), dtype=np.float32)
    if stage.system == "mcp_zero":
        return Router(catalog, PAPER, embedder).server_scores(list(texts), store=False)
    if stage.system == "tool_to_agent":
        return tool_to_agent(Router(catalog, Routing(matching="description"), embedder), texts)
    whole, split = joined(catalog, texts, load_inputs(stage.base, str(stage.protocol)) if stage.base else None)
    chosen = compose.load([f"system={stage.system}", *([f"dataset={stage.base}"] if stage.base else [])])
    system: Any = compose.build_system(chosen.system)
    # Another catalogue, seed, setting or number of texts has another place for its checkpoints.
    name = "-".join([stage.system, stage.base or "none", str(stage.protocol), str(seed), str(len(texts))])
    workdir = paths.cache() / "router" / f"{name.replace('/', '_')}-{catalog.fingerprint()[:16]}"
    workdir.mkdir(parents=True, exist_ok=True)
    system.fit(whole, split, seed=seed, workdir=workdir)
    scores: FloatArray = system.score(np.arange(whole.n_tasks - len(texts), whole.n_tasks))
    return scores[:, -len(catalog.servers) :]


def stored_scores(stage: Stage, catalog: ToolCatalog, texts: Sequence[str], *, seed: int) -> FloatArray:
    """`server_scores`; those of a stage that is trained lie in ``results/<collection>/router_<system>.parquet`` and are
    taken from there while data, split, settings, version, tools and texts are those that it was trained with."""
    if stage.base is None:
        return server_scores(stage, catalog, texts, seed=seed)
    config = compose.load([f"system={stage.system}", f"dataset={stage.base}", f"protocol={stage.protocol}"])
    key = short_hash([row_key(config), catalog.fingerprint(), *texts, seed])
    file = paths.results(catalog.name) / f"router_{stage.system}.parquet"
    names = [f"{key} {server}" for server in range(len(catalog.servers))]
    if file.exists() and list((table := pd.read_parquet(file)).columns) == names:
        return table.to_numpy(np.float32)
    scores = server_scores(stage, catalog, texts, seed=seed)
    write_parquet(file, pd.DataFrame(scores, columns=names))
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
    for row, of_task in enumerate(labels):
        for label in of_task:
            scores[row, sorted({catalog.tools[tool].server for tool in label})] += 1 / len(of_task)
    return scores


def route(servers: FloatArray, tools: FloatArray, server_of: IntArray, keep: int | None, order: IntArray) -> IntArray:
    """Tools of the `keep` best servers (None: of all), best first, shape (b, n_tools), -1 where there are no more.
    `servers`, `tools`: scores, shapes (b, n_servers), (b, n_tools). `order`: of equal servers."""
    passed = best_servers(servers[:, order], keep)[:, np.argsort(order, kind="stable")]
    masked = np.where(passed[:, server_of], tools, np.float32(-np.inf))
    return top_k(masked, masked.shape[1], tie_order(masked.shape[1], 0))[0]


def server_stage(name: str) -> ServerStage | None:
    """What scores the servers of a catalogue for one task; None for the stage that keeps all."""
    settings = router_settings()
    stage = settings.stages[name]
    if stage.system == "all":
        return None
    how = {"seed": settings.seed}
    return lambda catalog, task, embedder: server_scores(stage, catalog, [task], embedder=embedder, **how)[0]


def stage_runs(inputs: Inputs, settings: RouterSettings) -> Iterator[Run | Table]:
    """All server stages on LiveMCPBench, and router.csv: one row per stage, number of servers and budget.

    Protocols: ``router_servers`` (recall@s = share of the labels that some tool of the s best servers satisfies: what a
    server recommender alone hands over), ``router`` (the tool ranking among the default number of servers),
    ``router_budget`` (recall@b = recall of the tools handed over within b tokens).
    """
    catalog, queries = inputs
    tools, lines = ToolIndex(catalog, settings.tools).scores(queries.texts), list[dict[str, object]]()
    for name, stage in settings.stages.items():
        if stage.system == "oracle":
            servers = oracle(catalog, queries.labels)
        else:
            servers = stored_scores(stage, catalog, queries.texts, seed=settings.seed)
        config = {"stage": asdict(stage), "tools": asdict(settings.tools), "overrides": []}
        runs, stage_lines = measure_stage(name, (servers, tools), inputs, settings, config)
        yield from runs
        lines += stage_lines
    yield Table("router", pd.DataFrame(lines))


def measure_stage(
    name: str,
    scores: tuple[FloatArray, FloatArray],
    inputs: Inputs,
    settings: RouterSettings,
    config: Mapping[str, object],
) -> tuple[list[Run], list[dict[str, object]]]:
    """One stage's runs, and its lines of router.csv; `scores`: of servers, (b, n_servers), and tools, (b, n_tools)."""
    (catalog, queries), (servers, tools) = inputs, scores
    sizes, order, n = definition_tokens(catalog), tie_order(len(catalog.servers), settings.seed), len(catalog.tools)
    every, sets = settings.stages[name].system == "all", dict[int, list[list[int]]]()
    runs, lines = list[Run](), list[dict[str, object]]()
    for keep in (len(catalog.servers),) if every else settings.servers:
        ranked = route(servers, tools, catalog.server_of, None if every else keep, order)
        best, _ = top_k(servers, keep, order)
        sets[keep] = [[tool for server in row if server >= 0 for tool in catalog.tools_of(server)] for row in best]
        head = {"stage": name, "servers": keep}
        head["server_recall"] = results.measure_sets({keep: sets[keep]}, queries, n)[f"recall@{keep}"].mean()
        head["tokens_of_these_servers"] = np.mean([sizes[tools].sum() for tools in sets[keep]])
        handed = {budget: within(ranked, sizes, budget) for budget in settings.budgets}
        by_budget = results.measure_sets(handed, queries, n)
        for budget, sets_of_budget in handed.items():
            line = {"budget": budget, "tools": np.mean([len(part) for part in sets_of_budget])}
            line["tokens"] = np.mean([sizes[part].sum() for part in sets_of_budget])
            line |= mean_interval(by_budget[f"recall@{budget}"], seed=results.SEED, name="tool_recall")
            lines.append(head | line | {"hit_rate": by_budget[f"hit_rate@{budget}"].mean()})
        if every or keep == settings.default_servers:
            for protocol, table in (("router_budget", by_budget), ("router", results.measure(ranked, queries, n))):
                runs.append(Run(protocol, f"router_{name}", table, inputs, {"servers": keep, "config": config}))
    if not every:
        table = results.measure_sets(sets, queries, n)
        runs.append(Run("router_servers", f"router_{name}", table, inputs, {"config": config}))
    return runs, lines
