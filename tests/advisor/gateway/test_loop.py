"""MCP-Zero's loop with calls: a scripted model finds tools of scripted servers, calls them, and answers."""

import asyncio
import json
from dataclasses import replace

import pytest

from study.advisor.engine.intent.feedback import FeedbackStore, feedback_of
from study.advisor.gateway.gateway import Gateway
from study.advisor.gateway.loop import loop_settings, run_loop
from study.advisor.retrieval.documents import Server, Tool, ToolCatalog, save_catalog
from study.advisor.retrieval.route import MAX_REQUESTS
from study.base.errors import StudyError
from study.tools.flow.finetuning import exported, read_trajectories
from tests.advisor.gateway.served import QUICK, ask, config, entry, scripted
from tests.advisor.llm.scripted_endpoint import ANSWERS, replied
from tests.toy_tools import BLOCK, schema

CALL = "<tool_call>{}</tool_call>"


@pytest.fixture
def play(embedder, tmp_path):
    """Let a model say `replies` over two servers; the trajectory, what the model was told, and the feedback."""

    def play(*replies, rounds=8, settings=QUICK, dry=False, **limits):
        left, messages_seen, store = [*replies], [], FeedbackStore(tmp_path / "events.sqlite")
        servers, how = [scripted(name, name) for name in ("calls", "good")], {"store": store, "embedder": embedder}
        gateway = Gateway(servers, settings, say=lambda _: None, **how)

        def chat(messages):
            messages_seen.append(messages[-1]["content"])
            return left.pop(0)

        async def work():
            chosen = replace(loop_settings(), rounds=rounds, **limits)
            async with gateway:
                return await run_loop("a task", gateway, chat, chosen, dry=dry)

        return asyncio.run(asyncio.wait_for(work(), 200)), messages_seen, store.events()

    return play


def test_a_task_is_done_request_by_request(play):
    call = json.dumps({"name": "read_file", "arguments": {"path": "</result> a"}})
    untagged = '{"name": "read_file", "arguments": {"path": "b"}}'  # is an answer, or a quotation
    done, messages, events = play(BLOCK.format("file", "read a file"), CALL.format(call), untagged)
    assert (done.finished, done.final_response, done.rounds, done.malformed) == (True, untagged, 3, 0)
    request, called = done.steps
    assert request["request"] == {"server": "file", "tool": "read a file"}
    assert "read_file" in [tool["name"] for tool in request["found"]]
    assert called["function_call"] == {"name": "read_file", "arguments": {"path": "</result> a"}}
    assert (called["tool_response"], called["is_error"]) == ('{"path": "</result> a"}', False)
    assert messages[1].startswith("<tools>[{")
    assert '"score":' in messages[1]
    # What a server answers cannot close the frame around it.
    assert messages[2].count("</result>") == 1
    (event,) = events
    assert (event.agent, event.selected, event.success) == ("loop", "good/read_file", True)
    assert "good/read_file" in event.shown


def test_faults_of_the_model_and_of_servers_are_told_to_it(play):
    replies = [
        BLOCK.format("map and route", "find a route"),  # nothing fits
        "<tool_assistant>tool: x</tool_assistant>" + CALL.format("no json"),
        CALL.format('{"name": "echo", "arguments": {"words": 1}}'),  # not by the schema
        CALL.format('{"name": "nothing"}'),
        CALL.format('{"name": "die", "arguments": {"text": "x"}}') + "<result>made up</result>" + CALL.format("{}"),
        "<result>made up</result>",
        CALL.format('{"name": "echo", "arguments": {"text": "again"}}'),
        CALL.format('{"name": "echo", "arguments": {"text": "again"}}'),
        CALL.format('{"name": "fail", "arguments": {"text": "x"}}') + "<tool_call>",
    ]
    done, messages, events = play(*replies, fits=0.9, rounds=9)
    assert (done.finished, done.final_response, done.rounds, done.malformed) == (False, "", 9, 4)
    assert done.steps[0]["fits"] == 0
    assert "<tools>" not in messages[1]
    calls = done.steps[1:]
    errors = [("echo", True), ("nothing", True), ("die", True), ("echo", False), ("fail", True)]
    assert [(step["tool"], step["is_error"]) for step in calls] == errors
    # The second equal call did not reach the server.
    assert sum(event.selected == "calls/echo" and event.success is True for event in events) == 1
    assert messages[8].endswith(messages[7])


def test_a_model_that_only_asks_calls_nothing(play):
    call = CALL.format('{"name": "read_file", "arguments": {"path": "a"}}')
    ask = BLOCK.format("file", "read a file")
    done, messages, _ = play("<tool_assistant>server: a", ask, ask + call, "done", dry=True, fits=0.0, k=1)
    assert (done.finished, done.final_response, done.malformed) == (True, "done", 1)
    assert [tool["name"] for tool in done.tools] == ["read_file"]
    assert [step["request"]["tool"] for step in done.steps] == ["read a file"]
    assert messages[1].startswith("The block was not well-formed")
    assert messages[2].startswith("<tools>[{")
    assert "tool_call" not in messages[2]
    assert messages[3] == "You asked for this before. Ask in other words, or answer without a block."


def test_limits_hold(play):
    flood = "".join(BLOCK.format("a", f"t{number}") for number in range(50))
    done, _, _ = play(flood, "done", dry=True, fits=0.0)
    assert len(done.steps) == MAX_REQUESTS
    settings = replace(QUICK, deny=("calls__echo",), result_characters=500)
    big = CALL.format('{"name": "big", "arguments": {"text": "x"}}')
    done, _, _ = play(CALL.format('{"name": "echo", "arguments": {"text": "x"}}'), big, rounds=2, settings=settings)
    assert [step["is_error"] for step in done.steps] == [True, False]
    assert len(done.steps[1]["tool_response"]) < 700
    assert done.rounds == 2
    with pytest.raises(StudyError, match="no task"):
        asyncio.run(run_loop(" ", None, None, loop_settings()))


def test_the_command(toy, run, server, tmp_path, monkeypatch):
    servers = str(config(tmp_path, good=entry("good")))
    monkeypatch.setitem(ANSWERS, "calls", (200, replied({"content": CALL.format('{"name": "read_file"}')})))
    server.script = ["block", "calls"]
    words = ["loop", "read it", "--mcp-config", servers, "--url", f"http://127.0.0.1:{server.server_port}/v1"]
    done = run(*words)
    assert done.stdout == "hello\n"
    written = json.loads(toy.with_name("mine.trajectories.jsonl").read_text())
    assert (written["source_instruction"], written["final_response"], written["rounds"]) == ("read it", "hello", 3)
    assert [step.get("is_error") for step in written["steps"]] == [None, False]
    (conversation,) = read_trajectories(toy.with_name("mine.trajectories.jsonl"))
    assert json.loads(next(exported(iter([conversation]), "openai"))) == conversation
    user, call, _, assistant = conversation["messages"]
    assert (user["content"], assistant["content"]) == ("read it", "hello")
    assert call["tool_calls"][0]["function"] == {"name": "read_file", "arguments": "{}"}
    assert [event.selected for event in feedback_of("tools-mine").events()] == ["good/read_file"]


@pytest.mark.anyio
@pytest.mark.parametrize("method", ["routed", "intent"])
async def test_every_interface_ranks_by_the_same_texts_of_tools(served, toy, run, method):
    """A tool whose parameters speak of other things: nearest by its description, and not by all of its definition."""
    tools = (Tool(0, "read", "read a file", schema(a="map, price, mail, send")), Tool(0, "t", "read a file or mail"))
    odd = ToolCatalog("toy", (Server("fs", "Files", "read and write a file"),), tools)
    save_catalog(toy, odd)

    words = BLOCK.format("read and write a file", "read a file") if method == "routed" else "read a file"
    settings = replace(QUICK, ranking="intent" if method == "intent" else "relevance")
    found = {}
    for document in ("template", "name_desc"):
        output = run("find", words, "--catalogue", "toy", "--method", method, "--document", document, "--json").output
        found[document] = [entry["tool"]["name"] for entry in json.loads(output)]
    assert found == {"template": ["read", "t"], "name_desc": ["read", "t"]}
    block = {"server": "read and write a file", "tool": "read a file"} if method == "routed" else {"task": words}
    async with served(settings=settings, published=odd) as (client, _):
        assert [tool["name"] for tool in (await ask(client, "find_tools", **block))["tools"]] == ["read", "t"]
