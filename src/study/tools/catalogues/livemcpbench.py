"""LiveMCPBench (Mo et al. 2025): 70 servers, 527 tools, 95 tasks with the tools that a human annotator used."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from study.tools.catalogues.builder import CHANGED, LEFT_OUT, REPORTED, Builder
from study.tools.catalogues.files import Loaded, read_list, text_of
from study.tools.catalogues.queries import QuerySet

TOOLS_FILE = "tools/LiveMCPTool/tools.json"
TASKS_FILE = "annotated_data/all_annotations.json"
LOG_FILE = "baseline/annotation/claude-sonnet-4-20250514_Qwen3-Embedding-0.6B.json"
NUMBER = re.compile(r"^\s*\d+\s*[.)]\s*")


def load(folder: Path) -> Loaded:
    """The catalogue, the query set `tasks` (labels credit any tool of the labelled name), and the cleaning table.

    Labels keep the annotators' step order, which says nothing about importance. A task that loses all its labels is
    left out.
    """
    builder = Builder("livemcpbench")
    for entry in read_list(folder / TOOLS_FILE, ("name", "description", "tools")):
        blocks = entry["tools"]
        server = builder.server(str(entry["name"]), entry["name"], entry["description"], aliases=tuple(blocks))
        for block in blocks.values():
            for tool in block["tools"]:
                builder.tool(server, tool.get("name"), tool.get("description"), tool.get("inputSchema"))
    catalog = builder.build()
    kept, labels = [], []
    for row, task in enumerate(read_list(folder / TASKS_FILE, ("task_id", "Question", "Annotator Metadata"))):
        names = label_names(task["Annotator Metadata"])
        known = [name for name in dict.fromkeys(names) if name in catalog.rows_by_name]
        builder.count("label names no tool, left out", "tasks", "Tools", LEFT_OUT, len(set(names)) - len(known))
        builder.count("label repeated in one task, joined", "tasks", "Tools", CHANGED, len(names) - len(set(names)))
        shared = sum(len(catalog.rows_by_name[name]) > 1 for name in known)
        builder.count("label names tools of several servers", "tasks", "Tools", REPORTED, shared)
        stated = str(task["Annotator Metadata"].get("Number of tools", "")).strip()
        builder.count(
            "stated number of tools is wrong", "tasks", "Number of tools", REPORTED, int(stated != str(len(names)))
        )
        if not known:
            builder.count("task without a known label left out", "tasks", "Tools", LEFT_OUT)
            continue
        kept.append((text_of(task, "task_id", TASKS_FILE, row), text_of(task, "Question", TASKS_FILE, row)))
        labels.append(tuple(catalog.rows_by_name[name] for name in known))
    ids, texts = (tuple(column) for column in zip(*kept, strict=True))
    return Loaded(catalog, {"tasks": QuerySet("tasks", ids, texts, tuple(labels), ids)}, builder.cleaning())


def label_names(metadata: dict[str, Any]) -> list[str]:
    """The tool names of a numbered list, one a line."""
    lines = str(metadata.get("Tools", "")).splitlines()
    return [name for line in lines if (name := NUMBER.sub("", line).strip())]
