"""API-Bank level 1 (Li et al. 2023): 389 API calls of 49 APIs in 212 dialogues.

Descriptions are those of ``all_apis.csv``; the wording that the running APIs carry (and MCP-Zero used) lies in program
files and is not read. An API without a readable description keeps an empty one.
"""

from __future__ import annotations

import ast
import csv
import json
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from study.advisor.retrieval.building import LEFT_OUT, REPORTED, Builder
from study.advisor.retrieval.documents import ToolCatalog
from study.base.errors import StudyError
from study.data.raw_files import read_text
from study.tools.collections.files import AGAIN, Loaded, read_lines

APIS_FILE, DIALOGUES = "data/all_apis.csv", "lv1-lv2-samples/level-1-given-desc"
NAME, TEXT = "类名", "api_info"
# A description in the one form that the narrow reading of the file accepts, see `narrowly_read`.
NARROW = re.compile(r'description = "(.*?)"\n')
JSON_TYPES = {"int": "integer", "float": "number", "bool": "boolean", "list": "array", "dict": "object"}  # else string


@dataclass(frozen=True)
class Call:
    """One API call and what was said before it."""

    id: str  # file and line
    lines: tuple[tuple[str, str], ...]  # (speaker, text) of those before; an API line holds the call and its result
    tool: int  # row of the called API
    pool: tuple[int, ...]  # rows of all APIs that the dialogue calls (MCP-Zero's domain pool)
    first: bool  # whether no call precedes it in the dialogue (MCP-Zero's single turn)


def load_apibank(folder: Path) -> Loaded:
    """The catalogue of the called APIs (one server, in file order) and the cleaning table; calls are from `calls`."""
    builder = Builder("apibank")
    server = builder.server("apibank", "API-Bank", "")
    called = {line["api_name"] for lines in dialogues(folder).values() for line in lines if line["role"] == "API"}
    described: dict[str, tuple[str, dict[str, Any]]] = {}
    for entry in entries(folder):
        values = assignments(entry.get(TEXT) or "")
        if values is None:
            builder.count("description that cannot be read", "tools", TEXT, REPORTED)
            continue
        described.setdefault(entry[NAME], (str(values.get("description", "")), _schema(values.get("input_parameters"))))
    uncalled = len(described.keys() - called)
    builder.count("described API that no dialogue calls left out", "tools", NAME, LEFT_OUT, uncalled)
    builder.count("called API without a description", "tools", TEXT, REPORTED, len(called - described.keys()))
    for name in [*(name for name in described if name in called), *sorted(called - described.keys())]:
        builder.tool(server, name, *described.get(name, ("", {})))
    return Loaded(builder.build(), {}, builder.cleaning())


def entries(folder: Path) -> list[dict[str, str]]:
    """The rows of ``all_apis.csv``."""
    return list(csv.DictReader(read_text(folder / APIS_FILE).lstrip("\ufeff").splitlines(keepends=True)))


def narrowly_read(folder: Path, catalog: ToolCatalog) -> ToolCatalog:
    """The catalogue without the texts that a line-by-line reading of the file misses: 98 of 101 entries have one.

    The reference scores of API-Bank were made with this reading. A blank behind the closing quotation mark costs
    `ModifyRegistration` its text; such an API is known by its name alone.
    """
    read = {entry[NAME] for entry in entries(folder) if NARROW.search(entry.get(TEXT) or "")}
    tools = tuple(tool if tool.name in read else replace(tool, description="") for tool in catalog.tools)
    return replace(catalog, tools=tools)


def calls(folder: Path, catalog: ToolCatalog) -> list[Call]:
    """Every API call of the dialogues, in file order."""
    found = []
    for name, lines in dialogues(folder).items():
        pool = {catalog.rows_by_name[line["api_name"]][0] for line in lines if line["role"] == "API"}
        said: list[tuple[str, str]] = []
        for number, line in enumerate(lines):
            if line["role"] == "API":
                row, first = catalog.rows_by_name[line["api_name"]][0], all(speaker != "API" for speaker, _ in said)
                found.append(Call(f"{name}:{number}", tuple(said), row, tuple(sorted(pool)), first))
            said.append((line["role"], _spoken(line)))
    return found


def dialogues(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """The lines of every dialogue by file name, checked."""
    paths = sorted((folder / DIALOGUES).glob("*.jsonl"))
    if not paths:
        raise StudyError("there are no dialogues", file=folder / DIALOGUES, fix=AGAIN)
    found = {path.name.removesuffix(".jsonl"): read_lines(path, ("role",)) for path in paths}
    for name, lines in found.items():
        for row, line in enumerate(lines):
            needed = ("api_name", "param_dict", "result") if line["role"] == "API" else ("text",)
            if line["role"] not in ("User", "AI", "API") or not all(key in line for key in needed):
                raise StudyError("not a line of a dialogue", file=name, row=row, fix=AGAIN)
    return found


def assignments(text: str) -> dict[str, Any] | None:
    """The literal values that ``name = value`` lines assign; None where the text is no such list. Nothing is run."""
    try:
        tree = ast.parse(text)
        return {
            node.targets[0].id: ast.literal_eval(node.value)
            for node in tree.body
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        } or None
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _schema(described: Any) -> dict[str, Any]:
    listed = described if isinstance(described, dict) else {}
    properties = {}
    for name, value in listed.items():
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
