"""Pieces of an instruction that may be arguments, and the values that they stand for."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

KINDS = ("quoted", "url", "email", "date", "number", "code", "path", "name", "slug", "word")
PATTERNS = {
    "quoted": re.compile(r"\"([^\"\n]{1,400})\"|(?<!\w)'([^'\n]{1,400})'(?!\w)|“([^”\n]{1,400})”|`([^`\n]{1,400})`"),
    "url": re.compile(r"(?:https?|ftp)://[^\s\"'<>)\]]{1,400}"),
    "email": re.compile(r"[\w.+-]{1,64}@[\w-]{1,64}(?:\.[\w-]{1,64}){1,5}"),
    "date": re.compile(r"\b\d{4}-\d{2}-\d{2}(?:T[\d:.Z+-]{1,30})?"),
    # Not the 1 of fix-1, and not the ending of report.txt, which looks like a CSS selector.
    "number": re.compile(r"(?<![\w.])(?<![A-Za-z]-)-?\d{1,15}(?:\.\d{1,15})?(?![\w])"),
    "code": re.compile(r"\b[A-Z]{2,6}\b|(?<!\w)[#.][A-Za-z][\w-]{1,60}(?:\s?[>+~]\s?[\w.#-]{1,60}){0,4}"),
    "path": re.compile(r"(?<![\w:/])/?(?:[\w.-]{1,80}/){1,10}[\w.-]{1,80}|\b[\w-]{1,80}\.[a-z]{2,5}\b"),
    "name": re.compile(r"\b[A-Z][\w'-]{1,40}(?:[ ,]{1,2}[A-Z][\w'-]{1,40}){0,5}"),
    # An identifier: letters with a digit or an underscore among them, such as fix-1 or user_name.
    "slug": re.compile(r"(?<![\w/.-])(?=[\w-]{0,60}[\d_])[A-Za-z][\w-]{1,60}(?![\w/-])"),
    "word": re.compile(r"\b[\w-]{2,40}\b"),
}
# What ends a sentence and not a value.
TRAILING = ".,;:!?)]}\"'"
NUMERIC = ("integer", "number")


class Span(NamedTuple):
    """One piece: its kind, its text, and where it begins (letters from the start)."""

    kind: str
    text: str
    start: int


def spans(text: str, *, letters: int, most: int) -> list[Span]:
    """Pieces in the order of `KINDS`, then of the text; a text that two kinds share counts as the first.

    Args:
        letters: how far the text is read.
        most: pieces at most.
    """
    found: dict[str, Span] = {}
    for kind in KINDS:
        for match in PATTERNS[kind].finditer(text[:letters]):
            inner = next((part for part in match.groups() if part), None) or match.group()
            clean = inner.strip() if kind == "quoted" else inner.rstrip(TRAILING)
            if kind == "quoted":
                clean = clean.rstrip(",.;:") or clean
            if clean and clean not in found:
                found[clean] = Span(kind, clean, match.start())
            if len(found) >= most:
                return list(found.values())
    return list(found.values())


def stands_alone(text: str) -> bool:
    """Whether a value is a piece by its form, so that people write it without quotation marks."""
    return any(PATTERNS[kind].fullmatch(text) for kind in KINDS if kind not in ("quoted", "word"))


def kind_of(property_: Mapping[str, Any]) -> str:
    """The JSON type of a parameter; string where the schema does not say."""
    stated = property_.get("type")
    options = [stated] if isinstance(stated, str) else stated if isinstance(stated, list) else []
    branches = property_.get("anyOf")
    for branch in branches if isinstance(branches, list) else []:
        options += [branch["type"]] if isinstance(branch, Mapping) and isinstance(branch.get("type"), str) else []
    known = [name for name in options if name in ("string", "integer", "number", "boolean", "array", "object")]
    return known[0] if known else "string"


def convert(text: str, kind: str) -> Any:
    """A span as a value of a JSON type; None where it cannot be one."""
    if kind in NUMERIC:
        try:
            number = float(text)
        except ValueError:
            return None
        if not math.isfinite(number):
            return None
        whole = number.is_integer() and (kind == "integer" or "." not in text)
        return int(number) if whole else number if kind == "number" else None
    return [text] if kind == "array" else text if kind == "string" else None
