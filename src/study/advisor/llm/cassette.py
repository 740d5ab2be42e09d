"""A cassette: a JSONL file of recorded replies of an endpoint, keyed by the SHA-256 of the canonical request.

`Usage` counts what was asked, replayed replies included.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from study.base.errors import StudyError

# Why there is no reply: the `kind` of an `EndpointError`, and the `fault` of a line.
KINDS = ("no_record", "timeout", "connection", "busy", "server_error", "not_json", "too_long", "refused", "not_a_chat")


def canonical(value: Any) -> str:
    """The one JSON text of a value: sorted keys, no spaces."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def key(request: Mapping[str, Any]) -> str:
    """SHA-256 of the canonical request, in hex."""
    return hashlib.sha256(canonical(request).encode("utf-8", "surrogatepass")).hexdigest()


def holds_replies(path: Path) -> bool:
    """Whether there is a cassette with more than faults. Its lines are not checked, so that this takes no time."""
    if not path.is_file():
        return False
    with path.open("rb") as lines:
        return any(not line.startswith(b'{"fault":') for line in lines)


@dataclass(frozen=True)
class Entry:
    """What became of a request.

    Attributes:
        sent: parameters that the endpoint refused -> the name they were sent under instead, None for left out.
    """

    response: Any = None  # the decoded reply; None where there was none
    fault: str | None = None  # why there was none, one of `KINDS`; None for a reply
    sent: Mapping[str, str | None] = field(default_factory=dict)

    @classmethod
    def read(cls, line: Mapping[str, Any]) -> Entry:
        """From a line of a cassette.

        Raises KeyError, ValueError, TypeError: it holds neither a reply nor a known fault.
        """
        if "fault" in line:
            if line["fault"] not in KINDS:
                raise ValueError("an unknown fault")
            return cls(fault=line["fault"])
        return cls(line["response"], sent=dict(line.get("sent", {})))

    def line(self) -> dict[str, Any]:
        """What is written of it."""
        if self.fault is not None:
            return {"fault": self.fault}
        return {"response": self.response} | ({"sent": dict(self.sent)} if self.sent else {})


@dataclass
class Cassette:
    """One file; used by one thread at a time.

    `keep_requests`: False keeps only a request's key beside what became of it.
    """

    path: Path
    keep_requests: bool = True
    _entries: dict[str, Entry] | None = field(default=None, init=False, repr=False)

    def entries(self) -> dict[str, Entry]:
        """What is recorded, by key; a reply goes before a fault of the same request.

        An unfinished last line (a stopped recording) is ignored.

        Raises StudyError: any other bad line.
        """
        if self._entries is not None:
            return self._entries
        by_key: dict[str, Entry] = {}
        try:
            lines = self.path.read_text(encoding="utf-8").split("\n") if self.path.is_file() else []
        except UnicodeDecodeError as error:
            raise StudyError(f"no cassette: {error}", file=self.path, fix="name a cassette, or a new file") from error
        for number, line in enumerate(lines, start=1):
            if not line:
                continue
            try:
                read = json.loads(line)
                if "request" in read and key(read["request"]) != read["key"]:
                    raise ValueError("the key does not belong to the request")
                name, entry = read["key"], Entry.read(read)
                if entry.fault is None or name not in by_key or by_key[name].fault is not None:
                    by_key[name] = entry
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                if number == len(lines):
                    continue
                raise StudyError(
                    f"a damaged cassette ({error})", file=self.path, row=f"line {number}", fix="remove the line"
                ) from error
        self._entries = by_key
        return by_key

    def keep(self, request: Mapping[str, Any], entry: Entry) -> None:
        """Append what became of a request; a fault that is known already, or follows a reply, says nothing new."""
        name = key(request)
        before = self.entries().get(name)
        if entry.fault is not None and before is not None and before.fault in (None, entry.fault):
            return
        body = {"request": request} if self.keep_requests else {}
        line = canonical({"key": name, **entry.line(), **body}) + "\n"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab+") as stream:
            # After a stopped recording the last line has no end.
            if stream.tell():
                stream.seek(-1, os.SEEK_END)
                line = line if stream.read(1) == b"\n" else "\n" + line
            stream.write(line.encode("utf-8", "surrogatepass"))
        self.entries()[name] = entry


@dataclass
class Usage:
    """What was asked and what it took."""

    requests: int = 0  # requests, replayed: requests answered by the endpoint, and by the cassette
    replayed: int = 0
    attempts: int = 0  # HTTP requests sent, repeated ones included
    prompt_tokens: int = 0  # prompt_tokens, completion_tokens: as the replies state them, replayed ones included
    completion_tokens: int = 0
    models: set[str] = field(default_factory=set)  # as the replies name them, replayed ones included

    def count(self, reply: Any, *, replayed: bool) -> None:
        """Add one reply; an endpoint that states no tokens counts as none."""
        self.replayed += replayed
        self.requests += not replayed
        stated = reply.get("usage") if isinstance(reply, dict) else None
        if isinstance(reply, dict) and isinstance(reply.get("model"), str):
            self.models.add(reply["model"])
        for name in ("prompt_tokens", "completion_tokens"):
            tokens = stated.get(name) if isinstance(stated, dict) else None
            if type(tokens) is int and tokens > 0:
                setattr(self, name, getattr(self, name) + tokens)

    def cost(self, prompt_price: float, completion_price: float) -> float:
        """What the tokens cost, at prices per million tokens."""
        return (self.prompt_tokens * prompt_price + self.completion_tokens * completion_price) / 1e6
