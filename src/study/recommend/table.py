"""Recommended servers as a table in the terminal. Names and addresses are strangers' text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from study.recommend.contract import Recommendation


def show_recommendations(found: Sequence[Recommendation], *, title: str, caption: str) -> None:
    """Print a table, and below it every repository's address on a line of its own, never broken, so it can be copied.

    A part of the score that is 0 for every server shown takes no column; the caption names it.
    Where the terminal knows hyperlinks, names and addresses are links.
    """
    from rich.console import Console
    from rich.style import Style
    from rich.table import Table
    from rich.text import Text

    # Text, not str: a server's name is a stranger's text and must not be read as markup.
    links = [
        Style(link=item.url)
        if item.url.startswith(("https://", "http://")) and printable(item.url) == item.url
        else Style()
        for item in found
    ]
    rows = [{name: _cell(value) for name, value in item.shown().items()} for item in found]
    empty = [name for name in rows[0] if all(row[name] == _cell(0.0) for row in rows)]
    if empty:
        caption += f"; 0 for all of these: {', '.join(empty)}"
    table = Table(title=Text(printable(title)), caption=Text(caption))
    headings = {
        name: "left" if isinstance(value, str) else "right"
        for name, value in found[0].shown().items()
        if name not in empty
    }
    for heading, justify in ({"#": "right", "server": "left", "score": "right"} | headings).items():
        # A heading of two parts takes two lines, so that numbers stay narrow and names get the room.
        table.add_column(
            Text(heading.replace(" (", "\n(")), overflow="fold", justify="left" if justify == "left" else "right"
        )
    for item, row, link in zip(found, rows, links, strict=True):
        table.add_row(
            str(item.rank), Text(printable(item.name), link), _cell(item.score), *(row[name] for name in headings)
        )
    console = Console()
    console.print(table)
    for item, link in zip(found, links, strict=True):
        if item.url.strip():
            console.print(f"{item.rank:>3} ", Text(printable(item.url), link), soft_wrap=True, highlight=False, sep="")


def _cell(value: float | str) -> str:
    # Adding 0.0 turns the -0.0 that rounding leaves of a tiny negative number into 0.0.
    return value if isinstance(value, str) else f"{round(value, 3) + 0.0:.3f}"


def printable(text: str) -> str:
    """`text` without control characters, which could drive the terminal."""
    return "".join(letter if letter.isprintable() else " " for letter in text)
