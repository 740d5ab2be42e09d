"""Pieces of an instruction that may be arguments, and the paper's three measures of a call (appendix C.2).

The measures are nested here: Param needs the right tool, AST needs Param. The paper's are not everywhere (its Table 4
has Param above Tool), so its Param may count parameters of wrong tools.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
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

    `letters`: how far the text is read. `most`: pieces at most.
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


# Letters that the Berkeley leaderboard leaves out of account when it compares texts (Patil et al. 2025).
IGNORED = re.compile(r"[ ,./\-_*^]")
MAX_DEPTH = 20


@dataclass(frozen=True)
class Call:
    """A call of the tool in row `tool` of the catalogue."""

    tool: int
    arguments: Mapping[str, Any] = field(default_factory=dict)


def measures(predicted: Call | None, tool: int, arguments: Mapping[str, Any]) -> dict[str, float]:
    """Tool, Param and AST of one call, each 0 or 1; no call at all is wrong.

    Tool: the right tool. Param: and exactly the right parameter names, nested ones too, in any order. AST: and equal
    values, see `same_value`.
    """
    right = predicted is not None and predicted.tool == tool
    named = right and predicted is not None and names(predicted.arguments) == names(arguments)
    whole = named and predicted is not None and same_value(dict(predicted.arguments), dict(arguments))
    return {"tool": float(right), "param": float(named), "ast": float(whole)}


def names(value: Any, depth: int = 0) -> Any:
    """The names of nested parameters without their values."""
    if isinstance(value, Mapping) and depth < MAX_DEPTH:
        return {str(name): names(inner, depth + 1) for name, inner in value.items()}
    return None


def same_value(one: Any, other: Any, depth: int = 0) -> bool:
    """Equality as the Berkeley leaderboard checks it.

    Texts are compared without case, spaces and ``, . / - _ * ^``, and with one kind of quotation mark; a whole number
    equals the same decimal number; a truth value equals only itself; lists keep their order.
    """
    if depth > MAX_DEPTH:
        return False
    if isinstance(one, bool) or isinstance(other, bool) or one is None or other is None:
        return one is other
    if isinstance(one, int | float) and isinstance(other, int | float):
        return math.isclose(one, other, rel_tol=1e-9)
    if isinstance(one, str) and isinstance(other, str):
        return plain(one) == plain(other)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(same_value(a, b, depth + 1) for a, b in zip(one, other, strict=True))
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(same_value(one[name], other[name], depth + 1) for name in one)
    return False


def plain(text: str) -> str:
    """A text as it is compared."""
    return IGNORED.sub("", text).lower().replace("'", '"')
