"""What is read of a task (views) and of a server (fields): pure functions from table rows to texts.

The collection's guidelines (docs/judging-guidelines.md) take a task's need from its description and call its theme a
decoration. The views follow that definition of need; they know nothing about which servers were found useful.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pandas as pd

Row = Mapping[str, str]

# The fields of x_t and x_m (paper, section 5.4), in the authors' order. Subcategory is not part of the task's text.
TASK_FIELDS = ("name", "description", "language", "category", "theme")
SERVER_FIELDS = ("name", "description", "language", "system", "tools", "category", "subcategory")
# The authors' program joins the fields with this, leaving empty ones out.
FIELD_SEPARATOR = " \n "

# Words that tie a theme to a need ("for Publishing", "within Gaming pipelines") and mean nothing without it.
_BEFORE = r"\b(?:for|in|across|through|from|of|within|to|on)\b"
_AFTER = r"(?:datasets?|imagery|archives?|workflows?|pipelines?|platforms?|systems?|environments?|contexts?)"
# What follows these says how the task is to be done.
_CLAUSE = re.compile(r"[,;:]|\b(?:by|with|using|via)\b", re.IGNORECASE)
# How descriptions of servers begin before they say what the server does.
_PREAMBLE = re.compile(
    r"^\s*(?:this is )?(?:an?|the|this|our)?\s*(?:[\w\-./]+\s+){0,4}?"
    r"(?:mcp[\s-]*server|model context protocol(?:\s*\(mcp\))?[\s-]*(?:server|implementation)?|mcp)\b"
    r"(?:\s+(?:implementation|integration|project))?\s*"
    r"(?:(?:that|which)\s+)?(?:is\s+)?(?:(?:designed|built|used|intended)\s+(?:to|for)\s+)?"
    r"(?:for\s+|to\s+)?"
    r"(?:(?:allows?|enables?|lets?|enabling|allowing)\s+(?:you|users?|ai assistants?|llms?|agents?)\s+to\s+)?"
    r"(?:provides?|providing|offers?|offering)?\s*",
    re.IGNORECASE,
)
_PLUMBING = re.compile(r"\b(?:mcp|model context protocol|server)\b", re.IGNORECASE)


def join_values(values: Iterable[str]) -> str:
    """One text from the values of its fields, empty ones left out."""
    stripped = (value.strip() for value in values)
    return FIELD_SEPARATOR.join(value for value in stripped if value)


def without_theme(text: str, theme: str) -> str:
    """The text without its mentions of the theme, and without the word that ties each to the rest."""
    if not theme.strip():
        return text
    mention = rf"\s*(?:{_BEFORE}\s+)?(?<!\w){re.escape(theme.strip())}(?!\w)(?:\s+{_AFTER}\b)?"
    return _or(re.sub(mention, "", text, flags=re.IGNORECASE).strip(), text)


def first_clause(text: str) -> str:
    """The text up to its first comma, semicolon or colon, or to what says how (by, with, using, via)."""
    return _or(_CLAUSE.split(text, maxsplit=1)[0].strip(), text)


def capability(text: str) -> str:
    """What a server does: its description without the opening that every MCP server shares."""
    return _or(_PLUMBING.sub(" ", _PREAMBLE.sub("", text, count=1)).strip(), text)


def _or(text: str, instead: str) -> str:
    """The text, or another one where nothing is left of it."""
    return text if re.search(r"\w", text) else instead


# view or field -> its text, from one row of `Dataset.tasks` or `Dataset.servers`
VIEWS: dict[str, Callable[[Row], str]] = {
    "all": lambda task: join_values(task[name] for name in TASK_FIELDS),
    "description": lambda task: task["description"] or task["name"],
    "name": lambda task: task["name"] or task["description"],
    "request": lambda task: task["name"] + "\n" + without_theme(task["description"], task["theme"]),
    "object": lambda task: without_theme(task["description"] or task["name"], task["theme"]),
    "core": lambda task: first_clause(without_theme(task["description"] or task["name"], task["theme"])),
}
FIELDS: dict[str, Callable[[Row], str]] = {
    "all": lambda server: join_values(server[name] for name in SERVER_FIELDS),
    "description": lambda server: server["description"] or server["name"],
    "name": lambda server: server["name"],
    "capability": lambda server: capability(server["description"] or server["name"]),
    "tools": lambda server: server["tools"] or server["description"] or server["name"],
}


def texts(table: pd.DataFrame, kinds: Mapping[str, Callable[[Row], str]], kind: str) -> list[str]:
    """The text of one view or field (`kinds` by name) for every row of a table."""
    rows: list[Any] = table.to_dict("records")
    return [kinds[kind](row) for row in rows]
