"""The MCP server over many servers, well-behaved and not: found, called, bounded, and nothing left behind."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import httpx2
import numpy as np
import psutil
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.server.mcpserver import MCPServer

from study.encoders import sentence
from study.errors import StudyError
from study.tools.catalogues import connection, live
from study.tools.catalogues.catalog import load_catalog
from study.tools.catalogues.client_config import Endpoint
from study.tools.discovery.texts import count_tokens
from study.tools.intent.feedback import FeedbackStore, query_hash
from study.tools.quick import FEW, QuickMiniLm
from study.tools.serve.gateway import Gateway, limited
from study.tools.serve.server import make_server
from study.tools.serve.settings import ServeSettings, serve_settings
from tests.agent.conftest import serving
from tests.tiny_study import REPOSITORY

SCRIPT = str(Path(__file__).with_name("scripted_mcp_server.py"))
QUICK = replace(serve_settings(), start_seconds=60.0, call_seconds=1.0, check_seconds=0.5, budget=100_000)


def scripted(name, mode, *words):
    return Endpoint(name, sys.executable, ("-I", "-S", SCRIPT, mode, *words))


@pytest.fixture
def served(embedder, tmp_path):
    """Do `work` with a client of a server over `endpoints`; what a host is shown, and what a person is told."""

    def run(work, *endpoints, settings=QUICK, **how):
        gateway = Gateway(endpoints, settings, embedder=embedder, say=run.said.append, **how)

        async def within():
            async with Client(make_server(gateway)) as client:
                return await work(client, gateway)

        return asyncio.run(asyncio.wait_for(within(), 200))

    run.said = []
    return run


async def ask(client, what, **arguments):
    reply = await client.call_tool(what, arguments)
    assert not reply.is_error, reply.content
    return json.loads(reply.content[0].text)


async def call(client, name, **arguments):
    """The text of a tool's answer, and whether it is an error."""
    reply = await client.call_tool("call_tool", {"name": name, "arguments": arguments})
    return " ".join(block.text for block in reply.content), reply.is_error


def gone(numbers, seconds=10):
    """Whether processes end in time."""
    until = time.monotonic() + seconds
    while any(psutil.pid_exists(number) and psutil.Process(number).status() != "zombie" for number in numbers):
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


def test_tools_are_found_described_and_called(served, catalog, tmp_path):
    store, saved = FeedbackStore(tmp_path / "events.jsonl"), []

    async def work(client, gateway):
        tools = (await client.list_tools()).tools
        assert [tool.name for tool in tools] == ["find_tools", "describe_tools", "call_tool", "refresh"]
        # Both servers have a tool read_file; the published one is the same tool as that of the first.
        found = await ask(client, "find_tools", task="read a file", k=3)
        names = [tool["name"] for tool in found["tools"]]
        assert (sorted(names[:2]), names[2]) == (["good__read_file", "more"], "other__read_file")
        rows = [*map(gateway.view.row, names), *range(3, 7)]
        sizes = count_tokens([json.dumps(gateway.view.catalog.tools[row].definition()) for row in rows])
        assert found["tokens"] == {"definitions here": sizes[:3].sum(), "of all tools": sizes.sum()}
        short = await ask(client, "find_tools", task="read a file", k=3, budget=int(sizes[0]))
        assert ["inputSchema" in tool for tool in short["tools"]] == [True, False, False]
        routed = await ask(client, "find_tools", server="map and route", tool="find a route", k=1)
        assert [(tool["name"], tool["callable"]) for tool in routed["tools"]] == [("route", False)]
        written = await ask(client, "find_tools", task="write to a file", k=2)
        assert {tool["name"] for tool in written["tools"]} == {"Files__write_file", "Mail__write_file"}
        (described,) = await ask(client, "describe_tools", names=["good__read_file"])
        assert described["inputSchema"] == {"type": "object", "properties": {"path": {"type": "string"}}}
        assert await call(client, "good__read_file", path="a") == ('{"path": "a"}', False)
        assert await call(client, "other__more", path="b") == ('{"path": "b"}', False)  # by its full name as well
        answers = [await call(client, name) for name in ("read_file", "nothing", "route")]
        assert [failed for _, failed in answers] == [True] * 3
        assert "did you mean good__read_file, other__read_file?" in answers[0][0]
        assert "none of your servers has it" in answers[2][0]
        for wrong in ({}, {"task": " "}, {"server": "x"}, {"task": "x", "server": "x", "tool": "y"}, {"words": "x"}):
            assert (await client.call_tool("find_tools", wrong)).is_error, wrong

    own = scripted("good", "good"), scripted("other", "changed")
    served(work, *own, published=catalog, store=store, save=saved.append)
    assert "7 tools of 5 servers" in served.said[-1]
    assert [server.id for server in saved[-1].servers] == ["good", "other"]
    first, second = store.events()
    assert (first.selected, first.success, first.query) == ("good/read_file", True, query_hash("read a file"))
    assert first.shown == second.shown
    assert sorted(first.shown) == ["good/read_file", "other/more", "other/read_file"]
    assert 0 < first.latency_ms < 10_000


FAULTS = {
    "die": (
        {"text": "x"},
        "server s: it ended during the call: the program ended (exit code 9); its last words: out of",
    ),
    "hang": ({"text": "x"}, "server s: no answer within 1 s; it was ended"),
    "huge": ({"text": "x"}, "server s: it ended during the call: a message is longer than 400000 bytes"),
    "fail": ({"text": "x"}, '{"text": "x"}'),
    "echo": ({"txt": "x"}, "'text' is a required property"),
    "endless": ({"text": "x"}, "the tool's schema cannot be used to check the call: its references have no end"),
    "slow": ({"text": "a" * 40 + "!"}, "the tool's schema cannot be used to check the call: the check takes more than"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_said_and_the_next_call_works(served, tmp_path, monkeypatch, fault):
    monkeypatch.setattr(connection, "MESSAGE", 400_000)
    arguments, reason = FAULTS[fault]
    store = FeedbackStore(tmp_path / "events.jsonl")

    async def work(client, gateway):
        assert not (await call(client, "echo", text="y"))[1]
        before = psutil.Process().children(recursive=True)
        started = time.monotonic()
        text, failed = await call(client, fault, **arguments)
        assert failed
        assert reason in text
        assert time.monotonic() - started < 30  # the script would take 60; without load it is 5 at most
        assert await call(client, "echo", text="y") == ('{"text": "y"}', False)
        return before

    before = served(work, scripted("s", "calls"), store=store)
    assert gone([process.pid for process in before])
    # A call that never left says nothing about the tool.
    sent = fault in ("die", "hang", "huge", "fail")
    assert [event.success for event in store.events()] == [True, False if sent else None, True]


def test_results_are_bounded_and_standard_error_is_swallowed(served, capfd):
    async def work(client, gateway):
        assert await call(client, "flood", text="x") == ('{"text": "x"}', False)
        text, failed = await call(client, "big", text="x")
        assert not failed
        assert len(text) < 101_000
        assert "[left out: 200000 characters of the result, as 100000 may be returned]" in text

    served(work, scripted("s", "calls"))
    assert len(capfd.readouterr().err) < 1_000


def test_lists_without_measure_take_bounded_time_and_memory(served):
    async def work(client, gateway):
        assert await ask(client, "refresh") == {
            "new": 0,
            "changed": 0,
            "gone": 0,
            "unchanged": 2,
            "problems": {
                "million": "a message is longer than 16000000 bytes",
                "many": "its list does not end (5001 tools so far)",
            },
        }
        found = await ask(client, "find_tools", task="read a file")
        assert {tool["name"] for tool in found["tools"]} == {"large__read_file", "good__read_file"}

    started, before = time.monotonic(), psutil.Process().memory_info().rss
    served(work, *(scripted(mode, mode) for mode in ("million", "many", "large", "good")))
    assert time.monotonic() - started < 100
    assert psutil.Process().memory_info().rss - before < 1_000_000_000
    assert "2 tools of 2 servers" in served.said[-1]


@pytest.mark.parametrize("events", [False, True])
def test_a_message_over_http_is_bounded(monkeypatch, events):
    monkeypatch.setattr(connection, "MESSAGE", 100)

    class Stream(httpx2.AsyncByteStream):
        def __init__(self, *chunks):
            self.chunks = chunks

        async def __aiter__(self):
            for chunk in self.chunks:
                yield chunk

    async def read(*chunks):
        return b"".join([chunk async for chunk in connection.Bounded(Stream(*chunks), events)])

    assert len(asyncio.run(read(b"x" * 60, b"x" * 40))) == 100
    with pytest.raises(connection.ConnectionFailedError, match="longer than 100 bytes"):
        asyncio.run(read(b"x" * 60, b"x" * 41))
    ended = [b"x" * 60 + b"\n\n"] * 5
    if events:  # each is a message of its own
        assert len(asyncio.run(read(*ended))) == 310
    else:
        with pytest.raises(connection.ConnectionFailedError):
            asyncio.run(read(*ended))


def test_a_cancelled_call_leaves_the_others_alone(served):
    async def work(client, gateway):
        await call(client, "echo", text="y")
        child = gateway.pool.children["s"]
        life = child.life
        stopped = asyncio.create_task(call(client, "hang", text="x"))
        await asyncio.sleep(0.2)
        stopped.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stopped
        assert child.life is life
        assert child.running
        assert child.calls == 0

    served(work, scripted("s", "calls"))


def test_servers_start_when_needed_make_room_and_end_when_idle(served):
    async def work(client, gateway):
        await gateway.ready()
        children = gateway.pool.children
        assert not any(child.running for child in children.values())
        for name in "abc":
            await call(client, f"{name}__read_file", path="x")
        assert [child.running for child in children.values()] == [False, True, True]
        await asyncio.sleep(1.5)
        assert not any(child.running for child in children.values())

    settings = replace(QUICK, most_running=2, idle_seconds=1.0)
    served(work, *(scripted(name, "good") for name in "abc"), settings=settings)


def test_a_changed_list_is_followed(served):
    saved = []

    async def work(client, gateway):
        await call(client, "grow", text="x")
        until = time.monotonic() + 10
        while "grown" not in gateway.view.rows and time.monotonic() < until:
            await asyncio.sleep(0.05)
        assert await call(client, "grown", path="x") == ('{"path": "x"}', False)
        assert len(saved) == 2

    served(work, scripted("s", "calls"), save=saved.append)


def test_what_is_known_is_not_asked_again_and_an_outage_changes_nothing(served):
    known, _ = live.build("mine", live.list_all([scripted("good", "good")], 20))
    broken = Endpoint("good", "/no/such/program")

    async def work(client, gateway):
        found = await ask(client, "find_tools", task="read a file")
        assert [tool["name"] for tool in found["tools"]] == ["read_file"]
        text, failed = await call(client, "read_file", path="x")
        assert failed
        assert "server good: the program cannot be started" in text
        outcome = await ask(client, "refresh", servers=["good"])
        assert outcome["unchanged"] == 1
        assert "cannot be started" in outcome["problems"]["good"]
        assert (await client.call_tool("refresh", {"servers": ["x"]})).is_error

    served(work, broken, own=known)


@pytest.mark.parametrize(
    ("allow", "deny", "left"),
    [
        ((), ("*__die", "s__f*", "t__*"), ["big", "echo", "endless", "grow", "hang", "huge", "slow"]),
        (("s__ec*", "t__read_file"), (), ["echo", "read_file"]),
        (("s__*",), ("s__[!e]*", "s__endless"), ["echo"]),
    ],
)
def test_tools_that_are_not_allowed_are_neither_found_nor_called(served, allow, deny, left):
    async def work(client, gateway):
        await gateway.ready()
        assert sorted(gateway.view.names) == sorted(left)
        text, failed = await call(client, "s__die", text="x")
        assert failed
        assert "or it is not allowed here" in text

    settings = replace(QUICK, allow=allow, deny=deny)
    served(work, scripted("s", "calls"), scripted("t", "good"), settings=settings)


@pytest.mark.parametrize("transport", ["http", "sse"])
def test_servers_at_an_address(served, transport):
    made = MCPServer("web")
    made.add_tool(lambda to: f"sent to {to}", name="send", description="send a mail", structured_output=False)
    app, path = (made.sse_app(), "/sse") if transport == "sse" else (made.streamable_http_app(), "/mcp")

    async def work(client, gateway):
        assert await call(client, "send", to="you") == ("sent to you", False)

    with serving(app) as address:
        served(work, Endpoint("web", url=f"{address}{path}", transport=transport))


HOST = """
import asyncio, sys
from study.tools.catalogues.client_config import Endpoint
from study.tools.serve.gateway import Gateway
from study.tools.serve.settings import serve_settings
async def main():
    endpoint = Endpoint("deaf", sys.executable, ("-I", "-S", sys.argv[1], "deaf", sys.argv[2]))
    async with Gateway([endpoint], serve_settings()) as gateway:
        await gateway.ready()
asyncio.run(main())
"""


@pytest.mark.parametrize("way", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_outlives_a_host_that_is_killed(project, tmp_path, way):
    file = tmp_path / "numbers"
    path = os.pathsep.join([str(REPOSITORY / "src"), str(REPOSITORY)])
    words = [sys.executable, "-c", HOST, SCRIPT, str(file)]
    host = subprocess.Popen(words, env=os.environ | {"PYTHONPATH": path, "T2M_ROOT": str(project)})
    until = time.monotonic() + 60
    while not (file.exists() and file.read_text().count(" ") == 2):
        assert time.monotonic() < until
        time.sleep(0.05)
    numbers = [int(number) for number in file.read_text().split()]
    assert all(psutil.pid_exists(number) for number in numbers)
    host.send_signal(way)
    host.wait(30)
    assert gone(numbers)


def test_the_command_over_standard_input_and_output(project, tmp_path):
    config = tmp_path / "mcp.json"
    config.write_text(
        json.dumps({"servers": {"s": {"command": sys.executable, "args": ["-I", "-S", SCRIPT, "calls"]}}})
    )
    words = ["-m", "study", "tools", "serve", "--mcp-config", str(config), "--deny", "s__die"]
    path = os.pathsep.join([str(REPOSITORY / "src"), str(REPOSITORY)])
    program = StdioServerParameters(
        command=sys.executable, args=words, env=os.environ | {"PYTHONPATH": path, "T2M_ROOT": str(project)}
    )

    async def work():
        async with Client(stdio_client(program), read_timeout_seconds=60, cache=None) as client:
            found = await ask(client, "find_tools", task="echo a file", k=1)
            assert [tool["name"] for tool in found["tools"]] == ["echo"]
            assert await call(client, "echo", text="y") == ('{"text": "y"}', False)
            assert (await call(client, "die", text="y"))[1]

    asyncio.run(asyncio.wait_for(work(), 120))
    folder = project / "data" / "tools"
    assert len(load_catalog(folder / "mine.json").tools) == 10
    (event,) = FeedbackStore(folder / "mine.feedback.jsonl").events()
    assert (event.selected, event.success) == ("s/echo", True)


def test_wrong_calls_of_the_command_and_wrong_settings(project, run):
    for words in (["serve"], ["serve", "--transport", "pigeon"], ["serve", "--catalogue", "absent"]):
        with pytest.raises(StudyError):
            run(*words)
    with pytest.raises(StudyError, match="above 0"):
        replace(serve_settings(), k=0)
    assert isinstance(serve_settings(), ServeSettings)


def test_a_result_within_the_limit_is_passed_as_it_is():
    from mcp.types import CallToolResult, ImageContent, TextContent

    image = ImageContent(type="image", data="x" * 500, mime_type="image/png")
    whole = CallToolResult(
        content=[TextContent(type="text", text="a"), image], structured_content={"a": 1}, is_error=True
    )
    assert limited(whole, 2_000) == whole
    cut = limited(whole, 100)
    assert [type(block).__name__ for block in cut.content] == ["TextContent", "TextContent"]
    assert cut.is_error


def test_few_texts_are_embedded_without_torch(project, monkeypatch):
    models = []
    monkeypatch.setattr(
        sentence, "_embed", lambda texts, model, device: models.append(model) or np.eye(384)[: len(texts)]
    )
    QuickMiniLm().encode(["a", "b"])
    QuickMiniLm().encode([f"text {number}" for number in range(FEW + 1)])
    assert models == ["minilm_numpy", "minilm"]


def test_over_streamable_http_and_for_this_machine_alone(embedder):
    gateway = Gateway([scripted("s", "calls")], QUICK, embedder=embedder, say=lambda text: None)

    async def work(address):
        for _ in range(2):  # a second host finds the same servers, which go on running
            async with Client(f"{address}/mcp", cache=None) as client:
                assert await call(client, "echo", text="y") == ('{"text": "y"}', False)
        return [process.pid for process in psutil.Process().children(recursive=True)]

    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
    with serving(make_server(gateway).streamable_http_app()) as address:
        for headers in ({"Host": "evil.example"}, {"Origin": "https://evil.example"}):
            headers |= {"Accept": "application/json, text/event-stream"}
            reply = httpx2.post(f"{address}/mcp", json=body, headers=headers, trust_env=False)
            assert reply.status_code in (403, 421)
        numbers = asyncio.run(asyncio.wait_for(work(address), 60))
        assert len(numbers) == 3  # guard, server, checker
    assert gone(numbers)
