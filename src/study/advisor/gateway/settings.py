"""``conf/serve.yaml``, where every key is explained."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

from pydantic import PositiveFloat, PositiveInt

from study.base import paths
from study.base.settings import read_settings

INTENT = "intent"


@dataclass(frozen=True)
class ServeSettings:
    """The whole file."""

    k: PositiveInt
    budget: PositiveInt
    start_seconds: PositiveFloat
    call_seconds: PositiveFloat
    longest_seconds: PositiveFloat
    idle_seconds: PositiveFloat
    most_running: PositiveInt
    check_seconds: PositiveFloat
    argument_characters: PositiveInt
    result_characters: PositiveInt
    allow: tuple[str, ...]
    deny: tuple[str, ...]
    port: PositiveInt
    ranking: Literal["relevance", "intent"]
    experiment: str | None

    def allows(self, name: str) -> bool:
        """Whether a tool, as ``server__tool``, may be found and called."""
        allowed = not self.allow or any(fnmatchcase(name, pattern) for pattern in self.allow)
        return allowed and not any(fnmatchcase(name, pattern) for pattern in self.deny)


def serve_settings() -> ServeSettings:
    """Read ``conf/serve.yaml``."""
    return read_settings(ServeSettings, paths.conf() / "serve.yaml")
