"""What the rule baseline's score rests on: counts of training labels by attribute, neighbours in the file, or words.

Most of its terms are counts of labels, and a count follows whatever made the labels, a rule or a judgement. So its
score says how far attributes tell the labels, not that rules made them. Beside it stands what the walks alone give.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
from omegaconf import DictConfig

from study import paths
from study.analysis.audit import labels_settings
from study.analysis.audit.labels_settings import Rules, table
from study.config.compose import build_system, load
from study.data import dataset as datasets
from study.data import split_files
from study.data.dataset import Dataset
from study.data.splits import Split
from study.errors import StudyError
from study.evaluation.records import record
from study.evaluation.runs import run_seed
from study.evaluation.significance import bootstrap_interval
from study.files import write_csv, write_json

RESAMPLES = 2_000


def configured(settings: Rules, dataset: str, changes: dict[str, Any], system: str = "") -> DictConfig:
    """The configuration of a system (by default the one that is examined) with some of its model's settings changed."""
    changed = [f"system.model.{name}={json.dumps(value)}" for name, value in changes.items()]
    return load(
        [f"dataset={dataset}", f"system={system or settings.system}", f"protocol={settings.protocol}", *changed]
    )


def ablation(data: Dataset, split: Split, settings: Rules) -> pd.DataFrame:
    """Every variant and every other system on every part, beside the first variant.

    Returns: columns variant, part, metric, n (tasks), mean, low, high (95 %, over tasks), difference (to the first
        variant, the same tasks) with _low and _high.
    """
    rows = []
    first: dict[str, pd.DataFrame] = {}
    models = {title: configured(settings, data.name, changes) for title, changes in settings.variants.items()}
    models |= {name: configured(settings, data.name, {}, name) for name in settings.others}
    for variant, config in models.items():
        for part in settings.parts:
            workdir = paths.cache() / "audit" / settings.system
            workdir.mkdir(parents=True, exist_ok=True)
            done = run_seed(
                build_system(config.system), data, split, seed=settings.system_seed, workdir=workdir, part=part
            ).per_task.set_index("task_id")
            reference = first.setdefault(part, done)
            for metric in settings.metrics:
                values = done[metric].dropna().to_numpy()
                gap = (done[metric] - reference[metric]).dropna().to_numpy()
                ends = [bootstrap_interval(each, seed=settings.seed, resamples=RESAMPLES) for each in (values, gap)]
                rows.append((variant, part, metric, len(values), values.mean(), *ends[0], gap.mean(), *ends[1]))
    columns = [
        "variant",
        "part",
        "metric",
        "n",
        "mean",
        "low",
        "high",
        "difference",
        "difference_low",
        "difference_high",
    ]
    return pd.DataFrame(rows, columns=columns)


def compute(config: DictConfig) -> list[Path]:
    """Write rules.csv.

    Raises:
        StudyError: the protocol's split has not been made.
    """
    settings, dataset = labels_settings.read(Rules), str(config.dataset.name)
    data, path = datasets.load(dataset), paths.splits(dataset) / f"{settings.protocol}.parquet"
    if not path.exists():
        raise StudyError("there is no split to run on", file=path, fix=f"run: study split dataset={dataset}")
    write_csv(table(dataset, "rules"), ablation(data, split_files.load(path, data), settings))
    write_json(table(dataset, "rules").with_suffix(".json"), record(dataset=dataset, settings=vars(settings)))
    return [table(dataset, "rules")]
