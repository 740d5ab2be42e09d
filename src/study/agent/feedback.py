"""What developers did with recommendations: a local, append-only SQLite file, and training pairs made from it.

Every event is on the disk before `append` returns, so a killed process loses at most the event it was writing. Any
number of processes may write at the same time.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path

import pandas as pd

from study import paths
from study.agent.answer import Answer
from study.agent.settings import Service
from study.errors import StudyError, require_one_of

KINDS = ("accepted", "rejected", "worked", "failed")
GOOD = frozenset({"accepted", "worked"})
LONGEST_DETAIL = 2_000
FORMAT = 1
TABLE = f"""
CREATE TABLE IF NOT EXISTS events (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    time TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    conversation TEXT NOT NULL,
    kind TEXT NOT NULL CHECK (kind IN {KINDS}),
    server_id INTEGER NOT NULL,
    rank INTEGER NOT NULL,
    system TEXT NOT NULL,
    specification TEXT NOT NULL,
    detail TEXT NOT NULL
);
CREATE TRIGGER IF NOT EXISTS events_keep BEFORE UPDATE ON events
BEGIN SELECT RAISE(ABORT, 'events are never changed'); END;
CREATE TRIGGER IF NOT EXISTS events_stay BEFORE DELETE ON events
BEGIN SELECT RAISE(ABORT, 'events are never removed'); END;
"""


class Feedback:
    """A feedback file, made if it is not there; a write waits `busy_seconds` for another one."""

    def __init__(self, path: Path, busy_seconds: float) -> None:
        self.path, self.busy_seconds = path, busy_seconds
        path.parent.mkdir(parents=True, exist_ok=True)
        with self._connection() as connection:
            # Switching to the write-ahead log does not wait for other processes that do the same.
            for _ in range(100):
                try:
                    connection.execute("PRAGMA journal_mode = WAL")
                    break
                except sqlite3.OperationalError as error:
                    if error.sqlite_errorcode != sqlite3.SQLITE_BUSY:
                        raise
                    time.sleep(busy_seconds / 100)
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            if version not in (0, FORMAT):
                reason = f"has format {version}, this version reads {FORMAT}"
                raise StudyError(reason, file=path, fix="move the file away")
            connection.executescript(f"BEGIN IMMEDIATE; {TABLE} PRAGMA user_version = {FORMAT}; COMMIT;")

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        try:
            with closing(sqlite3.connect(self.path, timeout=self.busy_seconds, isolation_level=None)) as connection:
                connection.execute("PRAGMA synchronous = FULL")
                yield connection
        except sqlite3.Error as error:
            fix = "check the disk and the rights; move a damaged file away"
            raise StudyError(f"the feedback file cannot be used: {error}", file=self.path, fix=fix) from error

    def append(self, answer: Answer, kind: str, server_id: int, *, conversation: str, detail: str = "") -> int:
        """Record one event of one of the `KINDS` about a server of an answer and return the event's number.

        Only a digest of the name `conversation` is kept, since the name opens the conversation.
        StudyError: an unknown kind, a long detail, or a file that cannot be written.
        """
        require_one_of(kind, "feedback", KINDS, column="kind")
        if len(detail) > LONGEST_DETAIL:
            raise StudyError(f"longer than {LONGEST_DETAIL} characters", column="detail", fix="say it shorter")
        event = {
            "conversation": hashlib.sha256(conversation.encode("utf-8", "replace")).hexdigest()[:16],
            "kind": kind,
            "server_id": server_id,
            "rank": answer.ids.index(server_id) + 1,
            "system": answer.system,
            "specification": json.dumps(asdict(answer.specification), sort_keys=True),
            "detail": detail.encode("utf-8", "replace").decode(),
        }
        with self._connection() as connection:
            columns, values = ", ".join(event), ", ".join(f":{name}" for name in event)
            done = connection.execute(f"INSERT INTO events ({columns}) VALUES ({values})", event)  # noqa: S608
            return int(done.lastrowid or 0)

    def events(self) -> pd.DataFrame:
        """All events in the order they were recorded, one row each, columns as in the file."""
        with self._connection() as connection:
            cursor = connection.execute("SELECT * FROM events ORDER BY id")
            return pd.DataFrame(cursor.fetchall(), columns=[part[0] for part in cursor.description])


def training_pairs(events: pd.DataFrame) -> pd.DataFrame:
    """Every accepted server of a request paired with every rejected one of the same request and conversation; -1 where
    none was rejected. The last event about a server counts."""
    columns = ["conversation", "intent", "language", "domain", "positive_id", "negative_id"]
    rows = []
    last = events.drop_duplicates(["conversation", "specification", "server_id"], keep="last")
    for (conversation, text), group in last.groupby(["conversation", "specification"], sort=False):
        wanted = json.loads(str(text))
        request = (conversation, wanted["intent"], ", ".join(wanted["languages"]), wanted["domain"])
        good = group["kind"].isin(GOOD)
        bad = list(group.loc[~good, "server_id"]) or [-1]
        rows += [(*request, int(yes), int(no)) for yes in group.loc[good, "server_id"] for no in bad]
    return pd.DataFrame(rows, columns=columns)


def feedback_of(dataset: str, service: Service) -> Feedback:
    """The feedback file of a data set."""
    return Feedback(paths.root() / service.feedback / f"{dataset}.sqlite", service.busy_seconds)
