"""Servers that die, hang, flood or lie behind the server over many: bounds, clear errors, and nothing left behind."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import httpx2
import psutil
import pytest
from mcp.server.mcpserver import MCPServer

from study.advisor.engine.intent.feedback import FeedbackStore
from study.advisor.gateway import connection
from study.advisor.gateway.client_config import Endpoint
from study.advisor.gateway.gateway import HOSTS
from tests.advisor.agent.conftest import serving
from tests.tiny_study import REPOSITORY
from tests.tools.served import QUICK, SCRIPT, ask, call, gone, scripted

FAULTS = {
    "die": (
        {"text": "x"},
        "server s: it ended during the call: the program ended (exit code 9); its last words: out of",
    ),
    "hang": ({"text": "x"}, "server s: no answer within 1 s; it was ended"),
    "huge": ({"text": "x"}, "server s: it ended during the call: a message is longer than 400000 bytes"),
    "fail": ({"text": "x"}, '{"text": "x"}'),
    "echo": ({"txt": "x"}, "'text' is a required property"),
    "endless": ({"text": "x"}, "the tool's schema cannot be used to check the call: its references have no end"),
    "slow": ({"text": "a" * 40 + "!"}, "the tool's schema cannot be used to check the call: the check takes more than"),
}
SHORT = {"hang": {"call_seconds": 1.0}, "slow": {"check_seconds": 0.5}}  # where a limit is waited for


LEFT_OUT = "[left out, as the protocol does not know it:"
ODD = {
    "work": (2.0, False, '{"text": "x"}'),
    "tarry": (3.0, True, "no answer within 5 s"),  # its progress renews the limit, but not for ever
    "hologram": (2.0, False, f"read {LEFT_OUT} a block of the kind 'hologram', a block of the kind '7']"),
    "wrong": (2.0, False, f"read {LEFT_OUT} structuredContent]"),
    "nothing": (2.0, True, "server s: its answer is no result of a tool: content"),
    "texts": (2.0, True, "server s: its answer is no result of a tool: content"),
}


@pytest.mark.parametrize("name", ODD)
def test_progress_renews_the_limit_and_what_is_understood_of_a_result_is_passed_on(served, name):
    seconds, fails, expected = ODD[name]

    async def work(client, gateway):
        text, failed = await call(client, name, text="x")  # a pattern of ECMA-262 goes unchecked
        assert (failed, expected in text) == (fails, True), text
        text, failed = await call(client, name, text=5)
        assert failed
        assert "5 is not of type 'string'" in text

    served(work, scripted("s", "odd"), settings=replace(QUICK, call_seconds=seconds / 2, longest_seconds=5.0))


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_said_and_the_next_call_works(served, tmp_path, monkeypatch, fault):
    monkeypatch.setattr(connection, "MESSAGE", 400_000)
    arguments, reason = FAULTS[fault]
    store = FeedbackStore(tmp_path / "events.sqlite")
    others = psutil.Process().children(recursive=True)

    async def work(client, gateway):
        assert not (await call(client, "echo", text="y"))[1]
        before = [process for process in psutil.Process().children(recursive=True) if process not in others]
        started = time.monotonic()
        text, failed = await call(client, fault, **arguments)
        assert failed
        assert reason in text
        assert time.monotonic() - started < 30  # the script would take 60; without load it is 5 at most
        assert await call(client, "echo", text="y") == ('{"text": "y"}', False)
        return before

    settings = replace(QUICK, **SHORT.get(fault, {}))
    before = served(work, scripted("s", "calls"), settings=settings, store=store)
    assert gone([process.pid for process in before])
    # A call that never left says nothing about the tool.
    sent = fault in ("die", "hang", "huge", "fail")
    assert [event.success for event in store.events()] == [True, False if sent else None, True]


def test_results_are_bounded_and_standard_error_is_swallowed(served, capfd):
    async def work(client, gateway):
        assert await call(client, "flood", text="x") == ('{"text": "x"}', False)
        text, failed = await call(client, "big", text="x")
        assert not failed
        assert len(text) < 101_000
        assert "[left out: 200000 characters of the result, as 100000 may be returned]" in text

    served(work, scripted("s", "calls"))
    assert len(capfd.readouterr().err) < 1_000


def test_lists_without_measure_take_bounded_time_and_memory(served):
    async def work(client, gateway):
        assert await ask(client, "refresh") == {
            "new": 0,
            "changed": 0,
            "gone": 0,
            "unchanged": 2,
            "problems": {
                "million": "a message is longer than 16000000 bytes",
                "many": "its list does not end (5001 tools so far)",
            },
        }
        found = await ask(client, "find_tools", task="read a file")
        assert {tool["name"] for tool in found["tools"]} == {"large__read_file", "good__read_file"}

    started, before = time.monotonic(), psutil.Process().memory_info().rss
    served(work, *(scripted(mode, mode) for mode in ("million", "many", "large", "good")))
    assert time.monotonic() - started < 100
    assert psutil.Process().memory_info().rss - before < 1_000_000_000
    assert "2 tools of 2 servers" in served.said[-1]


@pytest.mark.parametrize("events", [False, True])
def test_a_message_over_http_is_bounded(monkeypatch, events):
    monkeypatch.setattr(connection, "MESSAGE", 100)

    class Stream(httpx2.AsyncByteStream):
        def __init__(self, *chunks):
            self.chunks = chunks

        async def __aiter__(self):
            for chunk in self.chunks:
                yield chunk

    async def read(*chunks):
        return b"".join([chunk async for chunk in connection.Bounded(Stream(*chunks), events)])

    assert len(asyncio.run(read(b"x" * 60, b"x" * 40))) == 100
    with pytest.raises(connection.ConnectionFailedError, match="longer than 100 bytes"):
        asyncio.run(read(b"x" * 60, b"x" * 41))
    ended = [b"x" * 60 + b"\n\n"] * 5
    if events:  # each is a message of its own
        assert len(asyncio.run(read(*ended))) == 310
    else:
        with pytest.raises(connection.ConnectionFailedError):
            asyncio.run(read(*ended))


def test_a_cancelled_call_leaves_the_others_alone(served):
    async def work(client, gateway):
        await call(client, "echo", text="y")
        child = gateway.pool.children["s"]
        life = child.life
        stopped = asyncio.create_task(call(client, "hang", text="x"))
        await asyncio.sleep(0.2)
        stopped.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stopped
        assert child.life is life
        assert child.running
        assert child.calls == 0

    served(work, scripted("s", "calls"))


HOST = """
import asyncio, signal, sys
# A shell starts programs in the background with SIGINT ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
from study.advisor.gateway.client_config import Endpoint
from study.advisor.gateway.gateway import Gateway
from study.advisor.gateway.settings import serve_settings
async def main():
    endpoint = Endpoint("deaf", sys.executable, ("-I", "-S", sys.argv[1], "deaf", sys.argv[2]))
    async with Gateway([endpoint], serve_settings()) as gateway:
        await gateway.ready()
asyncio.run(main())
"""


@pytest.mark.parametrize("way", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_outlives_a_host_that_is_killed(project, tmp_path, way):
    file = tmp_path / "numbers"
    path = os.pathsep.join([str(REPOSITORY / "src"), str(REPOSITORY)])
    words = [sys.executable, "-c", HOST, SCRIPT, str(file)]
    host = subprocess.Popen(words, env=os.environ | {"PYTHONPATH": path, "T2M_ROOT": str(project)})
    until = time.monotonic() + 60
    while not (file.exists() and file.read_text().count(" ") == 2):
        assert time.monotonic() < until
        time.sleep(0.05)
    numbers = [int(number) for number in file.read_text().split()]
    assert all(psutil.pid_exists(number) for number in numbers)
    host.send_signal(way)
    host.wait(30)
    assert gone(numbers)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere only the group is ended, which docs/advisor.md says")
@pytest.mark.parametrize("end", ["closed", signal.SIGTERM])
def test_what_left_its_group_and_its_parent_ends_too(tmp_path, end):
    file, pipe = tmp_path / "number", subprocess.PIPE
    words = [sys.executable, "-I", "-S", connection.guard.__file__, "100000", sys.executable, "-I", "-S", SCRIPT]
    with subprocess.Popen([*words, "daemon", str(file)], stdin=pipe, stdout=pipe, stderr=pipe) as guard:
        until = time.monotonic() + 30
        while not (file.exists() and file.read_text()):
            assert time.monotonic() < until
            time.sleep(0.05)
        number = int(file.read_text())
        assert psutil.pid_exists(number)
        guard.stdin.close() if end == "closed" else guard.send_signal(end)
        guard.wait(30)
    assert gone([number])


@pytest.mark.parametrize("refusal", [(404, b""), (404, b'{"jsonrpc": "2.0", "id": null, "error": %s}'), (400, b"%s")])
def test_a_call_goes_on_in_a_new_session_where_the_server_lost_the_old(served, refusal):
    made = MCPServer("web")
    made.add_tool(lambda to: f"sent to {to}", name="send", description="send a mail", structured_output=False)
    app, lost, calls = made.streamable_http_app(), set(), []
    status, body = refusal
    if b"%s" in body:
        error = b'{"code": -32000, "message": "Bad Request: Server not initialized"}'
        body = body % error if status == 404 else b'{"jsonrpc": "2.0", "id": null, "error": %s}' % error

    async def forgetful(scope, receive, send):
        session = dict(scope.get("headers", ())).get(b"mcp-session-id")
        if session in lost:
            calls.append(scope["method"])
            head = [(b"content-type", b"application/json")]
            await send({"type": "http.response.start", "status": status, "headers": head})
            await send({"type": "http.response.body", "body": body})
        else:
            known.add(session)
            await app(scope, receive, send)

    known = set()

    async def work(client, gateway):
        assert await call(client, "send", to="you") == ("sent to you", False)
        lost.update(known - {None})
        assert await call(client, "send", to="you") == ("sent to you", False)
        assert calls.count("POST") == 1
        lost.update(known - {None})

    with serving(forgetful) as address:
        served(work, Endpoint("web", url=f"{address}/mcp", transport="http"))


def test_a_gateway_works_without_the_modules_of_unix(tmp_path):
    program = (
        "import os, signal, sys, mcp;"  # which asks for the system by its name
        "sys.modules |= dict.fromkeys(('fcntl', 'resource', 'pwd', 'grp'));"
        "del signal.setitimer, signal.alarm, os.pread;"
        "import asyncio; from study.advisor.gateway.gateway import Gateway\n"
        "from study.advisor.gateway.client_config import Endpoint\n"
        "from study.advisor.gateway.settings import serve_settings\n"
        "server = Endpoint('s', sys.executable, ('-I', '-S', sys.argv[1], 'calls'))\n"
        "async def work():\n"
        "    async with Gateway([server], serve_settings(), say=lambda _: None) as gateway:\n"
        "        await gateway.ready()\n"
        "        print((await gateway.call('h', 'echo', {'text': 'x'})).content[0].text)\n"
        "asyncio.run(work())"
    )
    how = {"capture_output": True, "text": True, "check": False, "cwd": REPOSITORY}
    done = subprocess.run([sys.executable, "-c", program, SCRIPT], **how)
    assert (done.returncode, done.stdout) == (0, '{"text": "x"}\n'), done.stderr


def test_a_guard_without_groups_ends_what_it_started(tmp_path):
    hidden = "import os, runpy, sys; del os.killpg, os.setpgrp, os.getpgrp; sys.argv.pop(0);"
    words = ["-c", f"{hidden} runpy.run_path(sys.argv[0], run_name='__main__')", connection.guard.__file__, "1000"]
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, *words, sys.executable, "-c", "input()"], stdin=pipe, stderr=pipe) as done:
        done.communicate(b"hello\n", timeout=60)
    assert done.returncode == 1


def test_state_per_host_is_bounded(served, tmp_path, monkeypatch):
    async def work(client, gateway):
        for row in range(HOSTS + 10):
            await gateway.find(f"host {row}", "read a file", None, 1, 1)
        assert len(gateway.finds) == HOSTS

    noted = []
    monkeypatch.setattr(FeedbackStore, "append", lambda self, event: noted.append(event))
    served(work, scripted("good", "good"), store=FeedbackStore(tmp_path / "events.sqlite"))
    assert len(noted) == HOSTS + 10  # each search is noted when it is forgotten, or at the end
