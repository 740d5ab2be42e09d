"""Every experiment on tools by the name under which `study tools run` starts it, and the one place that runs them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import combinations

import pandas as pd

from study.advisor.retrieval.documents import ToolCatalog
from study.advisor.retrieval.merge import Merged, merge_catalogs
from study.advisor.retrieval.route import PAPER
from study.base import paths
from study.base.errors import StudyError, require_one_of
from study.base.files import read_csv
from study.runner.inputs import load_inputs
from study.tools import discovery, intent, mcp_zero, request_log
from study.tools.collections.livemcpbench import Episode, load_log
from study.tools.collections.published import load_collection
from study.tools.flow.experiments import flow_parts, model_parts
from study.tools.flow.settings import flow_settings
from study.tools.flow.tables import COLLECTION, report_flow
from study.tools.intent import session_tables, targets_table
from study.tools.language_model import apibank_runs, needle_runs, parts_with, request_runs, selection_runs
from study.tools.queries import QuerySet
from study.tools.results import Made, Table, collect_runs, report_runs, write_results
from study.tools.router import router_settings, stage_runs


def names_agree(names: Sequence[str]) -> bool:
    """Whether listings can be one server by their names: of every two keys (`name_key`) one holds the other."""
    keys = [mcp_zero.name_key(name) for name in names]
    return all(keys) and all(a in b or b in a for a, b in combinations(keys, 2))


def entity_counts(catalogs: Sequence[ToolCatalog], merged: Merged) -> dict[str, object]:
    """How many listings became how many entities, and how many groups hold names that have nothing in common."""
    listings = [server for catalog in catalogs for server in catalog.servers]
    groups = merged.groups()
    agree = [names_agree([listings[row].name for row in group]) for group in groups]
    names = " + ".join(catalog.name for catalog in catalogs)
    sizes = {"listings": len(merged.entity_of), "entities": len(merged.catalog.servers), "groups": len(groups)}
    counts = {"listings_in_groups": sum(map(len, groups)), "names_disagree": agree.count(False)}
    return {"catalogues": names, **sizes, **counts}


def group_members(catalogs: Sequence[ToolCatalog], merged: Merged) -> pd.DataFrame:
    """One row per listing of every group: ids alone, no text of a catalogue; names_agree is of the whole group."""
    listings = [(catalog, row) for catalog in catalogs for row in range(len(catalog.servers))]
    lines = []
    for number, group in enumerate(merged.groups(), start=1):
        own = [(catalog, row, catalog.servers[row]) for catalog, row in (listings[place] for place in group)]
        agree = names_agree([server.name for *_, server in own])
        for catalog, row, server in own:
            tools = len(catalog.tools_of(row))
            lines.append((number, catalog.name, " ".join(server.sources), server.id, tools, agree))
    return pd.DataFrame(lines, columns=["group", "catalogue", "marketplace", "listing", "tools", "names_agree"])


def livemcpbench() -> Iterator[Made]:
    """Raw queries with every search, the routed query, the real requests, and tokens."""
    catalog, queries, episodes = logged_tasks()
    settings = discovery.discovery_settings()
    yield discovery.search_runs("query", catalog, queries, settings.systems)
    yield request_log.query_runs(catalog, queries)
    yield request_log.request_runs(catalog, queries, episodes)
    yield request_log.recorded_tables(catalog, queries, episodes)
    yield [discovery.popularity_run("query", catalog, queries)]
    yield discovery.template_tables(catalog, queries, settings.thresholds)


def livemcpbench_model() -> Iterator[Made]:
    """A language model's requests for the tasks, and its choice among the tools that a search found."""
    catalog, queries, _ = logged_tasks()
    requests, choice = partial(request_runs, catalog, queries), partial(selection_runs, catalog, queries)
    yield from parts_with("livemcpbench", catalog, requests, choice)


def livemcpbench_latency() -> Iterator[Made]:
    """Times of the search over LiveMCPBench's tools, one query at a time."""
    catalog, queries, _ = logged_tasks()
    yield [discovery.latency_table(catalog, queries)]


def scaling() -> Iterator[Made]:
    """LiveMCPBench's tasks over three pools of real tools; embeds 9,000 texts once."""
    _, queries, episodes = logged_tasks()
    small, middle, large = three_pools()
    requests, _ = request_log.requests_by_task(episodes, queries.ids)
    owner = [task for task, own in enumerate(requests) for _ in own]
    asked = [f"{request.server} {request.tool}" for own in requests for request in own]
    named = [("", small), ("", middle), ("", large)]
    named.append((discovery.REFERENCE, discovery.reference_pool(small, middle)))
    yield discovery.pool_runs(named, queries, asked, owner)


def scaling_latency() -> Iterator[Made]:
    """Times over the largest pool and its noisy copies."""
    yield [discovery.growth_table(three_pools()[-1], logged_tasks()[1])]


def intent_ranking() -> Iterator[Made]:
    """Intent-based ranking on LiveMCPBench's log; its filters need the prepared Task2MCP."""
    yield intent.protocol_runs(*logged_tasks())
    yield session_tables(*logged_tasks())
    table = intent.compatibility(*load_inputs("task2mcp", "cold"))
    yield [Table("intent_filters", table, collection="task2mcp")]


def intent_latency() -> Iterator[Made]:
    """Times of a recommendation."""
    yield [intent.latency_table(*logged_tasks()[:2])]


def router() -> Iterator[Made]:
    """The router over all on LiveMCPBench; trains T2MRec on Task2MCP once."""
    yield stage_runs(*logged_tasks()[:2], router_settings())


def mcptools() -> Iterator[Made]:
    """Atlas queries on all tools and on ten servers, the needle tests."""
    loaded, settings = load_collection("mcptools"), discovery.discovery_settings()
    catalog, queries = loaded.catalog, loaded.queries["atlas"]
    ten = discovery.ten_servers(catalog, queries, settings.ten_servers)
    asked = {"query": (catalog, queries), "query_ten": ten}
    for protocol, own in asked.items():
        yield discovery.search_runs(protocol, *own, settings.systems)
        yield [discovery.popularity_run(protocol, *own)]
    yield request_log.query_runs(catalog, queries, {"mcp_zero": PAPER})
    yield [discovery.server_table(*ten), discovery.macro_table("mcptools", asked)]
    yield mcp_zero.identity_runs(catalog)
    yield mcp_zero.cross_runs(catalog, described_elsewhere())


def mcptools_model() -> Iterator[Made]:
    """The needle test with a language model's requests."""
    catalog = load_collection("mcptools").catalog
    yield from parts_with("mcptools", catalog, partial(needle_runs, catalog, described_elsewhere()))


def mcptoolbench() -> Iterator[Made]:
    """The labelled tool alone, and with its published equivalents; servers have no text of their own."""
    loaded = load_collection("mcptoolbench")
    systems = {name: own for name, own in discovery.discovery_settings().systems.items() if own.document != "server"}
    for name, queries in loaded.queries.items():
        yield discovery.search_runs(name, loaded.catalog, queries, systems)
        # Its groups are the domains; what one query may not know is the same text with its label.
        yield [discovery.popularity_run(name, loaded.catalog, queries, queries.texts)]
    asked = {name: (loaded.catalog, queries) for name, queries in loaded.queries.items()}
    yield [discovery.macro_table("mcptoolbench", asked)]


def apibank() -> Iterator[Made]:
    """The called API among all, or among those of its dialogue."""
    yield mcp_zero.dialogue_runs(load_collection("apibank").catalog, paths.raw("apibank"))


def apibank_model() -> Iterator[Made]:
    """A language model chooses the API, or asks for it."""
    catalog = load_collection("apibank").catalog
    yield from parts_with("apibank", catalog, partial(apibank_runs, catalog, paths.raw("apibank")))


def mcpflow() -> Iterator[Made]:
    """Calls on three splits, the leak, the synthesis, the servers, and one server under several listings."""
    yield entity_tables([load_collection(name).catalog for name in ("mcptools", "livemcpbench", "mcpflow")])
    yield from flow_parts()


def mcpflow_model() -> Iterator[Made]:
    """A language model's calls and instructions."""
    yield from parts_with(COLLECTION, load_collection(COLLECTION).catalog, model_parts)


def entity_tables(catalogs: Sequence[ToolCatalog]) -> Iterator[Table]:
    """entities.csv (each catalogue alone, and all together) and entity_groups.csv of MCP-Flow."""
    whole = merge_catalogs("merged", catalogs)
    lines = [entity_counts([one], merge_catalogs(one.name, [one])) for one in catalogs]
    hashes = {f"{catalog.name}_sha256": catalog.fingerprint() for catalog in catalogs}
    yield Table("entities", pd.DataFrame([*lines, entity_counts(catalogs, whole)]), hashes)
    yield Table("entity_groups", group_members(catalogs, whole))


def logged_tasks() -> tuple[ToolCatalog, QuerySet, list[Episode]]:
    """LiveMCPBench's tools, tasks and log."""
    loaded = load_collection("livemcpbench")
    return loaded.catalog, loaded.queries["tasks"], load_log(paths.raw("livemcpbench"), loaded.catalog)


def described_elsewhere() -> list[ToolCatalog]:
    """The catalogues that describe tools of MCP-tools in other words."""
    return [load_collection(name).catalog for name in ("livemcpbench", "mcpflow")]


def three_pools() -> tuple[ToolCatalog, ToolCatalog, ToolCatalog]:
    """The three growing catalogues of `discovery.pools`."""
    return discovery.pools(*(load_collection(name).catalog for name in ("livemcpbench", "mcptools", "mcpflow")))


# By part: llm is what a language model does, or what replays its choices; latency takes seconds, on a machine that does
# nothing else meanwhile.
EXPERIMENTS: dict[str, dict[str, Callable[[], Iterator[Made]]]] = {
    "livemcpbench": {"main": livemcpbench, "llm": livemcpbench_model, "latency": livemcpbench_latency},
    "mcptools": {"main": mcptools, "llm": mcptools_model},
    "scaling": {"main": scaling, "latency": scaling_latency},
    "intent": {"main": intent_ranking, "latency": intent_latency},
    "router": {"main": router},
    "apibank": {"main": apibank, "llm": apibank_model},
    "mcptoolbench": {"main": mcptoolbench},
    COLLECTION: {"main": mcpflow, "llm": mcpflow_model},
}


def run_experiment(name: str, part: str = "all") -> str:
    """Run an experiment part by part, each kept when it is through. Returns: the collection that its results are of.
    `part`: all, latency (only what measures times), llm (only what a language model does) or report (only the tables
    that are made from the kept runs)."""
    collection = "livemcpbench" if name in ("scaling", "intent", "router") else name
    require_one_of(part, "part", ("all", "latency", "llm", "report"))
    able = [name for name, parts in EXPERIMENTS.items() if part in ("all", "report", *parts)]
    if name not in able:
        raise StudyError(f"no experiments for {name!r}", fix=f"one of: {', '.join(able)}")
    for own, experiment in EXPERIMENTS[name].items():
        if part in ("all", own):
            for made in experiment():
                write_results(collection, made)
    if part != "latency":
        report_collection(collection)
    return collection


def report_collection(collection: str) -> None:
    """Redo the tables of a collection that are made from its kept runs."""
    if collection == COLLECTION:
        report_flow(flow_settings())
    else:
        settings = discovery.discovery_settings()
        report_runs(collection, settings.references.get(collection, {}), settings.pairs.get(collection, {}))
        times = paths.tables(collection) / "intent_latency.csv"
        made = targets_table(collect_runs(collection), read_csv(times) if times.exists() else None)
        write_results(collection, [made] if made else [])
