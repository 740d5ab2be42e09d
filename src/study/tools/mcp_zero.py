"""MCP-Zero on published collections: the requests that LiveMCPBench's agent wrote (the main test here), API-Bank
(section 5.3, Table 1) and the needle test (section 5.2, figures 4, 5).

Requests: the unit is the task; the tools of all its requests together are what the agent was handed. API-Bank: the
called API among all 49, or among those of its dialogue (97 of 212 first calls have one API there); systems
``reference_*`` read the descriptions as the reference scores did. Needle: one tool among 1 to 2,797, asked for in its
own words (`identity`, which only checks the plumbing) or in another catalogue's (`cross`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from study.advisor.retrieval.documents import ToolCatalog
from study.advisor.retrieval.index import Settings, ToolIndex
from study.advisor.retrieval.route import PAPER, Request, Router, Routing, combine, count_malformed, parse_requests
from study.advisor.retrieval.texts import definition_tokens, encoded
from study.data.dataset import FloatArray, IntArray
from study.evaluation.ranking import tie_order
from study.tools import results
from study.tools.collections import OTHER, ApiCall, Episode, api_calls, letters, narrowly_read
from study.tools.discovery import Handed, hand_over, union
from study.tools.queries import QuerySet, query_set, rank_all
from study.tools.results import Inputs, Run, Table

TOP = (1, 3, 5)  # tools that a request brings
REQUESTS = {"mcp_zero": PAPER}
REQUESTS |= {f"mcp_zero_{kind}": replace(PAPER, matching=kind) for kind in ("description", "summary")}
REQUESTS |= {f"mcp_zero_{n}_server{'s' * (n > 1)}": replace(PAPER, servers=n) for n in (1, 3, 10, 20)}
REQUESTS |= {"mcp_zero_all_servers": replace(PAPER, servers=None), "mcp_zero_named": replace(PAPER, named=True)}
REQUESTS |= {"mcp_zero_default": Routing()}
REQUESTS |= {f"mcp_zero_{score}": replace(PAPER, score=score) for score in ("product", "tool", "sum")}


def query_runs(inputs: Inputs, routings: Mapping[str, Routing] = REQUESTS) -> Iterator[Run]:
    """The raw query in both fields of the request, protocol ``query``: the server stage without an agent."""
    for name, routing in routings.items():
        router = Router(inputs[0], routing)

        def scores(texts: Sequence[str], router: Router = router) -> FloatArray:
            return router.scores([Request(text, text) for text in texts])

        yield results.ranking_run("query", f"{name}_query", inputs, scores, config=asdict(routing))


def requests_of(episodes: Sequence[Episode], tasks: Sequence[str]) -> tuple[list[Request], list[int], int]:
    """The well-formed requests of the tasks in order, the place of the task of each, and how many blocks were bad."""
    texts = {episode.task: [route.text for route in episode.routes] for episode in episodes}
    replies = [(place, text) for place, task in enumerate(tasks) for text in texts[task]]
    found = [(request, place) for place, text in replies for request in parse_requests(text)]
    malformed = sum(count_malformed(text) for _, text in replies)
    return [request for request, _ in found], [place for _, place in found], malformed


def same_number(scores: FloatArray, budget: Handed) -> Handed:
    """As many tools per task as `budget` hands over, from one ranking per task."""
    ranked = rank_all(scores, max(len(rows) for sets in budget.values() for rows in sets))
    return {
        k: [union([row], len(tools)) for row, tools in zip(ranked, sets, strict=True)] for k, sets in budget.items()
    }


def request_runs(inputs: Inputs, episodes: Sequence[Episode]) -> Iterator[Run | Table]:
    """Protocol ``request`` of LiveMCPBench, and its table requests.csv (tools and tokens handed over)."""
    catalog, queries = inputs
    requests, owner, malformed = requests_of(episodes, queries.ids)
    sizes, lines, counts = definition_tokens(catalog), [], {"requests": len(requests), "malformed": malformed}
    for name, handed in handed_tools(inputs, episodes, requests, owner).items():
        table = results.measure_sets(handed, queries, len(catalog.tools))
        config = asdict(REQUESTS[name]) if name in REQUESTS else {}
        yield Run("request", name, table, inputs, {"config": config} | counts)
        for k, sets in handed.items():
            tokens, recall = np.array([sizes[rows].sum() for rows in sets]), table[f"recall@{k}"]
            hits = table[f"hit_rate@{k}"].sum()
            line = {"system": name, "k": k, "mean_tools": np.mean([len(rows) for rows in sets])}
            line |= {"recall": recall.mean(), "hit_rate": hits / len(sets), "completeness": recall.eq(1).mean()}
            line |= {"mean_tokens": tokens.mean(), "tokens_per_hit": tokens.sum() / hits if hits else np.nan}
            lines.append(line | {"token_reduction": 1 - tokens.mean() / sizes.sum()})
    yield Table("requests", pd.DataFrame(lines))


def handed_tools(
    inputs: Inputs, episodes: Sequence[Episode], requests: Sequence[Request], owner: list[int]
) -> dict[str, Handed]:
    """What every system hands over; `requests`, `owner`: from `requests_of`."""
    (catalog, queries), n = inputs, len(inputs[1])
    first = np.flatnonzero(np.diff(owner, prepend=-1))
    systems: dict[str, Handed] = {}
    for name, routing in REQUESTS.items():
        scores = Router(catalog, routing).scores(requests)
        systems[name] = hand_over(scores, owner, n, TOP)
        if name == "mcp_zero":
            systems["mcp_zero_first"] = hand_over(scores[first], [owner[row] for row in first], n, TOP)
    dense, words = ToolIndex(catalog, Settings(document="name_desc")), ToolIndex(catalog, Settings("bm25", "server"))
    both = [" ".join(request) for request in requests]
    systems["requests_flat"] = hand_over(dense.scores(both), owner, n, TOP)
    systems["requests_flat_tool"] = hand_over(dense.scores([request.tool for request in requests]), owner, n, TOP)
    systems["requests_bm25"] = hand_over(words.scores(both), owner, n, TOP)
    returned = {
        episode.task: [np.array(route.returned) for route in episode.routes if parse_requests(route.text)]
        for episode in episodes
    }
    systems["recorded"] = {3: [union(returned[task], 3) for task in queries.ids]}
    systems["recorded_first"] = {3: [union(returned[task][:1], 3) for task in queries.ids]}
    routed = Router(catalog, PAPER).scores([Request(text, text) for text in queries.texts])
    for name, scores in {"query_flat": dense.scores(queries.texts), "query_routed": routed}.items():
        systems[name] = hand_over(scores, range(n), n, TOP)
        # As many as the recorded router brought; MCP-Zero's own requests bring 6.6 tools instead of its 6.8.
        systems[f"{name}_same_number"] = same_number(scores, systems["recorded"])
    return systems


@dataclass(frozen=True)
class Asks:
    """What a recommender is asked."""

    queries: QuerySet  # texts and labels; their groups are task ids
    episode: IntArray  # the row of the log that each belongs to, shape (len(queries),)
    selected: tuple[tuple[int, ...], ...]  # the tools that the agent ran for it
    returned: IntArray  # what the recorded router answered with, shape (len(queries), width), -1 where unfilled


def followed_requests(episodes: Sequence[Episode]) -> Asks:
    """The agent's requests that were followed by a known tool; the label is the first tool that it then ran."""
    followed = []
    for row, episode in enumerate(episodes):
        for number, route in enumerate(episode.routes, start=1):
            ran = next((run.tool for run in episode.executions if run.after == number), None)
            if ran is not None and (blocks := parse_requests(route.text)):
                query = f"{episode.task}:{number}", " ".join(blocks[0]), ((ran,),), episode.task
                followed.append((query, row, (ran,), route.returned))
    queries, rows, selected, returned = zip(*followed, strict=True)
    return Asks(query_set("requests", queries), np.array(rows), selected, results.padded(returned))


FORMS = ("dialogue_with_api_lines", "dialogue", "last_user", "last_two", "user_lines")
# Forms of the query for which reference scores in the wording of `all_apis.csv` exist.
REFERENCE_FORMS = ("dialogue_with_api_lines", "dialogue", "last_two")
MAJORITY = "GetUserToken"
# MiniLM reads 256 word pieces; this many from the end leave room for the special ones.
TAIL = 240
KS = (1, 3, 5)
PARTS = {"first": True, "later": False}  # single turn: no call precedes it in the dialogue; multi turn
DIALOGUE_SYSTEMS = {f"{name}_desc": Settings(name, "desc") for name in ("bm25", "tfidf", "hybrid")}
DIALOGUE_SYSTEMS |= {f"discovery_{document}": Settings(document=document) for document in ("desc", "name_desc")}


def last_tokens(texts: Sequence[str], limit: int) -> list[str]:
    """Each text's last `limit` tokens, cut where a token begins; short texts stay as they are."""
    return [text[tokens.offsets[-limit][0] :] if len(tokens.ids) > limit else text for text, tokens in encoded(texts)]


def query(call: ApiCall, form: str) -> str:
    """What is asked before a call, in one of `FORMS`. Only the prompt with API lines, which is API-Bank's own, ends in
    its request for the next call."""
    users = [text for speaker, text in call.lines if speaker == "User"]
    if form in ("last_user", "user_lines"):
        return "\n".join(users[-1:] if form == "last_user" else users)
    if form == "dialogue_with_api_lines":
        return "\n".join([*(f"{speaker}: {text}" for speaker, text in call.lines), "Generate API Request:"])
    lines = [f"{speaker}: {text}" for speaker, text in call.lines if speaker != "API"]
    return "\n".join(lines[-2:] if form == "last_two" else lines)


def dialogue_runs(catalog: ToolCatalog, folder: Path) -> Iterator[Run]:
    """Protocols ``full_first``, ``full_later``, ``domain_first`` and ``domain_later``; `folder`: of the raw files."""
    calls, narrow, n_tools = api_calls(folder, catalog), narrowly_read(folder, catalog), len(catalog.tools)

    def measured(scores: FloatArray, queries: QuerySet, order: IntArray | None = None) -> dict[str, pd.DataFrame]:
        ranked = by_pool(scores, calls, order)
        return {pool: results.measure(ranking, queries, n_tools, ks=KS) for pool, ranking in ranked.items()}

    for form in FORMS:
        texts = [query(call, form) for call in calls]
        systems = {name: (catalog, chosen) for name, chosen in DIALOGUE_SYSTEMS.items()}
        if form in REFERENCE_FORMS:
            systems["reference"] = narrow, DIALOGUE_SYSTEMS["discovery_desc"]
        for name, (searched, chosen) in systems.items():
            index, config = ToolIndex(searched, chosen), {"form": form, **vars(chosen)}
            versions: list[tuple[str, list[str], dict[str, Any], IntArray | None]]
            versions = [(f"{name}_{form}", texts, config, index.order)]
            if chosen.mode == "dense" and form.startswith("dialogue"):
                versions.append((f"{name}_{form}_tail", last_tokens(texts, TAIL), config | {"tail": TAIL}, None))
            for title, written, facts, order in versions:
                queries = queries_of(calls, written)
                tables = measured(index.scores(written), queries, order)
                yield from by_part(title, tables, calls, (searched, queries), lambda *_, saved=facts: {"config": saved})
    queries = queries_of(calls, [query(call, "dialogue_with_api_lines") for call in calls])
    majority = np.full((len(calls), n_tools), -np.inf, dtype=np.float32)
    majority[:, catalog.rows_by_name[MAJORITY][0]] = 1
    yield from by_part("majority", measured(majority, queries), calls, (catalog, queries))
    # A random order hits with the probability min(k, pool) / pool.
    sizes = {"full": np.full(len(calls), n_tools), "domain": np.array([len(call.pool) for call in calls])}
    hits = {pool: {f"hit_rate@{k}": np.minimum(k, size) / size for k in KS} for pool, size in sizes.items()}
    tables = {pool: results.table_of(queries, **values) for pool, values in hits.items()}
    yield from by_part("chance", tables, calls, (catalog, queries))


def queries_of(calls: Sequence[ApiCall], texts: Sequence[str]) -> QuerySet:
    """The calls as queries; those of one dialogue share a group."""
    rows = zip(calls, texts, strict=True)
    return query_set("calls", ((call.id, text, ((call.tool,),), call.id.rpartition(":")[0]) for call, text in rows))


def by_pool(scores: FloatArray, calls: Sequence[ApiCall], order: IntArray | None = None) -> dict[str, IntArray]:
    """Rankings in the full pool, and in the domain pool, where other APIs are not ranked; shapes (b, n_tools). `order`:
    of APIs of one score, as in `rank_all`."""
    inside = np.array([np.isin(np.arange(scores.shape[1]), call.pool) for call in calls])
    domain = np.where(inside, scores, np.float32(-np.inf))
    return {"full": rank_all(scores, order=order), "domain": rank_all(domain, order=order)}


def by_part(
    name: str,
    tables: Mapping[str, pd.DataFrame],
    calls: Sequence[ApiCall],
    inputs: Inputs,
    facts: Callable[[str, list[int]], Mapping[str, Any]] = lambda *_: {"config": {}},
) -> Iterator[Run]:
    """A system's runs for first and later calls; `tables`: per call, by pool. `facts`: of a pool and rows of the calls,
    for the record."""
    for pool, table in tables.items():
        for part, first in PARTS.items():
            rows = [row for row, call in enumerate(calls) if call.first is first]
            part_inputs = inputs[0], inputs[1].take(rows)
            yield Run(f"{pool}_{part}", name, table.iloc[rows].reset_index(drop=True), part_inputs, facts(pool, rows))


POSITIONS, SIZES = 21, 50
# Words of names that name no server.
FILLER = ("mcp", "server", "official")
ROUTING = replace(PAPER, document="desc")
FLAT = Routing(score="tool", document="desc")
# How many servers stay, and whether a server's name is part of its text.
NEEDLE_SYSTEMS = {
    f"mcp_zero_{cut or 'all'}_servers{'_named' * named}": replace(ROUTING, servers=cut, named=named)
    for named in (False, True)
    for cut in (1, 3, 5, 10, 20, None)
}
NEEDLE_SYSTEMS = {"mcp_zero" if routing == ROUTING else name: routing for name, routing in NEEDLE_SYSTEMS.items()}
# Two descriptions of one tool that agree in more than this share of their letters are one text, edited.
COPIED = 0.85
COMPARED = 2_000  # characters; the comparison takes quadratic time
CROSS_SIZES = (10, 30, 100, 300, 1000)
Trial = tuple[int, int]  # how many tools are on offer, and the target's row


def name_key(name: str) -> str:
    """A server's name without the words that say that it is one; letters and digits only, in lower case."""
    return "".join(word for word in OTHER.split(name.lower()) if word not in FILLER)


def grid(n_tools: int) -> list[tuple[int, int]]:
    """The distinct (size, index of the target) pairs of 21 positions by 50 sizes on a logarithmic scale, as in the
    released program; 755 for 2,797 tools."""
    sizes = np.unique(np.round(np.logspace(0, np.log10(n_tools), SIZES)).astype(int))
    ratios = np.linspace(0, 1, POSITIONS)
    return sorted({(int(size), int((size - 1) * ratio)) for size in sizes for ratio in ratios})


def sample(catalog: ToolCatalog, size: int, rng: np.random.Generator) -> IntArray:
    """Tools sampled without repeats, regrouped by server in the order of the first; all of them as listed."""
    if size >= len(catalog.tools):
        return np.arange(len(catalog.tools), dtype=np.int64)
    rows = rng.choice(len(catalog.tools), size=size, replace=False)
    _, first, group = np.unique(catalog.server_of[rows], return_index=True, return_inverse=True)
    return rows[np.argsort(first[group], kind="stable")].astype(np.int64)


def offer(sample: IntArray, target: int) -> IntArray:
    """The sampled tools, with the target in the place of one of them where it is not among them; the size stays."""
    return sample if target in sample else np.append(sample[1:], target)


def first_choice(
    servers: FloatArray, tools: FloatArray, offered: IntArray, catalog: ToolCatalog, routing: Routing, order: IntArray
) -> int:
    """The best tool among those on offer. `servers`, `tools`: the request's cosines with all servers and tools, shapes
    (n_servers,), (n_tools,). `order`: in which equal tools are taken."""
    present = np.isin(np.arange(len(servers)), catalog.server_of[offered])
    masked = np.where(present, servers, np.float32(-np.inf))
    scores = np.full(len(tools), -np.inf, dtype=np.float32)
    scores[offered] = combine(masked[None], tools[None], catalog.server_of, routing)[0, offered]
    return int(order[np.argmax(scores[order])])


def pairs(catalog: ToolCatalog, others: Sequence[ToolCatalog]) -> dict[int, Request]:
    """Tools that another catalogue lists too, under the same server and tool name but in words written apart.

    Returns: by row the request made of the other catalogue's server and tool text, the first match of each tool; where
    the other catalogue has no text of the server, its name stands in.
    """

    def key(owner: ToolCatalog, row: int) -> tuple[str, str]:
        tool = owner.tools[row]
        return name_key(owner.servers[tool.server].name), letters(tool.name)

    requests_of: dict[tuple[str, str], list[Request]] = {}
    for other in others:
        for row, tool in enumerate(other.tools):
            if tool.description.strip():
                server = other.servers[tool.server]
                text = server.description if server.description.strip() else server.name
                requests_of.setdefault(key(other, row), []).append(Request(text, tool.description))
    matches = {}
    for row, tool in enumerate(catalog.tools):
        for request in requests_of.get(key(catalog, row), ()):
            if independent(tool.description, request.tool):
                matches[row] = request
                break
    return matches


def independent(left: str, right: str) -> bool:
    """Whether two descriptions are no near-copies: at most `COPIED` of their letters and digits match in order."""
    a, b = letters(left)[:COMPARED], letters(right)[:COMPARED]
    return a != b and SequenceMatcher(None, a, b, autojunk=False).ratio() <= COPIED


def names(catalog: ToolCatalog) -> list[tuple[str, str]]:
    """Of each tool its server's name and its own; tools equal in both are one, as the released program judges."""
    return [(catalog.servers[tool.server].name, tool.name) for tool in catalog.tools]


def identity_runs(catalog: ToolCatalog) -> Iterator[Run | Table]:
    """Protocol ``needle_identity`` of MCP-tools: hit rate at 1 and tokens handed over per size (figures 4 and 5)."""
    chosen, rng = grid(len(catalog.tools)), np.random.default_rng(results.SEED)
    samples = {size: sample(catalog, size, rng) for size in sorted({size for size, _ in chosen})}
    trials = [(size, int(samples[size][index])) for size, index in chosen]
    requests = {}
    for row in sorted({target for _, target in trials}):
        tool = catalog.tools[row]
        requests[row] = Request(catalog.servers[tool.server].description, tool.description)
    return needle_runs("needle_identity", catalog, trials, samples, requests, {"mcp_zero": ROUTING})


def cross_runs(catalog: ToolCatalog, others: Sequence[ToolCatalog]) -> Iterator[Run | Table]:
    """Protocol ``needle_cross``: every tool with foreign words, at every sample size, the target always on offer."""
    requests, rng = pairs(catalog, others), np.random.default_rng(results.SEED)
    samples = {size: sample(catalog, size, rng) for size in (*CROSS_SIZES, len(catalog.tools))}
    trials = [(size, row) for size in samples for row in requests]
    return needle_runs("needle_cross", catalog, trials, samples, requests, NEEDLE_SYSTEMS)


def needle_runs(
    protocol: str,
    catalog: ToolCatalog,
    trials: Sequence[Trial],
    samples: Mapping[int, IntArray],
    requests: Mapping[int, Request],
    systems: Mapping[str, Routing],
) -> Iterator[Run | Table]:
    """Every trial with every routing, and without the server stage (flat); and the table by size: accuracy, tokens per
    successful retrieval, and the same with all schemas in the prompt. `requests`: by target."""
    systems = {**systems, "flat": FLAT}
    row_of = {row: number for number, row in enumerate(requests)}
    cosines = {how.named: Router(catalog, how).similarities([*requests.values()]) for how in systems.values()}
    order, sizes = tie_order(len(catalog.tools), results.SEED), definition_tokens(catalog)
    texts = {target: f"{request.server}\n{request.tool}" for target, request in requests.items()}
    # The trials of one target share a group, whatever the size of the offer.
    rows = ((f"{size}:{target}", texts[target], ((target,),), str(target)) for size, target in trials)
    queries, lines = query_set("trials", rows), []
    named = names(catalog)
    for name, routing in systems.items():
        hits, (servers, tools) = [], cosines[routing.named]
        for size, target in trials:
            offered, row = offer(samples[size], target), row_of[target]
            chosen = first_choice(servers[row], tools[row], offered, catalog, routing, order)
            hits.append(named[chosen] == named[target])
            lines.append((name, size, hits[-1], int(sizes[chosen]), int(sizes[offered].sum())))
        table, facts = results.table_of(queries, **{"hit_rate@1": hits}), {"targets": len(requests)}
        yield Run(protocol, name, table, (catalog, queries), facts | {"config": asdict(routing)})
    table = pd.DataFrame(lines, columns=["system", "size", "hit", "tokens", "tokens_of_all"])
    grouped = table.groupby(["system", "size"], sort=False)
    right = grouped["hit"].sum()
    table = grouped.size().to_frame("trials").assign(accuracy=grouped["hit"].mean())
    table["tokens_per_success"] = (grouped["tokens"].sum() / right).where(right > 0)
    yield Table(protocol, table.assign(tokens_all_in_prompt=grouped["tokens_of_all"].mean()).reset_index())
