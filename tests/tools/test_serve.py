"""The MCP server over many servers: tools are found, described and called."""

import asyncio
import json
import os
import sys
import time
from dataclasses import replace

import httpx2
import numpy as np
import psutil
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.server.mcpserver import MCPServer

from study.advisor.encoders import sentence
from study.advisor.encoders.choose import FEW, QuickMiniLm
from study.advisor.engine.intent.feedback import Event, FeedbackStore, feedback_of
from study.advisor.engine.intent.settings import intent_settings
from study.advisor.gateway import live
from study.advisor.gateway.client_config import Endpoint
from study.advisor.gateway.gateway import Gateway, limited
from study.advisor.gateway.server import make_server
from study.advisor.gateway.settings import ServeSettings, serve_settings
from study.advisor.retrieval.documents import load_catalog
from study.advisor.retrieval.texts import count_tokens
from study.base.errors import StudyError
from study.tools.intent import lessons, outcomes
from tests.advisor.agent.conftest import serving
from tests.tiny_study import REPOSITORY
from tests.tools.served import QUICK, SCRIPT, ask, call, gone, scripted


def test_tools_are_found_described_and_called(served, catalog, tmp_path):
    store, saved = FeedbackStore(tmp_path / "events.sqlite"), []

    async def work(client, gateway):
        tools = (await client.list_tools()).tools
        assert [tool.name for tool in tools] == ["find_tools", "describe_tools", "call_tool", "refresh"]
        known = tools[0].input_schema["properties"]
        assert not any("title" in tool.input_schema for tool in tools)
        assert known["task"] == {"type": "string", "maxLength": 20_000}
        assert all(isinstance(own["type"], str) and "title" not in own for own in known.values())
        # Both servers have a tool read_file; the published one is the same tool as that of the first.
        found = await ask(client, "find_tools", task="read a file", k=3)
        names = [tool["name"] for tool in found["tools"]]
        assert (sorted(names[:2]), names[2]) == (["good__read_file", "more"], "other__read_file")
        rows = [*map(gateway.view.row, names), *range(3, 7)]
        sizes = count_tokens([json.dumps(gateway.view.catalog.tools[row].definition()) for row in rows])
        assert found["tokens"] == {"definitions here": sizes[:3].sum(), "of all tools": sizes.sum()}
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
        assert "did you mean good__read_file, other__read_file?" in answers[0][0]
        assert "none of your servers has it" in answers[2][0]
        only = [{"only_servers": ["oth*"]}, {"only_tags": ["toy"]}, {"only_servers": ["good"], "only_tags": ["toy"]}]
        asked = [{"task": "read a file"}, {"server": "map and route", "tool": "find a route"}]
        for one in asked:
            among = [await client.call_tool("find_tools", {**one, **own}) for own in only]
            shown = [{tool["server"] for tool in json.loads(reply.content[0].text)["tools"]} for reply in among[:2]]
            assert shown == [{"other"}, {"Files", "Mail", "Maps"}]
            assert "no server named good with the tag toy" in among[2].content[0].text
        for wrong in ({}, {"task": " "}, {"server": "x"}, {"task": "x", "server": "x", "tool": "y"}, {"words": "x"}):
            assert (await client.call_tool("find_tools", wrong)).is_error, wrong

    own = scripted("good", "good"), scripted("other", "changed")
    served(work, *own, published=catalog, store=store, save=saved.append)
    assert "7 tools of 5 servers" in served.said[-1]
    assert [server.id for server in saved[-1].servers] == ["good", "other"]
    first, second, *unused = store.events()
    # The searches that no call followed are told when the host goes.
    assert [(event.selected, event.success) for event in unused] == [(None, None)] * 8
    assert (first.selected, first.success, first.query) == ("good/read_file", True, store.hashed("read a file"))
    assert first.shown == second.shown
    assert sorted(first.shown) == ["good/read_file", "other/more", "other/read_file"]
    assert 0 < first.latency_ms < 10_000


def test_ranking_by_intent_learns_from_every_call(served, tmp_path):
    settings, store = replace(QUICK, ranking="intent", experiment="trial"), FeedbackStore(tmp_path / "events.sqlite")
    # In two sessions of the past, what b reads was followed by what a reads.
    for moment in (0.0, 90_000.0):
        for key in ("b/read_file", "a/read_file"):
            store.append(Event("past", "q", (), key, True, moment, moment))

    async def work(client, gateway):
        orders, chains = [], []
        for _ in range(2):
            found = await ask(client, "find_tools", task="read a file", k=2)
            orders.append([tool["name"] for tool in found["tools"]])
            chains.append(found.get("often_next"))
            last = orders[0][1]
            assert (await call(client, last, path="x"))[1] is False
        assert orders[1] == orders[0][::-1]  # equal in meaning; one of them has just worked
        by_name = dict(zip([order[0] for order in orders], chains, strict=True))
        assert by_name == {"b__read_file": ["a__read_file"], "a__read_file": None}
        assert gateway.view.tools.recommender.recent(store.events()[-1].agent) == [gateway.view.row(last)] * 1

    served(work, scripted("a", "good"), scripted("b", "good", "x"), settings=settings, store=store)
    events = store.events()[4:]
    assert [(event.experiment, len(event.factors)) for event in events] == [("trial", 2)] * 2
    assert all(len(own) == 1 for own in lessons(events))
    observed = outcomes(store.events(), list(intent_settings().variants), "trial", 1)
    assert sorted(observed.values()) == [[], [], [1.0]]


def test_servers_start_when_needed_and_make_room(served):
    async def work(client, gateway):
        await gateway.ready()
        children = gateway.pool.children
        assert not any(child.running for child in children.values())
        for name in "abc":
            await call(client, f"{name}__read_file", path="x")
        assert [child.running for child in children.values()] == [False, True, True]

    served(work, *(scripted(name, "good") for name in "abc"), settings=replace(QUICK, most_running=2))


def test_an_idle_server_ends(served):
    async def work(client, gateway):
        await call(client, "read_file", path="x")
        async with asyncio.timeout(30):
            while gateway.pool.children["a"].running:
                await asyncio.sleep(0.05)

    served(work, scripted("a", "good"), settings=replace(QUICK, idle_seconds=0.5))


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


def test_what_is_known_is_not_asked_again_and_an_outage_changes_nothing(served, tmp_path):
    program = tmp_path / "python"
    program.symlink_to(sys.executable)
    broken = replace(scripted("good", "good"), command=str(program))
    known, _ = live.build("mine", live.list_all([broken], 20))
    program.unlink()

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


def test_what_was_listed_belongs_to_a_program_and_not_to_its_name(served):
    listings = live.list_all([scripted("db", "good"), scripted("same", "good")], 60)
    known, _ = live.build("mine", listings)
    failed = live.Listing("db", problem="gone", program=scripted("db", "calls").program)
    assert [server.id for server in live.build("mine", [failed, listings[1]], before=known)[0].servers] == ["same"]

    async def work(client, gateway):
        found = await ask(client, "find_tools", task="echo a file", k=50)
        assert {tool["server"] for tool in found["tools"]} == {"db", "same"}
        assert "read_file" not in {tool["name"] for tool in found["tools"] if tool["server"] == "db"}
        assert await call(client, "db__echo", text="x") == ('{"text": "x"}', False)

    served(work, scripted("db", "calls"), scripted("same", "good"), own=known)


@pytest.mark.parametrize(
    ("allow", "deny", "left"),
    [
        ((), ("*__die", "s__f*", "t__*"), ["big", "echo", "endless", "grow", "hang", "huge", "slow"]),
        (("s__ec*", "t__read_file"), (), ["echo", "read_file"]),
        (("s__*",), ("s__[!e]*", "s__endless"), ["echo"]),
        (("S__*",), (), []),
    ],
)
def test_tools_that_are_not_allowed_are_neither_found_nor_called(served, allow, deny, left):
    async def work(client, gateway):
        await gateway.ready()
        assert sorted(gateway.view.names) == sorted(left)
        assert (await client.call_tool("find_tools", {"task": "read a file"})).is_error == (not left)
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
    (event,) = feedback_of("tools-mine").events()
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
        return [process.pid for process in psutil.Process().children(recursive=True) if process not in others]

    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
    others = psutil.Process().children(recursive=True)
    with serving(make_server(gateway).streamable_http_app()) as address:
        for headers in ({"Host": "evil.example"}, {"Origin": "https://evil.example"}):
            headers |= {"Accept": "application/json, text/event-stream"}
            reply = httpx2.post(f"{address}/mcp", json=body, headers=headers, trust_env=False)
            assert reply.status_code in (403, 421)
        numbers = asyncio.run(asyncio.wait_for(work(address), 60))
        assert len(numbers) == 3  # guard, server, checker
    assert gone(numbers)
