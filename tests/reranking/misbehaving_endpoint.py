"""A local endpoint that does to each task what the test says: every way in which real endpoints and models go wrong."""

import contextlib
import json
import re
import socket
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

FOREIGN = 999_999
HUGE = b'{"choices": "' + b"x" * 10 * 2**20 + b'"}'
# What happens to a task -> the fault that is to be counted; None where the answer counts.
QUICK = {
    "good": None,
    "burst_429": None,
    "burst_500": None,
    "burst_cut": None,
    "busy": "busy",
    "broken": "server_error",
    "cut": "connection",
    "closed": "connection",
    "html": "not_json",
    "deep": "not_json",
    "not_utf8": "not_json",
    "huge": "too_long",
    "odd": "not_a_chat",
    "not_an_object": "not_a_chat",
    "unauthorised": "refused",
    "redirect": "refused",
    "silent": "wrong_form",
    "prose": "wrong_form",
    "fenced": "wrong_form",
    "other_task": "wrong_form",
    "texts": "wrong_form",
    "halves": "wrong_form",
    "truths": "wrong_form",
    "extra_key": "wrong_form",
    "outside": "outside_pool",
    "obedient": "outside_pool",
    "repeat": "repeat",
    "short": "wrong_length",
    "long": "wrong_length",
    "nothing": "wrong_length",
    "strangers": "too_many_substitutions",
}
SLOW = {"never": "timeout", "drip": "timeout", "slow_head": "timeout"}


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
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        prompt = body["messages"][1]["content"]
        self.task, self.pool, self.body = task_of(prompt), pool_of(prompt), body
        self.prompt, self.k = prompt, self.server.k
        with self.server.lock:
            self.server.seen[self.task] += 1
            self.server.bodies.append(body)
            self.attempt = self.server.seen[self.task]
        with contextlib.suppress(OSError):  # the client has gone
            getattr(self, self.server.faults.get(self.task, "good"))()

    def raw(self, status, content, length=None, **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(content) if length is None else length))
        self.end_headers()
        self.wfile.write(content)

    def content(self, text):
        usage = {"prompt_tokens": 100, "completion_tokens": 10}
        self.raw(200, json.dumps({"choices": [{"message": {"content": text}}], "usage": usage}).encode())

    def say(self, servers, **more):
        self.content(json.dumps({"task": self.task, "servers": servers, "explanation": "so"} | more))

    def good(self):
        self.say(answered(self.pool, self.k))

    def burst_429(self):
        self.good() if self.attempt > 1 else self.raw(429, b"", Retry_After="0")

    def burst_500(self):
        self.good() if self.attempt > 1 else self.raw(500, b"oops")

    def burst_cut(self):
        self.good() if self.attempt > 1 else self.cut()

    def busy(self):
        self.raw(429, b"", Retry_After="0")

    def broken(self):
        self.raw(503, b"oops")

    def cut(self):
        self.raw(200, b'{"choices": [', length=5000)

    def closed(self):
        self.connection.shutdown(socket.SHUT_RDWR)

    def html(self):
        self.raw(200, b"<html>proxy</html>")

    def deep(self):
        self.raw(200, b"[" * 200_000)

    def not_utf8(self):
        self.raw(200, b'{"choices": "\xff\xfe\xff"}')

    def huge(self):
        self.raw(200, HUGE)

    def odd(self):
        self.raw(200, b'{"choices": []}')

    def not_an_object(self):
        self.raw(200, b"[1, 2]")

    def unauthorised(self):
        self.raw(401, b'{"error": {"message": "who are you"}}')

    def redirect(self):
        self.raw(302, b"", Location=f"http://127.0.0.1:{self.server.server_port}/elsewhere")

    def silent(self):
        self.content(None)

    def prose(self):
        self.content("I would put the first one first.")

    def fenced(self):
        self.content("```json\n" + json.dumps({"task": self.task, "servers": self.pool[: self.k], "explanation": ""}))

    def other_task(self):
        self.say(self.pool[: self.k], task=self.task + 1)

    def texts(self):
        self.say([str(number) for number in self.pool[: self.k]])

    def halves(self):
        self.say([number + 0.5 for number in self.pool[: self.k]])

    def truths(self):
        self.say([True] * self.k)

    def extra_key(self):
        self.say(self.pool[: self.k], servers_added=[FOREIGN])

    def outside(self):
        self.say([FOREIGN, *self.pool[: self.k - 1]])

    def obedient(self):
        """Does what a stranger's text in the prompt asks for."""
        wanted = [int(number) for number in re.findall(r"put id (\d+) first", self.prompt)]
        self.say([*wanted[:1], *self.pool][: self.k])

    def repeat(self):
        self.say([self.pool[0], *self.pool[: self.k - 1]])

    def short(self):
        self.say(self.pool[: self.k - 1])

    def long(self):
        self.say(self.pool[: self.k + 1])

    def nothing(self):
        self.say([])

    def strangers(self):
        self.say(self.pool[-self.k :])

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
        form = self.body.get("response_format", {}).get("type")
        self.raw(400, b"unknown response_format") if form == "json_schema" else self.good()

    def refuse(self, message, **more):
        self.raw(400, json.dumps({"error": {"message": message, "type": "invalid_request_error"} | more}).encode())

    def modern(self):
        """Models that reason refuse two parameters, one after the other (the messages are OpenAI's)."""
        if "max_tokens" in self.body:
            self.refuse(
                "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' "
                "instead.",
                param="max_tokens",
                code="unsupported_parameter",
            )
        elif "temperature" in self.body:
            self.refuse(
                "Unsupported value: 'temperature' does not support 0 with this model. Only the default (1) value is "
                "supported.",
                param="temperature",
                code="unsupported_value",
            )
        else:
            self.good()

    def modern_without_schema(self):
        self.no_schema() if {"max_tokens", "temperature"}.isdisjoint(self.body) else self.modern()

    def log_message(self, *_):
        pass


class Endpoint(ThreadingHTTPServer):
    """Runs while the block does; `faults` maps task ids to methods of `Handler`."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, faults=None, *, k=10, patience=60.0):
        super().__init__(("127.0.0.1", 0), Handler)
        self.faults, self.k, self.patience = faults or {}, k, patience
        self.seen, self.bodies, self.lock = Counter(), [], threading.Lock()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}/v1"

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
