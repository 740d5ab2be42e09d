"""Every experiment on tools by the name under which `study tools run` starts it, and the one place that runs them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import combinations

import pandas as pd

from study.advisor.retrieval.documents import ToolCatalog
from study.advisor.retrieval.merge import merge_catalogs
from study.advisor.retrieval.route import PAPER
from study.base import paths
from study.base.errors import StudyError, require_one_of
from study.base.files import read_csv
from study.tools import discovery, intent, language_model, mcp_zero
from study.tools.collections import Episode, load_collection, load_log
from study.tools.discovery import discovery_settings
from study.tools.flow.experiments import flow_parts, report_flow
from study.tools.flow.samples import COLLECTION
from study.tools.flow.settings import flow_settings
from study.tools.results import Inputs, Made, Table, collect_runs, report_runs, write_results
from study.tools.router import router_settings, stage_runs


def livemcpbench() -> Iterator[Made]:
    """Raw queries with every search, the routed query, the real requests, and tokens."""
    (inputs, episodes), settings = logged_tasks(), discovery_settings()
    yield discovery.search_runs("query", inputs, settings.systems)
    yield mcp_zero.query_runs(inputs)
    yield mcp_zero.request_runs(inputs, episodes)
    yield discovery.template_tables(inputs, settings.thresholds)


def scaling() -> Iterator[Made]:
    """LiveMCPBench's tasks over pools of real tools; embeds 9,000 texts once."""
    (_, queries), episodes = logged_tasks()
    requests, owner, _ = mcp_zero.requests_of(episodes, queries.ids)
    yield discovery.pool_runs(pools(), queries, [" ".join(request) for request in requests], owner)


def scaling_latency() -> Iterator[Made]:
    """Times over the largest pool and its noisy copies."""
    yield [discovery.growth_table((pools()[2][1], logged_tasks()[0][1]))]


def intent_ranking() -> Iterator[Made]:
    """Intent-based ranking on LiveMCPBench's log."""
    yield intent.protocol_runs(*logged_tasks())


def intent_latency() -> Iterator[Made]:
    """Times of a recommendation."""
    yield [intent.latency_table(logged_tasks()[0])]


def router() -> Iterator[Made]:
    """The router over all on LiveMCPBench; trains T2MRec on Task2MCP once."""
    yield stage_runs(logged_tasks()[0], router_settings())


def mcptools() -> Iterator[Made]:
    """Atlas queries on all tools and on ten servers, the needle tests."""
    loaded, settings = load_collection("mcptools"), discovery_settings()
    catalog, queries = loaded.catalog, loaded.queries["atlas"]
    ten = discovery.ten_servers(catalog, queries, settings.ten_servers)
    protocols = {"query": (catalog, queries), "query_ten": ten}
    for protocol, inputs in protocols.items():
        yield discovery.search_runs(protocol, inputs, settings.systems)
    yield mcp_zero.query_runs(protocols["query"], {"mcp_zero": PAPER})
    yield [discovery.server_table(ten), discovery.macro_table("mcptools", protocols)]
    yield mcp_zero.identity_runs(catalog)
    yield mcp_zero.cross_runs(catalog, catalogs("livemcpbench", "mcpflow"))


def mcptoolbench() -> Iterator[Made]:
    """The labelled tool alone, and with its published equivalents; servers have no text of their own."""
    loaded = load_collection("mcptoolbench")
    systems = {name: chosen for name, chosen in discovery_settings().systems.items() if chosen.document != "server"}
    protocols = {name: (loaded.catalog, queries) for name, queries in loaded.queries.items()}
    for name, inputs in protocols.items():
        # Its groups are the domains; what one query may not know is the same text with its label.
        yield discovery.search_runs(name, inputs, systems, inputs[1].texts)
    yield [discovery.macro_table("mcptoolbench", protocols)]


def apibank() -> Iterator[Made]:
    """The called API among all, or among those of its dialogue."""
    yield mcp_zero.dialogue_runs(catalogs("apibank")[0], paths.raw("apibank"))


def mcpflow() -> Iterator[Made]:
    """Calls on three splits, the leak, the synthesis, the servers, and one server under several listings."""
    yield entity_tables(catalogs("mcptools", "livemcpbench", "mcpflow"))
    yield from flow_parts()


def with_model(collection: str) -> Iterator[Made]:
    """What a language model asks for, chooses, calls and writes. Nothing happens where no choices are kept and no
    endpoint may be asked."""
    (catalog,) = catalogs(collection)
    llm = language_model.ModelChoices(collection, catalog)
    if not llm.path.exists() and llm.client.mode == "replay":
        return
    if collection == "livemcpbench":
        inputs, _ = logged_tasks()
        yield language_model.request_runs(inputs, llm)
        yield language_model.selection_runs(inputs, llm)
    elif collection == "mcptools":
        yield language_model.needle_runs(catalog, catalogs("livemcpbench", "mcpflow"), llm)
    elif collection == "apibank":
        yield language_model.apibank_runs(catalog, paths.raw("apibank"), llm)
    else:
        yield language_model.flow_runs(llm)


def entity_tables(catalogs: Sequence[ToolCatalog]) -> Iterator[Table]:
    """entities.csv of MCP-Flow: how many listings are how many servers, each catalogue alone and all together; and
    entity_groups.csv: one row per listing of every group, ids alone, no text of a catalogue. names_agree is of the
    whole group: of every two names' keys (`mcp_zero.name_key`) one holds the other."""
    lines, hashes = [], {f"{catalog.name}_sha256": catalog.fingerprint() for catalog in catalogs}
    for merging in (*([one] for one in catalogs), catalogs):
        listings = [(catalog, row, server) for catalog in merging for row, server in enumerate(catalog.servers)]
        merged, rows = merge_catalogs("merged", merging), []
        for number, group in enumerate(merged.groups(), start=1):
            keys = [mcp_zero.name_key(listings[listing][2].name) for listing in group]
            agree = all(keys) and all(a in b or b in a for a, b in combinations(keys, 2))
            for catalog, row, server in (listings[listing] for listing in group):
                tools = len(catalog.tools_of(row))
                rows.append((number, catalog.name, " ".join(server.sources), server.id, tools, agree))
        columns = ["group", "catalogue", "marketplace", "listing", "tools", "names_agree"]
        groups = pd.DataFrame(rows, columns=columns)
        line = {"catalogues": " + ".join(catalog.name for catalog in merging), "listings": len(merged.entity_of)}
        line |= {"entities": len(merged.catalog.servers), "groups": len(merged.groups())}
        disagree = groups.loc[~groups["names_agree"].astype(bool), "group"].nunique()
        lines.append(line | {"listings_in_groups": len(groups), "names_disagree": disagree})
    yield Table("entities", pd.DataFrame(lines), hashes)
    yield Table("entity_groups", groups)


def logged_tasks() -> tuple[Inputs, list[Episode]]:
    """LiveMCPBench's tools with its tasks, and its log."""
    loaded = load_collection("livemcpbench")
    return (loaded.catalog, loaded.queries["tasks"]), load_log(paths.raw("livemcpbench"), loaded.catalog)


def pools() -> list[tuple[str, ToolCatalog]]:
    """The growing catalogues of `discovery.pools`."""
    return discovery.pools(*catalogs("livemcpbench", "mcptools", "mcpflow"))


def catalogs(*names: str) -> list[ToolCatalog]:
    """The tools of published collections."""
    return [load_collection(name).catalog for name in names]


# By part: llm is what a language model does, or what replays its choices; latency takes seconds, on a machine that does
# nothing else meanwhile.
EXPERIMENTS: dict[str, dict[str, Callable[[], Iterator[Made]]]] = {
    "livemcpbench": {"main": livemcpbench, "llm": partial(with_model, "livemcpbench")},
    "mcptools": {"main": mcptools, "llm": partial(with_model, "mcptools")},
    "scaling": {"main": scaling, "latency": scaling_latency},
    "intent": {"main": intent_ranking, "latency": intent_latency},
    "router": {"main": router},
    "apibank": {"main": apibank, "llm": partial(with_model, "apibank")},
    "mcptoolbench": {"main": mcptoolbench},
    COLLECTION: {"main": mcpflow, "llm": partial(with_model, COLLECTION)},
}


def run_experiment(name: str, part: str = "all") -> str:
    """Run an experiment part by part, each kept when it is through. Returns: the collection that its results are of.
    `part`: all but latency, latency (only what measures times, on a quiet machine), llm (only what a language model
    does) or report (only the tables that are made from the kept runs)."""
    collection = "livemcpbench" if name in ("scaling", "intent", "router") else name
    require_one_of(part, "part", ("all", "latency", "llm", "report"))
    able = [name for name, parts in EXPERIMENTS.items() if part in ("all", "report", *parts)]
    if name not in able:
        raise StudyError(f"no experiments for {name!r}", fix=f"one of: {', '.join(able)}")
    for part_name, experiment in EXPERIMENTS[name].items():
        if part == part_name or (part == "all" and part_name != "latency"):
            for parts in experiment():
                write_results(collection, parts)
    if part != "latency":
        report_collection(collection)
    return collection


def report_collection(collection: str) -> None:
    """Redo the tables of a collection that are made from its kept runs."""
    if collection == COLLECTION:
        return report_flow(flow_settings())
    settings = discovery_settings()
    report_runs(collection, settings.references.get(collection, {}), settings.pairs.get(collection, {}))
    times = paths.tables(collection) / "intent_latency.csv"
    latency = read_csv(times) if times.exists() else None
    write_results(collection, intent.targets_table(collect_runs(collection), latency))
