"""One engine: every interface names the same servers for the same request over the same catalogue."""

import asyncio
import json
from dataclasses import replace

import httpx2
import pytest
from mcp import Client

from study.advisor.agent import mcp, page
from study.advisor.agent.conversation import Agent
from study.advisor.engine.answer import Options
from study.advisor.engine.answer import ask as answer_of
from study.advisor.engine.catalogue import load
from study.advisor.engine.limits import Limits
from tests.advisor.agent.conftest import serving, toy
from tests.advisor.engine.conftest import ask, project  # noqa: F401
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


def by_page(agent, feedback, requests):
    """The ids that the page shows for each request, each in a conversation of its own."""
    ids = []
    with serving(page.create_app(agent, feedback, page.Service.read())) as address:
        client = httpx2.Client(base_url=address, timeout=60, trust_env=False)
        for request in requests:
            name = client.post("/api/conversations", json={}).json()["conversation"]
            turn = client.post("/api/messages", json={"text": request}, headers={"X-Conversation": name}).json()
            ids.append([server["server_id"] for server in turn["servers"]])
        client.close()
    return ids


def by_mcp(agent, requests):
    """The ids that the MCP server names for each request."""

    async def work():
        ids = []
        async with Client(mcp.server(lambda: agent)) as client:
            for request in requests:
                reply = await client.call_tool("recommend_mcp_servers", {"task": request})
                ids.append([row["server_id"] for row in json.loads(reply.content[0].text)["servers"]])
        return ids

    return asyncio.run(asyncio.wait_for(work(), 600))


def same(call, feedback, agent, *words, requests=REQUESTS):
    """The ids of every interface agree; returns them."""
    answers = [by_command(call, "recommend", *words, request) for request in requests]
    assert [by_command(call, "agent", "ask", *words, request) for request in requests] == answers
    assert by_page(agent, feedback, requests) == answers
    assert by_mcp(agent, requests) == answers
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
    assert same(call, feedback, Agent(load(["mine", "open"])), "--catalog", "mine", "--catalog", "open") == answers


WARNED = ("only the first 256 tokens are read", "another system answers")


def test_every_interface_says_what_an_answer_is_not(call, feedback, monkeypatch):
    catalogue = replace(toy(), instead=WARNED[1])
    monkeypatch.setattr(catalogue.model, "warnings", lambda *_, **attributes: [WARNED[0]])
    monkeypatch.setattr("study.advisor.engine.catalogue.load", lambda *_: catalogue)
    agent = Agent(catalogue)
    said = {}
    for words in (("recommend",), ("agent", "ask")):
        _, said[words], err = call(*words, "captions for videos", "--json")
        assert all(text in err for text in WARNED), words
        assert all(text in call(*words, "captions for videos")[2] for text in WARNED), words
    app = page.create_app(agent, feedback, page.Service.read())
    with serving(app) as address, httpx2.Client(base_url=address, timeout=60, trust_env=False) as client:
        name = client.post("/api/conversations", json={}).json()["conversation"]
        body = {"text": "captions for videos"}
        said["page"] = client.post("/api/messages", json=body, headers={"X-Conversation": name}).text
    turn = agent.answer("captions for videos")
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


def test_every_interface_says_how_many_servers_the_limits_leave_out(agent):
    for request, left_out in {
        "captions for videos, in Rust": 7,
        "captions for videos, in Go": 5,
        "captions": 0,
    }.items():
        turn = agent.answer(request)
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


def test_no_stars_are_known_and_unknown_ones_are_left_out(agent):
    find = agent.catalogue.facts
    unknown = Agent(replace(agent.catalogue, facts=lambda server: replace(find(server), stars=None)))
    assert agent.brief(agent.find(17))["stars"] == 0
    assert "stars" not in unknown.brief(unknown.find(17))
    assert {"rank", "official", "warning"} & agent.brief(agent.find(17)).keys() == set()
