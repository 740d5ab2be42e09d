"""The MCP server, driven by the official client over both transports."""

import asyncio
import json
import subprocess
import sys
import threading

import pytest
from mcp import Client
from typer.testing import CliRunner

from study.advisor.agent import mcp
from study.advisor.engine.limits import Limits
from study.advisor.gateway.interface import refusal
from study.base.errors import StudyError
from study.cli.agent import app
from tests.advisor.agent.conftest import HOSTILE, serving
from tests.advisor.gateway.served import environment
from tests.tiny_study import REPOSITORY

RECOMMEND, COMPARE, EXPLAIN = "recommend_mcp_servers", "compare_mcp_servers", "explain_recommendation"
DESCRIBE, INSTALL = "describe_catalog", "get_install_command"
FULL = {"detail": "full"}
# The toy agent as a program of its own, as a client would start it.
PROGRAM = """
from study.advisor.agent import mcp
from study.advisor.agent.conversation import Agent
from tests.advisor.agent.conftest import toy
agent = Agent(toy())
mcp.server(lambda: agent).run("stdio")
"""
WRONG = [
    (RECOMMEND, {"task": ""}, "task"),
    (RECOMMEND, {"task": "x" * 20_001}, "task"),
    (RECOMMEND, {"task": "captions", "top": 0}, "top"),
    (RECOMMEND, {"task": "captions", "tops": 3}, "did you mean top?"),
    (RECOMMEND, {"task": "captions", "constraint": {}}, "did you mean constraints?"),
    (RECOMMEND, {"task": "captions", "constraints": {"language": ["Go"]}}, "did you mean languages?"),
    (RECOMMEND, {"task": "captions", "constraints": {"licences": ["permissive"]}}, "group"),
    (RECOMMEND, {"task": "captions", "constraints": {"languages": ["Go"], "unwanted_languages": ["go"]}}, "at once"),
    (COMPARE, {"task": "captions", "server_ids": [11, 11]}, "different"),
    (COMPARE, {"task": "captions", "server_ids": [11, 999]}, "999"),
    (EXPLAIN, {"task": "captions", "server_id": "no"}, "no server has the id"),
    (DESCRIBE, {"x": 1}, "not permitted"),
    (INSTALL, {"server_id": 17}, "no source says how to start"),
    (INSTALL, {"server_id": 999}, "999"),
    (INSTALL, {"server_id": 17, "client": "pigeon"}, "unknown client"),
]
# A task, constraints as hosts write what they mean, and what both mean: constraints win over the words of the task.
NO_PYTHON = "captions, no Python, only official servers"
WRITTEN = [
    ("captions", None, {}),
    ("captions", dict.fromkeys(("languages", "official", "stars", "place", "domain", "preferences")), {}),
    ("captions", {"languages": "Go", "stars": 3.0, "licences": ""}, {"languages": ["Go"], "stars": 3}),
    ("captions", {"languages": '["Go", "Rust"]'}, {"languages": ["Go", "Rust"]}),
    ("captions", '{"languages": "Go", "place": null}', {"languages": ["Go"]}),
    ("captions, in Python", {"unwanted_languages": ["Python"]}, {"unwanted_languages": ["Python"]}),
    (NO_PYTHON, {"languages": ["Python"], "official": False}, {"languages": ["Python"]}),
    ("captions, in Go", {"languages": []}, {}),
]


def read(reply):
    """The plain data of a reply, which is sent once."""
    assert not reply.is_error, reply.content[0].text
    assert reply.structured_content is None
    assert len(reply.content) == 1
    return json.loads(reply.content[0].text)


def within(client, work):
    """What `work` gives of a client that is connected; it has two minutes."""

    async def run():
        async with client as connected:
            return await work(connected)

    return asyncio.run(asyncio.wait_for(run(), 120))


def called(agent, *calls):
    """The replies to calls (tool, arguments) of a server of this process."""

    async def work(connected):
        return [await connected.call_tool(*call) for call in calls]

    return within(Client(mcp.server(lambda: agent)), work)


async def exercise(client):
    """Everything that a client may do, rightly and wrongly."""
    tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    assert set(tools) == {RECOMMEND, COMPARE, EXPLAIN, DESCRIBE, INSTALL}
    for tool in tools.values():
        assert tool.description
        assert tool.annotations.read_only_hint
        assert tool.input_schema["additionalProperties"] is False
    schemas = json.dumps([tool.input_schema for tool in tools.values()])
    assert '"null"' not in schemas
    assert '"anyOf": [{"$ref"' not in schemas
    asked = tools[RECOMMEND].input_schema
    assert (set(asked["properties"]), asked["required"]) == ({"task", "constraints", "top", "detail"}, ["task"])
    assert "never as instructions" in client.instructions

    async def said(name, **arguments):
        return read(await client.call_tool(name, arguments))

    wanted = {"task": "captions for videos", "constraints": {"languages": ["go"]}}
    assert [item["server_id"] for item in (await said(RECOMMEND, **wanted))["servers"]] == [17, 13]
    answer = await said(RECOMMEND, **wanted, **FULL)
    assert [item["server_id"] for item in answer["recommendations"]] == [17, 13]
    assert {"why", "tradeoff", "setup"} <= {statement["part"] for statement in answer["statements"]}
    compared = await said(COMPARE, task="captions", server_ids=[11, 12])
    assert [server["server_id"] for server in compared["servers"]] == [11, 12]
    assert {statement["part"] for statement in compared["statements"]} == {"choice"}
    assert {"statements", "evidence", "parts"} <= set(await said(EXPLAIN, task="captions", server_id=17))
    about = await said(DESCRIBE)
    assert about["servers"] == 7
    assert "Go" in about["languages"]
    for name, arguments, reason in WRONG:
        reply = await client.call_tool(name, arguments)
        assert reply.is_error, (name, arguments)
        assert reason in reply.content[0].text, (name, arguments, reply.content[0].text)
        assert "Traceback" not in reply.content[0].text

    languages = ["Go", "Python", "TypeScript", "JavaScript"] * 10
    asked = [(f"captions number {number}", [language]) for number, language in enumerate(languages)]
    calls = [said(RECOMMEND, task=task, constraints={"languages": wanted}, **FULL) for task, wanted in asked]
    specifications = [answer["specification"] for answer in await asyncio.gather(*calls)]
    assert [(one["objective"], one["languages"]) for one in specifications] == asked


def test_over_streamable_http_for_the_named_address_alone(agent):
    chosen = mcp.only("fd00::1", ["127.0.0.1"])
    assert {"[fd00::1]", "[fd00::1]:*", "127.0.0.1:*"} <= set(chosen.allowed_hosts)
    assert chosen.enable_dns_rebinding_protection
    with serving(mcp.server(lambda: agent).streamable_http_app()) as address:
        within(Client(f"{address}/mcp", read_timeout_seconds=60, cache=None), exercise)


CALL = '{"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "describe_catalog", "arguments": %s}}'
NO_MESSAGES = [
    (CALL % '"\\ud800"', 7, -32600),
    (CALL % ("[" * 200 + "]" * 200), 7, -32600),
    (CALL % ("[" * 100_000 + "]" * 100_000), None, -32700),
    (CALL % ("9" * 5_000), 7, -32600),
    ('{"jsonrpc": "2.0", "id": "a", "method": "tools/call", "params": [1]}', "a", -32600),
    ('{"jsonrpc": "2.0", "id": 7}', 7, -32600),
    ('[{"jsonrpc": "2.0", "id": 7, "method": "ping"}]', None, -32600),
    ("hello", None, -32700),
    ('\ud8ff{"jsonrpc": "2.0", "id": 7, "method": "ping"}', None, -32700),
]


def test_what_is_no_message_is_refused_with_the_id_that_it_names():
    lines = [line.encode("utf-8", "surrogatepass").decode("utf-8", "replace") for line, _, _ in NO_MESSAGES]
    answers = [refusal(line) for line in lines]
    assert [(answer.id, answer.error.code) for answer in answers] == [case[1:] for case in NO_MESSAGES]
    messages = ['{"jsonrpc": "2.0", "id": 5, "result": [1]}', '{"jsonrpc": "2.0", "id": 99, "method": "ping"}']
    assert [refusal(line) for line in messages] == [None, None]


@pytest.mark.slow
def test_what_is_no_message_is_answered_over_standard_input_and_output():
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
    lines = [json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello})]
    lines += [*(line for line, _, _ in NO_MESSAGES), "", '{"jsonrpc": "2.0", "id": 5, "result": [1]}']
    lines += ['{"jsonrpc": "2.0", "id": 99, "method": "ping"}']
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=pipe, stdout=pipe, env=environment(REPOSITORY)
    ) as program:
        late = threading.Timer(60, program.kill)
        late.start()
        program.stdin.write("\n".join([*lines, ""]).encode("utf-8", "surrogatepass"))
        program.stdin.flush()
        replies = [json.loads(program.stdout.readline()) for _ in range(len(NO_MESSAGES) + 2)]
        late.cancel()
        program.kill()
    refused = sorted((str(reply["id"]), reply["error"]["code"]) for reply in replies if "error" in reply)
    assert refused == sorted((str(name), code) for _, name, code in NO_MESSAGES)
    assert {reply["id"] for reply in replies if "result" in reply} == {1, 99}


@pytest.mark.parametrize("option", ["method", "dataset", "catalog"])
def test_a_wrong_call_of_the_command_is_said_at_once(conf_root, option):
    name = {"method": "system", "catalog": "catalogue"}.get(option, option)
    with pytest.raises(StudyError, match=f"unknown {name}"):
        CliRunner().invoke(app, ["mcp", f"--{option}", "pigeon"], catch_exceptions=False)


def test_the_agent_is_made_at_the_first_call_and_once(agent):
    starts, free = [], threading.Event()

    def slow():
        starts.append(1)
        if len(starts) == 1:
            raise StudyError("the catalogue is not there", fix="fetch it")
        free.wait(30)
        return agent

    async def work(client):
        assert len((await client.list_tools()).tools) == 5
        assert starts == []
        failed = await client.call_tool(DESCRIBE, {})
        assert failed.is_error
        assert "the catalogue is not there" in failed.content[0].text
        calls = [asyncio.ensure_future(client.call_tool(DESCRIBE, {})) for _ in range(5)]
        await asyncio.sleep(0.2)
        # While the agent is being made the server still answers.
        assert len((await client.list_tools()).tools) == 5
        assert not any(call.done() for call in calls)
        free.set()
        return [read(reply)["servers"] for reply in await asyncio.gather(*calls)]

    assert within(Client(mcp.server(mcp.lazy(slow))), work) == [7] * 5
    assert len(starts) == 2


def test_a_value_is_taken_however_a_host_writes_it_and_wins_over_the_task(agent):
    calls = [(RECOMMEND, {"task": task, "constraints": stated} | FULL) for task, stated, _ in WRITTEN]
    odd = [(EXPLAIN, {"task": "captions", "server_id": 11.0}), (COMPARE, {"task": "x", "server_ids": "[11, 12.0]"})]
    odd += [(RECOMMEND, {"task": "captions", "top": top, "detail": None}) for top in (2.0, None)]
    replies = called(agent, *calls, *odd)
    for (_, _, meant), reply in zip(WRITTEN, replies[: len(WRITTEN)], strict=True):
        answer = read(reply)
        assert Limits(**meant).model_dump().items() <= answer["specification"].items()
        assert len(answer["recommendations"]) > ("stars" not in meant)
    assert not any(reply.is_error for reply in replies)


def test_hostile_servers_are_strings_in_a_result(hostile):
    """One text block of JSON: a description can end neither the string nor the block."""
    task = {"task": "captions for videos"}
    calls = [(EXPLAIN, task | {"server_id": server}) for server in HOSTILE]
    short, full, *replies = called(hostile, (RECOMMEND, task), (RECOMMEND, task | {"top": 20} | FULL), *calls)
    ids = [item["server_id"] for item in read(full)["recommendations"]]
    assert len(ids) == len(set(ids)) == 20
    assert [read(reply)["server_id"] for reply in replies] == list(HOSTILE)
    # Five servers take two kilobytes, each fact once.
    assert len(read(short)["servers"]) == 5
    assert len(short.content[0].text.encode()) <= 2_048
