"""Merging catalogues and recognising one server under several listings (MCP-Flow: identical tool-description lists)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from study.advisor.retrieval.documents import Server, Tool, ToolCatalog, concatenate

# Two tools with one name and this much of one description are one tool, whatever follows.
SAME_START = 60


class Merged(NamedTuple):
    """Several catalogues as one."""

    catalog: ToolCatalog  # one server per entity, the first listing's name and text, with all its sources and aliases
    entity_of: tuple[int, ...]  # the entity of every listing, in the order of the input

    def groups(self) -> list[list[int]]:
        """The listings of every entity that has two or more."""
        by_entity: dict[int, list[int]] = {}
        for listing, entity in enumerate(self.entity_of):
            by_entity.setdefault(entity, []).append(listing)
        return [listings for listings in by_entity.values() if len(listings) > 1]


def signatures(catalog: ToolCatalog) -> list[tuple[str, ...]]:
    """Per server its tool descriptions, white space unified, sorted; what makes two listings one server."""
    listed: list[list[str]] = [[] for _ in catalog.servers]
    for tool in catalog.tools:
        listed[tool.server].append(" ".join(tool.description.split()))
    return [tuple(sorted(descriptions)) for descriptions in listed]


def merge_catalogs(name: str, catalogs: Sequence[ToolCatalog]) -> Merged:
    """Join catalogues; listings with identical tool-description lists become one server. Listings without any described
    tool say nothing about what they are, and stay apart."""
    whole = concatenate(name, catalogs)
    entity: dict[tuple[str, ...], int] = {}
    entity_of: list[int] = []
    servers: list[Server] = []
    first = set[int]()
    for listing, (signature, new) in enumerate(zip(signatures(whole), whole.servers, strict=True)):
        if not any(signature) or signature not in entity:
            entity[signature] = len(servers)
            servers.append(new)
            first.add(listing)
        else:
            server = servers[entity[signature]]
            sources = tuple(dict.fromkeys([*server.sources, *new.sources]))
            aliases = tuple(dict.fromkeys([*server.aliases, new.name, *new.aliases]))
            tags = tuple(dict.fromkeys([*server.tags, *new.tags]))
            servers[entity[signature]] = replace(server, sources=sources, aliases=aliases, tags=tags)
        entity_of.append(entity[signature])
    tools = tuple(replace(tool, server=entity_of[tool.server]) for tool in whole.tools if tool.server in first)
    return Merged(ToolCatalog(name, tuple(servers), tools), tuple(entity_of))


def extend(name: str, base: ToolCatalog, other: ToolCatalog, *, against: ToolCatalog | None = None) -> ToolCatalog:
    """`base`, whose rows stay, with the tools of `other` behind it, except servers and tools that are there already.

    A server is known by its description list, a tool by its name and the start of its description.
    `against`: what `other` is compared with (default: `base`).
    """
    compared = against or base
    present = {signature for signature in signatures(compared) if any(signature)}
    tools = {_start(tool) for tool in compared.tools}
    fresh = [row for row, signature in enumerate(signatures(other)) if signature not in present]
    chosen, _ = other.subset(fresh)
    fresh_tools = tuple(tool for tool in chosen.tools if _start(tool) not in tools)
    return concatenate(name, [base, ToolCatalog(chosen.name, chosen.servers, fresh_tools)])


def _start(tool: Tool) -> tuple[str, str]:
    return tool.name, tool.description[:SAME_START]
