"""What scores of systems rest on: rules of attributes, bugs of reference programs.

Most terms of the attribute counts are counts of labels, and a count follows whatever made the labels, a rule or a
judgement. So its score says how far attributes tell the labels, not that rules made them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from omegaconf import DictConfig

from study.analysis.framework import Context, Tables, analysis
from study.base import paths
from study.base.errors import StudyError
from study.base.registry import require_choice
from study.config.compose import build_system, load
from study.data.dataset import Dataset
from study.data.splits import Split
from study.evaluation.runs import run_seed
from study.evaluation.statistics import FEW_RESAMPLES, bootstrap_interval, mean_interval, paired
from study.runner.row_store import list_rows, read_per_task, read_record

RAN, NOT_RUN = "run", "not run"
BUGS = ["row", "system", "protocol", "bug", "state", "metric", "seeds", "n", "without", "with_bug", "diff"]
BUGS += ["diff_ci_low", "diff_ci_high", "least", "most", "unmoved", "no_server"]


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
class ReferenceBug:
    """A bug of a reference program: the method's own system, the protocol of both rows, and what the bug is."""

    system: str
    protocol: str
    bug: str


@dataclass(frozen=True)
class ReferenceBugs:
    """Published methods beside their rows with a bug of the reference program."""

    metric: str
    resamples: int
    seed: int
    rows: dict[str, ReferenceBug]

    def __post_init__(self) -> None:
        for row, about in self.rows.items():
            require_choice("system", row)
            require_choice("system", about.system)
            require_choice("protocol", about.protocol)


def configured(settings: Rules, dataset: str) -> dict[str, DictConfig]:
    """The configuration of every variant of the examined system, by title, then of every other system, by name."""
    base = [f"dataset={dataset}", f"protocol={settings.protocol}"]
    made = {
        title: [f"system={settings.system}", *(f"system.model.{key}={json.dumps(value)}" for key, value in own.items())]
        for title, own in settings.variants.items()
    }
    made |= {name: [f"system={name}"] for name in settings.others}
    return {title: load([*base, *changes]) for title, changes in made.items()}


def rule_table(data: Dataset, split: Split, settings: Rules) -> pd.DataFrame:
    """Every variant of the attribute counts and every other system on every part, beside the first variant.

    mean with ci_low and ci_high (95 %, over tasks); diff to the first variant, the same tasks, with diff_ci_low and
    diff_ci_high.
    """
    rows: list[dict[str, Any]] = []
    first: dict[str, pd.DataFrame] = {}
    workdir = paths.cache() / "audit" / settings.system
    workdir.mkdir(parents=True, exist_ok=True)
    for (variant, config), part in product(configured(settings, data.name).items(), settings.parts):
        system, seed = build_system(config.system), settings.system_seed
        done = run_seed(system, data, split, seed=seed, workdir=workdir, part=part).per_task.set_index("task_id")
        reference = first.setdefault(part, done)
        for metric in settings.metrics:
            row = {"variant": variant, "part": part, "metric": metric, "n": int(done[metric].count())}
            gap = done[metric] - reference[metric]
            for name, ends, series in (("mean", "", done[metric]), ("diff", "diff_", gap)):
                draws: Any = {"seed": settings.seed, "resamples": FEW_RESAMPLES}
                row |= mean_interval(series.dropna(), **draws, name=name, prefix=ends)
            rows.append(row)
    return pd.DataFrame(rows)


@analysis("audit")
def rules(study: Context) -> Tables:
    """What does the score of the attribute counts rest on?"""
    settings = study.settings(Rules)
    return {"rules": rule_table(study.data, study.split(settings.protocol), settings)}


def answers_of_no_server(seeds: list[dict[str, Any]]) -> float:
    """The share of a generative method's answers that name no server, over all seeds of a record; NaN for others."""
    said = [facts.get("report", {}) for facts in seeds]
    written = sum(report.get("answers", 0) for report in said)
    return sum(report.get("answers_of_no_server", 0) for report in said) / written if written else np.nan


def bug_table(dataset: str, settings: ReferenceBugs) -> pd.DataFrame:
    """A published method beside its row with a bug of the reference program, from their runs: one row per bug.

    Both sides are compared at the seeds that both have; a pair of which a run is missing has no number. without and
    with_bug: means over tasks of the means over these seeds. diff: with - without, 95 % over tasks; least and
    most: in a single seed. unmoved: share of the tasks and seeds of the same value.
    """
    found, made = [], set(list_rows(dataset))
    for row, about in settings.rows.items():
        entry: dict[str, Any] = {"row": row, **vars(about), "state": NOT_RUN, "metric": settings.metric}
        if {(about.protocol, row), (about.protocol, about.system)} <= made:
            faulty, sound = read_per_task(dataset, about.protocol, (row, about.system)).values()
            shared = sorted(set(faulty["seed"]) & set(sound["seed"]))
            if not shared:
                said, fix = f"no seed of {row} is a seed of {about.system}", "run both with a common seed"
                raise StudyError(said, column="seed", fix=fix)
            faulty, sound = (frame[frame["seed"].isin(shared)] for frame in (faulty, sound))
            pairs = paired(faulty, sound, settings.metric)
            gap = (pairs["system"] - pairs["reference"]).to_numpy()
            low, high = bootstrap_interval(gap, seed=settings.seed, resamples=settings.resamples)
            by_seed = faulty.merge(sound, on=["task_id", "seed"], suffixes=("", "_sound"), validate="one_to_one")
            moved = by_seed[settings.metric] - by_seed[f"{settings.metric}_sound"]
            of_seed = moved.groupby(by_seed["seed"]).mean()
            entry |= {"state": RAN, "seeds": len(shared), "n": len(pairs), "without": pairs["reference"].mean()}
            entry |= {"with_bug": pairs["system"].mean(), "diff": gap.mean(), "diff_ci_low": low, "diff_ci_high": high}
            entry |= {"least": of_seed.min(), "most": of_seed.max(), "unmoved": float((moved == 0).mean())}
            entry["no_server"] = answers_of_no_server(read_record(dataset, about.protocol, row)["seeds"])
        found.append(entry)
    return pd.DataFrame(found, columns=BUGS).astype({"seeds": "Int64", "n": "Int64"})


@analysis("audit")
def reference_bugs(study: Context) -> Tables:
    """What do bugs of the reference programs give?"""
    return {"reference_bugs": bug_table(study.dataset, study.settings(ReferenceBugs))}
