"""What every figure shares: style, canvas, axes, and writing files; and the figures of a data set itself.

Figures are made without pyplot, so they need no display, leave no state behind, and look alike in notebooks, scripts
and tests. Colours are those of `study.analysis.report.colours`; markers differ as well.
"""

from __future__ import annotations

import io
import re
import textwrap
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, StrMethodFormatter
from PIL import Image

from study import paths
from study.analysis.report.colours import BLUE, GREEN, GREY, ORANGE, RED
from study.data.dataset import Dataset
from study.data.normalise import tokens
from study.files import replacing

MARKERS = "osD^vPX<>*hpd8"
THEME = sns.plotting_context("paper", font_scale=0.94) | sns.axes_style("ticks")
STYLE: Any = THEME | {
    "font.family": "DejaVu Sans",
    "text.parse_math": False,
    "axes.titlesize": 10.0,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": "#DDDDDD",
    "legend.frameon": False,
    "figure.dpi": 130.0,
    "savefig.dpi": 110.0,
    "savefig.facecolor": "white",
}
NAMES = {
    "recall": "Recall",
    "precision": "Precision",
    "f1": "F1 (mean over tasks)",
    "f1_of_means": "F1 (of the means)",
    "ndcg": "NDCG",
    "mrr": "MRR",
    "hit_rate": "Hit rate",
    "map": "MAP",
}
MARKED = "T2MRec"  # the row that a figure of systems marks
WIDTH = 7.2  # inches, the width of a page's text
PROTOCOL = re.compile(r"Protocol: (\w+)")  # as captions say it (`Results.caption`)
styled = mpl.rc_context(STYLE)  # decorates every function that draws


def metric_name(metric: str) -> str:
    """``ndcg@10`` as printed: NDCG@10."""
    name, _, k = metric.partition("@")
    return f"{NAMES.get(name, name)}@{k}"


def canvas(
    height: float,
    columns: int = 1,
    *,
    rows: int = 1,
    caption: str = "",
    share_y: bool = False,
    title: str = "",
    **options: Any,
) -> tuple[Figure, np.ndarray]:
    """An empty figure in the study's style, with a title above and a caption below.

    The title names the protocol where the caption does, since a figure is often shown without its caption.
    `height` is in inches; `options` go to `Figure.subplots`.

    Returns: the figure and its axes, shape (rows, columns).
    """
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False, sharey=share_y, **options)
    if title:
        title += f", protocol {found[1]}" if (found := PROTOCOL.search(caption)) else ""
        figure.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold")
    if caption:
        for letters in range(128, 64, -4):  # as many in a line as the page has room for, which depends on the letters
            lines = "\n".join(textwrap.wrap(caption, letters))
            text = figure.supxlabel(lines, x=0.01, ha="left", fontsize=7.5, color="#444444")
            if text.get_window_extent().width < 0.98 * figure.bbox.width:
                break
    return figure, axes


def one_panel(height: float, **options: Any) -> tuple[Figure, Any]:
    """A `canvas` with a single panel: the figure and its `Axes`."""
    figure, axes = canvas(height, **options)
    return figure, axes[0, 0]


def named_rows(panel: Axes, places: Any, names: Iterable[str], xlabel: str = "", **options: Any) -> None:
    """Name the rows of a panel at their places on the vertical axis, T2MRec in bold; a grid shows the values of the
    other axis."""
    panel.set_yticks(places, list(names))
    for label in panel.get_yticklabels():
        label.set_fontweight("bold" if label.get_text() == MARKED else "normal")
    panel.set(xlabel=xlabel, **options)
    panel.grid(axis="x")


def spacing(names: Iterable[str], least: float) -> float:
    """Inches for each row of a figure: `least`, or what a name of two lines needs."""
    return max(least, 0.34) if any("\n" in name for name in names) else least


def dumbbells(
    panel: Axes, rows: pd.DataFrame, names: Iterable[str], before: str, after: str, low: str, high: str
) -> None:
    """One named line per row of a table, the first one on top, from an open marker to a filled one.

    Green where the interval of the difference (columns `low` and `high`) lies above 0, red where it lies below, grey
    where it holds 0. A row without numbers keeps its place and stays empty.
    """
    places = np.arange(len(rows))[::-1]
    inks = np.where(rows[low] > 0, GREEN, np.where(rows[high] < 0, RED, GREY))
    panel.hlines(places, rows[before], rows[after], colors=list(inks), linewidth=1.6)
    panel.scatter(rows[before], places, s=26, facecolors="white", edgecolors=list(inks), zorder=3)
    panel.scatter(rows[after], places, s=26, color=list(inks), zorder=3)
    named_rows(panel, places, names, ylim=(-0.7, len(rows) - 0.3))


def save_figure(figure: Figure, name: str, dataset: str) -> Path:
    """Write ``<name>.png`` to the figures of a data set; equal figures give equal bytes.
    A palette of 256 colours makes the file a third of its size."""
    folder = paths.figures(dataset)
    with mpl.rc_context(STYLE):
        drawn = io.BytesIO()
        figure.savefig(drawn, format="png", metadata={"Software": None})
    with replacing(folder / f"{name}.png") as temporary, Image.open(drawn) as image:
        image.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(temporary, format="PNG", optimize=True)
    return folder / f"{name}.png"


def show_figure(figure: Figure, name: str, dataset: str, *, shown: bool = True) -> None:
    """Write a figure and, if it is to be `shown`, show it in a notebook."""
    from IPython import display

    path = save_figure(figure, name, dataset)
    if shown:
        display.display(display.Image(path))  # type: ignore[no-untyped-call]


def logarithmic(axis: Any, most: int = 8) -> None:
    """Make an axis that already holds its data logarithmic, with plain numbers at `most` powers of ten at most.
    `axis`: `Axes.xaxis` or `Axes.yaxis`. Mathematical text is off in `STYLE`."""
    axis.axes.set(**{f"{axis.axis_name}scale": "log"})
    low, high = axis.get_view_interval()
    if high < 6 * low:  # may hold one of 1, 2 and 5, or none
        axis.set_major_locator(MaxNLocator(nbins=5, steps=[1, 2, 5, 10]))
    else:
        # Over less than two powers of ten the powers alone would leave the axis almost without numbers.
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high < 100 * low else (1.0,), numticks=most))
    axis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.set_minor_formatter(NullFormatter())


def from_zero(panel: Axes) -> None:
    """Begin the axis of values at 0, with room above the highest point, whose marker the edge would cut otherwise."""
    panel.update_datalim([(0, 0)], updatex=False)  # the margin is a share of what the axis spans
    panel.autoscale_view(scalex=False)
    panel.set_ylim(0, None)


def popularity(data: Dataset) -> np.ndarray:
    """How many tasks list each server, most listed first, shape (n_servers,)."""
    return np.sort(np.bincount(data.relevance.indices, minlength=data.n_servers))[::-1]


def value_counts(values: pd.Series, *, listed: bool = False, most: int = 12) -> pd.Series:
    """How often each value occurs, most frequent first; what is beyond the `most` frequent is summed up.
    `values`: one text per row, empty for an absent value; `listed`: whether it is a list, counted entry by entry."""
    counts = Counter(entry for text in values for entry in (tokens(text) if listed else [text] if text else []))
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    kept = dict(ranked[:most])
    rest = sum(count for _, count in ranked[most:])
    return pd.Series(kept | ({f"{len(ranked) - most} others": rest} if rest else {}), dtype=int)


@styled
def lists(data: Dataset, caption: str) -> Figure:
    """Lengths of the label lists, servers by popularity, and how concentrated the labels are."""
    figure, axes = canvas(2.7, 3, caption=caption, title="Lists and popularity")
    panel = axes[0, 0]
    sns.countplot(x=[len(row) for row in data.lists], color=BLUE, saturation=1, ax=panel)
    panel.bar_label(panel.containers[0], fmt="{:,.0f}", fontsize=7)
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


@styled
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


@styled
def mixture(table: pd.DataFrame, caption: str) -> Figure:
    """Planted and drawn shares (columns) of the reasons (index) for which labels were given."""
    figure, panel = one_panel(2.2, caption=caption, title="Why a server is on a list")
    place = np.arange(len(table))[::-1]
    panel.barh(place + 0.2, 100 * table["planted"], height=0.38, color=BLUE, label="planted")
    panel.barh(place - 0.2, 100 * table["drawn"], height=0.38, color=ORANGE, label="drawn")
    named_rows(panel, place, [name.replace("_", " ") for name in table.index], "share of the labels (%)")
    panel.legend()
    return figure
