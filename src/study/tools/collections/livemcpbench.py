"""LiveMCPBench (Mo et al. 2025): 70 servers, 527 tools, 95 tasks with the tools that a human annotator used, and a log.

The log holds one agent's calls (Claude Sonnet 4): `route` with a request block, `execute-tool` with a server and a
tool. It has no times and no latencies.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from study.advisor.llm.reply import json_object
from study.advisor.retrieval.building import CHANGED, LEFT_OUT, REPORTED, Builder
from study.advisor.retrieval.documents import ToolCatalog
from study.tools.collections.files import Loaded, read_list, tags_of, text_of
from study.tools.queries import query_set

TOOLS_FILE = "tools/LiveMCPTool/tools.json"
TASKS_FILE = "annotated_data/all_annotations.json"
LOG_FILE = "baseline/annotation/claude-sonnet-4-20250514_Qwen3-Embedding-0.6B.json"
NUMBER = re.compile(r"^\s*\d+\s*[.)]\s*")


def load_livemcpbench(folder: Path) -> Loaded:
    """The catalogue, the query set `tasks` (labels credit any tool of the labelled name), and the cleaning table.

    Labels keep the annotators' step order, which says nothing about importance. A task that loses all its labels is
    left out.
    """
    builder = Builder("livemcpbench")
    for entry in read_list(folder / TOOLS_FILE, ("name", "description", "tools")):
        blocks = entry["tools"]
        name, tags = str(entry["name"]), tags_of(entry, "category")
        server = builder.server(name, entry["name"], entry["description"], aliases=tuple(blocks), tags=tags)
        for block in blocks.values():
            for tool in block["tools"]:
                builder.tool(server, tool.get("name"), tool.get("description"), tool.get("inputSchema"))
    catalog = builder.build()
    kept = []
    for row, task in enumerate(read_list(folder / TASKS_FILE, ("task_id", "Question", "Annotator Metadata"))):
        names = label_names(task["Annotator Metadata"])
        known = [name for name in dict.fromkeys(names) if name in catalog.rows_by_name]
        builder.count("label names no tool, left out", "tasks", "Tools", LEFT_OUT, len(set(names)) - len(known))
        builder.count("label repeated in one task, joined", "tasks", "Tools", CHANGED, len(names) - len(set(names)))
        shared = sum(len(catalog.rows_by_name[name]) > 1 for name in known)
        builder.count("label names tools of several servers", "tasks", "Tools", REPORTED, shared)
        stated = str(task["Annotator Metadata"].get("Number of tools", "")).strip()
        wrong = int(stated != str(len(names)))
        builder.count("stated number of tools is wrong", "tasks", "Number of tools", REPORTED, wrong)
        if not known:
            builder.count("task without a known label left out", "tasks", "Tools", LEFT_OUT)
            continue
        name, text = (text_of(task, key, TASKS_FILE, row) for key in ("task_id", "Question"))
        kept.append((name, text, tuple(catalog.rows_by_name[name] for name in known), name))
    return Loaded(catalog, {"tasks": query_set("tasks", kept)}, builder.cleaning())


def label_names(metadata: dict[str, Any]) -> list[str]:
    """The tool names of a numbered list, one a line."""
    lines = str(metadata.get("Tools", "")).splitlines()
    return [name for line in lines if (name := NUMBER.sub("", line).strip())]


RETURNED = re.compile(r"server_name: (.*?)\\n  tool_name: (.*?)\\n")
# An error: said by the client, by the server, or at the start of the text.
FAILED = re.compile(
    r"""Error executing tool|\\?"isError\\?": true|isError=True\s*\Z"""
    r"""|['"]text['"]?(?::|=)\s*\\?['"](?:Error|Failed)|"text": "(?:Error|Failed)|text='(?:Error|Failed)"""
)


@dataclass(frozen=True)
class Route:
    """One `route` call: the text of the request, and the rows of the tools returned (unknown ones left out)."""

    text: str
    returned: tuple[int, ...]


@dataclass(frozen=True)
class Execution:
    """One `execute-tool` call."""

    tool: int | None  # its row, None where the catalogue has no such tool
    ok: bool  # no error was reported
    after: int  # how many route calls came before it in the task


@dataclass(frozen=True)
class Episode:
    """One task: its calls in order and the human verdict."""

    task: str
    routes: tuple[Route, ...]
    executions: tuple[Execution, ...]
    success: bool


def load_log(folder: Path, catalog: ToolCatalog) -> list[Episode]:
    """Every task of the log, in file order (95, one of which has no known label)."""
    tools = enumerate(catalog.tools)
    rows = {(alias, tool.name): row for row, tool in tools for alias in catalog.servers[tool.server].aliases}
    return [_episode(entry, rows) for entry in read_list(folder / LOG_FILE, ("task_id", "messages", "task_success"))]


def _episode(entry: dict[str, Any], rows: dict[tuple[str, str], int]) -> Episode:
    replies = {m["tool_call_id"]: str(m["content"]) for m in entry["messages"] if m.get("role") == "tool"}
    routes: list[Route] = []
    executions: list[Execution] = []
    for message in entry["messages"]:
        for call in message.get("tool_calls") or ():
            arguments = json_object(call["function"]["arguments"])
            reply = replies.get(call["id"], "")
            if call["function"]["name"] == "route":
                shown = (rows.get(pair) for pair in RETURNED.findall(reply))
                routes.append(Route(str(arguments.get("query", "")), tuple(row for row in shown if row is not None)))
            else:
                pair = (str(arguments.get("server_name")), str(arguments.get("tool_name")))
                executions.append(Execution(rows.get(pair), succeeded(reply), len(routes)))
    return Episode(str(entry["task_id"]), tuple(routes), tuple(executions), entry["task_success"] == "success")


def succeeded(reply: str) -> bool:
    """Whether an execution's reply reports no error."""
    return FAILED.search(reply) is None
