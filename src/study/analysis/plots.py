"""Figures of results. Each function draws one figure from tables; `save_figure` alone writes files.

Figures are made without pyplot, so they need no display, leave no state behind, and look alike in notebooks, scripts
and tests. Colours are those of Okabe and Ito (2008), told apart by colour-blind readers; markers differ as well.
"""

from __future__ import annotations

import io
import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.legend import Legend
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, StrMethodFormatter
from PIL import Image

from study import paths
from study.files import replacing, write_text

BLUE, ORANGE, GREEN, RED, PURPLE, SKY, YELLOW, GREY = (
    "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#F0E442", "#7F7F7F",
)  # fmt: skip
# Kind of system -> colour; the study's subject stands out, ceilings are grey.
FAMILY_COLOURS = {"t2mrec": RED, "lexical": BLUE, "neighbour": GREEN, "dense": SKY, "floor": "#000000", "ceiling": GREY}
OTHER = PURPLE
MARKERS = "osD^vPX<>*hpd8"
# Shapes that a small marker still tells apart, and how they are filled once every shape of a colour is taken.
SHAPES, FILLS = "osD^vPX<>dp", ("full", "left", "bottom", "right", "top")
STYLE: Any = {
    "font.family": "DejaVu Sans", "font.size": 9.0, "text.parse_math": False, "axes.titlesize": 10.0,
    "axes.titleweight": "bold", "axes.titlelocation": "left", "axes.spines.top": False, "axes.spines.right": False,
    "axes.axisbelow": True, "axes.grid": False, "grid.color": "#DDDDDD", "grid.linewidth": 0.6,
    "legend.frameon": False, "legend.fontsize": 8.0, "figure.dpi": 130.0, "savefig.dpi": 110.0,
    "figure.facecolor": "white", "savefig.facecolor": "white", "svg.hashsalt": "t2mrec-study",
    "svg.fonttype": "none", "path.simplify": True, "axes.unicode_minus": True,
}  # fmt: skip
NAMES = {
    "recall": "Recall", "precision": "Precision", "f1": "F1 (mean over tasks)", "f1_of_means": "F1 (of the means)",
    "ndcg": "NDCG", "mrr": "MRR", "hit_rate": "Hit rate", "map": "MAP",
}  # fmt: skip
WIDTH = 7.2  # inches, the width of a page's text


def metric_name(metric: str) -> str:
    """``ndcg@10`` as printed: NDCG@10."""
    name, _, k = metric.partition("@")
    return f"{NAMES.get(name, name)}@{k}"


def canvas(height: float, columns: int = 1, *, rows: int = 1, caption: str = "", share_y: bool = False,
           title: str = "", **options: Any) -> tuple[Figure, np.ndarray]:  # fmt: skip
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
        figure.supxlabel("\n".join(textwrap.wrap(caption, 128)), x=0.01, ha="left", fontsize=7.5, color="#444444")
    return figure, axes


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
    """The same drawing in fewer bytes: places to a hundredth of a point (cut, not rounded), no indents."""
    cut = re.sub(r' (d|x|y)="[^"]*"', lambda place: re.sub(r"(\.\d\d)\d+", r"\1", place[0]), svg)
    return re.sub(r"\n +", "\n", cut)


def legend_below(figure: Figure, handles: Sequence[Artist], labels: Sequence[str]) -> Legend:
    """A legend between the axes and the caption of `canvas`, in as many columns as fit; the figure grows by its height.

    Call it last: the layout keeps the legend's place free, and knows nothing else of it.
    """
    for columns in (3, 2, 1):
        legend = figure.legend(handles, labels, loc="lower left", ncols=columns, fontsize=7.5, borderaxespad=0)
        if columns == 1 or legend.get_window_extent().width < 0.97 * figure.bbox.width:
            break
        legend.remove()
    caption = [text for text in figure.texts if text.get_text() == figure.get_supxlabel() != ""]
    gap = 0.08  # inches
    below = sum(text.get_window_extent().height for text in caption) / figure.dpi + gap
    own = legend.get_window_extent().height / figure.dpi + gap
    height = figure.get_figheight() + own
    figure.set_figheight(height)
    legend.set_in_layout(False)
    legend.set_bbox_to_anchor((0.01, below / height), figure.transFigure)
    engine = figure.get_layout_engine()
    assert isinstance(engine, ConstrainedLayoutEngine)
    engine.set(rect=(0, own / height, 1, 1 - own / height))
    return legend


def looks(inks: Iterable[str]) -> list[tuple[str, str]]:
    """A marker and its fill style for every colour of `inks`, different among those of one colour (55 of each)."""
    seen: Counter[str] = Counter()
    found = []
    for ink in inks:
        fill, shape = divmod(seen[ink], len(SHAPES))
        found.append((SHAPES[shape], FILLS[fill % len(FILLS)]))
        seen[ink] += 1
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


def colour(family: str) -> str:
    """The colour of a kind of system."""
    return FAMILY_COLOURS.get(family, OTHER)


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
        "Open marker: reads the answers."
    )
    figure, axes = canvas(
        1.5 + 0.27 * len(order), len(summaries), caption=caption, share_y=True, title="Overall quality by system"
    )
    for panel, (metric, table) in zip(axes[0], summaries.items(), strict=True):
        for row in table.to_dict("records"):
            y, ink, mean, sd = place[row["system"]], colour(row["family"]), row["mean"], row["sd"]
            panel.plot([row["low"], row["high"]], [y, y], color=ink, linewidth=1.0, solid_capstyle="butt")
            if not pd.isna(sd):
                ends = [mean - sd, mean + sd]
                panel.plot(ends, [y, y], color=ink, linewidth=6.0, alpha=0.45, solid_capstyle="butt")
            inside = "white" if row["family"] == "ceiling" else ink
            panel.plot(mean, y, marker="o", color=ink, markersize=4, markerfacecolor=inside)
        panel.set_xlabel(f"{metric_name(metric)} (0 to 1)")
        panel.set(xlim=(0, None), ylim=(0.4, len(order) + 0.6))
        panel.grid(axis="x")
    titles = next(iter(summaries.values())).set_index("system")["title"]
    axes[0, 0].set_yticks([place[system] for system in order], [titles[system] for system in order])
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
        " Box: quartiles. Whiskers: 5th and 95th percentile. Diamond: mean. Right: share of the tasks whose value is 0."
    )
    figure, axes = canvas(1.4 + 0.3 * len(values), caption=caption, title=f"{metric_name(metric)} of single tasks")
    panel: Axes = axes[0, 0]
    for y, (title, series) in enumerate(reversed(list(values.items())), start=1):
        ink, known = colour(families[title]), series.dropna()
        box = panel.boxplot(known, positions=[y], orientation="horizontal", widths=0.6, whis=(5, 95), showfliers=False,
                            patch_artist=True, medianprops={"color": "black"}, whiskerprops={"color": ink},
                            capprops={"color": ink})  # fmt: skip
        box["boxes"][0].set(facecolor=ink, alpha=0.35, edgecolor=ink)
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
    return figure


@mpl.rc_context(STYLE)
def win_tie_loss(comparisons: pd.DataFrame, titles: Mapping[str, str], caption: str) -> Figure:
    """On how many tasks each system is above, level with and below the reference.

    Args:
        comparisons: rows of significance.csv for one protocol and one metric.
    """
    rows = comparisons.sort_values("difference")
    reference, metric = titles.get(rows["reference"].iloc[0], "the reference"), metric_name(rows["metric"].iloc[0])
    caption += " Values are averaged over seeds before tasks are compared."
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
    panel.set(xlabel="share of the test tasks (%); numbers count tasks", xlim=(0, 100))
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
        panel.plot(values[metrics], place, linestyle="none", marker=marker, markersize=6, color=ink,
                   markerfacecolor="white" if label in paper else ink, label=label)  # fmt: skip
    panel.set_yticks(range(len(metrics)), [metric_name(name) for name in reversed(metrics)])
    panel.set(xlabel="mean over test tasks (0 to 1)", xlim=(0, None))
    panel.hlines(
        np.arange(len(metrics) - 1) + 0.5, 0, 1, transform=panel.get_yaxis_transform(), color="#DDDDDD", linewidth=0.6
    )
    panel.grid(axis="x")
    panel.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, borderaxespad=0)
    return figure


@mpl.rc_context(STYLE)
def cost_quality(costs: pd.DataFrame, caption: str, *, resolution: float = 1e-3) -> Figure:
    """What quality costs: NDCG@10 against time to fit and time per task.

    Args:
        costs: columns title, family, quality, tasks, seconds_fit, milliseconds_per_task.
        resolution: seconds; shorter times cannot be told from 0 and are drawn here.
    """
    caption += (
        " Times are means over seeds, on logarithmic axes; a fit or a whole ranking of under "
        f"{1000 * resolution:.0f} ms is drawn as that. They come from the runs' records, and not all runs were made on "
        "a quiet machine (docs/reproducibility.md). Open marker: reads the answers."
    )
    figure, axes = canvas(7.0, rows=2, caption=caption, title="Cost and quality")
    floor = {"seconds_fit": resolution, "milliseconds_per_task": 1e3 * resolution / costs["tasks"].max()}
    panels = (
        ("seconds_fit", "time to fit (s)"),
        ("milliseconds_per_task", "time to rank (ms per task)"),
    )
    rows = costs.sort_values("quality", ascending=False).to_dict("records")
    inks = [colour(row["family"]) for row in rows]
    for panel, (column, label) in zip(axes[:, 0], panels, strict=True):
        for row, ink, (marker, fill) in zip(rows, inks, looks(inks), strict=True):
            reads, own = row["family"] == "ceiling", row["family"] == "t2mrec"
            # Markers that overlap are parted by a white edge and show through; the study's subject lies on top.
            panel.plot(max(row[column], floor[column]), row["quality"], linestyle="none", marker=marker, markersize=6.5,
                       color=ink, fillstyle=fill, markerfacecolor="white" if reads else ink, alpha=0.8, clip_on=False,
                       markeredgecolor="white" if fill == "full" and not reads else ink, markeredgewidth=0.6,
                       label=row["title"], zorder=3 if own else 2)  # fmt: skip
        logarithmic(panel.xaxis, most=7)
        panel.set(xlabel=label, ylabel="NDCG@10 (0 to 1)", ylim=(0, None))
        panel.grid(True)
    legend_below(figure, *axes[0, 0].get_legend_handles_labels())
    return figure
