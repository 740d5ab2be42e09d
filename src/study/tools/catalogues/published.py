"""The published collections by name: fetched at a pinned commit, checked, loaded. Two loaders are here.

MCP-tools (Fei et al. 2025): 308 servers, 2,797 tools, with single-step queries written from MCP-Atlas tasks. Published
tool ids repeat, so a tool is known by its row, and a label accepts every tool that carries the labelled id.

MCPToolBench++ (Fan et al. 2025): 699 single-call queries over 49 tools of 6 servers in four domains. Every row repeats
its domain's tool list, which is read once. `strict` accepts the labelled tool alone, `equivalent` also the tools that
the publishers list as similar. The domain is the group; the only tool of `finance` is always right in its own pool.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from study import paths
from study.data import sources
from study.errors import StudyError
from study.files import write_csv
from study.tools.catalogues import apibank, livemcpbench, mcpflow
from study.tools.catalogues.files import AGAIN, LEFT_OUT, REPORTED, Builder, Loaded, read_lines, read_list, text_of
from study.tools.catalogues.queries import QuerySet, query_set

SERVERS_FILE = "raw/mcp_zero_servers.jsonl"
QUERIES_FILE = "ground_truth/mcp_atlas.jsonl"


def load_mcptools(folder: Path) -> Loaded:
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
    rows = ((name, text, (tuple(rows_of[tool]),), group) for (text, tool), (name, group) in seen.items())
    queries = query_set("atlas", rows)
    return Loaded(builder.build(), {"atlas": queries}, builder.cleaning())


TOOLBENCH_FILES = (
    "browser/browser_0724_single_v3.json",
    "file_system/filesystem_0723_single.json",
    "finance/finance_0724_single_v3.json",
    "search/search_0725_single_v2.json",
)
TOOLBENCH_KEYS = ("uuid", "category", "tools", "mcp_tools_dict", "query", "function_call_label")


def load_mcptoolbench(folder: Path) -> Loaded:
    """The catalogue, the query sets `strict` and `equivalent`, and the cleaning table."""
    builder = Builder("mcptoolbench")
    rows: dict[tuple[str, str], int] = {}
    ids, texts, strict, equivalent, groups = [], [], [], [], []
    for file in TOOLBENCH_FILES:
        records = read_list(folder / file, TOOLBENCH_KEYS)
        _add_tools(builder, rows, records[0], file)
        changed = sum(record["tools"] != records[0]["tools"] for record in records)
        builder.count("tool list differs from the first row's", "queries", "tools", REPORTED, changed)
        for number, record in enumerate(records):
            calls = record["function_call_label"]
            if len(calls) != 1:
                raise StudyError("must hold one call", file=file, row=number, column="function_call_label", fix=AGAIN)
            gold = _labelled_row(rows, calls[0], file, number)
            similar = [_labelled_row(rows, tool, file, number) for tool in calls[0].get("similar_tools") or []]
            builder.count("query with equivalent tools", "queries", "similar_tools", REPORTED, int(bool(similar)))
            ids.append(text_of(record, "uuid", file, number))
            texts.append(text_of(record, "query", file, number))
            groups.append(str(record["category"]))
            strict.append(((gold,),))
            equivalent.append((tuple(dict.fromkeys([gold, *similar])),))
    builder.count("query text occurs before", "queries", "query", REPORTED, len(texts) - len(set(texts)))
    sets = {
        name: QuerySet(name, tuple(ids), tuple(texts), tuple(labels), tuple(groups))
        for name, labels in (("strict", strict), ("equivalent", equivalent))
    }
    return Loaded(builder.build(), sets, builder.cleaning())


def _add_tools(builder: Builder, rows: dict[tuple[str, str], int], record: dict[str, Any], file: str) -> None:
    """The servers and tools that a row names; a tool of no named server is an error."""
    owner = {tool: server for server, tools in record["mcp_tools_dict"].items() for tool in tools}
    servers = {server: builder.server(server, server, "") for server in record["mcp_tools_dict"]}
    for tool in record["tools"]:
        if tool.get("name") not in owner:
            raise StudyError(f"no server offers the tool {tool.get('name')!r}", file=file, row=0, fix=AGAIN)
        server = owner[tool["name"]]
        row = builder.tool(servers[server], tool["name"], tool.get("description"), tool.get("input_schema"))
        if row is not None:
            rows[server, tool["name"]] = row


def _labelled_row(rows: dict[tuple[str, str], int], call: dict[str, Any], file: str, number: int) -> int:
    key = (str(call.get("mcp_server")), str(call.get("name")))
    if key not in rows:
        raise StudyError(f"the label {key[1]!r} of {key[0]!r} is no tool", file=file, row=number, fix=AGAIN)
    return rows[key]


LOADERS: dict[str, Callable[[Path], Loaded]] = {
    "livemcpbench": livemcpbench.load_livemcpbench,
    "mcptools": load_mcptools,
    "mcpflow": mcpflow.load_mcpflow,
    "apibank": apibank.load_apibank,
    "mcptoolbench": load_mcptoolbench,
}


def fetch_collection(name: str) -> Path:
    """Bring the files of a catalogue into data/raw; files that are there and good are kept."""
    if name not in LOADERS:
        raise StudyError(f"unknown catalogue {name!r}", fix=f"one of: {', '.join(LOADERS)}")
    config = yaml.safe_load((paths.conf() / "dataset" / f"{name}.yaml").read_text(encoding="utf-8"))
    return sources.fetch(name, config)


def load_collection(name: str) -> Loaded:
    """A published collection, fetched where needed; its cleaning table goes to results/NAME/tables/cleaning.csv."""
    folder = fetch_collection(name)
    loaded = LOADERS[name](folder)
    write_csv(paths.tables(name) / "cleaning.csv", loaded.cleaning)
    return loaded
