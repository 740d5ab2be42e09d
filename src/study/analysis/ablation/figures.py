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
from study.analysis.report import plots
from study.analysis.report.runs import read_statistics

PARTS = {"train": "training tasks (their labels were learned)", "test": "test tasks (never seen)"}
SPACES = {"input": ("before (input space)", plots.BLUE), "embedded": ("after (embedding space)", plots.ORANGE)}
FLAT = 0.2  # of the distance axis: where nine in ten values lie in less, a violin is a sliver
LINES = 400  # matched pairs that are joined by a line in a panel of points; all of them would hide the points
MEASURES = {
    "ratio": "median distance,\nlisted over other servers",
    "auc": "P(listed server nearer\nthan another)",
    "recall": "recall of the\nnearest ten",
}


@plots.styled
def effects(table: pd.DataFrame, metrics: tuple[str, ...], caption: str) -> Figure:
    """What every variant loses or gains against full T2MRec, beside what the paper says it loses; one panel per metric.

    `table`: rows of table4.csv of one protocol, the reference left out; a variant without a run says so.
    """
    titles, limits = list(dict.fromkeys(table["title"])), ("diff_ci_low", "diff_ci_high")
    caption += " Variant minus T2MRec. Dot: ours, with the 95 % bootstrap interval over tasks."
    if table["paper_effect"].notna().any():
        caption += (
            " Cross: what the same step does in the paper, whose full method and variants re-rank with an LLM; of ours "
            "only the one named so does."
        )
    title, height = "What removing or changing a part does", 1.6 + 0.34 * len(titles)
    figure, axes = plots.canvas(height, len(metrics), caption=caption, share_y=True, title=title)
    for panel, metric in zip(axes[0], metrics, strict=True):
        rows = table[table["metric"] == metric]
        places = plots.forest(
            panel, rows, "diff", limits, row="title", zero=True, xlabel=f"difference in {plots.metric_name(metric)}"
        )
        panel.plot(rows["paper_effect"], rows["title"].map(places), "x", color="black", markersize=6)
        for name in rows.loc[rows["diff"].isna(), "title"]:
            beside = panel.get_yaxis_transform()
            panel.text(0.02, places[name], "not run", va="center", fontsize=8, color=plots.GREY, transform=beside)
    return figure


@plots.styled
def by_group(table: pd.DataFrame, titles: dict[str, str], metric: str, caption: str) -> Figure:
    """Differences to full T2MRec within groups of tasks, one line of cells per variant.

    `table`: rows of by_group.csv of one protocol and level. `titles`: system -> how it is printed.
    """
    settings = read_statistics()
    by: Any = {"index": "system", "columns": "group", "sort": False}
    cells = table.pivot_table(values="diff", **by)
    p = table.pivot_table(values=f"{settings.test}_p_holm", **by).reindex_like(cells)
    caption += (
        f" Variant minus T2MRec; bold: p < {settings.alpha}, {settings.test} test, Holm-corrected over the ablations."
    )
    figure, panel = plots.one_panel(
        1.8 + 0.42 * len(cells), caption=caption, title=f"{plots.metric_name(metric)} by group of tasks"
    )
    span, many = float(np.nanmax(np.abs(cells.to_numpy()))) or 1.0, len(cells.columns) > 6
    shown = cells.rename(index=titles, columns=lambda name: name if many else name.replace("& ", "&\n"))
    texts = cells.map("{:+z.3f}".format)
    shape: Any = {"size": 6.5 if many else 8.0, "turn": 35 if many else 0, "cmap": "PuOr", "vmin": -span, "vmax": span}
    # Outside the declared family there is no corrected p: never bold.
    plots.heat(panel, shown, texts, bold=p < settings.alpha, **shape)
    for text in panel.texts if many else ():
        text.set_rotation(90)
    return figure


def corrected(p: float) -> str:
    """A corrected p-value as printed: the paper's threshold, or the value."""
    return "p<.001" if p < 0.001 else f"p={p:.2g}"


@plots.styled
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
    figure, axes = plots.canvas(height, rows=2, caption=caption, sharex=True, share_y=True, title=title)
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


@plots.styled
def point_panels(panels: Mapping[str, tuple[Points, np.ndarray]], caption: str) -> Figure:
    """Tasks and servers in the plane, one panel per label, some matched pairs joined.

    `panels`: label -> points, and whether a task lists a server, shape (n_tasks, n_servers).
    """
    rows, caption = -(-len(panels) // 2), caption + f" Lines join {LINES} matched pairs, drawn at random."
    title = "Tasks and the servers they list, projected into the plane"
    figure, axes = plots.canvas(3.5 * rows, 2, rows=rows, caption=caption, title=title)
    for panel in axes.flat[len(panels) :]:
        panel.set_axis_off()
    for panel, (label, (points, related)) in zip(axes.flat, panels.items(), strict=False):
        tasks, servers = np.nonzero(related)
        some = np.random.default_rng(0).permutation(len(tasks))[:LINES]
        ends = np.stack([points.tasks[tasks[some]], points.servers[servers[some]]], axis=1)
        panel.add_collection(LineCollection(list(ends), colors=plots.GREY, linewidths=0.4, alpha=0.5, rasterized=True))
        panel.plot(*points.servers.T, ".", color=plots.ORANGE, markersize=1.5, label="server", rasterized=True)
        panel.plot(*points.tasks.T, ".", color=plots.BLUE, markersize=1.8, label="task", rasterized=True)
        panel.set_title(label, fontsize=8.5)
        panel.set(xticks=[], yticks=[], aspect="equal")
    axes.flat[0].legend(loc="upper left", markerscale=4, fontsize=7)
    return figure


@plots.styled
def separation_dots(table: pd.DataFrame, caption: str) -> Figure:
    """How far listed servers stand out from the others, row by row of separation.csv; 95 % intervals over tasks."""
    when = {"input": "before", "embedded": "after"}
    plane = table["plane"].map({True: "2-D", False: "all dimensions"})
    rows = table.assign(
        name=table["source"] + ", " + table["space"].map(when) + ", " + plane + ", " + table["part"] + " tasks",
        kind=table["source"] + table["part"],
    )
    looks = {
        f"{source}{part}": plots.Look("", ink, face=None if part == "test" else "white")
        for source, ink in (("authors", plots.RED), ("ours", plots.BLUE))
        for part in ("test", "train")
    }
    title, height = "How far listed servers stand out", 1.6 + 0.3 * len(rows)
    figure, axes = plots.canvas(height, len(MEASURES), caption=caption, share_y=True, title=title)
    for panel, (measure, label) in zip(axes[0], MEASURES.items(), strict=True):
        limits = f"{measure}_ci_low", f"{measure}_ci_high"
        plots.forest(panel, rows, measure, limits, row="name", hue="kind", looks=looks, xlabel=label, xlim=(0, 1.1))
    return figure
