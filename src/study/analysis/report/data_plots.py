"""Figures of a data set itself: how long lists are, how popular servers are, what the texts are about."""

from __future__ import annotations

from collections import Counter

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from study.analysis.report.colours import BLUE, GREEN, ORANGE
from study.analysis.report.plots import STYLE, canvas, logarithmic
from study.data.dataset import Dataset
from study.data.normalise import tokens


def popularity(data: Dataset) -> np.ndarray:
    """How many tasks list each server, most listed first, shape (n_servers,)."""
    return np.sort(np.bincount(data.relevance.indices, minlength=data.n_servers))[::-1]


def value_counts(values: pd.Series, *, listed: bool = False, most: int = 12) -> pd.Series:
    """How often each value occurs, most frequent first; what is beyond the `most` frequent is summed up.

    Args:
        values: one text per row, the empty text for an absent value.
        listed: whether a text is a list of entries, counted one by one.
    """
    counts = Counter(entry for text in values for entry in (tokens(text) if listed else [text] if text else []))
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    kept = dict(ranked[:most])
    rest = sum(count for _, count in ranked[most:])
    return pd.Series(kept | ({f"{len(ranked) - most} others": rest} if rest else {}), dtype=int)


@mpl.rc_context(STYLE)
def lists(data: Dataset, caption: str) -> Figure:
    """Lengths of the label lists, servers by popularity, and how concentrated the labels are."""
    figure, axes = canvas(2.7, 3, caption=caption, title="Lists and popularity")
    lengths = np.bincount([len(row) for row in data.lists])
    shown = np.flatnonzero(lengths)
    panel = axes[0, 0]
    bars = panel.bar([str(value) for value in shown], lengths[shown], color=BLUE)
    panel.bar_label(bars, [f"{count:,}" for count in lengths[shown]], fontsize=7)
    panel.set(xlabel="servers on a task's list", ylabel="tasks (logarithmic axis)")
    logarithmic(panel.yaxis)
    panel.margins(y=0.1)
    counts = popularity(data)
    panel = axes[0, 1]
    listed = counts[counts > 0]
    panel.plot(np.arange(1, len(listed) + 1), listed, color=GREEN)
    panel.set(xlabel="rank of the server", ylabel="tasks that list it")
    logarithmic(panel.xaxis)
    logarithmic(panel.yaxis)
    panel.grid(True)
    panel = axes[0, 2]
    servers = 100 * np.arange(data.n_servers + 1) / data.n_servers
    panel.plot(servers, np.concatenate([[0.0], 100 * np.cumsum(counts) / counts.sum()]), color=GREEN, label="released")
    panel.plot([0, 100], [0, 100], color="black", linestyle="--", linewidth=0.8, label="all equal")
    panel.set(xlabel="most listed servers (%)", ylabel="labels they hold (%)", xlim=(0, 100), ylim=(0, 100))
    panel.grid(True)
    panel.legend(loc="lower right")
    return figure


@mpl.rc_context(STYLE)
def attributes(data: Dataset, caption: str) -> Figure:
    """Languages and categories of tasks and servers, after unifying spellings."""
    parts = (
        ("Language of tasks", data.tasks["language_tokens"], True, "tasks", ORANGE),
        ("Language of servers", data.servers["language_tokens"], True, "servers", BLUE),
        ("Subcategory of tasks", data.tasks["subcategory_clean"], False, "tasks", ORANGE),
        ("Category of servers", data.servers["category_clean"], False, "servers", BLUE),
    )
    figure, axes = canvas(6.8, 2, rows=2, caption=caption, title="What tasks and servers are about")
    for panel, (title, values, listed, unit, ink) in zip(axes.ravel(), parts, strict=True):
        counts = value_counts(values, listed=listed, most=16)
        panel.barh([name if len(name) <= 30 else f"{name[:29]}…" for name in counts.index], counts, color=ink)
        panel.invert_yaxis()
        panel.set(title=title, xlabel=unit)
        panel.tick_params(axis="y", labelsize=7.5)
        panel.grid(axis="x")
    return figure


@mpl.rc_context(STYLE)
def mixture(table: pd.DataFrame, caption: str) -> Figure:
    """Planted and drawn shares of the reasons for which labels were given.

    Args:
        table: index reason, columns planted and drawn, shares.
    """
    figure, axes = canvas(2.2, caption=caption, title="Why a server is on a list")
    panel, place = axes[0, 0], np.arange(len(table))[::-1]
    panel.barh(place + 0.2, 100 * table["planted"], height=0.38, color=BLUE, label="planted")
    panel.barh(place - 0.2, 100 * table["drawn"], height=0.38, color=ORANGE, label="drawn")
    panel.set_yticks(place, [name.replace("_", " ") for name in table.index])
    panel.set(xlabel="share of the labels (%)")
    panel.grid(axis="x")
    panel.legend()
    return figure
