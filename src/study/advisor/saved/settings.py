"""``conf/recommend/answering.yaml``, where every key is explained."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from study.base import paths
from study.base.errors import StudyError
from study.base.settings import read_settings


@dataclass(frozen=True)
class Typos:
    """When a word is taken for another."""

    similarity: float
    servers: int
    letters: int


@dataclass(frozen=True)
class Prior:
    """What decides among about equal servers."""

    weight: float
    named: float
    stars: float
    full: int
    official: float
    verified: float
    aside: float


@dataclass(frozen=True)
class BetterKnown:
    """When a server below those shown is much better known than they."""

    times: float
    stars: int


@dataclass(frozen=True)
class Filtered:
    """Which servers fit by themselves where a filter leaves out others."""

    best: int
    share: float
    letters: int
    score: float


@dataclass(frozen=True)
class Mark:
    """Patterns of what is said beside a name."""

    name: str
    text: str


@dataclass(frozen=True)
class Answering:
    """The settings of the file."""

    pool: int
    large: int
    typos: Typos
    aliases: Mapping[str, str]
    clients: list[str]
    formats: Mapping[str, list[str]]
    direction: float
    wish: float
    named: float
    prior: Prior
    known: BetterKnown
    fit: Mapping[str, float]
    nearest: int
    filtered: Filtered
    marks: Mapping[str, Mark]

    @staticmethod
    def read() -> Answering:
        """The file, checked."""
        return _read(_file())

    @cached_property
    def patterns(self) -> dict[str, tuple[re.Pattern[str], re.Pattern[str]]]:
        """Mark -> its patterns of a name, and of name and description."""
        by_mark = {}
        for mark, patterns in self.marks.items():
            try:
                by_mark[mark] = (re.compile(patterns.name, re.I | re.X), re.compile(patterns.text, re.I | re.X))
            except re.error as error:
                reason = f"no regular expression ({error})"
                raise StudyError(reason, file=_file(), column=f"marks.{mark}", fix="correct it") from error
        return by_mark

    def marks_of(self, name: str, description: str) -> tuple[str, ...]:
        """What is to be said beside a name, most serious first."""
        text = f"{name}\n{description}"
        return tuple(mark for mark, (of_name, of) in self.patterns.items() if of_name.search(name) or of.search(text))


def _file() -> Path:
    return paths.conf() / "recommend" / "answering.yaml"


@cache
def _read(file: Path) -> Answering:
    return read_settings(Answering, file)
