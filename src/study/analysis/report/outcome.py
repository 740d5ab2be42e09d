"""What a row is worth: its means with intervals, beside the reference, in seconds after the run."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from study.analysis.report.runs import COMPARED, REFERENCE
from study.analysis.report.tables import WIDTH
from study.config.compose import sound_systems
from study.evaluation.statistics import bootstrap_intervals, paired
from study.runner.row_store import read_per_task, read_row

if TYPE_CHECKING:
    from rich.table import Table

LOG = logging.getLogger(__name__)

# What a system is held against: the method under study, else, where that has no run, the simplest baseline.
REFERENCES = (REFERENCE, "popularity")


def outcome(dataset: str, protocol: str, system: str) -> pd.DataFrame:
    """One row per metric of `COMPARED`, for the system and, if one has run, the first of `REFERENCES`.

    Returns: columns system, metric, n (tasks with a relevant server), mean, ci_low, ci_high (95 % percentile bootstrap
    over tasks of the seed-averaged values), and for the system diff, diff_ci_low, diff_ci_high (of paired tasks to
    the reference), NaN without one.
    """
    own = read_row(dataset, protocol, system).per_task
    reference, other = _reference(dataset, protocol, system, own)
    rows = []
    for metric in COMPARED:
        pairs = paired(own, other, metric)
        values = np.column_stack([pairs["system"], pairs["reference"], pairs["system"] - pairs["reference"]])
        low, high = bootstrap_intervals(values, seed=0)
        cells = [(system, 0), (reference, 1)] if reference != system else [(system, 0)]
        for name, column in cells:
            row = {"system": name, "metric": metric, "n": len(pairs), "mean": values[:, column].mean()}
            row |= {"ci_low": low[column], "ci_high": high[column]}
            if len(cells) > 1 and not column:
                row |= {"diff": values[:, 2].mean(), "diff_ci_low": low[2], "diff_ci_high": high[2]}
            rows.append(row)
    columns = ["system", "metric", "n", "mean", "ci_low", "ci_high", "diff", "diff_ci_low", "diff_ci_high"]
    return pd.DataFrame(rows).reindex(columns=columns)


def _reference(dataset: str, protocol: str, system: str, own: pd.DataFrame) -> tuple[str, pd.DataFrame]:
    """The reference's name and per-task table; the system itself where none was asked the same tasks."""
    for name, found in read_per_task(dataset, protocol, [name for name in REFERENCES if name != system]).items():
        if set(found["task_id"]) == set(own["task_id"]):
            return name, found
        LOG.warning("warning: nothing is compared with %s, which ran for other tasks: run it again", name)
    return system, own


def shown(table: pd.DataFrame, dataset: str, protocol: str) -> Table:
    """`outcome` for a terminal."""
    from rich.table import Table

    titles = {name: str(settings.title) for name, settings in sound_systems().items()}
    heading = f"{dataset}, protocol {protocol}, {table['n'].max()} tasks: means with 95 % intervals over tasks"
    made = Table("system", "metric", "mean", "interval", "to the reference", "interval", title=heading, width=WIDTH)
    for row in table.to_dict("records"):
        cells = [f"{row['mean']:.4f}", f"{row['ci_low']:.4f} to {row['ci_high']:.4f}"]
        if pd.notna(row["diff"]):
            cells += [f"{row['diff']:+.4f}", f"{row['diff_ci_low']:+.4f} to {row['diff_ci_high']:+.4f}"]
        made.add_row(titles.get(row["system"], row["system"]), row["metric"], *cells)
    return made
