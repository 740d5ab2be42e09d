"""`study catalog`, `study install`, `study uninstall`: an open catalogue of MCP servers, and how to start them."""

from __future__ import annotations

import json
import shlex
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated

from typer import Argument, Option, Typer, echo

from study.base.errors import StudyError, printable, require_one_of
from study.cli.shared import Json, print_json, say, warn

app = Typer(no_args_is_help=True, help="Keep a catalogue of MCP servers from open registries.")
print_foreign = partial(print_json, ascii_only=True)  # what strangers wrote then drives no terminal
Sources = Annotated[list[str] | None, Option(help="toolsdk, docker, toolhive or official; may be repeated.")]
Server = Annotated[str, Argument(metavar="ID", help="A server's id, or a name or package that only one has.")]
Client = Annotated[
    str, Option(help="claude-desktop, claude-code, vscode, cursor, windsurf, zed, cline, codex or json.")
]
Config = Annotated[Path | None, Option(help="The client's file, if it is not at its usual place.")]
Write = Annotated[bool, Option("--write", help="Change the file, after a backup; otherwise nothing is written.")]
SHOWN = 600  # letters of a server's text


@app.command()
def sync(
    source: Sources = None,
    url: Annotated[str | None, Option(help="Of the registry for official (default: T2M_REGISTRY).")] = None,
    full: Annotated[bool, Option("--full", help="Ask official for everything; once an hour at most.")] = False,
    as_json: Json = False,
) -> None:
    """Bring the catalogue up to date from its sources.

    `study catalog sync --source toolsdk --source docker`. All are read before anything changes; a stopped poll of
    `official` goes on with the same command. What was refused, and why: data/catalog/VERSION/refused.csv.
    """
    from study.advisor.catalog import settings, store
    from study.advisor.catalog.sync import sync as bring

    if not source:
        names = ", ".join(name for name in settings.Sources.read().order if name != settings.MINE)
        raise StudyError("no source is named", column="--source", fix=f"one or more of: {names}; e.g. --source toolsdk")
    counts = bring(source, url=url, full=full)
    if as_json:
        return print_foreign(counts)
    for name, row in counts["sources"].items():
        counted = ", ".join(f"{row[what]} {what}" for what in ("read", "new", "changed", "gone"))
        refused = ", ".join(f"{count} {what}" for what, count in row["refused"].items()) or "nothing"
        echo(f"{name}: {counted}; refused: {refused}")
    version = counts["version"]
    outcome = "nothing changed" if counts["unchanged"] else f"version {version} in {store.folder() / version}"
    counted = f"{counts['servers']} servers from {counts['entries']} entries, {counts['tombstones']} tombstones"
    return echo(f"{counted}; {outcome}")


@app.command()
def add(source: Annotated[str, Argument(metavar="FILE|URL", help="server.json or a client's configuration.")]) -> None:
    """Add your own servers, from a server.json or from a client's `mcpServers` or `servers`.

    Names of variables are kept, their values and the words after a package are not: they may be secrets.
    """
    from study.advisor.catalog.sync import add as take

    done = take(source)
    for key in done["added"]:
        echo(f"mine:{key}")
    warn(f"refused: {item.what} of {item.key}: {item.reason}" for item in done["refused"])


@app.command(name="list")
def list_servers(
    word: Annotated[str, Argument(help="Only servers with this in id, name or description.")] = "",
    source: Annotated[str | None, Option(help="Only servers that this source lists.")] = None,
    gone: Annotated[bool, Option("--gone", help="The tombstones instead.")] = False,
    flagged: Annotated[bool, Option("--flagged", help="Only servers that the scan of texts flags.")] = False,
    top: Annotated[int, Option("-k", "--top", min=1, help="How many at most.")] = 20,
    as_json: Json = False,
) -> None:
    """List servers by words, in the order of their ids. For a ranking, use `study recommend`."""
    from study.advisor.catalog import store
    from study.advisor.catalog.merge import GONE
    from study.advisor.catalog.trust import flags

    table = store.read(store.required(), "servers")
    table = table[(table["status"] == GONE) == gone]
    text = (table["id"] + "\n" + table["name"] + "\n" + table["description"]).str.lower()
    table = table[text.str.contains(word.lower(), regex=False)]
    if source:
        table = table[[any(member[0] == source for member in json.loads(text)) for text in table["members"]]]
    if flagged:
        table = table[[bool(flags(row)) for row in table.to_dict("records")]]
    rows = table.head(top)[["id", "name", "description", "status", "moved_to"]].to_dict("records")
    if as_json:
        return print_foreign(rows)
    for row in rows:
        moved = f" -> {row['moved_to']}" if row["moved_to"] else ""
        say(f"{row['id']}{moved}  {row['description'][:100]}")
    return echo(f"{len(rows)} of {len(table)}", err=True)


@app.command()
def show(
    identifier: Server,
    check: Annotated[bool, Option("--check", help="First ask npm and pip whether its packages are there.")] = False,
    as_json: Json = False,
) -> None:
    """Show a server: what is known, and which source says it."""
    from study.advisor.catalog import checks, store
    from study.advisor.catalog.trust import in_words, trust

    row = store.find(identifier, store.read(store.required(), "servers"))
    warn(problem.reason for problem in (checks.ask_all(checks.packages_of([row])) if check else []))
    vouching = trust(row)
    parts = ("tags", "tools", "packages", "remotes", "members", "provenance", "notes")
    row |= {name: json.loads(row[name]) for name in parts}
    row |= {"stars": None if row["stars"] < 0 else int(row["stars"]), "official": bool(row["official"])}
    if as_json:
        return print_foreign(row | {"trust": vouching})
    for name, value in (row | {"trust": in_words(vouching)}).items():
        if value in ("", [], None) or name == "provenance":
            continue
        source = f"  [{row['provenance'][name]}]" if name in row["provenance"] else ""
        if name == "tools":
            value = f"{len(value)}: {', '.join(tool['name'] for tool in value)}"
        elif isinstance(value, list):
            value = "; ".join(item if isinstance(item, str) else json.dumps(item) for item in value)
        text = printable(str(value))
        echo(f"{name}: {text[:SHOWN]}{'...' if len(text) > SHOWN else ''}{source}")


@app.command()
def diff(
    since: Annotated[str | None, Option(help="A version, such as v000003 (default: the one before).")] = None,
    as_json: Json = False,
) -> None:
    """What changed since the last sync: servers added, gone, and changed in which fields."""
    from study.advisor.catalog import store

    now, versions = store.required(), {path.name: path for path in store.versions()}
    if since is not None:
        require_one_of(since, "version", versions, column="--since")
    before = versions[since] if since else max((one for one in versions.values() if one < now), default=None)
    table = store.differences(store.read(before, "servers"), store.read(now, "servers"))
    if as_json:
        return print_foreign(table.to_dict("records"))
    for row in table.to_dict("records"):
        echo(f"{row['change']}: {row['id']} {row['fields']}".rstrip())
    return echo(f"{len(table)} from {before.name if before else 'nothing'} to {now.name}", err=True)


@app.command()
def remove(identifier: Server) -> None:
    """Take one of your own servers out of the catalogue."""
    from study.advisor.catalog.sync import remove as take_out

    echo(f"removed {take_out(identifier)}")


def install(
    identifier: Server,
    client: Client,
    write: Write = False,
    config: Config = None,
    name: Annotated[str | None, Option(help="Name of the entry (default: the end of the id).")] = None,
    method: Annotated[str | None, Option("--with", help="npm, pypi, oci or remote (default: a vouched one).")] = None,
    version: Annotated[str | None, Option(help="Another exact version of the package.")] = None,
    unverified: Annotated[bool, Option("--unverified", help="Also a package that no source vouches for.")] = False,
    as_json: Json = False,
) -> None:
    """Show how to start a server, or write it into a client.

    `study install ID --client cursor --write`. The version is pinned: the registry's, or else the latest that npm or
    pip names now. Values that you must fill in stand as `<NAME>`. `study uninstall` undoes it.
    """
    from dataclasses import asdict

    from study.advisor.catalog import checks, clients, store
    from study.advisor.catalog.start import METHODS, start
    from study.advisor.catalog.trust import flags, sources_of

    if method is not None:
        require_one_of(method, "method", METHODS, column="--with")
    server = store.find(identifier, store.read(store.required(), "servers"))
    way = start(server, method=method, version=version, unverified=unverified)
    done = clients.install(way, client, config=config, name=name, write=write)
    if as_json:
        return print_foreign(asdict(way) | done | {"written": write})
    notes = [*json.loads(server["notes"]), *(f"flag: {flag}" for flag in flags(server))]
    notes += [f"did not start at {name}" for name in sources_of(server, "failed")]
    warn(notes + ([f"status {server['status']}"] if server["status"] != "active" else []))
    echo(f"start:    {shlex.join([way.command, *way.args]) if way.command else way.url}")
    echo(f"verified: {', '.join(way.vouched) or 'not verified'}")
    for key, check in checks.of(server).items():
        echo(f"checked:  {printable(checks.in_words(key, check, server['repository']))}")
    for title, names in (("fill in: ", way.fill), ("optional:", way.optional)):
        if names:
            echo(f"{title} {', '.join(names)}")
    kind = clients.client(client)
    if kind.format == "toml":
        echo(printable(clients.changed("", kind, Path(client), done["name"], done["entry"]).rstrip(), keep="\n"))
    else:
        echo(json.dumps({done["key"]: {done["name"]: done["entry"]}}, indent=2))
    if not done["file"]:
        return None
    happens = {"add": "entry added", "replace": "entry replaced", "unchanged": "already there, nothing changed"}
    if write or done["does"] == "unchanged":
        backup = f"; backup in {done['backup']}" if done.get("backup") else ""
        return echo(f"{done['file']}: {happens[done['does']]}{backup}")
    return echo(f"{done['file']}: nothing written; --write would {done['does']} the entry {done['name']!r}")


def uninstall(identifier: Server, client: Client, write: Write = False, config: Config = None) -> None:
    """Undo `study install` of a server into a client."""
    from study.advisor.catalog import clients, store

    version = store.current()
    with suppress(StudyError):  # a server that has left the catalogue can still be taken out, by its id
        identifier = store.find(identifier, store.read(version, "servers"))["id"]
    done = clients.uninstall(identifier, client, config=config, write=write)
    verb = "did" if write else "nothing written; --write would"
    echo(f"{done['file']}: {verb} {done['does']} ({done['name']})")
