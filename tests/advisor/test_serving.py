"""What is served over HTTP, at real sockets: a request that does not come is not waited for, and an answer is."""

import asyncio
import json
import socket
import time
from urllib.parse import urlsplit

import httpx2
import pytest
import uvicorn
from mcp import Client
from typer.testing import CliRunner

from study.advisor import serving
from study.advisor.agent import mcp, page
from study.advisor.agent.conversation import Agent
from study.advisor.engine.intent.feedback import FeedbackStore
from study.advisor.gateway import interface
from study.advisor.gateway.gateway import Gateway
from study.advisor.gateway.server import make_server, run
from study.cli import agent as cli
from tests.advisor.agent.conftest import serving as at_address
from tests.advisor.agent.conftest import toy
from tests.advisor.gateway.served import QUICK

HEAD = b"POST %s HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nAccept: application/json"
LATE = {
    "nothing": b"",
    "half a head": HEAD,
    "half a body": HEAD + b", text/event-stream\r\nContent-Length: 90\r\n\r\n{",
    "half a head after a request": b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" + HEAD,
    "half a body after a request": b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    + HEAD
    + b"\r\nContent-Length: 9\r\n\r\n",
}
ACCEPT = {"Accept": "application/json, text/event-stream"}
HOST = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
HELLO = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": HOST}


@pytest.fixture
def application(tmp_path):
    """Makes each of the applications that are served, with the path that takes a body."""

    def make(name):
        agent = Agent(toy())
        if name == "page":
            return page.create_app(agent, FeedbackStore(tmp_path / "x.sqlite"), page.Service.read()), "/api/messages"
        gateway = Gateway([], QUICK, embedder=None, say=lambda _: None)
        return (mcp.server(lambda: agent) if name == "agent" else make_server(gateway)).streamable_http_app(), "/mcp"

    return make


def closed(address, sent, drip=b""):
    """Whether the other end closes a connection on which no more comes than `sent`, or `drip` now and then."""
    with socket.create_connection(("127.0.0.1", urlsplit(address).port), timeout=0.1) as connection:
        connection.sendall(sent)
        until = time.monotonic() + 20
        while time.monotonic() < until:
            try:
                if drip:
                    connection.sendall(drip)
                if not connection.recv(100_000):
                    return True
            except TimeoutError:
                continue
            except OSError:
                return True
    return False


@pytest.mark.parametrize("late", LATE)
@pytest.mark.parametrize("name", ["page", "agent", "gateway"])
def test_a_request_that_does_not_come_is_not_waited_for(application, monkeypatch, caplog, name, late):
    monkeypatch.setattr(serving, "SECONDS", 0.5)
    app, path = application(name)
    with at_address(app) as address:
        sent = LATE[late].replace(b"%s", path.encode())
        assert closed(address, sent)
        assert closed(address, sent, drip=b"x") or "head" not in late
    assert [record for record in caplog.records if record.exc_info] == []


def test_an_answer_may_take_its_time(monkeypatch):
    monkeypatch.setattr(serving, "SECONDS", 0.5)
    agent = Agent(toy())

    def slow():
        time.sleep(1.2)
        return agent

    async def work(address):
        async with Client(f"{address}/mcp", read_timeout_seconds=60, cache=None) as client:
            return await client.call_tool("describe_catalog", {})

    with at_address(mcp.server(slow).streamable_http_app()) as address, httpx2.Client(trust_env=False) as client:
        reply = asyncio.run(asyncio.wait_for(work(address), 60))
        assert json.loads(reply.content[0].text)["servers"] == 7
        begun = client.post(f"{address}/mcp", json=HELLO, headers=ACCEPT)
        session = {"Mcp-Session-Id": begun.headers["mcp-session-id"]}
        with client.stream("GET", f"{address}/mcp", headers=ACCEPT | session, timeout=1.2) as stream:
            assert stream.status_code == 200
            with pytest.raises(httpx2.ReadTimeout):  # nothing is said, and the stream stays open
                next(stream.iter_raw())


def test_so_many_connections_are_served_at_once_and_no_more(application, monkeypatch):
    monkeypatch.setattr(serving, "SECONDS", 2.0)
    monkeypatch.setattr(serving, "CONNECTIONS", 4)
    with at_address(application("page")[0]) as address:
        idle = [socket.create_connection(("127.0.0.1", urlsplit(address).port)) for _ in range(4)]
        time.sleep(0.2)
        assert httpx2.get(address, trust_env=False).status_code == 503
        for connection in idle:
            connection.settimeout(20)
            assert connection.recv(1) == b""
            connection.close()
        assert httpx2.get(address, trust_env=False).status_code == 200


@pytest.mark.parametrize("host", ["gateway", "agent"])
def test_so_many_hosts_of_this_machine_have_a_session_over_http_and_no_more(monkeypatch, host):
    monkeypatch.setattr(interface, "SESSIONS", 2)
    monkeypatch.setattr("study.advisor.engine.catalogue.require", lambda *given: None)
    apps = []

    async def serve(self, sockets=None):
        apps.append(self.config.app)

    with monkeypatch.context() as patch:
        patch.setattr(uvicorn.Server, "serve", serve)
        if host == "gateway":
            mcp_server = make_server(Gateway([], QUICK, embedder=None, say=lambda _: None))
            run(mcp_server, "streamable-http", 4321)
        else:
            words = ["mcp", "--transport", "streamable-http", "--port", "4321"]
            CliRunner().invoke(cli.app, words, catch_exceptions=False)
    own = {"Host": "127.0.0.1:4321"}
    with at_address(apps[0]) as address:
        statuses = [
            httpx2.post(f"{address}/mcp", json=HELLO, headers=ACCEPT | headers, trust_env=False).status_code
            for headers in ({"Host": "evil.example"}, own | {"Origin": "https://evil.example"}, own, own, own)
        ]
    assert statuses == [421, 403, 200, 200, 503]
