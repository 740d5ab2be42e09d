"""Feedback: durable, append-only, concurrent, without the words of a request; a kill loses at most one event."""

import math
import os
import signal
import sqlite3
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace

import pytest

from study.advisor.engine.intent.feedback import Event, FeedbackStore, feedback_of
from study.base.errors import StudyError

WRITER = """
import sys
from pathlib import Path
from study.advisor.engine.intent.feedback import Event, FeedbackStore
store = FeedbackStore(Path(sys.argv[1]), busy=30.0)
for number in range(int(sys.argv[2])):
    print(store.append(Event(sys.argv[3], "x" * 500)), flush=True)
"""
EVENT = Event("a", "h", ("s/t",), "s/t", True, 1.0, 2.5, 30.0, 0.0)


def writer(path, *told):
    words = [sys.executable, "-c", WRITER, str(path), *map(str, told)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True)


@pytest.fixture
def store(tmp_path):
    return FeedbackStore(tmp_path / "deep" / "f.sqlite")


def test_events_are_kept_in_order_and_read_once(store, monkeypatch):
    read, of = [], FeedbackStore.event
    monkeypatch.setattr(FeedbackStore, "event", lambda self, value, where: read.append(where) or of(self, value, where))
    assert store.events() == []
    hostile = "'); DROP TABLE events; -- \x00 \u202e "
    for number, (agent, kept) in enumerate((("a", "a"), ("b", "b"), (f"{hostile}\ud800", f"{hostile}?"))):
        assert store.append(replace(EVENT, agent=agent)) == number + 1
        assert store.events()[-1].agent == kept
    assert store.events()[0] == EVENT
    assert read == ["entry 1", "entry 2", "entry 3"]
    assert FeedbackStore(store.path).events() == store.events()
    # They can be neither changed nor removed.
    with closing(sqlite3.connect(store.path)) as connection:
        for statement in ("UPDATE events SET event = ''", "DELETE FROM events"):
            with pytest.raises(sqlite3.IntegrityError):
                connection.execute(statement)


@pytest.mark.parametrize(
    "text",
    [
        *('{"agent": 1, "query": "h"}', '{"rating": "ci_high"}', '{"agent": "a"}', "[]", "nonsense", ""),
        *('{"agent": "a", "query": "h"' + more for more in (', "more": 1}', ', "rating": -1}', ', "shown": [1]}')),
    ],
)
def test_a_bad_event_is_named(store, text):
    store.append(EVENT)
    with closing(sqlite3.connect(store.path)) as connection:
        connection.execute("INSERT INTO events (event) VALUES (?)", (text,))
        connection.commit()
    with pytest.raises(StudyError, match="entry 2"):
        store.events()


@pytest.mark.parametrize(
    "wrong", [{"latency_ms": -1.0}, {"asked": 5.0, "finished": 4.0}, {"rating": math.nan}, {"detail": "x" * 2_001}]
)
def test_an_unsound_event_is_refused(store, wrong):
    with pytest.raises(StudyError):
        replace(EVENT, **wrong)
    with pytest.raises(StudyError, match="above 5"):
        store.append(replace(EVENT, rating=6.0))


def test_a_request_is_hashed_with_the_salt_of_this_machine(tmp_path, store):
    assert store.hashed("read a file") == FeedbackStore(store.path).hashed("read a file")
    assert store.hashed("read a file") != FeedbackStore(tmp_path / "other" / "f.sqlite").hashed("read a file")
    salt = store.path.with_name("salt")
    assert (salt.stat().st_mode & 0o777, len(salt.read_bytes())) == (0o600, 32)
    salt.write_bytes(b"x")
    with pytest.raises(StudyError, match="salt"):
        store.hashed("x")


def test_many_threads_and_processes_lose_nothing(tmp_path):
    path = tmp_path / "many.sqlite"
    others = [writer(path, 25, name) for name in ("p", "q")]
    store = FeedbackStore(path, busy=30.0)
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda _: [store.append(EVENT) for _ in range(25)], range(4)))
    for process in others:
        assert process.communicate(timeout=60)[0].count("\n") == 25
        assert process.returncode == 0
    assert len(store.events()) == 150


@pytest.mark.parametrize("delay", [0.0, 0.05])
def test_a_kill_loses_at_most_the_event_in_flight(tmp_path, delay):
    path = tmp_path / "killed.sqlite"
    process = writer(path, 100_000, "k")
    for _ in range(20):
        process.stdout.readline()
    time.sleep(delay)
    os.kill(process.pid, signal.SIGKILL)
    rest, _ = process.communicate(timeout=30)
    said = 20 + rest.count("\n")
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
    events = FeedbackStore(path).events()
    # Everything that was said to be kept is there, and at most one event that was not yet said.
    assert said <= len(events) <= said + 1
    assert FeedbackStore(path).append(EVENT) == len(events) + 1


def test_a_damaged_file_and_another_format_are_clear_errors_and_stay(tmp_path):
    path = tmp_path / "bad.sqlite"
    path.write_bytes(b"this is no database, " * 100)
    with pytest.raises(StudyError, match="cannot be used"):
        FeedbackStore(path, busy=0.1)
    assert path.read_bytes().startswith(b"this is no database")
    path = tmp_path / "new.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 9")
    with pytest.raises(StudyError, match="format 9"):
        FeedbackStore(path, busy=0.1)


def test_the_file_of_a_data_set_lies_in_the_project(new_root):
    assert feedback_of("toy").path == new_root / "data" / "feedback" / "toy.sqlite"
