"""Stage `report`: from per-task files to the tables of metrics, comparisons and costs. Trains nothing."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pandas as pd
from omegaconf import DictConfig, OmegaConf

from study import paths
from study.analysis.report import tables
from study.config.compose import choices
from study.errors import StudyError
from study.evaluation import per_task
from study.evaluation.records import read_record
from study.evaluation.significance import compare_all
from study.files import write_csv
from study.reranking.language_model.endpoint import systems_not_run
from study.runner import freshness as stale

LOG = logging.getLogger(__name__)

# (protocol, system) -> its per-task table and its record.
Runs = dict[tuple[str, str], tuple[pd.DataFrame, dict[str, Any]]]
# The declared family of comparisons: every system against T2MRec, on the paper's two primary metrics at 10.
REFERENCE = "t2mrec"
COMPARED = ("recall@10", "ndcg@10")
# Families whose systems read the answers: shown, never compared.
CEILINGS = ("ceiling",)
# Families whose rows stand for no system, what a fault brings among them: shown, never best, tested or ranked.
APART = (*CEILINGS, "fault")
# What runs.csv takes from every seed's facts.
FACTS = ("tasks", "seconds_fit", "seconds_score", "peak_memory_mib", "parameters", "tie_rate", "unfilled")


def system_settings() -> dict[str, DictConfig]:
    """``conf/system`` as far as printing needs it: title, family, protocols, tuned and search of every system."""
    return {name: _settings(paths.conf() / "system" / f"{name}.yaml") for name in choices("system")}


def _settings(path: Path) -> DictConfig:
    """A file of ``conf/system`` merged with those it builds on; interpolations stay as they stand."""
    own = OmegaConf.load(path)
    assert isinstance(own, DictConfig)
    bases = [_settings(path.with_name(f"{base}.yaml")) for base in own.get("defaults", []) if base != "_self_"]
    merged = OmegaConf.merge(*bases, own)
    assert isinstance(merged, DictConfig)
    return merged


def collect(dataset: str) -> Runs:
    """The per-task table and the record of every (protocol, system) that has both."""
    found = {}
    for path in sorted((paths.results(dataset) / "per_task").glob("*/*.csv.xz")):
        protocol, system = path.parent.name, path.name.removesuffix(".csv.xz")
        record = paths.results(dataset) / "records" / protocol / f"{system}.json"
        if not record.exists():
            raise StudyError(
                "a per-task file has no record beside it",
                file=record,
                fix=f"run: study run system={system} protocol={protocol} dataset={dataset}",
            )
        found[protocol, system] = (per_task.read(path), _checked(record))
    if not found:
        raise StudyError(
            "there are no runs to report",
            file=paths.results(dataset) / "per_task",
            fix=f"run: study run dataset={dataset}, or make repro DATASET={dataset}",
        )
    return found


def _checked(path: Path) -> dict[str, Any]:
    """A run's record, with all that the tables take from it."""
    record, fix = read_record(path), "run the system again, or take the file from git"
    for key, kind in (("profile", str), ("config", dict), ("seeds", list)):
        if not isinstance(record.get(key), kind):
            raise StudyError("the record lacks a part", file=path, column=key, fix=fix)
    for place, facts in enumerate(record["seeds"]):
        for key in FACTS:
            if not isinstance(facts, dict) or key not in facts:
                raise StudyError("the record of a seed lacks a value", file=path, row=place, column=key, fix=fix)
    if not record["seeds"]:
        raise StudyError("the record holds no seed", file=path, column="seeds", fix=fix)
    return record


def report(config: DictConfig) -> Path:
    """Write metrics.csv.xz, overall.*, significance.csv and runs.csv of the configured data set; returns their folder.

    A run that today's settings, code or data would not give again is warned of and marked in runs.csv, column `stale`.
    """
    dataset, folder = config.dataset.name, paths.tables(config.dataset.name)
    runs, settings = collect(dataset), system_settings()
    table = costs(runs)
    metrics = pd.concat(
        per_task.aggregate(frame, dataset, protocol, system, record["profile"])
        for (protocol, system), (frame, record) in runs.items()
    )
    overall = per_task.overall(metrics)
    titles = {name: system.title for name, system in settings.items()}
    protocols = sorted({protocol for protocol, _ in runs})
    comparisons = [
        compare_all(
            {name: frame for (at, name), (frame, _) in runs.items() if at == protocol and not _apart(settings, name)},
            REFERENCE,
            COMPARED,
            seed=0,
            per_comparison=1000,
        ).assign(protocol=protocol)
        for protocol in protocols
        if (protocol, REFERENCE) in runs and sum(at == protocol and not _apart(settings, name) for at, name in runs) > 1
    ]
    write_csv(folder / "metrics.csv.xz", metrics)
    write_csv(folder / "overall.csv", overall)
    tested = pd.concat(comparisons) if comparisons else pd.DataFrame(columns=["system", "protocol"])
    write_csv(folder / "significance.csv", tested)
    write_csv(folder / "runs.csv", table)
    absent = systems_not_run(dataset)
    parts = {
        protocol: tables.comparison(
            overall,
            protocol,
            titles,
            not_run=[name for name in absent if protocol in settings[name].protocols],
            unranked=[name for name in settings if _apart(settings, name)],
            costs=table,
            marks=tables.marks(tested[tested["protocol"] == protocol]),
        )
        for protocol in protocols
    }
    captions = {protocol: caption(dataset, protocol, runs, table) for protocol in protocols}
    tables.write_all(folder, "overall", parts, captions)
    return folder


def _apart(settings: dict[str, DictConfig], name: str) -> bool:
    """Whether a row stands for no system (`APART`)."""
    return name in settings and settings[name].family in APART


def caption(dataset: str, protocol: str, runs: Runs, table: pd.DataFrame) -> str:
    """What a table shows: which question, which data, how many tasks, which profile, how many rows are in doubt.

    Args:
        table: from `costs`.
    """
    chosen = [(frame, record) for (at, _), (frame, record) in runs.items() if at == protocol]
    profiles = sorted({record["profile"] for _, record in chosen})
    tasks = chosen[0][0]["task_id"].nunique()
    return (
        f"Fitting the released labels: {dataset}, protocol {protocol}, {tasks} test tasks, "
        f"profile {', '.join(profiles)}; mean ± standard deviation over seeds; bold: best, italic: second best, "
        f"ceilings and faults left out; {tables.ABOVE} above, {tables.BELOW} below {REFERENCE} by both tests "
        f"(significance.csv), Holm-corrected p < {tables.ALPHA}" + doubts(table, protocol)
    )


def doubts(table: pd.DataFrame, protocol: str) -> str:
    """How many rows were made with uncommitted changes, are stale, or could not be checked; empty where there is none.

    Args:
        table: from `costs`.
    """
    rows = table[table["protocol"] == protocol]
    parts = {
        "made with uncommitted changes": int((rows["dirty"] == True).sum()),  # noqa: E712 (None: no repository)
        "stale": int(rows["stale"].isin([stale.SETTINGS, stale.INPUTS]).sum()),
        "without a check of code and data": int((rows["stale"] == stale.UNCHECKED).sum()),
    }
    named = [f"{count} {what}" for what, count in parts.items() if count]
    return f"; of {len(rows)} rows {', '.join(named)} (runs.csv)" if named else ""


def costs(runs: Runs) -> pd.DataFrame:
    """Per run: seeds, seconds to fit and to score (mean over seeds), peak memory, parameters (empty where
    not counted), ties, code, staleness.

    Stale runs are warned of one by one, those that cannot be checked by their number.
    """
    rows: list[dict[str, Any]] = []
    known: dict[str, Any] = {}
    unchecked: list[str] = []
    for (protocol, system), (_, record) in runs.items():
        mark, reason = stale.state(record, known)
        if mark == stale.UNCHECKED:
            unchecked.append(reason)
        elif mark != stale.CURRENT:
            LOG.warning("STALE: %s under %s: %s; run it again", system, protocol, reason)
        seeds = pd.DataFrame(record["seeds"])
        rows.append(
            {
                "protocol": protocol,
                "system": system,
                "profile": record["profile"],
                "seeds": len(seeds),
                "tasks": int(seeds["tasks"].max()),
                "seconds_fit": seeds["seconds_fit"].mean(),
                "seconds_score": seeds["seconds_score"].mean(),
                "peak_memory_mib": seeds["peak_memory_mib"].max(),
                "parameters": parameters(record),
                "tie_rate": seeds["tie_rate"].mean(),
                "unfilled": int(seeds["unfilled"].max()),
                "commit": record["git"]["commit"],
                "dirty": record["git"]["dirty"],
                "stale": mark,
            }
        )
    if unchecked:
        LOG.warning(
            "%d of %d runs could not be checked for staleness, the first because %s",
            len(unchecked),
            len(runs),
            unchecked[0],
        )
    if dirty := sum(row["dirty"] is True for row in rows):
        LOG.warning("%d of %d runs were made with uncommitted changes to code or configuration", dirty, len(runs))
    return pd.DataFrame(rows).astype({"parameters": "Int64"})


def parameters(record: dict[str, Any]) -> int | None:
    """The trained parameters of a run, the most of its seeds; None for a transfer, whose base is not counted."""
    if "base" in record["config"]["system"]["model"]:
        return None
    return max(int(seed["parameters"]) for seed in record["seeds"])
