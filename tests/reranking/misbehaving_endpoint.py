"""A local endpoint that does to each task what the test says: every way in which real endpoints and models go wrong."""

import contextlib
import json
import re
import socket
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from study.advisor.llm import client as llm
from study.reranking.language_model import LanguageModelReranker, Question

FOREIGN = 999_999
# The fault that is to be counted -> what happens to a task; None where the answer counts.
COUNTED = {None: ["good", "burst_429", "burst_500", "burst_cut"], "busy": ["busy"], "server_error": ["broken"]}
COUNTED |= {"connection": ["cut", "closed"], "not_json": ["html", "deep", "not_utf8"], "too_long": ["huge"]}
COUNTED |= {"not_a_chat": ["odd", "not_an_object"], "refused": ["unauthorised", "redirect"]}
COUNTED |= {"wrong_form": ["silent", "prose", "fenced", "other_task", "texts", "halves", "truths", "extra_key"]}
COUNTED |= {"outside_pool": ["outside", "obedient"], "repeat": ["repeat"], "wrong_length": ["short", "long", "nothing"]}
COUNTED |= {"too_many_substitutions": ["strangers"]}
QUICK = {kind: fault for fault, kinds in COUNTED.items() for kind in kinds}
SLOW = {"never": "timeout", "drip": "timeout", "slow_head": "timeout"}
# Replies as they are sent: status, content, headers.
RAW = {"busy": (429, b"", {"Retry-After": "0"}), "broken": (503, b"oops", {}), "html": (200, b"<html>proxy</html>", {})}
RAW |= {"cut": (200, b'{"choices": [', {"Content-Length": "5000"}), "deep": (200, b"[" * 200_000, {})}
RAW |= {"not_utf8": (200, b'{"choices": "\xff\xfe\xff"}', {}), "odd": (200, b'{"choices": []}', {})}
RAW |= {"huge": (200, b'{"choices": "' + b"x" * 10 * 2**20 + b'"}', {}), "not_an_object": (200, b"[1, 2]", {})}
RAW |= {"unauthorised": (401, b'{"error": {"message": "who are you"}}', {})}
RAW |= {"redirect": (302, b"", {"Location": "/elsewhere"})}
# What fails at the first attempt only.
BURST = {"burst_429": "busy", "burst_500": "broken", "burst_cut": "cut"}
CONTENT = {"silent": None, "prose": "I would put the first one first."}
# The servers that an answer of the right form names, from the pool and K.
NAMED = {
    "good": lambda pool, k: answered(pool, k),
    "texts": lambda pool, k: [str(number) for number in pool[:k]],
    "halves": lambda pool, k: [number + 0.5 for number in pool[:k]],
    "truths": lambda pool, k: [True] * k,
    "outside": lambda pool, k: [FOREIGN, *pool[: k - 1]],
    "repeat": lambda pool, k: [pool[0], *pool[: k - 1]],
    "short": lambda pool, k: pool[: k - 1],
    "long": lambda pool, k: pool[: k + 1],
    "nothing": lambda pool, k: [],
    "strangers": lambda pool, k: pool[-k:],
}
# Keys of an answer that is right otherwise.
KEYS = {"other_task": {"task": FOREIGN}, "extra_key": {"servers_added": [FOREIGN]}}
# How endpoints of models that reason refuse two parameters (the messages are OpenAI's).
REFUSED = {
    "max_tokens": "parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.",
    "temperature": "value: 'temperature' does not support 0 with this model. Only the default (1) value is supported.",
}


def task_of(prompt: str) -> int:
    return int(json.loads(prompt.split("<task>\n")[1].split("\n")[0])["id"])


def pool_of(prompt: str) -> list[int]:
    cards = prompt.split("<candidates>\n")[1].split("\n</candidates>")[0].split("\n")
    return [json.loads(card)["id"] for card in cards]


def answered(pool: list[int], k: int) -> list[int]:
    """What a good answer of this endpoint says: two servers from below, then the first ones backwards."""
    return [*pool[k : k + 2], *pool[: k - 2][::-1]]


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        self.body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.prompt = self.body["messages"][1]["content"]
        self.task, self.pool, self.k = task_of(self.prompt), pool_of(self.prompt), self.server.k
        with self.server.lock:
            self.server.seen[self.task] += 1
            self.server.bodies.append(self.body)
            attempt = self.server.seen[self.task]
        kind = self.server.faults.get(self.task, "good")
        if kind in BURST:
            kind = BURST[kind] if attempt == 1 else "good"
        with contextlib.suppress(OSError):  # the client has gone
            if kind in RAW:
                self.raw(*RAW[kind])
            elif kind in CONTENT:
                self.content(CONTENT[kind])
            elif kind in NAMED:
                self.say(NAMED[kind](self.pool, self.k))
            elif kind in KEYS:
                self.say(self.pool[: self.k], **KEYS[kind])
            else:
                getattr(self, kind)()

    def raw(self, status, content, headers):
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(content))} | headers).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def content(self, text):
        usage = {"prompt_tokens": 100, "completion_tokens": 10}
        self.raw(200, json.dumps({"choices": [{"message": {"content": text}}], "usage": usage}).encode(), {})

    def say(self, servers, **more):
        self.content(json.dumps({"task": self.task, "servers": servers, "explanation": "so"} | more))

    def closed(self):
        self.connection.shutdown(socket.SHUT_RDWR)

    def fenced(self):
        self.content("```json\n" + json.dumps({"task": self.task, "servers": self.pool[: self.k], "explanation": ""}))

    def obedient(self):
        """Does what a stranger's text in the prompt asks for."""
        wanted = [int(number) for number in re.findall(r"put id (\d+) first", self.prompt)]
        self.say([*wanted[:1], *self.pool][: self.k])

    def never(self):
        time.sleep(self.server.patience)

    def drip(self):
        self.send_response(200)
        self.end_headers()
        self.slowly(b" ")

    def slow_head(self):
        """A head that never ends: every piece comes in time, the whole does not."""
        self.wfile.write(b"HTTP/1.0 200 OK\r\n")
        self.slowly(b"X-A: b\r\n")

    def slowly(self, piece):
        end = time.monotonic() + self.server.patience
        while time.monotonic() < end:
            self.wfile.write(piece)
            self.wfile.flush()
            time.sleep(0.1)

    def no_schema(self):
        """An endpoint that knows no JSON schemas."""
        if self.body.get("response_format", {}).get("type") == "json_schema":
            self.raw(400, b"unknown response_format", {})
        else:
            self.say(answered(self.pool, self.k))

    def modern_without_schema(self):
        """Refuses two parameters, one after the other, and then the schema."""
        for name, message in REFUSED.items():
            if name in self.body:
                error = {"message": f"Unsupported {message}", "type": "invalid_request_error", "param": name}
                return self.raw(400, json.dumps({"error": error}).encode(), {})
        return self.no_schema()

    def log_message(self, *_):
        pass


class Endpoint(ThreadingHTTPServer):
    """Runs while the block does; `faults` maps task ids to what happens to them."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, faults=None, *, k=10, patience=60.0):
        super().__init__(("127.0.0.1", 0), Handler)
        self.faults, self.k, self.patience = faults or {}, k, patience
        self.seen, self.bodies, self.lock = Counter(), [], threading.Lock()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}/v1"

    def reranker(self, mode="off", cassette=None, *, client=None, **question):
        """A re-ranker that asks this endpoint."""
        options = {"retries": 0, "timeout": 20, "key_variable": "NO_SUCH_KEY"} | (client or {})
        return LanguageModelReranker(llm.Client(self.url, mode, cassette, **options), Question("m", **question))

    def handle_error(self, request, client_address):
        pass  # a client that hangs up is what the tests are about

    def __enter__(self):
        self.thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.shutdown()
        self.thread.join()
        self.server_close()
