"""A client for endpoints that speak OpenAI's HTTP interface, with a cassette of recorded replies.

Modes: ``replay`` (default) answers from the cassette alone and never opens a connection; ``record`` answers from the
cassette, asks the endpoint for what is missing and keeps its reply, or why there was none; ``off`` always asks and
keeps nothing. A recorded fault is raised again by ``replay`` and asked again by ``record``.

The `openai` package sends the requests. Time-outs of whole attempts, limits of size, retries and counts are kept here,
because the package's own hold for the single steps of a request only.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from study.advisor.llm import weights
from study.advisor.llm.cassette import KINDS as KINDS
from study.advisor.llm.cassette import Cassette, Entry
from study.advisor.llm.cassette import Usage as Usage
from study.advisor.llm.cassette import key as key
from study.base.errors import StudyError, UnavailableError

if TYPE_CHECKING:
    from study.advisor.llm.local import Served

Mode = Literal["replay", "record", "off"]
Message = Mapping[str, Any]

MODES = ("replay", "record", "off")
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
    """No usable reply.

    `kind`: one of `KINDS`. `status`: HTTP status, where the endpoint refused. `message`: its message, cleaned and cut,
    where it refused.
    """

    def __init__(
        self,
        kind: str,
        reason: str,
        *,
        file: str | Path | None = None,
        fix: str | None = None,
        status: int | None = None,
        message: str = "",
    ) -> None:
        self.kind, self.status, self.message = kind, status, message
        super().__init__(reason, file=file, fix=fix)

    def __reduce__(self) -> tuple[object, ...]:
        rebuild = partial(EndpointError, file=self.file, fix=self.fix, status=self.status, message=self.message)
        return rebuild, (self.kind, self.reason)


class _PassingError(Exception):
    """A failure that may pass; `after` is how many seconds the server asks to wait."""

    def __init__(self, kind: str, reason: str, after: float | None = None) -> None:
        super().__init__(reason)
        self.kind, self.after = kind, after


class _TooLongError(Exception):
    """A reply with more bytes than allowed."""


def refused_parameter(body: Mapping[str, Any], refusal: EndpointError) -> str | None:
    """The parameter of `INSTEAD` in `body` that a refusal speaks of; None where it is about anything else."""
    if refusal.status not in (400, 422) or not UNSUPPORTED.search(refusal.message):
        return None
    return next((name for name, other in INSTEAD.items() if name in body and (other or name) in refusal.message), None)


def as_accepted(body: Mapping[str, Any], changes: Mapping[str, str | None]) -> dict[str, Any]:
    """`body` with parameters under other names, or left out where that is None."""
    unchanged = {name: value for name, value in body.items() if name not in changes}
    return unchanged | {other: body[name] for name, other in changes.items() if other is not None and name in body}


@dataclass
class Client:
    """One endpoint.

    A parameter of `INSTEAD` that the endpoint refuses is sent as `INSTEAD` says, at once and from then on. A recorded
    reply belongs to the request as it was asked, whatever had to be sent.

    Args:
        base_url: e.g. ``http://localhost:8000/v1``; or ``local:qwen``, a model that this process starts. Questions to
            it name the model's file and hash in place of the given name, so that a recorded reply belongs to one file.
        mode: one of `MODES`.
        cassette: JSONL file of {key, request, response}; needed unless the mode is off.
        keep_requests: False keeps only a request's key beside the reply, where the request quotes texts that must not
            be passed on.
        key_variable: environment variable that holds the key; a missing or empty one sends none.
        timeout: seconds for one whole attempt, from the connection to the last byte.
        max_bytes: of a reply; a longer one is cut off and is an error.
        concurrency: attempts under way at the same time at most, over all threads.
        retries: further attempts after a failure that may pass.
        pause: seconds before the first of them, doubled each time; at most `longest_pause`.
        condense: what is kept of a reply, and used of it.

    Attributes:
        adapted: parameters that were refused -> what was sent instead (None: nothing), replayed replies included.
    """

    base_url: str
    mode: Mode = "replay"
    cassette: Path | None = None
    keep_requests: bool = True
    key_variable: str = "OPENAI_API_KEY"
    timeout: float = 60.0
    max_bytes: int = 64 * 2**20
    concurrency: int = 4
    retries: int = 3
    pause: float = 1.0
    longest_pause: float = 30.0
    sleep: Callable[[float], None] = time.sleep
    condense: Callable[[Any], Any] = lambda reply: reply
    usage: Usage = field(default_factory=Usage, init=False)
    adapted: dict[str, str | None] = field(default_factory=dict, init=False)
    _refused: dict[str, str | None] = field(default_factory=dict, init=False, repr=False)
    _tape: Cassette | None = field(default=None, init=False, repr=False)
    _sender: Any = field(default=None, init=False, repr=False)
    _engine: Served | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise StudyError(f"unknown mode {self.mode!r}", fix=f"one of: {', '.join(MODES)}")
        if self.mode != "off" and self.cassette is None:
            raise StudyError(f"the mode {self.mode} needs a cassette", fix="name a file, or use the mode off")
        if not self.base_url.startswith(("http://", "https://", LOCAL)):
            raise StudyError(f"not an HTTP address: {self.base_url!r}", fix="use http://..., https://... or local:NAME")
        if self.concurrency < 1:
            raise StudyError(f"{self.concurrency} attempts at a time", fix="set concurrency to 1 or more")
        self._free, self._lock = threading.Semaphore(self.concurrency), threading.RLock()

    def chat(self, model: str, messages: Sequence[Message], **parameters: Any) -> str:
        """The text of the first choice of a chat completion; a reply of another form is a `StudyError`."""
        reply = self.post("chat/completions", {"model": model, "messages": [dict(m) for m in messages], **parameters})
        try:
            text = reply["choices"][0]["message"]["content"]
        except (KeyError, IndexError, TypeError) as error:
            raise EndpointError(
                "not_a_chat", "not a chat completion", file=self.base_url, fix="check the endpoint"
            ) from error
        return text if isinstance(text, str) else ""

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """The decoded JSON reply to `body`, from the cassette or from the endpoint as the mode says.

        Raises EndpointError: there is no usable reply; its `kind` says why. Raises StudyError: the cassette is
        damaged, or a local model cannot be started.
        """
        if self.base_url.startswith(LOCAL):
            body = {**body, "model": weights.identity(self.base_url.removeprefix(LOCAL))}
        request = {"path": path, "body": body}
        if self.mode != "off":
            with self._lock:
                entry = self._recorded().entries().get(key(request))
                if entry is not None and entry.fault is None:
                    self.usage.count(entry.response, replayed=True)
                    self.adapted |= entry.sent
                    return entry.response
            if self.mode == "replay":
                raise self._missing(request, entry)
        try:
            reply, sent = self._ask_as_accepted(path, body)
            reply = self.condense(reply)
        except EndpointError as error:
            if self.mode == "record":
                with self._lock:
                    self._recorded().keep(request, Entry(fault=error.kind))
            raise
        with self._lock:
            self.usage.count(reply, replayed=False)
            self.adapted |= sent
            if self.mode == "record":
                self._recorded().keep(request, Entry(reply, sent=sent))
        return reply

    def _recorded(self) -> Cassette:
        # `cassette` and `keep_requests` may be set until the first request.
        if self._tape is None:
            assert self.cassette is not None
            self._tape = Cassette(self.cassette, self.keep_requests)
        return self._tape

    def _missing(self, request: Mapping[str, Any], entry: Entry | None) -> EndpointError:
        """Why a replay has no reply: none was recorded, or the fault that was."""
        fault = None if entry is None else entry.fault
        reason = f"no recorded reply to this request (key {key(request)[:12]})"
        if fault is not None:
            reason = f"the endpoint failed when this was recorded ({fault})"
        fix = "record it: use the mode `record` with an endpoint"
        return EndpointError(fault or "no_record", reason, file=self.cassette, fix=fix)

    def _ask_as_accepted(self, path: str, body: Mapping[str, Any]) -> tuple[Any, dict[str, str | None]]:
        """The reply, and what of `INSTEAD` had to be done for it; each parameter is changed once at most."""
        while True:
            with self._lock:
                changes = {name: other for name, other in self._refused.items() if name in body}
            sent = as_accepted(body, changes)
            try:
                return self._ask(path, sent), changes
            except EndpointError as error:
                name = refused_parameter(sent, error)
                if name is None:
                    raise
                with self._lock:
                    self._refused[name] = INSTEAD[name]

    def _ask(self, path: str, body: Mapping[str, Any]) -> Any:
        pause = self.pause
        for attempt in range(self.retries + 1):
            try:
                with self._free:
                    return self._attempt(path, body)
            except _PassingError as failure:
                if attempt == self.retries:
                    raise EndpointError(
                        failure.kind,
                        f"no usable reply in {attempt + 1} attempts; the last: {failure}",
                        file=self.base_url,
                        fix="check the endpoint, or raise `timeout` or `retries`",
                    ) from failure
                self.sleep(min(self.longest_pause, pause if failure.after is None else failure.after))
                pause *= 2
        raise AssertionError("unreachable")

    def _attempt(self, path: str, body: Mapping[str, Any]) -> Any:
        import openai

        with self._lock:
            self.usage.attempts += 1
            if self.base_url.startswith(LOCAL) and self._engine is None:
                from study.advisor.llm.local import shared_model

                self._engine = shared_model(self.base_url.removeprefix(LOCAL))
        try:
            return json.loads(_in_background(asyncio.wait_for(self._send(path, body), self.timeout)))
        except TimeoutError as error:
            raise _PassingError("timeout", "the reply came too slowly") from error
        except openai.APIStatusError as error:
            status, message = error.status_code, _message(error.body, os.environ.get(self.key_variable))
            stated = f"HTTP {status}: {message}" if message else f"HTTP {status}"
            if status in PASSING:
                kind = "busy" if status == 429 else "server_error" if status >= 500 else "timeout"
                raise _PassingError(kind, stated, _seconds(error.response.headers)) from error
            raise EndpointError(
                "refused",
                f"the endpoint refused the request: {stated}",
                file=f"{self.base_url}/{path}",
                fix="check the key, the model's name and the address",
                status=status,
                message=message,
            ) from error
        except (openai.APIConnectionError, _TooLongError) as error:
            reason = error.__cause__ or error
            if isinstance(reason, _TooLongError) or isinstance(error, _TooLongError):
                raise EndpointError(
                    "too_long",
                    f"the reply is longer than {self.max_bytes} bytes",
                    file=self.base_url,
                    fix="check the endpoint",
                ) from error
            if self._engine is not None and (end := self._engine.stopped()) is not None:
                raise EndpointError("connection", end, file=self.base_url, fix="run it again") from error
            raise _PassingError("connection", f"{type(reason).__name__}: {reason}") from error
        except (ValueError, RecursionError) as error:
            raise _PassingError("not_json", f"a reply that is not JSON ({error})") from error

    async def _send(self, path: str, body: Mapping[str, Any]) -> bytes:
        """The body of the reply to one attempt."""
        import httpx2
        import openai

        if self._sender is None:
            self._sender = self._open()
        options: Any = {} if os.environ.get(self.key_variable) else {"headers": {"Authorization": openai.Omit()}}
        reply = await self._sender.post(f"/{path}", cast_to=httpx2.Response, body=dict(body), options=options)
        return bytes(reply.content)

    def _open(self) -> Any:
        """The `openai` client. It keeps no connection open, so it needs no closing."""
        import httpx2
        import openai

        class Bounded(httpx2.AsyncByteStream):
            def __init__(self, stream: Any, most: int) -> None:
                self.stream, self.left = stream, most

            async def __aiter__(self) -> AsyncIterator[bytes]:
                async for part in self.stream:
                    self.left -= len(part)
                    if self.left < 0:
                        raise _TooLongError
                    yield part

            async def aclose(self) -> None:
                await self.stream.aclose()

        async def bound(response: httpx2.Response) -> None:
            response.stream = Bounded(response.stream, self.max_bytes)

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


def _in_background(work: Coroutine[Any, Any, bytes]) -> bytes:
    return asyncio.run_coroutine_threadsafe(work, _loop(os.getpid())).result()


def _seconds(headers: Mapping[str, str]) -> float | None:
    """The seconds of a Retry-After header, None for none or a date."""
    text = headers.get("Retry-After")
    return float(text) if text is not None and text.isdecimal() else None


def _message(body: Any, secret: str | None) -> str:
    """What an endpoint's error says, in one printable line without the key, cut after `LONGEST_MESSAGE` characters.

    `body`: its ``error`` object or text, as the `openai` package gives it.
    """
    text = body.get("message") if isinstance(body, dict) else body
    text = text if isinstance(text, str) else ""
    if secret:
        text = text.replace(secret, "[key]")
    letters = (letter if letter.isprintable() else " " for letter in text[: 10 * LONGEST_MESSAGE])
    line = " ".join("".join(letters).split())
    return line if len(line) <= LONGEST_MESSAGE else line[: LONGEST_MESSAGE - 1] + "…"
