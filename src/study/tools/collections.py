"""The published collections by name: fetched at a pinned commit, every file checked by its SHA-256, and loaded.

* LiveMCPBench (Mo et al. 2025): 70 servers, 527 tools, 95 tasks with the tools that a human annotator used, and the log
  of one agent's calls (Claude Sonnet 4), without times or latencies.
* MCP-tools (Fei et al. 2025) with the queries of MCP-Atlas, MCP-Flow (Wang et al. 2025), MCPToolBench++ (Fan et al.
  2025).
* API-Bank level 1 (Li et al. 2023): 389 API calls of 49 APIs in 212 dialogues. Descriptions are those of
  ``all_apis.csv``; the wording of the running APIs (which MCP-Zero used) lies in program files, which are not read.
"""

from __future__ import annotations

import ast
import csv
import json
import math
import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pandas as pd

from study.advisor.catalog.archived import READERS
from study.advisor.catalog.archives import archive_files
from study.advisor.catalog.records import Reader
from study.advisor.catalog.settings import Sources
from study.advisor.retrieval.building import CHANGED, LEFT_OUT, REPORTED, Builder
from study.advisor.retrieval.documents import Server, Tool, ToolCatalog
from study.advisor.strict import json_object
from study.base import paths
from study.base.errors import require_one_of
from study.base.files import write_csv
from study.config import compose
from study.data import sources
from study.data.raw_files import read_records, read_text
from study.tools.queries import QuerySet, query_set


class Loaded(NamedTuple):
    """One published collection."""

    catalog: ToolCatalog  # its servers and tools
    queries: Mapping[str, QuerySet]  # its query sets by name; empty where it has none
    cleaning: pd.DataFrame  # what was mended, left out or noticed, columns `CLEANING_COLUMNS`
    arguments: Mapping[str, Mapping[str, Any]] = MappingProxyType({})  # of the calls that its queries ask for, by id


def read_lines(path: Path) -> list[dict[str, Any]]:
    """A file of one JSON object a line."""
    return [json.loads(line) for line in read_text(path).splitlines() if line.strip()]


def tags_of(value: object) -> tuple[str, ...]:
    """The category that a source gives a server; none where it is no text."""
    return (value,) if isinstance(value, str) and value.strip() else ()


TOOLS_FILE = "tools/LiveMCPTool/tools.json"
TASKS_FILE = "annotated_data/all_annotations.json"
LOG_FILE = "baseline/annotation/claude-sonnet-4-20250514_Qwen3-Embedding-0.6B.json"
NUMBER = re.compile(r"^\s*\d+\s*[.)]\s*")
RETURNED = re.compile(r"server_name: (.*?)\\n  tool_name: (.*?)\\n")
# An error: said by the client, by the server, or at the start of the text.
FAILED = re.compile(
    r"""Error executing tool|\\?"isError\\?": true|isError=True\s*\Z"""
    r"""|['"]text['"]?(?::|=)\s*\\?['"](?:Error|Failed)|"text": "(?:Error|Failed)|text='(?:Error|Failed)"""
)


class Route(NamedTuple):
    """One `route` call: the text of the request, and the rows of the tools returned (unknown ones left out)."""

    text: str
    returned: tuple[int, ...]


class Execution(NamedTuple):
    """One `execute-tool` call."""

    tool: int | None  # its row, None where the catalogue has no such tool
    ok: bool  # no error was reported
    after: int  # how many route calls came before it in the task


class Episode(NamedTuple):
    """One task: its calls in order and the human verdict."""

    task: str
    routes: tuple[Route, ...]
    executions: tuple[Execution, ...]
    success: bool


def load_livemcpbench(folder: Path) -> Loaded:
    """The catalogue, the query set `tasks` (labels credit any tool of the labelled name), and the cleaning table.

    Labels keep the annotators' step order, which says nothing about importance. A task that loses all its labels is
    left out.
    """
    builder = Builder("livemcpbench")
    for entry in read_records(folder / TOOLS_FILE):
        blocks, tags = entry["tools"], tags_of(entry.get("category"))
        name, text = entry["name"], entry["description"]
        server = builder.server(str(name), name, text, aliases=tuple(blocks), tags=tags)
        for tool in (tool for block in blocks.values() for tool in block["tools"]):
            builder.tool(server, tool.get("name"), tool.get("description"), tool.get("inputSchema"))
    catalog, rows = builder.build(), []
    for task in read_records(folder / TASKS_FILE):
        about = task["Annotator Metadata"]
        # A numbered list, one name a line.
        names = [name for line in str(about.get("Tools", "")).splitlines() if (name := NUMBER.sub("", line).strip())]
        labels = [catalog.rows_by_name[name] for name in dict.fromkeys(names) if name in catalog.rows_by_name]
        distinct, stated = len(set(names)), str(about.get("Number of tools", "")).strip()
        builder.count("label names no tool, left out", "tasks", "Tools", LEFT_OUT, distinct - len(labels))
        builder.count("label repeated in one task, joined", "tasks", "Tools", CHANGED, len(names) - distinct)
        several = sum(len(label) > 1 for label in labels)
        builder.count("label names tools of several servers", "tasks", "Tools", REPORTED, several)
        wrong = int(stated != str(len(names)))
        builder.count("stated number of tools is wrong", "tasks", "Number of tools", REPORTED, wrong)
        if not labels:
            builder.count("task without a known label left out", "tasks", "Tools", LEFT_OUT)
            continue
        rows.append((task["task_id"], task["Question"], tuple(labels), task["task_id"]))
    return Loaded(catalog, {"tasks": query_set("tasks", rows)}, builder.cleaning())


def load_log(folder: Path, catalog: ToolCatalog) -> list[Episode]:
    """Every task of the log, in file order (95, one of which has no known label)."""
    tools = enumerate(catalog.tools)
    rows = {(alias, tool.name): row for row, tool in tools for alias in catalog.servers[tool.server].aliases}
    return [_episode(entry, rows) for entry in read_records(folder / LOG_FILE)]


def _episode(entry: dict[str, Any], rows: dict[tuple[str, str], int]) -> Episode:
    replies = {m["tool_call_id"]: str(m["content"]) for m in entry["messages"] if m.get("role") == "tool"}
    routes: list[Route] = []
    executions: list[Execution] = []
    for call in (call for message in entry["messages"] for call in message.get("tool_calls") or ()):
        arguments, reply = json_object(call["function"]["arguments"]), replies.get(call["id"], "")
        if call["function"]["name"] == "route":
            returned = (rows.get(pair) for pair in RETURNED.findall(reply))
            routes.append(Route(str(arguments.get("query", "")), tuple(row for row in returned if row is not None)))
        else:
            pair = (str(arguments.get("server_name")), str(arguments.get("tool_name")))
            executions.append(Execution(rows.get(pair), FAILED.search(reply) is None, len(routes)))
    return Episode(str(entry["task_id"]), tuple(routes), tuple(executions), entry["task_success"] == "success")


APIS_FILE, DIALOGUES = "data/all_apis.csv", "lv1-lv2-samples/level-1-given-desc"
API_NAME, API_TEXT = "类名", "api_info"
# A description in the one form that the narrow reading of the file accepts, see `narrowly_read`.
NARROW = re.compile(r'description = "(.*?)"\n')
JSON_TYPES = {"int": "integer", "float": "number", "bool": "boolean", "list": "array", "dict": "object"}  # else string


class ApiCall(NamedTuple):
    """One API call and what was said before it."""

    id: str  # file and line
    lines: tuple[tuple[str, str], ...]  # (speaker, text) of those before; an API line holds the call and its result
    tool: int  # row of the called API
    pool: tuple[int, ...]  # rows of all APIs that the dialogue calls (MCP-Zero's domain pool)
    first: bool  # whether no call precedes it in the dialogue (MCP-Zero's single turn)
    arguments: Mapping[str, Any] = MappingProxyType({})


def load_apibank(folder: Path) -> Loaded:
    """The catalogue of the called APIs (one server, in file order) and the cleaning table; see `api_calls`."""
    builder = Builder("apibank")
    server = builder.server("apibank", "API-Bank", "")
    called = {line["api_name"] for lines in dialogues(folder).values() for line in lines if line["role"] == "API"}
    described: dict[str, tuple[str, dict[str, Any]]] = {}
    for entry in api_rows(folder):
        values = assignments(entry.get(API_TEXT) or "")
        if values is None:
            builder.count("description that cannot be read", "tools", API_TEXT, REPORTED)
        else:
            texts = str(values.get("description", "")), _schema(values.get("input_parameters"))
            described.setdefault(entry[API_NAME], texts)
    uncalled, undescribed = len(described.keys() - called), called - described.keys()
    builder.count("described API that no dialogue calls left out", "tools", API_NAME, LEFT_OUT, uncalled)
    builder.count("called API without a description", "tools", API_TEXT, REPORTED, len(undescribed))
    for name in [*(name for name in described if name in called), *sorted(undescribed)]:
        builder.tool(server, name, *described.get(name, ("", {})))
    return Loaded(builder.build(), {}, builder.cleaning())


def api_rows(folder: Path) -> list[dict[str, str]]:
    """The rows of ``all_apis.csv``."""
    return list(csv.DictReader(read_text(folder / APIS_FILE).splitlines(keepends=True)))


def narrowly_read(folder: Path, catalog: ToolCatalog) -> ToolCatalog:
    """The catalogue without the texts that a line-by-line reading of the file misses: 98 of 101 entries have one.

    The reference scores of API-Bank were made with this reading. A blank behind the closing quotation mark costs
    `ModifyRegistration` its text; such an API is known by its name alone.
    """
    read = {entry[API_NAME] for entry in api_rows(folder) if NARROW.search(entry.get(API_TEXT) or "")}
    tools = tuple(tool if tool.name in read else replace(tool, description="") for tool in catalog.tools)
    return replace(catalog, tools=tools)


def api_calls(folder: Path, catalog: ToolCatalog) -> list[ApiCall]:
    """Every API call of the dialogues, in file order."""
    calls = []
    for name, lines in dialogues(folder).items():
        named = {line["api_name"] for line in lines if line["role"] == "API"}
        row_of = {api: catalog.rows_by_name[api][0] for api in named}
        spoken = [(line["role"], _spoken(line)) for line in lines]
        for number, line in enumerate(lines):
            if line["role"] == "API":
                before, pool = tuple(spoken[:number]), tuple(sorted(set(row_of.values())))
                first, tool = all(speaker != "API" for speaker, _ in before), row_of[line["api_name"]]
                calls.append(ApiCall(f"{name}:{number}", before, tool, pool, first, line["param_dict"]))
    return calls


def dialogues(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """The lines of every dialogue by file name."""
    return {path.stem: read_lines(path) for path in sorted((folder / DIALOGUES).glob("*.jsonl"))}


def assignments(text: str) -> dict[str, Any] | None:
    """The literal values that ``name = value`` lines assign; None where the text is no such list. Nothing is run."""
    try:
        return {
            node.targets[0].id: ast.literal_eval(node.value)
            for node in ast.parse(text).body
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        } or None
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _schema(described: Any) -> dict[str, Any]:
    properties = {}
    for name, value in described.items() if isinstance(described, dict) else ():
        if isinstance(value, dict):
            kind = JSON_TYPES.get(str(value.get("type")), "string")
            properties[str(name)] = {"type": kind, "description": str(value.get("description", ""))}
    return {"type": "object", "properties": properties, "required": list(properties)} if properties else {}


def _spoken(line: dict[str, Any]) -> str:
    """A line's text; an API line in the form of API-Bank's prompts, of the result its output, not the repeated call."""
    if line["role"] != "API":
        return str(line["text"])
    arguments = ", ".join(f"{key}={value!r}" for key, value in line["param_dict"].items())
    result = line["result"]
    output = result["output"] if isinstance(result, dict) and "output" in result else result
    return f"[{line['api_name']}({arguments})] Response: {json.dumps(output, ensure_ascii=False)}"


SERVERS_FILE = "raw/mcp_zero_servers.jsonl"
QUERIES_FILE = "ground_truth/mcp_atlas.jsonl"


def load_mcptools(folder: Path) -> Loaded:
    """The catalogue, the query set `atlas` (grouped by the task that a query was written from), and the cleaning.
    Published tool ids repeat, so a label accepts every tool that carries the labelled id."""
    builder = Builder("mcptools")
    rows_of: defaultdict[str, list[int]] = defaultdict(list)
    for entry in read_lines(folder / SERVERS_FILE):
        server = builder.server(str(entry["server_id"]), entry["name"], entry["description"])
        for tool in entry["tools"]:
            row = builder.tool(server, tool.get("tool_name"), tool.get("description"), tool.get("input_schema"))
            if row is not None:
                rows_of[str(tool.get("tool_id"))].append(row)
    repeated = sum(len(rows) for rows in rows_of.values() if len(rows) > 1)
    builder.count("tool id shared with another tool", "tools", "tool_id", REPORTED, repeated)
    unique: dict[tuple[str, str], tuple[Any, ...]] = {}
    for entry in read_lines(folder / QUERIES_FILE):
        label = str(entry["correct_tool_id"])
        if label not in rows_of:
            builder.count("query for a tool outside the catalogue left out", "queries", "correct_tool_id", LEFT_OUT)
        elif (key := (entry["query"], label)) in unique:
            builder.count("repeated query and tool left out", "queries", "query", LEFT_OUT)
        else:
            unique[key] = str(entry["query_id"]), key[0], (tuple(rows_of[label]),), str(entry.get("origin_task_id"))
    return Loaded(builder.build(), {"atlas": query_set("atlas", unique.values())}, builder.cleaning())


TOOLBENCH_FILES = (
    "browser/browser_0724_single_v3.json",
    "file_system/filesystem_0723_single.json",
    "finance/finance_0724_single_v3.json",
    "search/search_0725_single_v2.json",
)


def load_mcptoolbench(folder: Path) -> Loaded:
    """The catalogue, the query sets `strict` (the labelled tool alone) and `equivalent` (also those that the publishers
    list as similar), grouped by domain, and the cleaning table. Every row repeats its domain's tools: the first counts.
    """
    builder, rows, arguments = Builder("mcptoolbench"), dict[tuple[str, str], int](), dict[str, dict[str, Any]]()
    strict, equivalent = list[tuple[Any, ...]](), list[tuple[Any, ...]]()
    for file in TOOLBENCH_FILES:
        entries = read_records(folder / file)
        tools, owners = entries[0]["tools"], entries[0]["mcp_tools_dict"]
        servers = {server: builder.server(server, server, "") for server in owners}
        server_of = {tool: server for server, names in owners.items() for tool in names}
        for tool in tools:
            server = server_of[tool["name"]]
            row = builder.tool(servers[server], tool["name"], tool.get("description"), tool.get("input_schema"))
            if row is not None:
                rows[server, tool["name"]] = row
        changed = sum(entry["tools"] != tools for entry in entries)
        builder.count("tool list differs from the first row's", "queries", "tools", REPORTED, changed)
        for entry in entries:
            (call,) = entry["function_call_label"]
            arguments[entry["uuid"]] = given if isinstance(given := call.get("input"), dict) else {}
            right = [rows[one["mcp_server"], one["name"]] for one in (call, *(call.get("similar_tools") or ()))]
            builder.count("query with equivalent tools", "queries", "similar_tools", REPORTED, int(len(right) > 1))
            for queries, label in ((strict, right[:1]), (equivalent, right)):
                queries.append((entry["uuid"], entry["query"], (tuple(dict.fromkeys(label)),), entry["category"]))
    again = len(strict) - len({text for _, text, *_ in strict})
    builder.count("query text occurs before", "queries", "query", REPORTED, again)
    sets = {"strict": query_set("strict", strict), "equivalent": query_set("equivalent", equivalent)}
    return Loaded(builder.build(), sets, builder.cleaning(), arguments)


TOOLS_FOLDER, SAMPLES_FOLDER, INFO_FILE = "data/tools", "data/function_call", "server_info_with_description_v3.json"
OTHER = re.compile(r"[^a-z0-9]+")


def letters(text: str) -> str:
    """Letters and digits alone, in lower case."""
    return OTHER.sub("", text.lower())


def load_mcpflow(folder: Path) -> Loaded:
    """The catalogue (server ids are ``marketplace/file``), the query set `instructions`, and the cleaning table.

    Most tool names carry the server's name in front, which is removed where `prefix` finds one. Samples are grouped by
    their function call, since several instructions were made from one call.
    """
    builder, rows = Builder("mcpflow"), dict[tuple[str, str], int]()
    about: dict[tuple[str, str], tuple[str, tuple[str, ...]]] = {}  # marketplace, file -> text and tags
    for entry in read_records(folder / INFO_FILE):
        described = str(entry.get("description") or ""), tags_of(entry.get("classification"))
        paths_of = (item for listed in entry["all_paths"] for item in listed.items())
        about |= {(market, stem): described for market, stems in paths_of for stem in stems}
    for path in sorted((folder / TOOLS_FOLDER).glob("*/*.json")):
        market, stem = path.parent.name, path.stem
        stated, (text, tags) = (market, stem) in about, about.get((market, stem), ("", ()))
        builder.count("server without a row of server information", "servers", "description", REPORTED, int(not stated))
        server = builder.server(f"{market}/{stem}", stem, text, sources=(market,), tags=tags)
        tools = read_records(path)
        front = prefix([tool["name"] for tool in tools if isinstance(tool.get("name"), str)], stem)
        for tool in tools:
            published = tool.get("name")
            name = published.removeprefix(front) if isinstance(published, str) else None
            builder.count("server's name before the tool's removed", "tools", "name", CHANGED, int(name != published))
            row = builder.tool(server, name, tool.get("description"), tool.get("parameters", tool.get("inputSchema")))
            if row is not None:
                rows[f"{market}/{stem}", str(published)] = row
    queries, arguments = _samples(folder, rows, builder)
    return Loaded(builder.build(), {"instructions": queries}, builder.cleaning(), arguments)


def plainly_read(folder: Path) -> ToolCatalog:
    """The catalogue as the reference scores of the largest pool read it: without schemas and server texts.

    Every tool's name is cut up to its first underscore, whatever stands there (``get_user`` becomes ``user``), and a
    tool without a name stays.
    """
    servers, tools = [], []
    for number, path in enumerate(sorted((folder / TOOLS_FOLDER).glob("*/*.json"))):
        servers.append(Server(f"{path.parent.name}/{path.stem}", path.stem, ""))
        for entry in read_records(path):
            name, text = (str(entry.get(key) or "") for key in ("name", "description"))
            tools.append(Tool(number, name.partition("_")[2] if "_" in name else name, text))
    return ToolCatalog("mcpflow", tuple(servers), tuple(tools))


def prefix(names: list[str], server: str) -> str:
    """The server's name in front of its tools' names, underscore included; empty where there is none.

    That is what stands before the first underscore, if all tools share it. Two or more tools that share only a verb
    (``get_user``, ``get_team``) or one lone tool (``get_weather``) are told apart by the server's own name.
    """
    fronts = {name.partition("_")[0] if "_" in name.rstrip("_") else "" for name in names}
    front = fronts.pop() if len(fronts) == 1 else ""
    one, other = letters(front), letters(server)
    return f"{front}_" if one and (one in other or other in one or "-" in front) else ""


def _samples(
    folder: Path, rows: dict[tuple[str, str], int], builder: Builder
) -> tuple[QuerySet, dict[str, dict[str, Any]]]:
    """The instructions, and the arguments of those that hold a call."""
    column = "queries", "source_instruction"
    unique, arguments_of = dict[tuple[str, str], tuple[Any, ...]](), dict[str, dict[str, Any]]()
    calls: defaultdict[tuple[str, str], list[tuple[dict[str, Any], str]]] = defaultdict(list)
    for path in sorted((folder / SAMPLES_FOLDER).glob("*/*.json")):
        for number, entry in enumerate(read_records(path)):
            instruction = builder.text(entry["source_instruction"], *column)
            key = f"{path.parent.name.lower()}/{path.stem}", str(entry["tool"])
            text = instruction.removeprefix(": ")
            builder.count("': ' before the instruction removed", *column, CHANGED, int(text != instruction))
            if key not in rows:
                builder.count("instruction for a tool outside the catalogue left out", "queries", "tool", LEFT_OUT)
                continue
            builder.count("empty function call", "queries", "function_call", REPORTED, int(not entry["function_call"]))
            if (text, key[1]) in unique:
                builder.count("repeated instruction and tool left out", *column, LEFT_OUT)
                continue
            sample, arguments = f"{path.stem}:{number}", dict((entry["function_call"] or {}).get("arguments", {}))
            arguments_of |= {sample: arguments} if entry["function_call"] else {}
            # Whatever the AST measure takes for the same call is one call: a sibling would give it away.
            same = next((group for other, group in calls[key] if same_value(other, arguments)), None)
            if same is None:
                same = str(sum(map(len, calls.values())))
                calls[key].append((arguments, same))
            unique[text, key[1]] = sample, text, ((rows[key],),), same
    return query_set("instructions", unique.values()), arguments_of


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


@lru_cache(maxsize=100_000)  # one value is compared with every piece of a text
def plain(text: str) -> str:
    """A text as it is compared."""
    return IGNORED.sub("", text).lower().replace("'", '"')


LOADERS: dict[str, Callable[[Path], Loaded]] = {
    "livemcpbench": load_livemcpbench,
    "mcptools": load_mcptools,
    "mcpflow": load_mcpflow,
    "apibank": load_apibank,
    "mcptoolbench": load_mcptoolbench,
}
PUBLISHED = (*LOADERS, *READERS)


def load_collection(name: str) -> Loaded:
    """A published collection, fetched where needed; its cleaning table goes to results/NAME/tables/cleaning.csv."""
    folder = sources.fetch(name, compose.plain(compose.load([f"dataset={name}"]).dataset))
    loaded = LOADERS[name](folder)
    write_csv(paths.tables(name) / "cleaning.csv", loaded.cleaning)
    return loaded


def published_catalog(name: str) -> ToolCatalog:
    """The tools of a published collection, or of a pinned registry of `study catalog` that lists them: names and
    descriptions, without schemas; the category is the tag."""
    require_one_of(name, "published catalogue", PUBLISHED)
    if name in LOADERS:
        return load_collection(name).catalog
    settings, builder = Sources.read(), Builder(name)
    reader = Reader(name, settings.limits.text, settings.limits.tools)
    packed = archive_files(settings.archives[name], settings.limits)
    for record in READERS[name](packed, reader, settings.limits.file):
        if record.tools:
            tags = (record.category,) if record.category else ()
            server = builder.server(record.key, record.name, record.description, sources=(name,), tags=tags)
            for tool in record.tools:
                builder.tool(server, tool.name, tool.description, {})
    return builder.build()
