"""The form of the paper's Tables 1-6: quality, tokens and latency by K, over a catalogue and per server.

The paper's own numbers contradict each other and cannot be compared: P@1 (92.1 %) and the hit rate at 1 (85.0 %) must
be equal at K = 1, and a token reduction of 99.6 % at every K cannot be a share of the tools' tokens, which grow with K.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict

import numpy as np
import pandas as pd

from study import paths
from study.data.dataset import FloatArray
from study.encoders.endpoint import KEYS
from study.encoders.sentence import cosines
from study.evaluation.metrics import f1_of_means
from study.evaluation.records import record
from study.files import write_csv, write_json
from study.tools import results, settings
from study.tools.catalogues.catalog import ToolCatalog
from study.tools.catalogues.queries import QuerySet
from study.tools.discovery.experiments import rank_all
from study.tools.discovery.index import Settings, ToolIndex, above, best
from study.tools.discovery.tokens import definition_quarters, definition_tokens, handed_over

KS = (1, 2, 3, 5, 10)


def by_k(catalog: ToolCatalog, queries: QuerySet, scores: FloatArray, *, pool_tokens: int) -> pd.DataFrame:
    """One row per K: precision, recall, F1 of these two means (as the paper), hit rate, MRR at K, token reduction.

    Args:
        scores: shape (len(queries), n_tools).
        pool_tokens: tokens of all tool definitions that would otherwise be handed over.
    """
    ranked = rank_all(scores)
    table = results.measure(ranked, queries, len(catalog.tools), ks=KS)
    sizes, quarters = definition_tokens(catalog), definition_quarters(catalog)
    rows = []
    for k in KS:
        tokens = handed_over(ranked[:, :k], sizes).mean()
        precision, recall = (table[f"{name}@{k}"].to_numpy() for name in ("precision", "recall"))
        rows.append(
            {
                "k": k,
                "precision": precision.mean(),
                "recall": recall.mean(),
                "f1": f1_of_means(precision, recall),
                "hit_rate": table[f"hit_rate@{k}"].mean(),
                "mrr": table[f"mrr@{k}"].mean(),
                "token_reduction": 1 - tokens / pool_tokens,
                "tokens": tokens,
                "tokens_by_characters": handed_over(ranked[:, :k], quarters).mean(),
            }
        )
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
        best(cosines(vector, index.vectors)[0], k, index.order)
        search.append(time.perf_counter() - started)
    return {
        "latency_p50_ms": 1e3 * float(np.median(whole)),
        "latency_p95_ms": 1e3 * float(np.quantile(whole, 0.95)),
        "search_p95_ms": 1e3 * float(np.quantile(search, 0.95)),
    }


def by_threshold(
    catalog: ToolCatalog, queries: QuerySet, scores: FloatArray, thresholds: Sequence[float], k: int
) -> pd.DataFrame:
    """One row per threshold (section 6.4): at most `k` tools that score as much, or the best `k` where none does.

    Args:
        scores: shape (len(queries), n_tools).

    Returns: columns threshold, fell_back (share of the queries), mean_tools, precision, recall, hit_rate, mean_tokens.
    """
    ranked, sizes, rows = rank_all(scores, k), definition_tokens(catalog), []
    for threshold in thresholds:
        handed = []
        for row, own in enumerate(ranked):
            handed.append(above(own, scores[row, own], threshold)[0].tolist())
        table = results.measure_sets(handed, queries, len(catalog.tools), k)
        counts = np.array([len(rows) for rows in handed])
        found = table[f"recall@{k}"].to_numpy() * [len(labels) for labels in queries.labels]
        rows.append(
            {
                "threshold": threshold,
                "fell_back": float((scores.max(axis=1) < threshold).mean()),
                "mean_tools": counts.mean(),
                "precision": float((found / counts).mean()),
                "recall": table[f"recall@{k}"].mean(),
                "hit_rate": table[f"hit_rate@{k}"].mean(),
                "mean_tokens": float(np.mean([sizes[rows].sum() for rows in handed])),
            }
        )
    return pd.DataFrame(rows)


def run(catalogue: str, catalog: ToolCatalog, queries: QuerySet) -> pd.DataFrame:
    """Table 1's form: discovery_table.csv of a catalogue, dense search over the paper's template; and its thresholds.

    The record of both is discovery_table.json. Its latency is a table of its own, see `run_latency`.
    """
    chosen = Settings(document="template")
    index, folder = ToolIndex(catalog, chosen), paths.tables(catalogue)
    scores, thresholds = index.scores(queries.texts), settings.read("discovery", KEYS)["thresholds"]
    table = by_k(catalog, queries, scores, pool_tokens=int(definition_tokens(catalog).sum()))
    write_csv(folder / "discovery_table.csv", table)
    write_csv(folder / "discovery_thresholds.csv", by_threshold(catalog, queries, scores, thresholds, max(KS)))
    facts = results.sources(catalog, queries) | {"config": asdict(chosen) | {"thresholds": thresholds}}
    write_json(folder / "discovery_table.json", record(dataset=catalogue, table="discovery_table", **facts))
    return table


def run_latency(catalogue: str, catalog: ToolCatalog, queries: QuerySet) -> pd.DataFrame:
    """discovery_latency.csv: milliseconds per query of the same search, to be measured while nothing else runs.

    Its record, discovery_latency.json, names the machine.
    """
    chosen, folder = Settings(document="template"), paths.tables(catalogue)
    index = ToolIndex(catalog, chosen)
    line = {"tools": len(catalog.tools), "queries": len(queries)} | latency(index, queries.texts, max(KS))
    table = pd.DataFrame([line])
    write_csv(folder / "discovery_latency.csv", table)
    facts = results.sources(catalog, queries) | {"config": asdict(chosen)}
    write_json(folder / "discovery_latency.json", record(dataset=catalogue, table="discovery_latency", **facts))
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
