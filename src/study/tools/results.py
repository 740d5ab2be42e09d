"""What tool-level experiments leave behind, and the tables made from it.

A collection's folder holds ``per_query.csv.xz`` (the rows of all runs), ``records.jsonl`` (how each was made), for
MCP-Flow ``calls.parquet``, and ``tables``. Only ids, scores and statistics are kept.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from study.advisor.encoders import choose as embedding
from study.advisor.retrieval.documents import ToolCatalog
from study.base import paths
from study.base.errors import StudyError, require_file
from study.base.files import read_csv, write_csv, write_json, write_parquet, write_text
from study.data.dataset import FloatArray, IntArray
from study.evaluation import metrics, per_task
from study.evaluation.records import record
from study.evaluation.statistics import (
    RESAMPLES,
    Float64Array,
    cluster_interval,
    compare_all,
    holm,
    paired,
    randomisation,
    wilcoxon,
)
from study.tools.queries import QuerySet, credit, rank_all

KS = (1, 2, 3, 5, 10, 20)
PROFILE = "laptop"
SEED = 0
CELL = ["protocol", "system"]
FILES = {"per_query": "per_query.csv.xz", "calls": "calls.parquet"}
Runs = dict[str, dict[str, pd.DataFrame]]  # protocol -> system -> rows


@dataclass(frozen=True)
class Run:
    """One system under one protocol."""

    protocol: str
    system: str
    table: pd.DataFrame  # the per-task table of the evaluator
    inputs: tuple[ToolCatalog, QuerySet]  # what was searched, and what was asked
    facts: Mapping[str, Any] = field(default_factory=dict)  # further entries of the record
    calls: pd.DataFrame | None = None  # Tool, Param and AST per query where calls are measured, with units to resample


@dataclass(frozen=True)
class Table:
    """A table of an experiment, and what its record says (None: it has none); of another collection where named."""

    name: str
    frame: pd.DataFrame
    facts: Mapping[str, Any] | None = None
    collection: str | None = None


Made = Iterable[Run | Table]


def measure(ranked: IntArray, queries: QuerySet, n_tools: int, *, ks: Sequence[int] = KS) -> pd.DataFrame:
    """The per-task table of rankings: measures at `ks`, and MRR over the whole catalogue (column ``mrr@<n_tools>``).
    `ranked`: tool rows, best first, shape (len(queries), K), -1 where unfilled."""
    rewritten, relevant = credit(ranked, queries.labels, n_tools)
    values = metrics.per_task(rewritten, relevant, ks)
    values[f"mrr@{n_tools}"] = metrics.mrr(rewritten, relevant, n_tools)
    return per_task.table(queries.ids, SEED, values)


def measure_sets(handed: Mapping[int, Sequence[Sequence[int]]], queries: QuerySet, n_tools: int) -> pd.DataFrame:
    """Recall and hit rate of *sets* of tools per query, in columns ``recall@k`` and ``hit_rate@k``. `handed`: k (what
    the columns are named after: tools per request, or tokens) -> tool rows per query."""
    values = {}
    for k, sets in handed.items():
        ranked = padded(sets)
        rewritten, relevant = credit(ranked, queries.labels, n_tools)
        values[f"recall@{k}"] = metrics.recall(rewritten, relevant, ranked.shape[1])
        values[f"hit_rate@{k}"] = metrics.hit_rate(rewritten, relevant, ranked.shape[1])
    return per_task.table(queries.ids, SEED, pd.DataFrame(values))


def padded(sets: Sequence[Sequence[int]]) -> IntArray:
    """Tool rows of every query, each once, as rankings: shape (len(sets), longest), -1 where unfilled."""
    once = [list(dict.fromkeys(rows)) for rows in sets]
    width = max([1, *map(len, once)])
    filled = [[*rows, *[-1] * (width - len(rows))] for rows in once]
    return np.array(filled, dtype=np.int64).reshape(len(once), width)


def percentiles(name: str, seconds: Float64Array) -> dict[str, float]:
    """Median and 95th percentile in milliseconds, as ``<name>_p50_ms`` and ``<name>_p95_ms``."""
    median, high = 1e3 * np.quantile(seconds, [0.5, 0.95])
    return {f"{name}_p50_ms": float(median), f"{name}_p95_ms": float(high)}


def ranking_run(
    protocol: str,
    system: str,
    inputs: tuple[ToolCatalog, QuerySet],
    scores: Callable[[tuple[str, ...]], FloatArray],
    order: IntArray | None = None,
    **facts: Any,
) -> Run:
    """A system that ranks the whole catalogue for every query; `order`: of tools with one score, as in `rank_all`."""
    catalog, queries = inputs
    started = time.perf_counter()
    ranked = rank_all(scores(queries.texts), order=order)
    seconds = round(time.perf_counter() - started, 3)
    counts = {"queries": len(queries), "tools": len(catalog.tools), "servers": len(catalog.servers)}
    table = measure(ranked, queries, len(catalog.tools))
    return Run(protocol, system, table, inputs, counts | {"seconds": seconds} | facts)


def sources(catalog: ToolCatalog, queries: QuerySet) -> dict[str, Any]:
    """What a result was made from: hashes of catalogue and queries, and the configured encoder of texts."""
    hashes = {"catalogue_sha256": catalog.fingerprint(), "queries_sha256": queries.fingerprint()}
    return {**hashes, "embedder": embedding.embedder_settings().identity()}


def write_results(collection: str, made: Made) -> None:
    """Write what an experiment yields: a table at once, the runs together when the experiment ends."""
    runs = []
    for one in made:
        if isinstance(one, Run):
            runs.append(one)
            continue
        name = one.collection or collection
        write_csv(paths.tables(name) / f"{one.name}.csv", one.frame)
        if one.facts is not None:
            whole = record(dataset=name, table=one.name, **one.facts)
            write_json(paths.tables(name) / f"{one.name}.json", whole)
    if runs:
        _write_runs(collection, runs)


def _write_runs(collection: str, runs: Sequence[Run]) -> None:
    """Put runs in the place of those of the same protocol and system."""
    folder, records = paths.results(collection), read_records(collection)
    _replace(folder / "per_query.csv.xz", {(run.protocol, run.system): run.table for run in runs})
    _replace(folder / "calls.parquet", {(run.protocol, run.system): run.calls for run in runs if run.calls is not None})
    for run in runs:
        seeds = [{"seed": int(seed)} for seed in sorted(set(run.table["seed"].tolist()))]
        names = {"dataset": collection, "protocol": run.protocol, "system": run.system}
        facts = sources(*run.inputs) | dict(run.facts)
        records[run.protocol, run.system] = record(**names, profile=PROFILE, seeds=seeds, **facts)
    form: dict[str, Any] = {"ensure_ascii": False, "allow_nan": False, "separators": (",", ":")}
    lines = [json.dumps(records[key], **form) for key in sorted(records)]
    write_text(folder / "records.jsonl", "".join(f"{line}\n" for line in lines))
    for run in {run.protocol: run for run in runs if run.calls is None}.values():
        _write_groups(collection, run)


def _replace(path: Path, new: Mapping[tuple[str, str], pd.DataFrame]) -> None:
    """Replace the rows of some protocols and systems in a long table, which is ordered by both."""
    if not new:
        return None
    whole = pd.concat(new, names=CELL).reset_index(CELL)
    if path.exists():
        old = _read_long(path)
        whole = pd.concat([old[~pd.MultiIndex.from_frame(old[CELL]).isin(list(new))], whole])
    columns = [*CELL, *per_task.KEYS]
    columns += sorted((str(name) for name in whole if name not in columns), key=_place)
    whole = whole.sort_values(CELL, kind="stable")[columns]
    if path.suffix == ".parquet":
        hits = whole.select_dtypes("float").columns
        return write_parquet(path, whole.astype(dict.fromkeys(hits, "int8")))
    write_csv(path, whole)


def _read_long(path: Path) -> pd.DataFrame:
    return pd.read_parquet(path) if path.suffix == ".parquet" else read_csv(path)


def _place(column: str) -> tuple[int, int]:
    """Where a measure stands among the columns: by its name, then by its cut-off; other columns keep their order."""
    found = per_task.measure(column)
    return (list(metrics.PER_TASK).index(found[0]), found[1]) if found else (-1, 0)


def _write_groups(collection: str, run: Run) -> None:
    """Write ``tables/groups_<protocol>.csv`` where several queries of a protocol have one origin."""
    group_of = dict(zip(run.inputs[1].ids, run.inputs[1].groups, strict=True))
    asked = list(dict.fromkeys(run.table["task_id"].astype(str)))
    groups = [group_of.get(query, query) for query in asked]
    if len(set(groups)) < len(groups):
        frame = pd.DataFrame({"task_id": asked, "group": groups})
        write_csv(paths.tables(collection) / f"groups_{run.protocol}.csv", frame)


def read_records(collection: str) -> dict[tuple[str, str], dict[str, Any]]:
    """The records of a collection by protocol and system; empty where nothing ran."""
    path = paths.results(collection) / "records.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return {(found["protocol"], found["system"]): found for found in map(json.loads, lines)}


def collect_runs(collection: str, kind: str = "per_query") -> Runs:
    """The rows of every protocol and system; `kind`: ``per_query``, or ``calls`` for MCP-Flow."""
    path, found = paths.results(collection) / FILES[kind], dict[str, dict[str, pd.DataFrame]]()
    fix = f"run: study tools run --catalogue {collection}"
    require_file(path, fix, "there are no runs to report")
    records = read_records(collection)
    for cell, own in _read_long(path).groupby(CELL, sort=False):
        protocol, system = map(str, cell)
        if (protocol, system) not in records:
            raise StudyError("a run has no record beside it", file=path, row=f"{protocol}, {system}", fix=fix)
        table = own.drop(columns=CELL).dropna(axis=1, how="all").reset_index(drop=True)
        found.setdefault(protocol, {})[system] = per_task.check(table, path) if kind == "per_query" else table
    return found


def clustered(
    table: pd.DataFrame, frames: Mapping[str, pd.DataFrame], groups: Mapping[str, str], seed: int
) -> pd.DataFrame:
    """A table of `compare_all` where queries share an origin (`groups`): the origin is the unit that is resampled.

    Queries made from one task, one dialogue or one target are no independent evidence. Intervals come from the cluster
    bootstrap, p-values from tests on one value per origin; the column ``groups`` counts the origins.
    """
    lines = []
    for line in table.to_dict("records"):
        pairs = paired(frames[str(line["system"])], frames[str(line["reference"])], str(line["metric"]))
        unknown = [query for query in pairs.index.astype(str) if query not in groups]
        if unknown:
            raise StudyError("a query has no group", row=unknown[0], fix="run the protocol again")
        difference = (pairs["system"] - pairs["reference"]).to_numpy(np.float64)
        own = np.array([groups[str(query)] for query in pairs.index])
        low, high = cluster_interval(difference, own, seed=seed)
        by_group = pd.Series(difference).groupby(own)
        # The mean over queries is the sum over groups, up to a constant: signs of whole groups are flipped.
        resamples = max(RESAMPLES, 100 * len(table))
        p = randomisation(by_group.sum().to_numpy(), seed=seed, resamples=resamples)
        tests = {"wilcoxon_p": wilcoxon(by_group.mean().to_numpy()), "randomisation_p": p}
        lines.append(line | {"diff_ci_low": low, "diff_ci_high": high, "groups": by_group.ngroups} | tests)
    found = pd.DataFrame(lines)
    for test in ("wilcoxon_p", "randomisation_p"):
        found[f"{test}_holm"] = holm(found[test].to_numpy())
    return found


def compare_systems(
    collection: str, protocol: str, runs: Mapping[str, pd.DataFrame], reference: str, metric: str
) -> pd.DataFrame:
    """Every other system of a protocol against the reference; origins are resampled where queries share them."""
    found, path = compare_all(runs, reference, [metric], SEED), paths.tables(collection) / f"groups_{protocol}.csv"
    if path.exists():
        frame = read_csv(path, dtype=str)
        found = clustered(found, runs, dict(zip(frame["task_id"], frame["group"], strict=True)), SEED)
    return found.assign(protocol=protocol)


def aggregate(table: pd.DataFrame, collection: str, protocol: str, system: str) -> pd.DataFrame:
    """Means as the evaluator gives them, and ``completeness``: the share of queries whose labels are all found."""
    means = per_task.aggregate(table, collection, protocol, system, PROFILE)
    cutoffs = [found[1] for column in table if (found := per_task.measure(str(column))) and found[0] == "recall"]
    shares = [(k, float(table[f"recall@{k}"].eq(1).mean())) for k in cutoffs]
    complete = [(collection, protocol, system, PROFILE, SEED, "completeness", k, share) for k, share in shares]
    return pd.concat([means, pd.DataFrame(complete, columns=means.columns)])


def report_runs(
    collection: str,
    references: Mapping[str, tuple[str, str]],
    pairs: Mapping[str, Sequence[tuple[str, str, str]]] | None = None,
) -> Path:
    """Redo metrics.csv.xz, significance.csv and overall.md of a collection from its runs; returns their folder.

    `references`: protocol -> the system that the others are compared with, and the metric. `pairs`: protocol ->
    further comparisons of two: system, reference, metric; each is a family of its own.
    """
    runs, folder = collect_runs(collection), paths.tables(collection)
    rows = [aggregate(table, collection, at, name) for at, own in runs.items() for name, table in own.items()]
    write_csv(folder / "metrics.csv.xz", pd.concat(rows))
    families = [(protocol, runs.get(protocol, {}), *compared) for protocol, compared in references.items()]
    for protocol, own in (pairs or {}).items():
        for system, reference, metric in own:
            two = {name: table for name, table in runs.get(protocol, {}).items() if name in (system, reference)}
            families.append((protocol, two, reference, metric))
    tested = [compare_systems(collection, *family) for family in families if len(family[1]) > 1]
    if tested:
        write_csv(folder / "significance.csv", pd.concat(tested))
    write_text(folder / "overall.md", "\n".join(_section(collection, at, own) for at, own in runs.items()))
    return folder


def _section(collection: str, protocol: str, runs: Mapping[str, pd.DataFrame]) -> str:
    """One protocol as Markdown: a row per system, best first by its first measure."""
    measured = dict.fromkeys(str(column) for table in runs.values() for column in table)
    found = sorted((place, column) for column in measured if (place := per_task.measure(column)))
    named = {name: [(k, column) for (own, k), column in found if own == name] for name in ("recall", "hit_rate", "mrr")}
    chosen = named["recall"] + named["hit_rate"] + named["mrr"][-1:]
    if not named["mrr"]:
        chosen.sort(key=lambda pair: pair[0])  # sets of tools stand cut-off by cut-off
    columns = [column for _, column in chosen]
    means = {name: table.reindex(columns=columns).mean().map("{:.3f}".format, "ignore") for name, table in runs.items()}
    shown = pd.DataFrame(means).T.rename_axis("system").reset_index().sort_values(columns[0], ascending=False)
    rows = [["system", *columns], ["---", *["---:"] * len(columns)], *shown.to_numpy().tolist()]
    body = "".join(f"| {' | '.join(map(str, row))} |\n" for row in rows)
    queries = next(iter(runs.values()))["task_id"].nunique()
    return f"### {collection}, protocol {protocol}, {queries} queries\n\n{body}"
