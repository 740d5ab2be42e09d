"""Mean ranks over tasks with Nemenyi's critical difference: who differs from whom, without a reference system."""

from __future__ import annotations

import math
from collections.abc import Mapping

import matplotlib as mpl
import pandas as pd
from matplotlib.figure import Figure
from scipy.stats import studentized_range

from study.analysis.report import colours, legends, plots

ALPHA = 0.05


def mean_ranks(values: Mapping[str, pd.Series]) -> pd.DataFrame:
    """Every system's mean rank over the tasks that all of them have a value for; 1 is best, equal values share a rank.

    Args:
        values: printed name -> per-task values, averaged over seeds, index task_id.

    Returns: columns title, rank, from the best; attributes ``tasks`` and ``difference``, the critical difference: mean
        ranks further apart than it differ at the level `ALPHA` (Demšar 2006, section 3.2.2).
    """
    table = pd.DataFrame(dict(values)).dropna()
    ranks = table.rank(axis=1, ascending=False).mean().sort_values(kind="stable")
    k, n = table.shape[1], len(table)
    found = pd.DataFrame({"title": ranks.index, "rank": ranks.to_numpy()})
    quantile = float(studentized_range.ppf(1 - ALPHA, k, math.inf)) / math.sqrt(2)
    found.attrs = {"tasks": n, "difference": quantile * math.sqrt(k * (k + 1) / (6 * n))}
    return found


@mpl.rc_context(plots.STYLE)
def critical_difference(ranks: pd.DataFrame, families: Mapping[str, str], metric: str, caption: str) -> Figure:
    """Mean ranks as dots with bars of half the critical difference to each side.

    Args:
        ranks: from `mean_ranks`.
        families: printed name -> kind of system.
    """
    half = ranks.attrs["difference"] / 2
    caption += (
        f" Over {ranks.attrs['tasks']:,} tasks, 1 is best, values averaged over seeds first. Two systems whose bars do "
        f"not overlap differ at the level {ALPHA} (Nemenyi's test; critical difference {2 * half:.2f}). Systems that "
        "read the answers are left out. Colours and markers: kind of system."
    )
    title = f"Mean rank by {plots.metric_name(metric)}"
    figure, axes = plots.canvas(1.5 + 0.25 * len(ranks), caption=caption, title=title)
    panel, places = axes[0, 0], range(len(ranks), 0, -1)
    for y, row in zip(places, ranks.to_dict("records"), strict=True):
        kind = colours.look(families[row["title"]])
        panel.plot(
            [row["rank"] - half, row["rank"] + half],
            [y, y],
            color=kind.ink,
            linewidth=5,
            alpha=0.45,
            solid_capstyle="butt",
        )
        panel.plot(row["rank"], y, marker=kind.marker, markersize=4.5, color=kind.ink)
    panel.set_yticks(list(places), ranks["title"])
    panel.set(xlabel=f"mean rank among {len(ranks)} systems", ylim=(0.4, len(ranks) + 0.6))
    panel.grid(axis="x")
    legends.legend_below(figure, *legends.points(families[title] for title in ranks["title"]))
    return figure
