"""What scores of systems rest on: rules of attributes, bugs of reference programs.

Most terms of the attribute counts are counts of labels, and a count follows whatever made the labels, a rule or a
judgement. So its score says how far attributes tell the labels, not that rules made them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import product
from typing import Any

import pandas as pd
from omegaconf import DictConfig

from study.analysis.framework import Context, Tables, analysis
from study.base import paths
from study.config.compose import build_system, load
from study.data.dataset import Dataset
from study.data.splits import Split
from study.evaluation.runs import run_seed
from study.evaluation.statistics import FEW_RESAMPLES, mean_interval
from study.runner.row_store import read_per_task


@dataclass(frozen=True)
class Rules:
    """What the attribute counts' score rests on."""

    system: str
    protocol: str
    parts: list[str]
    metrics: list[str]
    system_seed: int
    seed: int
    variants: dict[str, dict[str, Any]]
    others: list[str]


@dataclass(frozen=True)
class ReferenceBugs:
    """Published methods beside their rows with a bug of the reference program; `rows`: the row with the bug -> system
    (the method's own), protocol (of both) and bug (what it is)."""

    metric: str
    resamples: int
    seed: int
    rows: dict[str, dict[str, str]]


def configure_variants(settings: Rules, dataset: str) -> dict[str, DictConfig]:
    """The configuration of every variant of the examined system, by title, then of every other system, by name."""
    systems: dict[str, tuple[str, dict[str, Any]]] = {name: (name, {}) for name in settings.others}
    systems = {title: (settings.system, changes) for title, changes in settings.variants.items()} | systems
    configs = {}
    for title, (name, changes) in systems.items():
        words = [f"system.model.{key}={json.dumps(value)}" for key, value in changes.items()]
        configs[title] = load([f"dataset={dataset}", f"protocol={settings.protocol}", f"system={name}", *words])
    return configs


def rule_table(data: Dataset, split: Split, settings: Rules) -> pd.DataFrame:
    """Every variant of the attribute counts and every other system on every part, beside the first variant.

    mean with ci_low and ci_high (95 %, over tasks); diff to the first variant, the same tasks, with diff_ci_low and
    diff_ci_high.
    """
    rows, first = list[dict[str, Any]](), dict[str, pd.DataFrame]()
    workdir = paths.cache() / "audit" / settings.system
    workdir.mkdir(parents=True, exist_ok=True)
    draws: Any = {"seed": settings.seed, "resamples": FEW_RESAMPLES}
    about: Any = {"seed": settings.system_seed, "workdir": workdir}
    for (variant, config), part in product(configure_variants(settings, data.name).items(), settings.parts):
        run = run_seed(build_system(config.system), data, split, **about, part=part).per_task.set_index("task_id")
        reference = first.setdefault(part, run)
        for metric in settings.metrics:
            row = {"variant": variant, "part": part, "metric": metric, "n": int(run[metric].count())}
            row |= mean_interval(run[metric].dropna(), **draws)
            gap = (run[metric] - reference[metric]).dropna()
            rows.append(row | mean_interval(gap, **draws, name="diff", prefix="diff_"))
    return pd.DataFrame(rows)


@analysis("audit")
def rules(study: Context) -> Tables:
    """What does the score of the attribute counts rest on?"""
    settings = study.settings(Rules)
    return {"rules": rule_table(study.data, study.split(settings.protocol), settings)}


@analysis("audit")
def reference_bugs(study: Context) -> Tables:
    """What do bugs of the reference programs give? A published method beside its row with the bug, where both ran.

    Both sides are compared at the seeds that both have. without and with_bug: means over tasks of the means over these
    seeds. diff: with - without, 95 % over tasks; least and most: in a single seed. unmoved: share of the tasks and
    seeds of the same value.
    """
    settings, rows = study.settings(ReferenceBugs), []
    metric = settings.metric
    for name, about in settings.rows.items():
        runs = read_per_task(study.dataset, about["protocol"], (name, about["system"]))
        if len(runs) == 2:
            faulty, sound = (runs[system][["task_id", "seed", metric]] for system in (name, about["system"]))
            both = faulty.merge(sound, on=["task_id", "seed"], suffixes=("_bug", "_sound"), validate="one_to_one")
            by_task = both.groupby("task_id")[[f"{metric}_sound", f"{metric}_bug"]].mean().dropna()
            without, with_bug = by_task.mean()
            gap = by_task[f"{metric}_bug"] - by_task[f"{metric}_sound"]
            moved = both[f"{metric}_bug"] - both[f"{metric}_sound"]
            of_seed = moved.groupby(both["seed"]).mean()
            row = {"row": name, **about, "metric": metric, "seeds": len(of_seed), "n": len(gap)}
            row |= {"without": without, "with_bug": with_bug}
            row |= mean_interval(gap, seed=settings.seed, resamples=settings.resamples, name="diff", prefix="diff_")
            rows.append(row | {"least": of_seed.min(), "most": of_seed.max(), "unmoved": (moved == 0).mean()})
    return {"reference_bugs": pd.DataFrame(rows)} if rows else {}
