"""The form of the paper's Tables 1-6: quality, tokens and latency by K, over a catalogue and per server.

The paper's own numbers contradict each other and cannot be compared: P@1 (92.1 %) and the hit rate at 1 (85.0 %) must
be equal at K = 1, and a token reduction of 99.6 % at every K cannot be a share of the tools' tokens, which grow with K.
"""

from __future__ import annotations

import time
from collections import Counter

import numpy as np
import pandas as pd

from study import paths
from study.data.dataset import FloatArray
from study.evaluation.metrics import f1_of_means
from study.files import write_csv
from study.tools import results
from study.tools.catalogues.catalog import ToolCatalog
from study.tools.catalogues.queries import QuerySet
from study.tools.discovery.experiments import rank_all
from study.tools.discovery.index import Settings, ToolIndex
from study.tools.discovery.tokens import definition_tokens, handed_over

KS = (1, 2, 3, 5, 10)


def by_k(catalog: ToolCatalog, queries: QuerySet, scores: FloatArray, *, pool_tokens: int) -> pd.DataFrame:
    """One row per K: precision, recall, F1 of these two means (as the paper), hit rate, MRR at K, token reduction.

    Args:
        scores: shape (len(queries), n_tools).
        pool_tokens: tokens of all tool definitions that would otherwise be handed over.
    """
    ranked = rank_all(scores)
    table = results.measure(ranked, queries, len(catalog.tools), ks=KS)
    sizes = definition_tokens(catalog)
    rows = []
    for k in KS:
        reduction = 1 - handed_over(ranked[:, :k], sizes).mean() / pool_tokens
        precision, recall = (table[f"{name}@{k}"].to_numpy() for name in ("precision", "recall"))
        rows.append({
            "k": k, "precision": precision.mean(), "recall": recall.mean(), "f1": f1_of_means(precision, recall),
            "hit_rate": table[f"hit_rate@{k}"].mean(), "mrr": table[f"mrr@{k}"].mean(), "token_reduction": reduction,
        })  # fmt: skip
    return pd.DataFrame(rows)


def latency(index: ToolIndex, queries: tuple[str, ...], k: int) -> dict[str, float]:
    """Milliseconds per query, one at a time: the whole search (median, p95), and its part after the embedding."""
    vectors = [index.embedder.encode([query], store=False) for query in queries]
    whole, search = [], []
    index.search(queries[0], k)
    for query, vector in zip(queries, vectors, strict=True):
        started = time.perf_counter()
        index.search(query, k)
        whole.append(time.perf_counter() - started)
        started = time.perf_counter()
        top = index.vectors @ vector[0]
        np.argpartition(-top, min(k, len(top) - 1))
        search.append(time.perf_counter() - started)
    return {
        "latency_p50_ms": 1e3 * float(np.median(whole)),
        "latency_p95_ms": 1e3 * float(np.quantile(whole, 0.95)),
        "search_p95_ms": 1e3 * float(np.quantile(search, 0.95)),
    }


def run(catalogue: str, catalog: ToolCatalog, queries: QuerySet) -> pd.DataFrame:
    """Table 1's form: discovery_table.csv of a catalogue, dense search over the paper's template."""
    index = ToolIndex(catalog, Settings(document="template"))
    table = by_k(catalog, queries, index.scores(queries.texts), pool_tokens=int(definition_tokens(catalog).sum()))
    table = table.assign(**latency(index, queries.texts, max(KS)))
    write_csv(paths.tables(catalogue) / "discovery_table.csv", table)
    return table


def run_per_server(catalogue: str, catalog: ToolCatalog, queries: QuerySet) -> pd.DataFrame:
    """Tables 2-6's form: discovery_servers.csv, queries grouped by the server of their first label.

    Every query searches the whole catalogue; tokens are compared with the definitions of all its tools.
    """
    index = ToolIndex(catalog, Settings(document="template"))
    scores, total = index.scores(queries.texts), int(definition_tokens(catalog).sum())
    owner = [catalog.servers[catalog.tools[labels[0][0]].server].id.partition("#")[0] for labels in queries.labels]
    parts = [by_k(catalog, queries, scores, pool_tokens=total).assign(server="all", queries=len(queries))]
    for server, count in sorted(Counter(owner).items(), key=lambda item: (-item[1], item[0])):
        rows = [row for row, name in enumerate(owner) if name == server]
        part = by_k(catalog, queries.take(rows), scores[rows], pool_tokens=total)
        parts.append(part.assign(server=server, queries=count))
    table = pd.concat(parts)
    columns = ["server", "queries", *(column for column in table if column not in ("server", "queries"))]
    write_csv(paths.tables(catalogue) / "discovery_servers.csv", table[columns])
    return table[columns]
