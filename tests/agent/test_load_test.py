"""The measurement of many developers at once, on data with a known outcome."""

import asyncio
import json
from dataclasses import replace

import pandas as pd
import pytest

from study.agent import load_test as bench
from study.agent import web
from study.agent.settings import LoadTest, read_conf
from study.errors import StudyError


def test_many_developers_get_their_own_answers(agent, service, feedback, serve):
    settings = replace(read_conf(LoadTest), users=8, seconds=2.0, think=0.02)
    with serve(web.create_app(agent, feedback, service)) as address:
        rows = asyncio.run(bench.drive(address, settings))
    assert len(rows) > 20
    assert set(rows["problem"]) == {""}
    assert (rows["seconds"] > 0).all()


def test_no_request_is_asked_twice(agent, service, feedback, serve, monkeypatch):
    asked = []
    recommend = agent.recommend
    monkeypatch.setattr(agent, "recommend", lambda wanted, **more: asked.append(wanted) or recommend(wanted, **more))
    settings = replace(read_conf(LoadTest), users=2, seconds=1.5, think=0.0, messages=read_conf(LoadTest).messages[:1])
    with serve(web.create_app(agent, feedback, service)) as address:
        rows = asyncio.run(bench.drive(address, settings))
    intents = [wanted.intent for wanted in asked]
    assert len(rows) > 4
    assert len(set(intents)) == len(intents) >= len(rows) - 2
    assert set(rows["problem"]) == {""}


def test_the_report_counts_every_kind_of_problem():
    rows = pd.DataFrame(
        {
            "seconds": [0.1] * 10,
            "problem": ["", "mixed", "HTTP 500", "HTTP 500", "ReadTimeout", *[""] * 5],
            "kind": "request",
        }
    )
    settings = replace(read_conf(LoadTest), users=3)
    (found,) = bench.summary(rows, settings, "best").to_dict("records")
    assert (found["retriever"], found["users"], found["messages"]) == ("best", 3, 10)
    assert (found["errors"], found["mixed"], found["kinds"]) == (4, 1, "HTTP 500: 2; mixed: 1; ReadTimeout: 1")
    assert found["p95_ms"] == pytest.approx(100)


def test_the_report_names_what_was_measured(study, monkeypatch):
    settings = replace(read_conf(LoadTest), users=1, seconds=0.5, think=0.05)
    monkeypatch.setattr(bench, "read_conf", lambda kind: replace(read_conf(kind), retriever="tfidf"))
    target = bench.measure_load("synthetic", None, settings)
    assert pd.read_csv(target)["retriever"].item() == "tfidf"
    facts = json.loads((study / "results" / "synthetic" / "records" / "agent_load.json").read_text())
    assert (facts["dataset"], facts["retriever"], facts["problems"]) == ("synthetic", "tfidf", {})


def test_a_mixed_answer_would_be_seen(agent, service, feedback, serve, monkeypatch):
    one = {}

    def shared(self, name):
        return one.setdefault("conversation", self.kept[name][0])

    monkeypatch.setattr(web.Sessions, "find", shared)
    settings = replace(read_conf(LoadTest), users=4, seconds=1.5, think=0.02)
    with serve(web.create_app(agent, feedback, service)) as address:
        rows = asyncio.run(bench.drive(address, settings))
    assert "mixed" in set(rows["problem"])


def test_the_page_as_a_program_of_its_own(study):
    settings = replace(read_conf(LoadTest), users=2, seconds=1.0, think=0.05, start_seconds=90.0)
    with bench.running_page("synthetic", "tfidf", settings.start_seconds) as address:
        rows = asyncio.run(bench.drive(address, settings))
    assert set(rows["problem"]) == {""}


def test_a_page_that_does_not_start_is_a_clear_error(monkeypatch):
    monkeypatch.setattr(bench, "SERVE", "raise SystemExit(1)")
    with pytest.raises(StudyError, match="does not start"), bench.running_page("synthetic", "tfidf", 60.0):
        pass


def test_new_requests_are_reported_apart_from_what_follows_them():
    rows = pd.DataFrame(
        {"seconds": [0.1, 0.3, 0.01, 0.02, 0.03], "problem": "", "kind": ["request"] * 2 + ["follow_up"] * 3}
    )
    (found,) = bench.summary(rows, read_conf(LoadTest), "best").to_dict("records")
    assert (found["requests"], found["follow_ups"]) == (2, 3)
    assert (found["request_p50_ms"], found["request_p95_ms"]) == pytest.approx((200, 290))
    assert (found["follow_up_p50_ms"], found["follow_up_p95_ms"]) == pytest.approx((20, 29))
    (none,) = bench.summary(rows[rows["kind"] == "request"], read_conf(LoadTest), "best").to_dict("records")
    assert none["follow_ups"] == 0
    assert pd.isna(none["follow_up_p50_ms"])


def test_the_first_message_of_each_round_is_the_new_request(agent, service, feedback, serve):
    settings = replace(read_conf(LoadTest), users=2, seconds=1.5, think=0.01)
    with serve(web.create_app(agent, feedback, service)) as address:
        rows = asyncio.run(bench.drive(address, settings))
    round_ = len(settings.messages)
    requests = int((rows["kind"] == "request").sum())
    # Two developers, each perhaps in the middle of a round when the time was up.
    assert len(rows) / round_ <= requests <= len(rows) / round_ + settings.users
    assert set(rows["kind"]) == {"request", "follow_up"}
