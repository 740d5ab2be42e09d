"""A scripted chat and embedding endpoint on the loopback interface, well-behaved or not."""

import json
import time

import pytest

from study.advisor.llm import client as llm
from tests.advisor.loopback import Quiet, listening


def replied(message):
    return {"choices": [{"message": message}]}


def embedded(*vectors):
    return {"data": [{"index": row, "embedding": vector} for row, vector in vectors]}


REPLY = replied({"content": "hello"})
BLOCK = "<tool_assistant>\nserver: file\ntool: read a file\n</tool_assistant>"
# Steps of a script that are an answer: status and content, bytes or what JSON holds.
STUBBORN = {"error": {"message": "Unsupported parameter: use 'max_tokens' or 'max_completion_tokens'"}}
ANSWERS = {"good": (200, REPLY), "refuse": (401, b"who are you"), "broken": (500, b"oops"), "stubborn": (400, STUBBORN)}
ANSWERS |= {"deep": (400, b"[" * 200_000), "listed": (400, {"error": [1, 2]}), "html": (200, b"<html>proxy</html>")}
ANSWERS |= {"full": (503, {"error": {"message": "no room today"}}), "odd": (200, {"choices": []})}
ANSWERS |= {"silent": (200, replied({"content": None, "tool_calls": []})), "block": (200, replied({"content": BLOCK}))}
ANSWERS |= {"vectors": (200, embedded((1, [0, 3]), (0, [4, 3]))), "short_vectors": (200, embedded((0, [4, 3])))}
ANSWERS |= {"zero_vectors": (200, embedded((0, [4, 3]), (1, [0, 0])))}


class Handler(Quiet):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.seen.append((self.path, json.loads(body), self.headers.get("Authorization")))
        step = self.server.script.pop(0) if self.server.script else "good"
        if step in ANSWERS:
            self.answer(*ANSWERS[step])
        else:
            getattr(self, step)()

    def busy(self):
        self.answer(429, b"", Retry_After="7")

    def terse(self):
        """Knows neither the name of the limit nor a temperature."""
        body = self.server.seen[-1][1]
        if "max_tokens" in body:
            self.say("Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead.")
        elif "temperature" in body:
            self.say("Unsupported value: 'temperature' does not support 0 with this model.")
        else:
            self.answer(200, REPLY)

    def say(self, message):
        self.answer(400, {"error": {"message": message}})

    def vulgar(self):
        self.say("\x1b[31mno\u202e\n\n model \x07" + "of that name " * 1000)

    def tactless(self):
        self.say("wrong key: " + self.headers["Authorization"].removeprefix("Bearer "))

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

    def own_vectors(self):
        count = len(self.server.seen[-1][1]["input"])
        self.answer(200, embedded(*((row, [row + 1, 1]) for row in range(count))))


@pytest.fixture
def server():
    """The endpoint on a free port; `script` holds what it does next, `seen` what it was asked."""
    with listening(Handler, script=[], seen=[]) as endpoint:
        yield endpoint


@pytest.fixture
def client(server):
    """A client of the endpoint that only notes how long it would have slept."""
    slept = []
    made = llm.Client(f"http://127.0.0.1:{server.server_port}/v1", mode="off", timeout=5, retries=2, sleep=slept.append)
    made.slept = slept
    return made


def ask(client, **parameters):
    return client.chat("m", [{"role": "user", "content": "hi"}], temperature=0, **parameters)


def limited(client):
    return ask(client, max_tokens=9)
