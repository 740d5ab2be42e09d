"""The figures of RQ3: sweeps over one setting (the paper's Figures 7 to 9) and the joint search."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator
from matplotlib.tri import LinearTriInterpolator, Triangulation

from study.analysis.report.colours import BLUE, GREY, ORANGE, RED
from study.analysis.report.plots import STYLE, canvas, logarithmic, metric_name
from study.analysis.sensitivity.tables import curve, paper_trial, parameter
from study.evaluation.metrics import PAPER_METRICS
from study.search.settings import Sweep

PARTS = {"valid": ("validation tasks", BLUE, "o"), "test": ("test tasks", ORANGE, "s")}
GRID = 60  # points per side of a contour panel
MOST_CHOICES = 5  # values that an axis can name one by one


def short(name: str) -> str:
    """``training.learning_rate`` as figures print it: learning rate."""
    return name.rpartition(".")[2].replace("_", " ")


def is_logarithmic(domain: dict[str, Any]) -> bool:
    """Whether an entry of a search space is logarithmic: it says so, or its values grow by factors."""
    values = np.array(domain.get("choices", [1.0]), dtype=float)
    return bool(domain.get("log", False)) or bool(values.min() > 0 and values.max() > 30 * values.min())


def label(sweep: Sweep, name: str) -> str:
    """A setting as figures of a search print it; a weight that is divided by a sum before use is called raw."""
    return f"{short(name)} (raw weight)" if name in sweep.simplex else short(name)


def scale(axis: Any, domain: dict[str, Any], *, wide: bool = False) -> None:
    """Give an axis of a narrow panel that already holds its data the scale and few ticks of a setting.

    Args:
        axis: `Axes.xaxis` or `Axes.yaxis`.
        domain: an entry of a search space.
        wide: there is room for numbers at 1 and 3 of every power of ten over two of those, not over one and a half.
    """
    choices = domain.get("choices", [])
    if 1 < len(choices) <= MOST_CHOICES:
        if is_doubling(choices):
            axis.axes.set(**{f"{axis.axis_name}scale": "log"})
        axis.set_ticks(choices, [f"{value:g}" for value in choices])
        axis.set_minor_locator(NullLocator())
    elif is_logarithmic(domain):
        logarithmic(axis)
        low, high = axis.get_view_interval()
        most = 300 if wide else 60
        axis.set_major_locator(LogLocator(subs=(1.0,) if high > most * low else (1.0, 3.0), numticks=6))
    else:
        axis.set_major_locator(MaxNLocator(nbins=5, steps=[1, 2, 5, 10], integer=domain.get("type") == "int"))


def is_doubling(values: list[Any]) -> bool:
    """Whether numbers grow by a factor of two or more at every step."""
    return all(left > 0 and right >= 2 * left for left, right in pairwise(values))


@mpl.rc_context(STYLE)
def sweep_curves(sweep: Sweep, table: pd.DataFrame, caption: str) -> Figure:
    """All eight measures over the values of one setting, means over seeds with a band of one standard deviation.

    Args:
        table: trials.csv.
    """
    points = curve(sweep, table)
    caption += (
        f" Line: mean over {points['seeds'].max()} seeds. Band: ± one standard deviation over seeds. "
        f"Dashed: the paper's value ({sweep.paper_best:g}). A value is chosen on the validation tasks."
    )
    figure, axes = canvas(4.6, 4, rows=2, caption=caption, title=f"{sweep.title} ({sweep.place})", sharex=True)
    for panel, metric in zip(axes.T.flat, PAPER_METRICS, strict=True):
        for part in sweep.parts:
            label, ink, marker = PARTS[part]
            own = points[(points["part"] == part) & (points["metric"] == metric)]
            x, mean, sd = (own[name].to_numpy(float) for name in ("value", "mean", "sd"))
            low, high = mean - np.nan_to_num(sd), mean + np.nan_to_num(sd)
            panel.fill_between(x, low, high, color=ink, alpha=0.25, linewidth=0)
            panel.plot(x, mean, color=ink, marker=marker, markersize=3, linewidth=1.2, label=label)
        panel.axvline(sweep.paper_best, color=GREY, linestyle="--", linewidth=0.8)
        panel.set_title(metric_name(metric).replace(" (mean over tasks)", ""), fontsize=9)
        panel.set_ylim(0, None)
        scale(panel.xaxis, sweep.space[parameter(sweep)], wide=True)
        panel.tick_params(labelsize=7)
        panel.grid(True)
    for panel in axes[1]:
        panel.set_xlabel(short(parameter(sweep)), fontsize=8)
    axes[0, 0].legend(fontsize=7)
    return figure


@mpl.rc_context(STYLE)
def history(sweep: Sweep, table: pd.DataFrame, caption: str) -> Figure:
    """Every trial of a search by its number, and the best so far; a star where the settings are the paper's."""
    objective, paper = f"valid/{sweep.objective}", paper_trial(sweep, table)
    caption += " Star: the paper's settings." if paper is not None else ""
    rows = table.sort_values("trial")
    figure, axes = canvas(3.0, caption=caption, title="Trials of the joint search")
    panel = axes[0, 0]
    panel.plot(rows["trial"], rows[objective], "o", color=BLUE, markersize=4, label="trial")
    panel.plot(rows["trial"], rows[objective].cummax(), color=ORANGE, drawstyle="steps-post", label="best so far")
    if paper is not None:
        panel.plot(paper["trial"], paper[objective], "*", color=RED, markersize=11)
    panel.set(xlabel="trial", ylabel=f"{metric_name(sweep.objective)}, validation", ylim=(0, None))
    panel.xaxis.set_major_locator(MaxNLocator(integer=True))
    panel.legend(loc="lower right")
    panel.grid(True)
    return figure


@mpl.rc_context(STYLE)
def importances(sweep: Sweep, shares: pd.DataFrame, caption: str) -> Figure:
    """Share of the variance that each parameter explains.

    Args:
        shares: from `study.analysis.sensitivity.tables.importance`.
    """
    figure, axes = canvas(1.4 + 0.26 * len(shares), caption=caption, title="Importance of the settings (fANOVA)")
    panel, place = axes[0, 0], np.arange(len(shares))[::-1]
    panel.barh(place, shares["mean"], color=BLUE, alpha=0.6)
    panel.hlines(place, shares["low"], shares["high"], color="black", linewidth=1.2)
    panel.set_yticks(place, [label(sweep, name) for name in shares["parameter"]])
    panel.set(xlabel="share of the variance of validation quality; line: range over forests", xlim=(0, None))
    panel.grid(axis="x")
    return figure


@mpl.rc_context(STYLE)
def slices(sweep: Sweep, table: pd.DataFrame, caption: str) -> Figure:
    """Validation quality of every trial against each setting, later trials darker, the paper's values marked."""
    names, columns = list(sweep.space), 4
    rows = -(-len(names) // columns)
    caption += " Later trials are darker." + (" Dashed: the paper's values." if sweep.enqueue else "")
    height, title = 1.0 + 1.7 * rows, "Trials by each setting"
    figure, axes = canvas(height, columns, rows=rows, caption=caption, share_y=True, title=title)
    quality, order = table[f"valid/{sweep.objective}"], np.arange(len(table))
    shape: Any = {"cmap": "Blues", "vmin": -len(table) / 2, "s": 14, "edgecolors": "black", "linewidths": 0.3}
    for panel in axes.flat[len(names) :]:
        panel.set_axis_off()
    for panel, name in zip(axes.flat, names, strict=False):
        panel.scatter(table[name], quality, c=order, zorder=3, **shape)
        for point in sweep.enqueue[:1]:
            panel.axvline(point[name], color=GREY, linestyle="--", linewidth=0.8)
        scale(panel.xaxis, sweep.space[name])
        panel.set_xlabel(label(sweep, name), fontsize=8)
        panel.tick_params(labelsize=7)
        panel.grid(True)
    for panel in axes[:, 0]:
        panel.set_ylabel(metric_name(sweep.objective), fontsize=8)
    return figure


@mpl.rc_context(STYLE)
def contour(sweep: Sweep, table: pd.DataFrame, pairs: list[tuple[str, str]], caption: str) -> Figure:
    """Validation quality over pairs of settings, interpolated linearly between the trials.

    Args:
        pairs: settings of the horizontal and the vertical axis, one panel each.
    """
    figure, axes = canvas(3.2, len(pairs), caption=caption + " Dots: trials.", title="Quality over two settings")
    quality = table[f"valid/{sweep.objective}"].to_numpy()
    for panel, (left, right) in zip(axes[0], pairs, strict=True):
        raw = [table[name].to_numpy(float) for name in (left, right)]
        logs = [is_logarithmic(sweep.space[name]) for name in (left, right)]
        scaled = [np.log10(values) if log else values for values, log in zip(raw, logs, strict=True)]
        unit = [(values - values.min()) / (np.ptp(values) or 1.0) for values in scaled]
        distinct = np.unique(np.round(np.stack(unit, axis=1), 9), axis=0)
        if len(distinct) >= 4 and np.ptp(distinct, axis=0).min() > 0:
            side = np.linspace(0, 1, GRID)
            surface = LinearTriInterpolator(Triangulation(*unit), quality)(*np.meshgrid(side, side))
            back = [values.min() + side * np.ptp(values) for values in scaled]
            edges = [10**values if log else values for values, log in zip(back, logs, strict=True)]
            shown = panel.contourf(*edges, surface, levels=12, cmap="Blues")
            figure.colorbar(shown, ax=panel, label=metric_name(sweep.objective))
        panel.plot(*raw, "o", color="black", markersize=2.5)
        for axis, name in ((panel.xaxis, left), (panel.yaxis, right)):
            scale(axis, sweep.space[name], wide=True)
        panel.set(xlabel=label(sweep, left), ylabel=label(sweep, right))
    return figure
