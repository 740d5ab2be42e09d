"""Figures of quality: means with their uncertainty, single tasks, wins and losses, mean ranks, catalogue coverage."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure
from scipy.stats import studentized_range

from study.analysis.report import plots
from study.analysis.report.plots import (
    BLUE,
    ORANGE,
    canvas,
    colour,
    legend_below,
    logarithmic,
    metric_name,
    named_rows,
    one_panel,
    spacing,
    styled,
)
from study.analysis.report.results import Results
from study.analysis.report.runs import read_statistics
from study.data.dataset import IntArray
from study.evaluation import metrics
from study.evaluation.runs import KEPT
from study.runner.row_store import HITS_ONLY, read_top10

METRIC = "ndcg@10"
MEASURES = ("coverage", "gini", "novelty")
COLUMNS = ["system", "title", "family", "servers", *MEASURES, "quality"]
TOP = ("task_id", "seed", "rank", "server_id")


@styled
def overall(summaries: Mapping[str, pd.DataFrame], caption: str) -> Figure:
    """Every system's mean with both uncertainties, one panel per metric.
    `summaries`: metric -> table of `Results.summary`; the first one sets the order of the systems."""
    first = next(iter(summaries.values()))
    order = first["system"].tolist()
    place = {system: len(order) - i for i, system in enumerate(order)}
    caption += (
        " Thin line: 95 % bootstrap interval over tasks. Thick line: ± one standard deviation over seeds. "
        "Colours and markers: kind of system."
    )
    height, title = 1.5 + spacing(first["title"], 0.27) * len(order), "Overall quality by system"
    figure, axes = canvas(height, len(summaries), caption=caption, share_y=True, title=title)
    for panel, (metric, table) in zip(axes[0], summaries.items(), strict=True):
        for row in table.to_dict("records"):
            kind, y, mean, sd = plots.look(row["family"]), place[row["system"]], row["mean"], row["sd"]
            line = {"color": kind.ink, "solid_capstyle": "butt"}
            panel.plot([row["ci_low"], row["ci_high"]], [y, y], linewidth=1.0, **line)
            if not pd.isna(sd):
                panel.plot([mean - sd, mean + sd], [y, y], linewidth=6.0, alpha=0.45, **line)
            # Small, so that an interval can be seen beside it.
            panel.plot(mean, y, marker=kind.marker, color=kind.ink, markersize=3.6, clip_on=False, zorder=3)
        limits = {"xlim": (0, None), "ylim": (0.4, len(order) + 0.6)}
        named_rows(panel, list(place.values()), first["title"], f"{metric_name(metric)} (0 to 1)", **limits)
    legend_below(figure, *plots.marker_legend(first["family"]))
    return figure


@styled
def per_task_distribution(
    values: Mapping[str, pd.Series], families: Mapping[str, str], metric: str, caption: str
) -> Figure:
    """How a metric spreads over tasks: a box per system, and the share of tasks with nothing right.
    `values`: printed name -> per-task values, best system first; `families`: printed name -> kind of system."""
    caption += (
        " Box: quartiles. Whiskers: 5th and 95th percentile. Diamond: mean. Right: share of the tasks whose value is "
        "0. Colours: kind of system."
    )
    height, title = 1.4 + spacing(values, 0.3) * len(values), f"{metric_name(metric)} of single tasks"
    figure, panel = one_panel(height, caption=caption, title=title)
    beside = panel.get_yaxis_transform()
    table = pd.DataFrame(dict(values))
    mean: Any = {"marker": "D", "markerfacecolor": "white", "markersize": 4.5, "markeredgecolor": "black"}
    shape: Any = {"width": 0.6, "whis": (5, 95), "showfliers": False, "showmeans": True, "meanprops": mean}
    with warnings.catch_warnings():  # seaborn 0.13.2 sets what matplotlib 3.11 replaces
        warnings.filterwarnings("ignore", "vert: bool", mpl.MatplotlibDeprecationWarning)
        sns.boxplot(table, orient="h", ax=panel, **shape)
    for y, (box, title) in enumerate(zip(panel.patches, values, strict=True)):
        ink, known = colour(families[title]), table[title].dropna()
        box.set(facecolor=plots.filling(ink), edgecolor=ink)
        panel.text(1.03, y, f"{(known == 0).mean():.0%}", va="center", transform=beside, fontsize=8)
    panel.text(1.03, -0.75, "zero", va="bottom", transform=beside, fontsize=8, style="italic")
    panel.set(xlabel=f"{metric_name(metric)} of a task (0 to 1)", xlim=(-0.02, 1.02), ylim=(len(values) - 0.4, -0.7))
    panel.grid(axis="x")
    legend_below(figure, *plots.area_legend(families[title] for title in values))
    return figure


@styled
def win_tie_loss(comparisons: pd.DataFrame, titles: Mapping[str, str], caption: str) -> Figure:
    """On how many tasks each system is above, level with and below the reference.
    `comparisons`: rows of significance.csv for one protocol and one metric."""
    rows = comparisons.sort_values("diff")
    reference, metric = titles.get(rows["reference"].iloc[0], "the reference"), metric_name(rows["metric"].iloc[0])
    caption += " Values are averaged over seeds before tasks are compared. In the order of the mean difference."
    title = f"Task by task against {reference}: {metric}"
    figure, panel = one_panel(1.5 + 0.34 * len(rows), caption=caption, title=title)
    start = np.zeros(len(rows))
    parts = (
        ("wins", BLUE, "white", f"better than {reference}"),
        ("ties", "#D9D9D9", "black", "equal"),
        ("losses", ORANGE, "black", f"worse than {reference}"),
    )
    for column, ink, letters, label in parts:
        share = 100 * rows[column].to_numpy() / rows["n"].to_numpy()
        panel.barh(range(len(rows)), share, left=start, color=ink, label=label, height=0.7)
        for y, (width, left, count) in enumerate(zip(share, start, rows[column], strict=True)):
            if width >= 5:
                panel.text(left + width / 2, y, f"{count:,}", ha="center", va="center", color=letters, fontsize=8)
        start += share
    panel.set_yticks(range(len(rows)), [titles.get(name, name) for name in rows["system"]])
    panel.set(xlabel="share of the test tasks (%); numbers count tasks", xlim=(0, 100), ylim=(-0.6, len(rows) - 0.4))
    panel.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3, borderaxespad=0)
    return figure


def mean_ranks(values: Mapping[str, pd.Series]) -> pd.DataFrame:
    """Every system's mean rank over the tasks that all of them have a value for; 1 is best, equal values share a rank.

    `values`: printed name -> per-task values, averaged over seeds, index task_id.

    Returns: columns title, rank, from the best; attributes ``tasks`` and ``critical_difference``, the critical
    difference: mean ranks further apart than it differ at the study's level (Demšar 2006, section 3.2.2).
    """
    table = pd.DataFrame(dict(values)).dropna()
    ranks = table.rank(axis=1, ascending=False).mean().sort_values(kind="stable")
    k, n = table.shape[1], len(table)
    found = pd.DataFrame({"title": ranks.index, "rank": ranks.to_numpy()})
    quantile = float(studentized_range.ppf(1 - read_statistics().alpha, k, math.inf)) / math.sqrt(2)
    found.attrs = {"tasks": n, "critical_difference": quantile * math.sqrt(k * (k + 1) / (6 * n))}
    return found


@styled
def critical_difference(ranks: pd.DataFrame, families: Mapping[str, str], metric: str, caption: str) -> Figure:
    """Mean ranks (from `mean_ranks`) as dots with bars of half the critical difference to each side.
    `families`: printed name -> kind of system."""
    half = ranks.attrs["critical_difference"] / 2
    caption += (
        f" Over {ranks.attrs['tasks']:,} tasks, 1 is best, values averaged over seeds first. Two systems whose bars do "
        f"not overlap differ at the level {read_statistics().alpha} (Nemenyi's test; "
        f"critical difference {2 * half:.2f}). "
        "Systems that read the answers are left out. Colours and markers: kind of system."
    )
    title = f"Mean rank by {metric_name(metric)}"
    figure, panel = one_panel(1.5 + spacing(ranks["title"], 0.25) * len(ranks), caption=caption, title=title)
    places = range(len(ranks), 0, -1)
    for y, row in zip(places, ranks.to_dict("records"), strict=True):
        kind = plots.look(families[row["title"]])
        ends = [row["rank"] - half, row["rank"] + half]
        panel.plot(ends, [y, y], color=kind.ink, linewidth=5, alpha=0.45, solid_capstyle="butt")
        panel.plot(row["rank"], y, marker=kind.marker, markersize=4.5, color=kind.ink)
    xlabel = f"mean rank among {len(ranks)} systems"
    named_rows(panel, places, ranks["title"], xlabel, ylim=(0.4, len(ranks) + 0.6))
    legend_below(figure, *plots.marker_legend(families[title] for title in ranks["title"]))
    return figure


def catalogue_coverage(results: Results, protocol: str, server_ids: pd.Series, popularity: IntArray) -> pd.DataFrame:
    """What the lists of ten of every system show of the catalogue, over all tasks together.

    `server_ids` and `popularity` are id and training interactions of each server, in the catalogue's order.

    Returns: `COLUMNS`, best `METRIC` first: servers (how many different ones), coverage (their share of the catalogue),
    gini, novelty in bits (`study.evaluation.metrics`) and quality (`METRIC`), means over seeds. Without rows where only
    the hits of lists are kept (`study.runner.row_store.HITS_ONLY`).
    """
    place = pd.Series(np.arange(len(server_ids)), index=server_ids)
    rows: list[dict[str, Any]] = []
    ranked_first = [] if protocol in HITS_ONLY else results.systems(protocol, METRIC)
    for name, run in read_top10(results.dataset, protocol, ranked_first).items():
        seeds = []
        for _, top in run.groupby("seed"):
            tasks, found = pd.factorize(top["task_id"])
            ranked = np.full((len(found), KEPT), -1, dtype=np.int64)
            ranked[tasks, top["rank"] - 1] = place.loc[top["server_id"]]
            seeds.append(metrics.list_level(ranked, popularity, (KEPT,)))
        means = pd.DataFrame(seeds).mean()
        row: dict[str, Any] = {"system": name, "title": results.titles[name], "family": results.families[name]}
        row |= {measure: means[f"{measure}@{KEPT}"] for measure in MEASURES}
        row["servers"] = row["coverage"] * len(server_ids)
        rows.append(row | {"quality": results.value(protocol, name, METRIC)})
    return pd.DataFrame(rows, columns=COLUMNS)


@styled
def coverage_figure(table: pd.DataFrame, n_servers: int, caption: str) -> Figure:
    """How many different servers each system's lists of ten hold over all tasks, best quality first."""
    caption += (
        f" How many different servers the lists of ten hold over all test tasks together, means over seeds; dashed: "
        f"one list ({KEPT}) and the whole catalogue ({n_servers:,}). Logarithmic. Best {metric_name(METRIC)} first."
    )
    height = 1.3 + spacing(table["title"], 0.2) * len(table)
    figure, panel = one_panel(height, caption=caption, title="How lists differ between tasks")
    places = np.arange(len(table))[::-1]
    for y, row in zip(places, table.to_dict("records"), strict=True):
        kind = plots.look(row["family"])
        panel.hlines(y, KEPT, row["servers"], color="#DDDDDD", linewidth=0.8)
        panel.plot(row["servers"], y, marker=kind.marker, color=kind.ink, markersize=4.5)
    for end in (KEPT, n_servers):
        panel.axvline(end, color="black", linewidth=0.8, linestyle="--")
    logarithmic(panel.xaxis)
    xlabel = "different servers in all lists of ten"
    named_rows(panel, places, table["title"], xlabel, ylim=(-0.7, len(table) - 0.3))
    legend_below(figure, *plots.marker_legend(table["family"]))
    return figure
