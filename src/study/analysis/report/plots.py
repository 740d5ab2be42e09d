"""What every figure shares: colours and markers, canvas and axes, rows of points with intervals (`forest`), matrices
(`heat`) and curves (`lines`), and writing files.

Figures are made without pyplot, so they need no display, leave no state behind, and look alike in notebooks, scripts
and tests. Colours are those of Okabe and Ito (2008), told apart by colour-blind readers, and five more that keep a
distance from them under simulated protanopia and deuteranopia; markers differ as well.
"""

from __future__ import annotations

import io
import textwrap
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, StrMethodFormatter
from PIL import Image

from study.base import paths
from study.base.files import replacing
from study.config.groups import ORACLE

BLUE, ORANGE, GREEN, RED = "#0072B2", "#E69F00", "#009E73", "#D55E00"
PURPLE, SKY, YELLOW, GREY = "#CC79A7", "#56B4E9", "#F0E442", "#7F7F7F"
BLACK, CRIMSON, LIME, INDIGO, TEAL, SILVER = "#000000", "#AA1133", "#88BB66", "#5522CC", "#004455", "#BDBDBD"
INKS = (BLUE, ORANGE, GREEN, RED, PURPLE, SKY, BLACK, YELLOW, GREY)  # of series without a colour of their own
MARKERS = "osD^vPX<>*hpd8"


class Look(NamedTuple):
    """How a series is drawn: the legend's words, colour, and the marker of a lone point; `face`: its inside, if that
    has another colour."""

    words: str
    ink: str = BLUE
    marker: str = "o"
    face: str | None = None


# In the order of legends. The study's subject stands out; what it is changed to has a darker red.
FAMILIES = {
    "t2mrec": Look("T2MRec", RED, "d"),
    "ablation": Look("ablation of T2MRec", CRIMSON, "X"),
    "supervision": Look("T2MRec on other labels", CRIMSON, "P"),
    "lexical": Look("lexical", BLUE, "^"),
    "dense": Look("dense", SKY, "v"),
    "neighbour": Look("neighbour", GREEN, "s"),
    "linear": Look("linear", LIME, "P"),
    "collaborative": Look("collaborative", PURPLE, "o"),
    "graph": Look("graph", INDIGO, "X"),
    "hybrid": Look("hybrid", ORANGE, "p"),
    "published": Look("published", TEAL, ">"),
    "extension": Look("extension of a published one", TEAL, "<"),
    "reference_bug": Look("bug of a published program", TEAL, "X"),
    "trivial": Look("trivial (rules, popularity, chance)", BLACK, "o"),
    ORACLE: Look("reads the answers", GREY, "*"),
}
OTHER = Look("other", SILVER, "h")
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
ABOVE: Any = {"loc": "lower left", "bbox_to_anchor": (0, 1), "ncols": 3}  # where a legend stands above the axes
styled = mpl.rc_context(STYLE)  # decorates every function that draws


def look(family: str) -> Look:
    """How a kind of system is drawn."""
    return FAMILIES.get(family, OTHER)


def marker_legend(families: Iterable[str]) -> tuple[list[Artist], list[str]]:
    """Handles and labels of a legend that names the markers of some kinds, each once, in the order of `FAMILIES`."""
    looks = {look(family) for family in families}
    kinds = [kind for kind in (*FAMILIES.values(), OTHER) if kind in looks]
    handles = [Line2D([], [], linestyle="none", marker=kind.marker, color=kind.ink, markersize=5.5) for kind in kinds]
    return list(handles), [kind.words for kind in kinds]


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
    """An empty figure in the study's style, `height` inches high, with a title above and a caption below, and its axes,
    shape (rows, columns); `options` go to `Figure.subplots`."""
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False, sharey=share_y, **options)
    if title:
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
    panel.grid(True, axis="x")  # without True, a second call would hide it


def distinct(names: Mapping[Any, str] | Iterable[Any]) -> dict[Any, Look]:
    """A colour and marker for each name, in the order given; a mapping tells how they are printed."""
    titles = names if isinstance(names, Mapping) else {name: str(name) for name in names}
    return {
        name: Look(title, INKS[number % len(INKS)], MARKERS[number % len(MARKERS)])
        for number, (name, title) in enumerate(titles.items())
    }


def series(
    table: pd.DataFrame, hue: str | None, looks: Mapping[Any, Look] | None
) -> Iterable[tuple[Look, pd.DataFrame]]:
    """The parts of a table that are drawn one by one, one per value of the column `hue`, in the order of `looks`
    (`OTHER` for a value without one; None: `distinct`); without a column, the table."""
    if hue is None:
        return [(Look(""), table)]
    values = dict.fromkeys(table[hue])
    looks = distinct(list(values)) if looks is None else looks
    order = sorted(values, key=lambda name: list(looks).index(name) if name in looks else len(looks))
    return [(looks.get(name, OTHER), table[table[hue] == name]) for name in order]


def forest(
    panel: Axes,
    table: pd.DataFrame,
    value: str = "mean",
    interval: tuple[str, str] = ("ci_low", "ci_high"),
    *,
    row: str = "system",
    names: Mapping[Any, str] | None = None,
    hue: str | None = None,
    looks: Mapping[Any, Look] | None = None,
    dodge: float = 0.0,
    spread: str | None = None,
    zero: bool = False,
    xlabel: str = "",
    **options: Any,
) -> dict[Any, int]:
    """Points with intervals, one named row per value of the column `row`; a NaN leaves its place empty.

    Args:
        table: one line per point, with its value and the ends of its interval (columns).
        names: value of `row` -> how it is printed, the first one on top; None: as in the table.
        hue, looks: as in `series`; the words of `looks` become the labels of a legend, which the caller places.
        dodge: rows between two neighbouring series of one row.
        spread: column of a standard deviation, drawn as a thick line to both sides.
        zero: draw a line at 0.
        options: go to `Axes.set`.

    Returns: value of `row` -> its place on the axis, 0 on top.
    """
    names = {name: str(name) for name in table[row]} if names is None else names
    places = {name: position for position, name in enumerate(names)}
    if zero:
        panel.axvline(0, color="black", linewidth=0.7)
    parts = list(series(table, hue, looks))
    for number, (style, part) in enumerate(parts):
        y = part[row].map(places) + dodge * (number - (len(parts) - 1) / 2)
        panel.hlines(y, part[interval[0]], part[interval[1]], color=style.ink, linewidth=1.2)
        if spread is not None:
            ends = part[value] - part[spread], part[value] + part[spread]
            panel.hlines(y, *ends, color=style.ink, linewidth=6, alpha=0.4)
        point: Any = {"marker": style.marker, "color": style.ink, "markerfacecolor": style.face or style.ink}
        panel.plot(part[value], y, linestyle="none", markersize=5.0, label=style.words, zorder=3, **point)
    named_rows(panel, list(places.values()), names.values(), xlabel, ylim=(len(places) - 0.4, -0.6), **options)
    return places


def lines(
    panel: Axes,
    table: pd.DataFrame,
    x: str,
    value: str = "mean",
    interval: tuple[str, str] | None = None,
    *,
    hue: str | None = None,
    looks: Mapping[Any, Look] | None = None,
    band: bool = True,
    **options: Any,
) -> None:
    """Curves over the column `x`, one per value of the column `hue` (see `series`), with a grid. `interval`: columns of
    the ends of an interval, drawn as a band or as bars. `options` go to `Axes.set`."""
    for style, part in series(table, hue, looks):
        if interval is not None and band:
            panel.fill_between(part[x], part[interval[0]], part[interval[1]], color=style.ink, alpha=0.2, linewidth=0)
        elif interval is not None:
            panel.vlines(part[x], part[interval[0]], part[interval[1]], color=style.ink, linewidth=0.8)
        point: Any = {"marker": style.marker, "markersize": 4.0, "markerfacecolor": style.face or style.ink}
        panel.plot(part[x], part[value], color=style.ink, linewidth=1.2, label=style.words, **point)
    panel.set(**options)
    panel.grid(True)


def heat(
    panel: Axes,
    cells: pd.DataFrame,
    texts: pd.DataFrame | None = None,
    *,
    bold: pd.DataFrame | None = None,
    size: float = 7.5,
    turn: float = 0.0,
    **options: Any,
) -> None:
    """A matrix as coloured fields with `texts` in them, in bold where `bold` says so; a NaN leaves its field empty.

    `size`: of the texts. `turn`: degrees by which the names of the columns are turned. `options` go to
    `seaborn.heatmap`, so colours come from cmap, vmin and vmax.
    """
    sns.heatmap(cells, annot=texts, fmt="", cbar=False, annot_kws={"fontsize": size}, ax=panel, **options)
    if bold is not None:
        emphasis = bold.to_numpy()[cells.notna().to_numpy()]
        for text, strong in zip(panel.texts, emphasis, strict=True):
            text.set_fontweight("bold" if strong else "normal")
    about: Any = (
        {"rotation": turn, "ha": "right", "rotation_mode": "anchor", "fontsize": 7.5} if turn else {"rotation": 0}
    )
    panel.set_xticks(np.arange(len(cells.columns)) + 0.5, [str(name) for name in cells.columns], **about)
    panel.set_yticks(np.arange(len(cells)) + 0.5, [str(name) for name in cells.index], rotation=0)
    panel.set(xlabel="", ylabel="")
    panel.tick_params(length=0)


def save_figure(figure: Figure, name: str, dataset: str) -> Path:
    """Write ``<name>.png`` to the figures of a data set; equal figures give equal bytes.
    A palette of 256 colours makes the file a third of its size."""
    folder = paths.figures(dataset)
    with mpl.rc_context(STYLE):
        png = io.BytesIO()
        figure.savefig(png, format="png", metadata={"Software": None})
    with replacing(folder / f"{name}.png") as temporary, Image.open(png) as image:
        image.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(temporary, format="PNG", optimize=True)
    return folder / f"{name}.png"


def show_figure(figure: Figure, name: str, dataset: str) -> None:
    """Write a figure and show it in a notebook."""
    from IPython import display

    path = save_figure(figure, name, dataset)
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
