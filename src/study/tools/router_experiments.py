"""The router on LiveMCPBench: server recall, tool recall, and tool recall at equal budgets of tokens.

Protocols: ``router_servers`` (recall@s = share of the labels that some tool of the s best servers satisfies: what a
server recommender alone hands over), ``router`` (the tool ranking among the default number of servers),
``router_budget`` (recall@b = recall of the tools handed over within b tokens).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict

import numpy as np
import pandas as pd

from study import paths
from study.data.dataset import FloatArray, IntArray
from study.evaluation.ranking import tie_order, top_k
from study.evaluation.significance import bootstrap_interval
from study.files import write_csv
from study.tools import results
from study.tools.catalogues import published
from study.tools.catalogues.catalog import ToolCatalog
from study.tools.catalogues.queries import QuerySet
from study.tools.discovery.index import ToolIndex
from study.tools.discovery.tokens import definition_tokens
from study.tools.router import Configured, configured, oracle, route, server_scores, within


def run(overrides: Sequence[str] = ()) -> pd.DataFrame:
    """All stages; writes router.csv, one row per stage, number of servers and budget.

    Args:
        overrides: for the systems that are trained, such as ``profile=smoke``.
    """
    loaded, chosen = published.load("livemcpbench"), configured()
    catalog, queries = loaded.catalog, loaded.queries["tasks"]
    tools = ToolIndex(catalog, chosen.tools).scores(queries.texts)
    lines = []
    for name, stage in chosen.stages.items():
        if stage.system == "oracle":
            servers = oracle(catalog, queries.labels)
        else:
            servers = server_scores(stage, catalog, queries.texts, seed=chosen.seed, overrides=overrides)
        config = {"stage": asdict(stage), "tools": asdict(chosen.tools), "overrides": list(overrides)}
        lines += measure(name, servers, tools, catalog, queries, chosen, config)
    table = pd.DataFrame(lines)
    write_csv(paths.tables("livemcpbench") / "router.csv", table)
    return table


def measure(
    name: str,
    servers: FloatArray,
    tools: FloatArray,
    catalog: ToolCatalog,
    queries: QuerySet,
    chosen: Configured,
    config: Mapping[str, object],
) -> list[dict[str, object]]:
    """Keep one stage's per-task values, and return its lines of router.csv.

    Args:
        servers, tools: scores, shapes (b, n_servers) and (b, n_tools).
    """
    sizes, order = definition_tokens(catalog), tie_order(len(catalog.servers), chosen.seed)
    every = chosen.stages[name].system == "all"
    lines: list[dict[str, object]] = []
    sets: dict[int, list[list[int]]] = {}
    for keep in (len(catalog.servers),) if every else chosen.servers:
        ranked = route(servers, tools, catalog.server_of, None if every else keep, order)
        sets[keep] = tools_of(servers, keep, catalog, order)
        whole = results.measure_sets(sets[keep], queries, len(catalog.tools), keep)
        tokens = np.array([sizes[own].sum() for own in sets[keep]])
        head = {
            "stage": name,
            "servers": keep,
            "server_recall": whole[f"recall@{keep}"].mean(),
            "tokens_of_these_servers": tokens.mean(),
        }
        handed = {budget: within(ranked, sizes, budget) for budget in chosen.budgets}
        tables = [
            results.measure_sets(own, queries, len(catalog.tools), budget).set_index(["task_id", "seed"])
            for budget, own in handed.items()
        ]
        by_budget = pd.concat(tables, axis=1).reset_index()
        for budget, own in handed.items():
            values = by_budget[f"recall@{budget}"].to_numpy(np.float64)
            low, high = bootstrap_interval(values, seed=results.SEED)
            lines.append(
                head
                | {
                    "budget": budget,
                    "tools": float(np.mean([len(part) for part in own])),
                    "tokens": float(np.mean([sizes[part].sum() for part in own])),
                    "tool_recall": values.mean(),
                    "low": low,
                    "high": high,
                    "hit_rate": by_budget[f"hit_rate@{budget}"].mean(),
                }
            )
        if every or keep == chosen.default_servers:
            results.save(
                "livemcpbench",
                "router_budget",
                f"router_{name}",
                by_budget,
                (catalog, queries),
                servers=keep,
                config=config,
            )
            table = results.measure(ranked, queries, len(catalog.tools))
            results.save(
                "livemcpbench", "router", f"router_{name}", table, (catalog, queries), servers=keep, config=config
            )
    if not every:
        parts = [
            results.measure_sets(own, queries, len(catalog.tools), keep).set_index(["task_id", "seed"])
            for keep, own in sets.items()
        ]
        by_servers = pd.concat(parts, axis=1).reset_index()
        results.save("livemcpbench", "router_servers", f"router_{name}", by_servers, (catalog, queries), config=config)
    return lines


def tools_of(servers: FloatArray, keep: int, catalog: ToolCatalog, order: IntArray) -> list[list[int]]:
    """All tools of the `keep` best servers of every task."""
    best, _ = top_k(servers, keep, order)
    own = [catalog.tools_of(server) for server in range(len(catalog.servers))]
    return [[tool for server in row if server >= 0 for tool in own[server]] for row in best]
