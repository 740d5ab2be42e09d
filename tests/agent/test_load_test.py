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
from tests.agent.conftest import serving

SETTINGS = read_conf(LoadTest)


@pytest.fixture
def drive(agent, service, feedback):
    """Drives the page over the toy catalogue."""

    def run(**settings):
        with serving(web.create_app(agent, feedback, service)) as address:
            return asyncio.run(bench.drive(address, replace(SETTINGS, **settings)))

    return run


def test_many_developers_get_their_own_answers_and_ask_anew_in_each_round(drive):
    rows = drive(users=8, seconds=2.0, think=0.02)
    assert len(rows) > 20
    assert set(rows["problem"]) == {""}
    assert (rows["seconds"] > 0).all()
    requests, round_ = int((rows["kind"] == "request").sum()), len(SETTINGS.messages)
    # Each developer may have been in the middle of a round when the time was up.
    assert len(rows) / round_ <= requests <= len(rows) / round_ + 8
    assert set(rows["kind"]) == {"request", "follow_up"}


def test_no_request_is_asked_twice(drive, agent, monkeypatch):
    asked = []
    recommend = agent.recommend
    monkeypatch.setattr(agent, "recommend", lambda wanted, **more: asked.append(wanted) or recommend(wanted, **more))
    rows = drive(users=2, seconds=1.5, think=0.0, messages=SETTINGS.messages[:1])
    intents = [wanted.intent for wanted in asked]
    assert len(rows) > 4
    assert len(set(intents)) == len(intents) >= len(rows) - 2
    assert set(rows["problem"]) == {""}


def test_a_mixed_answer_would_be_seen(drive, monkeypatch):
    one = {}
    monkeypatch.setattr(web.Sessions, "find", lambda self, name: one.setdefault("conversation", self.kept[name][0]))
    assert "mixed" in set(drive(users=4, seconds=1.5, think=0.02)["problem"])


def test_the_report_counts_every_kind_of_problem_and_tells_new_requests_from_what_follows_them():
    problems = ["", "mixed", "HTTP 500", "HTTP 500", "ReadTimeout", *[""] * 5]
    rows = pd.DataFrame({"seconds": [0.1] * 10, "problem": problems, "kind": "request"})
    (found,) = bench.summary(rows, replace(SETTINGS, users=3), "field_dense").to_dict("records")
    assert (found["retriever"], found["users"], found["messages"]) == ("field_dense", 3, 10)
    assert (found["errors"], found["mixed"], found["kinds"]) == (4, 1, "HTTP 500: 2; mixed: 1; ReadTimeout: 1")
    assert found["p95_ms"] == pytest.approx(100)
    kinds = ["request"] * 2 + ["follow_up"] * 3
    rows = pd.DataFrame({"seconds": [0.1, 0.3, 0.01, 0.02, 0.03], "problem": "", "kind": kinds})
    (found,) = bench.summary(rows, SETTINGS, "field_dense").to_dict("records")
    assert (found["requests"], found["follow_ups"]) == (2, 3)
    assert (found["request_p50_ms"], found["request_p95_ms"]) == pytest.approx((200, 290))
    assert (found["follow_up_p50_ms"], found["follow_up_p95_ms"]) == pytest.approx((20, 29))
    (none,) = bench.summary(rows[rows["kind"] == "request"], SETTINGS, "field_dense").to_dict("records")
    assert none["follow_ups"] == 0
    assert pd.isna(none["follow_up_p50_ms"])


def test_a_program_of_its_own_is_measured_and_the_report_names_what_was_measured(study, monkeypatch):
    settings = replace(SETTINGS, users=2, seconds=1.0, think=0.05, start_seconds=90.0)
    monkeypatch.setattr(bench, "read_conf", lambda kind: replace(read_conf(kind), retriever="tfidf"))
    table = pd.read_csv(bench.measure_load("synthetic", None, settings))
    assert (table["retriever"].item(), table["errors"].item()) == ("tfidf", 0)
    assert table["messages"].item() > 0
    facts = json.loads((study / "results" / "synthetic" / "records" / "agent_load.json").read_text())
    assert (facts["dataset"], facts["retriever"], facts["problems"]) == ("synthetic", "tfidf", {})


def test_a_page_that_does_not_start_is_a_clear_error(monkeypatch):
    monkeypatch.setattr(bench, "SERVE", "raise SystemExit(1)")
    with pytest.raises(StudyError, match="does not start"), bench.running_page("synthetic", "tfidf", 60.0):
        pass
