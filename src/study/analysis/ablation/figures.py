"""The figures of RQ2: what removing a part does, the paper's Figure 6, the authors' points, what separates them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from study.analysis.ablation.embedding import Points
from study.analysis.report.plots import BLUE, GREY, ORANGE, RED, canvas, metric_name, named_rows, one_panel, styled
from study.analysis.report.runs import read_statistics

PARTS = {"train": "training tasks (their labels were learned)", "test": "test tasks (never seen)"}
SPACES = {"input": ("before (input space)", BLUE), "embedded": ("after (embedding space)", ORANGE)}
FLAT = 0.2  # of the distance axis: where nine in ten values lie in less, a violin is a sliver
LINES = 400  # matched pairs that are joined by a line in a panel of points; all of them would hide the points
MEASURES = {
    "ratio": "median distance,\nlisted over other servers",
    "auc": "P(listed server nearer\nthan another)",
    "recall": "recall of the\nnearest ten",
}


@styled
def effects(table: pd.DataFrame, metrics: tuple[str, ...], caption: str) -> Figure:
    """What every variant loses or gains against full T2MRec, beside what the paper says it loses; one panel per metric.

    `table`: rows of table4.csv of one protocol, the reference left out; a variant without a run says so.
    """
    names = list(dict.fromkeys(table["title"]))
    caption += " Variant minus T2MRec. Dot: ours, with the 95 % bootstrap interval over tasks."
    if table["paper_effect"].notna().any():
        caption += (
            " Cross: what the same step does in the paper, whose full method and variants re-rank with an LLM; of ours "
            "only the one named so does."
        )
    title, height = "What removing or changing a part does", 1.6 + 0.34 * len(names)
    figure, axes = canvas(height, len(metrics), caption=caption, share_y=True, title=title)
    for panel, metric in zip(axes[0], metrics, strict=True):
        for y, name in enumerate(reversed(names)):
            row = table[(table["title"] == name) & (table["metric"] == metric)].iloc[0]
            if pd.isna(row["diff"]):
                place = panel.get_yaxis_transform()
                panel.text(0.02, y, "not run", va="center", fontsize=8, color=GREY, transform=place)
            else:
                panel.plot([row["diff_ci_low"], row["diff_ci_high"]], [y, y], color=BLUE, linewidth=1.5)
                panel.plot(row["diff"], y, marker="o", color=BLUE, markersize=5)
            if not pd.isna(row["paper_effect"]):
                panel.plot(row["paper_effect"], y, marker="x", color="black", markersize=6)
        panel.axvline(0, color=GREY, linewidth=0.8)
        xlabel = f"difference in {metric_name(metric)}"
        named_rows(panel, range(len(names)), reversed(names), xlabel, ylim=(-0.6, len(names) - 0.4))
    return figure


@styled
def by_group(table: pd.DataFrame, titles: dict[str, str], metric: str, caption: str) -> Figure:
    """Differences to full T2MRec within groups of tasks, one line of cells per variant.

    `table`: rows of by_group.csv of one protocol and level. `titles`: system -> how it is printed.
    """
    cells = table.pivot_table(index="system", columns="group", values="diff", sort=False)
    settings = read_statistics()
    p = table.pivot_table(index="system", columns="group", values=f"{settings.test}_p_holm", sort=False)
    p = p.reindex_like(cells)  # outside the declared family there is no corrected p: never bold
    sure = p < settings.alpha
    caption += (
        f" Variant minus T2MRec; bold: p < {settings.alpha}, {settings.test} test, Holm-corrected over the ablations."
    )
    title = f"{metric_name(metric)} by group of tasks"
    figure, panel = one_panel(1.8 + 0.42 * len(cells), caption=caption, title=title)
    span = float(np.nanmax(np.abs(cells.to_numpy()))) or 1.0
    panel.imshow(cells.to_numpy(), cmap="PuOr", vmin=-span, vmax=span, aspect="auto")
    many = len(cells.columns) > 6
    shape: Any = {"ha": "center", "va": "center", "fontsize": 6.5 if many else 8, "rotation": 90 if many else 0}
    for y, system in enumerate(cells.index):
        for x, group in enumerate(cells.columns):
            value, weight = cells.loc[system, group], "bold" if sure.loc[system, group] else "normal"
            ink = "white" if abs(value) > 0.65 * span else "black"
            panel.text(x, y, f"{value:+z.3f}", fontweight=weight, color=ink, **shape)
    names = list(cells.columns) if many else [name.replace("& ", "&\n") for name in cells.columns]
    panel.set_xticks(range(len(names)), names, **({"rotation": 35, "ha": "right"} if many else {}))
    panel.set_yticks(range(len(cells)), [titles.get(str(name), str(name)) for name in cells.index])
    return figure


def corrected(p: float) -> str:
    """A corrected p-value as printed: the paper's threshold, or the value."""
    return "p<.001" if p < 0.001 else f"p={p:.2g}"


@styled
def violins(pairs: pd.DataFrame, tests: pd.DataFrame, level: str, caption: str) -> Figure:
    """Distances of matched pairs before and after training, one violin pair per group, one panel per part.

    `pairs`: pairs.csv with a column of the level, category or subcategory. `tests`: rows of groups.csv of this level.
    """
    groups, inks = sorted(pairs[level].unique()), dict(SPACES.values())
    caption += (
        " Violins: all matched pairs. Lines: quartiles. p: paired one-sided Wilcoxon test over tasks that distances"
        " fell, Holm-corrected over the groups and both panels. n: tasks."
    )
    caption += f" {flatness(pairs)}"
    title, height = f"Distance of tasks to their listed servers, by {level}", 5.6 if len(groups) < 8 else 7.6
    figure, axes = canvas(height, rows=2, caption=caption, sharex=True, share_y=True, title=title)
    for panel, (part, label) in zip(axes[:, 0], PARTS.items(), strict=True):
        own = pairs[pairs["part"] == part].rename(columns={space: name for space, (name, _) in SPACES.items()})
        long = own.melt(level, list(inks), var_name="space", value_name="distance")
        shape: Any = {"cut": 0, "density_norm": "width", "inner": "quart", "linewidth": 0.8, "saturation": 1}
        sns.violinplot(
            long, x=level, y="distance", hue="space", order=groups, palette=inks, alpha=0.6, ax=panel, **shape
        )
        for x, group in enumerate(groups):
            row = tests[(tests["part"] == part) & (tests["group"] == group)].iloc[0]
            said, above = f"{corrected(row['p_holm'])}\nn={row['n']}", panel.get_xaxis_transform()
            panel.text(x, 1.03, said, ha="center", va="bottom", fontsize=5.5, transform=above)
        panel.set_title(label, fontsize=9, pad=20)
        panel.set(xlabel="", ylabel="1 - cosine", ylim=(0, 1.05 * pairs[list(SPACES)].to_numpy().max()))
        panel.grid(axis="y")
    turn = {"rotation": 35, "ha": "right"} if len(groups) > 6 else {}
    names = [group if turn else group.replace("& ", "&\n") for group in groups]
    axes[1, 0].set_xticks(range(len(groups)), names, **turn)
    axes[1, 0].get_legend().remove()
    sns.move_legend(axes[0, 0], "lower right", bbox_to_anchor=(1, 1.12), ncols=2, title=None, fontsize=7)
    return figure


def flatness(pairs: pd.DataFrame) -> str:
    """Why the violins before training lie where they do, in one sentence."""
    low, high = pairs["input"].quantile([0.05, 0.95])
    return (
        f"Before training nine in ten pairs lie from {low:.2f} to {high:.2f}, so that their violins are "
        f"{'flat' if high - low < FLAT else 'wide'}: {(pairs['shared'] == 0).mean():.0%} of the pairs have no term in "
        f"common and the median pair has {pairs['shared'].median():.0f}."
    )


@styled
def point_panels(panels: Mapping[str, tuple[Points, np.ndarray]], caption: str) -> Figure:
    """Tasks and servers in the plane, one panel per label, some matched pairs joined.

    `panels`: label -> points, and whether a task lists a server, shape (n_tasks, n_servers).
    """
    rows, caption = -(-len(panels) // 2), caption + f" Lines join {LINES} matched pairs, drawn at random."
    title = "Tasks and the servers they list, projected into the plane"
    figure, axes = canvas(3.5 * rows, 2, rows=rows, caption=caption, title=title)
    for panel in axes.flat[len(panels) :]:
        panel.set_axis_off()
    for panel, (label, (points, related)) in zip(axes.flat, panels.items(), strict=False):
        tasks, servers = np.nonzero(related)
        some = np.random.default_rng(0).permutation(len(tasks))[:LINES]
        ends = np.stack([points.tasks[tasks[some]], points.servers[servers[some]]], axis=1)
        panel.add_collection(LineCollection(list(ends), colors=GREY, linewidths=0.4, alpha=0.5, rasterized=True))
        panel.plot(*points.servers.T, ".", color=ORANGE, markersize=1.5, label="server", rasterized=True)
        panel.plot(*points.tasks.T, ".", color=BLUE, markersize=1.8, label="task", rasterized=True)
        panel.set_title(label, fontsize=8.5)
        panel.set(xticks=[], yticks=[], aspect="equal")
    axes.flat[0].legend(loc="upper left", markerscale=4, fontsize=7)
    return figure


@styled
def separation_dots(table: pd.DataFrame, caption: str) -> Figure:
    """How far listed servers stand out from the others, row by row of separation.csv; 95 % intervals over tasks."""
    rows = table.to_dict("records")
    title, height = "How far listed servers stand out", 1.6 + 0.3 * len(rows)
    figure, axes = canvas(height, len(MEASURES), caption=caption, share_y=True, title=title)
    for panel, (measure, label) in zip(axes[0], MEASURES.items(), strict=True):
        for y, row in enumerate(reversed(rows)):
            ink = RED if row["source"] == "authors" else BLUE
            panel.plot([row[f"{measure}_ci_low"], row[f"{measure}_ci_high"]], [y, y], color=ink, linewidth=1.5)
            face = ink if row["part"] == "test" else "white"
            panel.plot(row[measure], y, marker="o", markersize=5, color=ink, markerfacecolor=face)
        panel.set(xlabel=label, xlim=(0, 1.1))
        panel.grid(True)
    when = {"input": "before", "embedded": "after"}
    names = [
        f"{row['source']}, {when[row['space']]}, {'2-D' if row['plane'] else 'all dimensions'}, {row['part']} tasks"
        for row in reversed(rows)
    ]
    axes[0, 0].set_yticks(range(len(rows)), names)
    return figure
