"""The figures of the embedding spaces: the paper's Figure 6, the authors' points beside ours, what separates them."""

from __future__ import annotations

from collections.abc import Mapping

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from study.analysis.ablation.embedding_points import Points
from study.analysis.report.colours import BLUE, GREY, ORANGE, RED
from study.analysis.report.plots import STYLE, canvas

PARTS = {"train": "training tasks (their labels were learned)", "test": "test tasks (never seen)"}
SPACES = {"input": ("before (input space)", BLUE), "embedded": ("after (embedding space)", ORANGE)}
FLAT = 0.2  # of the distance axis: where nine in ten values lie in less, a violin is a sliver
LINES = 400  # matched pairs that are joined by a line in a panel of points; all of them would hide the points


def corrected(p: float) -> str:
    """A corrected p-value as printed: the paper's threshold, or the value."""
    return "p<.001" if p < 0.001 else f"p={p:.2g}"


@mpl.rc_context(STYLE)
def violins(pairs: pd.DataFrame, tests: pd.DataFrame, level: str, caption: str) -> Figure:
    """Distances of matched pairs before and after training, one violin pair per group, one panel per part.

    Args:
        pairs: columns part, the level's name, input, embedded, shared (terms of both texts).
        tests: rows of groups.csv of this level.
        level: ``category`` or ``subcategory``.
    """
    groups = sorted(pairs[level].unique())
    caption += (
        " Violins: all matched pairs. Line: median. p: paired one-sided Wilcoxon test over tasks that distances fell,"
        " Holm-corrected over the groups and both panels. n: tasks."
    )
    caption += f" {flatness(pairs)}"
    figure, axes = canvas(
        5.6 if len(groups) < 8 else 7.6,
        rows=2,
        caption=caption,
        sharex=True,
        share_y=True,
        title=f"Distance of tasks to their listed servers, by {level}",
    )
    for panel, (part, label) in zip(axes[:, 0], PARTS.items(), strict=True):
        own = pairs[pairs["part"] == part]
        for side, (space, (name, ink)) in zip((-0.2, 0.2), SPACES.items(), strict=True):
            values = [own.loc[own[level] == group, space].to_numpy() for group in groups]
            bodies = panel.violinplot(
                values, np.arange(len(groups)) + side, widths=0.38, showextrema=False, showmedians=True
            )
            for body in bodies["bodies"]:
                body.set(facecolor=ink, alpha=0.45, edgecolor=ink, label=name)
            bodies["cmedians"].set(color="black", linewidth=1.2)
        for x, group in enumerate(groups):
            row = tests[(tests["part"] == part) & (tests["group"] == group)].iloc[0]
            panel.text(
                x,
                1.03,
                f"{corrected(row['p_holm'])}\nn={row['n']}",
                ha="center",
                va="bottom",
                fontsize=5.5,
                transform=panel.get_xaxis_transform(),
            )
        panel.set_title(label, fontsize=9, pad=20)
        panel.set(ylabel="1 - cosine", ylim=(0, 1.05 * pairs[list(SPACES)].to_numpy().max()))
        panel.grid(axis="y")
    turn = {"rotation": 35, "ha": "right"} if len(groups) > 6 else {}
    names = [group if turn else group.replace("& ", "&\n") for group in groups]
    axes[1, 0].set_xticks(range(len(groups)), names, **turn)
    axes[0, 0].legend(*_one_each(axes[0, 0]), loc="lower right", bbox_to_anchor=(1, 1.12), ncols=2, fontsize=7)
    return figure


def flatness(pairs: pd.DataFrame) -> str:
    """Why the violins before training lie where they do, in one sentence."""
    low, high = pairs["input"].quantile([0.05, 0.95])
    return (
        f"Before training nine in ten pairs lie from {low:.2f} to {high:.2f}, so that their violins are "
        f"{'flat' if high - low < FLAT else 'wide'}: {(pairs['shared'] == 0).mean():.0%} of the pairs have no term in "
        f"common and the median pair has {pairs['shared'].median():.0f}."
    )


def _one_each(panel: Axes) -> tuple[list[object], list[str]]:
    """One legend entry per label."""
    handles, labels = panel.get_legend_handles_labels()
    found = dict(zip(labels, handles, strict=True))
    return list(found.values()), list(found)


@mpl.rc_context(STYLE)
def point_panels(panels: Mapping[str, tuple[Points, np.ndarray]], caption: str) -> Figure:
    """Tasks and servers in the plane, one panel per label, some matched pairs joined.

    Args:
        panels: label -> points, and whether a task lists a server (n_tasks, n_servers).
    """
    columns = 2
    figure, axes = canvas(
        3.5 * -(-len(panels) // columns),
        columns,
        rows=-(-len(panels) // columns),
        caption=caption + f" Lines join {LINES} matched pairs, drawn at random.",
        title="Tasks and the servers they list, projected into the plane",
    )
    for panel in axes.flat[len(panels) :]:
        panel.set_axis_off()
    for panel, (label, (points, related)) in zip(axes.flat, panels.items(), strict=False):
        rows, places = np.nonzero(related)
        some = np.random.default_rng(0).permutation(len(rows))[:LINES]
        ends = np.stack([points.tasks[rows[some]], points.servers[places[some]]], axis=1)
        panel.add_collection(LineCollection(list(ends), colors=GREY, linewidths=0.4, alpha=0.5, rasterized=True))
        panel.plot(*points.servers.T, ".", color=ORANGE, markersize=1.5, label="server", rasterized=True)
        panel.plot(*points.tasks.T, ".", color=BLUE, markersize=1.8, label="task", rasterized=True)
        panel.set_title(label, fontsize=8.5)
        panel.set(xticks=[], yticks=[], aspect="equal")
    axes.flat[0].legend(loc="upper left", markerscale=4, fontsize=7)
    return figure


MEASURES = {
    "ratio": "median distance,\nlisted over other servers",
    "auc": "P(listed server nearer\nthan another)",
    "recall": "recall of the\nnearest ten",
}


@mpl.rc_context(STYLE)
def separation_dots(table: pd.DataFrame, caption: str) -> Figure:
    """How far listed servers stand out from the others, row by row, with 95 % intervals over tasks.

    Args:
        table: separation.csv.
    """
    rows = table.to_dict("records")
    figure, axes = canvas(
        1.6 + 0.3 * len(rows), len(MEASURES), caption=caption, share_y=True, title="How far listed servers stand out"
    )
    for panel, (measure, label) in zip(axes[0], MEASURES.items(), strict=True):
        for y, row in enumerate(reversed(rows)):
            ink = RED if row["source"] == "authors" else BLUE
            panel.plot([row[f"{measure}_low"], row[f"{measure}_high"]], [y, y], color=ink, linewidth=1.5)
            panel.plot(
                row[measure],
                y,
                marker="o",
                markersize=5,
                color=ink,
                markerfacecolor=ink if row["part"] == "test" else "white",
            )
        panel.set(xlabel=label, xlim=(0, 1.1))
        panel.grid(True)
    axes[0, 0].set_yticks(range(len(rows)), [separation_label(row) for row in reversed(rows)])
    return figure


def separation_label(row: Mapping[str, object]) -> str:
    """``authors, after, 2-D, test tasks``."""
    when = "after" if row["space"] == "embedded" else "before"
    return f"{row['source']}, {when}, {'2-D' if row['plane'] else 'all dimensions'}, {row['part']} tasks"
