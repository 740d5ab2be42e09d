"""One engine: every interface names the same servers for the same request over the same catalogue."""

import asyncio
import json

import httpx2
import pytest
from mcp import Client

from study.advisor.agent import mcp, page
from study.advisor.agent.conversation import Agent
from study.advisor.engine.catalogue import load
from tests.advisor.agent.conftest import serving
from tests.advisor.engine.conftest import ask, project  # noqa: F401
from tests.advisor.engine.test_catalogue import TEXTS, encoded, take  # noqa: F401

REQUESTS = (
    "read a PDF and extract all tables",
    "send electronic mail, MIT licence",
    "find places on a map, in Python",
    "a popular server for mail, official only",
    "zzz qqq",
)


def by_command(call, *words):
    """The ids that a command prints as JSON."""
    code, out, err = call(*words, "--json")
    assert code == 0, err
    return [row["server_id"] for row in json.loads(out)["recommendations"]]


def by_page(agent, feedback, requests):
    """The ids that the page shows for each request, each in a conversation of its own."""
    ids = []
    with serving(page.create_app(agent, feedback, page.Service.read())) as address:
        client = httpx2.Client(base_url=address, timeout=60, trust_env=False)
        for request in requests:
            name = client.post("/api/conversations", json={}).json()["conversation"]
            turn = client.post("/api/messages", json={"text": request}, headers={"X-Conversation": name}).json()
            ids.append([server["server_id"] for server in turn["servers"]])
        client.close()
    return ids


def by_mcp(agent, requests):
    """The ids that the MCP server names for each request."""

    async def work():
        ids = []
        async with Client(mcp.server(lambda: agent)) as client:
            for request in requests:
                reply = await client.call_tool("recommend_mcp_servers", {"task": request})
                ids.append([row["server_id"] for row in json.loads(reply.content[0].text)["servers"]])
        return ids

    return asyncio.run(asyncio.wait_for(work(), 600))


def same(call, feedback, agent, *words, requests=REQUESTS):
    """The ids of every interface agree; returns them."""
    answers = [by_command(call, "recommend", *words, request) for request in requests]
    assert [by_command(call, "agent", "ask", *words, request) for request in requests] == answers
    assert by_page(agent, feedback, requests) == answers
    assert by_mcp(agent, requests) == answers
    assert any(answers)
    return answers


def test_every_interface_answers_alike_from_a_data_set(project, call, feedback):  # noqa: F811
    same(call, feedback, Agent(load(dataset="synthetic")), "--dataset", "synthetic")


@pytest.mark.usefixtures("private_cache")
def test_every_interface_answers_alike_from_the_open_catalogue(conf_root, encoded, call, feedback):  # noqa: F811
    more = {"notes": "Keeps notes in a folder", "music": "Plays music from a list", "cards": "Deals playing cards"}
    take(TEXTS | more)
    answers = same(call, feedback, Agent(load()))
    assert answers[0][0] == "o/pdf"
    assert same(call, feedback, Agent(load(["mine", "open"])), "--catalog", "mine", "--catalog", "open") == answers
