"""`study catalog`, `study install`, `study uninstall`: an open catalogue of MCP servers, and how to start them."""

from __future__ import annotations

import json
import shlex
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from study.errors import StudyError, printable

app = typer.Typer(no_args_is_help=True, help="An open catalogue of MCP servers, from registries and your own files.")
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Server = Annotated[str, typer.Argument(metavar="ID", help="A server's id, or a name or package that only one has.")]
Client = Annotated[
    str,
    typer.Option(help="claude-desktop, claude-code, vscode, cursor, windsurf, zed, cline, codex, or json (prints it)."),
]
Config = Annotated[Path | None, typer.Option(help="The client's file, if it is not at its usual place.")]
Write = Annotated[bool, typer.Option("--write", help="Change the file, after a backup; otherwise nothing is written.")]
# Of a server's texts, what `show` prints of each at most.
SHOWN = 600


def _print_json(value: Any) -> None:
    # ASCII: a terminal is not driven by what strangers wrote.
    typer.echo(json.dumps(value, indent=2))


@app.command()
def sync(
    source: Annotated[list[str], typer.Option(help="toolsdk, docker, toolhive or official; may be repeated.")],
    url: Annotated[
        str | None, typer.Option(help="Address of the registry for official (default: the variable T2M_REGISTRY).")
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Ask official for everything; once an hour at most.")] = False,
    as_json: Json = False,
) -> None:
    """Bring the catalogue up to date: `study catalog sync --source toolsdk --source docker`.

    All sources are read before anything changes: one that fails leaves the catalogue as it was. A stopped poll of
    `official` goes on with the same command. What was refused, and why, is listed in data/catalog/VERSION/refused.csv.
    """
    from study.catalog.store import folder
    from study.catalog.sync import sync as bring

    counts = bring(source, url=url, full=full)
    if as_json:
        _print_json(counts)
        return
    for name, row in counts["sources"].items():
        refused = ", ".join(f"{count} {what}" for what, count in row["refused"].items()) or "nothing"
        typer.echo(
            f"{name}: {row['read']} read, {row['new']} new, {row['changed']} changed, {row['gone']} gone; "
            f"refused: {refused}"
        )
    said = (
        "nothing changed" if counts["unchanged"] else f"version {counts['version']} in {folder() / counts['version']}"
    )
    typer.echo(
        f"{counts['servers']} servers from {counts['entries']} entries, {counts['tombstones']} tombstones; {said}"
    )


@app.command()
def add(
    source: Annotated[str, typer.Argument(metavar="FILE|URL", help="server.json or a client's configuration.")],
) -> None:
    """Add your own servers, from a server.json or from a client's `mcpServers` or `servers`.

    Names of variables are kept, their values and the words after a package are not: they may be secrets.
    """
    from study.catalog.sync import add as take

    done = take(source)
    for key in done["added"]:
        typer.echo(f"mine:{key}")
    for item in done["refused"]:
        typer.echo(f"warning: refused: {item.what} of {item.key}: {item.reason}", err=True)


@app.command(name="list")
def list_servers(
    word: Annotated[str, typer.Argument(help="Only servers with this in id, name or description.")] = "",
    source: Annotated[str | None, typer.Option(help="Only servers that this source lists.")] = None,
    gone: Annotated[bool, typer.Option("--gone", help="The tombstones instead.")] = False,
    flagged: Annotated[bool, typer.Option("--flagged", help="Only servers that the scan of texts flags.")] = False,
    top: Annotated[int, typer.Option("-k", "--top", min=1, help="How many at most.")] = 20,
    as_json: Json = False,
) -> None:
    """List servers by words, in the order of their ids. For a ranking, use `study recommend`."""
    from study.catalog import store
    from study.catalog.merge import GONE
    from study.catalog.trust import flags

    table = store.read(store.required(), "servers")
    table = table[(table["status"] == GONE) == gone]
    text = (table["id"] + "\n" + table["name"] + "\n" + table["description"]).str.lower()
    table = table[text.str.contains(word.lower(), regex=False)]
    if source:
        table = table[[any(member[0] == source for member in json.loads(text)) for text in table["members"]]]
    if flagged:
        table = table[[bool(flags(row)) for row in table.to_dict("records")]]
    shown = table.head(top)
    if as_json:
        _print_json(shown[["id", "name", "description", "status", "moved_to"]].to_dict("records"))
        return
    for row in shown.to_dict("records"):
        moved = f" -> {row['moved_to']}" if row["moved_to"] else ""
        typer.echo(printable(f"{row['id']}{moved}  {row['description'][:100]}"))
    typer.echo(f"{len(shown)} of {len(table)}", err=True)


@app.command()
def show(
    identifier: Server,
    check: Annotated[
        bool, typer.Option("--check", help="First ask npm and pip whether its packages are there.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show a server: what is known, and which source says it."""
    from study.catalog import checks, store
    from study.catalog.trust import in_words, trust

    row = store.find(identifier, store.read(store.required(), "servers"))
    for problem in checks.ask_all(checks.packages_of([row])) if check else []:
        typer.echo(f"warning: {printable(problem.reason)}", err=True)
    known = trust(row)
    for name in ("tags", "tools", "packages", "remotes", "members", "provenance", "notes"):
        row[name] = json.loads(row[name])
    row["stars"] = None if row["stars"] < 0 else int(row["stars"])
    row["official"] = bool(row["official"])
    row["trust"] = known
    if as_json:
        _print_json(row)
        return
    row["trust"] = in_words(known)
    for name, value in row.items():
        if value in ("", [], None) or name == "provenance":
            continue
        source = f"  [{row['provenance'][name]}]" if name in row["provenance"] else ""
        if name == "tools":
            value = f"{len(value)}: {', '.join(tool['name'] for tool in value)}"
        elif isinstance(value, list):
            value = "; ".join(item if isinstance(item, str) else json.dumps(item) for item in value)
        text = printable(str(value))
        typer.echo(f"{name}: {text[:SHOWN]}{'...' if len(text) > SHOWN else ''}{source}")


@app.command()
def diff(
    since: Annotated[str | None, typer.Option(help="A version, such as v000003 (default: the one before).")] = None,
    as_json: Json = False,
) -> None:
    """What changed since the last sync: servers added, gone, and changed in which fields."""
    from study.catalog import store

    known, now = store.versions(), store.required()
    names = [path.name for path in known]
    if since is not None and since not in names:
        raise StudyError(f"there is no version {since!r:.40}", column="--since", fix=f"one of: {', '.join(names)}")
    place = names.index(now.name)
    before = known[names.index(since)] if since else (known[place - 1] if place else None)
    table = store.differences(store.read(before, "servers"), store.read(now, "servers"))
    if as_json:
        _print_json(table.to_dict("records"))
        return
    for row in table.to_dict("records"):
        typer.echo(f"{row['change']}: {row['id']} {row['fields']}".rstrip())
    typer.echo(f"{len(table)} from {before.name if before else 'nothing'} to {now.name}", err=True)


@app.command()
def remove(identifier: Server) -> None:
    """Take one of your own servers out of the catalogue."""
    from study.catalog.sync import remove as take_out

    typer.echo(f"removed {take_out(identifier)}")


def install(
    identifier: Server,
    client: Client,
    write: Write = False,
    config: Config = None,
    name: Annotated[str | None, typer.Option(help="Name of the entry (default: the end of the id).")] = None,
    method: Annotated[
        str | None, typer.Option("--with", help="npm, pypi, oci or remote (default: the first a source vouches for).")
    ] = None,
    version: Annotated[str | None, typer.Option(help="Another exact version of the package.")] = None,
    unverified: Annotated[
        bool, typer.Option("--unverified", help="Take a package that no source vouches for.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show how to start a server, or write it into a client: `study install ID --client cursor --write`.

    The version is pinned: the registry's, or else the latest that npm or pip names now. Values that you must fill in
    stand as <NAME>. `study uninstall` undoes it.
    """
    from dataclasses import asdict

    from study.catalog import checks, clients, store
    from study.catalog.start import METHODS, start
    from study.catalog.trust import failed, flags
    from study.errors import require_one_of

    if method is not None:
        require_one_of(method, "method", METHODS, column="--with")
    server = store.find(identifier, store.read(store.required(), "servers"))
    way = start(server, method=method, version=version, unverified=unverified)
    done = clients.install(way, client, config=config, name=name, write=write)
    if as_json:
        _print_json(asdict(way) | done | {"written": write})
        return
    notes = [*json.loads(server["notes"]), *(f"flag: {flag}" for flag in flags(server))]
    notes += [f"did not start at {name}" for name in failed(server)]
    for note in notes + ([f"status {server['status']}"] if server["status"] != "active" else []):
        typer.echo(f"warning: {printable(note)}", err=True)
    typer.echo(f"start:    {shlex.join([way.command, *way.args]) if way.command else way.url}")
    typer.echo(f"verified: {', '.join(way.vouched) or 'not verified'}")
    for key, check in checks.of(server).items():
        typer.echo(f"checked:  {printable(checks.in_words(key, check, server['repository']))}")
    if way.fill:
        typer.echo(f"fill in:  {', '.join(way.fill)}")
    if way.optional:
        typer.echo(f"optional: {', '.join(way.optional)}")
    typer.echo(json.dumps({done["key"]: {done["name"]: done["entry"]}}, indent=2))
    if not done["file"]:
        return
    happens = {"add": "entry added", "replace": "entry replaced", "unchanged": "already there, nothing changed"}
    if write or done["does"] == "unchanged":
        backup = f"; backup in {done['backup']}" if done.get("backup") else ""
        typer.echo(f"{done['file']}: {happens[done['does']]}{backup}")
    else:
        typer.echo(f"{done['file']}: nothing written; --write would {done['does']} the entry {done['name']!r}")


def uninstall(identifier: Server, client: Client, write: Write = False, config: Config = None) -> None:
    """Undo `study install` of a server into a client."""
    from study.catalog import clients, store

    version = store.current()
    with suppress(StudyError):  # a server that has left the catalogue can still be taken out, by its id
        identifier = store.find(identifier, store.read(version, "servers"))["id"]
    done = clients.uninstall(identifier, client, config=config, write=write)
    verb = "did" if write else "nothing written; --write would"
    typer.echo(f"{done['file']}: {verb} {done['does']} ({done['name']})")
