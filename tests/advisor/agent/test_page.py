"""The page: its JSON interface, strangers refused, faults said clearly; and the page itself in a headless browser."""

import json
import re
import socket

import httpx2
import pytest
import uvicorn
from typer.testing import CliRunner

from study.advisor.agent import address as addresses
from study.advisor.agent import page
from study.advisor.engine.intent.feedback import FeedbackStore
from study.base.errors import StudyError
from study.cli import agent as cli
from tests.advisor.agent import browser
from tests.advisor.agent.conftest import HOSTILE, serving

HEADERS = {"content-type": "application/json"}
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
def address(agent, service, store):
    with serving(page.create_app(agent, store, service)) as found:
        yield found


@pytest.fixture
def client(address):
    with httpx2.Client(base_url=address, timeout=30, trust_env=False) as made:
        yield made


class Talk:
    """One conversation over HTTP."""

    def __init__(self, client):
        self.client = client
        begun = client.post("/api/conversations", json={}).json()
        self.headers, self.catalogue = {"X-Conversation": begun["conversation"]}, begun["catalogue"]

    def post(self, path, **body):
        return self.client.post(f"/api/{path}", json=body, headers=self.headers)

    def ids(self, path, **body):
        return [server["server_id"] for server in self.post(path, **body).json()["servers"]]


def test_a_whole_conversation(client, store):
    talk = Talk(client)
    assert {"Go", "Python"} <= set(talk.catalogue["languages"])
    first = talk.post("messages", text=REQUEST).json()
    assert [server["server_id"] for server in first["servers"]][:3] == [11, 17, 12]
    assert first["question"]["limit"] == "languages"
    assert {said["field"] for said in first["servers"][0]["said"]} <= {"description", "stars", "licence", "address"}
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
    assert [talk.post("feedback", kind="worked", answer=n, server_id=17).status_code for n in (1, 2, 3, 99)] == [
        200,
        200,
        422,
        422,
    ]
    events = store.events()[before:]
    assert [(event.selected, event.success, event.words) for event in events] == [("17", True, "")] * 2


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


def test_a_fault_of_the_program_is_no_conversation_that_is_over(client, monkeypatch):
    monkeypatch.setattr(page, "in_words", lambda *_: {}["a bug"])
    done = Talk(client).post("messages", text=REQUEST)
    assert (done.status_code, "Content-Security-Policy" in done.headers) == (500, True)
    assert "over" not in done.json()["error"]


@pytest.mark.parametrize("name", ["", "unknown", "x" * 65, "../..", "a b"])
def test_an_unknown_conversation_is_over(client, name):
    reply = client.post("/api/messages", json={"text": "captions"}, headers={"X-Conversation": name})
    assert reply.status_code in (404, 422)


@pytest.mark.parametrize("headers", [{"host": "["}, {"origin": "http://["}])
def test_headers_that_name_no_host_are_refused_with_the_headers_of_safety(client, headers):
    done = client.get("/", headers=headers)
    assert (done.status_code, "Content-Security-Policy" in done.headers) == (400, True)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "evil.example"}, 400),
        ({"host": "127.0.0.1.evil.example"}, 400),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"content-length": "100001"}, 413),
        ({"content-length": ""}, 413),
    ],
)
def test_strangers_are_refused(client, headers, status):
    content = {"100001": b"x" * 100_001, None: b"{}", "": iter([b"{}"])}[headers.get("content-length")]
    headers = {name: value for name, value in headers.items() if value}
    reply = client.post("/api/conversations", content=content, headers=HEADERS | headers)
    assert reply.status_code == status
    assert "default-src 'none'" in reply.headers["content-security-policy"]


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("messages", "{"),
        ("messages", '{"text": 3}'),
        ("messages", '{"text": " "}'),
        ("messages", '{"text": "' + "x" * 20_001 + '"}'),
        ("messages", '{"text": "captions", "more": 1}'),
        ("messages", "[" * 50_000),
        ("limits", '{"languages": 5}'),
        ("limits", '{"stars": -1}'),
        ("limits", '{"language": ["Go"]}'),
        ("compare", '{"server_ids": [11]}'),
        ("compare", '{"server_ids": [11, 999]}'),
        ("install", '{"server_id": 11, "client": "none"}'),
        ("feedback", '{"answer": 1, "kind": "loved", "server_id": 11}'),
    ],
)
def test_faults_are_said_and_leave_the_conversation_alone(client, path, content):
    talk = Talk(client)
    first = talk.post("messages", text=REQUEST).json()
    reply = client.post(f"/api/{path}", content=content, headers=HEADERS | talk.headers)
    assert reply.status_code in (400, 422)
    assert reply.json()["error"]
    assert "Traceback" not in reply.text
    assert talk.ids("limits") == [server["server_id"] for server in first["servers"]]


@pytest.mark.parametrize("path", ["/", "/app.js", "/style.css", "/icon.svg"])
def test_the_page_is_safe_and_names_no_other_host(client, path):
    reply = client.get(path)
    assert reply.status_code == 200
    assert "unsafe" not in reply.headers["content-security-policy"]
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert set(re.findall(r"https?://[^\s\"'<)]+", reply.text)) <= {"http://www.w3.org/2000/svg"}
    writing = r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\b|new Function|<script>|\son\w+="
    assert not re.search(writing, reply.text)


@pytest.mark.parametrize(
    "path", ["/docs", "/openapi.json", "/../page.py", "/%2e%2e/page.py", "/api/messages", "/static/app.js"]
)
def test_nothing_else_is_served(client, path):
    assert client.get(path).status_code in (404, 405)


def test_an_address_of_the_machine_is_answered_by_its_name(agent, service, store):
    with serving(page.create_app(agent, store, service, extra_host="Study.example")) as address:
        for host, status in (("study.example:1", 200), ("evil.example", 400)):
            assert httpx2.get(address, headers={"host": host}, trust_env=False).status_code == status


@pytest.mark.parametrize("command", [["serve"], ["mcp", "--transport", "streamable-http"]])
@pytest.mark.parametrize("host", ["0.0.0.0", "::", "[::]", "", "0", "0x0", "::ffff:0.0.0.0"])
def test_an_address_that_names_no_machine_is_refused(command, host, monkeypatch):
    monkeypatch.setattr(cli, "_agent", lambda *given: pytest.fail("the agent was built"))
    monkeypatch.setattr("study.advisor.engine.catalogue.require", lambda *given: None)
    with pytest.raises(StudyError, match="every address"):
        CliRunner().invoke(cli.app, [*command, "--host", host], catch_exceptions=False)
    assert addresses.concrete("192.168.1.20") == "192.168.1.20"


@pytest.mark.parametrize("command", [["serve"], ["mcp", "--transport", "streamable-http"]])
def test_a_taken_port_and_an_unknown_host_are_said_before_anything_is_served(command, monkeypatch, capsys):
    monkeypatch.setattr("study.advisor.engine.catalogue.require", lambda *given: None)
    with addresses.listening("127.0.0.1", 0) as taken:
        port = str(taken.getsockname()[1])
        with pytest.raises(StudyError, match=f"cannot listen on 127.0.0.1 port {port}"):
            CliRunner().invoke(cli.app, [*command, "--port", port], catch_exceptions=False)
    with pytest.raises(StudyError, match="there is no host"):
        CliRunner().invoke(cli.app, [*command, "--host", "no host"], catch_exceptions=False)
    assert capsys.readouterr().out == ""


def test_the_address_that_is_said_is_the_one_that_is_bound(monkeypatch, agent):
    monkeypatch.setattr(cli, "_agent", lambda *given: agent)
    asked = {}

    def run(self, sockets):
        host, port = sockets[0].getsockname()
        with socket.create_connection((host, port), timeout=5):
            asked["port"] = port

    monkeypatch.setattr(uvicorn.Server, "run", run)
    said = CliRunner().invoke(cli.app, ["serve", "--port", "0"], catch_exceptions=False).output
    assert f"http://127.0.0.1:{asked['port']} " in said


@pytest.mark.parametrize(("key", "value"), [("port", 70_000), ("sessions", 0), ("body", 0)])
def test_a_value_that_the_page_cannot_have_is_named(conf_root, key, value):
    file = conf_root / "conf" / "agent" / "service.yaml"
    file.write_text(re.sub(rf"(?m)^{key}: \d+", f"{key}: {value}", file.read_text()))
    with pytest.raises(StudyError, match=rf"service.yaml \(column {key}\)"):
        page.Service.read()


# The page in a browser


@pytest.fixture(scope="module")
def shown(hostile, service, tmp_path_factory):
    if browser.CHROMIUM is None:
        pytest.skip("Chromium is not installed")
    folder = tmp_path_factory.mktemp("browser")
    app = page.create_app(hostile, FeedbackStore(folder / "feedback.sqlite"), service)
    with serving(app) as address, browser.opened(folder, address) as opened:
        opened.open(address)
        opened.until("state.catalogue !== null")
        yield opened


def last(shown, selector):
    """Texts of the elements of the last turn."""
    within = "[...document.querySelectorAll('#log > li.agent')].at(-1)"
    return shown.run(f"[...{within}.querySelectorAll({selector!r})].map(e => e.textContent)")


def press(shown, selector):
    """Press a button of the last turn and wait for the answer."""
    browser.waited(shown, lambda: shown.run(f"[...document.querySelectorAll({selector!r})].at(-1).click()"))


def test_the_page_shows_strangers_as_text_and_changes_limits(shown):
    browser.say(shown, "captions for videos")
    assert len(last(shown, ".card h3")) == 5
    browser.say(shown, "captions, script alert, evil example; Python")
    tags = set(shown.run("[...document.querySelectorAll('*')].map(e => e.tagName)"))
    assert tags <= set(TAG_NAMES.split()), tags
    assert shown.run("document.title") == "T2MAgent"
    put = "const e = document.getElementById('set-language'); e.value = 'Go'; e.dispatchEvent(new Event('change'))"
    browser.waited(shown, lambda: shown.run(f"(() => {{ {put} }})()"))
    assert all("Go" in text for text in last(shown, ".facts"))
    shown.run(
        "[...document.querySelectorAll('#log > li.agent')].at(-1).querySelectorAll('input').forEach(e => e.click())"
    )
    ids = [int(re.search(r"id (\d+)", text)[1]) for text in last(shown, ".id")]
    assert not set(ids) & set(HOSTILE)
    assert shown.logged == []
    assert [url for url in shown.requested if not url.startswith((shown.address, "about:", "data:"))] == []
    assert json.loads(shown.run("JSON.stringify(state.limits.languages)")) == ["Go"]


def test_everything_is_reached_with_the_tab_key(shown):
    browser.say(shown, "captions for videos")
    shown.run("document.body.focus(), document.activeElement.blur()")
    active, words = "document.activeElement", ""
    for _ in range(80):
        shown.press("Tab")
        words += shown.run(f"{active}.textContent + '|' + ({active}.id || '') + ' '")
    for wanted in ("Send", "Set-up", "Useful", "Compare the chosen servers", "set-language", "set-official"):
        assert wanted in words, wanted
