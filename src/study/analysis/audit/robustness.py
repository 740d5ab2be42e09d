"""Do the differences between systems survive other splits? What tasks, seeds and the split bring to each of them
(``conf/audit/robustness.yaml``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from omegaconf import DictConfig

from study.analysis.framework import Context, Fits, Tables, analysis, kept_fits
from study.base import paths
from study.config.changes import with_tuned_values
from study.config.compose import build_system, load
from study.data import dataset as datasets
from study.data import splits
from study.evaluation.per_task import KEYS
from study.evaluation.records import git_state
from study.evaluation.runs import run_seed
from study.evaluation.statistics import paired
from study.runner.identity import row_key
from study.runner.row_store import read_per_task

USUAL = "seeded permutation"  # the study's tie rule; earlier fits also have values by two other ones


@dataclass(frozen=True)
class Robustness:
    """The differences of systems on other splits."""

    metric: str
    split_seeds: list[int]
    split_systems: dict[str, list[str]]
    few_splits: dict[str, int]
    differences: dict[str, list[list[str]]]
    system_seed: int


def split_fits(dataset: str) -> Fits:
    """The runs on further splits: a row per metric with its mean over tasks."""
    return kept_fits(dataset, "robustness", "split_fits", ("protocol", "system", "split_seed", "fingerprint"))


def run_splits(config: DictConfig, settings: Robustness) -> pd.DataFrame:
    """The table of `split_fits`; runs what is missing of the cheap systems on further random splits."""
    data = datasets.load(str(config.dataset.name))
    shared = [f"dataset={data.name}", f"profile={config.profile.name}"]
    composed = {
        (protocol, system): with_tuned_values(load([f"system={system}", f"protocol={protocol}", *shared]))
        for protocol, systems in settings.split_systems.items()
        for system in systems
    }
    prints = {pair: row_key(chosen) for pair, chosen in composed.items()}
    keys = [
        (*pair, seed, key)
        for number, seed in enumerate(settings.split_seeds)
        for pair, key in prints.items()
        if number < settings.few_splits.get(pair[1], len(settings.split_seeds))
    ]

    def fit(key: tuple[Any, ...]) -> pd.DataFrame:
        protocol, system, seed, _ = key
        workdir = paths.cache() / "audit" / system
        workdir.mkdir(parents=True, exist_ok=True)
        split, built = splits.make(data, protocol, seed=seed), build_system(composed[protocol, system].system)
        values = run_seed(built, data, split, seed=settings.system_seed, workdir=workdir).per_task.drop(columns=KEYS)
        means = values.mean().rename_axis("metric").rename("value").reset_index()
        return means.assign(tie_rule=USUAL, commit=git_state()["commit"])

    return split_fits(data.name).complete(keys, fit)


def components(
    system: pd.DataFrame, reference: pd.DataFrame, metric: str, *, n_tasks: int, over_splits: Sequence[float] = ()
) -> dict[str, float]:
    """The standard deviations of the mean difference of two systems, seeds averaged.

    Args:
        system, reference: per-task tables of the same test tasks.
        n_tasks: of the data set; splits draw their test tasks from them without replacement, so a mean over n of them
            varies less by 1 - n / n_tasks (Cochran 1977, eq. 2.10).
        over_splits: the difference on each further split, one seed each.

    Returns: n (test tasks), diff, task_sd (standard error over tasks), seeds, reference_seeds, seed_sd (both sides'
    means over their seeds), splits, split_diff (mean over the splits), split_sd (over the splits, where tasks and
    seeds differ too), split_alone_sd (what tasks and single seeds leave of it, at least 0). NaN where one seed or too
    few splits tell nothing.
    """
    pairs = paired(system, reference, metric)
    difference, n = pairs["system"] - pairs["reference"], len(pairs)
    by_seed = [frame.groupby("seed")[metric].mean() for frame in (system, reference)]
    (seeds, others), (noise, other_noise) = map(len, by_seed), (float(means.var(ddof=1)) for means in by_seed)
    tasks = float(difference.var(ddof=1)) / n
    further = pd.Series(over_splits, dtype=float)
    alone = np.maximum(further.var(ddof=1) - (1 - n / n_tasks) * tasks - noise - other_noise, 0)  # keeps NaN
    return {
        "n": n,
        "diff": float(difference.mean()),
        "task_sd": tasks**0.5,
        "seeds": seeds,
        "reference_seeds": others,
        "seed_sd": (noise / seeds + other_noise / others) ** 0.5,
        "splits": len(further),
        "split_diff": further.mean(),
        "split_sd": further.std(ddof=1),
        "split_alone_sd": float(alone) ** 0.5,
    }


@analysis("robustness", slow=True)
def variance(study: Context) -> Tables:
    """What do tasks, seeds and the split bring to each difference? Runs what is missing of the further splits."""
    settings, rows = study.settings(Robustness), []
    metric, runs = settings.metric, run_splits(study.config, settings)
    usual = runs[(runs["metric"] == metric) & (runs["tie_rule"] == USUAL)]
    values = usual.pivot_table("value", "split_seed", ["protocol", "system"])
    for protocol, pairs in settings.differences.items():
        for names in pairs:
            frames = list(read_per_task(study.dataset, protocol, names).values())
            if len(frames) == 2:
                sides = [values.get((protocol, name), pd.Series(dtype=float)) for name in names]
                further = (sides[0] - sides[1]).dropna().tolist()
                about = {"protocol": protocol, "system": names[0], "reference": names[1], "metric": metric}
                parts = components(frames[0], frames[1], metric, n_tasks=study.data.n_tasks, over_splits=further)
                rows.append(about | parts)
    return {"variance": pd.DataFrame(rows)} if rows else {}
