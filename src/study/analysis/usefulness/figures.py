"""Figures of usefulness: calibration, cost, steps, learning curves, judged labels, keyword stuffing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from study.analysis.report import plots
from study.analysis.report.plots import BLUE, GREY, ORANGE, RED, Look, canvas, forest, metric_name, styled

RESOLUTION = 1e-3  # the least cost that is told from 0, in its unit
# Form of an attack on the catalogue.
STUFFING = {
    "broad": Look("broad", BLUE, "o"),
    "aimed": Look("aimed", RED, "s"),
    "control": Look("control", GREY, "D"),
}
# What a system's fit learns from (`label_use` in conf/judging/pool.yaml).
LABEL_USE = {
    "without_labels": Look("sees no label", BLUE, "o"),
    "with_labels": Look("learns the labels", RED, "s"),
    "fused": Look("fuses both", "#595959", "D"),
    "undeclared": Look("not declared", GREY, "h"),
}
PARTS = {"valid": Look("validation topics", GREY, "s"), "test": Look("test topics", BLUE, "o")}
DIFFERENCE = ("diff_ci_low", "diff_ci_high")


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
    kept, risk = axes[0]
    for part, (label, ink, marker, _) in PARTS.items():
        own, curve = reliability[reliability["part"] == part], risks[risks["part"] == part]
        kept.vlines(own["chance"], own["ci_low"], own["ci_high"], color=ink, linewidth=1, alpha=0.7)
        kept.plot(own["chance"], own["useful"], marker=marker, color=ink, linestyle="none", label=label)
        risk.plot(curve["coverage"], curve["risk"], color=ink, label=label, drawstyle="steps-post")
        risk.axhline(curve["risk"].iloc[-1], color=ink, linewidth=0.8, linestyle="--")
    kept.axline((0, 0), slope=1, color="black", linewidth=0.6, linestyle="--")
    kept.set(xlabel="promised chance of a useful first answer", ylabel="share of useful first answers")
    risk.set(xlabel="share of requests answered (coverage)", ylabel="share of useless first answers (risk)")
    kept.legend(loc="upper left")
    for panel in axes[0]:
        panel.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
        panel.grid()
    return figure


@styled
def steps(table: pd.DataFrame, titles: Mapping[str, str], metric: str, caption: str) -> Figure:
    """One idea at a time: each system's mean, and its difference from the one before. `table`: rows of steps.csv."""
    own = table[table["metric"] == metric]
    names = {name: titles.get(name, name) for name in own["system"]}
    caption += (
        " Chosen on the validation topics. Bars: 95 % bootstrap intervals over topics; right: of paired differences."
    )
    figure, axes = canvas(1.7 + 0.42 * len(names), 2, caption=caption, share_y=True, title="One idea at a time")
    shared: dict[str, Any] = {"names": names, "hue": "part", "looks": PARTS, "dodge": 0.26}
    label = f"{metric_name(metric)} by the judgements (0 to 1)"
    forest(axes[0, 0], own, xlabel=label, xlim=(0, None), **shared)
    forest(axes[0, 1], own, "diff", DIFFERENCE, zero=True, xlabel="difference from the step above", **shared)
    axes[0, 0].legend(borderaxespad=0, **plots.ABOVE)
    return figure


@styled
def curves(table: pd.DataFrame, titles: Mapping[str, str], caption: str) -> Figure:
    """Quality against the number of training tasks, one panel per metric. `table`: rows of curves.csv."""
    caption += " Bars: 95 % bootstrap intervals over validation tasks of values averaged over draws."
    measured, sizes = list(dict.fromkeys(table["metric"])), sorted(table["tasks"].unique())
    looks = plots.distinct({name: titles.get(name, name) for name in table["system"]})
    figure, axes = canvas(3.6, len(measured), caption=caption, title="Learning curves: fitting the released labels")
    for panel, metric in zip(axes[0], measured, strict=True):
        own, label = table[table["metric"] == metric], f"{metric_name(metric)}, validation part (0 to 1)"
        plots.lines(panel, own, "tasks", interval=("ci_low", "ci_high"), hue="system", looks=looks, band=False, size=5)
        plots.logarithmic(panel.xaxis)
        panel.set_xticks(sizes, [f"{int(n):,}" for n in sizes])
        panel.set(xlabel="training tasks", ylabel=label, ylim=(0, None))
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
        f"; {row['systems']} systems of the kind '{LABEL_USE[row['family']].words}' {row['tau']:.2f} "
        f"(p = {row['p']:.2g})"
        for row in families.to_dict("records")
        if row["family"] in LABEL_USE
    )
    caption += (
        f" {int(correlation['topics'])} topics; crosses: 95 % bootstrap intervals over topics. Kendall's tau between "
        f"both orders: all {int(correlation['systems'])} systems {correlation['tau']:.2f} (p = {correlation['p']:.2g}; "
        f"{correlation['ci_low']:.2f} to {correlation['ci_high']:.2f}, 95 % bootstrap over topics and systems)"
        f"{within}. p: exact, two-sided. By labels: gain 1 for a labelled server; by judgements: "
        "gains 2^g - 1. Dashed: equal by both. Numbers: most useful first."
    )
    figure, panel = plots.one_panel(
        4.2, caption=caption.strip(), title="Two questions: fitting the labels, being useful"
    )
    handles: list[tuple[Line2D, str]] = []
    heads: list[int] = []
    order = views.sort_values("by_judgements", ascending=False).assign(number=range(1, len(views) + 1))
    for kind, (words, ink, marker, _) in LABEL_USE.items():
        own = order[order["system"].map(kinds) == kind]
        if len(own):
            heads.append(len(handles))
            handles.append((Line2D([], [], linestyle="none"), words))
        for row in own.to_dict("records"):
            x, y, number = row["by_labels"], row["by_judgements"], row["number"]
            panel.hlines(y, row["by_labels_ci_low"], row["by_labels_ci_high"], color=ink, linewidth=0.8, alpha=0.6)
            panel.vlines(
                x, row["by_judgements_ci_low"], row["by_judgements_ci_high"], color=ink, linewidth=0.8, alpha=0.6
            )
            label = f"{number} {titles.get(row['system'], row['system'])}"
            look: dict[str, Any] = {"marker": marker, "color": ink, "linestyle": "none"}
            panel.plot(x, y, label=label, markersize=10, zorder=2 + number / 100, clip_on=False, **look)
            panel.text(x, y, number, color="white", fontsize=6.5, ha="center", va="center_baseline", zorder=3)
            handles.append((Line2D([], [], markersize=6, **look), label))
    panel.axline((0, 0), slope=1, color=GREY, linewidth=0.6, linestyle="--")
    panel.set(xlabel="NDCG@10 by the released labels: fit (0 to 1)", xlim=(0, None))
    panel.set(ylabel="NDCG@10 by the judgements: use (0 to 1)", ylim=(0, None))
    if released is not None:
        line = panel.axhline(released, color="black", linewidth=0.9, linestyle=":", label="the released lists")
        handles.append((line, "the released lists as answers"))
    panel.grid()
    plots.legend_below(figure, [line for line, _ in handles], [words for _, words in handles], heads)
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
    figure, panel = plots.one_panel(3.8, caption=caption, title="How many released labels are useful")
    series = (("useful", -0.12, BLUE, "o", "useful (grade 1 or 2)"), ("core", 0.12, ORANGE, "s", "core (grade 2)"))
    for name, shift, ink, marker, label in series:
        panel.vlines(places + shift, 100 * positions[f"{name}_ci_low"], 100 * positions[f"{name}_ci_high"], color=ink)
        look = {"marker": marker, "color": ink, "linestyle": "none", "clip_on": False, "zorder": 3}
        panel.plot(places + shift, 100 * positions[name], label=label, **look)
    panel.axhline(100 * overall["useful"], color=BLUE, linewidth=0.9, linestyle="--", label="useful, all positions")
    panel.axhspan(100 * control["useful_ci_low"], 100 * control["useful_ci_high"], color=GREY, alpha=0.25, linewidth=0)
    panel.axhline(100 * control["useful"], color=GREY, linewidth=1.2, label="useful, random servers (band: interval)")
    panel.set(xlabel="position in the released list", ylabel="share of the servers (%)", ylim=(0, None), xticks=places)
    panel.grid(axis="y")
    panel.legend(borderaxespad=0, **plots.ABOVE | {"ncols": 2})
    return figure


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
    gains, decoys = scores[scores["system"] == better], threats[threats["threat"] == "deception"]
    gains = gains.assign(row=gains["reading"] + ", " + gains["part"] + " (" + gains["n"].astype(str) + ")")
    decoys = decoys.assign(row=decoys["measure"].str.rpartition(", ")[2])
    height, looks = 1.6 + 0.36 * max(len(gains), len(decoys)), {True: Look("", BLUE), False: Look("", ORANGE)}
    figure, axes = canvas(height, 2, caption=caption, title="Does the result rest on this judge and this definition?")
    for panel, table, value, prefix, label in (
        (axes[0, 0], gains, "gain", "gain_", "gain in NDCG@10"),
        (axes[0, 1], decoys, "value", "", "share of cards graded useful"),
    ):
        own = table.assign(first=table["row"].str.startswith(("final", "use")))
        ends = f"{prefix}ci_low", f"{prefix}ci_high"
        forest(panel, own, value, ends, row="row", hue="first", looks=looks, zero=True, xlabel=label)
    return figure
