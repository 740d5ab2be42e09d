"""What the attribute counts' score rests on: counts of training labels by attribute, neighbours in the file, or words.

Most of the system's terms are counts of labels, and a count follows whatever made the labels, a rule or a judgement. So
its score says how far attributes tell the labels, not that rules made them. Beside it stands the system that follows
catalogue-order runs alone.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
from omegaconf import DictConfig

from study import paths
from study.analysis.audit.settings import Rules, read
from study.analysis.audit.tables import write_tables
from study.config.compose import build_system, load
from study.data import dataset as datasets
from study.data import split_files
from study.data.dataset import Dataset
from study.data.splits import Split
from study.errors import StudyError
from study.evaluation.runs import run_seed
from study.evaluation.significance import bootstrap_interval

RESAMPLES = 2_000


def configured(settings: Rules, dataset: str, changes: dict[str, Any], system: str = "") -> DictConfig:
    """The configuration of a system (by default the examined one) with some of its model's settings changed."""
    changed = [f"system.model.{name}={json.dumps(value)}" for name, value in changes.items()]
    base = [f"dataset={dataset}", f"system={system or settings.system}", f"protocol={settings.protocol}"]
    return load([*base, *changed])


def ablation(data: Dataset, split: Split, settings: Rules) -> pd.DataFrame:
    """Every variant and every other system on every part, beside the first variant.

    Returns: columns variant, part, metric, n (tasks), mean, low, high (95 %, over tasks), difference (to the first
        variant, the same tasks) with _low and _high.
    """
    rows: list[dict[str, Any]] = []
    first: dict[str, pd.DataFrame] = {}
    models = {title: configured(settings, data.name, changes) for title, changes in settings.variants.items()}
    models |= {name: configured(settings, data.name, {}, name) for name in settings.others}
    workdir = paths.cache() / "audit" / settings.system
    workdir.mkdir(parents=True, exist_ok=True)
    for variant, config in models.items():
        for part in settings.parts:
            system, seed = build_system(config.system), settings.system_seed
            done = run_seed(system, data, split, seed=seed, workdir=workdir, part=part).per_task.set_index("task_id")
            reference = first.setdefault(part, done)
            for metric in settings.metrics:
                row = {"variant": variant, "part": part, "metric": metric, "n": int(done[metric].count())}
                gap = done[metric] - reference[metric]
                for name, ends, series in (("mean", "", done[metric]), ("difference", "difference_", gap)):
                    values = series.dropna().to_numpy()
                    low, high = bootstrap_interval(values, seed=settings.seed, resamples=RESAMPLES)
                    row |= {name: values.mean(), f"{ends}low": low, f"{ends}high": high}
                rows.append(row)
    return pd.DataFrame(rows)


def compute(config: DictConfig) -> list[Path]:
    """Write rules.csv.

    Raises:
        StudyError: the protocol's split has not been made.
    """
    settings, dataset = read(Rules), str(config.dataset.name)
    data, path = datasets.load(dataset), paths.splits(dataset) / f"{settings.protocol}.parquet"
    if not path.exists():
        raise StudyError("there is no split to run on", file=path, fix=f"run: study split dataset={dataset}")
    return write_tables(dataset, {"rules": ablation(data, split_files.load(path, data), settings)}, "rules", settings)
