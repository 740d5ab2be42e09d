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
from study.analysis.report.results import Results
from study.analysis.report.runs import read_statistics
from study.data.dataset import IntArray
from study.evaluation import metrics
from study.evaluation.runs import KEPT
from study.runner.row_store import HITS_ONLY, read_top10

METRIC = "ndcg@10"
MEASURES = ("coverage", "gini", "novelty")
COLUMNS = ["system", "title", "family", "servers", *MEASURES, "quality"]


def _by_kind(table: pd.DataFrame) -> dict[str, Any]:
    """Options of `plots.forest` for one named row per system in the look of its kind."""
    names = dict(zip(table["system"], table["title"], strict=True))
    looks = {family: plots.look(family) for family in table["family"]}
    return {"names": names, "hue": "family", "looks": looks, "size": 4.0}


@plots.styled
def overall(summaries: Mapping[str, pd.DataFrame], caption: str) -> Figure:
    """Every system's mean with both uncertainties, one panel per metric.
    `summaries`: metric -> table of `Results.summary`; the first one sets the order of the systems."""
    first = next(iter(summaries.values()))
    caption += (
        " Thin line: 95 % bootstrap interval over tasks. Thick line: ± one standard deviation over seeds. "
        "Colours and markers: kind of system."
    )
    height, title = 1.5 + plots.spacing(first["title"], 0.27) * len(first), "Overall quality by system"
    figure, axes = plots.canvas(height, len(summaries), caption=caption, share_y=True, title=title)
    for panel, (metric, table) in zip(axes[0], summaries.items(), strict=True):
        xlabel = f"{plots.metric_name(metric)} (0 to 1)"
        plots.forest(panel, table, spread="sd", xlabel=xlabel, xlim=(0, None), **_by_kind(first))
    plots.legend_below(figure, *plots.marker_legend(first["family"]))
    return figure


@plots.styled
def per_task_distribution(
    values: Mapping[str, pd.Series], families: Mapping[str, str], metric: str, caption: str
) -> Figure:
    """How a metric spreads over tasks: a box per system, and the share of tasks with nothing right.
    `values`: printed name -> per-task values, best system first; `families`: printed name -> kind of system."""
    caption += (
        " Box: quartiles. Whiskers: 5th and 95th percentile. Diamond: mean. Right: share of the tasks whose value is "
        "0. Colours: kind of system."
    )
    height, title = 1.4 + plots.spacing(values, 0.3) * len(values), f"{plots.metric_name(metric)} of single tasks"
    figure, panel = plots.one_panel(height, caption=caption, title=title)
    beside = panel.get_yaxis_transform()
    table = pd.DataFrame(dict(values))
    mean: Any = {"marker": "D", "markerfacecolor": "white", "markersize": 4.5, "markeredgecolor": "black"}
    shape: Any = {"width": 0.6, "whis": (5, 95), "showfliers": False, "showmeans": True, "meanprops": mean}
    with warnings.catch_warnings():  # seaborn 0.13.2 sets what matplotlib 3.11 replaces
        warnings.filterwarnings("ignore", "vert: bool", mpl.MatplotlibDeprecationWarning)
        sns.boxplot(table, orient="h", ax=panel, **shape)
    for y, (box, title) in enumerate(zip(panel.patches, values, strict=True)):
        ink, known = plots.colour(families[title]), table[title].dropna()
        box.set(facecolor=plots.filling(ink), edgecolor=ink)
        panel.text(1.03, y, f"{(known == 0).mean():.0%}", va="center", transform=beside, fontsize=8)
    panel.text(1.03, -0.75, "zero", va="bottom", transform=beside, fontsize=8, style="italic")
    panel.set(
        xlabel=f"{plots.metric_name(metric)} of a task (0 to 1)", xlim=(-0.02, 1.02), ylim=(len(values) - 0.4, -0.7)
    )
    panel.grid(axis="x")
    plots.legend_below(figure, *plots.area_legend(families[title] for title in values))
    return figure


@plots.styled
def win_tie_loss(comparisons: pd.DataFrame, titles: Mapping[str, str], caption: str) -> Figure:
    """On how many tasks each system is above, level with and below the reference.
    `comparisons`: rows of significance.csv for one protocol and one metric."""
    rows = comparisons.sort_values("diff")
    reference, metric = (
        titles.get(rows["reference"].iloc[0], "the reference"),
        plots.metric_name(rows["metric"].iloc[0]),
    )
    caption += " Values are averaged over seeds before tasks are compared. In the order of the mean difference."
    title = f"Task by task against {reference}: {metric}"
    figure, panel = plots.one_panel(1.5 + 0.34 * len(rows), caption=caption, title=title)
    start = np.zeros(len(rows))
    parts = (
        ("wins", plots.BLUE, "white", f"better than {reference}"),
        ("ties", "#D9D9D9", "black", "equal"),
        ("losses", plots.ORANGE, "black", f"worse than {reference}"),
    )
    for column, ink, letters, label in parts:
        share = 100 * rows[column].to_numpy() / rows["n"].to_numpy()
        bars = panel.barh(range(len(rows)), share, left=start, color=ink, label=label, height=0.7)
        counts = [f"{count:,}" if width >= 5 else "" for width, count in zip(share, rows[column], strict=True)]
        panel.bar_label(bars, counts, label_type="center", color=letters, fontsize=8)
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


@plots.styled
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
    height, title = 1.5 + plots.spacing(ranks["title"], 0.25) * len(ranks), f"Mean rank by {plots.metric_name(metric)}"
    figure, panel = plots.one_panel(height, caption=caption, title=title)
    table = ranks.assign(system=ranks["title"], family=ranks["title"].map(families), half=half)
    xlabel = f"mean rank among {len(ranks)} systems"
    plots.forest(panel, table, "rank", None, spread="half", xlabel=xlabel, **_by_kind(table))
    plots.legend_below(figure, *plots.marker_legend(table["family"]))
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


@plots.styled
def coverage_figure(table: pd.DataFrame, n_servers: int, caption: str) -> Figure:
    """How many different servers each system's lists of ten hold over all tasks, best quality first."""
    caption += (
        f" How many different servers the lists of ten hold over all test tasks together, means over seeds; dashed: "
        f"one list ({KEPT}) and the whole catalogue ({n_servers:,}). Logarithmic. Best NDCG@10 first."
    )
    height = 1.3 + plots.spacing(table["title"], 0.2) * len(table)
    figure, panel = plots.one_panel(height, caption=caption, title="How lists differ between tasks")
    rows, xlabel = table.assign(least=KEPT), "different servers in all lists of ten"
    plots.forest(panel, rows, "servers", ("least", "servers"), xlabel=xlabel, **_by_kind(table))
    for end in (KEPT, n_servers):
        panel.axvline(end, color="black", linewidth=0.8, linestyle="--")
    plots.logarithmic(panel.xaxis)
    plots.legend_below(figure, *plots.marker_legend(table["family"]))
    return figure
