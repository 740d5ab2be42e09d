"""``conf/agent``: one dataclass per file, read strictly, so that a misspelt key is an error."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from study import paths
from study.advisor.agent.text import root
from study.config.reader import read_settings
from study.errors import StudyError

# Mapping of ``agent.yaml`` -> its keys, and what each value may be.
MAPPINGS: Mapping[str, Mapping[str, type | tuple[type, ...]]] = {
    "keep_unknown": dict.fromkeys(("language", "platform", "licence"), bool),
    "limits": dict.fromkeys(("request", "history", "excerpt", "name", "listed"), int),
    "llm": dict.fromkeys(("mode", "base_url", "model", "cassette"), str)
    | dict.fromkeys(("timeout", "support"), (int, float))
    | dict.fromkeys(("retries", "tokens"), int),
}


@dataclass(frozen=True)
class Settings:
    """``agent.yaml``, where every key is explained."""

    retriever: str
    top: int
    pool: int
    essential: list[str]
    options: int
    seed: int
    preference_weight: float
    keep_unknown: dict[str, bool]
    limits: dict[str, int]
    llm: dict[str, Any]


@dataclass(frozen=True)
class Words:
    """``words.yaml``, where every key is explained."""

    aliases: dict[str, dict[str, str]]
    ambiguous: list[str]
    before: list[str]
    after: list[str]
    negations: list[str]
    licence_groups: dict[str, list[str]]
    copyleft: list[str]
    preferences: dict[str, dict[str, list[str]]]
    filler: list[str]
    connectors: list[str]
    clear_before: list[str]
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
    empty: list[str]
    respect: list[str]
    onward: list[str]
    doing: list[str]
    strong: list[str]
    grammar: list[str]
    joining: list[str]
    cited: dict[str, list[str]]
    rare_share: float
    rare_servers: int

    @cached_property
    def verbs(self) -> frozenset[str]:
        """Roots of the words of `doing`."""
        return frozenset(map(root, self.doing))

    @cached_property
    def of_answers(self) -> frozenset[str]:
        """Words that a question about an answer may hold and that describe no task."""
        return frozenset((*self.about, *self.setup, *self.choosing, *self.leaving, *self.subjects))


@dataclass(frozen=True)
class Setup:
    """``setup.yaml``, where every key is explained."""

    general: str
    languages: dict[str, str]
    docker: str
    hosts: list[str]


@dataclass(frozen=True)
class Service:
    """``service.yaml``, where every key is explained."""

    host: str
    port: int
    mcp_port: int
    sessions: int
    session_minutes: float
    body: int
    hosts: list[str]
    keep_words: bool

    def __post_init__(self) -> None:
        for key in ("port", "mcp_port"):
            _require_between(key, getattr(self, key), 0, 65_535)
        for key in ("sessions", "session_minutes", "body"):
            _require_between(key, getattr(self, key), 1, math.inf)


@dataclass(frozen=True)
class ModelTrial:
    """``model_trial.yaml``, where every key is explained."""

    endpoint: str
    model: str
    tokens: int
    top: int
    requests: list[str]


FILES: dict[type, str] = {
    Settings: "agent",
    Words: "words",
    Setup: "setup",
    Service: "service",
    ModelTrial: "model_trial",
}
Kind = TypeVar("Kind", Settings, Words, Setup, Service, ModelTrial)


def read_conf(kind: type[Kind]) -> Kind:
    """The settings of `kind` from its file in ``conf/agent``; errors as `study.config.reader.read_settings`."""
    file = paths.conf() / "agent" / f"{FILES[kind]}.yaml"
    made = read_settings(kind, file)
    if isinstance(made, Settings):
        _require_mappings(made, file)
    for field in fields(made):
        _require_sound(getattr(made, field.name), file, field.name)
    return made


def _require_mappings(made: Settings, file: Path) -> None:
    """Raise unless the mappings of ``agent.yaml`` have the keys and kinds of values that `MAPPINGS` names."""
    for name, kinds in MAPPINGS.items():
        values, fix = getattr(made, name), f"its keys are: {', '.join(kinds)}"
        for key in sorted(values.keys() ^ kinds.keys(), key=str):
            reason = "missing key" if key in kinds else "unknown key"
            raise StudyError(f"{reason} {key!r:.80}", file=file, column=name, fix=fix)
        for key, kind in kinds.items():
            if not isinstance(values[key], kind) or isinstance(values[key], bool) != (kind is bool):
                reason = f"{values[key]!r:.80} is of another kind"
                raise StudyError(reason, file=file, column=f"{name}.{key}", fix="see the key's comment")


def _require_between(key: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        file = paths.conf() / "agent" / "service.yaml"
        raise StudyError(f"{value} is not from {least} to {most}", file=file, column=key, fix="see the key's comment")


def _require_sound(value: Any, file: Path, place: str) -> None:
    """Raise for what no setting of the agent may hold: an item of a list that is no text, a number that is not finite
    or below 0."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            _require_sound(item, file, f"{place}.{key}")
    elif isinstance(value, list):
        for item in value:
            if not isinstance(item, str):
                raise StudyError(f"{item!r:.80} is no text", file=file, column=place, fix="put it in quotes")
    elif isinstance(value, int | float) and not 0 <= value < math.inf:
        raise StudyError(f"{value} is no number of at least 0", file=file, column=place, fix="see the key's comment")
