"""API-Bank (MCP-Zero, section 5.3 and Table 1): the called API among all 49, or among those of its dialogue.

Comparable with the paper's row "Q.Retrieval" in form: there the whole dialogue is the query. Chance in the domain pool
is 0.70 for first calls, since 97 of 212 have a pool of one API.

Systems ``reference_*`` read the descriptions as the reference scores did, two of 49 without a text; the others have 48
texts. The scores depend on single texts that much: no difference of a few hundredths is a finding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from study.data.dataset import FloatArray, IntArray
from study.tools import results
from study.tools.catalogues import apibank
from study.tools.catalogues.apibank import Call
from study.tools.catalogues.catalog import ToolCatalog
from study.tools.catalogues.queries import QuerySet, query_set, rank_all
from study.tools.discovery.index import Settings, ToolIndex
from study.tools.discovery.texts import last_tokens
from study.tools.results import Run

FORMS = ("dialogue_with_api_lines", "dialogue", "last_user", "last_two", "user_lines")
# Forms of the query for which reference scores in the wording of `all_apis.csv` exist.
REFERENCE_FORMS = ("dialogue_with_api_lines", "dialogue", "last_two")
MAJORITY = "GetUserToken"
# MiniLM reads 256 word pieces; this many from the end leave room for the special ones.
TAIL = 240
KS = (1, 3, 5)
SYSTEMS = {
    "discovery_desc": Settings(document="desc"),
    "discovery_name_desc": Settings(document="name_desc"),
    "bm25_desc": Settings("bm25", "desc"),
    "tfidf_desc": Settings("tfidf", "desc"),
    "hybrid_desc": Settings("hybrid", "desc"),
}


def query(call: Call, form: str) -> str:
    """What is asked before a call, in one of `FORMS`.

    Only the prompt with API lines, which is API-Bank's own, ends in its request for the next call.
    """
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
    return {
        "first": [row for row, call in enumerate(calls) if call.first],
        "later": [row for row, call in enumerate(calls) if not call.first],
    }


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
