"""Running servers, well-behaved and not: a clear outcome for each, and the rest indexed."""

import json
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from mcp.server.mcpserver import MCPServer

from study.advisor.encoders import sentence as encoders
from study.advisor.gateway import client_config, live
from study.advisor.retrieval import documents as catalogs
from study.base.errors import StudyError
from study.cli.tool_catalogues import catalogue_file
from study.tools.collections import published
from tests.advisor.agent.conftest import serving

SEND = {"name": "send", "description": "send a mail", "inputSchema": {"type": "object"}}
SCRIPT = str(Path(__file__).with_name("scripted_mcp_server.py"))


def entry(mode):
    return {"command": sys.executable, "args": ["-I", "-S", SCRIPT, mode]}


def other(mode):
    """The same program as ever, which behaves as it does today."""
    return entry("other") | {"env": {"SCRIPTED_MODE": mode}}


def config(folder, **servers):
    path = folder / "mcp.json"
    path.write_text(json.dumps({"mcpServers": servers}))
    return path


@pytest.fixture
def index(project, run, tmp_path, monkeypatch):
    """`study tools index` for servers, with a stand-in for the encoder; it notes what it embeds."""
    asked = []

    def embed(texts, model, device):
        asked.append(sorted(texts))
        return np.eye(encoders.DIMENSION, dtype=np.float32)[: len(texts)]

    def call(seconds=60, **servers):
        words = ["--document", "name_desc", "--timeout", str(seconds), "--mcp-config", str(config(tmp_path, **servers))]
        return run("index", *words).output

    monkeypatch.setattr(encoders, "_embed", embed)
    call.asked = asked
    return call


def test_every_server_has_its_own_outcome(tmp_path):
    modes = ("good", "pages", "twins", "cyclic", "garbage", "one_bad", "surrogate", "latin", "stuck")
    modes += ("dies", "half", "lies", "endless", "prompts")
    servers = {mode: entry(mode) for mode in modes} | {"absent": {"command": "/no/such/program"}}
    listings = live.list_all(client_config.read_config(config(tmp_path, **servers)), timeout=60)
    problems = {listing.name: listing.problem for listing in listings}
    assert list(problems) == list(servers)
    answered = list(modes[:9])
    assert [name for name, problem in problems.items() if problem is None] == answered
    assert "does not end" in problems["endless"]
    assert problems["prompts"] == "it offers no tools, but prompts"
    remarks = {listing.name: listing.remark for listing in listings if listing.remark}
    assert list(remarks) == ["one_bad", "surrogate", "stuck", "lies"]
    assert remarks["surrogate"].endswith(": 'x'")
    assert "cursor" in remarks["stuck"]
    assert problems["lies"] == "no valid tool among 1 listed: their entries must follow the MCP schema"
    found, cleaning = live.build("mine", listings)
    assert [server.id for server in found.servers] == answered
    assert [len(found.tools_of(row)) for row in range(9)] == [1, 3, 2, 1, 1, 1, 1, 1, 1]
    assert found.servers[0].description == "keeps files"
    assert found.tools[0].parameters[0].name == "path"
    rows = cleaning.set_index("rule")["rows"]
    assert rows["server without a usable answer left out"] == 6
    assert rows["tool that the protocol does not allow left out"] == 3
    assert rows["name repeated inside one server"] == 1
    assert rows["tool without a name left out"] == 1


@pytest.mark.parametrize("mode", ["picky", "quiet", "modern"])
def test_a_server_is_greeted_as_it_wishes(tmp_path, mode):
    started = time.monotonic()
    (listing,) = live.list_all(client_config.read_config(config(tmp_path, s=entry(mode))), timeout=60)
    assert (listing.problem, len(listing.tools)) == (None, 1)
    assert time.monotonic() - started < 15


def test_no_value_of_an_entry_is_said(tmp_path):
    words = ["--key", "hunter2", "--other=hunter2-b", "postgres://u:hunter2@x/y", "hunter2'\"\n"]
    program = {"command": sys.executable, "args": ["-I", "-S", SCRIPT, "speaks", *words]}
    program["env"] = {"A_KEY": "hunter2", "LONG": f"hunter2{'x' * 1_000}"}
    servers = {
        "program": program,
        "header": {"url": "http://127.0.0.1:9/mcp", "headers": {"Authorization": "Bearer hunter2\n"}},
        "address": {"url": "http://u:hunter2@127.0.0.1:9/mcp?key=hunter2"},
        "absent": {"command": "/no/such/program", "args": ["hunter2-c"]},
    }
    listings = live.list_all(client_config.read_config(config(tmp_path, **servers)), timeout=60)
    for listing in listings:
        assert listing.problem
        assert "hunter2" not in listing.problem
    assert "***" in listings[0].problem
    assert "program cannot be started" in listings[3].problem


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 429, 503, 520])
@pytest.mark.parametrize("kind", ["http", "sse"])
def test_an_address_that_refuses_is_said_by_number_and_without_its_key(tmp_path, status, kind):
    async def app(scope, receive, send):
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": status, "headers": []})
            await send({"type": "http.response.body", "body": b"hunter2"})

    with serving(app) as address:
        entry = {"url": f"{address.replace('//', '//u:hunter2@')}/mcp?key=hunter2", "type": kind}
        (web,) = live.list_all(client_config.read_config(config(tmp_path, web=entry)), timeout=60)
    assert str(status) in web.problem
    assert "hunter2" not in web.problem


def test_what_a_program_gets_of_the_environment(tmp_path, monkeypatch):
    given = {"HTTPS_PROXY": "http://u:hunter2@proxy:1", "no_proxy": "x.y", "SSL_CERT_FILE": "/c.pem", "LANG": "de_DE"}
    given |= {"LC_ALL": "C.UTF-8", "TMPDIR": str(tmp_path), "DOCKER_HOST": "unix:///d", "XDG_CACHE_HOME": "/cache"}
    for name, value in (given | {"MY_TOKEN": "s3cret", "PYTHONPATH": "/x"}).items():
        monkeypatch.setenv(name, value)
    speaks = entry("speaks") | {"env": {"XDG_CACHE_HOME": "/own"}}
    (endpoint,) = client_config.read_config(config(tmp_path, s=speaks))
    assert endpoint.environment.items() >= (given | {"XDG_CACHE_HOME": "/own"}).items()
    assert not endpoint.environment.keys() & {"MY_TOKEN", "PYTHONPATH"}
    (said,) = live.list_all([endpoint], timeout=60)  # it says its whole environment
    assert "/c.pem" in said.problem
    assert "s3cret" not in said.problem
    assert "hunter2" not in said.problem


def test_servers_that_hang_do_not_hold_up_the_others(tmp_path):
    endpoints = client_config.read_config(config(tmp_path, hangs=entry("hangs"), mute=entry("mute")))
    started = time.monotonic()
    assert [listing.problem for listing in live.list_all(endpoints, timeout=1)] == ["no complete answer within 1 s"] * 2
    # The scripts sleep for 60 s; ending them takes a few seconds at most.
    assert time.monotonic() - started < 30


def test_a_server_over_http(tmp_path):
    made, keys = MCPServer("web"), set()
    made.add_tool(lambda to: to, name="send", description="send a mail")
    app = made.streamable_http_app()

    async def watched(scope, receive, send):
        if scope["type"] == "http":
            keys.add(dict(scope["headers"]).get(b"x-key"))
        await app(scope, receive, send)

    with serving(watched) as address:
        own = {"url": f"{address}/mcp", "headers": {"X-Key": "k"}}
        path = config(tmp_path, web=own, gone={"url": "http://127.0.0.1:9/mcp"})
        web, gone = live.list_all(client_config.read_config(path), timeout=60)
    assert web.problem is None
    assert [tool["name"] for tool in web.tools] == ["send"]
    assert keys == {b"k"}
    assert gone.problem is not None


def test_indexing_again_embeds_only_what_changed(index):
    shown = index(a=entry("good"), b=entry("dies"))
    outcomes = ["a: 1 tools", "b: left out", "1 new, 0 changed, 0 gone, 0 unchanged"]
    for line in (*outcomes, "cleaning: server without a usable answer left out: 1"):
        assert line in shown
    # The texts of tools, then those of servers.
    assert index.asked[0] == ["read_file: read a file"]
    asked = len(index.asked)
    assert "2 new, 1 changed, 0 gone, 0 unchanged" in index(a=entry("changed"), c=entry("good"))
    assert index.asked[asked] == ["more: read a file", "read_file: send a mail"]
    with pytest.raises(StudyError, match="no server gave a tool"):
        index(a=entry("dies"))
    assert len(catalogs.load_catalog(catalogue_file("mine")).tools) == 3


def test_an_outage_keeps_the_last_good_listing(index):
    index(a=entry("good"), b=other("changed"), c=entry("good") | {"env": {"OTHER": "1"}})
    before = catalogs.load_catalog(catalogue_file("mine"))
    today = before.servers[0].listed
    assert [(server.listed, server.problem) for server in before.servers] == [(today, "")] * 3
    # b worked and now hangs; c has left the configuration; d never worked.
    shown = index(3, a=entry("good"), b=other("hangs"), d=entry("dies"))
    outcomes = [f"b: kept from {today}: no complete answer within 3 s", "d: left out"]
    outcomes.append("0 new, 0 changed, 1 gone, 3 unchanged")
    for line in (*outcomes, "cleaning: server without a usable answer kept from before: 1"):
        assert line in shown
    after = catalogs.load_catalog(catalogue_file("mine"))
    assert [server.id for server in after.servers] == ["a", "b"]
    assert [after.tools[row] for row in after.tools_of(1)] == [before.tools[row] for row in before.tools_of(1)]
    assert (after.servers[1].listed, after.servers[1].problem) == (today, "no complete answer within 3 s")
    # When it was listed is nothing that a system reads.
    assert after.subset([1])[0].fingerprint() == before.subset([1])[0].fingerprint()
    # It answers again: the mark is gone.
    index(a=entry("good"), b=other("changed"))
    assert catalogs.load_catalog(catalogue_file("mine")).servers[1].problem == ""


def test_the_day_of_a_listing_is_that_of_the_last_good_one():
    good, bad = live.Listing("a", "x", (SEND,)), live.Listing("a", problem="gone")
    first, _ = live.build("m", [good], day="2026-01-01")
    second, _ = live.build("m", [bad], before=first, day="2026-01-02")
    third, counts = live.build("m", [bad], before=second, day="2026-01-03")
    assert [own.servers[0].listed for own in (first, second, third)] == ["2026-01-01"] * 3
    assert third.tools == first.tools
    assert third.servers[0].description == "x"
    assert counts.set_index("rule")["rows"]["server without a usable answer kept from before"] == 1
    # A server that answers with nothing offers nothing.
    assert not live.build("m", [live.Listing("a")], before=third)[0].tools


def test_published_catalogues_are_not_replaced(project, run, tmp_path):
    words = ["index", "--mcp-config", str(config(tmp_path, a=entry("good"))), "--catalogue"]
    for name in published.LOADERS:
        with pytest.raises(StudyError, match="published catalogue"):
            run(*words, name)
        assert not catalogue_file(name).exists()
    with pytest.raises(StudyError, match="make one catalogue"):
        run(*words, "a", "--catalogue", "b")


def test_bad_configurations(tmp_path):
    path, entries = tmp_path / "mcp.json", [{}, {"command": "x", "url": "y"}, {"url": "file:///etc/passwd"}]
    with pytest.raises(StudyError, match="no such client configuration"):
        client_config.read_config(path)
    entries += [{"command": "x", "args": [1]}, {"command": "x", "env": {"A": 1}}]
    servers = [json.dumps({"mcpServers": {"a": entry}}) for entry in entries]
    for text in ("{", "[]", "{}", '{"mcpServers": {}}', *servers):
        path.write_text(text)
        with pytest.raises(StudyError):
            client_config.read_config(path)


def test_configurations_of_other_clients(tmp_path, monkeypatch):
    monkeypatch.setenv("TOKEN", "s3cret")
    monkeypatch.delenv("ABSENT", raising=False)
    path = tmp_path / "mcp.json"
    servers = {
        "stdio": {
            "type": "stdio",
            "command": "x",
            "args": ["--key=${TOKEN}", "${ABSENT:-none}"],
            "env": {"A": "$TOKEN"},
        },
        "off": {"command": "${ABSENT}", "disabled": True},
        "web": {"type": "streamable-http", "url": "http://h/${env:TOKEN}"},
        "old": {"url": "http://h/sse?a=1", "headers": {"X": "${TOKEN}"}},
        "older": {"type": "sse", "url": "http://h/events"},
    }
    path.write_text(json.dumps({"servers": servers, "inputs": []}))
    stdio, web, old, older = client_config.read_config(path)
    assert (stdio.args, stdio.env, stdio.transport) == (("--key=s3cret", "none"), {"A": "$TOKEN"}, "stdio")
    assert (web.url, web.transport) == ("http://h/s3cret", "http")
    assert (old.headers, old.transport, older.transport) == ({"X": "s3cret"}, "sse", "sse")
    wrong = [{"command": "${ABSENT}"}, {"type": "pigeon", "command": "x"}, {"type": "http", "command": "x"}]
    for entry in (*wrong, {"command": "x", "disabled": True}):
        path.write_text(json.dumps({"servers": {"a": entry}}))
        with pytest.raises(StudyError) as told:
            client_config.read_config(path)
        assert "s3cret" not in str(told.value)


def test_equal_entries_are_one_server_and_equal_tools_are_not(tmp_path):
    other = tmp_path / "other.json"
    other.write_text(json.dumps({"servers": {"again": entry("good") | {"type": "stdio"}, "b": entry("pages")}}))
    path = config(tmp_path, a=entry("good"), other=entry("good") | {"env": {"FOLDER": "x"}})
    endpoints = client_config.read_config(path, other)
    assert [(own.name, own.aliases) for own in endpoints] == [("a", ("again",)), ("other", ()), ("b", ())]
    found, _ = live.build("mine", live.list_all(endpoints, 60))
    assert [(server.id, server.aliases) for server in found.servers] == [("a", ("again",)), ("other", ()), ("b", ())]
    other.write_text(json.dumps({"servers": {"a": entry("pages")}}))
    with pytest.raises(StudyError, match="a name for two servers"):
        client_config.read_config(path, other)


@pytest.mark.parametrize("place", ["/sse", "/events"])
def test_a_server_over_the_older_http(tmp_path, place):
    made = MCPServer("web")
    made.add_tool(lambda to: to, name="send", description="send a mail")
    with serving(made.sse_app(sse_path=place)) as address:
        (web,) = live.list_all(client_config.read_config(config(tmp_path, web={"url": address + place})), timeout=60)
    assert [tool["name"] for tool in web.tools] == ["send"]
