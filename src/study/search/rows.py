"""The trials of a sweep as the rows of trials.csv, and the choice that is made from them."""

from __future__ import annotations

from typing import Any

import pandas as pd
from optuna.trial import FrozenTrial

from study.search.settings import Sweep


def row_of(sweep: Sweep, trial: FrozenTrial) -> dict[str, Any]:
    """One line of trials.csv, of a finished trial."""
    known = {"trial": trial.number, "seed": trial.params["seed"], "seconds": trial.user_attrs["seconds"]}
    values = {name: trial.params[name] for name in sweep.space}
    return {**known, **values, **trial.user_attrs["measures"]}


def in_order(sweep: Sweep, trials: pd.DataFrame) -> pd.DataFrame:
    """The trials of a grid in the order of its file, and numbered so, in whatever order workers finished them."""
    keys = [*sweep.space, "seed"]
    places = {tuple(point[key] for key in keys): number for number, point in enumerate(sweep.points())}
    numbers = [places[key] for key in trials[keys].itertuples(index=False, name=None)]
    return trials.assign(trial=numbers).sort_values("trial", ignore_index=True)


def timing(sweep: Sweep, trials: pd.DataFrame) -> dict[str, Any]:
    """What the trials of a grid or a search took, in seconds by the clock, all workers added up.

    Of a grid that keeps its trainings they alone count, each by what it took when it was made, for whichever sweep;
    those that nobody timed are counted in `untimed`. Else everything counts.
    """
    facts: dict[str, Any] = {"seconds": round(float(trials["seconds"].sum()), 1)}
    return facts | ({"untimed": int(trials["seconds"].isna().sum())} if sweep.kind == "grid" else {})


def chosen(sweep: Sweep, trials: pd.DataFrame) -> dict[str, Any]:
    """The settings with the best mean over seeds of the objective on validation; the earlier one of equals.

    Args:
        trials: trials.csv.
    """
    means = trials.groupby(list(sweep.space), sort=False)[f"valid/{sweep.objective}"].mean()
    best = means.idxmax()
    values = best if isinstance(best, tuple) else (best,)
    raw = {name: _plain_number(value) for name, value in zip(sweep.space, values, strict=True)}
    return {"value": round(float(means.max()), 6), "values": sweep.settle(raw)}


def _plain_number(value: Any) -> Any:
    """A number as yaml writes it, numpy's types included."""
    return value.item() if hasattr(value, "item") else value
