"""Phase 4, context filters: what this agent, in this project, can use now."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path

from cachetools import LRUCache

from study.advisor.engine.intent.settings import Limit
from study.config.reader import build_settings
from study.errors import StudyError

PAIRS = 10_000  # an agent chooses its own name


@dataclass(frozen=True)
class Context:
    """Who asks, and from where. None means "not stated": that filter is then off."""

    agent: str = ""  # the agent's name
    permissions: frozenset[str] | None = None  # what it may do
    services: frozenset[str] | None = None  # what runs at its side
    languages: frozenset[str] | None = None  # languages, systems: of its project, in any case
    systems: frozenset[str] | None = None


@dataclass(frozen=True)
class Requirements:
    """What a tool needs. Empty means that it needs nothing, or serves every project."""

    permissions: frozenset[str] = frozenset()  # permissions, services: all of them are needed
    services: frozenset[str] = frozenset()
    languages: frozenset[str] = frozenset()  # languages, systems: one of them must be the project's
    systems: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if not all(isinstance(name, str) for names in vars(self).values() for name in names):
            raise StudyError("a requirement is no text", fix="give lists of names")


NEEDS_NOTHING = Requirements()


@dataclass(frozen=True)
class _File(Context):
    """Who asks, and what tools need by their keys."""

    needs: Mapping[str, Requirements] = field(default_factory=dict)


def read_context(path: Path) -> tuple[Context, Mapping[str, Requirements]]:
    """Who asks, and what tools need by key, from a JSON file: the fields of `Context`, and ``needs``, tool key -> those
    of `Requirements`, each a list of names. What is left out is not stated."""
    fix = "write: agent, permissions, services, languages, systems, and needs (tool key -> lists of names)"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise StudyError(f"cannot be read ({error})", file=path, fix=fix) from error
    read = build_settings(_File, found, path)
    return Context(**{own.name: getattr(read, own.name) for own in fields(Context)}), read.needs


class RateLimiter:
    """At most `calls` uses of one tool by one agent in any window of `seconds`; `PAIRS` of both are remembered."""

    def __init__(self, limit: Limit) -> None:
        self.limit = limit
        self.calls: LRUCache[tuple[str, str], deque[float]] = LRUCache(PAIRS)

    def record(self, agent: str, tool: str, now: float) -> None:
        """Count a call; `now` in seconds of a clock that never goes back."""
        self.calls.setdefault((agent, tool), deque(maxlen=self.limit.calls)).append(now)

    def limited(self, agent: str, tool: str, now: float) -> bool:
        """Whether one more call would be too many."""
        made = self.calls.get((agent, tool))
        return made is not None and len(made) == self.limit.calls and made[0] > now - self.limit.seconds


def obstacle(needs: Requirements, context: Context) -> str | None:
    """Why the tool is of no use in the context, or None."""
    for name in ("permission", "service"):
        wanted, held = getattr(needs, f"{name}s"), getattr(context, f"{name}s")
        if held is not None and (missing := sorted(wanted - held)):
            return f"{name} missing: {', '.join(missing)}"
    for name in ("language", "system"):
        served, own = getattr(needs, f"{name}s"), getattr(context, f"{name}s")
        if own and served and not _fold(served) & _fold(own):
            return f"serves another {name}: {', '.join(sorted(served))}"
    return None


def _fold(names: frozenset[str]) -> set[str]:
    return {name.strip().casefold() for name in names}


def usable(
    rows: Sequence[int],
    keys: Sequence[str],
    requirements: Mapping[str, Requirements],
    context: Context,
    limiter: RateLimiter,
    now: float,
) -> tuple[list[int], dict[int, str]]:
    """The rows that pass every filter, in order, and the reason for each of the others. `keys`: key of every tool.
    `requirements`: by key; a tool that is not named needs nothing."""
    kept, left_out = [], {}
    for row in rows:
        reason = obstacle(requirements.get(keys[row], NEEDS_NOTHING), context)
        if reason is None and limiter.limited(context.agent, keys[row], now):
            reason = f"used {limiter.limit.calls} times in {limiter.limit.seconds:g} s"
        if reason is None:
            kept.append(row)
        else:
            left_out[row] = reason
    return kept, left_out
