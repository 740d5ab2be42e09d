"""An answer as lines for a terminal: two for each server, and what was understood."""

from __future__ import annotations

import shutil
from collections.abc import Sequence

from study.advisor.engine.answering import Found
from study.advisor.engine.facts import Facts
from study.errors import printable

# What is shown without a terminal that tells its width.
WIDTH = 100


def width() -> int:
    """Columns of the terminal."""
    return shutil.get_terminal_size((WIDTH, 24)).columns


def cut(text: str, columns: int) -> str:
    """A text in one line of at most so many characters; the cut is marked."""
    line = printable(" ".join(text.split()))
    return line if len(line) <= columns else line[: max(1, columns - 1)].rstrip() + "…"


def in_short(facts: Facts) -> list[str]:
    """The facts that are known, most important first."""
    return [
        *(["official"] if facts.official else []),
        *(_sourced(facts, "status", facts.status)),
        *([f"{facts.stars:,} star{'' if facts.stars == 1 else 's'}"] if facts.stars is not None else []),
        facts.licence or "no licence stated",
        *([facts.language] if facts.language else []),
        *(_sourced(facts, "updated", f"updated {facts.updated}" if facts.updated else "")),
        *([f"vouched for by {', '.join(facts.vouched)}"] if facts.vouched else ["start not verified"]),
        *([printable(facts.checked)] if facts.checked else []),
    ]


def _sourced(facts: Facts, name: str, text: str) -> list[str]:
    """A fact that changes with time, with its source; nothing where it is not known."""
    source = facts.sources.get(name)
    return [f"{text} ({source})" if source else text] if text else []


def warned(facts: Facts) -> list[str]:
    """What is to be said beside a name."""
    return [*facts.marks, *(f"flag: {flag}" for flag in facts.flags[:2])]


def lines(found: Sequence[Found], columns: int) -> list[str]:
    """Two lines for each server: name, warnings and what it does; its facts and how to start it."""
    made = []
    for one in found:
        marks = "".join(f" [{mark.upper()}]" for mark in warned(one.facts))
        named = f" ({one.facts.id})" if one.facts.id else ""
        head = f"{one.item.rank}. {printable(' '.join(one.item.name.split()))[:60]}{named}{marks}: {one.facts.does}"
        start = one.facts.start or one.item.url
        made += [cut(head, columns), f"   {' · '.join([*in_short(one.facts), printable(start)])}"]
    return made


def install_hint(found: Sequence[Found]) -> str:
    """What starts the first server that the open catalogue knows, '' for none."""
    known = next((one for one in found if one.facts.start and one.facts.id), None)
    if known is not None:
        words = f"{printable(known.facts.id)} --client NAME{'' if known.facts.vouched else ' --unverified'}"
        return f"start {known.item.rank}: study install {words} (pins the version)"
    return "start one: study install ID --client NAME --unverified" if any(one.facts.id for one in found) else ""


def ages(found: Sequence[Found]) -> str:
    """Where the facts of an answer come from, with dates."""
    sources = sorted({source for one in found for source in one.facts.sources.values() if source})
    return f"facts: {'; '.join(sources)}" if sources else ""
