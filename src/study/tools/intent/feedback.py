"""The feedback store: one JSON line per recommendation and what came of it, and the statistics made from it.

A line holds the query's SHA-256, not its words: nothing here needs them, and queries may be private.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from study.config.reader import build_settings
from study.errors import StudyError
from study.tools.intent.settings import CORRECTED, FACTORS, Float64Array, Rules


def query_hash(query: str) -> str:
    """What the store keeps of a query."""
    return hashlib.sha256(query.encode("utf-8", "replace")).hexdigest()


@dataclass(frozen=True)
class Event:
    """One recommendation and its outcome."""

    agent: str  # who asked
    query: str  # `query_hash` of what was asked
    shown: tuple[str, ...] = ()  # keys of the recommended tools, best first
    selected: str | None = None  # key of the tool that was used, None where none was
    success: bool | None = None  # whether it worked, None where unknown
    asked: float | None = None  # asked, finished: seconds since 1970, None where unknown
    finished: float | None = None
    latency_ms: float | None = None  # of the tool's execution
    rating: float | None = None  # 0 to ``rating_scale``
    factors: tuple[tuple[float, ...], ...] = ()  # of every shown tool as they were, or nothing; weights learn from them
    experiment: str | None = None  # the comparison whose variant ranked the tools, None for none

    def __post_init__(self) -> None:
        numbers = (self.asked, self.finished, self.latency_ms, self.rating)
        if any(value is not None and not (math.isfinite(value) and value >= 0) for value in numbers):
            raise StudyError("a time, latency or rating is negative or not finite", fix="leave it out where unknown")
        if self.asked is not None and self.finished is not None and self.finished < self.asked:
            raise StudyError("an event ends before it begins", column="finished", fix="use one clock for both times")
        if not all(isinstance(key, str) for key in self.shown):
            raise StudyError("a shown tool is no key", column="shown", fix="name tools as server/tool")
        whole = len(self.factors) in (0, len(self.shown)) and all(len(row) == len(FACTORS) for row in self.factors)
        if not whole or not all(0 <= value <= 1 for row in self.factors for value in row):
            raise StudyError("not five factors from 0 to 1 per shown tool", column="factors", fix="leave them out")


class FeedbackStore:
    """Events in an append-only file; several processes may write."""

    def __init__(self, path: Path, *, rating_scale: float = 5.0) -> None:
        self.path, self.rating_scale = path, rating_scale
        # Events of whole lines that were read, how many lines, and the byte behind them.
        self._known: list[Event] = []
        self._lines = self._place = 0

    def append(self, event: Event) -> None:
        """Add an event, whole or not at all."""
        if event.rating is not None and event.rating > self.rating_scale:
            raise StudyError(f"the rating {event.rating} is above {self.rating_scale}", fix="rate on the stated scale")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        line = json.dumps(asdict(event), ensure_ascii=True, allow_nan=False) + "\n"
        # One write to a file opened for appending; a line end before it heals a line that a crash left open.
        handle = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            size = os.fstat(handle).st_size
            torn = size > 0 and os.pread(handle, 1, size - 1) != b"\n"
            os.write(handle, (("\n" if torn else "") + line).encode())
        finally:
            os.close(handle)

    def events(self) -> list[Event]:
        """Every event in order; what was read before is not read again. A torn line is skipped, as only a crash leaves
        one; any other bad line is an error."""
        size = self.path.stat().st_size if self.path.is_file() else 0
        if size < self._place:  # another file stands there now
            self._known, self._place, self._lines = [], 0, 0
        if size == self._place:
            return [*self._known]
        with self.path.open("rb") as stream:
            stream.seek(self._place)
            new = stream.read()
        whole = new.rpartition(b"\n")[0]
        lines = whole.split(b"\n") if b"\n" in new else []
        known = self._known + self._parsed(lines, self._lines)
        last = self._parsed([new[len(whole) + bool(lines) :]], self._lines + len(lines))
        self._known, self._lines = known, self._lines + len(lines)
        self._place += len(whole) + bool(lines)
        return known + last

    def _parsed(self, lines: Sequence[bytes], before: int) -> list[Event]:
        found = []
        for number, line in enumerate(lines, start=before + 1):
            text = line.decode(errors="replace")
            if not text:
                continue
            try:
                value = json.loads(text)
            except (ValueError, RecursionError):
                if text.startswith("{") and not text.endswith("}"):
                    continue
                raise StudyError("not an event", file=self.path, row=f"line {number}", fix="remove the line") from None
            found.append(self.event(value, f"line {number}"))
        return found

    def event(self, value: object, where: str) -> Event:
        """An event from its JSON form, or a `StudyError` that names the place `where`."""
        try:
            return build_settings(Event, value, self.path)
        except (TypeError, StudyError) as error:
            fix = "remove it, or correct its keys"
            raise StudyError(f"not an event ({error})", file=self.path, row=where, fix=fix) from error


@dataclass(frozen=True)
class Statistics:
    """What the factors need to know about the past, each array of shape (n_tools,)."""

    calls: Float64Array  # calls, successes: uses with a known outcome, and those that worked
    successes: Float64Array
    latency_ms: Float64Array  # latency_ms, timed: summed latencies and how many there are
    timed: Float64Array
    rating: Float64Array  # rating, rated: summed ratings and how many there are
    rated: Float64Array
    last_used: Float64Array  # seconds since 1970, NaN where unknown
    agents: Mapping[str, tuple[Float64Array, Float64Array]] = field(default_factory=dict)  # own (calls, successes)


def empty(n_tools: int) -> Statistics:
    """No past."""
    calls, successes, latency_ms, timed, rating, rated = np.zeros((6, n_tools))
    return Statistics(calls, successes, latency_ms, timed, rating, rated, np.full(n_tools, np.nan))


def statistics(events: Iterable[Event], keys: Sequence[str], rules: Rules = CORRECTED) -> Statistics:
    """Sum up events; tools that the catalogue no longer has are left out. `keys`: from `tool_keys`."""
    rows = {key: row for row, key in enumerate(keys)}
    total, agents = empty(len(keys)), dict[str, tuple[Float64Array, Float64Array]]()
    for event in events:
        row = rows.get(event.selected) if event.selected is not None else None
        if row is None:
            continue
        if event.success is not None:
            own = agents.setdefault(event.agent, (np.zeros(len(keys)), np.zeros(len(keys))))
            for calls, successes in ((total.calls, total.successes), own):
                calls[row] += 1
                successes[row] += event.success
        if event.latency_ms is not None:
            total.latency_ms[row] += event.latency_ms
            total.timed[row] += 1
        if event.rating is not None and (event.rating > 0 or not rules.lost_zero_ratings):
            total.rating[row] += event.rating
            total.rated[row] += 1
        moment = event.finished if event.finished is not None else event.asked
        if moment is not None:
            total.last_used[row] = np.fmax(total.last_used[row], moment)
    return Statistics(**{**vars(total), "agents": agents})
