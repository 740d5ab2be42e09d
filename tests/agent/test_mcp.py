"""The MCP server, driven by the official client over both transports."""

import asyncio
import json
import os
import sys
import threading
from pathlib import Path

import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client
from typer.testing import CliRunner

from study.agent import mcp_server
from study.cli.agent import app
from study.errors import StudyError
from tests.agent.messages import MESSAGES

TOOLS = ["recommend_mcp_servers", "compare_mcp_servers", "explain_recommendation", "describe_catalog"]
# The toy agent as a program of its own, as a client would start it.
PROGRAM = """
from tests.agent import conftest
from study.agent import mcp_server
from study.agent.agent import Agent
from study.agent.retrieval import Lexical
data = conftest.catalogue()
agent = Agent(data, retriever=Lexical(data))
mcp_server.server(lambda: agent).run("stdio")
"""
BAD = [*MESSAGES["wrong_calls"], ("recommend_mcp_servers", {"task": "x" * 20_001}, "task")]


# Tool -> names that its result's schema declares, however deep.
SERVER = "server_id name description evidence fields links scores text rule servers sources "
RETURNED = {
    "recommend_mcp_servers": SERVER + "specification intent open recommendations why tradeoffs adoption comparison "
    "composition removals in_pool left_without kept relax checks claims removed reading",
    "compare_mcp_servers": SERVER + "table field values prefer",
    "explain_recommendation": SERVER + "why tradeoff adoption url",
    "describe_catalog": "dataset servers system languages platforms licences preferences domains median_stars",
}


def properties(schema):
    """The names of all properties that a schema declares."""
    if isinstance(schema, list):
        return {name for part in schema for name in properties(part)}
    if not isinstance(schema, dict):
        return set()
    own = set(schema["properties"]) if isinstance(schema.get("properties"), dict) else set()
    return own | {name for part in schema.values() for name in properties(part)}


def stdio():
    root = str(Path(__file__).resolve().parents[2])
    environment = os.environ | {"PYTHONPATH": root}
    return stdio_client(StdioServerParameters(command=sys.executable, args=["-c", PROGRAM], env=environment, cwd=root))


async def exercise(client):
    """Everything that a client may do, rightly and wrongly; returns the answer to one request."""
    tools = (await client.list_tools()).tools
    assert sorted(tool.name for tool in tools) == sorted(TOOLS)
    for tool in tools:
        assert tool.description
        assert tool.annotations.read_only_hint
        assert properties(tool.output_schema) >= set(RETURNED[tool.name].split())
        assert tool.output_schema["additionalProperties"] is False
    assert "never as instructions" in client.instructions

    answer = await client.call_tool(
        "recommend_mcp_servers", {"task": "captions for videos", "constraints": {"languages": ["go"]}}
    )
    assert not answer.is_error
    found = answer.structured_content
    assert [item["server_id"] for item in found["recommendations"]] == [17, 13]
    assert json.loads(answer.content[0].text) == found

    compared = (
        await client.call_tool("compare_mcp_servers", {"task": "captions", "server_ids": [11, 12]})
    ).structured_content
    assert [server["server_id"] for server in compared["servers"]] == [11, 12]
    assert compared["prefer"]
    why = (await client.call_tool("explain_recommendation", {"task": "captions", "server_id": 17})).structured_content
    assert {"why", "tradeoff", "adoption"} <= set(why)
    about = (await client.call_tool("describe_catalog", {})).structured_content
    assert about["servers"] == 7
    assert "Go" in about["languages"]
    assert about["domains"] == ["Marketing", "Retail", "Security", "tools", "Video Production"]
    charts = {"task": "charts", "constraints": {"domain": about["domains"][0]}}
    assert not (await client.call_tool("recommend_mcp_servers", charts)).is_error

    for name, arguments, reason in BAD:
        reply = await client.call_tool(name, arguments)
        assert reply.is_error, (name, arguments)
        assert reason in reply.content[0].text, (name, arguments, reply.content[0].text)
        assert "Traceback" not in reply.content[0].text

    languages = ["Go", "Python", "TypeScript", "JavaScript"]
    calls = [
        client.call_tool(
            "recommend_mcp_servers", {"task": f"captions number {n}", "constraints": {"languages": [languages[n % 4]]}}
        )
        for n in range(100)
    ]
    for number, reply in enumerate(await asyncio.gather(*calls)):
        assert not reply.is_error
        said = reply.structured_content["specification"]
        assert said["intent"] == f"captions number {number}"
        assert said["languages"] == [languages[number % 4]]


def test_over_standard_input_and_output():
    async def run():
        async with Client(stdio(), read_timeout_seconds=60, cache=None) as client:
            await exercise(client)

    asyncio.run(asyncio.wait_for(run(), 120))


def test_over_streamable_http(agent, serve):
    async def run(address):
        async with create_mcp_http_client() as http:
            transport = streamable_http_client(f"{address}/mcp", http_client=http)
            async with Client(transport, read_timeout_seconds=60, cache=None) as client:
                await exercise(client)

    with serve(mcp_server.server(lambda: agent).streamable_http_app()) as address:
        asyncio.run(asyncio.wait_for(run(address), 120))


def test_the_command_of_the_readme_over_standard_input_and_output(study):
    words = ["-m", "study", "agent", "mcp", "--dataset", "synthetic", "--retriever", "tfidf"]
    program = StdioServerParameters(command=sys.executable, args=words, env=os.environ | {"T2M_ROOT": str(study)})

    async def run():
        async with Client(stdio_client(program), read_timeout_seconds=60, cache=None) as client:
            about = (await client.call_tool("describe_catalog", {})).structured_content
            assert "Python" in about["languages"]
            wanted = {"task": "draw charts", "constraints": {"languages": ["Python"]}}
            reply = await client.call_tool("recommend_mcp_servers", wanted)
            return about, reply.structured_content

    about, answer = asyncio.run(asyncio.wait_for(run(), 120))
    assert (about["dataset"], about["servers"], about["system"]) == ("synthetic", 60, "tfidf")
    assert 1 <= len(answer["recommendations"]) <= 5
    assert answer["checks"]["removed"] == 0


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--retriever", "google"], "unknown retriever"),
        (["--dataset", "nowhere"], "not prepared"),
        (["--transport", "pigeon"], "unknown transport"),
    ],
)
def test_a_wrong_call_of_the_command_is_said_at_once(study, words, reason):
    with pytest.raises(StudyError, match=reason):
        CliRunner().invoke(app, ["mcp", "--dataset", "synthetic", *words], catch_exceptions=False)


def test_the_agent_is_made_at_the_first_call_and_once(agent):
    made, free = [], threading.Event()

    def slow():
        made.append(1)
        if len(made) == 1:
            raise StudyError("the catalogue is not there", fix="fetch it")
        free.wait(30)
        return agent

    async def run():
        async with Client(mcp_server.server(mcp_server.Lazy(slow))) as client:
            assert len((await client.list_tools()).tools) == 4
            assert made == []
            failed = await client.call_tool("describe_catalog", {})
            assert failed.is_error
            assert "the catalogue is not there" in failed.content[0].text
            calls = [asyncio.ensure_future(client.call_tool("describe_catalog", {})) for _ in range(5)]
            await asyncio.sleep(0.2)
            # While the agent is being made the server still answers.
            assert len((await client.list_tools()).tools) == 4
            assert not any(call.done() for call in calls)
            free.set()
            for reply in await asyncio.gather(*calls):
                assert reply.structured_content["servers"] == 7

    asyncio.run(asyncio.wait_for(run(), 60))
    assert len(made) == 2


def test_stated_constraints_win_over_the_words_of_the_task(agent):
    async def run(task, **stated):
        async with Client(mcp_server.server(lambda: agent)) as client:
            reply = await client.call_tool("recommend_mcp_servers", {"task": task, "constraints": stated})
            return reply.structured_content

    found = asyncio.run(run("captions in Python", unwanted_languages=["Python"]))
    assert (found["specification"]["languages"], found["specification"]["unwanted_languages"]) == ([], ["Python"])
    assert found["recommendations"]
    found = asyncio.run(run("captions, no Python, only official servers", languages=["Python"], official=False))
    assert found["specification"]["languages"] == ["Python"]
    assert found["specification"]["unwanted_languages"] == []
    assert found["specification"]["official"] is False
    assert 12 in [item["server_id"] for item in found["recommendations"]]
    found = asyncio.run(run("captions in Go", languages=[]))
    assert found["specification"]["languages"] == []


def test_over_http_only_the_named_address_is_answered():
    chosen = mcp_server.only("fd00::1", ["127.0.0.1"])
    assert {"[fd00::1]", "[fd00::1]:*", "127.0.0.1:*"} <= set(chosen.allowed_hosts)
    assert chosen.enable_dns_rebinding_protection


@pytest.mark.parametrize("headers", [{"Host": "evil.example"}, {"Origin": "https://evil.example"}])
def test_pages_of_other_sites_cannot_call_it(agent, serve, headers):
    import httpx2

    with serve(mcp_server.server(lambda: agent).streamable_http_app()) as address:
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
        accept = {"Accept": "application/json, text/event-stream"}
        with httpx2.Client(trust_env=False) as client:
            assert client.post(f"{address}/mcp", json=body, headers=accept | headers).status_code in (403, 421)


def test_hostile_servers_are_strings_in_a_result(hostile):
    async def run():
        async with Client(mcp_server.server(lambda: hostile)) as client:
            reply = await client.call_tool("recommend_mcp_servers", {"task": "captions for videos", "top": 20})
            return reply

    reply = asyncio.run(run())
    found = reply.structured_content
    ids = [item["server_id"] for item in found["recommendations"]]
    assert len(ids) == len(set(ids)) == 20
    assert set(ids) <= {*range(11, 18), *range(901, 951)}
    # One text block of JSON: a description can end neither the string nor the block.
    assert len(reply.content) == 1
    assert json.loads(reply.content[0].text) == found


def test_every_hostile_server_can_be_explained_and_stays_a_string(hostile):
    async def run():
        async with Client(mcp_server.server(lambda: hostile)) as client:
            return [
                await client.call_tool("explain_recommendation", {"task": "captions for videos", "server_id": server})
                for server in range(901, 951)
            ]

    replies = asyncio.run(run())
    assert [reply.structured_content["server_id"] for reply in replies] == list(range(901, 951))
    for reply in replies:
        assert not reply.is_error
        assert len(reply.content) == 1
        assert json.loads(reply.content[0].text) == reply.structured_content
        named = [
            server
            for part in ("why", "tradeoff", "adoption")
            for claim in reply.structured_content[part]
            for server in claim["servers"]
        ]
        assert set(named) == {reply.structured_content["server_id"]}


# Arguments that a tool does not know

UNKNOWN = MESSAGES["unknown_arguments"]


def called(agent, name, arguments):
    async def run():
        async with Client(mcp_server.server(lambda: agent)) as client:
            return await client.call_tool(name, arguments)

    return asyncio.run(asyncio.wait_for(run(), 60))


@pytest.mark.parametrize(("name", "arguments", "unknown"), UNKNOWN, ids=[unknown for _, _, unknown in UNKNOWN])
def test_an_unknown_argument_is_refused_by_name(agent, name, arguments, unknown):
    reply = called(agent, name, arguments)
    assert reply.is_error
    assert unknown in reply.content[0].text
    assert "not permitted" in reply.content[0].text
    known = {key: value for key, value in arguments.items() if key != unknown}
    assert not called(agent, name, known).is_error


def test_the_schemas_say_that_nothing_else_is_taken(agent):
    async def run():
        async with Client(mcp_server.server(lambda: agent)) as client:
            return (await client.list_tools()).tools

    tools = {tool.name: tool.input_schema for tool in asyncio.run(asyncio.wait_for(run(), 60))}
    assert len(tools) == 4
    for schema in tools.values():
        assert schema["additionalProperties"] is False
    assert set(tools["recommend_mcp_servers"]["properties"]) == {"task", "constraints", "top"}
    assert tools["recommend_mcp_servers"]["required"] == ["task"]
    stated = tools["recommend_mcp_servers"]["$defs"]["Constraints"]["properties"]
    assert all("groups" in stated[name]["description"] for name in ("licences", "unwanted_licences"))


def test_a_group_of_licences_is_refused_as_the_description_says(agent):
    reply = called(agent, "recommend_mcp_servers", {"task": "captions", "constraints": {"licences": ["permissive"]}})
    assert reply.is_error
    assert "unknown licence" in reply.content[0].text
