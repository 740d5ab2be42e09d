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

from study.advisor.engine.intent import feedback
from study.advisor.engine.intent.feedback import Event, FeedbackStore, feedback_of
from study.base.errors import StudyError

WRITER = """
import sys
from pathlib import Path
from study.advisor.engine.intent.feedback import Event, FeedbackStore
store = FeedbackStore(Path(sys.argv[1]), busy=30.0)
for number in range(int(sys.argv[2])):
    print(store.append(Event("p", "x" * 500)), flush=True)
"""
EVENT = Event("a", "h", ("s/t",), "s/t", True, 1.0, 2.5, 30.0, 0.0)


def writer(path, number):
    return subprocess.Popen([sys.executable, "-c", WRITER, str(path), str(number)], stdout=subprocess.PIPE, text=True)


@pytest.fixture
def store(tmp_path):
    return FeedbackStore(tmp_path / "deep" / "f.sqlite")


def test_events_are_kept_in_order_read_once_and_never_changed(store, new_root, monkeypatch):
    assert feedback_of("toy").path == new_root / "data" / "feedback" / "toy.sqlite"
    read, build = [], feedback.build_settings
    monkeypatch.setattr(
        feedback, "build_settings", lambda kind, value, file: read.append(file) or build(kind, value, file)
    )
    assert store.events() == []
    hostile = "'); DROP TABLE events; -- \x00 \u202e "
    for number, (agent, stored) in enumerate((("a", "a"), ("b", "b"), (f"{hostile}\ud800", f"{hostile}?"))):
        assert store.append(replace(EVENT, agent=agent)) == number + 1
        assert store.events()[-1].agent == stored
    assert store.events()[0] == EVENT
    assert read == 3 * [store.path]  # each entry once
    assert FeedbackStore(store.path).events() == store.events()
    with closing(sqlite3.connect(store.path)) as connection:
        for statement in ("UPDATE events SET event = ''", "DELETE FROM events"):
            with pytest.raises(sqlite3.IntegrityError):
                connection.execute(statement)


BAD = ['{"agent": 1, "query": "h"}', '{"rating": "ci_high"}', '{"agent": "a"}', "[]", "nonsense", ""]
BAD += ['{"agent": "a", "query": "h"' + more for more in (', "more": 1}', ', "rating": -1}', ', "shown": [1]}')]


@pytest.mark.parametrize("text", BAD)
def test_a_bad_event_is_named(store, text):
    store.append(EVENT)
    with closing(sqlite3.connect(store.path)) as connection:
        connection.execute("INSERT INTO events (event) VALUES (?)", (text,))
        connection.commit()
    with pytest.raises(StudyError, match="entry 2"):
        store.events()


def test_an_unsound_event_is_refused(store):
    for wrong in ({"latency_ms": -1.0}, {"asked": 5.0, "finished": 4.0}, {"rating": math.nan}, {"detail": "x" * 2_001}):
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


def test_many_threads_and_processes_lose_nothing_and_read_each_event_once(tmp_path, monkeypatch):
    path = tmp_path / "many.sqlite"
    other, store = writer(path, 15), FeedbackStore(path, busy=30.0)
    with ThreadPoolExecutor(3) as threads:
        list(threads.map(lambda _: [store.append(EVENT) for _ in range(15)], range(3)))
    assert (other.communicate(timeout=60)[0].count("\n"), other.returncode) == (15, 0)
    build = feedback.build_settings
    monkeypatch.setattr(feedback, "build_settings", lambda *of: time.sleep(0.001) or build(*of))
    with ThreadPoolExecutor(3) as threads:
        assert list(threads.map(lambda _: len(store.events()), range(3))) == [60] * 3


@pytest.mark.slow
def test_a_kill_loses_at_most_the_event_in_flight(tmp_path):
    path = tmp_path / "killed.sqlite"
    process = writer(path, 100_000)
    for _ in range(20):
        process.stdout.readline()
    os.kill(process.pid, signal.SIGKILL)
    confirmed = 20 + process.stdout.read().count("\n")  # also what the pipe's buffer holds
    process.wait(30)
    process.stdout.close()
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
    events = FeedbackStore(path).events()
    # Everything that was said to be kept is there, and at most one event that was not yet said.
    assert confirmed <= len(events) <= confirmed + 1
    assert FeedbackStore(path).append(EVENT) == len(events) + 1


def test_a_file_that_is_moved_away_takes_no_more_events(store):
    store.append(EVENT)
    store.path.rename(store.path.with_name("moved"))
    for use in (store.events, lambda: store.append(EVENT), lambda: FeedbackStore(store.path) and store.events()):
        with pytest.raises(StudyError, match="moved or replaced"):
            use()


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
