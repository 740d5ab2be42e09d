"""What tool-level experiments leave behind, in the layout of the rest of the study, and the tables made from it.

``results/<catalogue>/per_task/<protocol>/<system>.csv.xz`` (one row per query), ``records/<protocol>/<system>.json``,
and from them ``tables/metrics.csv.xz``, ``significance.csv`` and ``overall.md``. Only ids, scores and statistics.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from study import paths
from study.analysis.report.tables import markdown
from study.data.dataset import IntArray
from study.encoders import endpoint as embedding
from study.errors import StudyError
from study.evaluation import metrics, per_task
from study.evaluation.records import record
from study.evaluation.significance import compare_all
from study.files import write_csv, write_json, write_text
from study.tools import clusters
from study.tools.catalogues.catalog import ToolCatalog
from study.tools.catalogues.queries import QuerySet, credit

KS = (1, 2, 3, 5, 10, 20)
PROFILE = "laptop"
SEED = 0


def measure(ranked: IntArray, queries: QuerySet, n_tools: int, *, ks: Sequence[int] = KS) -> pd.DataFrame:
    """Per-query measures at `ks`, and MRR over the whole catalogue (column ``mrr@<n_tools>``).

    Args:
        ranked: tool rows, best first, shape (len(queries), K), -1 where unfilled.

    Returns: the per-task table of the evaluator.
    """
    rewritten, relevant = credit(ranked, queries.labels, n_tools)
    values = metrics.per_task(rewritten, relevant, ks)
    values[f"mrr@{n_tools}"] = metrics.mrr(rewritten, relevant, n_tools)
    return per_task.table(queries.ids, SEED, values)


def measure_sets(handed: Sequence[Sequence[int]], queries: QuerySet, n_tools: int, k: int) -> pd.DataFrame:
    """Recall and hit rate of a *set* of tools per query, in columns ``recall@k`` and ``hit_rate@k``.

    Args:
        handed: tool rows given to the agent, per query.
        k: what the columns are named after: tools per request, of which a query may have several.
    """
    once = [list(dict.fromkeys(rows)) for rows in handed]
    width = max(1, *(len(rows) for rows in once)) if once else 1
    ranked = np.array([[*rows, *[-1] * (width - len(rows))] for rows in once], dtype=np.int64).reshape(len(once), width)
    rewritten, relevant = credit(ranked, queries.labels, n_tools)
    values = {
        f"recall@{k}": metrics.recall(rewritten, relevant, width),
        f"hit_rate@{k}": metrics.hit_rate(rewritten, relevant, width),
    }
    return per_task.table(queries.ids, SEED, pd.DataFrame(values))


def sources(catalog: ToolCatalog, queries: QuerySet) -> dict[str, Any]:
    """What a result was made from: hashes of catalogue and queries, and the configured encoder of texts."""
    return {
        "catalogue_sha256": catalog.fingerprint(),
        "queries_sha256": queries.fingerprint(),
        "embedder": embedding.settings_of().identity(),
    }


def save(
    catalogue: str,
    protocol: str,
    system: str,
    table: pd.DataFrame,
    inputs: tuple[ToolCatalog, QuerySet],
    *,
    origins: bool = True,
    **facts: Any,
) -> None:
    """Write the per-task file and the record of one system under one protocol, and the groups of its queries.

    Args:
        inputs: what was searched, and what was asked.
        origins: False where a report of its own knows the units of resampling.
        facts: further entries of the record.
    """
    base = paths.results(catalogue)
    facts = sources(*inputs) | facts
    if origins:
        keep_groups(catalogue, protocol, table, inputs[1])
    write_csv(base / "per_task" / protocol / f"{system}.csv.xz", table)
    whole = record(
        dataset=catalogue, protocol=protocol, system=system, profile=PROFILE, seeds=[{"seed": SEED}], **facts
    )
    write_json(base / "records" / protocol / f"{system}.json", whole)


def keep_groups(catalogue: str, protocol: str, table: pd.DataFrame, queries: QuerySet) -> None:
    """Write ``tables/groups_<protocol>.csv`` where several queries of the table have one origin."""
    group_of = dict(zip(queries.ids, queries.groups, strict=True))
    asked = list(dict.fromkeys(table["task_id"].astype(str)))
    groups = [group_of.get(query, query) for query in asked]
    if len(set(groups)) < len(groups):
        write_csv(paths.tables(catalogue) / f"groups_{protocol}.csv", pd.DataFrame({"task_id": asked, "group": groups}))


def groups_of(catalogue: str, protocol: str) -> dict[str, str] | None:
    """The origin of every query of a protocol, None where each has its own."""
    path = paths.tables(catalogue) / f"groups_{protocol}.csv"
    if not path.exists():
        return None
    frame = pd.read_csv(path, dtype=str)
    return dict(zip(frame["task_id"], frame["group"], strict=True))


def compared(
    catalogue: str, protocol: str, runs: Mapping[str, pd.DataFrame], reference: str, metric: str
) -> pd.DataFrame:
    """Every other system of a protocol against the reference; origins are resampled where queries share them."""
    found = compare_all(runs, reference, [metric], SEED)
    groups = groups_of(catalogue, protocol)
    if groups is not None:
        found = clusters.clustered(found, runs, groups, SEED)
    return found.assign(protocol=protocol)


def collect(catalogue: str) -> dict[str, dict[str, pd.DataFrame]]:
    """The per-task tables of every protocol and system that have a record."""
    found: dict[str, dict[str, pd.DataFrame]] = {}
    for path in sorted((paths.results(catalogue) / "per_task").glob("*/*.csv.xz")):
        system = path.name.removesuffix(".csv.xz")
        if not (paths.results(catalogue) / "records" / path.parent.name / f"{system}.json").exists():
            raise StudyError("a per-task file has no record beside it", file=path, fix="run it again: study tools run")
        found.setdefault(path.parent.name, {})[system] = per_task.read(path)
    if not found:
        raise StudyError("there are no runs to report", file=paths.results(catalogue), fix="run: study tools run")
    return found


def aggregate(table: pd.DataFrame, catalogue: str, protocol: str, system: str) -> pd.DataFrame:
    """Means as the evaluator gives them, and ``completeness``: the share of queries whose labels are all found."""
    means = per_task.aggregate(table, catalogue, protocol, system, PROFILE)
    cutoffs = [found[1] for column in table if (found := per_task.measure(str(column))) and found[0] == "recall"]
    shares = [(k, float(table[f"recall@{k}"].eq(1).mean())) for k in cutoffs]
    complete = [(catalogue, protocol, system, PROFILE, SEED, "completeness", k, share) for k, share in shares]
    return pd.concat([means, pd.DataFrame(complete, columns=means.columns)])


def report(
    catalogue: str,
    references: Mapping[str, tuple[str, str]],
    pairs: Mapping[str, Sequence[tuple[str, str, str]]] | None = None,
) -> Path:
    """Redo the tables of a catalogue from its per-task files; runs nothing.

    Args:
        references: protocol -> the system that the others are compared with (paired), and the metric.
        pairs: protocol -> further comparisons of two: system, reference, metric; each is a family of its own.

    Returns: the folder of the tables.
    """
    runs, folder = collect(catalogue), paths.tables(catalogue)
    rows = [aggregate(table, catalogue, at, name) for at, own in runs.items() for name, table in own.items()]
    write_csv(folder / "metrics.csv.xz", pd.concat(rows))
    tested = [
        compared(catalogue, protocol, runs[protocol], reference, metric)
        for protocol, (reference, metric) in references.items()
        if len(runs.get(protocol, {})) > 1
    ]
    tested += [
        compared(catalogue, protocol, {name: runs[protocol][name] for name in (system, reference)}, reference, metric)
        for protocol, own in (pairs or {}).items()
        for system, reference, metric in own
        if {system, reference} <= runs.get(protocol, {}).keys()
    ]
    if tested:
        write_csv(folder / "significance.csv", pd.concat(tested))
    write_text(folder / "overall.md", "\n".join(_section(catalogue, at, own) for at, own in runs.items()))
    return folder


def _section(catalogue: str, protocol: str, runs: Mapping[str, pd.DataFrame]) -> str:
    """One protocol as Markdown: a row per system, best first by its first hit rate."""
    lines = []
    for name, table in runs.items():
        means = table.drop(columns=per_task.KEYS).mean()
        lines.append({"system": name} | {str(column): f"{value:.3f}" for column, value in means.items()})
    shown = pd.DataFrame(lines)
    chosen = [c for c in shown if c == "system" or str(c).split("@")[0] in ("recall", "hit_rate", "mrr")]
    chosen = [c for c in chosen if not str(c).startswith("mrr@") or c == chosen[-1]]
    queries = next(iter(runs.values()))["task_id"].nunique()
    ordered = shown[chosen].sort_values(str(chosen[1]), ascending=False)
    return f"### {catalogue}, protocol {protocol}, {queries} queries\n\n{markdown(ordered)}"


def read_record(catalogue: str, protocol: str, system: str) -> dict[str, Any]:
    """The record that `save` wrote."""
    path = paths.results(catalogue) / "records" / protocol / f"{system}.json"
    value: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return value
