"""Calls are checked before they leave, in a process of its own that time and memory bound."""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import PIPE
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from study.base.errors import StudyError, printable

PROGRAM = Path(__file__).with_name("checker.py")  # not imported: it is no part of this process


class Checker:
    """The process of ``checker.py``, started with the first check and again after one that took more than `seconds`.
    `characters`: of a call's arguments as JSON, at most."""

    def __init__(self, seconds: float, characters: int) -> None:
        self.seconds, self.characters = seconds, characters
        self.process: Any = None  # asyncio.subprocess.Process
        self.free = asyncio.Lock()

    async def check(self, arguments: Mapping[str, Any], schema: Mapping[str, Any]) -> None:
        """Raise `StudyError` unless a tool takes these arguments; an empty schema takes any."""
        length = len(json.dumps(arguments))
        if length > self.characters:
            raise StudyError(f"the arguments have {length} characters, over {self.characters}", fix="send less")
        if not schema:
            return
        line = json.dumps({"schema": schema, "arguments": arguments}).encode() + b"\n"
        async with self.free:
            answer = await self._ask(line)
        kind, reason = json.loads(answer) if answer else ("schema", f"the check takes more than {self.seconds:g} s")
        if kind == "arguments":
            raise StudyError(printable(reason), fix="correct the arguments; `describe_tools` shows the schema")
        if kind:
            reason = f"the tool's schema cannot be used to check the call: {printable(reason)}"
            raise StudyError(reason, fix="tell the server's authors; another tool may do")

    async def _ask(self, line: bytes) -> bytes:
        """What the process answers; nothing where it ended."""
        answer = b""
        try:
            if self.process is None:
                words = ["-I", str(PROGRAM), str(self.seconds)]
                self.process = await asyncio.create_subprocess_exec(sys.executable, *words, stdin=PIPE, stdout=PIPE)
            with suppress(OSError):
                self.process.stdin.write(line)
                await self.process.stdin.drain()
                answer = await self.process.stdout.readline()
            return answer
        finally:
            if not answer:  # also where the host gave up: the next answer would be that of another call
                await self.close()

    async def close(self) -> None:
        """End the process."""
        process, self.process = self.process, None
        if process is not None:
            with suppress(ProcessLookupError):
                process.kill()
            await asyncio.shield(process.wait())
