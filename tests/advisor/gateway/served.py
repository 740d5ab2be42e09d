"""A server over scripted servers, a host of it, and configurations that name scripted servers."""

import asyncio
import json
import os
import sys
import time
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from mcp import Client

from study.advisor.gateway.client_config import Endpoint
from study.advisor.gateway.gateway import Gateway
from study.advisor.gateway.server import make_server
from study.advisor.gateway.view import serve_settings
from tests.tiny_study import REPOSITORY

SCRIPT = str(Path(__file__).with_name("scripted_mcp_server.py"))
QUICK = replace(serve_settings(), start_seconds=60.0, check_seconds=5.0, budget=100_000)


def scripted(name, mode, *words):
    return Endpoint(name, sys.executable, ("-I", "-S", SCRIPT, mode, *words))


def entry(mode, *words, **more):
    """A scripted server as a client's configuration names it."""
    return {"command": sys.executable, "args": ["-I", "-S", SCRIPT, mode, *words]} | more


def config(folder, **servers):
    path = folder / "mcp.json"
    path.write_text(json.dumps({"mcpServers": servers}))
    return path


def environment(project):
    """The environment of a program that imports the study and works in a project folder."""
    path = os.pathsep.join([str(REPOSITORY / "src"), str(REPOSITORY)])
    return os.environ | {"PYTHONPATH": path, "T2M_ROOT": str(project)}


@pytest.fixture
def served(embedder):
    """A client of a server over `endpoints`, and its gateway; `said`: what a person is told."""

    @asynccontextmanager
    async def run(*endpoints, settings=QUICK, **how):
        gateway = Gateway(endpoints, settings, embedder=embedder, say=run.said.append, **how)
        async with asyncio.timeout(200), Client(make_server(gateway)) as client:
            yield client, gateway

    run.said = []
    return run


async def ask(client, what, **arguments):
    """The JSON of a tool's answer."""
    reply = await client.call_tool(what, arguments)
    assert not reply.is_error, reply.content
    return json.loads(reply.content[0].text)


async def call(client, name, **arguments):
    """The text of a tool's answer, and whether it is an error."""
    reply = await client.call_tool("call_tool", {"name": name, "arguments": arguments})
    return " ".join(block.text for block in reply.content), reply.is_error


def wait(holds, seconds=60):
    """Whether a condition comes to hold in time."""
    until = time.monotonic() + seconds
    while not holds() and time.monotonic() < until:
        time.sleep(0.05)
    return holds()


def gone(numbers):
    """Whether processes end in time."""

    def runs(number):
        return psutil.pid_exists(number) and psutil.Process(number).status() != "zombie"

    return wait(lambda: not any(map(runs, numbers)), 10)
