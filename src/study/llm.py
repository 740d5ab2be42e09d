"""A small client for endpoints that speak OpenAI's HTTP interface, with a cassette of recorded replies.

Modes: ``replay`` (default) answers from the cassette alone and never opens a connection; ``record`` answers from the
cassette, asks the endpoint for what is missing and keeps its reply; ``off`` always asks and keeps nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Any, Literal

from study.errors import StudyError

Mode = Literal["replay", "record", "off"]
Message = Mapping[str, Any]

MODES = ("replay", "record", "off")
MAX_BYTES = 64 * 2**20
# Worth another try: time-out, conflict, too many requests, and everything that the server blames on itself.
PASSING = frozenset({408, 409, 425, 429, 500, 502, 503, 504})


class _PassingError(Exception):
    """A failure that may pass; `after` is how many seconds the server asks to wait."""

    def __init__(self, reason: str, after: float | None = None) -> None:
        super().__init__(reason)
        self.after = after


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Refuses redirections, which would carry the key to another host."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def canonical(value: Any) -> str:
    """The one JSON text of a value: sorted keys, no spaces."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def key(request: Mapping[str, Any]) -> str:
    """SHA-256 of the canonical request, in hex."""
    return hashlib.sha256(canonical(request).encode("utf-8", "surrogatepass")).hexdigest()


@dataclass
class Client:
    """One endpoint.

    Args:
        base_url: e.g. ``http://localhost:8000/v1``.
        mode: one of `MODES`.
        cassette: JSONL file of {key, request, response}; needed unless the mode is off.
        key_variable: environment variable that holds the key; a missing or empty one sends none.
        timeout: seconds for one whole attempt.
        retries: further attempts after a failure that may pass.
        pause: seconds before the first of them, doubled each time; at most `longest_pause`.
    """

    base_url: str
    mode: Mode = "replay"
    cassette: Path | None = None
    key_variable: str = "OPENAI_API_KEY"
    timeout: float = 60.0
    retries: int = 3
    pause: float = 1.0
    longest_pause: float = 30.0
    sleep: Callable[[float], None] = time.sleep
    _kept: dict[str, Any] | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        """Refuse an unknown mode, a missing cassette, and anything but HTTP."""
        if self.mode not in MODES:
            raise StudyError(f"unknown mode {self.mode!r}", fix=f"one of: {', '.join(MODES)}")
        if self.mode != "off" and self.cassette is None:
            raise StudyError(f"the mode {self.mode} needs a cassette", fix="name a file, or use the mode off")
        if not self.base_url.startswith(("http://", "https://")):
            raise StudyError(f"not an HTTP address: {self.base_url!r}", fix="use http://... or https://...")

    def chat(self, model: str, messages: Sequence[Message], **parameters: Any) -> str:
        """The text of the first choice of a chat completion; a reply of another form is a `StudyError`."""
        reply = self.post("chat/completions", {"model": model, "messages": [dict(m) for m in messages], **parameters})
        try:
            text = reply["choices"][0]["message"]["content"]
        except (KeyError, IndexError, TypeError) as error:
            raise StudyError("not a chat completion", file=self.base_url, fix="check the endpoint") from error
        return text if isinstance(text, str) else ""

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """The decoded JSON reply to `body`, from the cassette or from the endpoint as the mode says."""
        request = {"path": path, "body": body}
        name = key(request)
        if self.mode != "off":
            kept = self._recorded()
            if name in kept:
                return kept[name]
            if self.mode == "replay":
                raise StudyError(
                    f"no recorded reply to this request (key {name[:12]})", file=self.cassette,
                    fix="record it: use the mode `record` with an endpoint",
                )  # fmt: skip
        reply = self._ask(path, body)
        if self.mode == "record":
            self._keep(name, request, reply)
        return reply

    def _recorded(self) -> dict[str, Any]:
        """Replies by key; an unfinished last line (a stopped recording) is ignored, any other bad line is an error."""
        if self._kept is not None:
            return self._kept
        assert self.cassette is not None
        self._kept = {}
        lines = self.cassette.read_text(encoding="utf-8").split("\n") if self.cassette.is_file() else []
        for number, line in enumerate(lines, start=1):
            if not line:
                continue
            try:
                entry = json.loads(line)
                if key(entry["request"]) != entry["key"]:
                    raise ValueError("the key does not belong to the request")
                self._kept[entry["key"]] = entry["response"]
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                if number == len(lines):
                    continue
                raise StudyError(
                    f"a damaged cassette ({error})", file=self.cassette, row=f"line {number}", fix="remove the line"
                ) from error
        return self._kept

    def _keep(self, name: str, request: Mapping[str, Any], reply: Any) -> None:
        assert self.cassette is not None
        self.cassette.parent.mkdir(parents=True, exist_ok=True)
        line = canonical({"key": name, "request": request, "response": reply}) + "\n"
        with self.cassette.open("ab+") as stream:
            # After a stopped recording the last line has no end.
            if stream.tell():
                stream.seek(-1, os.SEEK_END)
                line = line if stream.read(1) == b"\n" else "\n" + line
            stream.write(line.encode("utf-8", "surrogatepass"))
        self._recorded()[name] = reply

    def _ask(self, path: str, body: Mapping[str, Any]) -> Any:
        pause = self.pause
        for attempt in range(self.retries + 1):
            try:
                return self._attempt(path, body)
            except _PassingError as failure:
                if attempt == self.retries:
                    raise StudyError(
                        f"no usable reply in {attempt + 1} attempts; the last: {failure}", file=self.base_url,
                        fix="check the endpoint, or raise `timeout` or `retries`",
                    ) from failure  # fmt: skip
                self.sleep(min(self.longest_pause, pause if failure.after is None else failure.after))
                pause *= 2
        raise AssertionError("unreachable")

    def _attempt(self, path: str, body: Mapping[str, Any]) -> Any:
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if secret := os.environ.get(self.key_variable):
            headers["Authorization"] = f"Bearer {secret}"
        url = f"{self.base_url.rstrip('/')}/{path}"
        request = urllib.request.Request(url, canonical(body).encode(), headers, method="POST")  # noqa: S310 checked above
        deadline = time.monotonic() + self.timeout
        try:
            with urllib.request.build_opener(_NoRedirect).open(request, timeout=self.timeout) as response:
                content = _read(response, deadline)
            return json.loads(content)
        except urllib.error.HTTPError as error:
            with error:
                if error.code in PASSING:
                    raise _PassingError(f"HTTP {error.code}", _seconds(error.headers.get("Retry-After"))) from error
            fix = "check the key, the model's name and the address"
            raise StudyError(f"the endpoint refused the request: HTTP {error.code}", file=url, fix=fix) from error
        except (OSError, HTTPException) as error:
            raise _PassingError(f"{type(error).__name__}: {error}") from error
        except (ValueError, RecursionError) as error:
            raise _PassingError(f"a reply that is not JSON ({error})") from error


def _read(response: HTTPResponse, deadline: float) -> bytes:
    """The whole body, unless it is too long or comes too slowly."""
    parts, size = [], 0
    while part := response.read1(2**16):
        parts.append(part)
        size += len(part)
        if size > MAX_BYTES:
            raise StudyError(f"the reply is longer than {MAX_BYTES} bytes", file=response.url, fix="check the endpoint")
        if time.monotonic() > deadline:
            raise TimeoutError("the reply came too slowly")
    length = response.headers.get("Content-Length")
    if length is not None and length.isdecimal() and int(length) != size:
        raise HTTPException("the reply broke off")
    return b"".join(parts)


def _seconds(text: str | None) -> float | None:
    """The seconds of a Retry-After header, None for none or a date."""
    return float(text) if text is not None and text.isdecimal() else None
