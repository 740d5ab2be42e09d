"""An answer as text for a terminal, and as plain data."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from study.advisor.catalog.trust import trust
from study.advisor.engine.answer import Answer, Item
from study.advisor.engine.catalogue import Catalogue
from study.advisor.engine.facts import Facts
from study.advisor.saved.contract import Recommendation
from study.base.errors import printable

if TYPE_CHECKING:
    from study.advisor.retrieval.documents import ToolCatalog

SUMMARY = 100  # characters of a tool's description that a person is shown
WIDTH = 100  # columns without a terminal that tells its width


def data(catalogue: Catalogue, answer: Answer, attributes: Mapping[str, str]) -> dict[str, Any]:
    """An answer as plain data; a server of the open catalogue is named by its id there."""
    rows = []
    for item in answer.items:
        row = asdict(item.server) | {"facts": item.facts.data(), "same": list(item.same)}
        if server := catalogue.row(item.server):
            row |= {"server_id": server["id"], "trust": trust(server)}
        rows.append(row)
    return {
        "task": answer.request,
        **attributes,
        "dataset": catalogue.name,
        "system": catalogue.system,
        "warnings": list(answer.warnings),
        **({"reranked_by": answer.reranked_by} if answer.reranked_by else {}),
        "understood": asdict(answer.understood),
        "notes": list(answer.notes),
        "fits": answer.fits,
        "closeness": answer.closeness,
        "left_out": answer.left_out,
        **({"limits": stated} if (stated := answer.limits.stated()) else {}),
        "recommendations": rows,
    }


def text(catalogue: Catalogue, answer: Answer) -> list[str]:
    """An answer as lines: what answers, what was understood, two for each server, where its facts come from."""
    invented = "" if catalogue.real else " (INVENTED SERVERS, none of them exists)"
    model = catalogue.model
    result = [f"{model.title} on {catalogue.name}{invented}, {len(model.servers):,} servers"]
    result += [printable(f"note: {note}") for note in answer.notes]
    if answer.left_out:
        leave = "The limits leave" if answer.limits.filters() else "--verified leaves"
        nothing = "" if answer.fits else "Nothing that is left fits. "
        result.append(f"{nothing}{leave} out {answer.left_out} servers that fit.")
    elif not answer.fits:
        advice = "Say what is to be done, with the name of the product if there is one."
        result.append(f"Nothing in this catalogue fits. {advice}")
    hint = install_hint(answer.items) if answer.fits else ""
    # Where the facts come from, with dates.
    sources = sorted({source for item in answer.items for source in item.facts.sources.values() if source})
    facts = f"facts: {'; '.join(sources)}" if sources else ""
    columns = shutil.get_terminal_size((WIDTH, 24)).columns
    return [*result, *lines(answer.items, columns), *filter(None, (facts, hint))]


def tools_data(
    catalog: ToolCatalog, rows: Sequence[int], scores: Sequence[float] | None = None
) -> list[dict[str, Any]]:
    """Tools in their order, as data; `rows`: of the tools in the catalogue. `scores`: of the same tools.

    Returns: rank, score (where there are some), server (id, name, sources), and tool, which is an entry of an MCP
    server's list of tools: name, description, inputSchema.
    """
    entries = []
    for position, row in enumerate(rows):
        tool = catalog.tools[row]
        server = catalog.servers[tool.server]
        score = {} if scores is None else {"score": round(float(scores[position]), 4)}
        # The protocol wants a schema of type object, also of a tool without parameters.
        schema = dict(tool.schema) or {"type": "object", "properties": {}}
        owner = {"id": server.id, "name": server.name, "sources": [*(server.sources or (catalog.name,))]}
        entry = {"name": tool.name, "description": tool.description, "inputSchema": schema}
        entries.append({"rank": position + 1, **score, "server": owner, "tool": entry})
    return entries


def tool_line(entry: Mapping[str, Any]) -> str:
    """One tool of `tools_data` as a line of text."""
    tool, score = entry["tool"], f"  {entry['score']:.3f}" if "score" in entry else ""
    text = f"{entry['rank']:>2}{score}  {entry['server']['name']} / {tool['name']}  {summary(tool['description'])}"
    return printable(text)


def summary(description: str) -> str:
    """The beginning of a tool's description in one line."""
    return " ".join(description.split())[:SUMMARY]


def cut(text: str, columns: int) -> str:
    """A text in one line of at most so many characters; the cut is marked."""
    line = printable(" ".join(text.split()))
    return line if len(line) <= columns else line[: max(1, columns - 1)].rstrip() + "…"


def in_short(facts: Facts) -> list[str]:
    """The facts that are known, most important first."""
    # What changes with time is said with its source.
    source = {name: f" ({source})" for name, source in facts.sources.items() if source}
    known = (
        "official" if facts.official else "",
        facts.status and f"{facts.status}{source.get('status', '')}",
        "" if facts.stars is None else f"{facts.stars:,} star{'' if facts.stars == 1 else 's'}",
        facts.licence or "no licence stated",
        facts.language,
        facts.updated and f"updated {facts.updated}{source.get('updated', '')}",
        f"vouched for by {', '.join(facts.vouched)}" if facts.vouched else "start not verified",
        printable(facts.checked),
    )
    return [text for text in known if text]


def warned(facts: Facts) -> list[str]:
    """What is to be said beside a name."""
    return [*facts.marks, *(f"flag: {flag}" for flag in facts.flags[:2])]


def lines(items: Sequence[Item], columns: int) -> list[str]:
    """Two lines for each server: name, warnings and what it does; its facts and how to start it."""
    rows = []
    for item in items:
        marks = "".join(f" [{mark.upper()}]" for mark in warned(item.facts))
        named = f" ({item.facts.id})" if item.facts.id else ""
        name = printable(" ".join(item.server.name.split()))[:60]
        head = f"{item.server.rank}. {name}{named}{marks}: {item.facts.does}"
        start = item.facts.start or item.server.url
        rows += [cut(head, columns), f"   {' · '.join([*in_short(item.facts), printable(start)])}"]
    return rows


def install_hint(items: Sequence[Item]) -> str:
    """What starts the first server that the open catalogue knows, '' for none."""
    first = next((item for item in items if item.facts.start and item.facts.id), None)
    if first is not None:
        words = f"{printable(first.facts.id)} --client NAME{'' if first.facts.vouched else ' --unverified'}"
        return f"start {first.server.rank}: study install {words}"
    return "start one: study install ID --client NAME --unverified" if any(item.facts.id for item in items) else ""


def show_scores(servers: Sequence[Recommendation], *, title: str, caption: str) -> None:
    """Print a table, and below it every repository's address on a line of its own, never broken, so it can be copied.

    Every part that a server has is a column, empty for servers without it. One that is 0 for every server shown takes
    no column; the caption names it.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    rows = [{name: _cell(value) for name, value in item.table_cells().items()} for item in servers]
    parts = dict.fromkeys(name for row in rows for name in row)
    empty = [name for name in parts if all(row.get(name) in (None, _cell(0.0)) for row in rows)]
    if empty:
        caption += f"; 0 for all of these: {', '.join(empty)}"
    headings = [name for name in parts if name not in empty]
    # Text, not str: a server's name is a stranger's text and must not be read as markup.
    table = Table(title=Text(printable(title)), caption=Text(caption))
    for name in ("#", "server", "score", *headings):
        # A heading of two parts takes two lines, so that numbers stay narrow and names get the room.
        heading = Text(name.replace(" (", "\n("))
        table.add_column(heading, overflow="fold", justify="left" if name in ("server", "stage") else "right")
    for item, row in zip(servers, rows, strict=True):
        table.add_row(
            str(item.rank), Text(printable(item.name)), _cell(item.score), *(row.get(name, "") for name in headings)
        )
    console = Console()
    console.print(table)
    for item in servers:
        if item.url.strip():
            console.print(f"{item.rank:>3} ", Text(printable(item.url)), soft_wrap=True, highlight=False, sep="")


def _cell(value: float | str) -> str:
    # Adding 0.0 turns the -0.0 that rounding leaves of a tiny negative number into 0.0.
    return value if isinstance(value, str) else f"{round(value, 3) + 0.0:.3f}"
