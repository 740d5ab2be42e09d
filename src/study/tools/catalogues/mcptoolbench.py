"""MCPToolBench++ (Fan et al. 2025): 699 single-call queries over 49 tools of 6 servers in four domains.

Every row repeats its domain's tool list, which is read once. `strict` accepts the labelled tool alone, `equivalent`
also the tools that the publishers list as similar. The domain is the group; the only tool of `finance` is always right
in its own pool.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from study.errors import StudyError
from study.tools.catalogues.builder import REPORTED, Builder
from study.tools.catalogues.files import AGAIN, Loaded, read_list, text_of
from study.tools.catalogues.queries import QuerySet

FILES = (
    "browser/browser_0724_single_v3.json",
    "file_system/filesystem_0723_single.json",
    "finance/finance_0724_single_v3.json",
    "search/search_0725_single_v2.json",
)
KEYS = ("uuid", "category", "tools", "mcp_tools_dict", "query", "function_call_label")


def load(folder: Path) -> Loaded:
    """The catalogue, the query sets `strict` and `equivalent`, and the cleaning table."""
    builder = Builder("mcptoolbench")
    rows: dict[tuple[str, str], int] = {}
    ids, texts, strict, equivalent, groups = [], [], [], [], []
    for file in FILES:
        records = read_list(folder / file, KEYS)
        _add_tools(builder, rows, records[0], file)
        changed = sum(record["tools"] != records[0]["tools"] for record in records)
        builder.count("tool list differs from the first row's", "queries", "tools", REPORTED, changed)
        for number, record in enumerate(records):
            calls = record["function_call_label"]
            if len(calls) != 1:
                raise StudyError("must hold one call", file=file, row=number, column="function_call_label", fix=AGAIN)
            gold = _row(rows, calls[0], file, number)
            similar = [_row(rows, tool, file, number) for tool in calls[0].get("similar_tools") or []]
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


def _row(rows: dict[tuple[str, str], int], call: dict[str, Any], file: str, number: int) -> int:
    key = (str(call.get("mcp_server")), str(call.get("name")))
    if key not in rows:
        raise StudyError(f"the label {key[1]!r} of {key[0]!r} is no tool", file=file, row=number, fix=AGAIN)
    return rows[key]
