"""What a host can see at one moment: the tools of a user's servers, and those of a published catalogue, under names."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from difflib import get_close_matches
from functools import cached_property
from typing import Any

import numpy as np

from study.advisor.encoders.choose import Embedder
from study.advisor.engine.intent.feedback import FeedbackStore
from study.advisor.engine.intent.recommender import IntentRecommender
from study.advisor.engine.intent.settings import intent_settings
from study.advisor.engine.tool_answers import SUMMARY
from study.advisor.gateway.settings import ServeSettings
from study.advisor.retrieval.documents import ToolCatalog, tool_keys
from study.advisor.retrieval.index import Settings, ToolIndex
from study.advisor.retrieval.merge import extend
from study.advisor.retrieval.route import Router, Routing
from study.advisor.retrieval.texts import definition_tokens
from study.errors import StudyError

DOCUMENT = "template"  # the form that `study tools index` embeds, so that a published catalogue is not embedded again


class View:
    """The user's own servers first, then those of a published catalogue that none of them is."""

    def __init__(
        self, own: ToolCatalog, published: ToolCatalog | None, settings: ServeSettings, embedder: Embedder
    ) -> None:
        whole = own if published is None else extend("serve", own, published)
        self.own, self.embedder = own, embedder
        # The ids of the own servers, by row; those of the others are not among them.
        owners = [server.id for server in own.servers] + [""] * (len(whole.servers) - len(own.servers))
        names = [f"{owners[tool.server] or whole.servers[tool.server].name}__{tool.name}" for tool in whole.tools]
        rows = [row for row, name in enumerate(names) if settings.allows(name)]
        self.catalog = ToolCatalog(whole.name, whole.servers, tuple(whole.tools[row] for row in rows))
        self.owners = [owners[tool.server] for tool in self.catalog.tools]
        keys = tool_keys(whole)
        keys = (*tool_keys(own), *keys[len(own.tools) :])
        self.keys = [keys[row] for row in rows]
        self.names = self._named([names[row] for row in rows])
        self.rows = {name: row for row, name in enumerate(self.names)}

    def _named(self, full: list[str]) -> list[str]:
        """The name of every tool for a host: its own where it has it alone, else ``server__tool``, numbered at need."""
        taken, seen = set(full), Counter[str]()
        named = []
        for tool, name in zip(self.catalog.tools, full, strict=True):
            alone = len(self.catalog.rows_by_name[tool.name]) == 1 and tool.name not in taken
            chosen = tool.name if alone else name
            seen[chosen] += 1
            named.append(chosen if seen[chosen] == 1 else f"{chosen}#{seen[chosen]}")
        return named

    @cached_property
    def index(self) -> ToolIndex:
        """The search over the tools."""
        return ToolIndex(self.catalog, Settings(document=DOCUMENT), self.embedder)

    @cached_property
    def router(self) -> Router:
        """The search by a server's and a tool's description (MCP-Zero)."""
        return Router(self.catalog, Routing(document=DOCUMENT), self.embedder)

    def recommender(self, store: FeedbackStore | None, experiment: str | None) -> IntentRecommender:
        """Ranking by intent over the tools, with the vectors of `index`."""
        known = intent_settings()
        known = replace(known, ranking=replace(known.ranking, document=DOCUMENT))
        how: Any = {"keys": self.keys, "intentions": known, "embedder": self.embedder}
        return IntentRecommender(self.catalog, store=store, experiment=experiment, **how)

    @cached_property
    def tokens(self) -> np.ndarray:
        """Tokens of every tool's definition, shape (n_tools,)."""
        return definition_tokens(self.catalog)

    def row(self, name: str) -> int:
        """The row of a tool by its name for a host; ``server__tool`` is understood for every tool."""
        if name in self.rows:
            return self.rows[name]
        full = [
            row
            for row, tool in enumerate(self.catalog.tools)
            if name == f"{self.owners[row] or self.catalog.servers[tool.server].name}__{tool.name}"
        ]
        if len(full) == 1:
            return full[0]
        near = [self.names[row] for row in self.catalog.rows_by_name.get(name, ())]
        near = near or get_close_matches(name, self.names, 3)
        fix = f"did you mean {', '.join(near)}?" if near else "take a name from `find_tools`"
        raise StudyError(f"no tool {name!r:.100}, or it is not allowed here", fix=fix)

    def entry(self, row: int, *, whole: bool) -> dict[str, Any]:
        """A tool as the host sees it; `whole`: with its full description and schema."""
        tool, server = self.catalog.tools[row], self.catalog.servers[self.catalog.tools[row].server]
        shown: dict[str, Any] = {"name": self.names[row], "server": server.name}
        if not self.owners[row]:
            shown["callable"] = False
        if not whole:
            return shown | {"description": " ".join(tool.description.split())[:SUMMARY]}
        return shown | {"description": tool.description, "inputSchema": dict(tool.schema)}
