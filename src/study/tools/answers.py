"""How tools are named to a person, and to a program that pastes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from study.tools.catalogues.catalog import ToolCatalog

SUMMARY = 100  # characters of a description that a person is shown


def printable(text: str) -> str:
    """`text` without control characters, which could drive the terminal."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def listed(catalog: ToolCatalog, rows: Sequence[int], scores: Sequence[float] | None = None) -> list[dict[str, Any]]:
    """Tools in their order, as data.

    Args:
        rows: of the tools in the catalogue.
        scores: of the same tools, where there are some.

    Returns: rank, score (where there are some), server (id, name, sources), and tool, which is an entry of an MCP
    server's list of tools: name, description, inputSchema.
    """
    answers = []
    for place, row in enumerate(rows):
        tool = catalog.tools[row]
        server = catalog.servers[tool.server]
        score = {} if scores is None else {"score": round(float(scores[place]), 4)}
        # The protocol wants a schema of type object, also of a tool without parameters.
        schema = dict(tool.schema) or {"type": "object", "properties": {}}
        answers.append(
            {
                "rank": place + 1,
                **score,
                "server": {"id": server.id, "name": server.name, "sources": [*(server.sources or (catalog.name,))]},
                "tool": {"name": tool.name, "description": tool.description, "inputSchema": schema},
            }
        )
    return answers


def line(answer: dict[str, Any]) -> str:
    """One tool of `listed` as a line of text."""
    tool = answer["tool"]
    summary = " ".join(str(tool["description"]).split())[:SUMMARY]
    score = f"  {answer['score']:.3f}" if "score" in answer else ""
    return printable(f"{answer['rank']:>2}{score}  {answer['server']['name']} / {tool['name']}  {summary}")
