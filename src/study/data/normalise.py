"""Pure functions that bring spelling variants together; the released spelling always stays beside the result."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

# Licence names in Task2MCP that differ by more than an ending. A page title without a licence's name says only that
# there is some licence.
LICENCE_ALIASES = {
    "view": "other",
    "": "other",
    "license-apache": "apache-2.0",
    "apache 2.0": "apache-2.0",
    "apache license 2.0": "apache-2.0",
    "gnu general public license v3.0": "gpl-3.0",
}


def spelling_key(text: str, *, plural: bool = True) -> str:
    """Equal for texts that differ by case, by '-', '_', '/' or spaces between words, by '&' for 'and', or (with
    `plural`) by the final s of a word."""
    folded = unicodedata.normalize("NFKC", text).casefold().replace("&", " and ")
    words = re.sub(r"[\s\-‐-―_/]+", " ", folded).split()
    return " ".join(re.sub(r"(?<=..[^s])s$", "", word) if plural else word for word in words)


def case_key(text: str) -> str:
    """Equal for texts that differ by case or outer spaces alone."""
    return text.strip().casefold()


def licence_key(text: str) -> str:
    """Equal for names of one licence: 'MIT license', 'MIT License', 'MIT', and 'MIT' with a file name on a second
    line. Different versions stay different, unusual ones too."""
    if not text.strip():
        return ""
    first = text.strip().splitlines()[0].casefold().strip()
    name = re.sub(r"\s*(licen[sc]e|许可证)$", "", first)
    return LICENCE_ALIASES.get(first, LICENCE_ALIASES.get(name, name))


def unify(values: Sequence[str], key: Callable[[str], str]) -> list[str]:
    """Replace each text by the most frequent text with the same key (the alphabetically first one where two are equally
    frequent). Empty texts stay empty. Returns: shape (len(values),)."""
    best: dict[str, str] = {}
    counts = Counter(values)
    for text in sorted(counts, key=lambda text: (-counts[text], text)):
        best.setdefault(key(text), text.strip())
    return [best[key(text)] if text.strip() else "" for text in values]


def tokens(text: str) -> list[str]:
    """The entries of a comma-separated text, stripped, without empty ones."""
    return [part.strip() for part in text.split(",") if part.strip()]


def unify_tokens(values: Sequence[str]) -> list[str]:
    """Comma-separated texts with each entry in its most frequent spelling, once, joined by ', ', in listed order."""
    parts = [tokens(text) for text in values]
    unified = iter(unify([token for row in parts for token in row], case_key))
    return [", ".join(dict.fromkeys(next(unified) for _ in row)) for row in parts]


def distinct(values: Iterable[str], *, listed: bool = False) -> int:
    """The number of different texts that are not empty, or (with `listed`) of different comma-separated entries."""
    return len({entry for text in values for entry in (tokens(text) if listed else [text]) if entry})
