"""How well the released labels are fitted from fewer training tasks: one small cached file per fit, so it resumes.

Scored on the validation part, so that a curve never spends the test part on a choice about training.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sp
from omegaconf import DictConfig
from tqdm import tqdm

from study import paths
from study.config.compose import build_system, load
from study.data.dataset import Dataset
from study.data.splits import Split
from study.errors import StudyError
from study.evaluation.metrics import per_task
from study.evaluation.runs import KEPT, rank_tasks
from study.evaluation.significance import bootstrap_interval
from study.files import write_csv
from study.runner.rows import fingerprint, load_inputs, with_tuned_values

METRICS = ("ndcg@10", "recall@10")


def part_of(split: Split, share: float, draw: int) -> Split:
    """The split with a share of its training tasks, drawn by seed; a smaller share of a draw lies within a larger one.

    Raises:
        StudyError: the share is outside (0, 1] or leaves no task.
    """
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
    """Fit on a share of the training tasks and measure on the validation part.

    Returns: task_id and `METRICS`, one row per validation task.
    """
    part, asked = part_of(split, share, draw), split.tasks("valid")
    system = build_system(config.system)
    with tempfile.TemporaryDirectory() as folder:
        system.fit(data, part, seed=draw, workdir=Path(folder))
    rows, _ = rank_tasks(system, part, asked, part="valid", k=KEPT, seed=draw, n_servers=data.n_servers)
    values = per_task(rows, split.valid[asked], ks=(KEPT,))
    return pd.concat([pd.DataFrame({"task_id": data.tasks["id"].to_numpy()[asked]}), values[list(METRICS)]], axis=1)


def fits(dataset: str, settings: Mapping[str, Any]) -> pd.DataFrame:
    """Every fit of the settings, those done before taken from the cache.

    Returns: columns system, share, draw, task_id and `METRICS`.
    """
    wanted = [
        (name, float(share), int(draw))
        for name in settings["systems"]
        for share in settings["shares"]
        for draw in settings["draws"]
    ]
    folder, frames = paths.cache() / "useful" / "curves" / dataset, []
    for name, share, draw in tqdm(wanted, desc="learning curves", unit="fit", disable=not sys.stderr.isatty()):
        config = with_tuned_values(load([f"dataset={dataset}", f"system={name}", f"protocol={settings['protocol']}"]))
        path = folder / f"{name}-{share:g}-{draw}-{fingerprint(config)}.csv"
        if not path.exists():
            data, split = load_inputs(config)
            write_csv(path, fitted(config, data, split, share, draw))
        frames.append(pd.read_csv(path).assign(system=name, share=share, draw=draw))
    return pd.concat(frames, ignore_index=True)


def curves(values: pd.DataFrame, tasks: int, *, seed: int) -> pd.DataFrame:
    """Mean quality by share, and what the tasks since the share before brought.

    Args:
        values: rows of `fits`.
        tasks: number of training tasks.

    Returns: columns system, metric, share, tasks, draws, mean, sd (over draws), low, high (95 % bootstrap interval over
        validation tasks of the values averaged over draws), difference, difference_low, difference_high (from the share
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
                low, high = bootstrap_interval(score.to_numpy(np.float64), seed=seed)
                row = {
                    "system": name,
                    "metric": metric,
                    "share": share,
                    "tasks": round(float(share) * tasks),
                    "draws": len(by_draw),
                    "mean": score.mean(),
                    "sd": by_draw.std() if len(by_draw) > 1 else np.nan,
                    "low": low,
                    "high": high,
                }
                if before is not None:
                    gained = (score - before).to_numpy(np.float64)
                    less, more = bootstrap_interval(gained, seed=seed)
                    row |= {"difference": gained.mean(), "difference_low": less, "difference_high": more}
                rows.append(row)
                before = score
    return pd.DataFrame(rows)


def table(dataset: str, settings: Mapping[str, Any]) -> pd.DataFrame:
    """`curves` of all fits."""
    _, split = load_inputs(load([f"dataset={dataset}", f"protocol={settings['protocol']}"]))
    return curves(fits(dataset, settings), len(split.tasks("train")), seed=settings["seed"])
