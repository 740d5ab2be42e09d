"""The request block that the agent writes (MCP-Zero, section 3.1), read as strictly as the released program does."""

from __future__ import annotations

import re
from typing import NamedTuple

# MCP-Zero's own pattern as the released matcher applies it: both fields, in this order, the block closed.
BLOCK = re.compile(r"<tool_assistant>\s*server:\s*(.*?)\s*tool:\s*(.*?)\s*</tool_assistant>", re.DOTALL)
# Longer replies are cut before they are searched; the longest real request block has 400 characters.
MAX_REPLY = 100_000


class Request(NamedTuple):
    """A wish for a tool: the platform or domain, and the operation on its target."""

    server: str
    tool: str


def parse(reply: str) -> list[Request]:
    """Every well-formed block of a reply, in order; a block with an empty field is not well-formed."""
    found = []
    for piece in _closed(reply[:MAX_REPLY]):
        match = BLOCK.search(piece)
        if match and match[1] and match[2]:
            found.append(Request(match[1], match[2]))
    return found


def malformed(reply: str) -> int:
    """How many blocks a reply opens that `parse` does not return."""
    return reply[:MAX_REPLY].count("<tool_assistant>") - len(parse(reply))


def _closed(reply: str) -> list[str]:
    """The reply from each opening tag to the next, so that a lazy pattern cannot run across."""
    return [f"<tool_assistant>{part}" for part in reply.split("<tool_assistant>")[1:]]
