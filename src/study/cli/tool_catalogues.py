"""Where the catalogues of `study tools` are kept; the commands that start servers: `index`, `serve`, `loop`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from study.base import paths
from study.base.errors import StudyError, require_one_of
from study.cli.shared import TRANSPORTS, Json, Port, Task, Transport, print_json, say

if TYPE_CHECKING:
    from study.advisor.engine.intent.feedback import FeedbackStore
    from study.advisor.gateway.gateway import Gateway
    from study.advisor.gateway.loop import Trajectory
    from study.advisor.llm.client import Message
    from study.advisor.retrieval.documents import ToolCatalog

Configs = Annotated[list[Path] | None, typer.Option(help="Start the servers of MCP client configurations.")]
Own = Annotated[str, typer.Option(help="Name of the catalogue of your servers.")]
Allow = Annotated[list[str] | None, typer.Option(help="Only these tools: patterns of SERVER__TOOL.")]
Deny = Annotated[list[str] | None, typer.Option(help="Never these tools: patterns of SERVER__TOOL.")]
Catalogue = Annotated[str | None, typer.Option(help="An indexed one: livemcpbench, ... (default: mine, if indexed).")]
Documents = Annotated[list[str] | None, typer.Option(help="Of a tool: template (default), name_desc, desc, server.")]
# The catalogue of a user's own servers, unless another name is given, and that of several published ones.
OWN, MERGED = "mine", "merged"


def catalogue_file(catalogue: str) -> Path:
    """Where the index of a catalogue is kept (never committed)."""
    if not catalogue.replace("-", "").replace("_", "").isalnum():
        raise StudyError(f"not a catalogue name: {catalogue!r}", fix="use letters, digits, - and _")
    return paths.root() / "data" / "tools" / f"{catalogue}.json"


def default_catalogue() -> str:
    """The catalogue that answers: the user's own servers once they are indexed, else LiveMCPBench's."""
    return OWN if catalogue_file(OWN).is_file() else "livemcpbench"


def indexed(catalogue: str) -> ToolCatalog:
    """An indexed catalogue."""
    from study.advisor.retrieval.documents import load_catalog

    return load_catalog(catalogue_file(catalogue))


def feedback_store(catalogue: str) -> FeedbackStore:
    """The feedback about the tools of a catalogue (never committed)."""
    from study.advisor.engine.intent.feedback import feedback_of

    return feedback_of(f"tools-{catalogue}")


def index(
    catalogue: Annotated[
        list[str] | None, typer.Option(help="Published: livemcpbench, mcptools, ...; or a name of your own.")
    ] = None,
    mcp_config: Configs = None,
    document: Documents = None,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds that each server has to answer.")] = 30.0,
) -> None:
    """Index tools so that `find` can search them: published collections (default livemcpbench) or running MCP servers.

    Only new texts are embedded. Several catalogues (published, or your own that are indexed) become `merged`, in which
    servers with equal lists of tool descriptions are one. Running servers make the catalogue `mine`; a server that
    does not answer keeps its last good list.
    """
    from study.advisor.encoders.choose import quick_embedder
    from study.advisor.retrieval.documents import save_catalog
    from study.advisor.retrieval.index import Settings, ToolIndex
    from study.advisor.retrieval.merge import merge_catalogs
    from study.advisor.retrieval.route import Router

    names = list(dict.fromkeys(catalogue or [])) or [OWN if mcp_config else "livemcpbench"]
    name = names[0] if len(names) == 1 else MERGED
    if mcp_config and len(names) > 1:
        raise StudyError("running servers make one catalogue", fix="give --catalogue once")
    if name != OWN or not mcp_config:  # one's own servers need nothing of the study
        from study.tools.collections import PUBLISHED, published_catalog
    if mcp_config:
        if name != OWN and name in PUBLISHED:
            raise StudyError(f"{name!r} is a published catalogue", fix=f"give yours another name: --catalogue {OWN}")
        tools = live_catalog(name, mcp_config, timeout)
    elif len(names) == 1:
        tools = published_catalog(name)
    else:
        merged = merge_catalogs(MERGED, [published_catalog(n) if n in PUBLISHED else indexed(n) for n in names])
        tools, listings = merged.catalog, len(merged.entity_of)
        typer.echo(f"{listings} listings, {len(tools.servers)} entities, {len(merged.groups())} groups")
    embedder = quick_embedder()
    for form in document or ["template"]:
        _ = ToolIndex(tools, Settings(document=form), embedder).vectors.distinct
    for vectors in Router(tools, embedder=embedder).server_vectors:
        _ = vectors.distinct
    save_catalog(catalogue_file(name), tools)
    typer.echo(f"{len(tools.servers)} servers, {len(tools.tools)} tools in {catalogue_file(name)}")


def live_catalog(name: str, configs: list[Path], timeout: float) -> ToolCatalog:
    """The catalogue of the servers that answer, or did before; the outcome of each is printed."""
    from study.advisor.catalog import checks
    from study.advisor.gateway import live
    from study.advisor.gateway.client_config import read_config

    before = indexed(name) if catalogue_file(name).is_file() else None
    endpoints = read_config(*configs)
    listings = live.list_all(endpoints, timeout)
    checks.note(live.starts(endpoints, listings))
    tools, cleaning = live.build(name, listings, before=before)
    earlier = {server.id: f"kept from {server.listed}" for server in tools.servers if server.problem}
    for listing in listings:
        problem = f"{earlier.get(listing.name, 'left out')}: {listing.problem}"
        remark = f" ({listing.remark})" if listing.remark else ""
        say(f"{listing.name}: {f'{len(listing.tools)} tools{remark}' if listing.problem is None else problem}")
    for row in cleaning[cleaning["rows"] > 0].itertuples():
        say(f"cleaning: {row.rule}: {row.rows} ({row.table}, {row.action})")
    if all(tools.servers[tool.server].problem for tool in tools.tools):
        raise StudyError("no server gave a tool", file=configs[0], fix="see the outcome of each server above")
    typer.echo(", ".join(f"{count} {kind}" for kind, count in live.changes(before, tools).items()))
    return tools


def serve(
    mcp_config: Configs = None,
    catalogue: Annotated[str | None, typer.Option(help="Also find the tools of this indexed catalogue.")] = None,
    own: Own = OWN,
    allow: Allow = None,
    deny: Deny = None,
    transport: Transport = "stdio",
    port: Port = None,
) -> None:
    """Run an MCP server through which a host finds and calls the tools of your servers, with four tools in all.

    Your servers start when they are needed, and end with this program. Every call is noted in the feedback store of
    their catalogue (`study tools run --catalogue mine --part feedback`).
    """
    from study.advisor.gateway.server import make_server
    from study.advisor.gateway.server import run as run_server
    from study.advisor.gateway.settings import serve_settings

    require_one_of(transport, "transport", TRANSPORTS)
    if not mcp_config and catalogue is None:
        raise StudyError("there is nothing to serve", fix="give --mcp-config FILE, or --catalogue NAME to find only")
    run_server(make_server(gateway(mcp_config, catalogue, own, allow, deny)), transport, port or serve_settings().port)


def gateway(
    mcp_config: list[Path] | None, catalogue: str | None, own: str, allow: list[str] | None, deny: list[str] | None
) -> Gateway:
    """What serves a user's servers (and finds the tools of a published catalogue), with their feedback."""
    from study.advisor.gateway.client_config import read_config
    from study.advisor.gateway.gateway import Gateway
    from study.advisor.gateway.server import say as note
    from study.advisor.gateway.settings import serve_settings
    from study.advisor.retrieval.documents import save_catalog

    settings, file = serve_settings(), catalogue_file(own)
    settings = replace(settings, allow=tuple(allow or settings.allow), deny=(*settings.deny, *(deny or ())))
    return Gateway(
        read_config(*mcp_config) if mcp_config else [],
        settings,
        name=own,
        before=indexed(own) if mcp_config and file.is_file() else None,
        published=None if catalogue is None else indexed(catalogue),
        store=feedback_store(own),
        save=partial(save_catalog, file),
        say=note,
    )


def loop(
    task: Task,
    mcp_config: Configs = None,
    url: Annotated[str | None, typer.Option(help="Another endpoint than conf/llm/local, or local:NAME.")] = None,
    model: Annotated[str, typer.Option(help="Name of the model there.")] = "qwen",
    own: Own = OWN,
    allow: Allow = None,
    deny: Deny = None,
    dry: Annotated[bool, typer.Option("--dry", help="Only name the tools that the model asks for; call none.")] = False,
    catalogue: Catalogue = None,
    as_json: Json = False,
) -> None:
    """Let a model do a task with your servers: it asks for tools, calls them, and answers (MCP-Zero, with calls).

    The calls are real: name with --allow what it may use. Steps go to the error stream; the trajectory is added to
    data/tools/OWN.trajectories.jsonl, in the form of MCP-Flow. With --dry it asks, over several rounds, for tools of an
    indexed catalogue (--catalogue), and no server is started.
    """
    from study.advisor.engine import render
    from study.advisor.gateway.loop import keep_trajectory, loop_settings, run_loop
    from study.advisor.llm.client import Client
    from study.advisor.llm.settings import endpoint_settings

    settings = loop_settings()
    client = Client(url, mode="off") if url else replace(endpoint_settings("local"), mode="off").client(None)

    def chat(messages: Sequence[Message]) -> str:
        return client.chat(model, messages, temperature=0, max_tokens=settings.tokens)

    if not (mcp_config or dry):
        raise StudyError("there are no servers to call", fix="give --mcp-config FILE, or --dry to call none")
    servers = gateway(mcp_config, None if mcp_config else catalogue or default_catalogue(), own, allow, deny)
    servers.store = None if dry else servers.store  # a search that no call may follow teaches nothing

    async def work() -> Trajectory:
        async with servers:
            return await run_loop(task, servers, chat, settings, partial(say, err=True), dry=dry)

    done, file = asyncio.run(work()), catalogue_file(own).with_suffix(".trajectories.jsonl")
    ended = "answered" if done.finished else f"stopped after {done.rounds} replies"
    facts = f"{ended}; {done.malformed} malformed blocks, {done.tokens} tokens"
    if dry:
        tools = render.tools_data(servers.view.catalog, [servers.view.row(tool["name"]) for tool in done.tools])
        print_json(tools) if as_json else say(*map(render.tool_line, tools))
        return say(f"{facts}. {done.final_response}", err=True)
    keep_trajectory(file, done, model)
    say(f"{facts}, {sum('function_call' in step for step in done.steps)} calls; kept in {file}", err=True)
    return print_json(asdict(done)) if as_json else say(done.final_response)
