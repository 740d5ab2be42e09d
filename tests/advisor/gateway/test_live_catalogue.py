"""Running servers, well-behaved and not: a clear outcome for each, and the rest indexed."""

import asyncio
import json
import time

import numpy as np
import pytest

from study.advisor.encoders import sentence as encoders
from study.advisor.gateway import client_config, live
from study.advisor.retrieval.documents import load_catalog
from study.base.errors import StudyError
from study.cli.tools import catalogue_file
from tests.advisor.agent.conftest import serving
from tests.advisor.gateway.served import config, entry


def listed(folder, timeout=60, **servers):
    return asyncio.run(live.list_all(client_config.read_config(config(folder, **servers)), timeout))


@pytest.fixture
def index(project, run, tmp_path, monkeypatch):
    """`study tools index` for servers, with a stand-in for the encoder; it notes what it embeds."""
    embedded = []

    def embed(texts, model):
        embedded.append(sorted(texts))
        return np.eye(encoders.DIMENSION, dtype=np.float32)[: len(texts)]

    def call(**servers):
        words = ["--document", "name_desc", "--timeout", "60", "--mcp-config", str(config(tmp_path, **servers))]
        return run("index", *words).output

    monkeypatch.setattr(encoders, "_embed", embed)
    call.asked = embedded
    return call


def test_every_server_has_its_own_outcome(tmp_path):
    modes = ("good", "pages", "twins", "cyclic", "garbage", "one_bad", "surrogate", "latin", "stuck")
    modes += ("dies", "half", "lies", "endless", "prompts")
    listings = listed(tmp_path, **{mode: entry(mode) for mode in modes}, absent={"command": "/no/such/program"})
    problems = {listing.name: listing.problem for listing in listings}
    assert list(problems) == [*modes, "absent"]
    answered = list(modes[:9])
    assert [name for name, problem in problems.items() if problem is None] == answered
    assert "does not end" in problems["endless"]
    assert problems["prompts"] == "it offers no tools, but prompts"
    remarks = {listing.name: listing.remark for listing in listings if listing.remark}
    assert list(remarks) == ["one_bad", "surrogate", "stuck", "lies"]
    assert (remarks["surrogate"].endswith(": 'x'"), "cursor" in remarks["stuck"]) == (True, True)
    assert problems["lies"].startswith("no valid tool among 1 listed")
    catalog, cleaning = live.build("mine", listings)
    assert [server.id for server in catalog.servers] == answered
    assert [len(catalog.tools_of(row)) for row in range(9)] == [1, 3, 2, 1, 1, 1, 1, 1, 1]
    assert (catalog.servers[0].description, catalog.tools[0].parameters[0].name) == ("keeps files", "path")
    rows = {"server without a usable answer left out": 6, "tool that the protocol does not allow left out": 3}
    rows |= {"name repeated inside one server": 1, "tool without a name left out": 1}
    assert cleaning.set_index("rule")["rows"][list(rows)].to_dict() == rows


@pytest.mark.parametrize("mode", ["picky", "quiet", "modern"])
def test_a_server_is_greeted_as_it_wishes(tmp_path, mode):
    started = time.monotonic()
    (listing,) = listed(tmp_path, s=entry(mode))
    assert (listing.problem, len(listing.tools)) == (None, 1)
    assert time.monotonic() - started < 15


def test_no_value_of_an_entry_is_said(tmp_path):
    words = ["--key", "hunter2", "--other=hunter2-b", "postgres://u:hunter2@x/y", "hunter2'\"\n"]
    header = {"url": "http://127.0.0.1:9/mcp", "headers": {"Authorization": "Bearer hunter2\n"}}
    servers = {
        "program": entry("speaks", *words, env={"A_KEY": "hunter2", "LONG": f"hunter2{'x' * 1_000}"}),
        "header": header,
        "address": {"url": "http://u:hunter2@127.0.0.1:9/mcp?key=hunter2"},
        "absent": {"command": "/no/such/program", "args": ["hunter2-c"]},
    }
    problems = [listing.problem for listing in listed(tmp_path, **servers)]
    assert all(problem and "hunter2" not in problem for problem in problems)
    assert ("***" in problems[0], "program cannot be started" in problems[3]) == (True, True)


@pytest.mark.parametrize("status", [401, 404, 405, 503, 520])
@pytest.mark.parametrize("kind", ["http", "sse"])
def test_an_address_that_refuses_is_said_by_number_and_without_its_key(tmp_path, status, kind):
    async def app(scope, receive, send):
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": status, "headers": []})
            await send({"type": "http.response.body", "body": b"hunter2"})

    with serving(app) as address:
        url = f"{address.replace('//', '//u:hunter2@')}/mcp?key=hunter2"
        (web,) = listed(tmp_path, web={"url": url, "type": kind})
    assert (str(status) in web.problem, "hunter2" in web.problem) == (True, False)


def test_what_a_program_gets_of_the_environment(tmp_path, monkeypatch):
    given = {"HTTPS_PROXY": "http://u:hunter2@proxy:1", "no_proxy": "x.y", "SSL_CERT_FILE": "/c.pem", "LANG": "de_DE"}
    given |= {"LC_ALL": "C.UTF-8", "TMPDIR": str(tmp_path), "DOCKER_HOST": "unix:///d", "XDG_CACHE_HOME": "/cache"}
    for name, value in (given | {"MY_TOKEN": "s3cret", "PYTHONPATH": "/x"}).items():
        monkeypatch.setenv(name, value)
    speaks = entry("speaks", env={"XDG_CACHE_HOME": "/own"})
    (endpoint,) = client_config.read_config(config(tmp_path, s=speaks))
    assert endpoint.environment.items() >= (given | {"XDG_CACHE_HOME": "/own"}).items()
    assert not endpoint.environment.keys() & {"MY_TOKEN", "PYTHONPATH"}
    (listing,) = asyncio.run(live.list_all([endpoint], 60))  # it says its whole environment
    assert [word in listing.problem for word in ("/c.pem", "s3cret", "hunter2")] == [True, False, False]


def test_servers_that_hang_do_not_hold_up_the_others(tmp_path):
    started = time.monotonic()
    listings = listed(tmp_path, timeout=1, hangs=entry("hangs"), mute=entry("mute"))
    assert [listing.problem for listing in listings] == ["no complete answer within 1 s"] * 2
    # The scripts sleep for 60 s; ending them takes a few seconds at most.
    assert time.monotonic() - started < 30


def test_indexing_again_embeds_only_what_changed_and_an_outage_keeps_the_last_good_listing(index):
    def other(mode):
        """The same program as ever, which behaves as it does today."""
        return entry("other", env={"SCRIPTED_MODE": mode})

    def kept():
        return load_catalog(catalogue_file("mine"))

    output = index(a=entry("good"), b=other("changed"), c=entry("dies"))
    for line in ("a: 1 tools", "c: left out", "3 new, 0 changed, 0 gone, 0 unchanged", "answer left out: 1"):
        assert line in output
    # The texts of tools, then those of servers.
    assert index.asked[0] == ["more: read a file", "read_file: read a file", "read_file: send a mail"]
    before, calls = kept(), len(index.asked)
    today = before.servers[0].listed
    assert [(server.listed, server.problem) for server in before.servers] == [(today, "")] * 2
    # b worked and now ends; c, which never worked, has left the configuration; d never worked.
    output = index(a=entry("good"), b=other("dies"), d=entry("dies"))
    for line in (f"b: kept from {today}", "d: left out", "0 new, 0 changed, 0 gone, 3 unchanged", "from before: 1"):
        assert line in output
    assert len(index.asked) == calls
    after = kept()
    assert [server.id for server in after.servers] == ["a", "b"]
    assert [after.tools[row] for row in after.tools_of(1)] == [before.tools[row] for row in before.tools_of(1)]
    assert (after.servers[1].listed, "ended" in after.servers[1].problem) == (today, True)
    # When it was listed is nothing that a system reads.
    assert after.subset([1])[0].fingerprint() == before.subset([1])[0].fingerprint()
    # It answers again: the mark is gone. It has one tool less, and its other is another.
    assert "0 new, 1 changed, 1 gone, 1 unchanged" in index(a=entry("good"), b=other("good"))
    assert kept().servers[1].problem == ""
    with pytest.raises(StudyError, match="no server gave a tool"):
        index(c=entry("dies"))
    assert len(kept().tools) == 2


def test_the_day_of_a_listing_is_that_of_the_last_good_one():
    send = {"name": "send", "description": "send a mail", "inputSchema": {"type": "object"}}
    good, bad = live.Listing("a", "x", (send,)), live.Listing("a", problem="gone")
    first, _ = live.build("m", [good], day="2026-01-01")
    second, _ = live.build("m", [bad], before=first, day="2026-01-02")
    third, counts = live.build("m", [bad], before=second, day="2026-01-03")
    assert [own.servers[0].listed for own in (first, second, third)] == ["2026-01-01"] * 3
    assert (third.tools, third.servers[0].description) == (first.tools, "x")
    assert counts.set_index("rule")["rows"]["server without a usable answer kept from before"] == 1
    # A server that answers with nothing offers nothing.
    assert not live.build("m", [live.Listing("a")], before=third)[0].tools


def test_configurations_of_other_clients(tmp_path, monkeypatch):
    monkeypatch.setenv("TOKEN", "s3cret")
    monkeypatch.delenv("ABSENT", raising=False)
    path, args = tmp_path / "mcp.json", ["--key=${TOKEN}", "${ABSENT:-none}"]
    servers = {
        "stdio": {"type": "stdio", "command": "x", "args": args, "env": {"A": "$TOKEN"}},
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


@pytest.mark.parametrize(
    ("text", "filled"),
    [
        ("${ABSENT:-${TOKEN}}", "s3cret"),
        ("a${ABSENT:-b${TOKEN}c${env:TOKEN}}d", "abs3cretcs3cretd"),
        ("${env:ABSENT:-${NONE:-${NEITHER:-${TOKEN}}}}", "s3cret"),
        ("${TOKEN:-${ABSENT}}", "s3cret"),  # of a value that is there, the default is not needed
        ("${ABSENT:-${VALUE}}${VALUE:-x}", "${TOKEN}}${TOKEN}}"),  # what a value holds is no variable
        ("${ABSENT:-${input:key}}", "${input:key}"),
        ("${ABSENT:-${TOKEN}", "${ABSENT:-s3cret"),
    ],
)
def test_a_default_is_filled_and_a_value_is_not(tmp_path, monkeypatch, text, filled):
    monkeypatch.setenv("TOKEN", "s3cret")
    monkeypatch.setenv("VALUE", "${TOKEN}}")
    for name in ("ABSENT", "NONE", "NEITHER"):
        monkeypatch.delenv(name, raising=False)
    server = {"command": "x", "args": [text], "env": {"A": text}}
    (endpoint,) = client_config.read_config(config(tmp_path, a=server))
    assert (endpoint.args, endpoint.env) == ((filled,), {"A": filled})


WRONG = [{}, {"command": "x", "url": "y"}, {"url": "file:///etc/passwd"}, {"command": "x", "args": [1]}]
WRONG += [{"command": "x", "env": {"A": 1}}, {"command": "${ABSENT}${TOKEN}"}, {"type": "pigeon", "command": "x"}]
WRONG += [{"command": "${ABSENT:-${ABSENT}}${TOKEN}"}]
WRONG += [{"type": "http", "command": "x"}, {"command": "x", "disabled": True}]


@pytest.mark.parametrize(
    "text", ["{", "[]", "{}", '{"mcpServers": {}}', None, *(json.dumps({"servers": {"a": one}}) for one in WRONG)]
)
def test_bad_configurations(tmp_path, monkeypatch, text):
    monkeypatch.setenv("TOKEN", "s3cret")
    path = tmp_path / "mcp.json"
    if text:
        path.write_text(text)
    with pytest.raises(StudyError) as error:
        client_config.read_config(path)
    assert "s3cret" not in str(error.value)


def test_equal_entries_are_one_server_and_equal_tools_are_not(tmp_path):
    other = tmp_path / "other.json"
    other.write_text(json.dumps({"servers": {"again": entry("good", type="stdio"), "b": entry("pages")}}))
    path = config(tmp_path, a=entry("good"), other=entry("good", env={"FOLDER": "x"}))
    endpoints = client_config.read_config(path, other)
    assert [(own.name, own.aliases) for own in endpoints] == [("a", ("again",)), ("other", ()), ("b", ())]
    catalog, _ = live.build("mine", asyncio.run(live.list_all(endpoints, 60)))
    assert [(server.id, server.aliases) for server in catalog.servers] == [("a", ("again",)), ("other", ()), ("b", ())]
    other.write_text(json.dumps({"servers": {"a": entry("pages")}}))
    with pytest.raises(StudyError, match="a name for two servers"):
        client_config.read_config(path, other)
