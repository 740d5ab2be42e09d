"""The figure of the hostile catalogue: how far keyword stuffing carries a server in each system."""

from __future__ import annotations

from collections.abc import Mapping

import matplotlib as mpl
import pandas as pd
from matplotlib.figure import Figure

from study.analysis.report.colours import BLUE, GREY, RED
from study.analysis.report.plots import STYLE, canvas

LOOKS = {"broad": (BLUE, "o", 0.22), "aimed": (RED, "s", 0.0), "control": (GREY, "D", -0.22)}


@mpl.rc_context(STYLE)
def keyword_stuffing(table: pd.DataFrame, titles: Mapping[str, str], caption: str = "") -> Figure:
    """Mean places climbed (left) and share of tasks with the server among the best ten (right), one row per system.

    Args:
        table: ``results/<dataset>/reranking/stuffing.csv``; the largest number of words is drawn.
        titles: system -> how it is printed.
        caption: data and what was asked.
    """
    words = int(table["words"].max())
    rows = table[table["words"] == words]
    aimed = rows[rows["form"] == "aimed"].sort_values("gain")
    order = {system: place for place, system in enumerate(aimed["system"])}
    caption += (
        f" Broad: a server that adds {words} frequent words of all training tasks to its description. Aimed: it adds "
        "those of one group of tasks and is measured on that group. Control: it adds nothing. Lines: 95 % bootstrap "
        "intervals over servers. Right: open markers before, full ones after. Every system was fitted anew on the "
        "changed catalogue."
    )
    figure, axes = canvas(
        1.6 + 0.36 * len(order),
        2,
        caption=caption.strip(),
        share_y=True,
        title="Hostile catalogue: what keyword stuffing brings",
    )
    climbed, top = axes[0]
    for form, (ink, marker, shift) in LOOKS.items():
        for row in rows[rows["form"] == form].to_dict("records"):
            y = order[row["system"]] + shift
            climbed.plot([row["gain_low"], row["gain_high"]], [y, y], color=ink, linewidth=1.2)
            climbed.plot(row["gain"], y, marker=marker, color=ink, markersize=5, linestyle="none")
            top.plot([100 * row["top_before"], 100 * row["top_after"]], [y, y], color=ink, linewidth=0.8, alpha=0.6)
            top.plot(100 * row["top_before"], y, marker=marker, color=ink, markersize=5, markerfacecolor="white")
            top.plot(100 * row["top_after"], y, marker=marker, color=ink, markersize=5, linestyle="none")
        climbed.plot([], [], marker=marker, color=ink, linestyle="none", label=form)
    climbed.axvline(0, color="black", linewidth=0.6)
    climbed.set_yticks(range(len(order)), [titles.get(system, system) for system in order])
    climbed.set(xlabel="mean places climbed (of the catalogue)", ylim=(-0.6, len(order) - 0.4))
    top.set(xlabel="tasks that show it in their top 10 (%)", xlim=(-1.5, None))
    for panel in (climbed, top):
        panel.grid(axis="x")
    climbed.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3, borderaxespad=0, columnspacing=1)
    return figure
