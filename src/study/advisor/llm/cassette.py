"""A cassette: a JSONL file of an endpoint's replies, without the requests (they may quote texts that must not be passed
on): these are the keys, as SHA-256 of their canonical JSON."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
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


def outcome_of(line: Mapping[str, Any]) -> dict[str, Any]:
    """What became of a request: ``fault``, one of `KINDS`, or ``response`` (decoded) and ``sent`` (refused parameters
    -> what was sent instead, None for nothing). Raises KeyError, ValueError, TypeError: neither."""
    if "fault" not in line:
        return {"response": line["response"], "sent": dict(line.get("sent", {}))}
    if line["fault"] not in KINDS:
        raise ValueError("an unknown fault")
    return {"fault": line["fault"]}


@dataclass
class Cassette:
    """One file; used by one thread at a time."""

    path: Path

    @cached_property
    def entries(self) -> dict[str, dict[str, Any]]:
        """What is recorded, by key (`outcome_of`); a reply goes before a fault of the same request. An unfinished last
        line (a stopped recording) is ignored. Raises StudyError: any other bad line."""
        by_key: dict[str, dict[str, Any]] = {}
        try:
            lines = self.path.read_text(encoding="utf-8").split("\n") if self.path.is_file() else []
        except UnicodeDecodeError as error:
            raise StudyError(f"no cassette: {error}", file=self.path, fix="name a cassette, or a new file") from error
        for number, line in enumerate(lines, start=1):
            if not line:
                continue
            try:
                read = json.loads(line)
                name, outcome = read["key"], outcome_of(read)
                if "response" in outcome or "fault" in by_key.get(name, outcome):
                    by_key[name] = outcome
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                if number == len(lines):
                    continue
                reason, row = f"a damaged cassette ({error})", f"line {number}"
                raise StudyError(reason, file=self.path, row=row, fix="remove the line") from error
        return by_key

    def keep(self, request: Mapping[str, Any], outcome: dict[str, Any]) -> None:
        """Append what became of a request; a fault that is known already, or follows a reply, says nothing new."""
        name = key(request)
        before = self.entries.get(name)
        if "fault" in outcome and before is not None and before.get("fault") in (None, outcome["fault"]):
            return
        line = canonical({"key": name} | {part: value for part, value in outcome.items() if value or part != "sent"})
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab+") as stream:
            # After a stopped recording the last line has no end.
            stream.seek(-1 if stream.tell() else 0, os.SEEK_END)
            begin = "" if stream.read(1) in (b"", b"\n") else "\n"
            stream.write(f"{begin}{line}\n".encode("utf-8", "surrogatepass"))
        self.entries[name] = outcome


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
        stated = reply if isinstance(reply, dict) else {}
        if isinstance(stated.get("model"), str):
            self.models.add(stated["model"])
        tokens = stated["usage"] if isinstance(stated.get("usage"), dict) else {}
        for name in ("prompt_tokens", "completion_tokens"):
            if type(tokens.get(name)) is int:
                setattr(self, name, getattr(self, name) + max(tokens[name], 0))
