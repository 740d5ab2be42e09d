"""The feedback store: what was recommended and what came of it, on this machine alone, and statistics made from it.

Of a request the store keeps a hash with this machine's own salt, which nobody else can guess from; its words only where
the user says so.
"""

from __future__ import annotations

import hmac
import json
import math
import sqlite3
import threading
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from study.advisor.engine.intent.settings import FACTORS, Float64Array
from study.base import paths
from study.base.errors import StudyError
from study.base.files import local_salt
from study.base.settings import build_settings

FORMAT = 2
BUSY = 10.0  # seconds that a write waits for another process's write
LONGEST_DETAIL = 2_000
BEST_RATING = 5.0
AWAY = "end what uses the file, and move it away with its -wal and -shm"  # which hold the last events
TABLE = """
CREATE TABLE IF NOT EXISTS events (id INTEGER PRIMARY KEY AUTOINCREMENT, event TEXT NOT NULL);
CREATE TRIGGER IF NOT EXISTS events_keep BEFORE UPDATE ON events
BEGIN SELECT RAISE(ABORT, 'events are never changed'); END;
CREATE TRIGGER IF NOT EXISTS events_stay BEFORE DELETE ON events
BEGIN SELECT RAISE(ABORT, 'events are never removed'); END;
"""


@dataclass(frozen=True)
class Event:
    """One recommendation and its outcome."""

    agent: str  # who asked
    query: str  # `FeedbackStore.hashed` of what was asked
    shown: tuple[str, ...] = ()  # keys of the recommended tools, best first
    selected: str | None = None  # key of the tool that was used, None where none was
    success: bool | None = None  # whether it worked, None where unknown
    asked: float | None = None  # asked, finished: seconds since 1970, None where unknown
    finished: float | None = None
    latency_ms: float | None = None  # of the tool's execution
    rating: float | None = None  # 0 to `BEST_RATING`
    factors: tuple[tuple[float, ...], ...] = ()  # of every shown tool as they were, or nothing; weights learn from them
    experiment: str | None = None  # the comparison whose variant ranked the tools, None for none
    kind: str = ""  # what a person said of it, of `agent.conversation.WORKED`
    system: str = ""  # which system ranked
    words: str = ""  # the request itself, where the user lets it be kept
    detail: str = ""  # what the user wrote about it

    def __post_init__(self) -> None:
        numbers = (self.asked, self.finished, self.latency_ms, self.rating)
        if any(value is not None and not (math.isfinite(value) and value >= 0) for value in numbers):
            raise StudyError("a time, latency or rating is negative or not finite", fix="leave it out where unknown")
        if self.asked is not None and self.finished is not None and self.finished < self.asked:
            raise StudyError("an event ends before it begins", column="finished", fix="use one clock for both times")
        if len(self.detail) > LONGEST_DETAIL:
            raise StudyError(f"longer than {LONGEST_DETAIL} characters", column="detail", fix="say it shorter")
        if not all(isinstance(key, str) for key in self.shown):
            raise StudyError("a shown tool is no key", column="shown", fix="name tools as server/tool")
        whole = len(self.factors) in (0, len(self.shown)) and all(len(row) == len(FACTORS) for row in self.factors)
        if not whole or not all(0 <= value <= 1 for row in self.factors for value in row):
            raise StudyError("not five factors from 0 to 1 per shown tool", column="factors", fix="leave them out")


class FeedbackStore:
    """Events in an append-only SQLite file; several threads and processes may write.

    Every event is with the operating system before `append` returns, so a killed process loses at most the one that it
    was writing. A power cut may take the last ones, but does not harm the file.
    """

    def __init__(self, path: Path, *, busy: float = BUSY) -> None:
        self.path = path
        self._events: list[Event] = []
        self._last = 0  # the number of the last event that was read
        self._one_thread = threading.Lock()
        path.parent.mkdir(parents=True, exist_ok=True)
        with self._refusing():
            # Open as long as the store: closing the last connection copies the log into the file, which takes longer
            # than an event.
            self._opened = sqlite3.connect(path, timeout=busy, isolation_level=None, check_same_thread=False)
        weakref.finalize(self, self._opened.close)
        self._file = _identity(path)
        with self._connection() as connection:
            # Switching to the write-ahead log does not wait for other processes that do the same.
            for _ in range(100):
                try:
                    connection.execute("PRAGMA journal_mode = WAL")
                    break
                except sqlite3.OperationalError as error:
                    if error.sqlite_errorcode != sqlite3.SQLITE_BUSY:
                        raise
                    time.sleep(busy / 100)
            connection.execute("PRAGMA synchronous = NORMAL")  # SQLite's advice for this log
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            if version not in (0, FORMAT):
                reason = f"has format {version}, this version reads {FORMAT}"
                raise StudyError(reason, file=path, fix=AWAY)
            connection.executescript(f"BEGIN IMMEDIATE; {TABLE} PRAGMA user_version = {FORMAT}; COMMIT;")

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        if _identity(self.path) != self._file:
            raise StudyError("the feedback file was moved or replaced", file=self.path, fix="start the program again")
        with self._one_thread, self._refusing():
            yield self._opened

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            fix = f"check the disk and the rights; if it is damaged, {AWAY}"
            raise StudyError(f"the feedback file cannot be used: {error}", file=self.path, fix=fix) from error

    def hashed(self, text: str) -> str:
        """What the store keeps of a request, or of a name that must not be known."""
        salt = local_salt(self.path.with_name("salt"))
        return hmac.digest(salt, text.encode("utf-8", "replace"), "sha256").hex()

    def append(self, event: Event) -> int:
        """Add an event and return its number."""
        if event.rating is not None and event.rating > BEST_RATING:
            raise StudyError(f"the rating {event.rating} is above {BEST_RATING}", fix="rate on the stated scale")
        # Half of a surrogate pair, which a host may name itself, is no text that could be read again.
        line = json.dumps(asdict(event), ensure_ascii=False, allow_nan=False).encode("utf-8", "replace").decode()
        with self._connection() as connection:
            return int(connection.execute("INSERT INTO events (event) VALUES (?)", (line,)).lastrowid or 0)

    def events(self) -> list[Event]:
        """Every event in order; what was read before is not read again."""
        with self._connection() as connection:
            rows = connection.execute("SELECT id, event FROM events WHERE id > ? ORDER BY id", (self._last,)).fetchall()
            events = []
            for number, text in rows:
                try:
                    events.append(build_settings(Event, json.loads(text), self.path))
                except (ValueError, TypeError, RecursionError, StudyError) as error:
                    where = f"entry {number}"
                    raise StudyError(f"not an event ({error})", file=self.path, row=where, fix=AWAY) from error
            self._events += events
            self._last = rows[-1][0] if rows else self._last
            return [*self._events]


def _identity(path: Path) -> tuple[int, int] | None:
    """Which file a path names at present; None where there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def feedback_of(name: str) -> FeedbackStore:
    """The feedback about the servers of a data set, or about the tools of a catalogue."""
    return FeedbackStore(paths.root() / "data" / "feedback" / f"{name}.sqlite")


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


def statistics(events: Iterable[Event], keys: Sequence[str]) -> Statistics:
    """Sum up events; tools that the catalogue no longer has are left out. `keys`: from `tool_keys`."""
    rows = {key: row for row, key in enumerate(keys)}
    total, agents = empty(len(keys)), dict[str, tuple[Float64Array, Float64Array]]()
    for event in events:
        row = rows.get(event.selected) if event.selected is not None else None
        if row is None:
            continue
        if event.success is not None:
            counts = agents.setdefault(event.agent, (np.zeros(len(keys)), np.zeros(len(keys))))
            for calls, successes in ((total.calls, total.successes), counts):
                calls[row] += 1
                successes[row] += event.success
        if event.latency_ms is not None:
            total.latency_ms[row] += event.latency_ms
            total.timed[row] += 1
        if event.rating is not None:
            total.rating[row] += event.rating
            total.rated[row] += 1
        moment = event.finished if event.finished is not None else event.asked
        if moment is not None:
            total.last_used[row] = np.fmax(total.last_used[row], moment)
    return Statistics(**{**vars(total), "agents": agents})
