"""Fits of the released labels on the validation part: from fewer training tasks, and `label_ranker` one idea at a time.

Each fit is one small cached file, so a stopped command goes on. The validation part is used, so that no choice about
training spends the test part.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sp
from omegaconf import DictConfig
from tqdm import tqdm

from study import paths
from study.analysis.usefulness.choosing import one_at_a_time
from study.config.changes import changed, with_tuned_values
from study.config.compose import build_system, load
from study.data.dataset import Dataset
from study.data.splits import Split
from study.errors import StudyError
from study.evaluation.metrics import per_task
from study.evaluation.runs import KEPT, rank_tasks
from study.evaluation.statistics import mean_interval
from study.files import read_csv, write_csv
from study.runner.identity import row_key
from study.runner.inputs import load_inputs

METRICS = ("ndcg@10", "recall@10")


@dataclass(frozen=True)
class Curves:
    """``conf/usefulness/curves.yaml``, where every key is explained."""

    protocol: str
    systems: list[str]
    shares: list[float]
    draws: list[int]
    seed: int


@dataclass(frozen=True)
class LabelSteps:
    """``conf/usefulness/label_steps.yaml``, where every key is explained."""

    protocol: str
    system: str
    seed: int
    steps: dict[str, dict[str, Any]]


def part_of(split: Split, share: float, draw: int) -> Split:
    """The split with a share of its training tasks, drawn by seed; smaller shares of a draw lie within larger ones."""
    tasks = split.tasks("train")
    count = round(share * len(tasks))
    if not 0 < share <= 1 or not count:
        raise StudyError(f"a share of {share} leaves {count} training tasks", column="shares", fix="raise it")
    kept = np.zeros(split.train.shape[0], dtype=np.float32)
    kept[np.random.default_rng(draw).permutation(tasks)[:count]] = 1
    train = sp.csr_matrix(sp.diags(kept) @ split.train)
    train.eliminate_zeros()
    return Split(split.protocol, train.astype(np.float32), split.valid, split.test, split.cold, split.candidates)


def fitted(config: DictConfig, data: Dataset, split: Split, share: float, draw: int) -> pd.DataFrame:
    """Fit on a share of the training tasks: task_id and `METRICS`, one row per validation task."""
    part, asked = part_of(split, share, draw), split.tasks("valid")
    system = build_system(config.system)
    with tempfile.TemporaryDirectory() as folder:
        system.fit(data, part, seed=draw, workdir=Path(folder))
    rows, _ = rank_tasks(system, part, asked, part="valid", k=KEPT, seed=draw)
    values = per_task(rows, split.valid[asked], ks=(KEPT,))
    return pd.concat([pd.DataFrame({"task_id": data.tasks["id"].to_numpy()[asked]}), values[list(METRICS)]], axis=1)


def _cached(path: Path, config: DictConfig, share: float, draw: int) -> pd.DataFrame:
    """`fitted`, taken from the file where it is there."""
    if not path.exists():
        data, split = load_inputs(config.dataset.name, config.protocol.name)
        write_csv(path, fitted(config, data, split, share, draw))
    return read_csv(path)


def curve_fits(dataset: str, settings: Curves) -> pd.DataFrame:
    """Every fit of the settings: columns system, share, draw, task_id and `METRICS`."""
    wanted = [(name, float(s), draw) for name in settings.systems for s in settings.shares for draw in settings.draws]
    folder, frames = paths.cache() / "usefulness" / "curves" / dataset, []
    for name, share, draw in tqdm(wanted, desc="learning curves", unit="fit", disable=not sys.stderr.isatty()):
        config = with_tuned_values(load([f"dataset={dataset}", f"system={name}", f"protocol={settings.protocol}"]))
        path = folder / f"{name}-{share:g}-{draw}-{row_key(config)}.csv"
        frames.append(_cached(path, config, share, draw).assign(system=name, share=share, draw=draw))
    return pd.concat(frames, ignore_index=True)


def curve_table(values: pd.DataFrame, tasks: int, *, seed: int) -> pd.DataFrame:
    """Mean quality by share of all `tasks` training tasks, and what those since the share before brought.

    Returns: columns system, metric, share, tasks, draws, mean, sd (over draws), ci_low, ci_high (95 % bootstrap
    interval over validation tasks of the values averaged over draws), diff, diff_ci_low, diff_ci_high (from the share
    before, paired by task).
    """
    rows = []
    for name, own in values.groupby("system", sort=False):
        for metric in METRICS:
            before: pd.Series | None = None
            for share in sorted(own["share"].unique()):
                part = own[own["share"] == share]
                score = part.groupby("task_id")[metric].mean().dropna()
                by_draw = part.groupby("draw")[metric].mean()
                row = {"system": name, "metric": metric, "share": share, "tasks": round(float(share) * tasks)}
                row |= {"draws": len(by_draw), "mean": score.mean(), "sd": by_draw.std()}
                row |= mean_interval(score, seed=seed)
                if before is not None:
                    row |= mean_interval(score - before, seed=seed, name="diff", prefix="diff_")
                rows.append(row)
                before = score
    return pd.DataFrame(rows)


def laid_over(config: DictConfig, changes: Mapping[str, Any]) -> DictConfig:
    """The configuration with some values of `system.model` replaced; lists and mappings are not merged."""
    for name in changes:
        if name not in config.system.model:
            fix = f"one of: {', '.join(map(str, config.system.model))}"
            raise StudyError(f"{config.system.name} has no setting {name!r}", column="steps", fix=fix)
    return changed(config, {f"system.model.{name}": value for name, value in changes.items()}, merge=False)


def label_step_fits(dataset: str, settings: LabelSteps) -> dict[str, pd.DataFrame]:
    """Per step (its title), one row per validation task."""
    whole = load([f"dataset={dataset}", f"system={settings.system}", f"protocol={settings.protocol}"])
    folder, frames = paths.cache() / "usefulness" / "label_steps" / dataset, {}
    for title, changes in tqdm(settings.steps.items(), desc=settings.system, disable=not sys.stderr.isatty()):
        config = laid_over(whole, changes)
        path = folder / f"{settings.seed}-{row_key(config)}.csv"
        frames[title] = _cached(path, config, 1.0, settings.seed)
    return frames


def label_step_table(values: Mapping[str, pd.DataFrame], *, seed: int) -> pd.DataFrame:
    """The columns of `one_at_a_time` for steps by title over tasks; `values`: title -> `fitted`."""
    own = {title: frame.assign(seed=seed) for title, frame in values.items()}
    table = one_at_a_time(own, [*values], METRICS, seed=seed)
    return table.drop(columns=["before", "wins", "ties", "losses"]).rename(columns={"system": "title"})
