"""MCP-tools (Fei et al. 2025): 308 servers, 2,797 tools, with single-step queries written from MCP-Atlas tasks.

The copy has neither the summaries nor the vectors of the original. Published tool ids repeat, so a tool is known by its
row, and a label accepts every tool that carries the labelled id.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from study.tools.catalogues.builder import LEFT_OUT, REPORTED, Builder
from study.tools.catalogues.files import Loaded, read_lines, text_of
from study.tools.catalogues.queries import QuerySet

SERVERS_FILE = "raw/mcp_zero_servers.jsonl"
QUERIES_FILE = "ground_truth/mcp_atlas.jsonl"


def load(folder: Path) -> Loaded:
    """The catalogue, the query set `atlas` (grouped by the task that a query was written from), and the cleaning."""
    builder = Builder("mcptools")
    rows_of: defaultdict[str, list[int]] = defaultdict(list)
    for entry in read_lines(folder / SERVERS_FILE, ("server_id", "name", "description", "tools")):
        server = builder.server(str(entry["server_id"]), entry["name"], entry["description"])
        for tool in entry["tools"]:
            row = builder.tool(server, tool.get("tool_name"), tool.get("description"), tool.get("input_schema"))
            if row is not None:
                rows_of[str(tool.get("tool_id"))].append(row)
    repeated = sum(len(rows) for rows in rows_of.values() if len(rows) > 1)
    builder.count("tool id shared with another tool", "tools", "tool_id", REPORTED, repeated)
    seen: dict[tuple[str, str], tuple[str, str]] = {}
    for row, entry in enumerate(read_lines(folder / QUERIES_FILE, ("query_id", "query", "correct_tool_id"))):
        if entry["correct_tool_id"] not in rows_of:
            builder.count("query for a tool outside the catalogue left out", "queries", "correct_tool_id", LEFT_OUT)
            continue
        key = (text_of(entry, "query", QUERIES_FILE, row), str(entry["correct_tool_id"]))
        if key in seen:
            builder.count("repeated query and tool left out", "queries", "query", LEFT_OUT)
            continue
        seen[key] = (str(entry["query_id"]), str(entry.get("origin_task_id")))
    queries = QuerySet(
        "atlas",
        tuple(query_id for query_id, _ in seen.values()),
        tuple(text for text, _ in seen),
        tuple((tuple(rows_of[tool]),) for _, tool in seen),
        tuple(group for _, group in seen.values()),
    )
    return Loaded(builder.build(), {"atlas": queries}, builder.cleaning())
