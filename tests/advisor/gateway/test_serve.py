"""The MCP server over many servers: tools are found, described and called, whatever the servers behind it do."""

import asyncio
import json
import signal
import subprocess
import sys
import time
from dataclasses import replace
from types import SimpleNamespace

import httpx2
import psutil
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.server.mcpserver import MCPServer
from mcp.types import CallToolResult, ImageContent, TextContent

from study.advisor.engine.intent.feedback import Event, FeedbackStore, feedback_of
from study.advisor.engine.intent.settings import intent_settings
from study.advisor.gateway import children, connection, guard, live, server
from study.advisor.gateway import gateway as module
from study.advisor.gateway.client_config import Endpoint, read_config
from study.advisor.gateway.gateway import HOSTS, Gateway, limited
from study.advisor.retrieval.documents import load_catalog
from study.advisor.retrieval.texts import count_tokens
from study.tools.intent import lessons, outcomes
from tests.advisor.agent.conftest import serving
from tests.advisor.gateway.served import QUICK, SCRIPT, ask, call, config, entry, environment, gone, scripted, wait
from tests.tiny_study import REPOSITORY

pytestmark = pytest.mark.anyio


async def test_tools_are_found_described_and_called(served, catalog, tmp_path):
    store, saved = FeedbackStore(tmp_path / "events.sqlite"), []
    own = scripted("good", "good"), scripted("other", "changed")
    async with served(*own, published=catalog, store=store, save=saved.append) as (client, gateway):
        tools = (await client.list_tools()).tools
        assert [tool.name for tool in tools] == ["find_tools", "describe_tools", "call_tool", "refresh"]
        properties = tools[0].input_schema["properties"]
        assert properties["task"] == {"type": "string", "maxLength": 20_000}
        assert all(isinstance(own["type"], str) and "title" not in own for own in properties.values())
        # Both servers have a tool read_file; the published one is the same tool as that of the first.
        answer = await ask(client, "find_tools", task="read a file", k=3)
        names = [tool["name"] for tool in answer["tools"]]
        assert (sorted(names[:2]), names[2]) == (["good__read_file", "more"], "other__read_file")
        rows = [*map(gateway.view.row, names), *range(3, 7)]
        sizes = count_tokens([json.dumps(gateway.view.catalog.tools[row].definition()) for row in rows])
        assert answer["tokens"] == {"definitions here": sizes[:3].sum(), "of all tools": sizes.sum()}
        # As hosts write what they leave out, a whole number and a list of one.
        odd = {"server": None, "k": 1.0, "budget": None, "only_servers": "good", "only_tags": None}
        (one,) = (await ask(client, "find_tools", task="read a file", **odd))["tools"]
        assert one["server"] == "good"
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
        assert "good__read_file, other__read_file" in answers[0][0]
        only = [{"only_servers": ["oth*"]}, {"only_tags": ["toy"]}, {"only_servers": ["good"], "only_tags": ["toy"]}]
        for one in ({"task": "read a file"}, {"server": "map and route", "tool": "find a route"}):
            among = [await client.call_tool("find_tools", {**one, **own}) for own in only]
            servers = [{tool["server"] for tool in json.loads(reply.content[0].text)["tools"]} for reply in among[:2]]
            assert servers == [{"other"}, {"Files", "Mail", "Maps"}]
            assert "no server named good with the tag toy" in among[2].content[0].text
        for wrong in ({}, {"task": " "}, {"server": "x"}, {"task": "x", "server": "x", "tool": "y"}, {"words": "x"}):
            assert (await client.call_tool("find_tools", wrong)).is_error, wrong
    assert "7 tools of 5 servers" in served.said[-1]
    assert [server.id for server in saved[-1].servers] == ["good", "other"]
    first, second, *unused = store.events()
    # The searches that no call followed are told when the host goes.
    assert [(event.selected, event.success) for event in unused] == [(None, None)] * 8
    assert (first.selected, first.success, first.query) == ("good/read_file", True, store.hashed("read a file"))
    assert first.shown == second.shown
    assert sorted(first.shown) == ["good/read_file", "other/more", "other/read_file"]
    assert 0.01 < first.latency_ms < 10_000


async def test_the_latency_of_a_call_is_noted_in_milliseconds(served, tmp_path, monkeypatch):
    clock = iter([10.0, 11.0, 11.25])  # before the server is there, as the call is sent, and at the answer
    monkeypatch.setattr(module, "time", SimpleNamespace(time=time.time, perf_counter=lambda: next(clock)))
    store = FeedbackStore(tmp_path / "events.sqlite")
    async with served(scripted("s", "good"), store=store) as (client, _):
        await call(client, "read_file", path="x")
    assert [event.latency_ms for event in store.events()] == [250.0]


async def test_ranking_by_intent_learns_from_every_call(served, tmp_path):
    settings, store = replace(QUICK, ranking="intent", experiment="trial"), FeedbackStore(tmp_path / "events.sqlite")
    # In two sessions of the past, what b reads was followed by what a reads.
    for moment in (0.0, 90_000.0):
        for key in ("b/read_file", "a/read_file"):
            store.append(Event("past", "q", (), key, True, moment, moment))
    servers = scripted("a", "good"), scripted("b", "good", "x")
    async with served(*servers, settings=settings, store=store) as (client, gateway):
        orders, chains = [], []
        for _ in range(2):
            answer = await ask(client, "find_tools", task="read a file", k=2)
            orders.append([tool["name"] for tool in answer["tools"]])
            chains.append(answer.get("often_next"))
            last = orders[0][1]
            assert (await call(client, last, path="x"))[1] is False
        assert orders[1] == orders[0][::-1]  # equal in meaning; one of them has just worked
        by_name = dict(zip([order[0] for order in orders], chains, strict=True))
        assert by_name == {"b__read_file": ["a__read_file"], "a__read_file": None}
        assert gateway.view.tools.recommender.recent(store.events()[-1].agent) == [gateway.view.row(last)] * 1
    events = store.events()[4:]
    assert [(event.experiment, len(event.factors)) for event in events] == [("trial", 2)] * 2
    assert all(len(own) == 1 for own in lessons(events))
    observed = outcomes(store.events(), list(intent_settings().variants), "trial", 1)
    assert sorted(observed.values()) == [[], [], [1.0]]


async def test_servers_start_when_needed_make_room_and_end_when_idle(served):
    servers = [scripted(name, "good") for name in "abc"]
    async with served(*servers, settings=replace(QUICK, most_running=2)) as (client, gateway):
        await gateway.ready()
        pool = gateway.pool.children.values()
        assert not any(child.running for child in pool)
        for name in "abc":
            await call(client, f"{name}__read_file", path="x")
        assert [child.running for child in pool] == [False, True, True]
    async with served(scripted("a", "good"), settings=replace(QUICK, idle_seconds=0.5)) as (client, gateway):
        await call(client, "read_file", path="x")
        async with asyncio.timeout(30):
            while gateway.pool.children["a"].running:
                await asyncio.sleep(0.05)


async def test_a_changed_list_is_followed(served):
    saved = []
    async with served(scripted("s", "calls"), save=saved.append) as (client, gateway):
        await call(client, "grow", text="x")
        async with asyncio.timeout(10):
            while "grown" not in gateway.view.rows:
                await asyncio.sleep(0.05)
        assert await call(client, "grown", path="x") == ('{"path": "x"}', False)
        assert len(saved) == 2


async def test_what_is_known_is_not_asked_again_and_an_outage_changes_nothing(served, tmp_path):
    program = tmp_path / "python"
    program.symlink_to(sys.executable)
    broken = replace(scripted("good", "good"), command=str(program))
    catalog, _ = live.build("mine", await live.list_all([broken], 20))
    program.unlink()
    async with served(broken, before=catalog) as (client, _):
        answer = await ask(client, "find_tools", task="read a file")
        assert [tool["name"] for tool in answer["tools"]] == ["read_file"]
        text, failed = await call(client, "read_file", path="x")
        assert (failed, "server good: the program cannot be started" in text) == (True, True)
        outcome = await ask(client, "refresh", servers=["good"])
        assert (outcome["unchanged"], "cannot be started" in outcome["problems"]["good"]) == (1, True)
        assert (await client.call_tool("refresh", {"servers": ["x"]})).is_error


async def test_what_was_listed_belongs_to_a_program_and_not_to_its_name(served):
    listings = await live.list_all([scripted("db", "good"), scripted("same", "good")], 60)
    catalog, _ = live.build("mine", listings)
    failed = live.Listing("db", problem="gone", program=scripted("db", "calls").program)
    assert [server.id for server in live.build("mine", [failed, listings[1]], before=catalog)[0].servers] == ["same"]
    async with served(scripted("db", "calls"), scripted("same", "good"), before=catalog) as (client, _):
        answer = await ask(client, "find_tools", task="echo a file", k=50)
        assert {tool["server"] for tool in answer["tools"]} == {"db", "same"}
        assert "read_file" not in {tool["name"] for tool in answer["tools"] if tool["server"] == "db"}
        assert await call(client, "db__echo", text="x") == ('{"text": "x"}', False)


@pytest.mark.parametrize(
    ("allow", "deny", "left"),
    [
        ((), ("*__die", "s__f*", "t__*"), ["big", "echo", "endless", "grow", "hang", "huge", "slow"]),
        (("s__ec*", "t__read_file"), (), ["echo", "read_file"]),
        (("s__*",), ("s__[!e]*", "s__endless"), ["echo"]),
        (("S__*",), (), []),
    ],
)
async def test_tools_that_are_not_allowed_are_neither_found_nor_called(served, allow, deny, left):
    settings = replace(QUICK, allow=allow, deny=deny)
    async with served(scripted("s", "calls"), scripted("t", "good"), settings=settings) as (client, gateway):
        await gateway.ready()
        assert sorted(gateway.view.names) == sorted(left)
        assert (await client.call_tool("find_tools", {"task": "read a file"})).is_error == (not left)
        text, failed = await call(client, "s__die", text="x")
        assert (failed, "or it is not allowed here" in text) == (True, True)


def web_server(**more):
    """A server that sends mail, to be put at an address."""
    web = MCPServer("web")
    for name, description in ({"send": "send a mail"} | more).items():
        web.add_tool(lambda to: f"sent to {to}", name=name, description=description, structured_output=False)
    return web


@pytest.mark.parametrize("place", ["/mcp", "/sse", "/events"])
async def test_servers_at_an_address(served, tmp_path, place):
    """Streamable HTTP, and the older way where the address says so and where it does not."""
    app = web_server().streamable_http_app() if place == "/mcp" else web_server().sse_app(sse_path=place)
    keys = set()

    async def watched(scope, receive, send):
        keys.add(dict(scope.get("headers", ())).get(b"x-key"))
        await app(scope, receive, send)

    with serving(watched) as address:
        web, absent = {"url": address + place, "headers": {"X-Key": "k"}}, {"url": "http://127.0.0.1:9/mcp"}
        async with served(*read_config(config(tmp_path, web=web, gone=absent))) as (client, _):
            answer = await ask(client, "find_tools", task="send a mail")
            assert [tool["name"] for tool in answer["tools"]] == ["send"]
            assert await call(client, "send", to="you") == ("sent to you", False)
    assert keys - {None} == {b"k"}


@pytest.mark.parametrize("kind", ["http", "sse"])
async def test_what_is_no_letter_costs_a_tool_or_a_letter_and_not_a_server_over_http(served, kind):
    # One letter of three bytes, and what is none: half of a surrogate pair, and bytes of another encoding.
    broken = {b"surrog": rb"\ud800", b"latin1": b"\xe9t\xe9t\xe9t"}
    web = web_server(x="half of a pair: surrog", y="not UTF-8: latin1")
    app, path = (web.sse_app(), "/sse") if kind == "sse" else (web.streamable_http_app(), "/mcp")

    async def odd(scope, receive, send):
        async def sent(message):
            for whole, part in broken.items():
                message["body"] = message.get("body", b"").replace(whole, part)
            await send(message)

        await app(scope, receive, sent if scope["type"] == "http" else send)

    with serving(odd) as address:
        async with served(Endpoint("web", url=f"{address}{path}", transport=kind)) as (client, gateway):
            assert (await ask(client, "refresh"))["problems"]["web"].endswith("'x', 'y'")
            assert gateway.view.names == ["send"]
            texts = [(await gateway.call("h", "send", {"to": word.decode()})).content[0].text for word in broken]
            assert texts == ["sent to \ufffd", "sent to \ufffdt\ufffdt\ufffdt"]


@pytest.mark.parametrize("refusal", [(404, b""), (404, b'{"jsonrpc": "2.0", "id": null, "error": %s}'), (400, b"%s")])
async def test_a_call_goes_on_in_a_new_session_where_the_server_lost_the_old(served, refusal):
    app, sessions, lost, calls = web_server().streamable_http_app(), set(), set(), []
    status, body = refusal
    if b"%s" in body:
        error = b'{"code": -32000, "message": "Bad Request: Server not initialized"}'
        body = body % error if status == 404 else b'{"jsonrpc": "2.0", "id": null, "error": %s}' % error

    async def forgetful(scope, receive, send):
        session = dict(scope.get("headers", ())).get(b"mcp-session-id")
        if session in lost:
            calls.append(scope["method"])
            head = [(b"content-type", b"application/json")]
            await send({"type": "http.response.start", "status": status, "headers": head})
            await send({"type": "http.response.body", "body": body})
        else:
            sessions.add(session)
            await app(scope, receive, send)

    with serving(forgetful) as address:
        async with served(Endpoint("web", url=f"{address}/mcp", transport="http")) as (client, _):
            for _ in range(2):
                assert await call(client, "send", to="you") == ("sent to you", False)
                lost.update(sessions - {None})
            assert calls.count("POST") == 1


@pytest.mark.slow
async def test_the_command_over_standard_input_and_output(project, tmp_path):
    servers = str(config(tmp_path, s=entry("calls")))
    words = ["-m", "study", "tools", "serve", "--mcp-config", servers, "--deny", "s__die"]
    program = stdio_client(StdioServerParameters(command=sys.executable, args=words, env=environment(project)))
    async with asyncio.timeout(120), Client(program, read_timeout_seconds=60, cache=None) as client:
        answer = await ask(client, "find_tools", task="echo a file", k=1)
        assert [tool["name"] for tool in answer["tools"]] == ["echo"]
        assert await call(client, "echo", text="y") == ('{"text": "y"}', False)
        assert (await call(client, "die", text="y"))[1]
    assert len(load_catalog(project / "data" / "tools" / "mine.json").tools) == 10
    (event,) = feedback_of("tools-mine").events()
    assert (event.selected, event.success) == ("s/echo", True)


async def test_over_streamable_http(embedder):
    gateway = Gateway([scripted("s", "calls")], QUICK, embedder=embedder, say=lambda text: None)
    others = psutil.Process().children(recursive=True)
    with serving(server.make_server(gateway).streamable_http_app()) as address:
        for _ in range(2):  # a second host finds the same servers, which go on running
            async with asyncio.timeout(60), Client(f"{address}/mcp", cache=None) as client:
                assert await call(client, "echo", text="y") == ('{"text": "y"}', False)
        numbers = [process.pid for process in psutil.Process().children(recursive=True) if process not in others]
        assert len(numbers) == 3  # guard, server, checker
    assert gone(numbers)


# What servers do wrong: a call's arguments, the fault that is said, and the limit that is waited for.
FAULTS = {
    "die": ({"text": "x"}, "it ended during the call: the program ended (exit code 9); its last words: out of", {}),
    "hang": ({"text": "x"}, "server s: no answer within 1 s; it was ended", {"call_seconds": 1.0}),
    "huge": ({"text": "x"}, "it ended during the call: a message is longer than 400000 bytes", {}),
    "fail": ({"text": "x"}, '{"text": "x"}', {}),
    "echo": ({"txt": "x"}, "'text' is a required property", {}),
    "endless": ({"text": "x"}, "the tool's schema cannot be used to check the call: its references have no end", {}),
    "slow": ({"text": "a" * 40 + "!"}, "to check the call: the check takes more than", {"check_seconds": 0.5}),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_fault_is_said_and_the_next_call_works(served, tmp_path, monkeypatch, fault):
    monkeypatch.setattr(connection, "MESSAGE", 400_000)
    monkeypatch.setattr(children, "PING_SECONDS", 0.2)
    arguments, reason, limits = FAULTS[fault]
    store = FeedbackStore(tmp_path / "events.sqlite")
    others = psutil.Process().children(recursive=True)
    async with served(scripted("s", "calls"), settings=replace(QUICK, **limits), store=store) as (client, _):
        assert not (await call(client, "echo", text="y"))[1]
        before = [process for process in psutil.Process().children(recursive=True) if process not in others]
        started = time.monotonic()
        text, failed = await call(client, fault, **arguments)
        assert (failed, reason in text) == (True, True), text
        assert time.monotonic() - started < 30  # the script would take 60; without load it is 5 at most
        assert await call(client, "echo", text="y") == ('{"text": "y"}', False)
    assert gone([process.pid for process in before])
    # A call that never left says nothing about the tool.
    sent = fault in ("die", "hang", "huge", "fail")
    assert [event.success for event in store.events()] == [True, False if sent else None, True]


@pytest.mark.parametrize("waits", [False, True])
async def test_progress_renews_the_limit_and_what_is_understood_of_a_result_is_passed_on(served, monkeypatch, waits):
    monkeypatch.setattr(children, "PING_SECONDS", 0.2)
    left_out = "read [left out, as the protocol does not know it:"
    expected = {
        "work": (False, '{"text": "x"}'),
        "hologram": (False, f"{left_out} a block of the kind 'hologram', a block of the kind '7']"),
        "wrong": (False, f"{left_out} structuredContent]"),
        "nothing": (True, "server s: its answer is no result of a tool: content"),
        "texts": (True, "server s: its answer is no result of a tool: content"),
    }
    if waits:  # progress renews the limit, but not for ever
        expected = {"tarry": (True, "no answer within 1.2 s")}
    settings = replace(QUICK, call_seconds=1.0, longest_seconds=1.2 if waits else 5.0)
    async with served(scripted("s", "odd"), settings=settings) as (client, _):
        for name, (fails, reason) in expected.items():
            text, failed = await call(client, name, text="x")  # a pattern of ECMA-262 goes unchecked
            assert (failed, reason in text) == (fails, True), text
            text, failed = await call(client, name, text=5)
            assert (failed, "5 is not of type 'string'" in text) == (True, True)


async def test_results_are_bounded_and_standard_error_is_swallowed(served, capfd):
    async with served(scripted("s", "calls")) as (client, _):
        assert await call(client, "flood", text="x") == ('{"text": "x"}', False)
        text, failed = await call(client, "big", text="x")
        assert (failed, len(text) < 101_000) == (False, True)
        assert "[left out: 200000 characters of the result, as 100000 may be returned]" in text
    assert len(capfd.readouterr().err) < 1_000
    image = ImageContent(type="image", data="x" * 500, mime_type="image/png")
    blocks = [TextContent(type="text", text="a"), image]
    whole = CallToolResult(content=blocks, structured_content={"a": 1}, is_error=True)
    assert limited(whole, 2_000) == whole
    cut = limited(whole, 100)
    assert ([type(block) for block in cut.content], cut.is_error) == ([TextContent] * 2, True)


async def test_lists_without_measure_take_bounded_time_and_memory(served):
    problems = {"million": "a message is longer than 16000000 bytes"}
    problems |= {"many": "its list does not end (5001 tools so far)"}
    started, before = time.monotonic(), psutil.Process().memory_info().rss
    async with served(*(scripted(mode, mode) for mode in ("million", "many", "large", "good"))) as (client, _):
        outcome = await ask(client, "refresh")
        assert outcome == {"new": 0, "changed": 0, "gone": 0, "unchanged": 2, "problems": problems}
        answer = await ask(client, "find_tools", task="read a file")
        assert {tool["name"] for tool in answer["tools"]} == {"large__read_file", "good__read_file"}
    assert time.monotonic() - started < 100
    assert psutil.Process().memory_info().rss - before < 1_000_000_000
    assert "2 tools of 2 servers" in served.said[-1]


@pytest.mark.parametrize("events", [False, True])
async def test_a_message_over_http_is_bounded(monkeypatch, events):
    monkeypatch.setattr(connection, "MESSAGE", 100)

    class Stream(httpx2.AsyncByteStream):
        def __init__(self, *sizes):
            self.sizes = sizes

        async def __aiter__(self):
            for size in self.sizes:
                yield b"x" * size + b"\n\n"

    async def read(*sizes):
        return len(b"".join([chunk async for chunk in connection.Bounded(Stream(*sizes), events)]))

    assert await read(56, 40) == 100
    for sizes in [(101,), (60,) * 5]:
        if events and len(sizes) > 1:  # each is a message of its own
            assert await read(*sizes) == 310
        else:
            with pytest.raises(connection.ConnectionFailedError, match="longer than 100 bytes"):
                await read(*sizes)


async def test_a_cancelled_call_leaves_the_others_alone(served):
    async with served(scripted("s", "calls")) as (client, gateway):
        await call(client, "echo", text="y")
        child = gateway.pool.children["s"]
        life = child.life
        stopped = asyncio.create_task(call(client, "hang", text="x"))
        await asyncio.sleep(0.2)
        stopped.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stopped
        assert (child.life is life, child.running, child.calls) == (True, True, 0)


async def test_state_per_host_is_bounded(served, tmp_path, monkeypatch):
    noted = []
    monkeypatch.setattr(FeedbackStore, "append", lambda self, event: noted.append(event))
    async with served(scripted("good", "good"), store=FeedbackStore(tmp_path / "events.sqlite")) as (_, gateway):
        for row in range(HOSTS + 10):
            await gateway.find(f"host {row}", "read a file", 1, 1)
        assert len(gateway.finds) == HOSTS
    assert len(noted) == HOSTS + 10  # each search is noted when it is forgotten, or at the end


HOST = """
import asyncio, os, signal, sys, mcp  # which asks for the system by its name
if sys.argv[2] == "calls":  # without the modules of Unix
    sys.modules |= dict.fromkeys(("fcntl", "resource", "pwd", "grp"))
    del signal.setitimer, signal.alarm, os.pread
# A shell starts programs in the background with SIGINT ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
from study.advisor.gateway.client_config import Endpoint
from study.advisor.gateway.gateway import Gateway
from study.advisor.gateway.view import serve_settings
async def main():
    endpoint = Endpoint("s", sys.executable, ("-I", "-S", *sys.argv[1:]))
    async with Gateway([endpoint], serve_settings(), say=lambda _: None) as gateway:
        await gateway.ready()
        print((await gateway.call("h", "echo", {"text": "x"})).content[0].text)
asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.parametrize("way", [signal.SIGKILL, signal.SIGINT])
def test_nothing_outlives_a_host_that_is_killed(project, tmp_path, way):
    file = tmp_path / "numbers"
    host = subprocess.Popen([sys.executable, "-c", HOST, SCRIPT, "deaf", str(file)], env=environment(project))
    assert wait(lambda: file.exists() and file.read_text().count(" ") == 2)
    numbers = [int(number) for number in file.read_text().split()]
    assert all(psutil.pid_exists(number) for number in numbers)
    host.send_signal(way)
    host.wait(30)
    assert gone(numbers)


@pytest.mark.slow
def test_a_gateway_works_without_the_modules_of_unix():
    how = {"capture_output": True, "text": True, "check": False, "cwd": REPOSITORY}
    done = subprocess.run([sys.executable, "-c", HOST, SCRIPT, "calls"], **how)
    assert (done.returncode, done.stdout) == (0, '{"text": "x"}\n'), done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere only the group is ended, which docs/advisor.md says")
@pytest.mark.parametrize("end", ["closed", signal.SIGTERM])
def test_what_left_its_group_and_its_parent_ends_too(tmp_path, end):
    file, pipe = tmp_path / "number", subprocess.PIPE
    words = [sys.executable, "-I", "-S", guard.__file__, "100000", sys.executable, "-I", "-S", SCRIPT]
    with subprocess.Popen([*words, "daemon", str(file)], stdin=pipe, stdout=pipe, stderr=pipe) as program:
        assert wait(lambda: file.exists() and file.read_text())
        number = int(file.read_text())
        assert psutil.pid_exists(number)
        program.stdin.close() if end == "closed" else program.send_signal(end)
        program.wait(30)
    assert gone([number])


@pytest.mark.parametrize(("limit", "end"), [(1_000, "exit code 0"), (3, "a message is longer than 3 bytes")])
def test_a_guard_passes_whole_lines_on_up_to_a_length(monkeypatch, limit, end):
    passed = []

    def ended(self, reason):
        raise SystemExit(reason)

    monkeypatch.setattr(guard, "write", lambda stream, content: passed.append((stream, content)))
    monkeypatch.setattr(guard.Guard, "end", ended)
    for part in ("to_server", "watch"):
        monkeypatch.setattr(guard.Guard, part, lambda self: None)
    guarding = guard.Guard(limit, [sys.executable, "-I", "-S", "-c", "print('long'); print('b', end='')"])
    with pytest.raises(SystemExit, match=end):
        guarding.run()
    guarding.server.communicate(timeout=10)
    assert b"".join(content for _, content in passed) == (b"long\nb" if limit > 3 else b"")
    assert {stream for stream, _ in passed} <= {1}


def test_a_guard_without_groups_ends_what_it_started():
    hidden = "import os, runpy, sys; del os.killpg, os.setpgrp, os.getpgrp; sys.argv.pop(0);"
    words = ["-c", f"{hidden} runpy.run_path(sys.argv[0], run_name='__main__')", guard.__file__, "1000"]
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, *words, sys.executable, "-c", "input()"], stdin=pipe, stderr=pipe) as done:
        done.communicate(b"hello\n", timeout=60)
    assert done.returncode == 1
