"""Tools found for a task, as data for a program and as lines for a person."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from study.errors import printable, require_one_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from study.advisor.encoders.choose import Embedder
    from study.advisor.retrieval.documents import ToolCatalog

# A mode of searching beside those of an index: MCP-Zero's two stages.
ROUTED = "routed"
SUMMARY = 100  # characters of a description that a person is shown


def search(
    catalog: ToolCatalog,
    query: str,
    k: int,
    mode: str = "dense",
    document: str = "template",
    decompose: bool = False,
    *,
    among: NDArray[np.bool_] | None = None,
    embedder: Embedder | None = None,
) -> list[dict[str, Any]]:
    """The best tools for a query, best first, in the form of `listed`; `among`: those that may be found, shape
    (n_tools,), default all."""
    import numpy as np

    from study.advisor.encoders.choose import quick_embedder
    from study.advisor.retrieval.index import MODES, Settings, ToolIndex, best
    from study.advisor.retrieval.route import Request, Router
    from study.advisor.retrieval.texts import decompose as split

    require_one_of(mode, "search mode", (*MODES, ROUTED))
    settings = Settings(mode="dense" if mode == ROUTED else mode, document=document, decompose=decompose)
    embedder = embedder or quick_embedder()
    chosen = ToolIndex(catalog, settings, embedder)
    if mode == ROUTED and query.strip():
        parts = split(query) if decompose else [query]
        scores = (
            Router(catalog, embedder=embedder).scores([Request(part, part) for part in parts], store=False).max(axis=0)
        )
        scores = scores if among is None else np.where(among, scores, np.float32(-np.inf))
        rows, values = best(scores, k, chosen.order)
    else:
        rows, values = chosen.search(query, k, among=among)
    return listed(catalog, rows.tolist(), values.tolist())


def listed(catalog: ToolCatalog, rows: Sequence[int], scores: Sequence[float] | None = None) -> list[dict[str, Any]]:
    """Tools in their order, as data; `rows`: of the tools in the catalogue. `scores`: of the same tools.

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
        owner = {"id": server.id, "name": server.name, "sources": [*(server.sources or (catalog.name,))]}
        entry = {"name": tool.name, "description": tool.description, "inputSchema": schema}
        answers.append({"rank": place + 1, **score, "server": owner, "tool": entry})
    return answers


def as_line(answer: dict[str, Any]) -> str:
    """One tool of `listed` as a line of text."""
    tool, score = answer["tool"], f"  {answer['score']:.3f}" if "score" in answer else ""
    summary = " ".join(str(tool["description"]).split())[:SUMMARY]
    return printable(f"{answer['rank']:>2}{score}  {answer['server']['name']} / {tool['name']}  {summary}")
