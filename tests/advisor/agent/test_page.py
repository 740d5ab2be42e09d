"""The page: its JSON interface, strangers refused, faults said clearly; and the page itself in a headless browser."""

import json
import re
import socket
from types import SimpleNamespace

import pytest
import uvicorn
from typer.testing import CliRunner

from study.advisor.agent import page
from study.advisor.agent.conversation import Agent
from study.advisor.engine.intent.feedback import FeedbackStore
from study.advisor.engine.limits import Limits
from study.advisor.serving import concrete, listening
from study.base.errors import StudyError
from study.cli import agent as cli
from tests.advisor.agent import browser
from tests.advisor.agent.conftest import HOSTILE, Talk, visited

# What the page may consist of; anything else came from a stranger's text.
TAG_NAMES = (
    "HTML HEAD META TITLE LINK SCRIPT BODY A HEADER H1 P MAIN SECTION DIV BUTTON OL LI SPAN FOOTER FORM LABEL TEXTAREA "
    "ARTICLE H3 STRONG BLOCKQUOTE PRE DETAILS SUMMARY UL INPUT SELECT OPTION TABLE TR TH TD"
)
REQUEST = "captions for videos"


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return FeedbackStore(tmp_path_factory.mktemp("feedback") / "toy.sqlite")


@pytest.fixture(scope="module")
def client(agent, store):
    with visited(agent, store, extra_host="Study.example") as client:
        yield client


def test_a_whole_conversation(client, store):
    talk = Talk(client)
    assert {"Go", "Python"} <= set(talk.catalogue["languages"])
    first = talk.post("messages", text=REQUEST).json()
    assert [server["server_id"] for server in first["servers"]][:3] == [11, 17, 12]
    assert first["question"]["limit"] == "languages"
    assert {one["field"] for one in first["servers"][0]["said"]} <= {"description", "stars", "licence", "address"}
    # A limit revised by hand, one by a message of limits alone, and the question is put once.
    assert talk.ids("limits", languages=["Go"]) == [17, 13]
    assert talk.ids("messages", text="at least 10 stars") == [13]
    again = talk.post("limits").json()
    assert ([server["server_id"] for server in again["servers"]][:3], again["question"]) == ([11, 17, 12], None)
    assert talk.ids("regenerate")[:3] == [11, 17, 12]
    compared = talk.post("compare", server_ids=[12, 11]).json()
    assert [server["server_id"] for server in compared["servers"]] == [12, 11]
    assert compared["table"][1] == {"field": "stars", "values": ["120 stars", "3 stars"]}
    assert talk.post("install", server_id=11).status_code == 422  # nobody says how to start it
    # Cards of an earlier answer are judged for that answer.
    before = len(store.events())
    judged = [talk.post("feedback", kind="worked", answer=n, server_id=17).status_code for n in (1, 2, 3, 99)]
    assert judged == [200, 200, 422, 422]
    events = store.events()[before:]
    assert [(event.selected, event.success, event.words) for event in events] == [("17", True, "")] * 2


@pytest.mark.parametrize(
    ("limit", "opened", "left"),
    [
        ("in Go", "any language", {}),
        ("no Java", "any language please", {}),
        ("in Go, MIT", "any license", {"languages": ["Go"]}),
        ("not MIT", "no licence constraints", {}),
        ("on Linux", "any platform", {}),
        ("in Go", "any licence", {"languages": ["Go"]}),
    ],
)
def test_a_limit_is_opened_again_and_is_not_asked_for(agent, limit, opened, left):
    talk = page.Conversation(agent)
    talk.say(f"{REQUEST}, {limit}")
    assert talk.say(opened).specification.limits().stated() == left
    assert talk.last.answer.items == agent.answer(REQUEST, limits=Limits(**left)).answer.items
    again = (talk.last, talk.regenerate(), talk.revise(Limits(**left)), talk.say("at least 1 stars"))
    if "language" in opened:
        assert not any(turn.question and turn.question[0] == "languages" for turn in again)
        assert talk.say("captions of films").question[0] == "languages"  # another request
    asked = {request: agent.answer(request).question for request in (REQUEST, f"{REQUEST}, {opened}")}
    assert asked[REQUEST][0] == "languages"
    assert bool(asked[f"{REQUEST}, {opened}"]) is ("language" not in opened)
    assert agent.answer(REQUEST, stated=Limits(languages=[])).question is None  # a host opens it


def add(store, kind, server, *, words=True, request="captions"):
    """Note what became of a server, which the answer to a request named."""
    answer = SimpleNamespace(request=request, items=[SimpleNamespace(server=server)])
    agent = SimpleNamespace(name=lambda server: server, catalogue=SimpleNamespace(system="words"))
    turn = SimpleNamespace(answer=answer)
    return Agent.note(agent, store, turn, kind, server, "a conversation \ud800", "\ud800'", words=words)


def test_words_are_kept_only_where_the_user_says_so(feedback):
    assert [add(feedback, "accepted", 11), add(feedback, "failed", "o/x", words=False)] == [1, 2]
    with_words, without = feedback.events()
    assert (with_words.words, without.words) == ("captions", "")
    assert (without.kind, without.success, without.selected) == ("failed", False, "o/x")
    assert with_words.query == without.query
    assert not any("conversation" in event.agent for event in (with_words, without))
    assert b"captions" not in feedback.path.with_name("salt").read_bytes()
    # What another process adds is read, and what was read is not read again.
    add(FeedbackStore(feedback.path), "worked", 3)
    assert [event.selected for event in feedback.events()] == ["11", "o/x", "3"]
    add(feedback, "accepted", 1, request="a hostile text is only a text \x00 \ud800")
    with pytest.raises(StudyError):
        add(feedback, "'); DROP TABLE events; --", 1)
    assert len(feedback.events()) == 4


def test_conversations_are_bounded_and_end(agent):
    now = [0.0]
    sessions = page.Sessions(agent, 2, 60, lambda: now[0])
    first, second = sessions.begin(), sessions.begin()
    assert sessions.find(first)
    third = sessions.begin()
    assert [bool(sessions.find(name)) for name in (first, second, third)] == [True, False, True]
    now[0] = 61.0
    assert sessions.find(first) is None
    talk = page.Conversation(agent)
    for _ in range(25):
        talk.say(REQUEST)
    assert (len(talk.turns), min(talk.turns)) == (20, 6)


STRANGERS = [
    ({"host": "study.example:1"}, 200),
    ({"host": "["}, 400),
    ({"host": "evil.example"}, 400),
    ({"host": "127.0.0.1.evil.example"}, 400),
    ({"origin": "http://["}, 400),
    ({"origin": "http://evil.example"}, 403),
    ({"origin": "null"}, 403),
    ({"content-length": "100001"}, 413),
    ({"content-length": ""}, 413),
    *(({"x-conversation": name}, 404) for name in ("", "unknown", "x" * 65, "../..", "a b")),
]


@pytest.mark.parametrize(("headers", "status"), STRANGERS)
def test_strangers_are_refused_with_the_headers_of_safety(client, headers, status):
    length, path = headers.get("content-length"), "messages" if status == 404 else "conversations"
    content = {"100001": b"x" * 100_001, None: b'{"text": "x"}' if status == 404 else b"{}", "": iter([b"{}"])}[length]
    given = {"content-type": "application/json"} | {name: value for name, value in headers.items() if value}
    reply = client.post(f"/api/{path}", content=content, headers=given)
    assert reply.status_code == status or (status, reply.status_code) == (404, 422)
    assert "default-src 'none'" in reply.headers["content-security-policy"]


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("messages", "{"),
        ("messages", '{"text": " "}'),
        ("messages", '{"text": "' + "x" * 20_001 + '"}'),
        ("messages", '{"text": "captions", "more": 1}'),
        ("messages", "[" * 50_000),
        ("limits", '{"stars": -1}'),
        ("compare", '{"server_ids": [11, 999]}'),
        ("install", '{"server_id": 11, "client": "none"}'),
        ("feedback", '{"answer": 1, "kind": "loved", "server_id": 11}'),
    ],
)
def test_faults_are_said_and_leave_the_conversation_alone(client, monkeypatch, path, content):
    talk = Talk(client)
    first = talk.ids("messages", text=REQUEST)
    reply = client.post(f"/api/{path}", content=content, headers={"content-type": "application/json"} | talk.headers)
    assert reply.status_code in (400, 422)
    assert reply.json()["error"]
    assert "Traceback" not in reply.text
    assert talk.ids("limits") == first
    # A fault of the program is no conversation that is over.
    monkeypatch.setattr(page, "in_words", lambda *_: {}["a bug"])
    done = talk.post("messages", text=REQUEST)
    assert (done.status_code, "Content-Security-Policy" in done.headers) == (500, True)
    assert "over" not in done.json()["error"]


def test_the_page_alone_is_served_is_safe_and_names_no_other_host(client):
    writing = r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\b|new Function|<script>|\son\w+="
    for path in ("/", "/app.js", "/style.css", "/icon.svg"):
        reply = client.get(path)
        assert reply.status_code == 200
        assert "unsafe" not in reply.headers["content-security-policy"]
        assert reply.headers["x-content-type-options"] == "nosniff"
        assert set(re.findall(r"https?://[^\s\"'<)]+", reply.text)) <= {"http://www.w3.org/2000/svg"}
        assert not re.search(writing, reply.text)
    for path in ("/docs", "/openapi.json", "/../page.py", "/%2e%2e/page.py", "/api/messages", "/static/app.js"):
        assert client.get(path).status_code in (404, 405)


@pytest.mark.parametrize("command", [["serve"], ["mcp", "--transport", "streamable-http"]])
def test_an_address_is_checked_before_anything_is_served(command, monkeypatch, capsys):
    monkeypatch.setattr(cli, "_agent", lambda *given: pytest.fail("the agent was built"))
    monkeypatch.setattr("study.advisor.engine.catalogue.require", lambda *given: None)
    assert concrete("192.168.1.20") == "192.168.1.20"
    with listening("127.0.0.1", 0) as taken:
        port = str(taken.getsockname()[1])
        wrong = dict.fromkeys(("0.0.0.0", "::", "[::]", "", "0", "0x0", "::ffff:0.0.0.0"), "every address")
        words = [("--host", host, said) for host, said in (wrong | {"no host": "there is no host"}).items()]
        for option, value, said in [*words, ("--port", port, f"cannot listen on 127.0.0.1 port {port}")]:
            with pytest.raises(StudyError, match=said):
                CliRunner().invoke(cli.app, [*command, option, value], catch_exceptions=False)
    assert capsys.readouterr().out == ""


def test_the_address_that_is_said_is_the_one_that_is_bound(monkeypatch, agent):
    bound = {}

    def run(self, sockets):
        host, bound["port"] = sockets[0].getsockname()
        with socket.create_connection((host, bound["port"]), timeout=5):
            pass

    monkeypatch.setattr(cli, "_agent", lambda *given: agent)
    monkeypatch.setattr(uvicorn.Server, "run", run)
    output = CliRunner().invoke(cli.app, ["serve", "--port", "0"], catch_exceptions=False).output
    assert f"http://127.0.0.1:{bound['port']} " in output


@pytest.mark.slow
def test_the_page_in_a_browser_shows_strangers_as_text_and_is_used_by_hand(hostile, feedback, tmp_path):
    if browser.CHROMIUM is None:
        pytest.skip("Chromium is not installed")
    with visited(hostile, feedback) as client, browser.opened(tmp_path, str(client.base_url)) as chromium:

        def last(selector, what="e => e.textContent"):
            within = "[...document.querySelectorAll('#log > li.agent')].at(-1)"
            return chromium.run(f"[...{within}.querySelectorAll({selector!r})].map({what})")

        chromium.call("Page.navigate", url=chromium.address)
        chromium.until("typeof state !== 'undefined' && state.catalogue !== null")
        browser.say(chromium, REQUEST)
        assert len(last(".card h3")) == 5
        # A comparison says where the decision turns.
        shown = [server["server_id"] for server in hostile.short(hostile.answer(REQUEST))["servers"]]
        last("input", "e => e.click()")
        compare = "e => e.textContent.startsWith('Compare') && e.click()"
        browser.waited(chromium, lambda: last(".options button", compare))
        said = hostile.compare(REQUEST, shown)["statements"]
        assert said
        assert last("table + details li") == [f"{one['text']} {one['field']}" for one in said]
        browser.say(chromium, "captions, script alert, evil example; Python")
        tags = set(chromium.run("[...document.querySelectorAll('*')].map(e => e.tagName)"))
        assert tags <= set(TAG_NAMES.split()), tags
        assert chromium.run("document.title") == "T2MAgent"
        put = "const e = document.getElementById('set-language'); e.value = 'Go'; e.dispatchEvent(new Event('change'))"
        browser.waited(chromium, lambda: chromium.run(f"(() => {{ {put} }})()"))
        assert all("Go" in text for text in last(".facts"))
        last("input", "e => e.click()")
        assert not {int(re.search(r"id (\d+)", text)[1]) for text in last(".id")} & set(HOSTILE)
        assert chromium.logged == []
        assert [url for url in chromium.requested if not url.startswith((chromium.address, "about:", "data:"))] == []
        assert json.loads(chromium.run("JSON.stringify(state.limits.languages)")) == ["Go"]
        # Everything is reached with the tab key.
        browser.say(chromium, REQUEST)
        chromium.run("document.body.focus(), document.activeElement.blur()")
        active, words = "document.activeElement", ""
        for _ in range(80):
            chromium.press("Tab")
            words += chromium.run(f"{active}.textContent + '|' + ({active}.id || '') + ' '")
        for wanted in ("Send", "Set-up", "Useful", "Compare the chosen servers", "set-language", "set-official"):
            assert wanted in words, wanted
