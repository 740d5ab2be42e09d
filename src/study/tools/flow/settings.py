"""``conf/tools/flow.yaml``, where every key is explained, as checked settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from study.base import paths
from study.base.settings import read_settings


@dataclass(frozen=True)
class Splits:
    """Parts that a rotation makes; one is held out each time."""

    tools: int
    calls: int


@dataclass(frozen=True)
class Pool:
    """Where the tools come from among which one is to be chosen."""

    source: Literal["labelled", "catalogue"]
    size: Annotated[int, Field(ge=2)] | None
    seeds: Annotated[int, Field(ge=1)]


@dataclass(frozen=True)
class System:
    """How a system chooses the tool and fills its arguments."""

    select: Literal["random", "bm25", "dense", "exemplars", "trained", "tool_name", "server_name"]
    call: Literal["required", "copied", "borrowed", "trained"]
    train: Literal["real", "synthetic", "both"] = "real"
    exemplars: bool = True
    whole: bool = True


@dataclass(frozen=True)
class Training:
    """Of the selector."""

    mask: float
    distractors: int
    penalty: float


@dataclass(frozen=True)
class Copying:
    """Of the slot filler."""

    strength: float
    letters: int
    spans: int


@dataclass(frozen=True)
class Synthesis:
    """How many instructions are made, and of what."""

    tools: int
    per_tool: int
    depth: int
    openings: tuple[str, ...]
    rewrites: tuple[str, ...]
    values: Mapping[str, Sequence[Any]]
    quoted: float


@dataclass(frozen=True)
class Filtration:
    """Bounds of section 3.3."""

    similarity: float
    quality: float
    candidates: int


@dataclass(frozen=True)
class Flow:
    """The whole file."""

    seeds: tuple[int, ...]
    splits: Splits
    pools: Mapping[str, Pool]
    systems: Mapping[str, System]
    references: Mapping[str, tuple[str, str]]
    document: str
    limit: int
    exemplars: int
    training: Training
    copying: Copying
    synthesis: Synthesis
    filtration: Filtration
    servers: Mapping[str, tuple[str, ...]]
    not_run: tuple[Mapping[str, str], ...]


def flow_settings() -> Flow:
    """Read ``conf/tools/flow.yaml``."""
    return read_settings(Flow, paths.conf() / "tools" / "flow.yaml")
