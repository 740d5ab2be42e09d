"""Where the catalogues of `study tools` are kept; the commands that start servers: `index` and `serve`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from study import paths
from study.errors import StudyError, printable, require_one_of

if TYPE_CHECKING:
    from study.tools.catalogues.catalog import ToolCatalog
    from study.tools.index_file import IndexFile
    from study.tools.intent.feedback import FeedbackStore

Configs = Annotated[list[Path] | None, typer.Option(help="Start the servers of MCP client configurations.")]
Documents = Annotated[
    list[str] | None, typer.Option(help="Forms of the documents: template (default), name_desc, desc, server.")
]

# The catalogue of a user's own servers, unless another name is given, and that of several published ones.
OWN, MERGED = "mine", "merged"


def catalogue_file(catalogue: str) -> Path:
    """Where the index of a catalogue is kept (never committed)."""
    if not catalogue.replace("-", "").replace("_", "").isalnum():
        raise StudyError(f"not a catalogue name: {catalogue!r}", fix="use letters, digits, - and _")
    return paths.root() / "data" / "tools" / f"{catalogue}.json"


def indexed(catalogue: str) -> ToolCatalog:
    """An indexed catalogue."""
    from study.tools.catalogues.catalog import load_catalog

    return load_catalog(catalogue_file(catalogue))


@contextmanager
def opened(catalogue: str) -> Iterator[tuple[ToolCatalog, IndexFile]]:
    """An indexed catalogue and its index, which keeps what is embedded meanwhile."""
    from study.tools.index_file import kept_index

    found = indexed(catalogue)
    with kept_index(catalogue_file(catalogue), found) as file:
        yield found, file


def keep(file: Path, index: IndexFile, catalog: ToolCatalog) -> None:
    """Write a catalogue and its index."""
    from study.tools.catalogues.catalog import save_catalog

    index.save(catalog)
    save_catalog(file, catalog)


def feedback_store(catalogue: str, **how: float) -> FeedbackStore:
    """The feedback about a catalogue (never committed)."""
    from study.tools.intent.feedback import FeedbackStore

    return FeedbackStore(catalogue_file(catalogue).with_suffix(".feedback.jsonl"), **how)


def index(
    catalogue: Annotated[
        list[str] | None,
        typer.Option(help="Published: livemcpbench, mcptools, mcpflow, toolsdk, ...; or a name of your own."),
    ] = None,
    mcp_config: Configs = None,
    marketplace: Annotated[Path | None, typer.Option(help="Marketplace records to print in one form.")] = None,
    market: Annotated[str | None, typer.Option(help="Marketplace of all records; default: as each says.")] = None,
    document: Documents = None,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds that each server has to answer.")] = 30.0,
) -> None:
    """Index tools so that `find` can search them: published collections (default livemcpbench) or running MCP servers.

    Only new texts are embedded. Several collections become the catalogue `merged`, in which servers with equal lists
    of tool descriptions are one. Running servers make the catalogue `mine`; a server that does not answer keeps its
    last good list. With --marketplace nothing is indexed: each record is printed as one JSON object, without secrets.
    """
    from study.tools.catalogues.merge import entity_counts, merge_catalogs
    from study.tools.catalogues.registries import PUBLISHED, published_catalog
    from study.tools.discovery.index import Settings, ToolIndex
    from study.tools.flow.marketplace import normalise, read_listings
    from study.tools.index_file import index_file
    from study.tools.mcp_zero.routing import Router

    if marketplace is not None:
        listings, problems = normalise(read_listings(marketplace), market)
        for listing in listings:
            typer.echo(json.dumps(asdict(listing), ensure_ascii=True))
        reasons = "; ".join(f"{count} left out: {reason}" for reason, count in problems.items())
        return typer.echo(reasons or "all kept", err=True)
    names = list(dict.fromkeys(catalogue or [])) or [OWN if mcp_config else "livemcpbench"]
    name = names[0] if len(names) == 1 else MERGED
    if mcp_config and len(names) > 1:
        raise StudyError("running servers make one catalogue", fix="give --catalogue once")
    if mcp_config and name in PUBLISHED:
        raise StudyError(f"{name!r} is a published catalogue", fix=f"give yours another name: --catalogue {OWN}")
    if mcp_config:
        found = live_catalog(name, mcp_config, timeout)
    else:
        catalogs = [published_catalog(one) for one in names]
        found = catalogs[0]
        if len(names) > 1:
            merged = merge_catalogs(MERGED, catalogs)
            found, counts = merged.catalog, entity_counts(catalogs, merged)
            typer.echo(", ".join(f"{counts[kind]} {kind}" for kind in ("listings", "entities", "groups")))
    file = index_file(catalogue_file(name))
    for form in document or ["template"]:
        _ = ToolIndex(found, Settings(document=form), file).vectors
    _ = Router(found, embedder=file).server_vectors
    new = file.new
    keep(catalogue_file(name), file, found)
    sizes = f"{len(found.servers)} servers, {len(found.tools)} tools in {catalogue_file(name)}"
    return typer.echo(f"{sizes}; {new} new texts")


def live_catalog(name: str, configs: list[Path], timeout: float) -> ToolCatalog:
    """The catalogue of the servers that answer, or did before; the outcome of each is printed."""
    from study.tools.catalogues import live
    from study.tools.catalogues.client_config import read_config

    before = indexed(name) if catalogue_file(name).is_file() else None
    listings = live.list_all(read_config(*configs), timeout)
    found, cleaning = live.build(name, listings, before=before)
    kept = {server.id: f"kept from {server.listed}" for server in found.servers if server.problem}
    for listing in listings:
        problem = f"{kept.get(listing.name, 'left out')}: {listing.problem}"
        outcome = f"{len(listing.tools)} tools" if listing.problem is None else problem
        typer.echo(printable(f"{listing.name}: {outcome}"))
    for row in cleaning[cleaning["rows"] > 0].itertuples():
        typer.echo(printable(f"cleaning: {row.rule}: {row.rows} ({row.table}, {row.action})"))
    if all(found.servers[tool.server].problem for tool in found.tools):
        raise StudyError("no server gave a tool", file=configs[0], fix="see the outcome of each server above")
    typer.echo(", ".join(f"{count} {kind}" for kind, count in live.changes(before, found).items()))
    return found


def serve(
    mcp_config: Configs = None,
    catalogue: Annotated[str | None, typer.Option(help="Also find the tools of this indexed catalogue.")] = None,
    own: Annotated[str, typer.Option(help="Name of the catalogue of your servers.")] = OWN,
    allow: Annotated[list[str] | None, typer.Option(help="Only these tools: patterns of SERVER__TOOL.")] = None,
    deny: Annotated[list[str] | None, typer.Option(help="Never these tools: patterns of SERVER__TOOL.")] = None,
    transport: Annotated[str, typer.Option(help="stdio or streamable-http (this machine alone).")] = "stdio",
    port: Annotated[int | None, typer.Option(min=1, max=65535, help="For streamable-http.")] = None,
) -> None:
    """Run an MCP server through which a host finds and calls the tools of your servers, with four tools in all.

    Your servers start when they are needed, and end with this program. Every call is noted in the feedback store of
    their catalogue, as `study tools feedback` does.
    """
    from study.tools.catalogues.client_config import read_config
    from study.tools.index_file import index_file
    from study.tools.serve.gateway import Gateway
    from study.tools.serve.server import make_server, say
    from study.tools.serve.server import run as run_server
    from study.tools.serve.settings import serve_settings

    require_one_of(transport, "transport", ("stdio", "streamable-http"))
    if not mcp_config and catalogue is None:
        raise StudyError("there is nothing to serve", fix="give --mcp-config FILE, or --catalogue NAME to find only")
    settings, file = serve_settings(), catalogue_file(own)
    settings = replace(settings, allow=tuple(allow or settings.allow), deny=(*settings.deny, *(deny or ())))
    how: dict[str, Any] = {"published": None if catalogue is None else indexed(catalogue), "store": feedback_store(own)}
    vectors = index_file(file)
    how["embedder"] = vectors if catalogue is None else index_file(catalogue_file(catalogue), vectors)
    how["own"] = indexed(own) if mcp_config and file.is_file() else None
    endpoints = read_config(*mcp_config) if mcp_config else []
    made = make_server(Gateway(endpoints, settings, name=own, save=partial(keep, file, vectors), say=say, **how))
    run_server(made, transport, port or settings.port)
