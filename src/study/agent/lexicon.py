"""Word lists of ``conf/agent`` that one part of the agent alone reads."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from study import paths
from study.agent.text import root
from study.config.reader import read_settings


@dataclass(frozen=True)
class Reading:
    """``reading.yaml``, where every key is explained."""

    strong: list[str]
    reply: list[str]
    ends: list[str]
    no_end: list[str]
    purposes: list[str]
    about: list[str]
    questions: list[str]
    auxiliaries: list[str]
    setup: list[str]
    choosing: list[str]
    leaving: list[str]
    subjects: dict[str, str]
    impersonal: list[str]
    few_words: int
    doing: list[str]

    @cached_property
    def done(self) -> frozenset[str]:
        """Roots of the words of doing."""
        return frozenset(map(root, self.doing))


@dataclass(frozen=True)
class Wording:
    """``wording.yaml``, where every key is explained."""

    grammar: list[str]
    joining: list[str]
    cited: dict[str, list[str]]
    rare_share: float
    rare_servers: int

    def rare(self, catalogue: int) -> float:
        """At most so many of a catalogue's servers mention a rare word."""
        return max(self.rare_share * catalogue, self.rare_servers)


NAMES: dict[type, str] = {Reading: "reading", Wording: "wording"}
Kind = TypeVar("Kind", Reading, Wording)


def read(kind: type[Kind]) -> Kind:
    """Read the lists of `kind` from its file in ``conf/agent``.

    Raises:
        StudyError: the file cannot be read, or its keys are not those of `kind`.
    """
    return read_settings(kind, paths.conf() / "agent" / f"{NAMES[kind]}.yaml")
