"""Figures of usefulness: calibration, cost, steps, learning curves, judged labels, keyword stuffing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from study.analysis.report.plots import (
    BLUE,
    GREEN,
    GREY,
    MARKERS,
    ORANGE,
    RED,
    canvas,
    colour,
    legend_below,
    logarithmic,
    metric_name,
    named_rows,
    one_panel,
    styled,
    worded,
)
from study.analysis.usefulness.pareto import COSTS, QUALITIES

RESOLUTION = 1e-3  # the least cost that is told from 0, in its unit
# Form of an attack on the catalogue -> colour, marker and place on a system's line.
STUFFING = {"broad": (BLUE, "o", 0.22), "aimed": (RED, "s", 0.0), "control": (GREY, "D", -0.22)}
# What a system's fit learns from (`label_use` in conf/judging/pool.yaml) -> words, colour and marker.
LABEL_USE = {
    "without_labels": ("sees no label", BLUE, "o"),
    "with_labels": ("learns the labels", RED, "s"),
    "fused": ("fuses both", "#595959", "D"),
    "undeclared": ("not declared", GREY, "h"),
}
PARTS = {"valid": ("validation topics", GREY, "s"), "test": ("test topics", BLUE, "o")}


@styled
def calibration(reliability: pd.DataFrame, risks: pd.DataFrame, caption: str) -> Figure:
    """Promised against observed usefulness of the first answer (reliability.csv), and the risk that remains when only
    the surest are given (risk_coverage.csv)."""
    caption += (
        " Fitted on the validation topics. Left: requests in bins of about equal size, bars are exact 95 % binomial "
        "intervals; dashed: a promise kept. Right: only the surest requests are answered, from left to right more; "
        "dashed: risk of all answers."
    )
    figure, axes = canvas(3.9, 2, caption=caption, title="How far the score says whether the first answer is useful")
    for part, (label, ink, marker) in PARTS.items():
        own, curve = reliability[reliability["part"] == part], risks[risks["part"] == part]
        axes[0, 0].vlines(own["chance"], own["ci_low"], own["ci_high"], color=ink, linewidth=1, alpha=0.7)
        axes[0, 0].plot(own["chance"], own["useful"], marker=marker, color=ink, linestyle="none", label=label)
        axes[0, 1].plot(curve["coverage"], curve["risk"], color=ink, label=label, drawstyle="steps-post")
        axes[0, 1].axhline(curve["risk"].iloc[-1], color=ink, linewidth=0.8, linestyle="--")
    axes[0, 0].axline((0, 0), slope=1, color="black", linewidth=0.6, linestyle="--")
    axes[0, 0].set(xlabel="promised chance of a useful first answer", ylabel="share of useful first answers")
    axes[0, 1].set_xlabel("share of requests answered (coverage)")
    axes[0, 1].set_ylabel("share of useless first answers (risk)")
    axes[0, 0].legend(loc="upper left")
    for panel in axes[0]:
        panel.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
        panel.grid()
    return figure


def markers(table: pd.DataFrame) -> dict[str, str]:
    """A marker for every system of a table with columns system and family, different among those of one colour."""
    number = table.groupby(table["family"].map(colour)).cumcount()
    return {name: MARKERS[place % len(MARKERS)] for name, place in zip(table["system"], number, strict=True)}


@styled
def pareto(table: pd.DataFrame, caption: str) -> Figure:
    """Quality under both scorings against both costs; systems that no other one dominates are joined by a line.
    `table`: rows of pareto.csv."""
    caption += (
        " Costs on logarithmic axes, a fit of under 1 ms drawn as that. Filled markers and the line: no other system "
        "is at least as good and as cheap. Open: dominated; small circles, by kind: on no line."
    )
    figure, axes = canvas(6.4, 2, rows=2, caption=caption, title="What quality costs, under both scorings")
    fronts = [f"front_{quality}_{cost}" for quality in QUALITIES for cost in COSTS]
    named = table[table[fronts].any(axis=1) | (table["family"] == "t2mrec")]
    marks, handles = markers(named), dict[str, Line2D]()
    for line, quality in enumerate(QUALITIES):
        for column, cost in enumerate(COSTS):
            panel, known = axes[line, column], table.dropna(subset=[quality, cost])
            front = known[known[f"front_{quality}_{cost}"]].sort_values([cost, quality])
            line_of_front = {"color": GREY, "linewidth": 1, "drawstyle": "steps-post", "zorder": 1}
            panel.plot(front[cost].clip(lower=RESOLUTION), front[quality], **line_of_front)
            for row in known.to_dict("records"):
                ink, best = colour(row["family"]), row[f"front_{quality}_{cost}"]
                mark = marks.get(row["system"])
                look = {"marker": mark or "o", "color": ink, "linestyle": "none", "markersize": 6 if mark else 3.5}
                look |= {"markerfacecolor": ink if best else "white", "clip_on": False}
                (handle,) = panel.plot(max(row[cost], RESOLUTION), row[quality], **look)
                if mark:
                    handles.setdefault(row["title"], handle)
            logarithmic(panel.xaxis, most=5)
            panel.set(xlabel=COSTS[cost], ylim=(0, None))
            panel.grid()
        axes[line, 0].set_ylabel(f"NDCG@10: {QUALITIES[quality]}")
    kinds = worded(table.loc[~table["system"].isin(named["system"]), "family"])
    rest = [
        Line2D([], [], linestyle="none", marker="o", markersize=3.5, color=ink, markerfacecolor="white")
        for ink in kinds
    ]
    legend = legend_below(figure, [*handles.values(), *rest], [*handles, *kinds.values()])
    for found in legend.legend_handles[: len(handles)]:
        assert isinstance(found, Line2D)
        found.set_markerfacecolor(found.get_color())
    return figure


@styled
def steps(table: pd.DataFrame, titles: Mapping[str, str], metric: str, caption: str) -> Figure:
    """One idea at a time: each system's mean, and its difference from the one before. `table`: rows of steps.csv."""
    own = table[table["metric"] == metric]
    names = list(dict.fromkeys(own["system"]))
    caption += (
        " Chosen on the validation topics. Bars: 95 % bootstrap intervals over topics; right: of paired differences."
    )
    figure, axes = canvas(1.7 + 0.42 * len(names), 2, caption=caption, share_y=True, title="One idea at a time")
    for shift, (part, (label, ink, marker)) in zip((0.13, -0.13), PARTS.items(), strict=True):
        rows = own[own["part"] == part].set_index("system").loc[names]
        place = np.arange(len(names))[::-1] + shift
        columns = ("mean", "ci_low", "ci_high"), ("diff", "diff_ci_low", "diff_ci_high")
        for panel, (value, low, high) in zip(axes[0], columns, strict=True):
            panel.hlines(place, rows[low], rows[high], color=ink, linewidth=1.2)
            panel.plot(rows[value], place, marker=marker, color=ink, linestyle="none", markersize=5, label=label)
    axes[0, 1].axvline(0, color="black", linewidth=0.6)
    lines = np.arange(len(names))[::-1], [titles.get(name, name) for name in names]
    named_rows(axes[0, 0], *lines, f"{metric_name(metric)} by the judgements (0 to 1)", xlim=(0, None))
    named_rows(axes[0, 1], *lines, "difference from the step above")
    axes[0, 0].legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, borderaxespad=0)
    return figure


@styled
def curves(table: pd.DataFrame, titles: Mapping[str, str], caption: str) -> Figure:
    """Quality against the number of training tasks, one panel per metric. `table`: rows of curves.csv."""
    caption += " Bars: 95 % bootstrap intervals over validation tasks of values averaged over draws."
    measured, names = list(dict.fromkeys(table["metric"])), list(dict.fromkeys(table["system"]))
    inks = dict(zip(names, (BLUE, ORANGE, GREEN, GREY) * len(names), strict=False))
    figure, axes = canvas(3.6, len(measured), caption=caption, title="Learning curves: fitting the released labels")
    for panel, metric in zip(axes[0], measured, strict=True):
        for number, name in enumerate(names):
            rows = table[(table["metric"] == metric) & (table["system"] == name)].sort_values("tasks")
            panel.vlines(rows["tasks"], rows["ci_low"], rows["ci_high"], color=inks[name], linewidth=1)
            look = {"color": inks[name], "marker": MARKERS[number % len(MARKERS)], "markersize": 5}
            panel.plot(rows["tasks"], rows["mean"], label=titles.get(name, name), **look)
        logarithmic(panel.xaxis)
        sizes = sorted(table["tasks"].unique())
        panel.set_xticks(sizes, [f"{int(n):,}" for n in sizes])
        panel.set(xlabel="training tasks", ylabel=f"{metric_name(metric)}, validation part (0 to 1)", ylim=(0, None))
        panel.grid()
    axes[0, 0].legend(loc="lower right")
    return figure


@styled
def labels_against_judgements(
    views: pd.DataFrame,
    correlation: Mapping[str, float],
    families: pd.DataFrame,
    titles: Mapping[str, str],
    kinds: Mapping[str, str],
    *,
    caption: str = "",
    released: float | None = None,
) -> Figure:
    """NDCG@10 by the released labels (x) against NDCG@10 by the judgements (y), one numbered point per system.

    `views`, `correlation` and `families`: `summary`, `rank_correlation` and `label_families` of
    `study.judging.evaluate` for one part. `titles` by system, where it has one; `kinds`: system -> key of `LABEL_USE`.
    `released`: NDCG@10 of the released lists by the judgements.
    """
    within = "".join(
        f"; {row['systems']} systems of the kind '{LABEL_USE[row['family']][0]}' {row['tau']:.2f} (p = {row['p']:.2g})"
        for row in families.to_dict("records")
        if row["family"] in LABEL_USE
    )
    caption += (
        f" {int(correlation['topics'])} topics; crosses: 95 % bootstrap intervals over topics. Kendall's tau between "
        f"both orders: all {int(correlation['systems'])} systems {correlation['tau']:.2f} (p = {correlation['p']:.2g}; "
        f"{correlation['ci_low']:.2f} to {correlation['ci_high']:.2f}, 95 % bootstrap over topics and systems)"
        f"{within}. p: exact, two-sided. By labels: gain 1 for a listed server; by judgements: "
        "gains 2^g - 1. Dashed: equal by both. Numbers: most useful first."
    )
    figure, panel = one_panel(4.2, caption=caption.strip(), title="Two questions: fitting the labels, being useful")
    groups: dict[str, list[tuple[Line2D, str]]] = {words: [] for words, _, _ in LABEL_USE.values()}
    for number, row in enumerate(views.sort_values("by_judgements", ascending=False).to_dict("records"), start=1):
        x, y, (words, ink, marker) = row["by_labels"], row["by_judgements"], LABEL_USE[kinds[row["system"]]]
        ends: dict[str, Any] = {"color": ink, "linewidth": 0.8, "alpha": 0.6}
        panel.plot([row["by_labels_ci_low"], row["by_labels_ci_high"]], [y, y], **ends)
        panel.plot([x, x], [row["by_judgements_ci_low"], row["by_judgements_ci_high"]], **ends)
        label = f"{number} {titles.get(row['system'], row['system'])}"
        look: dict[str, Any] = {"marker": marker, "color": ink, "linestyle": "none"}
        panel.plot(x, y, label=label, markersize=10, zorder=2 + number / 100, clip_on=False, **look)
        panel.text(x, y, str(number), color="white", fontsize=6.5, ha="center", va="center_baseline", zorder=3)
        groups[words].append((Line2D([], [], markersize=6, **look), label))
    panel.axline((0, 0), slope=1, color=GREY, linewidth=0.6, linestyle="--")
    panel.set(xlabel="NDCG@10 by the released labels: fit (0 to 1)", xlim=(0, None))
    panel.set(ylabel="NDCG@10 by the judgements: use (0 to 1)", ylim=(0, None))
    handles: list[tuple[Line2D, str]] = []
    heads: list[int] = []
    for words, members in groups.items():
        if members:
            heads.append(len(handles))
            handles += [(Line2D([], [], linestyle="none"), words), *members]
    if released is not None:
        line = panel.axhline(released, color="black", linewidth=0.9, linestyle=":", label="the released lists")
        handles.append((line, "the released lists as answers"))
    panel.grid()
    legend_below(figure, [line for line, _ in handles], [words for _, words in handles], heads)
    return figure


@styled
def label_precision(shares: pd.DataFrame, caption: str) -> Figure:
    """How many released servers are useful at each listed position, beside the random control.
    `shares`: label_precision.csv: rows of scope position, all and control."""
    positions = shares[shares["scope"] == "position"]
    places = positions["name"].astype(int).to_numpy()
    overall, control = (shares[shares["scope"] == scope].iloc[0] for scope in ("all", "control"))
    caption += (
        f" {int(overall['pairs']):,} released servers of {int(overall['topics'])} topics; {int(control['pairs'])} "
        "servers drawn at random. Bars: 95 % bootstrap intervals over topics; none where no server counts."
    )
    figure, panel = one_panel(3.8, caption=caption, title="How many released labels are useful")
    series = (("useful", -0.12, BLUE, "o", "useful (grade 1 or 2)"), ("core", 0.12, ORANGE, "s", "core (grade 2)"))
    for name, shift, ink, marker, label in series:
        panel.vlines(places + shift, 100 * positions[f"{name}_ci_low"], 100 * positions[f"{name}_ci_high"], color=ink)
        look = {"marker": marker, "color": ink, "linestyle": "none", "clip_on": False, "zorder": 3}
        panel.plot(places + shift, 100 * positions[name], label=label, **look)
    panel.axhline(100 * overall["useful"], color=BLUE, linewidth=0.9, linestyle="--", label="useful, all positions")
    panel.axhspan(100 * control["useful_ci_low"], 100 * control["useful_ci_high"], color=GREY, alpha=0.25, linewidth=0)
    panel.axhline(100 * control["useful"], color=GREY, linewidth=1.2, label="useful, random servers (band: interval)")
    panel.set(xlabel="position in the released list", ylabel="share of the servers (%)", ylim=(0, None))
    panel.set_xticks(places)
    panel.grid(axis="y")
    panel.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, borderaxespad=0)
    return figure


@styled
def keyword_stuffing(table: pd.DataFrame, titles: Mapping[str, str], caption: str = "") -> Figure:
    """Mean ranks climbed (left) and share of tasks with the server among the best ten (right), one row per system.
    `table`: rows of stuffing.csv; the largest number of words is drawn."""
    words = int(table["words"].max())
    rows = table[table["words"] == words]
    order = {system: y for y, system in enumerate(rows[rows["form"] == "aimed"].sort_values("gain")["system"])}
    caption += (
        f" Broad: a server that adds {words} frequent words of all training tasks to its description. Aimed: it adds "
        "those of one group of tasks and is measured on that group. Control: it adds nothing. Lines: 95 % bootstrap "
        "intervals over servers. Right: open markers before, full ones after. Every system was fitted anew on the "
        "changed catalogue."
    )
    title, height = "Hostile catalogue: what keyword stuffing brings", 1.6 + 0.36 * len(order)
    figure, axes = canvas(height, 2, caption=caption.strip(), share_y=True, title=title)
    climbed, top = axes[0]
    for form, (ink, marker, shift) in STUFFING.items():
        look = {"marker": marker, "color": ink}
        for row in rows[rows["form"] == form].to_dict("records"):
            y, ends = order[row["system"]] + shift, [100 * row["top_before"], 100 * row["top_after"]]
            climbed.plot([row["gain_ci_low"], row["gain_ci_high"]], [y, y], color=ink, linewidth=1.2)
            climbed.plot(row["gain"], y, markersize=5, linestyle="none", **look)
            top.plot(ends, [y, y], color=ink, linewidth=0.8, alpha=0.6)
            top.plot(ends[0], y, markersize=5, markerfacecolor="white", **look)
            top.plot(ends[1], y, markersize=5, linestyle="none", **look)
        climbed.plot([], [], linestyle="none", label=form, **look)
    climbed.axvline(0, color="black", linewidth=0.6)
    lines = range(len(order)), [titles.get(system, system) for system in order]
    named_rows(climbed, *lines, "mean places climbed (of the catalogue)", ylim=(-0.6, len(order) - 0.4))
    named_rows(top, *lines, "tasks that show it in their top 10 (%)", xlim=(-1.5, None))
    climbed.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3, borderaxespad=0, columnspacing=1)
    return figure


@styled
def readings(
    scores: pd.DataFrame, threats: pd.DataFrame, better: str, other: str, titles: Mapping[str, str], caption: str
) -> Figure:
    """The gain of one system over another by every reading (left), and how many altered cards a judge took for useful
    (right). `scores`: reading_scores.csv. `threats`: threats.csv. `better`, `other`: systems, `titles` by system."""
    caption += (
        f" Left: judged NDCG@10 of {titles[better]} less that of {titles[other]}, by the final grades and by another "
        "reading of the same topics; bars: 95 % bootstrap intervals over topics. Right: cards with words of the task, "
        "an instruction to the judge or a false claim, beside untouched ones; bars: exact 95 % intervals."
    )
    gains = scores[scores["system"] == better].reset_index(drop=True)
    decoys = threats[threats["threat"] == "deception"].reset_index(drop=True)
    height = 1.6 + 0.36 * max(len(gains), len(decoys))
    figure, axes = canvas(height, 2, caption=caption, title="Does the result rest on this judge and this definition?")
    kinds = decoys["measure"].str.rpartition(", ")[2]
    names = gains["reading"] + ", " + gains["part"] + " (" + gains["n"].astype(str) + ")"
    columns = (gains, ("gain", "gain_ci_low", "gain_ci_high"), names), (decoys, ("value", "ci_low", "ci_high"), kinds)
    for panel, (table, (value, low, high), labels) in zip(axes[0], columns, strict=True):
        lines = np.arange(len(table))[::-1]
        ink = [BLUE if label.startswith(("final", "use")) else ORANGE for label in labels]
        panel.hlines(lines, table[low], table[high], color=ink, linewidth=1.2)
        panel.scatter(table[value], lines, color=ink, s=22, zorder=3)
        words = "gain in NDCG@10" if table is gains else "share of cards graded useful"
        named_rows(panel, lines, labels.tolist(), words)
        panel.axvline(0, color="black", linewidth=0.6)
    return figure
