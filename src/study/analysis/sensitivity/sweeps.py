"""RQ3: the paper's optima (Figures 7 to 9) against the values that validation chooses, and what explains the trials of
the joint search."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import optuna
import pandas as pd

from study.analysis.framework import Context, Tables, analysis
from study.analysis.report.runs import FAILS, HOLDS, SIDES, read_statistics
from study.base.files import read_csv
from study.evaluation.statistics import compare, holm
from study.search.sweep import Sweep, best_point, folder_of, load_sweep
from study.search.trials import distributions, read_value

PAPER = ("fusion_weight", "temperature", "learning_rate")  # Figures 7 to 9
# Another value is chosen, and the test does not show it to be better: no evidence against the paper, and none for it.
OPEN = "not contradicted"
TESTS = ("wilcoxon_p", "randomisation_p")
COLUMNS = ["sweep", "setting", "verdict", "paper", "chosen", "metric", "n", "seeds", "wins", "ties", "losses"]
COLUMNS += ["mean_system", "mean_reference", "diff", "diff_ci_low", "diff_ci_high", "rank_biserial"]
COLUMNS += ["wilcoxon_p", "randomisation_p", "family", "wilcoxon_p_holm", "randomisation_p_holm"]


def by_value(dataset: str, sweep: Sweep) -> dict[Any, pd.DataFrame]:
    """Value of a grid's setting -> per-task table of the test tasks. Raises StudyError: the sweep has not run."""
    (setting,) = sweep.space
    fix = f"run: study sweep {sweep.name} dataset={dataset}"
    rows = read_csv(folder_of(dataset, sweep.name) / "per_task.csv.xz", fix=fix)
    return {value: part.drop(columns=setting) for value, part in rows.groupby(setting)}


def against_paper(tables: Mapping[str, tuple[Sweep, Any, dict[Any, pd.DataFrame]]]) -> pd.DataFrame:
    """The value that validation chose against the paper's value on the test tasks: one family, one row per sweep.

    `tables`: name -> sweep, chosen value and per-task tables by value. Seeds are averaged task by task. Where
    validation chooses the paper's value, both sides are the same; the row stays in the family with p = 1. diff = chosen
    - paper; p-values with _holm.
    """
    rows = []
    for name, (sweep, chosen, frames) in tables.items():
        row = {"sweep": name, "setting": sweep.title, "paper": sweep.paper_best, "chosen": chosen}
        row["seeds"] = frames[chosen]["seed"].nunique()
        rows.append(row | compare(frames[chosen], frames[sweep.paper_best], sweep.objective, seed=0))
    table = pd.DataFrame(rows).assign(family=len(rows))
    table = table.assign(**{f"{test}_holm": holm(table[test].to_numpy()) for test in TESTS})
    return table.assign(verdict=[verdict(row) for row in table.to_dict("records")])[COLUMNS]


def verdict(row: Mapping[Any, Any]) -> str:
    """Whether the paper's optimum holds: validation chooses it, or the declared test finds it better than the chosen.
    ``conf/statistics.yaml`` declares the test."""
    settings = read_statistics()
    if row["chosen"] == row["paper"]:
        return HOLDS
    if row[f"{settings.test}_p_holm"] >= settings.alpha:
        return OPEN
    return FAILS if row[SIDES[settings.test]] > 0 else HOLDS


def importance(sweep: Sweep, trials: pd.DataFrame, *, repeats: int = 10) -> pd.DataFrame:
    """How much of the objective's variance each parameter explains (fANOVA, Hutter et al. 2014).

    Returns: parameter, mean, low and high over `repeats` forests, the largest mean first.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study, space = optuna.create_study(direction="maximize"), distributions(sweep.space)
    for row in trials.to_dict("records"):
        values = {name: read_value(domain, row[name]) for name, domain in space.items()}
        value = row[f"valid/{sweep.objective}"]
        study.add_trial(optuna.trial.create_trial(params=values, distributions=space, value=value))
    forests = [optuna.importance.FanovaImportanceEvaluator(seed=number) for number in range(repeats)]
    shares = pd.DataFrame([optuna.importance.get_param_importances(study, evaluator=forest) for forest in forests])
    summary = shares.agg(["mean", "min", "max"]).T.set_axis(["mean", "low", "high"], axis=1)
    return summary.sort_values("mean", ascending=False).rename_axis("parameter").reset_index()


@analysis("sensitivity")
def optima(study: Context) -> Tables:
    """Do the paper's optima of Figures 7 to 9 hold against the values that validation chooses, on the test tasks?"""
    sweeps = [sweep for sweep in map(load_sweep, PAPER) if folder_of(study.dataset, sweep.name).exists()]
    chosen = {}
    for sweep in sweeps:
        (setting,) = sweep.space
        trials = read_csv(folder_of(study.dataset, sweep.name) / "trials.csv")
        chosen[sweep.name] = sweep, best_point(sweep, trials)[setting], by_value(study.dataset, sweep)
    return {"optima": against_paper(chosen)} if sweeps else {}
