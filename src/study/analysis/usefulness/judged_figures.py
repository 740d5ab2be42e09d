"""Figures of the judged collection: fitting the labels against being useful, and how many labels are useful."""

from __future__ import annotations

from collections.abc import Mapping

import matplotlib as mpl
import pandas as pd
from matplotlib.figure import Figure

from study.analysis.report.colours import BLUE, GREY, ORANGE, colour
from study.analysis.report.plots import MARKERS, STYLE, canvas


@mpl.rc_context(STYLE)
def labels_against_judgements(
    views: pd.DataFrame,
    correlation: Mapping[str, float],
    titles: Mapping[str, str],
    families: Mapping[str, str],
    *,
    caption: str = "",
    released: float | None = None,
) -> Figure:
    """NDCG@10 by the released labels (x) against NDCG@10 by the judgements (y), one point per system.

    Args:
        views: rows of `labels.summary`.
        correlation: from `labels.rank_correlation`.
        titles, families: system -> how it is printed, and its kind; a system without either prints as its name.
        caption: what stands before the figure's own explanation.
        released: NDCG@10 of the released lists by the judgements, drawn as a line.
    """
    caption += (
        f" {int(correlation['topics'])} topics, {int(correlation['systems'])} systems; crosses: 95 % bootstrap "
        f"intervals over topics. Kendall's tau between both orders: {correlation['tau']:.2f} "
        f"({correlation['low']:.2f} to {correlation['high']:.2f}). By labels: gain 1 for a listed server; by "
        "judgements: gains 2^g - 1. Dashed: equal by both."
    )
    figure, axes = canvas(5.0, caption=caption.strip(), title="Two questions: fitting the labels, being useful")
    panel = axes[0, 0]
    ordered = views.sort_values("by_judgements", ascending=False).to_dict("records")
    for number, row in enumerate(ordered):
        x, y, ink = row["by_labels"], row["by_judgements"], colour(families.get(row["system"], ""))
        panel.plot([row["by_labels_low"], row["by_labels_high"]], [y, y], color=ink, linewidth=0.8, alpha=0.6)
        panel.plot([x, x], [row["by_judgements_low"], row["by_judgements_high"]], color=ink, linewidth=0.8, alpha=0.6)
        panel.plot(
            x,
            y,
            marker=MARKERS[number % len(MARKERS)],
            color=ink,
            markersize=7,
            linestyle="none",
            label=titles.get(row["system"], row["system"]),
        )
    panel.axline((0, 0), slope=1, color=GREY, linewidth=0.6, linestyle="--")
    panel.set(
        xlim=(0, None),
        ylim=(0, None),
        xlabel="NDCG@10 by the released labels: fit (0 to 1)",
        ylabel="NDCG@10 by the judgements: use (0 to 1)",
    )
    if released is not None:
        panel.axhline(released, color="black", linewidth=0.9, linestyle=":", label="the released lists as answers")
    panel.legend(title="most useful first", alignment="left", loc="best", frameon=True, framealpha=0.9)
    panel.grid()
    return figure


@mpl.rc_context(STYLE)
def label_precision(shares: pd.DataFrame, caption: str) -> Figure:
    """How many released servers are useful at each listed position, beside the random control.

    Args:
        shares: label_precision.csv: rows of scope position, all and control.
        caption: question and data.
    """
    positions = shares[shares["scope"] == "position"]
    places = positions["name"].astype(int).to_numpy()
    overall, control = (shares[shares["scope"] == scope].iloc[0] for scope in ("all", "control"))
    caption += (
        f" {int(overall['pairs']):,} released servers of {int(overall['topics'])} topics; {int(control['pairs'])} "
        "servers drawn at random. Bars: 95 % bootstrap intervals over topics; none where no server counts."
    )
    figure, axes = canvas(3.8, caption=caption, title="How many released labels are useful")
    panel = axes[0, 0]
    series = (("useful", -0.12, BLUE, "o", "useful (grade 1 or 2)"), ("core", 0.12, ORANGE, "s", "core (grade 2)"))
    for name, shift, ink, marker, label in series:
        panel.vlines(places + shift, 100 * positions[f"{name}_low"], 100 * positions[f"{name}_high"], color=ink)
        panel.plot(
            places + shift,
            100 * positions[name],
            marker=marker,
            color=ink,
            linestyle="none",
            label=label,
            clip_on=False,
            zorder=3,
        )
    panel.axhline(100 * overall["useful"], color=BLUE, linewidth=0.9, linestyle="--", label="useful, all positions")
    panel.axhspan(100 * control["useful_low"], 100 * control["useful_high"], color=GREY, alpha=0.25, linewidth=0)
    panel.axhline(100 * control["useful"], color=GREY, linewidth=1.2, label="useful, random servers (band: interval)")
    panel.set(xlabel="position in the released list", ylabel="share of the servers (%)", ylim=(0, None))
    panel.set_xticks(places)
    panel.grid(axis="y")
    panel.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, borderaxespad=0)
    return figure
