"""The MCP tools refuse arguments that they do not know, and say so in their schemas."""

import asyncio

import pytest
from mcp import Client

from study.agent import mcp_server

UNKNOWN = [
    ("recommend_mcp_servers", {"task": "captions", "languages": ["Go"]}, "languages"),
    ("recommend_mcp_servers", {"task": "captions", "limit": 3}, "limit"),
    ("compare_mcp_servers", {"task": "captions", "server_ids": [11, 12], "constraints": {}}, "constraints"),
    ("explain_recommendation", {"task": "captions", "server_id": 11, "verbose": True}, "verbose"),
    ("describe_catalog", {"dataset": "toy"}, "dataset"),
]


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
