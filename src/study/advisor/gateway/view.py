"""What a host can see at one moment: the tools of a user's servers, and those of a published catalogue, under names;
and the settings of the gateway."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any, Literal

from pydantic import PositiveFloat, PositiveInt

from study.advisor.encoders.choose import Embedder
from study.advisor.engine.intent.feedback import FeedbackStore
from study.advisor.engine.render import summary
from study.advisor.engine.tools import Tools
from study.advisor.retrieval.documents import ToolCatalog, tool_keys
from study.advisor.retrieval.merge import extend
from study.base import paths
from study.base.errors import StudyError
from study.base.settings import read_settings


@dataclass(frozen=True)
class ServeSettings:
    """``conf/serve.yaml``, where every key is explained."""

    k: PositiveInt
    budget: PositiveInt
    start_seconds: PositiveFloat
    call_seconds: PositiveFloat
    longest_seconds: PositiveFloat
    idle_seconds: PositiveFloat
    most_running: PositiveInt
    check_seconds: PositiveFloat
    argument_characters: PositiveInt
    result_characters: PositiveInt
    allow: tuple[str, ...]
    deny: tuple[str, ...]
    port: PositiveInt
    ranking: Literal["relevance", "intent"]
    experiment: str | None

    def allows(self, name: str) -> bool:
        """Whether a tool, as ``server__tool``, may be found and called."""
        allowed = not self.allow or any(fnmatchcase(name, pattern) for pattern in self.allow)
        return allowed and not any(fnmatchcase(name, pattern) for pattern in self.deny)


def serve_settings() -> ServeSettings:
    """Read ``conf/serve.yaml``."""
    return read_settings(ServeSettings, paths.conf() / "serve.yaml")


class View:
    """The user's own servers first, then those of a published catalogue that none of them is."""

    def __init__(
        self,
        own_catalog: ToolCatalog,
        published: ToolCatalog | None,
        settings: ServeSettings,
        embedder: Embedder,
        store: FeedbackStore | None = None,
    ) -> None:
        whole = own_catalog if published is None else extend("serve", own_catalog, published)
        self.own_catalog = own_catalog
        # The ids of the own servers, by row; those of the others are not among them.
        owners = [server.id for server in own_catalog.servers] + [""] * (len(whole.servers) - len(own_catalog.servers))
        names = [f"{owners[tool.server] or whole.servers[tool.server].name}__{tool.name}" for tool in whole.tools]
        rows = [row for row, name in enumerate(names) if settings.allows(name)]
        self.catalog = ToolCatalog(whole.name, whole.servers, tuple(whole.tools[row] for row in rows))
        self.owners = [owners[tool.server] for tool in self.catalog.tools]
        keys = (*tool_keys(own_catalog), *tool_keys(whole)[len(own_catalog.tools) :])
        self.keys = [keys[row] for row in rows]
        self.full = [names[row] for row in rows]
        self.names = self._named()
        self.rows = {name: row for row, name in enumerate(self.names)}
        self.tools = Tools(self.catalog, embedder, keys=self.keys, store=store, experiment=settings.experiment)

    def _named(self) -> list[str]:
        """The name of every tool for a host: its own where it has it alone, else ``server__tool``, numbered at need."""
        taken, seen, named = set(self.full), Counter[str](), []
        for tool, name in zip(self.catalog.tools, self.full, strict=True):
            alone = len(self.catalog.rows_by_name[tool.name]) == 1 and tool.name not in taken
            chosen = tool.name if alone else name
            seen[chosen] += 1
            named.append(chosen if seen[chosen] == 1 else f"{chosen}#{seen[chosen]}")
        return named

    def row(self, name: str) -> int:
        """The row of a tool by its name for a host; ``server__tool`` is understood for every tool."""
        if name in self.rows:
            return self.rows[name]
        if self.full.count(name) == 1:
            return self.full.index(name)
        near = [self.names[row] for row in self.catalog.rows_by_name.get(name, ())]
        near = near or get_close_matches(name, self.names, 3)
        fix = f"did you mean {', '.join(near)}?" if near else "take a name from `find_tools`"
        raise StudyError(f"no tool {name!r:.100}, or it is not allowed here", fix=fix)

    def entry(self, row: int, *, whole: bool) -> dict[str, Any]:
        """A tool as the host sees it; `whole`: with its full description and schema."""
        tool, server = self.catalog.tools[row], self.catalog.servers[self.catalog.tools[row].server]
        fields = {"name": self.names[row], "server": server.name} | ({} if self.owners[row] else {"callable": False})
        if whole:
            return fields | {"description": tool.description, "inputSchema": dict(tool.schema)}
        return fields | {"description": summary(tool.description)}
