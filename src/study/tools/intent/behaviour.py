"""How the parts around the ranking behave on real data: misread queries, latency, cache, filters.

Latencies are those of the machine at that moment; everything else is the same everywhere.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import pandas as pd

from study.data.dataset import Dataset
from study.data.splits import Split
from study.encoders.endpoint import Embedder
from study.t2mrec.structure import languages, operating_systems
from study.tools.catalogues.catalog import ToolCatalog
from study.tools.intent.candidates import SignalIndex
from study.tools.intent.context import Context, Requirements, obstacle
from study.tools.intent.recommender import IntentRecommender
from study.tools.intent.settings import CORRECTED, Intentions, as_designed


def misread(catalog: ToolCatalog, queries: Sequence[str], intentions: Intentions) -> dict[str, float]:
    """Shares of the queries that the design's word rules read otherwise than whole words would.

    Returns: false_domain (a keyword occurs only inside another word), missed_verb (a verb touches punctuation).
    """
    whole, designed = (SignalIndex(catalog, intentions, rules) for rules in (CORRECTED, as_designed()))
    read = [(whole.read(query), designed.read(query)) for query in queries]
    return {
        "queries": float(len(queries)),
        "false_domain": float(np.mean([bool(set(b.domains) - set(a.domains)) for a, b in read])),
        "missed_verb": float(np.mean([bool(set(a.verbs) - set(b.verbs)) for a, b in read])),
    }


def latency(
    catalog: ToolCatalog, queries: Sequence[str], intentions: Intentions, embedder: Embedder | None = None
) -> dict[str, float]:
    """Milliseconds per recommendation, each query asked twice: the second answer comes from the cache."""
    made = IntentRecommender(catalog, intentions=intentions, embedder=embedder)
    made.recommend("a first question loads the model", Context())
    found: dict[str, float] = {}
    for name in ("first", "cached"):
        taken = []
        for query in queries:
            started = time.perf_counter()
            made.recommend(query)
            taken.append(1e3 * (time.perf_counter() - started))
        found |= {f"{name}_p50_ms": float(np.median(taken)), f"{name}_p95_ms": float(np.quantile(taken, 0.95))}
    return found | {"cache_hits": float(made.cache.hits)}


def compatibility(data: Dataset, split: Split) -> pd.DataFrame:
    """What the filter "project compatibility" removes where a task states its language and theme, training part only.

    A server's language is the one that it is written in, which need not be the one that it serves.

    Returns: one row per filter: tasks, servers that state something, share of all pairs and of the labels removed.
    """
    tasks, lines = split.tasks("train"), []
    for name in ("language", "system"):
        by_language = name == "language"
        read, column = (languages, "language") if by_language else (operating_systems, "theme")
        needs = [Requirements(**{f"{name}s": read(text)}) for text in data.servers[name]]
        kinds = {need: number for number, need in enumerate(dict.fromkeys(needs))}
        kind = np.array([kinds[need] for need in needs])
        blocked: dict[frozenset[str], np.ndarray] = {}
        removed = labels = 0
        for task in tasks:
            own = read(str(data.tasks[column].iloc[task]))
            if own not in blocked:
                context = Context(languages=own) if by_language else Context(systems=own)
                blocked[own] = np.array([obstacle(need, context) is not None for need in kinds])[kind]
            removed += int(blocked[own].sum())
            labels += int(blocked[own][split.train[task].indices].sum())
        stated = sum(need != Requirements() for need in needs)
        lines.append(
            {
                "filter": name,
                "tasks": len(tasks),
                "servers_that_state_it": stated,
                "pairs_removed": removed / (len(tasks) * data.n_servers),
                "labels_removed": labels / split.train.nnz,
            }
        )
    return pd.DataFrame(lines)
