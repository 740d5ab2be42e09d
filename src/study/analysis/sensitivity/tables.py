"""RQ3: sweeps over settings as the notebooks show them (paper, Figures 7 to 9), and the joint search."""

from __future__ import annotations

from typing import Any

import numpy as np
import optuna
import pandas as pd
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from study.analysis.report.tables import read
from study.errors import StudyError
from study.evaluation.metrics import PAPER_METRICS
from study.search.rows import chosen
from study.search.settings import Sweep, load
from study.search.sweep import folder_of


def trials(dataset: str, name: str) -> pd.DataFrame | None:
    """The trials of a sweep, or None where it has not run."""
    path = folder_of(dataset, name) / "trials.csv"
    return read(path) if path.exists() else None


def parameter(sweep: Sweep) -> str:
    """The one parameter of a grid."""
    if len(sweep.space) != 1:
        raise StudyError(
            f"{sweep.name} varies {len(sweep.space)} parameters, not one",
            file=Sweep.file(sweep.name),
            column="space",
            fix="show it as a search",
        )
    return next(iter(sweep.space))


def curve(sweep: Sweep, table: pd.DataFrame) -> pd.DataFrame:
    """Mean and spread over seeds for every value of a grid.

    Args:
        table: trials.csv.

    Returns: columns part, metric, value (of the parameter), mean, sd (ddof 1, NaN for one seed), seeds; values
        ascending.
    """
    name = parameter(sweep)
    rows = []
    for part in sweep.parts:
        for metric in PAPER_METRICS:
            grouped = table.groupby(name)[f"{part}/{metric}"].agg(["mean", "std", "size"])
            rows += [
                {
                    "part": part,
                    "metric": metric,
                    "value": value,
                    "mean": row["mean"],
                    "sd": row["std"],
                    "seeds": int(row["size"]),
                }
                for value, row in grouped.iterrows()
            ]
    return pd.DataFrame(rows)


def optimum(sweep: Sweep, table: pd.DataFrame) -> dict[str, Any]:
    """The value that validation chooses, and how it does beside the paper's, seed by seed; no test (see
    `study.analysis.sensitivity.claims.against_paper`).

    Returns: best (by the mean of the objective on validation), paper (the paper's value), gain_valid and gain_test
        (mean over seeds of best minus paper, the same seed on both sides) with their smallest and largest values over
        seeds (``_low``, ``_high``; no interval), and flat: the values whose mean on validation lies within one standard
        deviation over seeds of the best.
    """
    name, objective = parameter(sweep), f"valid/{sweep.objective}"
    grouped = table.groupby(name)[objective]
    means, deviations = grouped.mean(), grouped.std().fillna(0.0)
    best = float(chosen(sweep, table)["values"][name])
    margin = float(means[best] - deviations[best])
    flat = [float(value) for value in means.index.to_numpy()[means.to_numpy() >= margin]]
    found: dict[str, Any] = {"best": best, "paper": sweep.paper_best, "flat": flat}
    if sweep.paper_best in means.index:
        ours, theirs = (table[table[name] == value].set_index("seed") for value in (best, sweep.paper_best))
        for part in sweep.parts:
            gains = ours[f"{part}/{sweep.objective}"] - theirs[f"{part}/{sweep.objective}"]
            found |= {
                f"gain_{part}": float(gains.mean()),
                f"gain_{part}_low": float(gains.min()),
                f"gain_{part}_high": float(gains.max()),
            }
    return found


def paper_trial(sweep: Sweep, table: pd.DataFrame) -> pd.Series | None:
    """The trial of a search that has the paper's settings, the first of `enqueue`; None where there is none.

    It need not have the first number: a trial whose worker died is begun anew under another one.
    """
    if not sweep.enqueue:
        return None
    wanted = sweep.enqueue[0]
    same = np.all([np.isclose(table[name], wanted[name], rtol=1e-5, atol=0) for name in sweep.space], axis=0)
    return table[same].iloc[0] if same.any() else None


def shown_pairs(shares: pd.DataFrame) -> list[tuple[str, str]]:
    """The pairs of settings that are drawn: the two most important ones, then temperature and learning rate.

    Where those are the same, the most important setting with the third.

    Args:
        shares: from `importance`.
    """
    first, second, third = shares["parameter"][:3]
    other = ("training.temperature", "training.learning_rate")
    return [(first, second), (first, third) if {first, second} == set(other) else other]


def distribution(domain: dict[str, Any]) -> BaseDistribution:
    """Optuna's distribution of a search space's entry."""
    if "choices" in domain:
        return CategoricalDistribution(list(domain["choices"]))
    kind = IntDistribution if domain.get("type") == "int" else FloatDistribution
    return kind(domain["low"], domain["high"], log=domain.get("log", False))


def rebuilt(sweep: Sweep, table: pd.DataFrame) -> optuna.Study:
    """The search as an Optuna study in memory, from trials.csv alone."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="maximize")
    space = {name: distribution(domain) for name, domain in sweep.space.items()}
    for row in table.to_dict("records"):
        values = {str(name): _as(space[name], row[name]) for name in space}
        study.add_trial(
            optuna.trial.create_trial(params=values, distributions=space, value=row[f"valid/{sweep.objective}"])
        )
    return study


def _as(domain: BaseDistribution, value: float) -> Any:
    """A number of a CSV file as the type that its distribution holds; six digits may lie beyond an end."""
    if isinstance(domain, CategoricalDistribution):
        return min(domain.choices, key=lambda choice: abs(float(choice) - value))  # type: ignore[arg-type]
    assert isinstance(domain, IntDistribution | FloatDistribution)
    inside = min(max(value, domain.low), domain.high)
    return int(inside) if isinstance(domain, IntDistribution) else float(inside)


def importance(sweep: Sweep, table: pd.DataFrame, *, repeats: int = 10) -> pd.DataFrame:
    """How much of the objective's variance each parameter explains (fANOVA, Hutter et al. 2014).

    A forest of random trees fitted to a few dozen trials: the spread over `repeats` forests says how little that is.

    Returns: columns parameter, mean, low, high (smallest and largest of the repeats), most important first.
    """
    study = rebuilt(sweep, table)
    forests = [optuna.importance.FanovaImportanceEvaluator(seed=number) for number in range(repeats)]
    runs = [optuna.importance.get_param_importances(study, evaluator=forest) for forest in forests]
    shares = pd.DataFrame(runs).T
    found = pd.DataFrame({"mean": shares.mean(axis=1), "low": shares.min(axis=1), "high": shares.max(axis=1)})
    return found.sort_values("mean", ascending=False).rename_axis("parameter").reset_index()


def sweeps(dataset: str) -> dict[str, tuple[Sweep, pd.DataFrame]]:
    """The sweeps over one parameter that have run on a data set, in the paper's order."""
    found = {}
    for name in ("fusion_weight", "temperature", "learning_rate"):
        table = trials(dataset, name)
        if table is not None:
            found[name] = (load(name), table)
    return found
