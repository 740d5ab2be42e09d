"""Feedback: durable, append-only, concurrent, and a kill loses at most the event in flight."""

import os
import signal
import sqlite3
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from types import SimpleNamespace

import pandas as pd
import pytest
from typer.testing import CliRunner

from study.agent import feedback as module
from study.agent.feedback import Feedback, training_pairs
from study.agent.specification import Specification
from study.cli import agent as cli
from study.errors import StudyError

PAIR = ["intent", "positive_id", "negative_id"]
UNUSABLE = [("loved", ""), ("accepted", "x" * 2_001), ("'); DROP TABLE events; --", "")]
WRITER = """
import sys
from pathlib import Path
from types import SimpleNamespace
from study.agent.feedback import Feedback
from study.agent.specification import Specification
store = Feedback(Path(sys.argv[1]), 30.0)
for number in range(int(sys.argv[2])):
    answer = SimpleNamespace(ids=[number], system="s", specification=Specification("x" * 500))
    print(store.append(answer, "accepted", number, conversation=sys.argv[3]), flush=True)
"""


def answer(server, intent="captions", languages=("Go",)):
    """What feedback needs of an answer: one server, named for a request."""
    return SimpleNamespace(ids=[server], system="tfidf", specification=Specification(intent, languages=languages))


def add(store, kind, server, *, conversation="a", detail="", **request):
    return store.append(answer(server, **request), kind, server, conversation=conversation, detail=detail)


def writer(path, *told):
    words = [sys.executable, "-c", WRITER, str(path), *map(str, told)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True)


def test_events_are_kept_in_order_with_what_was_asked(feedback):
    assert [add(feedback, "accepted", 11), add(feedback, "failed", 12)] == [1, 2]
    events = feedback.events()
    assert list(events["kind"]) == ["accepted", "failed"]
    assert '"languages": ["Go"]' in events.loc[0, "specification"]
    assert events.loc[0, "conversation"] != "a"
    assert pd.to_datetime(events["time"]).is_monotonic_increasing
    assert Feedback(feedback.path, 1.0).events().equals(events)
    # They can be neither changed nor removed.
    with closing(sqlite3.connect(feedback.path)) as connection:
        for statement in ("UPDATE events SET kind = 'failed'", "DELETE FROM events"):
            with pytest.raises(sqlite3.IntegrityError):
                connection.execute(statement)
    assert feedback.events().equals(events)


@pytest.mark.parametrize(("kind", "detail"), UNUSABLE)
def test_unusable_events_are_refused(feedback, kind, detail):
    with pytest.raises(StudyError):
        add(feedback, kind, 1, detail=detail)
    assert feedback.events().empty
    # A hostile text is only a text.
    intent = "'); DROP TABLE events; -- \x00 ‮ \ud800"
    add(feedback, "accepted", 1, intent=intent, conversation="\ud800", detail="\ud800'")
    assert len(feedback.events()) == 1


def test_many_threads_and_processes_lose_nothing(tmp_path):
    path = tmp_path / "many.sqlite"
    others = [writer(path, 25, name) for name in ("p", "q")]
    store = Feedback(path, 30.0)
    with ThreadPoolExecutor(4) as threads:
        threads.map(lambda _: [add(store, "rejected", n) for n in range(25)], range(4))
    for process in others:
        assert process.communicate(timeout=60)[0].count("\n") == 25
        assert process.returncode == 0
    events = store.events()
    assert len(events) == 150
    assert list(events["id"]) == list(range(1, 151))


@pytest.mark.parametrize("delay", [0.0, 0.01, 0.05])
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
    events = Feedback(path, 5.0).events()
    # Everything that was said to be kept is there, and at most one event that was not yet said.
    assert said <= len(events) <= said + 1
    assert add(Feedback(path, 5.0), "accepted", 1) == len(events) + 1


def test_a_damaged_file_and_a_newer_format_are_clear_errors_and_stay(tmp_path):
    path = tmp_path / "bad.sqlite"
    path.write_bytes(b"this is no database, " * 100)
    with pytest.raises(StudyError, match="cannot be used"):
        Feedback(path, 0.1)
    assert path.read_bytes().startswith(b"this is no database")
    path = tmp_path / "new.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 9")
    with pytest.raises(StudyError, match="format 9"):
        Feedback(path, 0.1)


def test_training_pairs_by_hand(feedback):
    for kind, server in [("accepted", 11), ("rejected", 12), ("rejected", 13), ("accepted", 13), ("rejected", 14)]:
        add(feedback, kind, server)
    add(feedback, "worked", 16, intent="charts", languages=())
    add(feedback, "rejected", 17, conversation="b")
    pairs = training_pairs(feedback.events())
    expected = [["captions", good, bad] for good in (11, 13) for bad in (12, 14)]
    assert pairs[PAIR].to_numpy().tolist() == [*expected, ["charts", 16, -1]]
    assert set(pairs["language"]) == {"Go", ""}
    assert training_pairs(feedback.events().iloc[:0]).empty


def test_export(tmp_path, feedback, monkeypatch):
    add(feedback, "accepted", 11)
    monkeypatch.setattr(module, "feedback_of", lambda dataset, service: feedback)

    def export(target):
        CliRunner().invoke(cli.app, ["export", str(target), "--dataset", "synthetic"], catch_exceptions=False)
        return target

    assert list(pd.read_parquet(export(tmp_path / "pairs.parquet"))["positive_id"]) == [11]
    assert list(pd.read_json(export(tmp_path / "pairs.jsonl"), lines=True)["positive_id"]) == [11]
    with pytest.raises(StudyError, match="unknown kind of file"):
        export(tmp_path / "pairs.csv")


def test_the_file_of_a_data_set_lies_in_the_project(new_root, service):
    assert module.feedback_of("toy", service).path == new_root / "data" / "feedback" / "toy.sqlite"


def test_outcomes_are_noted_in_the_terminal(feedback, monkeypatch, agent):
    monkeypatch.setattr(module, "feedback_of", lambda dataset, service: feedback)
    monkeypatch.setattr(cli, "_agent", lambda dataset, retriever: agent)
    run = CliRunner().invoke
    request = "captions for videos in Go"
    for kind, server in (("accepted", 17), ("worked", 17), ("rejected", 13)):
        done = run(cli.app, ["ask", request, "--outcome", f"{kind}={server}", "--detail", "on my machine"])
        assert done.exit_code == 0, done.output
    events = feedback.events()
    rows = [["accepted", 17, 1], ["worked", 17, 1], ["rejected", 13, 2]]
    assert events[["kind", "server_id", "rank"]].to_numpy().tolist() == rows
    assert set(events["detail"]) == {"on my machine"}
    assert training_pairs(events)[PAIR].to_numpy().tolist() == [[request, 17, 13]]
    for outcome in ("loved=17", "worked=11", "worked=999", "worked", "17"):
        with pytest.raises(StudyError):
            run(cli.app, ["ask", request, "--outcome", outcome], catch_exceptions=False)
    assert len(feedback.events()) == 3
