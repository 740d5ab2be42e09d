"""MCP-Flow (Wang et al. 2025): the tools of servers from seven marketplaces, with instructions for 82 of them.

Pinned are the server files of at most 80,000 bytes: 1,131 of the 1,163 that the source repository holds.
"""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from typing import Any

from study.tools.catalogues.catalog import Server, Tool, ToolCatalog
from study.tools.catalogues.files import CHANGED, LEFT_OUT, REPORTED, Builder, Loaded, read_list
from study.tools.catalogues.queries import QuerySet
from study.tools.flow.calls import same_value

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
        text = descriptions.get((market, stem))
        builder.count(
            "server without a row of server information", "servers", "description", REPORTED, int(text is None)
        )
        server = builder.server(f"{market}/{stem}", stem, text or "", sources=(market,))
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


def _descriptions(folder: Path) -> dict[tuple[str, str], str]:
    """Server texts by marketplace and file stem."""
    found: dict[tuple[str, str], str] = {}
    for entry in read_list(folder / INFO_FILE, ("all_paths",)):
        for paths in entry["all_paths"]:
            found |= {
                (market, stem): str(entry.get("description") or "") for market, stems in paths.items() for stem in stems
            }
    return found


def _samples(folder: Path, rows: dict[tuple[str, str], int], builder: Builder) -> QuerySet:
    seen: set[tuple[str, str]] = set()
    ids, texts, labels, groups = [], [], [], []
    calls: defaultdict[tuple[str, str], list[tuple[dict[str, Any], str]]] = defaultdict(list)
    for path in sorted((folder / SAMPLES_FOLDER).glob("*/*.json")):
        server = f"{path.parent.name.lower()}/{path.stem}"
        for number, entry in enumerate(read_list(path, ("source_instruction", "tool", "function_call"))):
            text, key = _instruction(entry, builder), (server, str(entry["tool"]))
            if key not in rows:
                builder.count("instruction for a tool outside the catalogue left out", "queries", "tool", LEFT_OUT)
                continue
            builder.count("empty function call", "queries", "function_call", REPORTED, int(not entry["function_call"]))
            if (text, key[1]) in seen:
                builder.count("repeated instruction and tool left out", "queries", "source_instruction", LEFT_OUT)
                continue
            seen.add((text, key[1]))
            ids.append(f"{path.stem}:{number}")
            texts.append(text)
            labels.append(((rows[key],),))
            arguments = dict((entry["function_call"] or {}).get("arguments", {}))
            # Whatever the AST measure takes for the same call is one call: a sibling would give it away.
            same = next((group for other, group in calls[key] if same_value(other, arguments)), None)
            if same is None:
                same = str(sum(map(len, calls.values())))
                calls[key].append((arguments, same))
            groups.append(same)
    return QuerySet("instructions", tuple(ids), tuple(texts), tuple(labels), tuple(groups))


def _instruction(entry: dict[str, Any], builder: Builder) -> str:
    text = builder.text(entry["source_instruction"], "queries", "source_instruction")
    builder.count(
        "': ' before the instruction removed", "queries", "source_instruction", CHANGED, int(text.startswith(": "))
    )
    return text.removeprefix(": ")
