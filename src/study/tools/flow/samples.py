"""Instructions with their calls, and the seen, unseen-tool and unseen-server splits (section 4.1).

Samples made from one call stay together, or the nearest training instruction would give the answer away. Each of the
twelve servers with instructions is held out once, in place of one random draw; so are tools and calls.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from study.advisor.retrieval.documents import ToolCatalog
from study.base.errors import require_one_of
from study.data.dataset import IntArray
from study.tools.collections import MAX_DEPTH, Loaded, same_value
from study.tools.flow.settings import Splits
from study.tools.queries import QuerySet, query_set

COLLECTION, MEASURES = "mcpflow", ("tool", "param", "ast")


@dataclass(frozen=True)
class Sample:
    """An instruction and the call that it asks for."""

    id: str  # unique in its collection
    text: str  # the instruction
    tool: int  # row of the tool in the catalogue
    server: int  # row of the tool's server
    arguments: Mapping[str, Any]  # of the call, by parameter name
    group: str  # samples that were made from one call share it, and never stand on both sides of a split


def load_samples(loaded: Loaded, name: str = "instructions") -> list[Sample]:
    """The queries of a set that ask for a call; a few of MCP-Flow's name a tool but no call."""
    catalog, calls = loaded.catalog, loaded.arguments
    rows = ((id_, text, tool, group) for id_, text, ((tool,),), group in loaded.queries[name].rows() if id_ in calls)
    return [Sample(id_, text, tool, catalog.tools[tool].server, calls[id_], group) for id_, text, tool, group in rows]


def as_queries(samples: Sequence[Sample]) -> QuerySet:
    """The samples as queries; the group of a sample names its call."""
    return query_set("instructions", ((one.id, one.text, ((one.tool,),), one.group) for one in samples))


def tool_key(catalog: ToolCatalog, tool: int) -> str:
    """The id of a tool in result files: server id and tool name."""
    return f"{catalog.servers[catalog.tools[tool].server].id}::{catalog.tools[tool].name}"


SPLIT_NAMES = ("seen", "unseen_tool", "unseen_server", "seen_ungrouped")


def folds(samples: Sequence[Sample], name: str, parts: Splits, seed: int) -> Iterator[tuple[IntArray, IntArray]]:
    """The turns of one split: rows to learn from and to test on; together the latter are every eligible sample once.
    `name`: one of `SPLIT_NAMES`; ``seen_ungrouped`` is the random split that lets siblings leak, for comparison only.
    """
    require_one_of(name, "split", SPLIT_NAMES)
    rng = np.random.default_rng([seed, SPLIT_NAMES.index(name)])
    if name == "unseen_server":
        part = pd.factorize(np.array([sample.server for sample in samples]))[0]
    elif name == "unseen_tool":
        part = _tools(samples, parts.tools, rng)
    else:  # units shuffled and dealt to parts in turn
        unit = np.arange(len(samples))
        if name == "seen":
            unit = pd.factorize(np.array([sample.group for sample in samples], dtype=object))[0]
        part = (rng.permutation(int(unit.max(initial=-1)) + 1) % parts.calls)[unit]
    for number in range(int(part.max(initial=-1)) + 1):
        train, test = np.flatnonzero(part != number), np.flatnonzero(part == number)
        if len(test) and len(train):
            yield train, test


def _tools(samples: Sequence[Sample], parts: int, rng: np.random.Generator) -> IntArray:
    """Tools dealt to parts server by server, so that a tool's server stays seen. Returns: part per sample, -1 for the
    only tool of a server, which is never held out."""
    by_server: dict[int, dict[int, None]] = {}
    for sample in samples:
        by_server.setdefault(sample.server, {})[sample.tool] = None
    part_of, start = dict[int, int](), 0
    for tools in by_server.values():
        several = len(tools) > 1
        for number, tool in enumerate(rng.permutation(list(tools)).tolist()):
            part_of[tool] = (start + number) % parts if several else -1
        start += len(tools) if several else 0
    return np.array([part_of[sample.tool] for sample in samples], dtype=np.int64)


def server_groups(owners: Sequence[int], number: int) -> dict[int, int]:
    """Servers dealt to groups, the one with the most instructions first, each to the smallest group so far."""
    counts = Counter(owners)
    sizes, group_of = [0] * number, dict[int, int]()
    for server in sorted(counts, key=lambda server: (-counts[server], server)):
        group_of[server] = sizes.index(min(sizes))
        sizes[group_of[server]] += counts[server]
    return group_of


class Call(NamedTuple):
    """A call of the tool in row `tool` of the catalogue."""

    tool: int
    arguments: Mapping[str, Any]


def measures(predicted: Call | None, sample: Sample) -> dict[str, float]:
    """Tool, Param and AST of one call, each 0 or 1; no call at all is wrong. Tool: the right tool. Param: and exactly
    the right parameter names, nested ones too, in any order. AST: and equal values, see `same_value`."""
    if predicted is None or predicted.tool != sample.tool:
        return {"tool": 0.0, "param": 0.0, "ast": 0.0}
    named = names(predicted.arguments) == names(sample.arguments)
    whole = named and same_value(dict(predicted.arguments), dict(sample.arguments))
    return {"tool": 1.0, "param": float(named), "ast": float(whole)}


def names(value: Any, depth: int = 0) -> Any:
    """The names of nested parameters without their values."""
    if isinstance(value, Mapping) and depth < MAX_DEPTH:
        return {str(name): names(inner, depth + 1) for name, inner in value.items()}
    return None
