"""A scripted chat and embedding endpoint on the loopback interface, well-behaved or not."""

import json
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from study.llm import client as llm

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


@contextmanager
def serving():
    """The endpoint on a free port; `script` holds what it does next, `seen` what it was asked."""
    endpoint = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    endpoint.script, endpoint.seen, endpoint.daemon_threads = [], [], True
    thread = threading.Thread(target=endpoint.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield endpoint
    endpoint.shutdown()
    thread.join()
    endpoint.server_close()


def patient(server):
    """A client of the endpoint that only notes how long it would have slept."""
    slept = []
    made = llm.Client(f"http://127.0.0.1:{server.server_port}/v1", mode="off", timeout=5, retries=2, sleep=slept.append)
    made.slept = slept
    return made


def ask(client, **parameters):
    return client.chat("m", [{"role": "user", "content": "hi"}], temperature=0, **parameters)


def limited(client):
    return ask(client, max_tokens=9)


@pytest.fixture
def server():
    with serving() as endpoint:
        yield endpoint


@pytest.fixture
def client(server):
    return patient(server)
