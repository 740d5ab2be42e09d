"""The MCP server, driven by the official client over both transports."""

import asyncio
import json
import os
import sys
import textwrap
from pathlib import Path

import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client

from study.agent import mcp_server

TOOLS = ["recommend_mcp_servers", "compare_mcp_servers", "explain_recommendation", "describe_catalog"]
# The toy agent as a program of its own, as a client would start it.
PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
import conftest
from study.agent import mcp_server
from study.agent.agent import Agent
from study.agent.retrieval import Lexical
data = conftest.catalogue()
mcp_server.server(Agent(data, retriever=Lexical(data))).run("stdio")
"""
BAD = [
    ("recommend_mcp_servers", {}, "task"),
    ("recommend_mcp_servers", {"task": ""}, "task"),
    ("recommend_mcp_servers", {"task": "   "}, "empty"),
    ("recommend_mcp_servers", {"task": 5}, "task"),
    ("recommend_mcp_servers", {"task": "x" * 20_001}, "task"),
    ("recommend_mcp_servers", {"task": "captions", "top": 0}, "top"),
    ("recommend_mcp_servers", {"task": "captions", "top": "5"}, "top"),
    ("recommend_mcp_servers", {"task": "captions", "constraints": {"languages": ["Klingon"]}}, "unknown language"),
    ("recommend_mcp_servers", {"task": "captions", "constraints": {"bogus": 1}}, "bogus"),
    ("recommend_mcp_servers", {"task": "captions", "constraints": {"stars": -1}}, "stars"),
    ("compare_mcp_servers", {"task": "captions", "server_ids": [11]}, "server_ids"),
    ("compare_mcp_servers", {"task": "captions", "server_ids": [11, 11]}, "different"),
    ("compare_mcp_servers", {"task": "captions", "server_ids": [11, 999]}, "no server has the id 999"),
    ("compare_mcp_servers", {"task": "captions", "server_ids": "11,12"}, "server_ids"),
    ("explain_recommendation", {"task": "captions", "server_id": -1}, "server_id"),
    ("explain_recommendation", {"task": "captions", "server_id": 999}, "no server"),
    ("no_such_tool", {}, "no_such_tool"),
]


def stdio(tmp_path):
    script = tmp_path / "server.py"
    script.write_text(textwrap.dedent(PROGRAM))
    arguments = [str(script), str(Path(__file__).parent)]
    return stdio_client(StdioServerParameters(command=sys.executable, args=arguments, env=dict(os.environ)))


async def exercise(client):
    """Everything that a client may do, rightly and wrongly; returns the answer to one request."""
    tools = (await client.list_tools()).tools
    assert sorted(tool.name for tool in tools) == sorted(TOOLS)
    for tool in tools:
        assert tool.description
        assert tool.annotations.read_only_hint
        assert tool.output_schema
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


def test_over_standard_input_and_output(tmp_path):
    async def run():
        async with Client(stdio(tmp_path), read_timeout_seconds=60, cache=None) as client:
            await exercise(client)

    asyncio.run(asyncio.wait_for(run(), 120))


def test_over_streamable_http(agent, serve):
    async def run(address):
        async with create_mcp_http_client() as http:
            transport = streamable_http_client(f"{address}/mcp", http_client=http)
            async with Client(transport, read_timeout_seconds=60, cache=None) as client:
                await exercise(client)

    with serve(mcp_server.server(agent).streamable_http_app()) as address:
        asyncio.run(asyncio.wait_for(run(address), 120))


@pytest.mark.parametrize("headers", [{"Host": "evil.example"}, {"Origin": "https://evil.example"}])
def test_pages_of_other_sites_cannot_call_it(agent, serve, headers):
    import httpx2

    with serve(mcp_server.server(agent).streamable_http_app()) as address:
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
        accept = {"Accept": "application/json, text/event-stream"}
        with httpx2.Client(trust_env=False) as client:
            assert client.post(f"{address}/mcp", json=body, headers=accept | headers).status_code in (403, 421)


def test_hostile_servers_are_strings_in_a_result(hostile):
    async def run():
        async with Client(mcp_server.server(hostile)) as client:
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
