"""How sure the headline differences are: what the draw of tasks, the seeds and the split bring to their variance."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from study.analysis.audit.settings import Robustness
from study.analysis.report.runs import run_frames
from study.evaluation.statistics import paired


def seed_variance(frame: pd.DataFrame, metric: str) -> tuple[int, float]:
    """Number of seeds, and the variance over seeds of the mean over tasks of one run; NaN for one seed."""
    means = frame.groupby("seed")[metric].mean()
    return len(means), float(means.var(ddof=1))


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
    (seeds, own), (others, other) = seed_variance(system, metric), seed_variance(reference, metric)
    tasks = float(difference.var(ddof=1)) / n
    splits = float(np.var(over_splits, ddof=1)) if len(over_splits) > 1 else float("nan")
    alone = np.maximum(splits - (1 - n / n_tasks) * tasks - own - other, 0)  # keeps NaN
    return {
        "n": n,
        "diff": float(difference.mean()),
        "task_sd": tasks**0.5,
        "seeds": seeds,
        "reference_seeds": others,
        "seed_sd": (own / seeds + other / others) ** 0.5,
        "splits": len(over_splits),
        "split_diff": float(np.mean(over_splits)) if len(over_splits) else float("nan"),
        "split_sd": splits**0.5,
        "split_alone_sd": float(alone) ** 0.5,
    }


def variance_table(dataset: str, n_tasks: int, settings: Robustness, runs: pd.DataFrame) -> pd.DataFrame:
    """`components` of the configured differences whose systems both ran; `runs`: `robustness.split_fits`."""
    kept = runs[(runs["metric"] == settings.metric) & (runs["tie_rule"] == "seeded permutation")]
    values, rows = kept.pivot_table(index="split_seed", columns=["protocol", "system"], values="value"), []
    for protocol, pairs in settings.differences.items():
        for system, reference in pairs:
            frames = list(run_frames(dataset, protocol, (system, reference)).values())
            if len(frames) < 2:
                continue
            own, other = (protocol, system), (protocol, reference)
            further = (values[own] - values[other]).dropna().tolist() if {own, other} <= set(values) else []
            about = {"protocol": protocol, "system": system, "reference": reference, "metric": settings.metric}
            found = components(frames[0], frames[1], settings.metric, n_tasks=n_tasks, over_splits=further)
            rows.append(about | found)
    return pd.DataFrame(rows)
