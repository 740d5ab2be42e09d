"""The figure and the sentences of `study audit run --part faults`, for the notebook."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from study.analysis.audit.faults import RAN
from study.analysis.colours import GREEN, GREY, RED
from study.analysis.plots import STYLE, canvas, metric_name
from study.errors import StudyError

Tables = Mapping[str, pd.DataFrame]
# What a row without a number is marked with.
MARK = "not run"


def direction(row: Mapping[Hashable, Any]) -> str:
    """ "raises", "lowers" or "does not move" the score, by the interval of the difference over tasks."""
    return "raises" if row["low"] > 0 else "lowers" if row["high"] < 0 else "does not measurably move"


def about_faults(tables: Tables) -> list[str]:
    """One sentence per fault: what it gives, beside the method without it."""
    said = []
    for row in tables["faults"].to_dict("records"):
        name = f"{row['system']} under {row['protocol']}, {row['fault']} (`{row['row']}`)"
        if row["state"] != RAN:
            said.append(f"{name}: {MARK}.")
            continue
        seeds = f"{row['seeds']:.0f} seed{'s' if row['seeds'] > 1 else ''}"
        text = (
            f"{name}: the fault {direction(row)} {metric_name(row['metric'])}: {row['without']:.3f} without it, "
            f"{row['with_fault']:.3f} with it, {row['difference']:+.3f} (95 % interval over {row['n']:.0f} tasks "
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
    ran = table["state"] == RAN
    if not ran.any():
        raise StudyError("no fault has run", fix="study run system=msbpr_leaky, then study audit run --part faults")
    titles = table["system"] + ": " + table["fault"]
    metric = str(table["metric"].iloc[0])
    caption = (
        "Open: the method as built here, without the fault of its reference program. Filled: with it, at the same "
        "seeds. Green: the fault raises the score, red: it lowers it, where the 95 % bootstrap interval of the "
        "difference over tasks leaves out 0; grey: where it does not."
    )
    figure, axes = canvas(
        1.6 + 0.42 * len(table), caption=caption, title="What faults of reference programs give on the test tasks"
    )
    panel, places = axes[0, 0], np.arange(len(table))[::-1]
    inks = np.where(table["low"] > 0, GREEN, np.where(table["high"] < 0, RED, GREY))
    shown, at = table[ran], places[ran.to_numpy()]
    panel.hlines(at, shown["without"], shown["with_fault"], colors=list(inks[ran.to_numpy()]), linewidth=1.6)
    panel.scatter(shown["without"], at, s=30, facecolors="white", edgecolors=inks[ran.to_numpy()], zorder=3)
    panel.scatter(shown["with_fault"], at, s=30, color=list(inks[ran.to_numpy()]), zorder=3)
    for row, place in zip(shown.to_dict("records"), at, strict=True):
        right = max(row["without"], row["with_fault"])
        panel.annotate(f"{row['difference']:+.3f}", (right, place), (6, -3), textcoords="offset points", fontsize=7.5)
    for place in places[~ran.to_numpy()]:
        panel.annotate(MARK, (0.01, place), (0, -3), xycoords=("axes fraction", "data"), textcoords="offset points",
                       fontsize=7.5, color=GREY)  # fmt: skip
    panel.set_yticks(places, titles.tolist(), parse_math=False)
    panel.set(ylim=(-0.7, len(table) - 0.3), xlabel=f"{metric_name(metric)} (0 to 1)")
    panel.set_xlim(0, None)
    panel.margins(x=0.12)
    panel.grid(axis="x")
    return figure
