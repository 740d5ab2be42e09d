"""A tool's document: the text that is embedded or indexed by words (Semantic Tool Discovery, section 3.1.1)."""

from __future__ import annotations

from collections.abc import Callable

from study.errors import StudyError
from study.tools.catalogues.catalog import Server, Tool, ToolCatalog

Template = Callable[[Server, Tool], str]


def name_desc(server: Server, tool: Tool) -> str:
    """Tool name and description."""
    return f"{tool.name}: {tool.description}"


def desc(server: Server, tool: Tool) -> str:
    """The description alone, the name where there is none."""
    return tool.description or tool.name


def template(server: Server, tool: Tool) -> str:
    """The paper's template; its line "Capabilities" is left out, as nothing published expands a description."""
    listed = "; ".join(f"{parameter.name}: {parameter.description}" for parameter in tool.parameters)
    return f"Tool: {tool.name}\nPurpose: {tool.description}\nParameters: {listed}"


def server_name_desc(server: Server, tool: Tool) -> str:
    """Server name and description before the tool's."""
    return f"{server.name}. {server.description} {tool.name}: {tool.description}"


TEMPLATES: dict[str, Template] = {
    "name_desc": name_desc,
    "desc": desc,
    "template": template,
    "server": server_name_desc,
}


def documents(catalog: ToolCatalog, form: str, limit: int | None = None) -> list[str]:
    """The document of every tool, shape (n_tools,).

    Args:
        form: a key of `TEMPLATES`.
        limit: cut the tool's description after so many characters.
    """
    if form not in TEMPLATES:
        raise StudyError(f"unknown document form {form!r}", fix=f"one of: {', '.join(TEMPLATES)}")
    write = TEMPLATES[form]
    tools = catalog.tools
    if limit is not None:
        tools = tuple(Tool(t.server, t.name, t.description[:limit], t.schema) for t in tools)
    return [write(catalog.servers[tool.server], tool) for tool in tools]
