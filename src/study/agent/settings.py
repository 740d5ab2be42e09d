"""``conf/agent``: read strictly, so that a misspelt key is an error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

from study import paths
from study.config.reader import read_settings


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
    strong: list[str]


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
    feedback: str
    busy_seconds: float


@dataclass(frozen=True)
class Load:
    """``load.yaml``, where every key is explained."""

    users: int
    seconds: float
    think: float
    start_seconds: float
    seed: int
    messages: list[str]


NAMES: dict[type, str] = {
    Settings: "agent",
    Words: "words",
    Setup: "setup",
    Service: "service",
    Load: "load",
}
Kind = TypeVar("Kind", Settings, Words, Setup, Service, Load)


def read(kind: type[Kind]) -> Kind:
    """Read the settings of `kind` from its file in ``conf/agent``.

    Raises:
        StudyError: the file cannot be read, or its keys are not those of `kind`.
    """
    return read_settings(kind, paths.conf() / "agent" / f"{NAMES[kind]}.yaml")
