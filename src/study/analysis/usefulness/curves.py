"""Fits of the released labels, on the validation part so that no choice about training spends the test part: from fewer
training tasks, and `label_ranker` one idea at a time."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sp
from omegaconf import DictConfig

from study.analysis.framework import Context, Tables, analysis
from study.analysis.usefulness.choosing import one_at_a_time
from study.base.errors import StudyError
from study.config.changes import changed, with_tuned_values
from study.config.compose import build_system, load
from study.data.splits import Split
from study.evaluation.runs import run_seed
from study.evaluation.statistics import mean_interval
from study.runner.identity import row_key
from study.runner.inputs import load_inputs

METRICS = ("ndcg@10", "recall@10")
KEYS = ("system", "share", "draw", "fingerprint")


@dataclass(frozen=True)
class Curves:
    """Systems that are fitted on shares of the training tasks, each drawn with several seeds."""

    protocol: str
    systems: list[str]
    shares: list[float]
    draws: list[int]
    seed: int


@dataclass(frozen=True)
class LabelSteps:
    """Settings of a system, each with one idea more than the one before, by title."""

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
    train = sp.csr_matrix(sp.diags(kept) @ split.train, dtype=np.float32)
    train.eliminate_zeros()
    return replace(split, train=train)


def fitted(config: DictConfig, share: float, draw: int) -> pd.DataFrame:
    """Fit on a share of the training tasks: task_id and `METRICS` in six digits, one row per validation task."""
    data, split = load_inputs(config.dataset.name, config.protocol.name)
    part, system = part_of(split, share, draw), build_system(config.system)
    with tempfile.TemporaryDirectory() as folder:
        table = run_seed(system, data, part, seed=draw, workdir=Path(folder), part="valid").per_task
    return table[["task_id"]].join(table[list(METRICS)].map("{:.6g}".format).astype(float))


def kept_values(study: Context, wanted: Mapping[tuple[Any, ...], DictConfig]) -> pd.DataFrame:
    """`fitted` for every key (system or title, share, draw) with its configuration, those that are kept not again."""
    configs = {(*key, row_key(config)): config for key, config in wanted.items()}
    fits = study.fits(f"{study.analysis.name}_fits", KEYS)
    return fits.complete(list(configs), lambda key: fitted(configs[key], key[1], key[2]))


def curve_table(values: pd.DataFrame, tasks: int, *, seed: int) -> pd.DataFrame:
    """Mean quality by share of all `tasks` training tasks, and what those since the share before brought.

    Returns: columns system, metric, share, tasks, draws, mean, sd (over draws), ci_low, ci_high (95 % bootstrap
    interval over validation tasks of the values averaged over draws), diff, diff_ci_low, diff_ci_high (from the share
    before, paired by task).
    """
    rows, before = [], pd.Series(dtype=float)
    for name, metric, share in product(values["system"].unique(), METRICS, sorted(values["share"].unique())):
        part = values[(values["system"] == name) & (values["share"] == share)]
        score, by_draw = (part.groupby(over)[metric].mean().dropna() for over in ("task_id", "draw"))
        row = {"system": name, "metric": metric, "share": share, "tasks": round(float(share) * tasks)}
        row |= {"draws": len(by_draw), "mean": score.mean(), "sd": by_draw.std(), **mean_interval(score, seed=seed)}
        if share > values["share"].min():
            row |= mean_interval(score - before, seed=seed, name="diff", prefix="diff_")
        rows.append(row)
        before = score
    return pd.DataFrame(rows)


@analysis("usefulness", slow=True)
def curves(study: Context) -> Tables:
    """How well are the labels fitted from fewer training tasks?"""
    settings = study.settings(Curves)
    shared = [f"dataset={study.dataset}", f"protocol={settings.protocol}"]
    configs = {name: with_tuned_values(load([*shared, f"system={name}"])) for name in settings.systems}
    wanted = {key: configs[key[0]] for key in product(configs, map(float, settings.shares), settings.draws)}
    tasks = len(study.split(settings.protocol).tasks("train"))
    return {"curves": curve_table(kept_values(study, wanted), tasks, seed=settings.seed)}


def laid_over(config: DictConfig, changes: Mapping[str, Any]) -> DictConfig:
    """The configuration with some values of `system.model` replaced; lists and mappings are not merged."""
    for name in changes:
        if name not in config.system.model:
            fix = f"one of: {', '.join(map(str, config.system.model))}"
            raise StudyError(f"{config.system.name} has no setting {name!r}", column="steps", fix=fix)
    return changed(config, {f"system.model.{name}": value for name, value in changes.items()}, merge=False)


def label_step_table(values: pd.DataFrame, *, seed: int) -> pd.DataFrame:
    """The columns of `one_at_a_time` over tasks; `values`: rows of `fitted`, column system the title of each step."""
    own = {str(title): frame.assign(seed=seed) for title, frame in values.groupby("system", sort=False)}
    table = one_at_a_time(own, [*own], METRICS, seed=seed)
    return table.drop(columns=["before", "wins", "ties", "losses"]).rename(columns={"system": "title"})


@analysis("usefulness", slow=True)
def label_steps(study: Context) -> Tables:
    """What does each idea of `label_ranker` add to fitting the labels?"""
    settings = study.settings(LabelSteps)
    whole = load([f"dataset={study.dataset}", f"system={settings.system}", f"protocol={settings.protocol}"])
    wanted = {(title, 1.0, settings.seed): laid_over(whole, changes) for title, changes in settings.steps.items()}
    return {"label_steps": label_step_table(kept_values(study, wanted), seed=settings.seed)}
