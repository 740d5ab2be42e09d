"""The page's JSON interface: many conversations at once, strangers refused, faults said clearly."""

import asyncio
import gc
import json
import re
import socket
import weakref

import httpx2
import pytest
import uvicorn
from typer.testing import CliRunner

from study import paths
from study.advisor.agent import address as addresses
from study.advisor.agent import web
from study.advisor.engine.intent.feedback import FeedbackStore
from study.cli import agent as cli
from study.errors import StudyError
from tests.advisor.agent.conftest import serving
from tests.advisor.agent.messages import MESSAGES

HEADERS = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return FeedbackStore(tmp_path_factory.mktemp("feedback") / "toy.sqlite")


@pytest.fixture(scope="module")
def address(agent, service, store):
    with serving(web.create_app(agent, store, service)) as found:
        yield found


@pytest.fixture
def client(address):
    with httpx2.Client(base_url=address, timeout=30, trust_env=False) as made:
        yield made


class Talk:
    """One conversation over HTTP."""

    def __init__(self, client):
        self.client = client
        self.headers = {"X-Conversation": client.post("/api/conversations", json={}).json()["conversation"]}

    def post(self, path, **body):
        return self.client.post(f"/api/{path}", json=body, headers=self.headers)

    def say(self, text):
        return self.post("messages", text=text).json()

    def judge(self, answer, server, kind="accepted"):
        return self.post("feedback", kind=kind, answer=answer, server_id=server).status_code


def test_a_whole_conversation(client):
    talk = Talk(client)
    question = talk.say("captions for videos")
    assert (question["kind"], question["options"][0]) == ("question", "Python")
    reply = talk.post("messages", text="Go")
    assert "NaN" not in reply.text
    answer = reply.json()["answer"]
    assert [item["server_id"] for item in answer["recommendations"]] == [17, 13]
    assert answer["recommendations"][0]["evidence"]["links"][0]["url"].startswith("https://github.com/example/")
    assert answer["checks"]["removed"] == 0
    edited = talk.post("constraints", languages=["Python"]).json()["answer"]
    assert edited["recommendations"][0]["server_id"] == 12
    compared = talk.say("compare 1 and 2")
    assert [row["field"] for row in compared["table"]][:2] == ["languages", "platforms"]
    assert talk.judge(2, 12) == 200


def test_feedback_belongs_to_the_answer_that_was_judged(client, store):
    talk, before = Talk(client), len(store.events())
    first, second = talk.say("captions for videos in Go"), talk.say("query a postgres database plan in Python")
    assert (first["number"], second["number"]) == (1, 2)
    assert talk.say("compare")["number"] == 2
    assert talk.say("undo")["number"] == 1
    assert talk.say("Query a postgres database plan again, in Python")["number"] == 3
    # A card of the first answer, judged after others have followed, and one of an answer taken back.
    assert talk.judge(1, 17) == talk.judge(2, 14) == talk.judge(2, 14, "failed") == 200
    # Server 17 is in the first answer alone.
    assert talk.judge(3, 17) == 422
    events = store.events()[before:]
    found = [(event.kind, event.selected, event.shown.index(event.selected)) for event in events]
    assert found == [("accepted", "17", 0), ("accepted", "14", 0), ("failed", "14", 0)]
    assert [event.query == events[0].query for event in events] == [True, False, False]
    assert {event.words for event in events} == {""}


def test_a_fault_of_the_program_is_no_conversation_that_is_over(client, monkeypatch):
    monkeypatch.setattr(web, "turn_data", lambda *_: {}["a bug"])
    done = Talk(client).post("messages", text="captions")
    assert (done.status_code, "Content-Security-Policy" in done.headers) == (500, True)
    assert "over" not in done.json()["error"]
    gone = client.post("/api/messages", json={"text": "x"}, headers={"X-Conversation": "none"})
    assert (gone.status_code, gone.json()["fix"]) == (404, "start a new one")


@pytest.mark.parametrize("headers", [{"host": "["}, {"origin": "http://["}])
def test_headers_that_name_no_host_are_refused_with_the_headers_of_safety(client, headers):
    done = client.get("/", headers=headers)
    assert (done.status_code, "Content-Security-Policy" in done.headers) == (400, True)


def test_an_address_of_the_machine_is_answered_by_its_name(agent, service, store):
    with serving(web.create_app(agent, store, service, extra_host="Study.example")) as address:
        for host, status in (("study.example:1", 200), ("evil.example", 400)):
            assert httpx2.get(address, headers={"host": host}, trust_env=False).status_code == status


@pytest.mark.parametrize("command", [["serve"], ["mcp", "--transport", "streamable-http"]])
@pytest.mark.parametrize("host", ["0.0.0.0", "::", "[::]", "", "0", "0x0", "0.0", "::ffff:0.0.0.0"])
def test_an_address_that_names_no_machine_is_refused(command, host, tmp_path, monkeypatch):
    monkeypatch.setattr(cli, "_agent", lambda *given: pytest.fail("the agent was built"))
    monkeypatch.setattr(paths, "prepared", lambda name: tmp_path)
    for part in ("servers", "tasks", "labels"):
        (tmp_path / f"{part}.parquet").touch()
    with pytest.raises(StudyError, match="every address"):
        CliRunner().invoke(cli.app, [*command, "--host", host], catch_exceptions=False)
    assert addresses.concrete("192.168.1.20") == "192.168.1.20"


@pytest.mark.parametrize("command", [["serve"], ["mcp", "--transport", "streamable-http"]])
def test_a_taken_port_and_an_unknown_host_are_said_before_anything_is_served(command, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(paths, "prepared", lambda name: tmp_path)
    for part in ("servers", "tasks", "labels"):
        (tmp_path / f"{part}.parquet").touch()
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


@pytest.mark.parametrize("path", ["/", "/app.js", "/cards.js", "/style.css", "/icon.svg"])
def test_the_page_is_safe_and_names_no_other_host(client, path):
    reply = client.get(path)
    assert reply.status_code == 200
    policy = reply.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert set(re.findall(r"https?://[^\s\"'<)]+", reply.text)) <= {"http://www.w3.org/2000/svg"}
    writing = r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\b|new Function|<script>|\son\w+="
    assert not re.search(writing, reply.text)


@pytest.mark.parametrize("path", MESSAGES["unserved"])
def test_nothing_else_is_served(client, path):
    assert client.get(path).status_code == 404


@pytest.mark.parametrize(("headers", "status"), MESSAGES["strange_headers"])
def test_strangers_are_refused(client, headers, status):
    content = {"100001": b"x" * 100_001, None: b"{}", "": iter([b"{}"])}[headers.get("content-length")]
    headers = {name: value for name, value in headers.items() if value}
    reply = client.post("/api/conversations", content=content, headers=HEADERS | headers)
    assert reply.status_code == status
    assert "error" in reply.json()
    assert "default-src 'none'" in reply.headers["content-security-policy"]


@pytest.mark.parametrize(("path", "content", "status"), [*MESSAGES["wrong_requests"], ("messages", "[" * 50_000, 400)])
def test_faults_are_said_and_leave_the_conversation_alone(client, path, content, status):
    talk = Talk(client)
    first = talk.say("captions for videos in Go")
    reply = client.post(f"/api/{path}", content=content, headers=HEADERS | talk.headers)
    assert reply.status_code == status
    assert reply.json()["error"]
    assert "Traceback" not in reply.text
    assert talk.say("why 1")["specification"] == first["specification"]


@pytest.mark.parametrize("name", ["", "unknown", "x" * 65, "../..", "a b"])
def test_an_unknown_conversation_is_over(client, name):
    reply = client.post("/api/messages", json={"text": "captions"}, headers={"X-Conversation": name})
    assert reply.status_code in (404, 422)


def test_fifty_developers_at_once_are_never_mixed(address):
    """Each asks for a language and a number of stars of their own and must always get these back."""

    async def developer(client, number):
        me = {"X-Conversation": (await client.post("/api/conversations", json={})).json()["conversation"]}
        language = ["Python", "Go", "TypeScript", "JavaScript"][number % 4]
        intent, stars = f"captions for videos task {number} in {language}", f"at least {number} stars"
        steps = {intent: 0, stars: number, "compare": number, "set up 1": number, "drop the stars": 0, "undo": number}
        for text, least in steps.items():
            reply = await client.post("/api/messages", json={"text": text}, headers=me)
            assert reply.status_code == 200, reply.text
            said = reply.json()["specification"]
            assert (said["intent"], said["languages"], said["stars"]) == (intent, [language], least)
        return me["X-Conversation"]

    async def everyone():
        limits = httpx2.Limits(max_connections=60)
        async with httpx2.AsyncClient(base_url=address, timeout=60, limits=limits, trust_env=False) as client:
            return await asyncio.gather(*(developer(client, number) for number in range(1, 51)))

    assert len(set(asyncio.run(everyone()))) == 50


def test_messages_of_one_conversation_are_answered_one_after_another(address):
    async def hammer():
        async with httpx2.AsyncClient(base_url=address, timeout=60, trust_env=False) as client:
            name = (await client.post("/api/conversations", json={})).json()["conversation"]

            async def say(text):
                headers = {"X-Conversation": name}
                reply = await client.post("/api/messages", json={"text": text}, headers=headers)
                return reply.json()["specification"]["stars"]

            await say("captions for videos in Go")
            await asyncio.gather(*(say(f"at least {stars} stars") for stars in range(1, 21)))
            return [await say("undo") for _ in range(20)]

    stars = asyncio.run(hammer())
    # Every one of the twenty steps was kept, whatever their order.
    assert stars[-1] == 0
    assert len(set(stars)) == 20


def half_sent(address, conversation, text):
    """A connection that has sent all of a message but its last letter, and that letter."""
    body = json.dumps({"text": text}).encode()
    head = f"POST /api/messages HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Conversation: {conversation}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    place = httpx2.URL(address)
    connection = socket.create_connection((place.host, place.port), timeout=30)
    connection.sendall(head.encode() + body[:-1])
    return connection, body[-1:]


def test_idle_connections_and_slow_clients_stall_nobody(address, client):
    """The others are answered while 500 connections say nothing and 100 are in the middle of a message, which is more
    than there are threads for answers; the slow ones are answered when they have said all."""
    place, talk = httpx2.URL(address), Talk(client)
    idle = [socket.create_connection((place.host, place.port), timeout=30) for _ in range(500)]
    slow = [half_sent(address, Talk(client).headers["X-Conversation"], "captions for videos in Go") for _ in range(100)]
    try:
        for stars in range(1, 21):
            assert talk.say(f"captions for videos, at least {stars} stars")["specification"]["stars"] == stars
        for connection, _ in slow:
            connection.setblocking(False)
            with pytest.raises(BlockingIOError):
                connection.recv(1)
            connection.settimeout(30)
        for connection, rest in slow:
            connection.sendall(rest)
            assert connection.recv(15) == b"HTTP/1.1 200 OK"
    finally:
        for connection in (*idle, *(connection for connection, _ in slow)):
            connection.close()


def test_ten_thousand_conversations_take_the_memory_of_those_that_are_kept(agent):
    """One that was dropped leaves nothing behind, however many follow."""
    kept = web.Sessions(agent, most=20, seconds=1e9)

    made = []
    for number in range(400):
        conversation = kept.find(kept.begin())
        conversation.say(f"captions for videos, at least {number % 20} stars")
        made.append(weakref.ref(conversation))
    del conversation
    gc.collect()
    assert sum(each() is not None for each in made) == 20
    for _ in range(10_000):
        kept.begin()
    assert len(kept.kept) == 20


def test_sessions_are_bounded_and_expire(agent):
    now = [0.0]
    kept = web.Sessions(agent, most=3, seconds=100, clock=lambda: now[0])
    names = [kept.begin() for _ in range(3)]
    assert kept.find(names[0]) is not None
    names.append(kept.begin())
    # The longest unused one made room: not the first, which was used since.
    assert [kept.find(name) is not None for name in names] == [True, False, True, True]
    now[0] = 99
    kept.find(names[3])
    now[0] = 150
    assert [kept.find(name) is not None for name in names] == [False, False, False, True]
    assert len({kept.begin() for _ in range(50)}) == 50
