"""`study tools`: index a tool catalogue, find tools in it, run the tool-level experiments, report them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from study import paths
from study.cli.tools_flow import app as flow
from study.cli.tools_intent import app as intent
from study.errors import StudyError
from study.tools.answers import line, listed, printable

if TYPE_CHECKING:
    from study.tools.catalogues.catalog import ToolCatalog

app = typer.Typer(
    no_args_is_help=True, help="Find tools of MCP servers: index, find, route, intent, flow, run, report."
)
app.add_typer(intent, name="intent")
app.add_typer(flow, name="flow")
Catalogue = Annotated[str, typer.Option(help="livemcpbench, mcptools, mcpflow, apibank, mcptoolbench, or an own name.")]

# The catalogue of a user's own servers, unless another name is given, and that of several published ones.
OWN, MERGED = "mine", "merged"
# A mode of `find` beside those of an index: MCP-Zero's two stages.
ROUTED = "routed"


def place(catalogue: str) -> Path:
    """Where the index of a catalogue is kept (never committed)."""
    if not catalogue.replace("-", "").replace("_", "").isalnum():
        raise StudyError(f"not a catalogue name: {catalogue!r}", fix="use letters, digits, - and _")
    return paths.root() / "data" / "tools" / f"{catalogue}.json"


@app.command()
def index(
    catalogue: Annotated[
        list[str] | None,
        typer.Option(
            help="A published catalogue (default livemcpbench), or several, which become `merged`; "
            "with --mcp-config an own name."
        ),
    ] = None,
    mcp_config: Annotated[
        Path | None, typer.Option(help="Ask the servers of this MCP client configuration; it starts their programs.")
    ] = None,
    document: Annotated[str, typer.Option(help="Form of the documents.")] = "template",
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds that each server has to answer.")] = 30.0,
) -> None:
    """Index published catalogues, or running MCP servers; a text that was embedded before is not embedded again.

    In several catalogues, servers with equal lists of tool descriptions become one. Running servers make the catalogue
    `mine` unless another name is given; a server of the configuration that does not answer keeps its last good list.
    """
    from study.tools.catalogues import catalog as catalogs
    from study.tools.catalogues import published
    from study.tools.discovery.index import Settings, ToolIndex

    names = list(dict.fromkeys(catalogue or [])) or [OWN if mcp_config is not None else "livemcpbench"]
    name = names[0] if len(names) == 1 else MERGED
    if mcp_config is not None and len(names) > 1:
        raise StudyError("running servers make one catalogue", fix="give --catalogue once")
    if mcp_config is not None and name in published.LOADERS:
        raise StudyError(f"{name!r} is a published catalogue", fix=f"give yours another name: --catalogue {OWN}")
    target = place(name)
    if mcp_config is not None:
        found = live_catalog(name, mcp_config, timeout)
    else:
        found = published.load(name).catalog if len(names) == 1 else merged_catalog(names)
    vectors = ToolIndex(found, Settings(document=document)).vectors
    catalogs.save(target, found)
    typer.echo(f"{len(found.servers)} servers, {len(vectors)} tools in {target}")


def merged_catalog(names: list[str]) -> ToolCatalog:
    """Several published catalogues as one; what was joined is printed."""
    from study.tools.catalogues import entities, published
    from study.tools.catalogues.merge import merge

    catalogs = [published.load(name).catalog for name in names]
    merged = merge(MERGED, catalogs)
    found = entities.counts(catalogs, merged)
    typer.echo(", ".join(f"{found[kind]} {kind}" for kind in ("listings", "entities", "groups")))
    return merged.catalog


def live_catalog(name: str, config: Path, timeout: float) -> ToolCatalog:
    """The catalogue of the servers that answer, or did before; the outcome of each is printed."""
    from study.tools.catalogues import catalog as catalogs
    from study.tools.catalogues import live

    before = catalogs.load(place(name)) if place(name).is_file() else None
    listings = live.list_all(live.read_config(config), timeout)
    found, cleaning = live.build(name, listings, before=before)
    kept = {server.id: server.listed for server in found.servers if server.problem}
    for listing in listings:
        outcome = f"{len(listing.tools)} tools"
        if listing.problem is not None:
            outcome = f"kept from {kept[listing.name]}" if listing.name in kept else "left out"
            outcome += f": {listing.problem}"
        typer.echo(printable(f"{listing.name}: {outcome}"))
    for row in cleaning[cleaning["rows"] > 0].itertuples():
        typer.echo(printable(f"cleaning: {row.rule}: {row.rows} ({row.table}, {row.action})"))
    if all(found.servers[tool.server].problem for tool in found.tools):
        raise StudyError("no server gave a tool", file=config, fix="see the outcome of each server above")
    typer.echo(", ".join(f"{count} {kind}" for kind, count in live.changes(before, found).items()))
    return found


@app.command()
def find(
    query: Annotated[str, typer.Argument(help="What is to be done, in words.")],
    catalogue: Catalogue = "livemcpbench",
    k: Annotated[int, typer.Option("-k", "--top", min=1, help="How many tools.")] = 5,
    mode: Annotated[str, typer.Option(help="dense, bm25, tfidf, hybrid, or routed (MCP-Zero's two stages).")] = "dense",
    document: Annotated[str, typer.Option(help="Form of the documents.")] = "template",
    threshold: Annotated[float | None, typer.Option(help="Leave out lower scores, unless that leaves nothing.")] = None,
    decompose: Annotated[bool, typer.Option(help="Search for the parts of the query too.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Answer with schemas, ready to paste.")] = False,
) -> None:
    """Name tools for a task: `study tools find "turn a word document into a PDF" --json`."""
    from study.tools.catalogues import catalog as catalogs

    found = catalogs.load(place(catalogue))
    show(search(found, query, k, mode, document, threshold, decompose), as_json)


def show(answers: list[dict[str, Any]], as_json: bool) -> None:
    """Print tools for a person, or as JSON with their schemas."""
    if as_json:
        typer.echo(json.dumps(answers, indent=2, ensure_ascii=False))
        return
    for answer in answers:
        typer.echo(line(answer))


@app.command()
def route(
    task: Annotated[str, typer.Argument(help="What is to be done, in words.")],
    catalogue: Catalogue = "livemcpbench",
    by: Annotated[str, typer.Option(help="Server stage of conf/tools/router.yaml.")] = "minilm",
    servers: Annotated[
        int | None, typer.Option(min=1, help="Servers that stay; default: the configured number.")
    ] = None,
    budget: Annotated[int, typer.Option(min=1, help="Tokens of tool definitions to hand over.")] = 2000,
    as_json: Annotated[bool, typer.Option("--json", help="Answer with schemas, ready to paste.")] = False,
) -> None:
    """Name servers for a task, then their tools within a budget of tokens."""
    from study.tools import router
    from study.tools.catalogues import catalog as catalogs

    found = catalogs.load(place(catalogue))
    routed = router.answer(found, task, stage=by, keep=servers or router.configured().default_servers, budget=budget)
    tools = listed(found, routed.tools, routed.scores)
    kept = [
        {"id": found.servers[row].id, "name": found.servers[row].name, "score": round(score, 4)}
        for row, score in routed.servers
    ]
    if as_json:
        whole = {"servers": kept, "tokens": routed.tokens, "budget": budget, "tools": tools}
        typer.echo(json.dumps(whole, indent=2, ensure_ascii=False))
        return
    shown = ", ".join(f"{server['name']} ({server['score']:.3f})" for server in kept)
    typer.echo(printable(f"servers: {shown or 'all'}"))
    show(tools, as_json=False)
    typer.echo(f"{routed.tokens} of {budget} tokens")


@app.command()
def request(
    task: Annotated[str, typer.Argument(help="What is to be done, in words.")],
    url: Annotated[str, typer.Option(help="OpenAI-compatible chat endpoint, e.g. http://localhost:8000/v1.")],
    model: Annotated[str, typer.Option(help="Name of the model there.")],
    catalogue: Catalogue = "livemcpbench",
    cassette: Annotated[Path | None, typer.Option(help="File of recorded replies; not with --mode off.")] = None,
    mode: Annotated[str, typer.Option(help="replay (never connects), record, or off (keeps nothing).")] = "replay",
    k: Annotated[int, typer.Option("-k", "--top", min=1, help="Tools per request.")] = 3,
    rounds: Annotated[int, typer.Option(min=1, help="Replies of the model at most.")] = 8,
    as_json: Annotated[bool, typer.Option("--json", help="Answer with schemas, ready to paste.")] = False,
) -> None:
    """Let a model ask for the tools that it needs, request by request (MCP-Zero), and name what it was given."""
    from study.llm.client import Client
    from study.tools.catalogues import catalog as catalogs
    from study.tools.mcp_zero.loop import chat_with, construct
    from study.tools.mcp_zero.routing import Router

    found = catalogs.load(place(catalogue))
    # An unknown mode is refused by the client.
    client = Client(url, mode=mode, cassette=cassette)  # type: ignore[arg-type]
    chain = construct(task, Router(found), chat_with(client, model), k=k, max_rounds=rounds)
    show(listed(found, chain.tools), as_json)
    ended = "finished" if chain.finished else f"stopped after {chain.rounds} rounds"
    facts = f"{len(chain.requests)} requests, {chain.malformed} malformed, {chain.tokens} tokens, {ended}"
    typer.echo(printable(f"{facts}. {chain.answer}"), err=True)


def search(
    catalog: ToolCatalog,
    query: str,
    k: int,
    mode: str = "dense",
    document: str = "template",
    threshold: float | None = None,
    decompose: bool = False,
) -> list[dict[str, Any]]:
    """The best tools for a query, best first, in the form of `answers.listed`."""
    from study.tools.discovery.decompose import decompose as split
    from study.tools.discovery.index import MODES, Settings, ToolIndex, above, best
    from study.tools.mcp_zero.request import Request
    from study.tools.mcp_zero.routing import Router

    if mode not in (*MODES, ROUTED):
        raise StudyError(f"unknown search mode {mode!r}", fix=f"one of: {', '.join((*MODES, ROUTED))}")
    chosen = Settings(mode="dense" if mode == ROUTED else mode, document=document, decompose=decompose)
    index = ToolIndex(catalog, chosen)
    if mode == ROUTED and query.strip():
        parts = split(query) if decompose else [query]
        scores = Router(catalog).scores([Request(part, part) for part in parts], store=False).max(axis=0)
        rows, values = above(*best(scores, k, index.order), threshold)
    else:
        rows, values = index.search(query, k, threshold=threshold)
    return listed(catalog, rows.tolist(), values.tolist())


@app.command()
def run(
    catalogue: Catalogue = "livemcpbench",
    part: Annotated[
        str | None, typer.Option(help="latency: measure the times of livemcpbench, scaling or intent again, no more.")
    ] = None,
) -> None:
    """Run all experiments of a catalogue and redo its tables.

    `--catalogue scaling` grows that of livemcpbench; `intent` and `router` run on livemcpbench too.
    """
    from study.tools.experiments import LATENCY, REPORTED_WITH, RUNS
    from study.tools.flow import experiments

    if part not in (None, "latency"):
        raise StudyError(f"unknown part {part!r}", fix="latency, or leave it out")
    runs = RUNS | {"mcpflow": experiments.run} if part is None else LATENCY
    if catalogue not in runs:
        raise StudyError(f"no experiments for {catalogue!r}", fix=f"one of: {', '.join(runs)}")
    runs[catalogue]()
    if part is None:
        report(REPORTED_WITH.get(catalogue, catalogue))


@app.command()
def report(catalogue: Catalogue = "livemcpbench") -> None:
    """Redo metrics.csv.xz, significance.csv and overall.md of a catalogue from its runs."""
    from study.tools import results
    from study.tools.discovery.experiments import pairs, references
    from study.tools.flow import report as flow_report
    from study.tools.flow import settings as flow_settings

    if catalogue == flow_report.CATALOGUE:
        folder = flow_report.report(flow_settings.load())
    else:
        folder = results.report(catalogue, references(catalogue), pairs(catalogue))
    typer.echo((folder / "overall.md").read_text(encoding="utf-8"))
