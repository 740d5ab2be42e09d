"""Everything that `study tools run` measures on a catalogue."""

from __future__ import annotations

from collections.abc import Callable

from study import paths
from study.files import write_csv
from study.tools import macro, router_experiments
from study.tools.catalogues import published
from study.tools.discovery import budget, scaling
from study.tools.discovery import experiments as discovery
from study.tools.intent import experiments as intent
from study.tools.mcp_zero import api_bank, log_experiments, needle, recorded


def livemcpbench() -> None:
    """Raw queries with every search, the routed query, the real requests, tokens and latency."""
    discovery.run_livemcpbench()
    loaded = published.load("livemcpbench")
    log_experiments.run_queries("livemcpbench", loaded.catalog, loaded.queries["tasks"])
    log_experiments.run_requests()
    recorded.run()
    discovery.run_popularity("livemcpbench", "query", loaded.catalog, loaded.queries["tasks"])
    budget.run("livemcpbench", loaded.catalog, loaded.queries["tasks"])
    discovery_latency()


def discovery_latency() -> None:
    """Times of the search over LiveMCPBench's tools, one query at a time."""
    loaded = published.load("livemcpbench")
    budget.run_latency("livemcpbench", loaded.catalog, loaded.queries["tasks"])


def mcptools() -> None:
    """Atlas queries on all tools and on ten servers, the needle tests."""
    discovery.run_mcptools()
    loaded = published.load("mcptools")
    log_experiments.run_queries(
        "mcptools", loaded.catalog, loaded.queries["atlas"], {"mcp_zero": log_experiments.PAPER}
    )
    ten, queries = discovery.ten_servers(loaded.catalog, loaded.queries["atlas"])
    budget.run_per_server("mcptools", ten, queries)
    macro.run("mcptools", {"query": (loaded.catalog, loaded.queries["atlas"]), "query_ten": (ten, queries)})
    for name, trials in {"identity": needle.run_identity(), "cross": needle.run_cross()}.items():
        write_csv(paths.tables("mcptools") / f"needle_{name}.csv", needle.by_size(trials))


def mcptoolbench() -> None:
    """The labelled tool alone, and with its published equivalents."""
    discovery.run_mcptoolbench()
    loaded = published.load("mcptoolbench")
    macro.run("mcptoolbench", {name: (loaded.catalog, queries) for name, queries in loaded.queries.items()})


def scale() -> None:
    """LiveMCPBench's tasks over three pools of real tools, and latency up to 100,000 tools; embeds 9,000 texts once."""
    scaling.run()
    scaling.run_growth()


def route() -> None:
    """The router over all on LiveMCPBench; trains T2MRec on Task2MCP once."""
    router_experiments.run()


RUNS: dict[str, Callable[[], None]] = {
    "livemcpbench": livemcpbench,
    "mcptools": mcptools,
    "scaling": scale,
    "intent": intent.run,
    "router": route,
    "apibank": api_bank.run,
    "mcptoolbench": mcptoolbench,
}
# What of them measures times: seconds each, for a machine that does nothing else meanwhile.
LATENCY: dict[str, Callable[[], object]] = {
    "livemcpbench": discovery_latency,
    "scaling": scaling.run_growth,
    "intent": intent.run_latency,
}
# Experiments whose results stand with those of another name.
REPORTED_WITH = {"scaling": "livemcpbench", "intent": "livemcpbench", "router": "livemcpbench"}
