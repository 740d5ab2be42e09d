"""How much a language model's score depends on the wording of its question: one training, asked in all wordings."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from omegaconf import DictConfig
from tqdm import tqdm

from study import paths
from study.config.compose import build_system, load
from study.config.reader import read_settings
from study.config.schema import require_choice
from study.evaluation import per_task
from study.evaluation.metrics import per_task as measured
from study.evaluation.records import record
from study.evaluation.runs import CUTOFFS, KEPT, rank_tasks
from study.files import write_csv, write_json
from study.runner.rows import Outputs, fingerprint, limit_threads, load_inputs


@dataclass(frozen=True)
class Wordings:
    """``conf/audit/wordings.yaml``, where every key is explained."""

    system: str
    wordings: int
    metrics: list[str]
    seeds: dict[str, list[int]]

    def __post_init__(self) -> None:
        require_choice("system", self.system)
        for protocol in self.seeds:
            require_choice("protocol", protocol)


def asked(config: DictConfig, settings: Wordings, seed: int) -> pd.DataFrame:
    """Train the configured system once and measure the test tasks in every wording.

    Returns: a row per wording: protocol, seed, wording, tasks, the mean of every metric, and as_run: whether each task
        has the values of the run in the tables (of the wording that it asks in; empty for others and without a run).
    """
    limit_threads(config.profile.threads)
    data, split = load_inputs(config)
    system: Any = build_system(config.system)
    first = system.wording
    workdir = paths.cache() / "audit" / "wordings" / f"{config.protocol.name}-{seed}-{fingerprint(config)}"
    workdir.mkdir(parents=True, exist_ok=True)
    system.fit(data, split, seed=seed, workdir=workdir)
    tasks = split.tasks("test")
    ids = data.tasks["id"].to_numpy()[tasks]
    rows = []
    for wording in tqdm(range(settings.wordings), desc="wordings", unit="wording", disable=not sys.stderr.isatty()):
        system.wording = wording
        found, _ = rank_tasks(system, split, tasks, part="test", k=KEPT + 1, seed=seed, n_servers=data.n_servers)
        values = per_task.table(ids, seed, measured(found[:, :KEPT], split.test[tasks], ks=CUTOFFS))
        rows.append(
            {
                "protocol": str(config.protocol.name),
                "seed": seed,
                "wording": wording,
                "tasks": len(tasks),
                **{metric: values[metric].mean() for metric in settings.metrics},
                "as_run": as_run(values, data.name, config, seed) if wording == first else None,
            }
        )
    return pd.DataFrame(rows)


def as_run(values: pd.DataFrame, dataset: str, config: DictConfig, seed: int) -> bool | None:
    """Whether the run in the tables has the same values for every task; None where it has not run with this seed."""
    path = Outputs.of(dataset, str(config.protocol.name), str(config.system.name)).per_task
    if not path.exists():
        return None
    kept = per_task.read(path)
    kept = kept[kept["seed"] == seed].set_index("task_id")
    ours = values.set_index("task_id")[kept.columns]
    if kept.empty:
        return None
    return bool(np.allclose(ours.loc[kept.index].to_numpy(), kept.to_numpy(), atol=1e-6, equal_nan=True))


def compute(config: DictConfig) -> list[Path]:
    """Write wordings.csv; a training that was stopped goes on, and a finished one is kept in the cache."""
    settings, dataset = read_settings(Wordings, paths.conf() / "audit" / "wordings.yaml"), str(config.dataset.name)
    path = paths.results(dataset) / "audit" / "wordings.csv"
    parts = []
    for protocol, seeds in settings.seeds.items():
        chosen = load(
            [
                f"dataset={dataset}",
                f"protocol={protocol}",
                f"profile={config.profile.name}",
                f"system={settings.system}",
            ]
        )
        parts += [asked(chosen, settings, seed) for seed in seeds]
    table = pd.concat(parts, ignore_index=True)
    write_csv(path, table[["protocol", "seed", "wording", "tasks", *settings.metrics, "as_run"]].round(6))
    write_json(path.with_suffix(".json"), record(dataset=dataset, settings=vars(settings)))
    return [path]
