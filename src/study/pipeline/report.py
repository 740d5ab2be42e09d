"""Stage `report`: from per-task files to the tables of metrics, comparisons and costs. Trains nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
from omegaconf import DictConfig, OmegaConf

from study import paths
from study.analysis import tables
from study.config import choices
from study.errors import StudyError
from study.evaluation import per_task
from study.evaluation.significance import compare_all
from study.files import write_csv

# (protocol, system) -> its per-task table and its record.
Runs = dict[tuple[str, str], tuple[pd.DataFrame, dict[str, Any]]]
# The declared family of comparisons: every system against T2MRec, on the paper's two primary metrics at 10.
REFERENCE = "t2mrec"
COMPARED = ("recall@10", "ndcg@10")
# Families whose systems read the answers: shown, never compared.
CEILINGS = ("ceiling",)


def system_settings() -> dict[str, Any]:
    """``conf/system`` as far as printing needs it: title and family of every system."""
    settings = {}
    for name in choices("system"):
        own = OmegaConf.load(paths.conf() / "system" / f"{name}.yaml")
        assert isinstance(own, DictConfig)
        parents = [
            OmegaConf.load(paths.conf() / "system" / f"{base}.yaml")
            for base in own.get("defaults", [])
            if base != "_self_"
        ]
        settings[name] = OmegaConf.merge(*parents, own)
    return settings


def collect(dataset: str) -> Runs:
    """The per-task table and the record of every (protocol, system) that has both."""
    found = {}
    for path in sorted((paths.results(dataset) / "per_task").glob("*/*.csv.gz")):
        protocol, system = path.parent.name, path.name.removesuffix(".csv.gz")
        record = paths.results(dataset) / "records" / protocol / f"{system}.json"
        if not record.exists():
            raise StudyError("a per-task file has no record beside it", file=record,
                             fix=f"run: study run system={system} protocol={protocol} dataset={dataset}")  # fmt: skip
        found[protocol, system] = (per_task.read(path), json.loads(record.read_text()))
    if not found:
        raise StudyError("there are no runs to report", file=paths.results(dataset) / "per_task",
                         fix=f"run: study run dataset={dataset}, or make repro DATASET={dataset}")  # fmt: skip
    return found


def report(config: DictConfig) -> Path:
    """Write metrics.csv, overall.*, significance.csv and runs.csv of the configured data set; returns their folder."""
    dataset, folder = config.dataset.name, paths.tables(config.dataset.name)
    runs, settings = collect(dataset), system_settings()
    metrics = pd.concat(
        per_task.aggregate(frame, dataset, protocol, system, record["profile"])
        for (protocol, system), (frame, record) in runs.items()
    )
    overall = per_task.overall(metrics)
    titles = {name: system.title for name, system in settings.items()}
    protocols = sorted({protocol for protocol, _ in runs})
    comparisons = [
        compare_all(
            {name: frame for (at, name), (frame, _) in runs.items() if at == protocol and not _ceiling(settings, name)},
            REFERENCE, COMPARED, seed=0,
        ).assign(protocol=protocol)
        for protocol in protocols if (protocol, REFERENCE) in runs
        and sum(at == protocol and not _ceiling(settings, name) for at, name in runs) > 1
    ]  # fmt: skip
    write_csv(folder / "metrics.csv", metrics)
    write_csv(folder / "overall.csv", overall)
    write_csv(
        folder / "significance.csv",
        pd.concat(comparisons) if comparisons else pd.DataFrame(columns=["system", "protocol"]),
    )
    write_csv(folder / "runs.csv", costs(runs))
    parts = {protocol: tables.comparison(overall, protocol, titles) for protocol in protocols}
    captions = {protocol: caption(dataset, protocol, runs) for protocol in protocols}
    tables.write_all(folder, "overall", parts, captions)
    return folder


def _ceiling(settings: dict[str, Any], name: str) -> bool:
    """Whether a system reads the answers."""
    return name in settings and settings[name].family in CEILINGS


def caption(dataset: str, protocol: str, runs: Runs) -> str:
    """What a table shows: which question, which data, how many tasks, which profile."""
    chosen = [(frame, record) for (at, _), (frame, record) in runs.items() if at == protocol]
    profiles = sorted({record["profile"] for _, record in chosen})
    tasks = chosen[0][0]["task_id"].nunique()
    return (
        f"Fitting the released labels: {dataset}, protocol {protocol}, {tasks} test tasks, "
        f"profile {', '.join(profiles)}; mean ± standard deviation over seeds"
    )


def costs(runs: Runs) -> pd.DataFrame:
    """Per run: seeds, seconds to fit and to score (mean over seeds), peak memory, parameters, ties."""
    rows = []
    for (protocol, system), (_, record) in runs.items():
        seeds = pd.DataFrame(record["seeds"])
        rows.append({
            "protocol": protocol, "system": system, "profile": record["profile"], "seeds": len(seeds),
            "tasks": int(seeds["tasks"].max()), "seconds_fit": seeds["seconds_fit"].mean(),
            "seconds_score": seeds["seconds_score"].mean(), "peak_memory_mib": seeds["peak_memory_mib"].max(),
            "parameters": int(seeds["parameters"].max()), "tie_rate": seeds["tie_rate"].mean(),
            "unfilled": int(seeds["unfilled"].max()), "commit": record["git"]["commit"],
            "dirty": record["git"]["dirty"],
        })  # fmt: skip
    return pd.DataFrame(rows)
