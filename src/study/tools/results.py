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
from study.evaluation.statistics import RESAMPLES, cluster_interval, compare_all, holm, paired, randomisation, wilcoxon
from study.tools.queries import QuerySet, credit, rank_all

KS = (1, 2, 3, 5, 10, 20)
PROFILE = "laptop"
SEED = 0
CELL = ["protocol", "system"]
FILES = {"per_query": "per_query.csv.xz", "calls": "calls.parquet"}
Runs = dict[str, dict[str, pd.DataFrame]]  # protocol -> system -> rows
Inputs = tuple[ToolCatalog, QuerySet]  # what is searched, and what is asked


@dataclass(frozen=True)
class Run:
    """One system under one protocol."""

    protocol: str
    system: str
    table: pd.DataFrame  # the per-task table of the evaluator
    inputs: Inputs
    facts: Mapping[str, Any] = field(default_factory=dict)  # further entries of the record
    calls: pd.DataFrame | None = None  # Tool, Param and AST per query where calls are measured, with units to resample


@dataclass(frozen=True)
class Table:
    """A table of an experiment, and what its record says (None: it has none)."""

    name: str
    frame: pd.DataFrame
    facts: Mapping[str, Any] | None = None


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
    return table_of(queries, **values)


def table_of(queries: QuerySet, **values: Any) -> pd.DataFrame:
    """The per-task table of measures that are known; `values`: by column, one per query."""
    return per_task.table(queries.ids, SEED, pd.DataFrame(values, dtype=float))


def padded(sets: Sequence[Sequence[int]]) -> IntArray:
    """Tool rows of every query, each once, as rankings: shape (len(sets), longest), -1 where unfilled."""
    once = [list(dict.fromkeys(rows)) for rows in sets]
    width = max([1, *map(len, once)])
    filled = [[*rows, *[-1] * (width - len(rows))] for rows in once]
    return np.array(filled, dtype=np.int64).reshape(len(once), width)


def percentiles(name: str, seconds: Iterable[float]) -> dict[str, float]:
    """Median and 95th percentile in milliseconds, as ``<name>_p50_ms`` and ``<name>_p95_ms``."""
    median, high = 1e3 * np.quantile(np.array(seconds), [0.5, 0.95])
    return {f"{name}_p50_ms": float(median), f"{name}_p95_ms": float(high)}


def ranking_run(
    protocol: str,
    system: str,
    inputs: Inputs,
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


def write_results(collection: str, parts: Made) -> None:
    """Write what an experiment yields: a table at once, the runs together when the experiment ends. They take the
    place of those of the same protocol and system. What comes out as it is there already keeps its record."""
    runs = []
    for one in parts:
        if isinstance(one, Run):
            runs.append(one)
            continue
        table, file = (paths.tables(collection) / f"{one.name}.{kind}" for kind in ("csv", "json"))
        before = table.read_bytes() if table.exists() else None
        write_csv(table, one.frame)
        if one.facts is not None:
            about = {"dataset": collection, "table": one.name, **one.facts}
            there = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
            if before != table.read_bytes() or not _tells(there, about):
                write_json(file, record(**about))
    if not runs:
        return
    folder, records = paths.results(collection), read_records(collection)
    same = _replace(folder / FILES["per_query"], {(run.protocol, run.system): run.table for run in runs})
    calls = {(run.protocol, run.system): run.calls for run in runs if run.calls is not None}
    same -= calls.keys() - _replace(folder / FILES["calls"], calls)
    for run in runs:
        names = {"dataset": collection, "protocol": run.protocol, "system": run.system, "profile": PROFILE}
        seeds = [{"seed": int(seed)} for seed in sorted(set(run.table["seed"].tolist()))]
        about = {**names, "seeds": seeds, **sources(*run.inputs), **run.facts}
        key = (run.protocol, run.system)
        if key not in same or not _tells(records.get(key, {}), about):
            records[key] = record(**about)
    form: dict[str, Any] = {"ensure_ascii": False, "allow_nan": False, "separators": (",", ":")}
    lines = [json.dumps(records[key], **form) for key in sorted(records)]
    write_text(folder / "records.jsonl", "".join(f"{line}\n" for line in lines))
    for run in {run.protocol: run for run in runs if run.calls is None}.values():
        group_of = dict(zip(run.inputs[1].ids, run.inputs[1].groups, strict=True))
        queries = list(dict.fromkeys(run.table["task_id"].astype(str)))
        groups = [group_of.get(query, query) for query in queries]
        if len(set(groups)) < len(groups):  # several queries have one origin
            frame = pd.DataFrame({"task_id": queries, "group": groups})
            write_csv(paths.tables(collection) / f"groups_{run.protocol}.csv", frame)


def _tells(there: Mapping[str, Any], about: Mapping[str, Any]) -> bool:
    """Whether a record says the same but for how long it took."""
    stated = {name: value for name, value in json.loads(json.dumps(about)).items() if name != "seconds"}
    return {name: there.get(name) for name in stated} == stated


def _replace(path: Path, new: Mapping[tuple[str, str], pd.DataFrame]) -> set[tuple[str, str]]:
    """Replace the rows of some protocols and systems in a long table, which is ordered by both. Returns: those whose
    rows are what they were."""
    if not new:
        return set()
    before = _cells(path)
    whole = pd.concat(new, names=CELL).reset_index(CELL)
    if path.exists():
        old = _read_long(path)
        whole = pd.concat([old[~pd.MultiIndex.from_frame(old[CELL]).isin(list(new))], whole])
    columns = [*CELL, *per_task.KEYS]
    columns += sorted((str(name) for name in whole if name not in columns), key=_place)
    whole = whole.sort_values(CELL, kind="stable")[columns]
    if path.suffix == ".parquet":
        hits = whole.select_dtypes("float").columns
        write_parquet(path, whole.astype(dict.fromkeys(hits, "int8")))
    else:
        write_csv(path, whole)
    after = _cells(path)
    return {key for key in new if key in before and before[key].equals(after[key])}


def _cells(path: Path) -> dict[tuple[str, str], pd.DataFrame]:
    """The rows of a long table by protocol and system, without columns that are empty there."""
    if not path.exists():
        return {}
    whole = _read_long(path)
    whole = whole.astype(dict.fromkeys(whole.select_dtypes("number"), "float64"))  # whatever other rows hold
    groups = whole.groupby(CELL, observed=True)
    cells = {key: rows.dropna(axis=1, how="all").reset_index(drop=True) for key, rows in groups}
    return {(str(protocol), str(system)): rows for (protocol, system), rows in cells.items()}


def _read_long(path: Path) -> pd.DataFrame:
    return pd.read_parquet(path) if path.suffix == ".parquet" else read_csv(path)


def _place(column: str) -> tuple[int, int]:
    """Where a measure stands among the columns: by its name, then by its cut-off; other columns keep their order."""
    measure = per_task.measure(column)
    return (list(metrics.PER_TASK).index(measure[0]), measure[1]) if measure else (-1, 0)


def read_records(collection: str) -> dict[tuple[str, str], dict[str, Any]]:
    """The records of a collection by protocol and system; empty where nothing ran."""
    path = paths.results(collection) / "records.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return {(entry["protocol"], entry["system"]): entry for entry in map(json.loads, lines)}


def collect_runs(collection: str, kind: str = "per_query") -> Runs:
    """The rows of every protocol and system; `kind`: ``per_query``, or ``calls`` for MCP-Flow."""
    path, runs = paths.results(collection) / FILES[kind], Runs()
    fix = f"run: study tools run --catalogue {collection}"
    require_file(path, fix, "there are no runs to report")
    records = read_records(collection)
    for cell, rows in _read_long(path).groupby(CELL, sort=False):
        protocol, system = map(str, cell)
        if (protocol, system) not in records:
            raise StudyError("a run has no record beside it", file=path, row=f"{protocol}, {system}", fix=fix)
        table = rows.drop(columns=CELL).dropna(axis=1, how="all").reset_index(drop=True)
        runs.setdefault(protocol, {})[system] = per_task.check(table, path) if kind == "per_query" else table
    return runs


def compare_systems(
    runs: Mapping[str, pd.DataFrame], reference: str, metric: str, groups: Mapping[str, str]
) -> pd.DataFrame:
    """Every other system of a protocol against the reference: a table of `compare_all`.

    Queries made from one task, one dialogue or one target are no independent evidence. Where some share an origin
    (`groups`), that is the unit that is resampled: intervals come from the cluster bootstrap, p-values from tests on
    one value per origin, and the column ``groups`` counts the origins.
    """
    table = compare_all(runs, reference, [metric], SEED)
    if not groups:
        return table
    lines = []
    for system in table["system"]:
        pairs = paired(runs[system], runs[reference], metric)
        unit = pairs.index.astype(str).map(groups)
        if unit.isna().any():
            raise StudyError("a query has no group", row=str(pairs.index[unit.isna()][0]), fix="run the protocol again")
        difference = pairs["system"] - pairs["reference"]
        low, high = cluster_interval(difference.to_numpy(np.float64), unit.to_numpy(), seed=SEED)
        by_group = difference.groupby(unit.to_numpy())
        # The mean over queries is the sum over groups, up to a constant: signs of whole groups are flipped.
        resamples = max(RESAMPLES, 100 * len(table))
        p = randomisation(by_group.sum().to_numpy(np.float64), seed=SEED, resamples=resamples)
        line = {"diff_ci_low": low, "diff_ci_high": high, "groups": by_group.ngroups}
        lines.append(line | {"wilcoxon_p": wilcoxon(by_group.mean().to_numpy()), "randomisation_p": p})
    table = table.assign(**pd.DataFrame(lines, index=table.index))
    holms = {f"{test}_holm": holm(table[test].to_numpy()) for test in ("wilcoxon_p", "randomisation_p")}
    return table.assign(**holms)


def aggregate(table: pd.DataFrame, collection: str, protocol: str, system: str) -> pd.DataFrame:
    """Means as the evaluator gives them, and ``completeness``: the share of queries whose labels are all found."""
    means = per_task.aggregate(table, collection, protocol, system, PROFILE)
    complete = table.filter(regex="^recall@").eq(1).mean()
    cell = collection, protocol, system, PROFILE, SEED, "completeness"
    shares = [(*cell, int(str(name).partition("@")[2]), share) for name, share in complete.items()]
    return pd.concat([means, pd.DataFrame(shares, columns=means.columns)])


def report_runs(
    collection: str, references: Mapping[str, tuple[str, str]], pairs: Mapping[str, Sequence[tuple[str, str, str]]]
) -> Path:
    """Redo metrics.csv.xz and significance.csv of a collection from its runs; returns their folder.

    `references`: protocol -> the system that the others are compared with, and the metric. `pairs`: protocol ->
    further comparisons of two: system, reference, metric; each is a family of its own.
    """
    runs, folder = collect_runs(collection), paths.tables(collection)
    means = [aggregate(table, collection, at, name) for at, tables in runs.items() for name, table in tables.items()]
    write_csv(folder / "metrics.csv.xz", pd.concat(means))
    families = [(protocol, runs.get(protocol, {}), *compared) for protocol, compared in references.items()]
    for protocol, several in pairs.items():
        for system, reference, metric in several:
            two = {name: table for name, table in runs.get(protocol, {}).items() if name in (system, reference)}
            families.append((protocol, two, reference, metric))
    tested = []
    for protocol, systems, reference, metric in families:
        if len(systems) > 1:
            path = folder / f"groups_{protocol}.csv"
            groups = dict(read_csv(path, dtype=str)[["task_id", "group"]].to_numpy()) if path.exists() else {}
            tested.append(compare_systems(systems, reference, metric, groups).assign(protocol=protocol))
    if tested:
        write_csv(folder / "significance.csv", pd.concat(tested))
    return folder
