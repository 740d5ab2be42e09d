"""Parts of the gateway: what a call takes, what a guard passes on, odd servers and many hosts over HTTP."""

import asyncio
import sys
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace

import httpx2
import numpy as np
import pytest
import uvicorn
from mcp.server.mcpserver import MCPServer
from mcp.types import CallToolResult, TextContent
from typer.testing import CliRunner

from study.advisor.gateway import gateway as module
from study.advisor.gateway import guard, interface, server
from study.advisor.gateway.client_config import Endpoint
from study.advisor.gateway.gateway import Gateway
from study.advisor.gateway.view import serve_settings
from study.cli import agent as cli
from tests.advisor.agent.conftest import serving

# One letter of three bytes, and what is none: half of a surrogate pair, and bytes of another encoding.
ODD = {b"surrog": rb"\ud800", b"latin1": b"\xe9t\xe9t\xe9t"}


def test_the_latency_of_a_call_is_noted_in_milliseconds(monkeypatch):
    clock = iter([10.0, 11.0, 11.25])  # before the server is there, as the call is sent, and at the answer
    monkeypatch.setattr(module, "time", SimpleNamespace(time=lambda: 0.0, perf_counter=lambda: next(clock)))

    async def answer(*_):
        return CallToolResult(content=[TextContent(type="text", text="done")])

    async def child(owner):
        return SimpleNamespace(using=using, call=answer)

    @asynccontextmanager
    async def using():
        yield None

    catalog = SimpleNamespace(tools=[SimpleNamespace(name="read", schema={})])
    noted, view = [], SimpleNamespace(row=lambda name: 0, owners=["s"], keys=["s/read"], catalog=catalog)
    parts = {"view": view, "pool": SimpleNamespace(child=child), "checker": SimpleNamespace(check=answer)}
    gateway = SimpleNamespace(**parts, settings=serve_settings(), _note=lambda *words: noted.append(words))
    asyncio.run(Gateway.call(gateway, "host", "read", {}))
    assert noted == [("host", "s/read", True, 0.0, 250.0)]


@pytest.mark.parametrize(("limit", "end"), [(1_000, "exit code 0"), (3, "a message is longer than 3 bytes")])
def test_a_guard_passes_whole_lines_on_up_to_a_length(monkeypatch, limit, end):
    passed = []

    def ended(self, reason):
        raise SystemExit(reason)

    monkeypatch.setattr(guard, "write", lambda stream, content: passed.append((stream, content)))
    monkeypatch.setattr(guard.Guard, "end", ended)
    for part in ("to_server", "watch"):
        monkeypatch.setattr(guard.Guard, part, lambda self: None)
    made = guard.Guard(limit, [sys.executable, "-I", "-S", "-c", "print('long'); print('b', end='')"])
    with pytest.raises(SystemExit, match=end):
        made.run()
    made.server.wait(10)
    for stream in (made.server.stdin, made.server.stdout, made.server.stderr):
        stream.close()
    assert b"".join(content for _, content in passed) == (b"long\nb" if limit > 3 else b"")
    assert {stream for stream, _ in passed} <= {1}


@pytest.mark.parametrize("kind", ["http", "sse"])
def test_what_is_no_letter_costs_a_tool_or_a_letter_and_not_a_server_over_http(kind):
    made = MCPServer("web")
    for name, description in (("send", "send a mail"), ("x", "half of a pair: surrog"), ("y", "not UTF-8: latin1")):
        made.add_tool(lambda to: f"sent to {to}", name=name, description=description, structured_output=False)
    app, path = (made.sse_app(), "/sse") if kind == "sse" else (made.streamable_http_app(), "/mcp")

    async def odd(scope, receive, send):
        async def sent(message):
            for whole, broken in ODD.items():
                message["body"] = message.get("body", b"").replace(whole, broken)
            await send(message)

        await app(scope, receive, sent if scope["type"] == "http" else send)

    async def work(address):
        embedder = SimpleNamespace(encode=lambda texts, store=True: np.ones((len(texts), 2), np.float32))
        endpoint = Endpoint("web", url=f"{address}{path}", transport=kind)
        settings = replace(serve_settings(), start_seconds=30.0)
        async with Gateway([endpoint], settings, embedder=embedder, say=lambda _: None) as gateway:
            problems = (await gateway.refresh())["problems"]
            texts = [(await gateway.call("h", "send", {"to": f"you {odd.decode()}"})).content[0].text for odd in ODD]
            return gateway.view.names, problems, texts

    with serving(odd) as address:
        names, problems, texts = asyncio.run(asyncio.wait_for(work(address), 60))
    assert names == ["send"]
    assert problems["web"].endswith("'x', 'y'")
    assert texts == ["sent to you \ufffd", "sent to you \ufffdt\ufffdt\ufffdt"]


@pytest.mark.parametrize("host", ["gateway", "agent"])
def test_so_many_hosts_have_a_session_over_http_and_no_more(monkeypatch, host):
    for where in (interface, server):
        monkeypatch.setattr(where, "SESSIONS", 2)
    monkeypatch.setattr("study.advisor.engine.catalogue.require", lambda *given: None)
    served = []

    async def serve(self, sockets=None):
        served.append(self.config.app)

    with monkeypatch.context() as patch:
        patch.setattr(uvicorn.Server, "serve", serve)
        if host == "gateway":
            made = server.make_server(Gateway([], serve_settings(), embedder=None, say=lambda _: None))
            server.run(made, "streamable-http", 4321)
        else:
            words = ["mcp", "--transport", "streamable-http", "--port", "4321"]
            CliRunner().invoke(cli.app, words, catch_exceptions=False)
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
    body = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}
    headers = {"Accept": "application/json, text/event-stream", "Host": "127.0.0.1:4321"}
    with serving(served[0]) as address:
        replies = [httpx2.post(f"{address}/mcp", json=body, headers=headers, trust_env=False) for _ in range(3)]
    assert [reply.status_code for reply in replies] == [200, 200, 503]
