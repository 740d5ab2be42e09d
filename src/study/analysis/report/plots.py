"""Figures of results. Each function draws one figure from tables; `save_figure` alone writes files.

Figures are made without pyplot, so they need no display, leave no state behind, and look alike in notebooks, scripts
and tests. Colours are those of `study.analysis.report.colours`; markers differ as well.
"""

from __future__ import annotations

import base64
import io
import re
import textwrap
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, StrMethodFormatter
from PIL import Image

from study import paths
from study.analysis.report import colours, legends
from study.analysis.report.colours import BLUE, GREEN, GREY, ORANGE, PURPLE, RED, colour
from study.analysis.report.legends import legend_below
from study.files import replacing, write_text

MARKERS = "osD^vPX<>*hpd8"
# Shapes that a small marker still tells apart, and how they are filled once every shape of a colour is taken.
SHAPES, FILLS = "osD^vPX<>dp", ("full", "left", "bottom", "right", "top")
TUNED = " (tuned)"  # how the title of a tuned system ends; the rest is the title of the system at its own settings
STYLE: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 9.0,
    "text.parse_math": False,
    "axes.titlesize": 10.0,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": False,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 8.0,
    "figure.dpi": 130.0,
    "savefig.dpi": 110.0,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "svg.hashsalt": "t2mrec-study",
    "svg.fonttype": "none",
    "path.simplify": True,
    "axes.unicode_minus": True,
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
WIDTH = 7.2  # inches, the width of a page's text


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

    Args:
        height: in inches.
        options: for `Figure.subplots`.

    Returns: the figure and its axes, shape (rows, columns).
    """
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


def dumbbells(panel: Axes, rows: pd.DataFrame, before: str, after: str, low: str, high: str) -> None:
    """One line per row of a table, the first one on top, from an open marker to a filled one.

    Green where the interval of the difference lies above 0, red where it lies below, grey where it holds 0. A row
    without numbers keeps its place and stays empty.

    Args:
        before, after: columns of the open and the filled marker.
        low, high: columns of the interval of after minus before.
    """
    places = np.arange(len(rows))[::-1]
    inks = np.where(rows[low] > 0, GREEN, np.where(rows[high] < 0, RED, GREY))
    panel.hlines(places, rows[before], rows[after], colors=list(inks), linewidth=1.6)
    panel.scatter(rows[before], places, s=26, facecolors="white", edgecolors=list(inks), zorder=3)
    panel.scatter(rows[after], places, s=26, color=list(inks), zorder=3)
    panel.set_ylim(-0.7, len(rows) - 0.3)
    panel.grid(axis="x")


def save_figure(figure: Figure, name: str, dataset: str) -> Path:
    """Write ``<name>.svg`` and ``<name>.png`` to the figures of a data set; equal figures give equal bytes.

    The PNG has a palette of 256 colours, a third of the size: figures stand in the repository and in notebooks.

    Returns: the PNG's path.
    """
    folder = paths.figures(dataset)
    with mpl.rc_context(STYLE):
        vectors = io.StringIO()
        figure.savefig(vectors, format="svg", metadata={"Date": None, "Creator": None})
        write_text(folder / f"{name}.svg", shorter(vectors.getvalue()))
        drawn = io.BytesIO()
        figure.savefig(drawn, format="png", metadata={"Software": None})
    with replacing(folder / f"{name}.png") as temporary, Image.open(drawn) as image:
        image.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(temporary, format="PNG", optimize=True)
    return folder / f"{name}.png"


def shorter(svg: str) -> str:
    """The same drawing in fewer bytes: places to a hundredth of a point (cut, not rounded), no indents, and large
    pictures within it, which hold what would be too many lines, with a palette of 256 colours."""
    pictures = r"(data:image/png;base64,)\s*([A-Za-z0-9+/=\s]{32768,})"
    svg = re.sub(pictures, lambda found: found[1] + palette(found[2]), svg)
    cut = re.sub(r' (d|x|y)="[^"]*"', lambda place: re.sub(r"(\.\d\d)\d+", r"\1", place[0]), svg)
    return re.sub(r"\n +", "\n", cut)


def palette(picture: str) -> str:
    """A PNG with transparent places, in base64, with a palette."""
    small = io.BytesIO()
    with Image.open(io.BytesIO(base64.b64decode(picture))) as image:
        packed = image.convert("RGBA").quantize(256, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
    packed.save(small, format="PNG", optimize=True)
    return base64.b64encode(small.getvalue()).decode()


def looks(inks: Iterable[str], titles: Iterable[str]) -> list[tuple[str, str]]:
    """A marker and its fill style for every system, different among those of one colour (55 of each).

    A tuned system has those of the same system at its own settings. What reads the answers is a star.
    """
    bases: dict[str, list[str]] = {}
    found = []
    for ink, title in zip(inks, titles, strict=True):
        known, base = bases.setdefault(ink, []), title.removesuffix(TUNED)
        if base not in known:
            known.append(base)
        shapes = "*" if ink == GREY else SHAPES
        fill, shape = divmod(known.index(base), len(shapes))
        found.append((shapes[shape], FILLS[fill % len(FILLS)]))
    return found


def logarithmic(axis: Any, most: int = 8) -> None:
    """Make an axis that already holds its data logarithmic, with plain numbers (mathematical text is off in STYLE).

    Args:
        axis: `Axes.xaxis` or `Axes.yaxis`.
        most: powers of ten with a number.
    """
    axis.axes.set(**{f"{axis.axis_name}scale": "log"})
    low, high = axis.get_view_interval()
    if high < 6 * low:  # may hold one of 1, 2 and 5, or none
        axis.set_major_locator(MaxNLocator(nbins=5, steps=[1, 2, 5, 10]))
    else:
        # Over less than two powers of ten the powers alone would leave the axis almost without numbers.
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high < 100 * low else (1.0,), numticks=most))
    axis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.set_minor_formatter(NullFormatter())


@mpl.rc_context(STYLE)
def overall(summaries: Mapping[str, pd.DataFrame], caption: str) -> Figure:
    """Every system's mean with both uncertainties, one panel per metric.

    Args:
        summaries: metric -> table of `Results.summary`; the first one sets the order of the systems.
    """
    order = next(iter(summaries.values()))["system"].tolist()
    place = {system: len(order) - i for i, system in enumerate(order)}
    caption += (
        " Thin line: 95 % bootstrap interval over tasks. Thick line: ± one standard deviation over seeds. "
        "Colours and markers: kind of system."
    )
    figure, axes = canvas(
        1.5 + 0.27 * len(order), len(summaries), caption=caption, share_y=True, title="Overall quality by system"
    )
    for panel, (metric, table) in zip(axes[0], summaries.items(), strict=True):
        for row in table.to_dict("records"):
            kind, y, mean, sd = colours.look(row["family"]), place[row["system"]], row["mean"], row["sd"]
            ink = kind.ink
            panel.plot([row["low"], row["high"]], [y, y], color=ink, linewidth=1.0, solid_capstyle="butt")
            if not pd.isna(sd):
                ends = [mean - sd, mean + sd]
                panel.plot(ends, [y, y], color=ink, linewidth=6.0, alpha=0.45, solid_capstyle="butt")
            # Small, so that an interval can be seen beside it.
            panel.plot(mean, y, marker=kind.marker, color=ink, markersize=3.6)
        panel.set_xlabel(f"{metric_name(metric)} (0 to 1)")
        panel.set(xlim=(0, None), ylim=(0.4, len(order) + 0.6))
        panel.grid(axis="x")
    titles = next(iter(summaries.values())).set_index("system")["title"]
    axes[0, 0].set_yticks([place[system] for system in order], [titles[system] for system in order])
    legend_below(figure, *legends.points(next(iter(summaries.values()))["family"]))
    return figure


@mpl.rc_context(STYLE)
def per_task_distribution(
    values: Mapping[str, pd.Series], families: Mapping[str, str], metric: str, caption: str
) -> Figure:
    """How a metric spreads over tasks: a box per system, and the share of tasks with nothing right.

    Args:
        values: printed name -> per-task values, best system first.
        families: printed name -> kind of system.
    """
    caption += (
        " Box: quartiles. Whiskers: 5th and 95th percentile. Diamond: mean. Right: share of the tasks whose value is "
        "0. Colours: kind of system."
    )
    figure, axes = canvas(1.4 + 0.3 * len(values), caption=caption, title=f"{metric_name(metric)} of single tasks")
    panel: Axes = axes[0, 0]
    for y, (title, series) in enumerate(reversed(list(values.items())), start=1):
        ink, known = colour(families[title]), series.dropna()
        box = panel.boxplot(
            known,
            positions=[y],
            orientation="horizontal",
            widths=0.6,
            whis=(5, 95),
            showfliers=False,
            patch_artist=True,
            medianprops={"color": "black"},
            whiskerprops={"color": ink},
            capprops={"color": ink},
        )
        box["boxes"][0].set(facecolor=colours.filling(ink), edgecolor=ink)
        panel.plot(known.mean(), y, marker="D", color="white", markersize=4.5, markeredgecolor="black")
        panel.text(
            1.03, y, f"{(known == 0).mean():.0%}", va="center", transform=panel.get_yaxis_transform(), fontsize=8
        )
    panel.text(
        1.03, len(values) + 0.75, "zero", va="bottom", transform=panel.get_yaxis_transform(), fontsize=8, style="italic"
    )
    panel.set_yticks(range(1, len(values) + 1), list(values)[::-1])
    panel.set(xlabel=f"{metric_name(metric)} of a task (0 to 1)", xlim=(-0.02, 1.02), ylim=(0.4, len(values) + 0.7))
    panel.grid(axis="x")
    legend_below(figure, *legends.areas(families[title] for title in values))
    return figure


@mpl.rc_context(STYLE)
def win_tie_loss(comparisons: pd.DataFrame, titles: Mapping[str, str], caption: str) -> Figure:
    """On how many tasks each system is above, level with and below the reference.

    Args:
        comparisons: rows of significance.csv for one protocol and one metric.
    """
    rows = comparisons.sort_values("difference")
    reference, metric = titles.get(rows["reference"].iloc[0], "the reference"), metric_name(rows["metric"].iloc[0])
    caption += " Values are averaged over seeds before tasks are compared. In the order of the mean difference."
    title = f"Task by task against {reference}: {metric}"
    figure, axes = canvas(1.5 + 0.3 * len(rows), caption=caption, title=title)
    panel: Axes = axes[0, 0]
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


@mpl.rc_context(STYLE)
def paper_dots(paper: Mapping[str, pd.Series], ours: Mapping[str, pd.Series], caption: str) -> Figure:
    """The paper's values beside the study's, metric by metric.

    Args:
        paper, ours: label -> values by metric@k, in the same metrics.
    """
    metrics = list(next(iter(paper.values())).index)
    figure, axes = canvas(1.6 + 0.42 * len(metrics), caption=caption, title="The paper's T2MRec and ours")
    panel: Axes = axes[0, 0]
    inks, series = [GREY, "#000000", RED, BLUE, GREEN, ORANGE, PURPLE], {**paper, **ours}
    for number, (label, values) in enumerate(series.items()):
        ink, marker = inks[number % len(inks)], MARKERS[number % len(MARKERS)]
        place = np.arange(len(metrics))[::-1] + 0.12 * ((len(series) - 1) / 2 - number)
        panel.plot(
            values[metrics],
            place,
            linestyle="none",
            marker=marker,
            markersize=6,
            color=ink,
            markerfacecolor="white" if label in paper else ink,
            label=label,
        )
    panel.set_yticks(range(len(metrics)), [metric_name(name) for name in reversed(metrics)])
    panel.set(xlabel="mean over test tasks (0 to 1)", xlim=(0, None))
    panel.hlines(
        np.arange(len(metrics) - 1) + 0.5, 0, 1, transform=panel.get_yaxis_transform(), color="#DDDDDD", linewidth=0.6
    )
    panel.grid(axis="x")
    panel.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, borderaxespad=0)
    return figure


@mpl.rc_context(STYLE)
def cost_quality(
    costs: pd.DataFrame, caption: str, *, resolution: float = 1e-3, leave_out: Collection[str] = ("ablation",)
) -> Figure:
    """What quality costs: NDCG@10 against time to fit and time per task.

    Args:
        costs: columns title, family, quality, tasks, seconds_fit, milliseconds_per_task.
        resolution: seconds; shorter times cannot be told from 0 and are drawn here.
        leave_out: families that are not drawn; those with a row are named in the caption.
    """
    absent = [kind.words for kind in colours.present(set(costs["family"]) & set(leave_out))]
    costs = _drawn(costs[~costs["family"].isin(leave_out)])
    better = crowded(costs)
    if costs["open"].any():
        caption += " Open marker: a system at its own settings; filled, the same shape: tuned."
    if absent:
        caption += f" Left out: {', '.join(absent)}."
    if not better.empty:
        caption += " Right: the better half of the systems alone, enlarged."
    caption += (
        " Times are means over seeds, on logarithmic axes; a fit or a whole ranking of under "
        f"{1000 * resolution:.0f} ms is drawn as that. They come from the runs' records, and not all runs were made on "
        "a quiet machine (docs/reproducibility.md)."
    )
    parts = [costs] if better.empty else [costs, better]
    figure, axes = canvas(8.0, len(parts), rows=2, caption=caption, title="Cost and quality")
    floor = {"seconds_fit": resolution, "milliseconds_per_task": 1e3 * resolution / costs["tasks"].max()}
    labels = {"seconds_fit": "time to fit (s)", "milliseconds_per_task": "time to rank (ms per task)"}
    for line, (column, label) in zip(axes, labels.items(), strict=True):
        drawn = [
            _points(panel, part, part[column].clip(lower=floor[column]))
            for panel, part in zip(line, parts, strict=True)
        ]
        for panel in line:
            logarithmic(panel.xaxis, most=7 if len(parts) == 1 else 4)
            panel.set(xlabel=label)
            panel.grid(True)
        line[0].set(ylabel="NDCG@10 (0 to 1)", ylim=(0, None))
    handles: list[Artist] = []
    heads: dict[int, str] = {}
    for ink, kind in colours.worded(costs["family"]).items():
        heads[len(handles)] = kind
        handles += [legends.area(ink), *drawn[0][ink]]
    words = [heads.get(place, str(handle.get_label())) for place, handle in enumerate(handles)]
    legend_below(figure, handles, words, heads)
    return figure


def _drawn(costs: pd.DataFrame) -> pd.DataFrame:
    """The table of costs, best quality first, with the look of every system: columns ink, marker, fill and open."""
    costs = costs.sort_values("quality", ascending=False, kind="stable")
    inks, titles = costs["family"].map(colour), costs["title"]
    marks = pd.DataFrame(looks(inks, titles), columns=["marker", "fill"], index=costs.index)
    # A system with a tuned twin is open, as in the figure of what tuning brought.
    twins = {title.removesuffix(TUNED) for title in titles if title.endswith(TUNED)}
    return costs.assign(ink=inks, open=titles.isin(twins)).join(marks)


def crowded(costs: pd.DataFrame, *, least: int = 10, near: float = 0.75) -> pd.DataFrame:
    """The better half of the systems that do not read the answers, if they lie too close together to be told apart.

    Args:
        costs: best quality first.
        least: so many can always be told apart.
        near: what share of the best quality the worst of them has to have to be close.

    Returns: rows of `costs`, none where there is room.
    """
    systems = costs[costs["family"] != colours.CEILING]
    better = systems.head((len(systems) + 1) // 2)
    close = len(better) > least and better["quality"].iloc[-1] > near * better["quality"].iloc[0]
    return better if close else better.head(0)


def _points(panel: Axes, costs: pd.DataFrame, times: pd.Series) -> dict[str, list[Line2D]]:
    """One marker per system of `_drawn`; returns them by colour, in its order."""
    drawn: dict[str, list[Line2D]] = {}
    for row, time in zip(costs.to_dict("records"), times, strict=True):
        # Filled markers that overlap are parted by a white edge, open ones show what lies below them; the study's
        # subject lies on top.
        ink, parted = row["ink"], row["fill"] == "full" and not row["open"]
        drawn.setdefault(ink, []).extend(
            panel.plot(
                time,
                row["quality"],
                linestyle="none",
                marker=row["marker"],
                fillstyle=row["fill"],
                color=ink,
                markersize=9 if row["marker"] == "*" else 6.5,
                alpha=0.85,
                clip_on=False,
                markerfacecolor="none" if row["open"] else ink,
                markeredgecolor="white" if parted else ink,
                markeredgewidth=0.6 if parted else 1.1,
                label=row["title"],
                zorder=3 if row["family"] == "t2mrec" else 2,
            )
        )
    return drawn
