"""Reading the runs of a data set: their per-task tables, their records, and what they cost."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from study.base import paths
from study.base.errors import StudyError
from study.base.registry import left_out
from study.base.settings import read_settings
from study.config.compose import sound_systems
from study.config.groups import ORACLE
from study.evaluation.per_task import aggregate, overall
from study.evaluation.statistics import bootstrap_means, compare_all, harmonic_mean, percentile_limits
from study.runner import provenance
from study.runner.row_store import list_rows, read_per_task, read_records, rows_folder

LOG = logging.getLogger(__name__)

# (protocol, system) -> its per-task table and its record.
Runs = dict[tuple[str, str], tuple[pd.DataFrame, dict[str, Any]]]
# Systems are compared with T2MRec, on the paper's two primary metrics at 10.
REFERENCE = "t2mrec"
COMPARED = ("recall@10", "ndcg@10")
# Test -> column of the side it finds better: of the mean difference, or of the ranks.
SIDES = {"randomisation": "diff", "wilcoxon": "rank_biserial"}
HOLDS, FAILS = "holds", "does not hold"  # verdicts on a statement
# Families whose rows are no system: shown, never best, tested or ranked.
APART = (ORACLE, "reference_bug")


@dataclass(frozen=True)
class Statistics:
    """``conf/statistics.yaml``, which explains its keys."""

    test: str
    alpha: float
    families: dict[str, list[str]]
    judged: list[str]
    further: dict[str, list[str]]

    def __post_init__(self) -> None:
        if self.test not in SIDES:
            raise StudyError(f"there is no test {self.test!r}", column="test", fix=f"one of: {', '.join(SIDES)}")
        names = [name for family in self.families.values() for name in family]
        if repeated := sorted(name for name in set(names) if names.count(name) > 1):
            raise StudyError(f"{repeated[0]} stands twice", column="families", fix="name a system in one family, once")

    def finds(self, tested: pd.DataFrame) -> pd.DataFrame:
        """The rows of a table of comparisons that the declared test finds significant after correction."""
        return tested[tested[f"{self.test}_p_holm"] < self.alpha]


def read_statistics() -> Statistics:
    """Read ``conf/statistics.yaml``; StudyError unless its keys are those of `Statistics`."""
    return read_settings(Statistics, paths.conf() / "statistics.yaml")


def declared_families(protocol: str, leave_out: Sequence[str]) -> dict[str, list[str]]:
    """The systems of each family of ``conf/statistics.yaml`` that a protocol is for, run or not. `leave_out`: of the
    data set, families and patterns of names."""
    systems = {
        name
        for name, system in sound_systems().items()
        if protocol in system.protocols and not left_out(name, system.family, list(leave_out))
    }
    declared = read_statistics().families
    return {family: [name for name in names if name in systems] for family, names in declared.items()}


def compare_with_reference(frames: Mapping[str, pd.DataFrame], protocol: str, leave_out: Sequence[str]) -> pd.DataFrame:
    """Every system against `REFERENCE` on the metrics `COMPARED`: rows of `compare_all`, systems in the order given.
    Holm corrects within each family of `declared_families`; a system of none has no corrected p-value, and family 0."""
    families, parts = declared_families(protocol, leave_out), []
    corrected = {name for names in families.values() for name in names}
    others = [name for name in frames if name not in corrected]
    for names, family in [*((names, names) for names in families.values()), (others, [])]:
        chosen = {name: frames[name] for name in frames if name in {REFERENCE, *names}}
        if len(chosen) > 1:
            parts.append(compare_all(chosen, REFERENCE, COMPARED, seed=0, per_comparison=1000, family=family))
    return pd.concat(parts).sort_values("system", key=lambda names: names.map(list(frames).index), kind="stable")


def collect(dataset: str) -> Runs:
    """(protocol, system) -> per-task values and record of every row. Raises StudyError: there is none."""
    rows, records = list_rows(dataset), read_records(dataset)
    if not rows:
        fix = f"run: study run dataset={dataset}, or make repro DATASET={dataset}"
        raise StudyError("there are no runs to report", file=rows_folder(dataset), fix=fix)
    for row, part in product(rows, ("profile", "config", "seeds")):
        if not records[row].get(part):
            file = rows_folder(dataset) / "records" / row[0]
            fix = f"run {row[1]} again, or take the file from git"
            raise StudyError("the record lacks a part", file=file, row=row[1], column=part, fix=fix)
    tables = {protocol: read_per_task(dataset, protocol) for protocol in {protocol for protocol, _ in rows}}
    return {(protocol, system): (tables[protocol][system], records[protocol, system]) for protocol, system in rows}


def costs(runs: Runs) -> pd.DataFrame:
    """One row per run: seeds, seconds (means over seeds), peak memory, parameters (empty where not counted), ties,
    unfilled places, `lengths`, code, and whether it is stale. A run that replayed a language model's kept replies has
    no seconds of scoring, since reading them takes no time of the model's.

    Warns of stale runs and of those that cannot be checked.
    """
    rows, unchecked = list[dict[str, Any]](), list[str]()
    for (protocol, system), (_, record) in runs.items():
        mark, reason = provenance.state(record)
        if mark == provenance.UNCHECKED:
            unchecked.append(reason)
        elif mark != provenance.CURRENT:
            LOG.warning("STALE: %s under %s: %s; run it again", system, protocol, reason)
        seeds, reports = pd.DataFrame(record["seeds"]), [seed.get("report", {}) for seed in record["seeds"]]
        row = {"protocol": protocol, "system": system, "profile": record["profile"], "seeds": len(seeds)}
        row |= {"tasks": int(seeds["tasks"].max()), **seeds[["seconds_fit", "seconds_score"]].mean()}
        row |= {"peak_memory_mib": seeds["peak_memory_mib"].max(), "parameters": parameters(record)}
        row |= {"tie_rate": seeds["tie_rate"].mean(), "unfilled": int(seeds["unfilled"].max())}
        if any(report.get("replayed") for report in reports):
            row["seconds_score"] = float("nan")
        rows.append(row | lengths(reports) | {key: record["git"][key] for key in ("commit", "dirty")} | {"stale": mark})
    if unchecked:
        message = "%d of %d runs could not be checked for staleness, the first because %s"
        LOG.warning(message, len(unchecked), len(runs), unchecked[0])
    if dirty := [str(row["system"]) for row in rows if row["dirty"] is True]:
        message = "%d of %d runs were made with uncommitted changes (`dirty` in runs.csv): %s"
        LOG.warning(message, len(dirty), len(runs), ", ".join(dict.fromkeys(dirty)))
    return pd.DataFrame(rows).astype({"parameters": "Int64"})


def lengths(reports: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """How long a run trained, from the report of each seed.

    Returns: epochs (that ran) and best_epoch (whose weights were kept) as means over seeds, and not_converged: in how
    many seeds a stage of the training was best at its end. NaN for a run that looks for no best epoch.
    """
    if not all("best_epoch" in report for report in reports):
        return dict.fromkeys(("epochs", "best_epoch", "not_converged"), float("nan"))
    means = {name: float(np.mean([report[name] for report in reports])) for name in ("epochs", "best_epoch")}
    return means | {"not_converged": sum(best_at_end(report) for report in reports)}


def best_at_end(report: Mapping[str, Any]) -> bool:
    """Whether the last evaluation of a training or of an earlier stage was its best; a quantiser has none."""
    stages = [report, *(stage for stage in report.values() if isinstance(stage, Mapping))]
    return any("best_epoch" in stage and stage["best_epoch"] == stage["epochs"] for stage in stages)


def parameters(record: dict[str, Any]) -> int | None:
    """The trained parameters of a run, the most of its seeds; None for a transfer, whose base is not counted."""
    if "base" in record["config"]["system"]["model"]:
        return None
    return max(int(seed["parameters"]) for seed in record["seeds"])


def overall_means(frames: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """The means of per-task tables over tasks and seeds with their sd, n_seeds, ci_low and ci_high (`mean_intervals`);
    index (system, measure). F1 as the paper has it, of mean precision and recall, is ``f1_of_means@k``."""
    return with_intervals(pd.concat(aggregate(frame, "", "", name, "") for name, frame in frames.items()), frames)


def with_intervals(metrics: pd.DataFrame, frames: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """`per_task.overall` of one protocol with the interval of each mean; index (system, measure). `metrics`: rows of
    `per_task.aggregate` of the per-task tables `frames`."""
    table, keys = overall(metrics), ["system", "measure"]
    table["measure"] = table["metric"] + "@" + table["k"].astype(str)
    return table.merge(mean_intervals(frames), on=keys, validate="one_to_one").set_index(keys, drop=False)


def mean_intervals(frames: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """The 95 % bootstrap interval over tasks of every mean of per-task tables, values averaged over seeds first.

    It is the one interval of each mean in the study. Tables over the same tasks share their draws.

    Returns: columns system (key of `frames`), measure (``ndcg@10``; ``f1_of_means@k`` where precision and recall are),
        ci_low and ci_high, NaN for fewer than two tasks that have a relevant server.
    """
    none = (float("nan"), float("nan"))
    rows = [
        (name, measure, *(percentile_limits(draws) if len(tasks) > 1 else none))
        for name, (tasks, resampled) in resample_means(frames).items()
        for measure, draws in resampled.items()
    ]
    return pd.DataFrame(rows, columns=["system", "measure", "ci_low", "ci_high"])


def resample_means(frames: Mapping[Any, pd.DataFrame]) -> dict[Any, tuple[pd.DataFrame, pd.DataFrame]]:
    """Of per-task tables, by their keys: the values of tasks that have a relevant server, averaged over seeds (index
    task_id), and bootstrap means of them over tasks `with_f1_of_means`. Tables over the same tasks share their draws.
    """
    means = {key: frame.drop(columns="seed").groupby("task_id").mean().dropna() for key, frame in frames.items()}
    found = {}
    for size in {len(table) for table in means.values()}:  # at once, which gives what each alone does
        alike = {key: table for key, table in means.items() if len(table) == size}
        drawn = bootstrap_means(np.hstack([table.to_numpy(np.float64) for table in alike.values()]), seed=0)
        ends = np.cumsum([table.shape[1] for table in alike.values()])[:-1]
        for (key, table), draws in zip(alike.items(), np.split(drawn, ends, axis=1), strict=True):
            found[key] = table, with_f1_of_means(pd.DataFrame(draws, columns=table.columns))
    return found


def with_f1_of_means(means: pd.DataFrame) -> pd.DataFrame:
    """Means of precision and recall with the F1 that they have, which is not the mean of each task's F1."""
    cutoffs = [name.partition("@")[2] for name in map(str, means) if name.startswith("precision@")]
    sides = {k: (f"precision@{k}", f"recall@{k}") for k in cutoffs if f"recall@{k}" in means}
    return means.assign(**{f"f1_of_means@{k}": harmonic_mean(means[p], means[r]) for k, (p, r) in sides.items()})


def doubts(table: pd.DataFrame, protocol: str) -> str:
    """How many rows of `costs` under a protocol were made with uncommitted changes, are stale, or were not checked."""
    rows = table[table["protocol"] == protocol]
    counts = {
        "made with uncommitted changes": (rows["dirty"] == True).sum(),  # noqa: E712 (None: no repository)
        "stale": rows["stale"].isin([provenance.SETTINGS, provenance.INPUTS]).sum(),
        "without a check of code and data": (rows["stale"] == provenance.UNCHECKED).sum(),
    }
    named = [f"{count} {what}" for what, count in counts.items() if count]
    return f"; of {len(rows)} rows {', '.join(named)} (runs.csv)" if named else ""
