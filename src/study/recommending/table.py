"""Recommended servers as a table in the terminal. Names and addresses are strangers' text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from study.recommending.contract import Answer


def show_recommendations(found: Sequence[Answer], *, title: str, caption: str) -> None:
    """Print a table, and below it every repository's address on a line of its own, never broken, so it can be copied.

    Where the terminal knows hyperlinks, names and addresses are links.
    """
    from rich.console import Console
    from rich.style import Style
    from rich.table import Table
    from rich.text import Text

    # Text, not str: a server's name is a stranger's text and must not be read as markup.
    links = [
        Style(link=item.url) if item.url.startswith(("https://", "http://")) and printable(item.url) == item.url
        else Style() for item in found
    ]  # fmt: skip
    table = Table(title=Text(printable(title)), caption=Text(caption))
    headings = {name: "left" if isinstance(value, str) else "right" for name, value in found[0].shown().items()}
    for heading, justify in ({"#": "right", "server": "left", "score": "right"} | headings).items():
        table.add_column(Text(heading), overflow="fold", justify="left" if justify == "left" else "right")
    for item, link in zip(found, links, strict=True):
        cells = (value if isinstance(value, str) else f"{value:.3f}" for value in item.shown().values())
        table.add_row(str(item.rank), Text(printable(item.name), link), f"{item.score:.3f}", *cells)
    console = Console()
    console.print(table)
    for item, link in zip(found, links, strict=True):
        if item.url.strip():
            console.print(f"{item.rank:>3} ", Text(printable(item.url), link), soft_wrap=True, highlight=False, sep="")


def printable(text: str) -> str:
    """`text` without control characters, which could drive the terminal."""
    return "".join(letter if letter.isprintable() else " " for letter in text)
