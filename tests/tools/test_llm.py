"""The endpoint client against a local server that misbehaves in every way that real ones do."""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from study import llm, paths
from study.agent.model import Model
from study.cassette import holds_replies
from study.errors import StudyError
from study.tools import cli
from study.tools.catalogues.catalog import save
from study.tools.discovery import embedding
from study.tools.discovery.embedding import EndpointEmbedder
from study.tools.discovery.index import Settings, ToolIndex
from study.tools.mcp_zero.request import Request
from study.tools.mcp_zero.routing import Router

REPLY = {"choices": [{"message": {"content": "hello"}}]}


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.seen.append((self.path, json.loads(body), self.headers.get("Authorization")))
        step = self.server.script.pop(0) if self.server.script else "good"
        getattr(self, step)()

    def good(self, reply=REPLY):
        self.answer(200, json.dumps(reply).encode())

    def answer(self, status, content, **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        if "Content_Length" not in headers:
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def refuse(self):
        self.answer(401, b"who are you")

    def busy(self):
        self.answer(429, b"", Retry_After="7")

    def broken(self):
        self.answer(500, b"oops")

    def terse(self):
        """Knows neither the name of the limit nor a temperature."""
        body = self.server.seen[-1][1]
        if "max_tokens" in body:
            self.say("Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead.")
        elif "temperature" in body:
            self.say("Unsupported value: 'temperature' does not support 0 with this model.")
        else:
            self.good()

    def stubborn(self):
        """Refuses the limit under either name."""
        self.say("Unsupported parameter: use 'max_tokens' or 'max_completion_tokens'")

    def say(self, message):
        self.answer(400, json.dumps({"error": {"message": message}}).encode())

    def vulgar(self):
        self.say("\x1b[31mno\u202e\n\n model \x07" + "of that name " * 1000)

    def tactless(self):
        self.say("wrong key: " + self.headers["Authorization"].removeprefix("Bearer "))

    def deep(self):
        self.answer(400, b"[" * 200_000)

    def listed(self):
        self.answer(400, b'{"error": [1, 2]}')

    def full(self):
        self.answer(503, b'{"error": {"message": "no room today"}}')

    def html(self):
        self.answer(200, b"<html>proxy</html>")

    def torn(self):
        self.answer(200, b'{"choices": [', Content_Length="5000")

    def drip(self):
        self.send_response(200)
        self.end_headers()
        for _ in range(50):
            try:
                self.wfile.write(b" ")
                self.wfile.flush()
            except OSError:
                return
            time.sleep(0.05)

    def redirect(self):
        self.answer(302, b"", Location=f"http://127.0.0.1:{self.server.server_port}/elsewhere")

    def odd(self):
        self.good({"choices": []})

    def silent(self):
        self.good({"choices": [{"message": {"content": None, "tool_calls": []}}]})

    def vectors(self):
        self.good({"data": [{"index": 1, "embedding": [0, 3]}, {"index": 0, "embedding": [4, 3]}]})

    def own_vectors(self):
        count = len(self.server.seen[-1][1]["input"])
        self.good({"data": [{"index": n, "embedding": [n + 1, 1]} for n in range(count)]})

    def block(self):
        said = "<tool_assistant>\nserver: file\ntool: read a file\n</tool_assistant>"
        self.good({"choices": [{"message": {"content": said}}]})

    def short_vectors(self):
        self.good({"data": [{"index": 0, "embedding": [4, 3]}]})

    def zero_vectors(self):
        self.good({"data": [{"index": 0, "embedding": [4, 3]}, {"index": 1, "embedding": [0, 0]}]})

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    endpoint = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    endpoint.script, endpoint.seen, endpoint.daemon_threads = [], [], True
    thread = threading.Thread(target=endpoint.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield endpoint
    endpoint.shutdown()
    thread.join()
    endpoint.server_close()


@pytest.fixture
def client(server):
    slept = []
    made = llm.Client(f"http://127.0.0.1:{server.server_port}/v1", mode="off", timeout=5, retries=2, sleep=slept.append)
    made.slept = slept
    return made


def ask(client):
    return client.chat("m", [{"role": "user", "content": "hi"}], temperature=0)


def test_a_plain_answer(server, client, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    assert ask(client) == "hello"
    path, body, authorization = server.seen[0]
    assert path == "/v1/chat/completions"
    assert body == {"model": "m", "messages": [{"role": "user", "content": "hi"}], "temperature": 0}
    assert authorization == "Bearer secret"


@pytest.mark.parametrize("fault", ["broken", "busy", "html", "torn"])
def test_passing_faults_are_tried_again(server, client, fault):
    server.script = [fault, fault]
    assert ask(client) == "hello"
    assert client.slept == ([7, 7] if fault == "busy" else [1, 2])


@pytest.mark.parametrize("fault", ["broken", "html", "torn"])
def test_tries_are_bounded(server, client, fault):
    server.script = [fault] * 9
    with pytest.raises(StudyError, match="3 attempts"):
        ask(client)
    assert len(server.seen) == 3


def limited(client):
    return client.chat("m", [{"role": "user", "content": "hi"}], temperature=0, max_tokens=9)


def test_refused_parameters_are_sent_otherwise_and_remembered(server, client):
    server.script = ["terse"] * 4
    assert limited(client) == limited(client) == "hello"
    sent = [{name: value for name, value in body.items() if name not in ("model", "messages")}
            for _, body, _ in server.seen]  # fmt: skip
    wanted = {"max_completion_tokens": 9}
    assert sent == [{"temperature": 0, "max_tokens": 9}, {"temperature": 0, **wanted}, wanted, wanted]
    assert client.adapted == {"max_tokens": "max_completion_tokens", "temperature": None}
    assert client.usage.attempts == 4


def test_the_model_of_the_agent_is_asked_as_the_endpoint_accepts(server, client):
    server.script = ["terse"] * 3
    with pytest.raises(StudyError, match="no JSON object"):  # the reply is "hello", but there is one
        Model(client, {"model": "m", "tokens": 9})._ask("read", "a request")
    last = server.seen[-1][1]
    assert last["max_completion_tokens"] == 9
    assert last["response_format"] == {"type": "json_object"}
    assert {"max_tokens", "temperature"}.isdisjoint(last)


def test_a_parameter_is_changed_once_at_most(server, client):
    server.script = ["stubborn"] * 9
    with pytest.raises(StudyError, match="Unsupported parameter"):
        limited(client)
    assert len(server.seen) == 2


@pytest.mark.parametrize(
    ("said", "status", "name"),
    [
        ("Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead.", 400, "max_tokens"),
        ("Unsupported parameter: 'temperature' is not supported with this model.", 422, "temperature"),
        ("this model doesn't support temperature", 400, "temperature"),
        ("Unsupported value: 'temperature'", 401, None),
        ("temperature must be below 2", 400, None),
        ("max_completion_tokens and the messages are longer than the model's context", 400, None),
        ("'response_format' of type 'json_schema' is not supported", 400, None),
        ("", 400, None),
    ],
)
def test_what_a_refusal_speaks_of(said, status, name):
    refusal = llm.EndpointError("refused", said, status=status, said=said)
    assert llm.refused_parameter({"model": "m", "max_tokens": 9, "temperature": 0}, refusal) == name
    assert llm.refused_parameter({"model": "m"}, refusal) is None


def test_the_message_of_a_refusal_is_cleaned_and_cut(server, client):
    server.script = ["vulgar"]
    with pytest.raises(llm.EndpointError, match=r"HTTP 400: \[31mno model of that name") as found:
        ask(client)
    assert found.value.said.isprintable()
    assert len(found.value.said) == llm.LONGEST_MESSAGE
    assert (found.value.kind, found.value.status) == ("refused", 400)


def test_a_refusal_does_not_give_the_key_away(server, client, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret")
    server.script = ["tactless"]
    with pytest.raises(llm.EndpointError, match=r"wrong key: \[key\]") as found:
        ask(client)
    assert "secret" not in str(found.value)


@pytest.mark.parametrize("fault", ["deep", "listed"])
def test_a_refusal_without_a_message(server, client, fault):
    server.script = [fault]
    with pytest.raises(llm.EndpointError, match="refused the request: HTTP 400") as found:
        ask(client)
    assert len(found.value.said) <= llm.LONGEST_MESSAGE


def test_a_passing_failure_says_why(server, client):
    server.script = ["full"] * 9
    with pytest.raises(StudyError, match="3 attempts; the last: HTTP 503: no room today"):
        ask(client)


@pytest.mark.parametrize("fault", ["refuse", "redirect"])
def test_lasting_faults_are_not_tried_again(server, client, fault):
    server.script = [fault]
    with pytest.raises(StudyError, match="refused"):
        ask(client)
    assert [path for path, *_ in server.seen] == ["/v1/chat/completions"]


def test_a_slow_drip_ends(server, client):
    server.script = ["drip"]
    client.timeout, client.retries = 0.3, 0
    started = time.monotonic()
    with pytest.raises(StudyError, match="too slowly"):
        ask(client)
    assert time.monotonic() - started < 2


def test_too_long_a_reply(server, client):
    client.max_bytes = 10
    with pytest.raises(StudyError, match="longer than 10 bytes"):
        ask(client)


def test_odd_replies(server, client):
    server.script = ["odd", "silent"]
    with pytest.raises(StudyError, match="not a chat completion"):
        ask(client)
    assert ask(client) == ""


def test_nobody_listens():
    client = llm.Client("http://127.0.0.1:9", mode="off", retries=0, timeout=2)
    with pytest.raises(StudyError, match="1 attempts"):
        ask(client)


def test_record_then_replay(server, client, tmp_path):
    cassette = tmp_path / "c.jsonl"
    client.mode, client.cassette = "record", cassette
    assert ask(client) == ask(client) == "hello"
    assert len(server.seen) == 1
    replay = llm.Client("http://127.0.0.1:9/other", cassette=cassette)
    assert ask(replay) == "hello"
    with pytest.raises(StudyError, match="no recorded reply"):
        replay.chat("m", [{"role": "user", "content": "something else"}])


def test_a_recorded_fault_is_replayed_and_asked_again(server, client, tmp_path):
    cassette = tmp_path / "c.jsonl"
    client.mode, client.cassette = "record", cassette
    server.script = ["broken"] * 6
    for _ in range(2):
        with pytest.raises(llm.EndpointError, match="3 attempts"):
            ask(client)
    (line,) = cassette.read_text().splitlines()  # the same fault says nothing new
    entry = json.loads(line)
    assert (set(entry), entry["fault"]) == ({"key", "fault", "request"}, "server_error")
    assert not holds_replies(cassette)
    with pytest.raises(llm.EndpointError, match="failed when this was recorded") as found:
        ask(llm.Client("http://x", cassette=cassette))
    assert found.value.kind == "server_error"
    assert ask(client) == "hello"
    # In whatever order a merge puts them: the reply goes before the fault.
    lines = cassette.read_text().splitlines()
    assert holds_replies(cassette)
    for order in (lines, lines[::-1]):
        cassette.write_text("\n".join(order) + "\n")
        assert ask(llm.Client("http://x", cassette=cassette)) == "hello"


def test_off_keeps_no_fault(server, client, tmp_path):
    client.cassette, server.script = tmp_path / "c.jsonl", ["refuse"]
    with pytest.raises(StudyError, match="refused"):
        ask(client)
    assert not client.cassette.exists()
    assert not holds_replies(client.cassette)


def test_what_was_sent_instead_is_recorded(server, client, tmp_path):
    client.mode, client.cassette = "record", tmp_path / "c.jsonl"
    server.script = ["terse"] * 3
    limited(client)
    entry = json.loads(client.cassette.read_text())
    told = {"max_tokens": "max_completion_tokens", "temperature": None}
    assert entry["sent"] == told
    # The key is that of the request as it was asked, so the replay need not know what an endpoint refuses.
    assert entry["request"]["body"]["max_tokens"] == 9
    replay = llm.Client("http://x", cassette=client.cassette)
    assert limited(replay) == "hello"
    assert replay.adapted == told


@pytest.mark.parametrize("said", [{"fault": "laziness"}, {"fault": None}, {}, {"response": 1, "sent": 3}])
def test_unknown_entries_damage_a_cassette(server, client, tmp_path, said):
    cassette = tmp_path / "c.jsonl"
    client.mode, client.cassette = "record", cassette
    ask(client)
    cassette.write_text(json.dumps({"key": "0"} | said) + "\n" + cassette.read_text())
    with pytest.raises(StudyError, match="damaged cassette"):
        ask(llm.Client("http://x", cassette=cassette))


def test_damaged_cassettes(server, client, tmp_path):
    cassette = tmp_path / "c.jsonl"
    client.mode, client.cassette = "record", cassette
    ask(client)
    whole = cassette.read_text()
    # A recording that was stopped in the middle of a line goes on; the torn line is an error once lines follow it.
    cassette.write_text(whole + whole[:40])
    assert ask(llm.Client("http://x", cassette=cassette)) == "hello"
    cassette.write_text(whole[:40] + "\n" + whole)
    with pytest.raises(StudyError, match="damaged cassette") as found:
        ask(llm.Client("http://x", cassette=cassette))
    assert found.value.row == "line 1"
    entry = json.loads(whole)
    entry["request"]["body"]["model"] = "other"
    cassette.write_text(json.dumps(entry) + "\n" + whole)
    with pytest.raises(StudyError, match="does not belong"):
        ask(llm.Client("http://x", cassette=cassette))


def test_recording_goes_on_after_a_torn_line(server, client, tmp_path):
    client.mode, client.cassette = "record", tmp_path / "c.jsonl"
    client.cassette.write_text('{"key": "tor')
    ask(client)
    assert client.cassette.read_text().count("\n") == 2


def test_the_key_depends_on_the_request_alone():
    assert llm.key({"a": 1, "b": [2]}) == llm.key({"b": [2], "a": 1})
    assert llm.key({"a": 1}) != llm.key({"a": 2})


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"mode": "guess"}, "unknown mode"),
        ({}, "needs a cassette"),
        ({"base_url": "file:///etc", "mode": "off"}, "HTTP"),
    ],
)
def test_settings_are_checked(settings, reason):
    with pytest.raises(StudyError, match=reason):
        llm.Client(**({"base_url": "http://x"} | settings))


def test_vectors_from_an_endpoint(server, client, tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "cache", lambda: tmp_path)
    embedder = EndpointEmbedder(client, "e", 2)
    server.script = ["vectors"]
    for _ in range(2):  # the second time from disk
        np.testing.assert_allclose(embedder.encode(["a", "b"]), [[0.8, 0.6], [0, 1]], rtol=1e-6)
    assert [body for _, body, _ in server.seen] == [{"model": "e", "input": ["a", "b"]}]


@pytest.mark.parametrize("fault", ["short_vectors", "zero_vectors", "odd"])
def test_bad_vectors(server, client, fault):
    server.script = [fault]
    with pytest.raises(StudyError, match=r"vectors of shape|not an embeddings reply"):
        EndpointEmbedder(client, "e", 2).encode(["a", "b"], store=False)


def configure(project, **embedder):
    """The committed configuration with another embedder."""
    read = yaml.safe_load((project / "conf/tools/discovery.yaml").read_text())
    (project / "conf").unlink()
    (project / "conf/tools").mkdir(parents=True)
    text = yaml.safe_dump(read | {"embedder": embedder})
    (project / "conf/tools/discovery.yaml").write_text(text)


def test_an_endpoint_by_configuration(server, project, catalog):
    configure(project, kind="endpoint", base_url=f"http://127.0.0.1:{server.server_port}/v1", model="e", dimension=2,
              retries=0)  # fmt: skip
    server.script = ["own_vectors"] * 20
    index = ToolIndex(catalog, Settings(document="name_desc"))
    assert len(index.search("send a mail", 2)[0]) == 2
    assert Router(catalog).scores([Request("mail", "send")]).shape == (1, 5)
    save(cli.place("toy"), catalog)
    done = CliRunner().invoke(cli.app, ["find", "x", "--catalogue", "toy"], catch_exceptions=False)
    assert done.output
    assert {path for path, *_ in server.seen} == {"/v1/embeddings"}
    assert {body["model"] for _, body, _ in server.seen} == {"e"}
    server.script = ["html"]
    with pytest.raises(StudyError, match="1 attempts"):
        index.search("something else", 2)


@pytest.mark.parametrize(
    ("embedder", "reason"),
    [
        ({"kind": "magic"}, "unknown embedder"),
        ({"kind": "endpoint", "base_url": "http://x", "model": "m"}, "without base_url, model or dimension"),
        ({"kind": "minilm", "modle": "m"}, "modle"),
    ],
)
def test_the_configured_embedder_is_checked(project, embedder, reason):
    configure(project, **embedder)
    with pytest.raises(StudyError, match=reason):
        embedding.configured()


def test_a_model_asks_for_tools_on_the_command_line(server, project, catalog, embedder, monkeypatch):
    monkeypatch.setattr(embedding.MiniLm, "encode", lambda self, texts, store=True: embedder.encode(texts))
    save(cli.place("toy"), catalog)
    url, cassette = f"http://127.0.0.1:{server.server_port}/v1", str(project / "c.jsonl")

    def run(*words):
        fixed = ["request", "read it", "--url", url, "--model", "m", "--catalogue", "toy", "-k", "1", "--json"]
        return CliRunner().invoke(cli.app, [*fixed, *words], catch_exceptions=False)

    server.script = ["block"]
    recorded = run("--cassette", cassette, "--mode", "record")
    assert [(tool["server"], tool["name"]) for tool in json.loads(recorded.stdout)] == [("Files", "read_file")]
    assert "1 requests, 0 malformed" in recorded.stderr
    assert recorded.stderr.rstrip().endswith("hello")
    asked = len(server.seen)
    assert run("--cassette", cassette).stdout == recorded.stdout
    assert len(server.seen) == asked == 2
    server.script = ["block"]
    assert run("--mode", "off").stdout == recorded.stdout
    with pytest.raises(StudyError, match="needs a cassette"):
        run()
    with pytest.raises(StudyError, match="unknown mode"):
        run("--mode", "guess")
