"""One engine: every interface names the same servers for the same request over the same catalogue."""

import json
from dataclasses import replace
from functools import partial

import pytest

from study.advisor.agent.conversation import Agent
from study.advisor.engine.answer import Options
from study.advisor.engine.answer import ask as answer_of
from study.advisor.engine.catalogue import load
from study.advisor.engine.limits import Limits
from tests.advisor.agent.conftest import Talk, toy, visited
from tests.advisor.agent.test_mcp import RECOMMEND, called, read
from tests.advisor.engine.conftest import project  # noqa: F401
from tests.advisor.engine.test_catalogue import TEXTS, encoded, take  # noqa: F401

# One of each kind of limit that leaves servers out.
LIMITS_ALONE = ("Go", "MIT licence", "official only", "at least 10 stars", "offline")
REQUESTS = (
    "read a PDF and extract all tables",
    "send electronic mail, MIT licence",
    "find places on a map, in Python",
    "a popular server for mail, official only",
    "zzz qqq",
    *LIMITS_ALONE,
)


def by_command(call, *words):
    """The ids that a command prints as JSON."""
    code, out, err = call(*words, "--json")
    assert code == 0, err
    return [row["server_id"] for row in json.loads(out)["recommendations"]]


def same(call, feedback, agent, *words, requests=REQUESTS):
    """The ids of every interface agree; returns them."""
    answers = [by_command(call, "recommend", *words, request) for request in requests]
    assert [by_command(call, "agent", "ask", *words, request) for request in requests] == answers
    with visited(agent, feedback) as client:
        assert [Talk(client).ids("messages", text=request) for request in requests] == answers
    replies = called(agent, *((RECOMMEND, {"task": request}) for request in requests))
    assert [[row["server_id"] for row in read(reply)["servers"]] for reply in replies] == answers
    assert any(answers)
    return answers


def test_every_interface_answers_alike_from_a_data_set(project, call, feedback):  # noqa: F811
    same(call, feedback, Agent(load(dataset="synthetic")), "--dataset", "synthetic")


@pytest.mark.usefixtures("private_cache")
def test_every_interface_answers_alike_from_the_open_catalogue(conf_root, encoded, call, feedback):  # noqa: F811
    more = {"notes": "Keeps notes in a folder", "music": "Plays music from a list", "cards": "Deals playing cards"}
    take(TEXTS | more)
    answers = same(call, feedback, Agent(load()))
    assert answers[0][0] == "o/pdf"
    both, some = ("--catalog", "mine", "--catalog", "open"), REQUESTS[:3]
    assert same(call, feedback, Agent(load(["mine", "open"])), *both, requests=some) == answers[:3]


WARNED = ("only the first 256 tokens are read", "another system answers")


def test_every_interface_says_what_an_answer_is_not(call, feedback, monkeypatch):
    catalogue = replace(toy(), instead=WARNED[1])
    monkeypatch.setattr(catalogue.model, "warnings", lambda *_, **attributes: [WARNED[0]])
    monkeypatch.setattr("study.advisor.engine.catalogue.load", lambda *_: catalogue)
    agent, request, said = Agent(catalogue), "captions for videos", {}
    for words in (("recommend",), ("agent", "ask")):
        _, said[words], err = call(*words, request, "--json")
        assert all(text in err for text in WARNED), words
        assert all(text in call(*words, request)[2] for text in WARNED), words
    with visited(agent, feedback) as client:
        said["page"] = Talk(client).post("messages", text=request).text
    turn = agent.answer(request)
    said |= {"short": json.dumps(agent.short(turn)), "full": json.dumps(agent.data(turn))}
    assert [who for who, text in said.items() if not all(warned in text for warned in WARNED)] == []


def test_the_system_that_answers_in_anothers_place_is_said(monkeypatch):
    """Where nobody asked for it; a system that was asked for is meant to answer."""
    monkeypatch.setattr("study.advisor.saved.saved.exists", lambda _, system: system == "t2mrec")
    monkeypatch.setattr("study.advisor.saved.saved.load_saved_model", lambda *_: toy().model)
    monkeypatch.setattr("study.advisor.saved.ahead.read_ahead", lambda *_: None)
    loaded = {system: load(dataset="synthetic", system=system) for system in (None, "t2mrec")}
    assert {system: one.system for system, one in loaded.items()} == {None: "t2mrec", "t2mrec": "t2mrec"}
    warnings = {system: Agent(one).answer("captions").answer.warnings for system, one in loaded.items()}
    assert ("field_dense" in " ".join(warnings[None]), warnings["t2mrec"]) == (True, ())


@pytest.mark.parametrize("request_", LIMITS_ALONE)
def test_nothing_but_limits_is_a_task_and_limits_by_hand_hold(agent, request_):
    def ids(**more):
        return [item.server.server_id for item in agent.answer(request_, top=7, **more).answer.items]

    assert ids() == [item.server.server_id for item in answer_of(agent.catalogue, request_, Options(7)).items]
    assert len(ids()) == 7
    assert agent.answer(request_).question[0] == "languages"  # which the request leaves open
    assert {*ids(stated=Limits(languages=["Go"]))} == {*ids(limits=Limits(languages=["Go"]))} == {13, 17}


@pytest.mark.parametrize(("limit", "left_out"), [(", in Rust", 7), (", in Go", 5), ("", 0)])
def test_every_interface_says_how_many_servers_the_limits_leave_out(agent, limit, left_out):
    turn = agent.answer(f"captions for videos{limit}")
    said = [data.get("left_out", 0) for data in (agent.short(turn), agent.data(turn))]
    assert said == [turn.answer.left_out] * 2 == [left_out] * 2


@pytest.mark.parametrize("stated", [None, Limits(languages=["Python"]), Limits(stars=5), Limits(official=True)])
@pytest.mark.parametrize("request_", ["captions for videos", "captions for videos, in Go", "query a postgres database"])
def test_an_explanation_is_of_the_place_in_the_answer(hostile, request_, stated):
    turn = hostile.answer(request_, stated=stated, top=20)
    for item in turn.answer.items:
        said = hostile.explain(request_, item.server.server_id, stated)
        assert (said["rank"], said["score"]) == (item.server.rank, item.server.score)
        assert said["parts"] == dict(item.server.parts)
    # Of another server neither place nor score is known.
    others = {*hostile.rows} - {item.server.server_id for item in turn.answer.items}
    assert others
    for server in others:
        assert not {"rank", "score", "parts"} & hostile.explain(request_, server, stated).keys()


def test_what_is_known_of_a_server_stands_beside_it_and_nothing_else(agent):
    item, note = agent.find(17), "did not start here (2026-01-02)"
    assert agent.brief(item)["stars"] == 0
    assert {"rank", "official", "warning", "checked"} & agent.brief(item).keys() == set()
    other = agent.brief(replace(item, facts=replace(item.facts, stars=None, checked=note)))
    assert ("stars" in other, other["checked"]) == (False, note)


def test_outcomes_are_noted_in_the_terminal(call, feedback, monkeypatch, agent):
    monkeypatch.setattr("study.advisor.engine.intent.feedback.feedback_of", lambda name: feedback)
    monkeypatch.setattr("study.cli.agent._agent", lambda *given: agent)
    request = "captions for videos, in Go"
    note = partial(call, "agent", "ask", request, "--detail", "on my machine", "--outcome")
    for outcome, *more in (("accepted=17",), ("worked=17", "--keep-words"), ("rejected=13",)):
        assert note(outcome, *more)[0] == 0
    noted = [(event.kind, event.shown.index(event.selected), event.words) for event in feedback.events()]
    assert noted == [("accepted", 0, ""), ("worked", 0, request), ("rejected", 1, "")]
    assert [event.selected for event in feedback.events()] == ["17", "17", "13"]
    for outcome in ("loved=17", "worked=11", "worked=999", "worked", "17"):
        code, _, err = note(outcome)
        assert (code, "fix:" in err) == (2, True)
    assert len(feedback.events()) == 3
