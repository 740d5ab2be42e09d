"""What ``conf/catalog/sources.yaml`` says of the catalogue's sources."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from study.base import paths
from study.base.settings import read_settings

OFFICIAL, MINE = "official", "mine"


@dataclass(frozen=True)
class Archive:
    """One pinned archive; the file explains the keys."""

    repository: str
    commit: str
    folders: Mapping[str, str]
    date: str = ""


@dataclass(frozen=True)
class Registry:
    """How a registry with an HTTP interface is polled."""

    url: str
    page: int
    timeout: float
    retries: int
    pause: float
    full_every: float
    overlap: float
    pages: int
    entries: int


@dataclass(frozen=True)
class Limits:
    """What is read at most; more is refused."""

    seconds: float
    archive: int
    file: int
    answer: int
    text: int
    tools: int


@dataclass(frozen=True)
class Sources:
    """All of ``conf/catalog/sources.yaml``."""

    archives: Mapping[str, Archive]
    order: tuple[str, ...]
    keep: int
    registry: Registry
    limits: Limits

    @classmethod
    def read(cls) -> Sources:
        """The file, checked."""
        return read_settings(cls, paths.conf() / "catalog" / "sources.yaml")
