"""How well `label_ranker` fits the released labels, one idea at a time; on the validation part, so that no choice about
training spends the test part."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from omegaconf import DictConfig

from study.analysis.framework import Context, Tables, analysis, kept_fits
from study.analysis.usefulness.choosing import one_at_a_time
from study.config.changes import change_settings
from study.config.compose import build_system, load
from study.evaluation.runs import run_seed
from study.runner.identity import row_key
from study.runner.inputs import load_inputs

METRICS = ("ndcg@10", "recall@10")


@dataclass(frozen=True)
class LabelSteps:
    """Settings of a system, each with one idea more than the one before, by title."""

    protocol: str
    system: str
    seed: int
    steps: dict[str, dict[str, Any]]


def fit_step(config: DictConfig, seed: int) -> pd.DataFrame:
    """Fit on the training tasks: task_id and `METRICS` in six digits, one row per validation task."""
    (data, split), system = load_inputs(config.dataset.name, config.protocol.name), build_system(config.system)
    with tempfile.TemporaryDirectory() as folder:
        table = run_seed(system, data, split, seed=seed, workdir=Path(folder), part="valid").per_task
    return table[["task_id"]].join(table[list(METRICS)].map("{:.6g}".format).astype(float))


def label_step_table(values: pd.DataFrame, *, seed: int) -> pd.DataFrame:
    """The columns of `one_at_a_time` over tasks; `values`: rows of `fitted`, with the title of each step."""
    frames = {str(title): frame.assign(seed=seed) for title, frame in values.groupby("title", sort=False)}
    table = one_at_a_time(frames, [*frames], METRICS, seed=seed)
    return table.drop(columns=["before", "wins", "ties", "losses"]).rename(columns={"system": "title"})


@analysis("usefulness", slow=True)
def label_steps(study: Context) -> Tables:
    """What does each idea of `label_ranker` add to fitting the labels?"""
    settings, configs = study.settings(LabelSteps), {}
    whole = load([f"dataset={study.dataset}", f"system={settings.system}", f"protocol={settings.protocol}"])
    for title, changes in settings.steps.items():
        config = change_settings(whole, {f"system.model.{name}": value for name, value in changes.items()}, merge=False)
        configs[title, row_key(config)] = config
    fits = kept_fits(study.dataset, "usefulness", "label_steps_fits", ("title", "fingerprint"))
    values = fits.complete(list(configs), lambda key: fit_step(configs[key], settings.seed))
    return {"label_steps": label_step_table(values, seed=settings.seed)}
