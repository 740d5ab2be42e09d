"""A bounded cache of answers with a time to live, keyed on everything that an answer depends on."""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Generic, TypeVar

from study.tools.intent.context import Context
from study.tools.intent.settings import CacheSize, Float64Array, Rules

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class State:
    """What an answer depends on besides the question.

    Attributes:
        catalogue: fingerprint of the catalogue.
        settings: fingerprint of the settings and of the tools' requirements.
        feedback: how many events the statistics hold.
    """

    catalogue: str
    settings: str
    feedback: int


def key(query: str, count: int, context: Context, weights: Float64Array, state: State, rules: Rules) -> str:
    """The name of an answer, SHA-256 in hex. Rate limits are not part of it: they are applied after the cache."""
    if rules.query_only_cache:
        return hashlib.sha256(query.encode("utf-8", "replace")).hexdigest()
    stated = {name: sorted(value) if isinstance(value, frozenset) else value for name, value in vars(context).items()}
    parts = [query, count, stated, weights.tolist(), asdict(state), asdict(rules)]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


class TtlCache(Generic[Answer]):
    """The most recently used answers, each for a limited time."""

    def __init__(self, size: CacheSize, clock: Callable[[], float]) -> None:
        """Begin empty.

        Args:
            clock: seconds; one that never goes back, such as `time.monotonic`.
        """
        self.size, self.clock = size, clock
        self.kept: OrderedDict[str, tuple[float, Answer]] = OrderedDict()
        self.hits = self.misses = 0

    def get(self, name: str) -> Answer | None:
        """The answer, unless it is unknown or too old."""
        found = self.kept.get(name)
        if found is None or self.clock() - found[0] >= self.size.seconds:
            self.kept.pop(name, None)
            self.misses += 1
            return None
        self.kept.move_to_end(name)
        self.hits += 1
        return found[1]

    def put(self, name: str, answer: Answer) -> None:
        """Keep an answer; where there are too many, the least recently used goes."""
        self.kept[name] = (self.clock(), answer)
        self.kept.move_to_end(name)
        while len(self.kept) > self.size.entries:
            self.kept.popitem(last=False)
