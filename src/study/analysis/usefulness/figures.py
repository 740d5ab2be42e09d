"""The figure of keyword stuffing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from study.analysis.report import plots
from study.analysis.report.plots import BLUE, GREY, RED, Look, canvas, forest, styled

RESOLUTION = 1e-3  # the least cost that is told from 0, in its unit
# Form of an attack on the catalogue.
STUFFING = {
    "broad": Look("broad", BLUE, "o"),
    "aimed": Look("aimed", RED, "s"),
    "control": Look("control", GREY, "D"),
}


@styled
def keyword_stuffing(table: pd.DataFrame, titles: Mapping[str, str], caption: str = "") -> Figure:
    """Mean ranks climbed (left) and share of tasks with the server among the best ten (right), one row per system.
    `table`: rows of stuffing.csv; the largest number of words is drawn."""
    words = int(table["words"].max())
    rows = table[table["words"] == words]
    aimed = rows[rows["form"] == "aimed"].sort_values("gain", ascending=False)
    names = {system: titles.get(system, system) for system in aimed["system"]}
    caption += (
        f" Broad: a server that adds {words} frequent words of all training tasks to its description. Aimed: it adds "
        "those of one group of tasks and is measured on that group. Control: it adds nothing. Lines: 95 % bootstrap "
        "intervals over servers. Right: open markers before, full ones after. Every system was fitted anew on the "
        "changed catalogue."
    )
    title, height = "Hostile catalogue: what keyword stuffing brings", 1.6 + 0.36 * len(names)
    figure, axes = canvas(height, 2, caption=caption.strip(), share_y=True, title=title)
    climbed, top = axes[0]
    shared: dict[str, Any] = {"names": names, "hue": "form", "dodge": 0.22}
    about = "mean places climbed (of the catalogue)", "tasks that show it in their top 10 (%)"
    forest(climbed, rows, "gain", ("gain_ci_low", "gain_ci_high"), looks=STUFFING, zero=True, xlabel=about[0], **shared)
    shares = rows.assign(before=100 * rows["top_before"], after=100 * rows["top_after"])
    hollow = {form: look._replace(face="white") for form, look in STUFFING.items()}
    forest(top, shares, "before", ("before", "after"), looks=hollow, **shared)
    forest(top, shares, "after", None, looks=STUFFING, xlabel=about[1], xlim=(-1.5, None), **shared)
    climbed.legend(borderaxespad=0, columnspacing=1, **plots.ABOVE)
    return figure
