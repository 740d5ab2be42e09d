"""Building a catalogue of tools out of strangers' records: what is mended or left out is counted."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pandas as pd

from study.advisor.retrieval.documents import Server, Tool, ToolCatalog, fault

CLEANING_COLUMNS = ["rule", "table", "column", "rows", "action"]
CHANGED, LEFT_OUT, REPORTED = "changed", "left out", "reported only"
Names = tuple[str, ...]


class Builder:
    """Collects servers and tools and counts what had to be mended."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.servers: list[Server] = []
        self.tools: list[Tool] = []
        self.counts: Counter[tuple[str, str, str, str]] = Counter()
        self._ids: Counter[str] = Counter()

    def count(self, rule: str, table: str, column: str, action: str, rows: int = 1) -> None:
        """Add `rows` to one line of the cleaning table (0 shows that a rule met nothing)."""
        self.counts[rule, table, column, action] += rows

    def server(
        self, server_id: str, name: Any, description: Any, *, sources: Names = (), aliases: Names = (), tags: Names = ()
    ) -> int:
        """Add a server and return its row; a repeated id gets `#2`, `#3`, ... behind it."""
        self._ids[server_id] += 1
        if (times := self._ids[server_id]) > 1:
            self.count("repeated server id numbered", "servers", "id", CHANGED)
            server_id = f"{server_id}#{times}"
        text = self.text(description, "servers", "description")
        label = self.text(name, "servers", "name") or server_id
        self.servers.append(Server(server_id, label, text, sources, aliases, tags=tags))
        return len(self.servers) - 1

    def tool(self, server: int, name: Any, description: Any, schema: Any) -> int | None:
        """Add a tool and return its row; None for one without a name, which nobody could call."""
        if not isinstance(name, str) or not name.strip():
            self.count("tool without a name left out", "tools", "name", LEFT_OUT)
            return None
        problem = "no input schema: no parameters" if schema is None else fault(schema)
        if problem is not None:
            self.count(problem, "tools", "schema", CHANGED)
        clean, text = self.text(name, "tools", "name"), self.text(description, "tools", "description")
        self.tools.append(Tool(server, clean, text, {} if problem else dict(schema)))
        return len(self.tools) - 1

    def text(self, value: Any, table: str, column: str) -> str:
        """A text that UTF-8 can hold; null and non-text become the empty text."""
        if not isinstance(value, str):
            self.count("null or not text becomes empty text", table, column, CHANGED)
            return ""
        clean = value.encode("utf-8", "replace").decode()
        if clean != value:
            self.count("letters that UTF-8 cannot hold replaced", table, column, CHANGED)
        if not clean.strip():
            self.count("empty text", table, column, REPORTED)
        return clean

    def build(self) -> ToolCatalog:
        """The catalogue."""
        return ToolCatalog(self.name, tuple(self.servers), tuple(self.tools))

    def cleaning(self) -> pd.DataFrame:
        """One line per rule, columns `CLEANING_COLUMNS`, after counting what the finished catalogue repeats."""
        names = Counter(tool.name for tool in self.tools)
        inside = Counter((tool.server, tool.name) for tool in self.tools)
        texts = Counter(tool.description for tool in self.tools if tool.description.strip())
        repeats = {
            "name shared with another tool": sum(n for n in names.values() if n > 1),
            "name repeated inside one server": sum(n - 1 for n in inside.values() if n > 1),
            "description shared with another tool": sum(n for n in texts.values() if n > 1),
        }
        lines = [(rule, table, column, rows, action) for (rule, table, column, action), rows in self.counts.items()]
        lines += [(rule, "tools", rule.split()[0], rows, REPORTED) for rule, rows in repeats.items()]
        sizes = {"servers": len(self.servers), "tools": len(self.tools)}
        lines += [("kept", table, "", rows, REPORTED) for table, rows in sizes.items()]
        return pd.DataFrame(lines, columns=CLEANING_COLUMNS)
