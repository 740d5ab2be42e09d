"""The figure of the judged collection: fitting the labels against being useful."""

from __future__ import annotations

from collections.abc import Mapping

import matplotlib as mpl
import pandas as pd
from matplotlib.figure import Figure

from study.analysis.plots import GREY, STYLE, canvas, colour


@mpl.rc_context(STYLE)
def labels_against_judgements(
    views: pd.DataFrame, correlation: Mapping[str, float], titles: Mapping[str, str], families: Mapping[str, str]
) -> Figure:
    """NDCG@10 by the released labels (x) against NDCG@10 by the judgements (y), one point per system.

    Args:
        views: rows of `labels.summary`.
        correlation: from `labels.rank_correlation`.
        titles, families: system -> how it is printed, and its kind; a system without either prints as its name.
    """
    caption = (
        f"{int(correlation['topics'])} topics, {int(correlation['systems'])} systems; crosses: 95 % bootstrap "
        f"intervals over topics. Kendall's tau between both orders: {correlation['tau']:.2f} "
        f"({correlation['low']:.2f} to {correlation['high']:.2f}). By labels: gain 1 for a listed server; by "
        "judgements: gains 2^g - 1."
    )
    figure, axes = canvas(4.6, caption=caption, title="Two questions: fitting the labels, being useful")
    panel = axes[0, 0]
    for row in views.to_dict("records"):
        x, y, ink = row["by_labels"], row["by_judgements"], colour(families.get(row["system"], ""))
        panel.plot([row["by_labels_low"], row["by_labels_high"]], [y, y], color=ink, linewidth=0.8, alpha=0.6)
        panel.plot([x, x], [row["by_judgements_low"], row["by_judgements_high"]], color=ink, linewidth=0.8, alpha=0.6)
        panel.plot(x, y, marker="o", color=ink, markersize=6)
        panel.annotate(titles.get(row["system"], row["system"]), (x, y), xytext=(5, 5), textcoords="offset points",
                       fontsize=8)  # fmt: skip
    panel.axline((0, 0), slope=1, color=GREY, linewidth=0.6, linestyle="--")
    panel.set(xlim=(0, None), ylim=(0, None), xlabel="NDCG@10 by the released labels: fit (0 to 1)",
              ylabel="NDCG@10 by the judgements: use (0 to 1)")  # fmt: skip
    panel.grid()
    return figure
