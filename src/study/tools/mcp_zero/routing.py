"""Hierarchical vector routing (MCP-Zero, section 3.1, eq. 1): servers first, then the tools of the best servers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from study.data.dataset import FloatArray, IntArray
from study.encoders import endpoint as embedding
from study.encoders.endpoint import Embedder
from study.errors import StudyError
from study.tools.catalogues.catalog import ToolCatalog
from study.tools.discovery.documents import documents
from study.tools.mcp_zero.request import Request

MATCHING = ("max", "description", "summary")
SCORES = ("zero", "product", "tool", "sum")
SUMMARY_LENGTH, LINE_LENGTH = 900, 120


@dataclass(frozen=True)
class Routing:
    """How a request is routed.

    Attributes:
        servers: how many servers stay after the first stage; None keeps all.
        matching: what the server field is compared with; max takes the better of description and summary (the paper).
        score: zero is eq. 1; product, tool and sum are ablations.
        document: form of the tool texts.
    """

    servers: int | None = 5
    matching: str = "max"
    score: str = "zero"
    document: str = "name_desc"

    def __post_init__(self) -> None:
        """Refuse unknown choices."""
        if self.matching not in MATCHING or self.score not in SCORES or (self.servers is not None and self.servers < 1):
            raise StudyError(
                f"not a routing: {self}",
                fix=f"matching: {', '.join(MATCHING)}; score: {', '.join(SCORES)}; servers >= 1",
            )


def zero_score(server: FloatArray, tool: FloatArray, kind: str = "zero") -> FloatArray:
    """Eq. 1: (s_server x s_tool) x max(s_server, s_tool), of any shape.

    Cosines are clipped at 0: two negative ones would otherwise multiply to a positive score.
    """
    s, t = np.maximum(server, 0), np.maximum(tool, 0)
    if kind == "tool":
        return t
    if kind == "sum":
        return s + t
    return s * t if kind == "product" else s * t * np.maximum(s, t)


def summaries(catalog: ToolCatalog) -> list[str]:
    """A deterministic stand-in for the paper's server summaries (written by a language model, not published).

    Name, description, and each tool's name with the first line of its description; the list of tools is cut at
    `SUMMARY_LENGTH` characters.
    """
    listed: list[list[str]] = [[] for _ in catalog.servers]
    for tool in catalog.tools:
        lines = tool.description.splitlines()
        listed[tool.server].append(f"{tool.name}: {lines[0][:LINE_LENGTH] if lines else ''}")
    return [
        f"{server.name}. {server.description} Tools: {'; '.join(own)[:SUMMARY_LENGTH]}"
        for server, own in zip(catalog.servers, listed, strict=True)
    ]


class Router:
    """Servers and tools of one catalogue, ready to be matched."""

    def __init__(self, catalog: ToolCatalog, routing: Routing | None = None, embedder: Embedder | None = None) -> None:
        """Prepare; vectors are made when first needed."""
        if not catalog.tools:
            raise StudyError(f"the catalogue {catalog.name} has no tools", fix="index servers that offer some")
        self.catalog, self.routing = catalog, routing or Routing()
        self.embedder = embedder or embedding.configured()

    @cached_property
    def server_vectors(self) -> tuple[FloatArray, FloatArray]:
        """Vectors of descriptions and of summaries, both (n_servers, d)."""
        texts = [server.description for server in self.catalog.servers]
        return self.embedder.encode(texts), self.embedder.encode(summaries(self.catalog))

    @cached_property
    def tool_vectors(self) -> FloatArray:
        """Vectors of the tool texts, (n_tools, d)."""
        return self.embedder.encode(documents(self.catalog, self.routing.document))

    def server_scores(self, servers: Sequence[str], *, store: bool = True) -> FloatArray:
        """s_server of every server, shape (b, n_servers)."""
        asked = self.embedder.encode(servers, store=store)
        by_text, by_summary = (asked @ vectors.T for vectors in self.server_vectors)
        chosen: FloatArray = {
            "max": np.maximum(by_text, by_summary),
            "description": by_text,
            "summary": by_summary,
        }[self.routing.matching]
        return chosen

    def similarities(self, requests: Sequence[Request], *, store: bool = True) -> tuple[FloatArray, FloatArray]:
        """Cosines s_server of shape (b, n_servers) and s_tool of shape (b, n_tools)."""
        tools = self.embedder.encode([request.tool for request in requests], store=store) @ self.tool_vectors.T
        return self.server_scores([request.server for request in requests], store=store), tools

    def scores(self, requests: Sequence[Request], *, store: bool = True) -> FloatArray:
        """Scores of all tools, shape (b, n_tools); -inf for tools of servers that the first stage left out."""
        servers, tools = self.similarities(requests, store=store)
        return combine(servers, tools, self.catalog.server_of, self.routing)


def combine(servers: FloatArray, tools: FloatArray, server_of: IntArray, routing: Routing) -> FloatArray:
    """Both stages on given cosines.

    Args:
        servers: s_server, shape (b, n_servers); -inf for a server that is not offered.
        tools: s_tool, shape (b, n_tools).
        server_of: the server of each tool, shape (n_tools,).

    Returns: shape (b, n_tools), -inf where the tool's server did not pass.
    """
    found = zero_score(servers[:, server_of], tools, routing.score).astype(np.float32)
    passed = best_servers(servers, routing.servers) & ~np.isneginf(servers)
    found[~passed[:, server_of]] = -np.inf
    return found


def best_servers(scores: FloatArray, count: int | None) -> np.ndarray:
    """Which servers stay, shape of `scores` (b, n_servers), bool; of equal ones the earlier."""
    kept = np.ones(scores.shape, dtype=bool)
    if count is not None and count < scores.shape[1]:
        chosen = np.argsort(-scores, axis=1, kind="stable")[:, :count]
        kept[:] = False
        np.put_along_axis(kept, chosen, True, axis=1)
    return kept
