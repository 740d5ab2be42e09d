"""The log that LiveMCPBench ships: one agent's proactive requests, the tools it was shown and the tools it ran.

The agent (Claude Sonnet 4) called `route` with a request block and `execute-tool` with a server and a tool. There are
no times and no latencies in it.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from study.tools.catalogues.catalog import ToolCatalog
from study.tools.catalogues.files import read_list
from study.tools.catalogues.livemcpbench import LOG_FILE

RETURNED = re.compile(r"server_name: (.*?)\\n  tool_name: (.*?)\\n")
FAILED_TEXT = re.compile(
    r"""['"]text['"]?(?::|=)\s*\\?['"](?:Error|Failed)|"text": "(?:Error|Failed)|text='(?:Error|Failed)"""
)


@dataclass(frozen=True)
class Route:
    """One `route` call: the text of the request, and the rows of the tools returned (unknown ones left out)."""

    text: str
    returned: tuple[int, ...]


@dataclass(frozen=True)
class Execution:
    """One `execute-tool` call.

    Attributes:
        tool: its row, None where the catalogue has no such tool.
        ok: no error was reported: neither by the client, nor by the server, nor at the start of the text.
        after: how many route calls came before it in the task.
    """

    tool: int | None
    ok: bool
    after: int


@dataclass(frozen=True)
class Episode:
    """One task: its calls in order and the human verdict."""

    task: str
    routes: tuple[Route, ...]
    executions: tuple[Execution, ...]
    success: bool


def load(folder: Path, catalog: ToolCatalog) -> list[Episode]:
    """Every task of the log, in file order (95, one of which has no known label)."""
    rows = {
        (alias, tool.name): row
        for row, tool in enumerate(catalog.tools)
        for alias in catalog.servers[tool.server].aliases
    }
    return [_episode(entry, rows) for entry in read_list(folder / LOG_FILE, ("task_id", "messages", "task_success"))]


def _episode(entry: dict[str, Any], rows: dict[tuple[str, str], int]) -> Episode:
    replies = {m["tool_call_id"]: str(m["content"]) for m in entry["messages"] if m.get("role") == "tool"}
    routes: list[Route] = []
    executions: list[Execution] = []
    for message in entry["messages"]:
        for call in message.get("tool_calls") or ():
            arguments = _arguments(call["function"]["arguments"])
            reply = replies.get(call["id"], "")
            if call["function"]["name"] == "route":
                shown = (rows.get(pair) for pair in RETURNED.findall(reply))
                routes.append(Route(str(arguments.get("query", "")), tuple(row for row in shown if row is not None)))
            else:
                pair = (str(arguments.get("server_name")), str(arguments.get("tool_name")))
                executions.append(Execution(rows.get(pair), succeeded(reply), len(routes)))
    return Episode(str(entry["task_id"]), tuple(routes), tuple(executions), entry["task_success"] == "success")


def _arguments(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def succeeded(reply: str) -> bool:
    """Whether an execution's reply reports no error."""
    return not (
        "Error executing tool" in reply
        or re.search(r'\\?"isError\\?": true', reply)
        or reply.rstrip().endswith("isError=True")
        or FAILED_TEXT.search(reply)
    )
