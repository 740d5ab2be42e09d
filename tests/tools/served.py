"""A server over scripted servers, and a host of it."""

import asyncio
import json
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from mcp import Client

from study.advisor.gateway.client_config import Endpoint
from study.advisor.gateway.gateway import Gateway
from study.advisor.gateway.server import make_server
from study.advisor.gateway.settings import serve_settings

SCRIPT = str(Path(__file__).with_name("scripted_mcp_server.py"))
QUICK = replace(serve_settings(), start_seconds=60.0, check_seconds=5.0, budget=100_000)


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
