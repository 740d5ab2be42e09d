"""MCP-Zero on published collections: API-Bank (section 5.3, Table 1) and the needle test (section 5.2, figures 4, 5).

API-Bank: the called API among all 49, or among those of its dialogue (97 of 212 first calls have one API there).
Systems ``reference_*`` read the descriptions as the reference scores did. Needle: one tool among 1 to 2,797, asked for
in its own words (`identity`, which only checks the plumbing) or in another catalogue's (`cross`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from study.advisor.retrieval.documents import ToolCatalog
from study.advisor.retrieval.index import Settings, ToolIndex
from study.advisor.retrieval.route import PAPER, Request, Router, Routing, combine
from study.advisor.retrieval.texts import definition_tokens, encoded
from study.data.dataset import FloatArray, IntArray
from study.evaluation.ranking import tie_order
from study.tools import results
from study.tools.collections import apibank
from study.tools.collections.apibank import Call
from study.tools.queries import QuerySet, query_set, rank_all
from study.tools.results import Run, Table

FORMS = ("dialogue_with_api_lines", "dialogue", "last_user", "last_two", "user_lines")
# Forms of the query for which reference scores in the wording of `all_apis.csv` exist.
REFERENCE_FORMS = ("dialogue_with_api_lines", "dialogue", "last_two")
MAJORITY = "GetUserToken"
# MiniLM reads 256 word pieces; this many from the end leave room for the special ones.
TAIL = 240
KS = (1, 3, 5)
PLAIN = re.compile(r"[^a-z0-9]+")
# Words of names that name no server.
FILLER = ("mcp", "server", "official")
SYSTEMS = {
    "discovery_desc": Settings(document="desc"),
    "discovery_name_desc": Settings(document="name_desc"),
    "bm25_desc": Settings("bm25", "desc"),
    "tfidf_desc": Settings("tfidf", "desc"),
    "hybrid_desc": Settings("hybrid", "desc"),
}


def name_key(name: str) -> str:
    """A server's name without the words that say that it is one; letters and digits only, in lower case."""
    return "".join(word for word in PLAIN.split(name.lower()) if word not in FILLER)


def last_tokens(texts: Sequence[str], limit: int) -> list[str]:
    """Each text's last `limit` tokens, cut where a token begins; short texts stay as they are."""
    return [text[tokens.offsets[-limit][0] :] if len(tokens.ids) > limit else text for text, tokens in encoded(texts)]


def query(call: Call, form: str) -> str:
    """What is asked before a call, in one of `FORMS`. Only the prompt with API lines, which is API-Bank's own, ends in
    its request for the next call."""
    if form == "last_user":
        return next((text for speaker, text in reversed(call.lines) if speaker == "User"), "")
    if form == "user_lines":
        return "\n".join(text for speaker, text in call.lines if speaker == "User")
    if form == "dialogue_with_api_lines":
        return "\n".join([*(f"{speaker}: {text}" for speaker, text in call.lines), "Generate API Request:"])
    lines = [f"{speaker}: {text}" for speaker, text in call.lines if speaker != "API"]
    return "\n".join(lines[-2:] if form == "last_two" else lines)


def dialogue_runs(catalog: ToolCatalog, folder: Path) -> Iterator[Run]:
    """Protocols ``full_first``, ``full_later``, ``domain_first`` and ``domain_later``; `folder`: of the raw files."""
    calls = apibank.calls(folder, catalog)
    pools = np.zeros((len(calls), len(catalog.tools)), dtype=bool)
    for row, call in enumerate(calls):
        pools[row, list(call.pool)] = True
    narrow = apibank.narrowly_read(folder, catalog)
    for form in FORMS:
        texts = [query(call, form) for call in calls]
        asked = {name: (catalog, chosen) for name, chosen in SYSTEMS.items()}
        if form in REFERENCE_FORMS:
            asked["reference"] = narrow, SYSTEMS["discovery_desc"]
        for name, (own, chosen) in asked.items():
            index = ToolIndex(own, chosen)
            facts: dict[str, Any] = {"form": form, **vars(chosen)}
            yield from by_part(f"{name}_{form}", index.scores(texts), pools, calls, own, texts, facts, index.order)
            if chosen.mode == "dense" and form.startswith("dialogue"):
                tails, facts = last_tokens(texts, TAIL), facts | {"tail": TAIL}
                yield from by_part(f"{name}_{form}_tail", index.scores(tails), pools, calls, own, tails, facts)
    texts = [query(call, "dialogue_with_api_lines") for call in calls]
    yield from chance_runs(pools, calls, catalog, texts)
    majority = np.full((len(calls), len(catalog.tools)), -np.inf, dtype=np.float32)
    majority[:, catalog.rows_by_name[MAJORITY][0]] = 1
    yield from by_part("majority", majority, pools, calls, catalog, texts, {})


def parts(calls: Sequence[Call]) -> dict[str, list[int]]:
    """Rows of the first calls of a dialogue (single turn) and of the later ones (multi turn)."""
    rows = range(len(calls))
    return {name: [row for row in rows if calls[row].first is (name == "first")] for name in ("first", "later")}


def queries_of(calls: Sequence[Call], texts: Sequence[str]) -> QuerySet:
    """The calls as queries; those of one dialogue share a group."""
    asked = zip(calls, texts, strict=True)
    return query_set("calls", ((call.id, text, ((call.tool,),), call.id.rpartition(":")[0]) for call, text in asked))


def by_pool(scores: FloatArray, pools: np.ndarray) -> dict[str, FloatArray]:
    """The scores in the full pool, and in the domain pool, where other APIs are not ranked; shapes (b, n_tools)."""
    return {"full": scores, "domain": np.where(pools, scores, np.float32(-np.inf))}


def by_part(
    name: str,
    scores: FloatArray,
    pools: np.ndarray,
    calls: Sequence[Call],
    catalog: ToolCatalog,
    texts: Sequence[str],
    config: dict[str, Any],
    order: IntArray | None = None,
) -> Iterator[Run]:
    """A system in both pools, for first and later calls; `order`: of APIs of one score, as in `rank_all`."""
    queries = queries_of(calls, texts)
    for pool, matrix in by_pool(scores, pools).items():
        ranked = rank_all(matrix, order=order)
        for part, rows in parts(calls).items():
            own = queries.take(rows)
            table = results.measure(ranked[rows], own, len(catalog.tools), ks=KS)
            yield Run(f"{pool}_{part}", name, table, (catalog, own), {"config": config})


def chance_runs(pools: np.ndarray, calls: Sequence[Call], catalog: ToolCatalog, texts: Sequence[str]) -> Iterator[Run]:
    """The expected hit rate of a random order: min(k, pool) / pool."""
    queries = queries_of(calls, texts)
    for pool, sizes in {"full": np.full(len(calls), pools.shape[1]), "domain": pools.sum(axis=1)}.items():
        for part, rows in parts(calls).items():
            own = queries.take(rows)
            values = {f"hit_rate@{k}": np.minimum(k, sizes[rows]) / sizes[rows] for k in KS}
            table = pd.DataFrame({"task_id": own.ids, "seed": results.SEED} | values)
            yield Run(f"{pool}_{part}", "chance", table, (catalog, own), {"config": {}})


POSITIONS, SIZES = 21, 50
ROUTING = replace(PAPER, document="desc")
FLAT = Routing(score="tool", document="desc")
# How many servers stay, and whether a server's name is part of its text.
VARIANTS = {
    f"mcp_zero_{cut or 'all'}_servers{'_named' * named}": replace(ROUTING, servers=cut, named=named)
    for named in (False, True)
    for cut in (1, 3, 5, 10, 20, None)
}
VARIANTS = {"mcp_zero" if own == ROUTING else name: own for name, own in VARIANTS.items()}
# Two descriptions of one tool that agree in more than this share of their letters are one text, edited.
COPIED = 0.85
COMPARED = 2_000  # characters; the comparison takes quadratic time
CROSS_SIZES = (10, 30, 100, 300, 1000)


def grid(n_tools: int) -> list[tuple[int, int]]:
    """The distinct (size, index of the target) pairs of 21 positions by 50 sizes on a logarithmic scale, as in the
    released program; 755 for 2,797 tools."""
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


def points(catalog: ToolCatalog) -> tuple[list[Point], dict[int, IntArray]]:
    """The grid's trials, and the sample of every size."""
    chosen = grid(len(catalog.tools))
    rng = np.random.default_rng(results.SEED)
    samples = {size: sample(catalog, size, rng) for size in sorted({size for size, _ in chosen})}
    return [Point(size, int(samples[size][index])) for size, index in chosen], samples


def offer(sample: IntArray, target: int) -> IntArray:
    """The sampled tools, with the target in the place of one of them where it was not drawn, so that the size stays."""
    return sample if target in sample else np.append(sample[1:], target)


def first_choice(
    servers: FloatArray, tools: FloatArray, offered: IntArray, catalog: ToolCatalog, routing: Routing, order: IntArray
) -> int:
    """The best tool among those on offer. `servers`, `tools`: the request's cosines with all servers and tools, shapes
    (n_servers,), (n_tools,). `order`: in which equal tools are taken."""
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
    return needle_runs("needle_identity", catalog, trials, samples, requests, {"mcp_zero": ROUTING})


def cross_runs(catalog: ToolCatalog, others: Sequence[ToolCatalog]) -> Iterator[Run | Table]:
    """Protocol ``needle_cross``: every tool with foreign words, at every sample size, the target always on offer."""
    found, rng = pairs(catalog, others), np.random.default_rng(results.SEED)
    samples = {size: sample(catalog, size, rng) for size in (*CROSS_SIZES, len(catalog.tools))}
    trials = [Point(size, row) for size in samples for row, _ in found]
    return needle_runs("needle_cross", catalog, trials, samples, dict(found), VARIANTS)


def needle_runs(
    protocol: str,
    catalog: ToolCatalog,
    trials: Sequence[Point],
    samples: dict[int, IntArray],
    requests: dict[int, Request],
    systems: Mapping[str, Routing],
) -> Iterator[Run | Table]:
    """Every trial with every routing, and without the server stage (flat); and the table by size."""
    systems = {**systems, "flat": FLAT}
    rows = list(requests)
    place = {row: number for number, row in enumerate(rows)}
    asked_of = {
        own.named: Router(catalog, own).similarities([requests[row] for row in rows]) for own in systems.values()
    }
    order, sizes = tie_order(len(catalog.tools), results.SEED), definition_tokens(catalog)
    asked, lines = trials_as_queries(trials, requests), []
    for name, routing in systems.items():
        hits, (servers, tools) = [], asked_of[routing.named]
        for size, target in trials:
            offered = offer(samples[size], target)
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
    table = grouped.size().to_frame("trials").assign(accuracy=grouped["hit"].mean())
    table["tokens_per_success"] = (grouped["tokens"].sum() / hits).where(hits > 0)
    return table.assign(tokens_all_in_prompt=grouped["tokens_of_all"].mean()).reset_index()
