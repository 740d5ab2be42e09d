"""The needle test (MCP-Zero, section 5.2, figures 4 and 5): one tool to be found among 1 to 2,797.

Grid and sampling follow the released program: 21 positions by 50 sizes on a logarithmic scale, repeats removed, one
sample of tools per size, regrouped by server. A request in the target's own words (`identity`) only checks the
plumbing; a request in another catalogue's words for the same tool (`cross`) is the test.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from difflib import SequenceMatcher
from typing import NamedTuple

import numpy as np
import pandas as pd

from study.data.dataset import FloatArray, IntArray
from study.evaluation.ranking import tie_order
from study.tools import results
from study.tools.catalogues.catalog import ToolCatalog
from study.tools.catalogues.merge import PLAIN, name_key
from study.tools.catalogues.queries import QuerySet, query_set
from study.tools.discovery.texts import definition_tokens
from study.tools.mcp_zero.routing import Request, Router, Routing, combine
from study.tools.results import Run, Table

POSITIONS, SIZES = 21, 50
ROUTING = Routing(document="desc")
# Two descriptions of one tool that agree in more than this share of their letters are one text, edited.
COPIED = 0.85
COMPARED = 2_000  # characters; the comparison takes quadratic time
CROSS_SIZES = (10, 30, 100, 300, 1000)


def grid(n_tools: int) -> list[tuple[int, int]]:
    """The distinct (size, index of the target) pairs of 21 positions by 50 sizes; 755 for 2,797 tools."""
    sizes = np.unique(np.round(np.logspace(0, np.log10(n_tools), SIZES)).astype(int))
    ratios = np.linspace(0, 1, POSITIONS)
    return sorted({(int(size), int((size - 1) * ratio)) for size in sizes for ratio in ratios})


class Point(NamedTuple):
    """One trial: the tools on offer (as a key of the samples), and the target's row."""

    size: int
    target: int


def sample(catalog: ToolCatalog, size: int, rng: np.random.Generator) -> IntArray:
    """Tools drawn without repeats, regrouped by server in the order of first draw; all of them as listed."""
    if size >= len(catalog.tools):
        return np.arange(len(catalog.tools), dtype=np.int64)
    drawn = rng.choice(len(catalog.tools), size=size, replace=False)
    _, first, group = np.unique(catalog.server_of[drawn], return_index=True, return_inverse=True)
    return drawn[np.argsort(first[group], kind="stable")].astype(np.int64)


def points(catalog: ToolCatalog, seed: int = results.SEED) -> tuple[list[Point], dict[int, IntArray]]:
    """The grid's trials, and the sample of every size."""
    chosen = grid(len(catalog.tools))
    rng = np.random.default_rng(seed)
    samples = {size: sample(catalog, size, rng) for size in sorted({size for size, _ in chosen})}
    return [Point(size, int(samples[size][index])) for size, index in chosen], samples


def first_choice(
    servers: FloatArray, tools: FloatArray, offered: IntArray, catalog: ToolCatalog, routing: Routing, order: IntArray
) -> int:
    """The best tool among those on offer.

    `servers`, `tools`: the request's cosines with all servers and tools, shapes (n_servers,), (n_tools,). `order`: in
    which equal tools are taken.
    """
    present = np.zeros(len(catalog.servers), dtype=bool)
    present[catalog.server_of[offered]] = True
    masked = np.where(present, servers, np.float32(-np.inf))
    scores = np.full(len(tools), -np.inf, dtype=np.float32)
    scores[offered] = combine(masked[None], tools[None], catalog.server_of, routing)[0, offered]
    return int(order[np.argmax(scores[order])])


def same_tool(catalog: ToolCatalog, left: int, right: int) -> bool:
    """Equal server name and tool name, as the released program judges."""
    a, b = catalog.tools[left], catalog.tools[right]
    return a.name == b.name and catalog.servers[a.server].name == catalog.servers[b.server].name


def pairs(catalog: ToolCatalog, others: Sequence[ToolCatalog]) -> list[tuple[int, Request]]:
    """Tools that another catalogue lists too, under the same server and tool name but in words written apart.

    Returns: (row, request made of the other catalogue's server and tool text), the first match of each tool; where the
    other catalogue has no text of the server, its name stands in.
    """
    known: dict[tuple[str, str], list[Request]] = {}
    for other in others:
        for tool in other.tools:
            server = other.servers[tool.server]
            if tool.description.strip():
                key = (name_key(server.name), _plain(tool.name))
                text = server.description if server.description.strip() else server.name
                known.setdefault(key, []).append(Request(text, tool.description))
    found = []
    for row, tool in enumerate(catalog.tools):
        key = (name_key(catalog.servers[tool.server].name), _plain(tool.name))
        written = (request for request in known.get(key, ()) if independent(tool.description, request.tool))
        if match := next(written, None):
            found.append((row, match))
    return found


def independent(left: str, right: str) -> bool:
    """Whether two descriptions are no near-copies: at most `COPIED` of their letters and digits match in order."""
    a, b = _plain(left)[:COMPARED], _plain(right)[:COMPARED]
    return a != b and SequenceMatcher(None, a, b, autojunk=False).ratio() <= COPIED


def _plain(text: str) -> str:
    return PLAIN.sub("", text.lower())


def identity_runs(catalog: ToolCatalog) -> Iterator[Run | Table]:
    """Protocol ``needle_identity`` of MCP-tools: hit rate at 1 and tokens handed over per size (figures 4 and 5)."""
    trials, samples = points(catalog)
    requests = {}
    for row in sorted({trial.target for trial in trials}):
        tool = catalog.tools[row]
        requests[row] = Request(catalog.servers[tool.server].description, tool.description)
    return needle_runs("needle_identity", catalog, trials, samples, requests)


def cross_runs(catalog: ToolCatalog, others: Sequence[ToolCatalog]) -> Iterator[Run | Table]:
    """Protocol ``needle_cross``: every tool with foreign words, at every sample size, the target always on offer."""
    found, rng = pairs(catalog, others), np.random.default_rng(results.SEED)
    samples = {size: sample(catalog, size, rng) for size in (*CROSS_SIZES, len(catalog.tools))}
    trials = [Point(size, row) for size in samples for row, _ in found]
    return needle_runs("needle_cross", catalog, trials, samples, dict(found))


def needle_runs(
    protocol: str,
    catalog: ToolCatalog,
    trials: Sequence[Point],
    samples: dict[int, IntArray],
    requests: dict[int, Request],
) -> Iterator[Run | Table]:
    """Every trial with the paper's routing, and without the server stage (flat); and the table by size."""
    rows = list(requests)
    place = {row: number for number, row in enumerate(rows)}
    servers, tools = Router(catalog, ROUTING).similarities([requests[row] for row in rows])
    order, sizes = tie_order(len(catalog.tools), results.SEED), definition_tokens(catalog)
    asked, lines = trials_as_queries(trials, requests), []
    for name, routing in {"mcp_zero": ROUTING, "flat": Routing(None, score="tool", document="desc")}.items():
        hits = []
        for size, target in trials:
            offered = samples[size]
            if target not in offered:
                # The target takes the place of one sampled tool, so that the size stays.
                offered = np.append(offered[1:], target)
            number = place[target]
            chosen = first_choice(servers[number], tools[number], offered, catalog, routing, order)
            hits.append(same_tool(catalog, chosen, target))
            lines.append((name, size, hits[-1], int(sizes[chosen]), int(sizes[offered].sum())))
        table = pd.DataFrame({"task_id": asked.ids, "seed": results.SEED, "hit_rate@1": np.array(hits, dtype=float)})
        yield Run(protocol, name, table, (catalog, asked), {"targets": len(rows), "config": asdict(routing)})
    yield Table(protocol, by_size(pd.DataFrame(lines, columns=["system", "size", "hit", "tokens", "tokens_of_all"])))


def trials_as_queries(trials: Sequence[Point], requests: dict[int, Request]) -> QuerySet:
    """The trials as queries; those of one target share a group, whatever the size of the offer."""
    texts = {target: f"{request.server}\n{request.tool}" for target, request in requests.items()}
    rows = ((f"{size}:{target}", texts[target], ((target,),), str(target)) for size, target in trials)
    return query_set("trials", rows)


def by_size(trials: pd.DataFrame) -> pd.DataFrame:
    """Per system and size: accuracy, tokens per successful retrieval, and the same with all schemas in the prompt."""
    grouped = trials.groupby(["system", "size"], sort=False)
    hits = grouped["hit"].sum()
    table = pd.DataFrame(
        {
            "trials": grouped.size(),
            "accuracy": grouped["hit"].mean(),
            "tokens_per_success": (grouped["tokens"].sum() / hits).where(hits > 0),
            "tokens_all_in_prompt": grouped["tokens_of_all"].mean(),
        }
    )
    return table.reset_index()
