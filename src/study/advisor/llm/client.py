"""A client for endpoints that speak OpenAI's HTTP interface, with a cassette of recorded replies.

Modes: ``replay`` (default) answers from the cassette alone and never opens a connection; ``record`` answers from the
cassette, asks the endpoint for what is missing and keeps its reply, or why there was none; ``off`` always asks and
keeps nothing. A recorded fault is raised again by ``replay`` and asked again by ``record``.

The `openai` package sends the requests. Time-outs of whole attempts, limits of size, retries and counts are kept here,
because the package's own hold for the single steps of a request only.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from study.advisor.llm import weights
from study.advisor.llm.cassette import KINDS as KINDS
from study.advisor.llm.cassette import Cassette
from study.advisor.llm.cassette import Usage as Usage
from study.advisor.llm.cassette import key as key
from study.base.errors import StudyError, UnavailableError, printable

if TYPE_CHECKING:
    from study.advisor.llm.local import Served

Mode = Literal["replay", "record", "off"]
Message = Mapping[str, Any]

# An address with this scheme is a model of conf/llm/models.yaml, started at the first question.
LOCAL = "local:"
# Worth another try: time-out, conflict, too many requests, and everything that the server blames on itself.
PASSING = frozenset({408, 409, 425, 429, 500, 502, 503, 504})
# Parameters that some endpoints refuse -> the name under which they are sent then, None to leave them out.
INSTEAD: Mapping[str, str | None] = {"max_tokens": "max_completion_tokens", "temperature": None}
# How an endpoint says that it does not know a parameter or its value.
UNSUPPORTED = re.compile(r"unsupported|(?:not|n't) support", re.IGNORECASE)
# Characters of an endpoint's message that are passed on.
LONGEST_MESSAGE = 300


class EndpointError(UnavailableError):
    """No usable reply. `kind`: one of `KINDS`. `status`, `message`: of HTTP, cleaned and cut, where it refused."""

    def __init__(self, kind: str, reason: str, *, status: int | None = None, message: str = "", **where: Any) -> None:
        self.kind, self.status, self.message = kind, status, message
        super().__init__(reason, **where)

    def __reduce__(self) -> tuple[object, ...]:
        rebuild = partial(EndpointError, file=self.file, fix=self.fix, status=self.status, message=self.message)
        return rebuild, (self.kind, self.reason)


class _PassingError(Exception):
    """A failure that may pass: its kind, its reason, and how many seconds the server asks to wait."""


class _TooLongError(Exception):
    """A reply with more bytes than allowed."""


def refused_parameter(body: Mapping[str, Any], refusal: EndpointError) -> str | None:
    """The parameter of `INSTEAD` in `body` that a refusal speaks of; None where it is about anything else."""
    if refusal.status not in (400, 422) or not UNSUPPORTED.search(refusal.message):
        return None
    return next((name for name, other in INSTEAD.items() if name in body and (other or name) in refusal.message), None)


@dataclass
class Client:
    """One endpoint. A parameter of `INSTEAD` that it refuses is sent as `INSTEAD` says, at once and from then on. A
    recorded reply belongs to the request as it was asked, and to a local model's file and hash."""

    base_url: str  # ``http://localhost:8000/v1``; or ``local:qwen``, a model that this process starts
    mode: Mode = "replay"
    cassette: Path | None = None  # JSONL file of {key, response}; needed unless the mode is off
    key_variable: str = "OPENAI_API_KEY"  # environment variable that holds the key; a missing or empty one sends none
    timeout: float = 60.0  # seconds for one whole attempt, from the connection to the last byte
    max_bytes: int = 64 * 2**20  # of a reply; a longer one is cut off and is an error
    concurrency: int = 4  # attempts under way at the same time at most, over all threads
    retries: int = 3  # further attempts after a failure that may pass
    pause: float = 1.0  # seconds before the first of them, doubled each time; at most `longest_pause`
    longest_pause: float = 30.0
    sleep: Callable[[float], None] = time.sleep
    condense: Callable[[Any], Any] = lambda reply: reply  # what is kept of a reply, and used of it
    usage: Usage = field(default_factory=Usage, init=False)
    # Parameters that were refused -> what was sent instead (None: nothing), replayed replies included.
    adapted: dict[str, str | None] = field(default_factory=dict, init=False)
    _refused: dict[str, str | None] = field(default_factory=dict, init=False, repr=False)
    _engine: Served | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.mode != "off" and self.cassette is None:
            raise StudyError(f"the mode {self.mode} needs a cassette", fix="name a file, or use the mode off")
        if not self.base_url.startswith(("http://", "https://", LOCAL)):
            raise StudyError(f"not an HTTP address: {self.base_url!r}", fix="use http://..., https://... or local:NAME")
        self._free, self._lock = threading.Semaphore(self.concurrency), threading.RLock()

    def chat(self, model: str, messages: Sequence[Message], **parameters: Any) -> str:
        """The text of the first choice of a chat completion; a reply of another form is a `StudyError`."""
        reply = self.post("chat/completions", {"model": model, "messages": [dict(m) for m in messages], **parameters})
        try:
            text = reply["choices"][0]["message"]["content"]
        except (KeyError, IndexError, TypeError) as error:
            raise self._failure("not_a_chat", "not a chat completion") from error
        return text if isinstance(text, str) else ""

    def _failure(self, kind: str, reason: str, fix: str = "check the endpoint") -> EndpointError:
        return EndpointError(kind, reason, file=self.base_url, fix=fix)

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """The decoded JSON reply to `body`, from the cassette or from the endpoint as the mode says. Raises
        EndpointError: no usable reply, with its kind; StudyError: a damaged cassette, or a local model that does not
        start."""
        if self.base_url.startswith(LOCAL):
            body = {**body, "model": weights.identity(self.base_url.removeprefix(LOCAL))}
        request = {"path": path, "body": body}
        if self.mode != "off":
            with self._lock:
                outcome = self._tape.entries.get(key(request), {})
                if "response" in outcome:
                    self.usage.count(outcome["response"], replayed=True)
                    self.adapted |= outcome["sent"]
                    return outcome["response"]
            if self.mode == "replay":
                fault = outcome.get("fault")
                reason = f"no recorded reply to this request (key {key(request)[:12]})"
                reason = f"the endpoint failed when this was recorded ({fault})" if fault else reason
                fix = "record it: use the mode `record` with an endpoint"
                raise EndpointError(fault or "no_record", reason, file=self.cassette, fix=fix)
        try:
            reply, sent = self._ask_as_accepted(path, body)
            reply = self.condense(reply)
        except EndpointError as error:
            if self.mode == "record":
                with self._lock:
                    self._tape.keep(request, {"fault": error.kind})
            raise
        with self._lock:
            self.usage.count(reply, replayed=False)
            self.adapted |= sent
            if self.mode == "record":
                self._tape.keep(request, {"response": reply, "sent": sent})
        return reply

    @cached_property
    def _tape(self) -> Cassette:
        assert self.cassette is not None
        return Cassette(self.cassette)

    def _ask_as_accepted(self, path: str, body: Mapping[str, Any]) -> tuple[Any, dict[str, str | None]]:
        """The reply, and what of `INSTEAD` had to be done for it; each parameter is changed once at most."""
        while True:
            with self._lock:
                changes = {name: other for name, other in self._refused.items() if name in body}
            sent = {new: value for name, value in body.items() if (new := changes.get(name, name))}
            try:
                return self._ask(path, sent), changes
            except EndpointError as error:
                name = refused_parameter(sent, error)
                if name is None:
                    raise
                with self._lock:
                    self._refused[name] = INSTEAD[name]

    def _ask(self, path: str, body: Mapping[str, Any]) -> Any:
        for attempt in itertools.count():
            try:
                with self._free:
                    return self._attempt(path, body)
            except _PassingError as failure:
                kind, reason, after = failure.args
                if attempt == self.retries:
                    reason = f"no usable reply in {attempt + 1} attempts; the last: {reason}"
                    fix = "check the endpoint, or raise `timeout` or `retries`"
                    raise self._failure(kind, reason, fix) from failure
                self.sleep(min(self.longest_pause, self.pause * 2**attempt if after is None else after))
        raise AssertionError("unreachable")

    def _attempt(self, path: str, body: Mapping[str, Any]) -> Any:
        import openai

        with self._lock:
            self.usage.attempts += 1
            if self.base_url.startswith(LOCAL) and self._engine is None:
                from study.advisor.llm.local import shared_model

                self._engine = shared_model(self.base_url.removeprefix(LOCAL))
        try:
            work = asyncio.wait_for(self._send(path, body), self.timeout)
            return json.loads(asyncio.run_coroutine_threadsafe(work, _loop(os.getpid())).result())
        except TimeoutError as error:
            raise _PassingError("timeout", "the reply came too slowly", None) from error
        except openai.APIStatusError as error:
            status, message = error.status_code, _message(error.body, os.environ.get(self.key_variable))
            stated = f"HTTP {status}: {message}" if message else f"HTTP {status}"
            if status in PASSING:
                kind = "busy" if status == 429 else "server_error" if status >= 500 else "timeout"
                after = error.response.headers.get("Retry-After", "")  # seconds, or a date
                raise _PassingError(kind, stated, float(after) if after.isdecimal() else None) from error
            reason, file = f"the endpoint refused the request: {stated}", f"{self.base_url}/{path}"
            fix = "check the key, the model's name and the address"
            raise EndpointError("refused", reason, file=file, fix=fix, status=status, message=message) from error
        except _TooLongError as error:
            raise self._failure("too_long", f"the reply is longer than {self.max_bytes} bytes") from error
        except openai.APIConnectionError as error:
            cause = error.__cause__ or error
            if self._engine is not None and (end := self._engine.stopped()) is not None:
                raise self._failure("connection", end, "run it again") from error
            raise _PassingError("connection", f"{type(cause).__name__}: {cause}", None) from error
        except (ValueError, RecursionError) as error:
            raise _PassingError("not_json", f"a reply that is not JSON ({error})", None) from error

    async def _send(self, path: str, body: Mapping[str, Any]) -> bytes:
        """The body of the reply to one attempt."""
        import httpx2
        import openai

        options: Any = {} if os.environ.get(self.key_variable) else {"headers": {"Authorization": openai.Omit()}}
        reply = await self._sender.post(f"/{path}", cast_to=httpx2.Response, body=dict(body), options=options)
        return bytes(reply.content)

    @cached_property
    def _sender(self) -> Any:
        """The `openai` client. It keeps no connection open, so it needs no closing."""
        import httpx2
        import openai

        async def bound(response: httpx2.Response) -> None:
            """Read the reply here, where it can be left off."""
            stream: Any = response.stream
            content = bytearray()
            async for part in stream:
                content += part
                if len(content) > self.max_bytes:
                    raise _TooLongError
            await stream.aclose()
            response.stream = httpx2.ByteStream(bytes(content))

        http = httpx2.AsyncClient(
            timeout=None,
            limits=httpx2.Limits(max_keepalive_connections=0),
            event_hooks={"response": [bound]},
            follow_redirects=False,  # they would carry the key and the request to another host
            trust_env=self._engine is None,  # no proxy stands before this machine
        )
        return openai.AsyncOpenAI(
            base_url=self.base_url if self._engine is None else self._engine.url,
            api_key=os.environ.get(self.key_variable) or "none",
            max_retries=0,
            timeout=None,
            default_headers={"Accept-Encoding": "identity"},  # compressed replies could unpack to more than `max_bytes`
            http_client=http,
        )


@cache
def _loop(process: int) -> asyncio.AbstractEventLoop:
    """The event loop of process `process`, in a thread of its own: callers may have a running loop themselves."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True, name="llm").start()
    return loop


def _message(body: Any, secret: str | None) -> str:
    """What an error (an object or text, as `openai` gives it) says, in one printable line without the key, cut after
    `LONGEST_MESSAGE` characters."""
    text = body.get("message") if isinstance(body, dict) else body
    text = text if isinstance(text, str) else ""
    if secret:
        text = text.replace(secret, "[key]")
    line = " ".join(printable(text[: 10 * LONGEST_MESSAGE]).split())
    return line if len(line) <= LONGEST_MESSAGE else line[: LONGEST_MESSAGE - 1] + "…"
