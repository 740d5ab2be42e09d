"""The figure and the sentences of `study audit run --part faults`, for the notebook."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from study.analysis.audit.reference_bugs import NOT_RUN, RAN
from study.analysis.report import plots
from study.analysis.report.plots import STYLE, canvas, metric_name
from study.errors import StudyError

Tables = Mapping[str, pd.DataFrame]


def direction(row: Mapping[Hashable, Any]) -> str:
    """What a fault does to the score: it has to show over tasks (the interval) and in every seed that ran."""
    if row["unmoved"] == 1:
        return "leaves every task's"
    return "raises" if _least(row) > 0 else "lowers" if _most(row) < 0 else "does not clearly move"


def _least(row: Mapping[Hashable, Any]) -> float:
    return float(min(row["low"], row["least"]))


def _most(row: Mapping[Hashable, Any]) -> float:
    return float(max(row["high"], row["most"]))


def about_faults(tables: Tables) -> list[str]:
    """One sentence per fault: what it gives, beside the method without it."""
    said = []
    for row in tables["faults"].to_dict("records"):
        name = f"{row['system']} under {row['protocol']}, {row['fault']} (`{row['row']}`)"
        if row["state"] != RAN:
            said.append(f"{name}: {NOT_RUN}.")
            continue
        seeds = f"{row['seeds']:.0f} seeds, {row['least']:+.3f} to {row['most']:+.3f}" if row["seeds"] > 1 else "1 seed"
        change = " as it is" if row["unmoved"] == 1 else ""
        text = (
            f"{name}: the fault {direction(row)} {metric_name(row['metric'])}{change}: {row['without']:.3f} without "
            f"it, {row['with_fault']:.3f} with it, {row['difference']:+.3f} (95 % interval over {row['n']:.0f} tasks "
            f"{row['low']:+.3f} to {row['high']:+.3f}; {seeds})."
        )
        if pd.notna(row["no_server"]):
            text += f" {row['no_server']:.1%} of its answers name no server."
        said.append(text)
    return said


@mpl.rc_context(STYLE)
def plot_faults(tables: Tables) -> Figure:
    """One line per fault, from the method without it (open) to the method with it (filled).

    Raises:
        StudyError: no fault has run.
    """
    table = tables["faults"]
    if not (table["state"] == RAN).any():
        raise StudyError(
            "no fault has run", fix="study run system=msbpr_leaky protocol=warm, then study audit run --part faults"
        )
    titles = table["system"] + ": " + table["fault"]
    metric = str(table["metric"].iloc[0])
    caption = (
        "Open: the method as built here, without the fault of its reference program. Filled: with it, at the same "
        "seeds. Green: the fault raises the score, red: it lowers it, where the 95 % bootstrap interval of the "
        "difference over tasks leaves out 0 and every seed says the same; grey: where not."
    )
    figure, axes = canvas(
        1.6 + 0.42 * len(table), caption=caption, title="What faults of reference programs give on the test tasks"
    )
    panel, places = axes[0, 0], np.arange(len(table))[::-1]
    clear = table.assign(low=table[["low", "least"]].min(axis=1), high=table[["high", "most"]].max(axis=1))
    plots.dumbbells(panel, clear, "without", "with_fault", "low", "high")
    for row, place in zip(table.to_dict("records"), places, strict=True):
        if row["state"] == RAN:
            text, at, coordinates = f"{row['difference']:+.3f}", max(row["without"], row["with_fault"]), "data"
        else:
            text, at, coordinates = NOT_RUN, 0.0, "axes fraction"
        panel.annotate(
            text, (at, place), (6, -3), xycoords=(coordinates, "data"), textcoords="offset points", fontsize=7.5
        )
    panel.set_yticks(places, titles.tolist(), parse_math=False)
    panel.margins(x=0.12)
    panel.set_xlim(left=0)
    panel.set_xlabel(f"{metric_name(metric)} (0 to 1)")
    return figure
