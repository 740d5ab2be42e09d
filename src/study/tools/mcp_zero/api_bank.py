"""API-Bank (MCP-Zero, section 5.3 and Table 1): the called API among all 49, or among those of its dialogue.

Comparable with the paper's row "Q.Retrieval" in form: there the whole dialogue is the query. Chance in the domain pool
is 0.70 for first calls, since 97 of 212 have a pool of one API.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from study import paths
from study.data.dataset import FloatArray
from study.evaluation.ranking import tie_order, top_k
from study.tools import results
from study.tools.catalogues import apibank, published
from study.tools.catalogues.apibank import Call
from study.tools.catalogues.catalog import ToolCatalog
from study.tools.catalogues.queries import QuerySet
from study.tools.discovery.index import Settings, ToolIndex
from study.tools.discovery.tokens import last_tokens

FORMS = ("dialogue_with_api_lines", "dialogue", "last_user", "last_two", "user_lines")
MAJORITY = "GetUserToken"
# MiniLM reads 256 word pieces; this many from the end leave room for the special ones.
TAIL = 240
KS = (1, 3, 5)


def query(call: Call, form: str) -> str:
    """What is asked before a call, in one of `FORMS`."""
    if form == "last_user":
        return next((text for speaker, text in reversed(call.lines) if speaker == "User"), "")
    if form == "user_lines":
        return "\n".join(text for speaker, text in call.lines if speaker == "User")
    lines = [line for line in call.lines if line[0] != "API"]
    if form == "last_two":
        return "\n".join(f"{speaker}: {text}" for speaker, text in lines[-2:])
    chosen = call.lines if form == "dialogue_with_api_lines" else lines
    return "\n".join([*(f"{speaker}: {text}" for speaker, text in chosen), "Generate API Request:"])


def run() -> None:
    """Protocols ``full_first``, ``full_later``, ``domain_first`` and ``domain_later``."""
    catalog = published.load("apibank").catalog
    calls = apibank.calls(paths.raw("apibank"), catalog)
    pools = np.zeros((len(calls), len(catalog.tools)), dtype=bool)
    for row, call in enumerate(calls):
        pools[row, list(call.pool)] = True
    for form in FORMS:
        texts = [query(call, form) for call in calls]
        for name, chosen in {
            "discovery_desc": Settings(document="desc"),
            "discovery_name_desc": Settings(document="name_desc"),
            "bm25_desc": Settings("bm25", "desc"),
        }.items():
            index = ToolIndex(catalog, chosen)
            _save(f"{name}_{form}", index.scores(texts), pools, calls, catalog, {"form": form, **vars(chosen)})
            if chosen.mode == "dense" and form.startswith("dialogue"):
                tails = last_tokens(texts, TAIL)
                _save(
                    f"{name}_{form}_tail",
                    index.scores(tails),
                    pools,
                    calls,
                    catalog,
                    {"form": form, "tail": TAIL, **vars(chosen)},
                )
    _save_rates("chance", pools, calls)
    majority = np.full((len(calls), len(catalog.tools)), -np.inf, dtype=np.float32)
    majority[:, catalog.rows_by_name[MAJORITY][0]] = 1
    _save("majority", majority, pools, calls, catalog, {})


def parts(calls: Sequence[Call]) -> dict[str, list[int]]:
    """Rows of the first calls of a dialogue (single turn) and of the later ones (multi turn)."""
    return {
        "first": [row for row, call in enumerate(calls) if call.first],
        "later": [row for row, call in enumerate(calls) if not call.first],
    }


def _save(
    name: str,
    scores: FloatArray,
    pools: np.ndarray,
    calls: Sequence[Call],
    catalog: ToolCatalog,
    config: dict[str, Any],
) -> None:
    """Measure in both pools, for first and later calls."""
    queries = QuerySet(
        "calls", tuple(call.id for call in calls), ("",) * len(calls), tuple(((call.tool,),) for call in calls),
        tuple(call.id.split(":")[0] for call in calls),
    )  # fmt: skip
    for pool, matrix in {"full": scores, "domain": np.where(pools, scores, np.float32(-np.inf))}.items():
        ranked, _ = top_k(matrix, len(catalog.tools), tie_order(len(catalog.tools), results.SEED))
        for part, rows in parts(calls).items():
            table = results.measure(ranked[rows], queries.take(rows), len(catalog.tools), ks=KS)
            results.save("apibank", f"{pool}_{part}", name, table, config=config)


def _save_rates(name: str, pools: np.ndarray, calls: Sequence[Call]) -> None:
    """The expected hit rate of a random order: min(k, pool) / pool."""
    for pool, sizes in {"full": np.full(len(calls), pools.shape[1]), "domain": pools.sum(axis=1)}.items():
        for part, rows in parts(calls).items():
            values = {f"hit_rate@{k}": np.minimum(k, sizes[rows]) / sizes[rows] for k in KS}
            keys = {"task_id": [calls[row].id for row in rows], "seed": results.SEED}
            results.save("apibank", f"{pool}_{part}", name, pd.DataFrame(keys | values), config={})
