"""``conf/serve.yaml``, where every key is explained."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

from study.base import paths
from study.base.errors import StudyError, require_one_of
from study.base.settings import read_settings

RELEVANCE, INTENT = RANKINGS = "relevance", "intent"


@dataclass(frozen=True)
class ServeSettings:
    """The whole file."""

    k: int
    budget: int
    start_seconds: float
    call_seconds: float
    longest_seconds: float
    idle_seconds: float
    most_running: int
    check_seconds: float
    argument_characters: int
    result_characters: int
    allow: tuple[str, ...]
    deny: tuple[str, ...]
    port: int
    ranking: str
    experiment: str | None

    def __post_init__(self) -> None:
        require_one_of(self.ranking, "ranking in conf/serve.yaml", RANKINGS)
        low = [name for name, value in vars(self).items() if isinstance(value, int | float) and value <= 0]
        if low:
            raise StudyError("must be above 0", file="conf/serve.yaml", column=", ".join(low), fix="raise it")

    def allows(self, name: str) -> bool:
        """Whether a tool, as ``server__tool``, may be found and called."""
        allowed = not self.allow or any(fnmatchcase(name, pattern) for pattern in self.allow)
        return allowed and not any(fnmatchcase(name, pattern) for pattern in self.deny)


def serve_settings() -> ServeSettings:
    """Read ``conf/serve.yaml``."""
    return read_settings(ServeSettings, paths.conf() / "serve.yaml")
