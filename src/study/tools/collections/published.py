"""The published collections by name: fetched at a pinned commit, checked, loaded. The loaders of MCP-tools (Fei et al.
2025), MCPToolBench++ (Fan et al. 2025) and MCP-Flow (Wang et al. 2025) are here.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from study.advisor.retrieval.building import CHANGED, LEFT_OUT, REPORTED, Builder
from study.advisor.retrieval.documents import Server, Tool, ToolCatalog
from study.base import paths
from study.base.errors import StudyError, require_one_of
from study.base.files import write_csv
from study.config import compose
from study.data import sources
from study.tools.collections import apibank, livemcpbench
from study.tools.collections.files import AGAIN, Loaded, read_lines, read_list, tags_of, text_of
from study.tools.queries import QuerySet, query_set

SERVERS_FILE = "raw/mcp_zero_servers.jsonl"
QUERIES_FILE = "ground_truth/mcp_atlas.jsonl"


def load_mcptools(folder: Path) -> Loaded:
    """The catalogue, the query set `atlas` (grouped by the task that a query was written from), and the cleaning.
    Published tool ids repeat, so a label accepts every tool that carries the labelled id."""
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
    kept: dict[tuple[str, str], tuple[Any, ...]] = {}
    for row, entry in enumerate(read_lines(folder / QUERIES_FILE, ("query_id", "query", "correct_tool_id"))):
        if entry["correct_tool_id"] not in rows_of:
            builder.count("query for a tool outside the catalogue left out", "queries", "correct_tool_id", LEFT_OUT)
            continue
        key = (text_of(entry, "query", QUERIES_FILE, row), str(entry["correct_tool_id"]))
        if key in kept:
            builder.count("repeated query and tool left out", "queries", "query", LEFT_OUT)
            continue
        kept[key] = str(entry["query_id"]), key[0], (tuple(rows_of[key[1]]),), str(entry.get("origin_task_id"))
    return Loaded(builder.build(), {"atlas": query_set("atlas", kept.values())}, builder.cleaning())


TOOLBENCH_FILES = (
    "browser/browser_0724_single_v3.json",
    "file_system/filesystem_0723_single.json",
    "finance/finance_0724_single_v3.json",
    "search/search_0725_single_v2.json",
)
TOOLBENCH_KEYS = ("uuid", "category", "tools", "mcp_tools_dict", "query", "function_call_label")


def load_mcptoolbench(folder: Path) -> Loaded:
    """The catalogue, the query sets `strict` (the labelled tool alone) and `equivalent` (also those that the publishers
    list as similar), grouped by domain, and the cleaning table."""
    builder = Builder("mcptoolbench")
    rows: dict[tuple[str, str], int] = {}
    strict, equivalent = [], []
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
            name, text = (text_of(record, key, file, number) for key in ("uuid", "query"))
            strict.append((name, text, ((gold,),), str(record["category"])))
            equivalent.append((name, text, (tuple(dict.fromkeys([gold, *similar])),), str(record["category"])))
    again = len(strict) - len({text for _, text, *_ in strict})
    builder.count("query text occurs before", "queries", "query", REPORTED, again)
    sets = {"strict": query_set("strict", strict), "equivalent": query_set("equivalent", equivalent)}
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


TOOLS_FOLDER, SAMPLES_FOLDER, INFO_FILE = "data/tools", "data/function_call", "server_info_with_description_v3.json"
WORD = re.compile(r"[^a-z0-9]+")


def load_mcpflow(folder: Path) -> Loaded:
    """The catalogue (server ids are ``marketplace/file``), the query set `instructions`, and the cleaning table.

    Most tool names carry the server's name in front, which is removed where `prefix` finds one. Samples are grouped by
    their function call, since several instructions were made from one call.
    """
    builder = Builder("mcpflow")
    descriptions = _descriptions(folder)
    rows: dict[tuple[str, str], int] = {}
    for path in sorted((folder / TOOLS_FOLDER).glob("*/*.json")):
        market, stem = path.parent.name, path.stem
        known = (market, stem) in descriptions
        text, tags = descriptions.get((market, stem), ("", ()))
        builder.count("server without a row of server information", "servers", "description", REPORTED, int(not known))
        server = builder.server(f"{market}/{stem}", stem, text, sources=(market,), tags=tags)
        tools = read_list(path, ())
        front = prefix([tool["name"] for tool in tools if isinstance(tool.get("name"), str)], stem)
        for tool in tools:
            published = tool.get("name")
            name = published.removeprefix(front) if isinstance(published, str) else None
            builder.count("server's name before the tool's removed", "tools", "name", CHANGED, int(name != published))
            row = builder.tool(server, name, tool.get("description"), tool.get("parameters", tool.get("inputSchema")))
            if row is not None:
                rows[f"{market}/{stem}", str(published)] = row
    return Loaded(builder.build(), {"instructions": _samples(folder, rows, builder)}, builder.cleaning())


def plainly_read(folder: Path) -> ToolCatalog:
    """The catalogue as the reference scores of the largest pool read it: without schemas and server texts.

    Every tool's name is cut up to its first underscore, whatever stands there (``get_user`` becomes ``user``), and a
    tool without a name stays.
    """
    servers, tools = [], []
    for path in sorted((folder / TOOLS_FOLDER).glob("*/*.json")):
        servers.append(Server(f"{path.parent.name}/{path.stem}", path.stem, ""))
        for entry in read_list(path, ()):
            name, text = (str(entry.get(key) or "") for key in ("name", "description"))
            tools.append(Tool(len(servers) - 1, name.partition("_")[2] if "_" in name else name, text))
    return ToolCatalog("mcpflow", tuple(servers), tuple(tools))


def prefix(names: list[str], server: str) -> str:
    """The server's name in front of its tools' names, underscore included; empty where there is none.

    That is what stands before the first underscore, if all tools share it. Two or more tools that share only a verb
    (``get_user``, ``get_team``) or one lone tool (``get_weather``) are told apart by the server's own name.
    """
    fronts = {name.partition("_")[0] if "_" in name.rstrip("_") else "" for name in names}
    front = fronts.pop() if len(fronts) == 1 else ""
    plain, own = WORD.sub("", front.lower()), WORD.sub("", server.lower())
    if not plain or not (plain in own or own in plain or "-" in front):
        return ""
    return f"{front}_"


def _descriptions(folder: Path) -> dict[tuple[str, str], tuple[str, tuple[str, ...]]]:
    """Server texts and tags by marketplace and file stem."""
    found: dict[tuple[str, str], tuple[str, tuple[str, ...]]] = {}
    for entry in read_list(folder / INFO_FILE, ("all_paths",)):
        text = str(entry.get("description") or ""), tags_of(entry, "classification")
        for listed in entry["all_paths"]:
            found |= {(market, stem): text for market, stems in listed.items() for stem in stems}
    return found


def _samples(folder: Path, rows: dict[tuple[str, str], int], builder: Builder) -> QuerySet:
    column = "queries", "source_instruction"
    kept: dict[tuple[str, str], tuple[Any, ...]] = {}
    calls: defaultdict[tuple[str, str], list[tuple[dict[str, Any], str]]] = defaultdict(list)
    for path in sorted((folder / SAMPLES_FOLDER).glob("*/*.json")):
        server = f"{path.parent.name.lower()}/{path.stem}"
        for number, entry in enumerate(read_list(path, ("source_instruction", "tool", "function_call"))):
            said, key = builder.text(entry["source_instruction"], *column), (server, str(entry["tool"]))
            builder.count("': ' before the instruction removed", *column, CHANGED, int(said.startswith(": ")))
            text = said.removeprefix(": ")
            if key not in rows:
                builder.count("instruction for a tool outside the catalogue left out", "queries", "tool", LEFT_OUT)
                continue
            builder.count("empty function call", "queries", "function_call", REPORTED, int(not entry["function_call"]))
            if (text, key[1]) in kept:
                builder.count("repeated instruction and tool left out", *column, LEFT_OUT)
                continue
            arguments = dict((entry["function_call"] or {}).get("arguments", {}))
            # Whatever the AST measure takes for the same call is one call: a sibling would give it away.
            same = next((group for other, group in calls[key] if same_value(other, arguments)), None)
            if same is None:
                same = str(sum(map(len, calls.values())))
                calls[key].append((arguments, same))
            kept[text, key[1]] = f"{path.stem}:{number}", text, ((rows[key],),), same
    return query_set("instructions", kept.values())


# Letters that the Berkeley leaderboard leaves out of account when it compares texts (Patil et al. 2025).
IGNORED = re.compile(r"[ ,./\-_*^]")
MAX_DEPTH = 20


def same_value(one: Any, other: Any, depth: int = 0) -> bool:
    """Equality as the Berkeley leaderboard checks it.

    Texts are compared without case, spaces and ``, . / - _ * ^``, and with one kind of quotation mark; a whole number
    equals the same decimal number; a truth value equals only itself; lists keep their order.
    """
    if depth > MAX_DEPTH:
        return False
    if isinstance(one, bool) or isinstance(other, bool) or one is None or other is None:
        return one is other
    if isinstance(one, int | float) and isinstance(other, int | float):
        return math.isclose(one, other, rel_tol=1e-9)
    if isinstance(one, str) and isinstance(other, str):
        return plain(one) == plain(other)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(same_value(a, b, depth + 1) for a, b in zip(one, other, strict=True))
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(same_value(one[name], other[name], depth + 1) for name in one)
    return False


def plain(text: str) -> str:
    """A text as it is compared."""
    return IGNORED.sub("", text).lower().replace("'", '"')


LOADERS: dict[str, Callable[[Path], Loaded]] = {
    "livemcpbench": livemcpbench.load_livemcpbench,
    "mcptools": load_mcptools,
    "mcpflow": load_mcpflow,
    "apibank": apibank.load_apibank,
    "mcptoolbench": load_mcptoolbench,
}


def fetch_collection(name: str) -> Path:
    """Bring the files of a catalogue into data/raw; files that are there and good are kept."""
    require_one_of(name, "catalogue", LOADERS)
    return sources.fetch(name, compose.plain(compose.load([f"dataset={name}"]).dataset))


def load_collection(name: str) -> Loaded:
    """A published collection, fetched where needed; its cleaning table goes to results/NAME/tables/cleaning.csv."""
    folder = fetch_collection(name)
    loaded = LOADERS[name](folder)
    write_csv(paths.tables(name) / "cleaning.csv", loaded.cleaning)
    return loaded
