"""Figures of the label audit and of the tasks' texts. Tables come in by the names of their files."""

from __future__ import annotations

from collections.abc import Mapping

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from study.analysis.report.colours import BLUE, GREEN, GREY, ORANGE, PURPLE, RED, SKY, YELLOW
from study.analysis.report.plots import STYLE, canvas

# Class of provenance -> colour and how it is printed, in the order in which classes are given.
CLASSES = {
    "theme_token": (BLUE, "word of the theme"),
    "theme_pool": (SKY, "pool of the theme"),
    "text_token": (GREEN, "rare word of the text"),
    "language_run": (ORANGE, "walk through the language"),
    "language": (YELLOW, "same language"),
    "alphabetical": (RED, "walk through the alphabet"),
    "balancing": (PURPLE, "level run (equally used servers)"),
    "long_run": ("#8B6B4A", "other long ascending run"),
    "none": ("#D9D9D9", "none"),
}
SCOPES = {"all": "", "position": "position ", "twelfth of the file": "part ", "subcategory": ""}


@mpl.rc_context(STYLE)
def plot_provenance(tables: Mapping[str, pd.DataFrame], scope: str = "position", caption: str = "") -> Figure:
    """Shares of the provenance classes, one bar per position, subcategory or twelfth of the file, all labels on top.

    Args:
        tables: ``provenance``.
        scope: ``position``, ``subcategory`` or ``twelfth of the file``.
    """
    table = tables["provenance"]
    chosen = table[table["scope"].isin(["all", scope])]
    bars = list(chosen[["scope", "name"]].drop_duplicates().itertuples(index=False, name=None))
    n = int(table.loc[table["scope"] == "all", "n"].iloc[0])
    caption += (
        f" {n:,} labels; each has the class of the first detector that fires, in the order of conf/audit/labels.yaml. "
        "Words, pools and the language are what honest labels would show too; walks and level runs are not."
    )
    figure, axes = canvas(1.9 + 0.25 * len(bars), caption=caption.strip(), title=f"Signs that labels bear, by {scope}")
    panel, left = axes[0, 0], np.zeros(len(bars))
    place = np.arange(len(bars))[::-1]
    for kind, (ink, label) in CLASSES.items():
        share = chosen[chosen["class"] == kind].set_index(["scope", "name"])["share"]
        width = np.array([100 * share.get(bar, 0.0) for bar in bars])
        panel.barh(place, width, left=left, color=ink, label=label, height=0.75)
        for y, start, value in zip(place, left, width, strict=True):
            if value >= 7:
                dark = ink in (BLUE, RED, "#8B6B4A", GREEN)
                panel.text(
                    start + value / 2,
                    y,
                    f"{value:.0f}",
                    ha="center",
                    va="center",
                    fontsize=7,
                    color="white" if dark else "black",
                )
        left += width
    panel.set_yticks(place, ["all labels" if kind == "all" else f"{SCOPES[kind]}{name}" for kind, name in bars])
    panel.set(xlabel="share of the labels (%)", xlim=(0, 100))
    figure.legend(*panel.get_legend_handles_labels(), loc="outside right upper", fontsize=7.5)
    return figure


@mpl.rc_context(STYLE)
def plot_detectors(tables: Mapping[str, pd.DataFrame], caption: str = "") -> Figure:
    """How often each detector fires, against its rate when its kind of evidence is destroyed.

    Args:
        tables: ``detectors``.
    """
    table = tables["detectors"]
    # Unions on top, in the table's order; the others by how often they fire.
    union = table["detector"].str.startswith("any ")
    rows = pd.concat([table[~union].sort_values("share"), table[union]], ignore_index=True)
    caption += (
        f" {int(rows['n'].iloc[0]):,} labels, each counted by every detector that fires. Lines: 95 % intervals, tasks "
        f"with the same set of servers as one observation. Crosses: mean of {int(rows['permutations'].iloc[0])} "
        "permutations (lists moved to other tasks, or lists in random order). Diamonds, for signs of order: other "
        "servers in the same order, as many in the task's language, drawn as often as they are listed (filled) or "
        "evenly (open)."
    )
    figure, axes = canvas(1.7 + 0.32 * len(rows), caption=caption.strip(), title="Detectors against chance")
    panel, place = axes[0, 0], np.arange(len(rows))
    panel.hlines(place, 100 * rows["low"], 100 * rows["high"], color=BLUE)
    panel.plot(100 * rows["share"], place, "o", color=BLUE, label="released labels")
    panel.plot(100 * rows["chance"], place, "x", color="black", label="by chance")
    for name, inside in (("kept", ORANGE), ("even", "white")):
        panel.plot(
            100 * rows[name],
            place,
            "D",
            color=ORANGE,
            markerfacecolor=inside,
            markersize=4.5,
            linestyle="none",
            label="in the same order, " + {"kept": "as often listed", "even": "evenly"}[name],
        )
    labels = [CLASSES[name][1].removeprefix("other ") if name in CLASSES else name for name in rows["detector"]]
    panel.set_yticks(place, labels)
    panel.set(xlabel="share of the labels that the detector marks (%)", xlim=(0, None), ylim=(-0.6, len(rows) - 0.4))
    panel.grid(axis="x")
    panel.legend(loc="lower right")
    return figure


@mpl.rc_context(STYLE)
def plot_first_uses(tables: Mapping[str, pd.DataFrame], caption: str = "") -> Figure:
    """Where in the file servers are listed for the first time, against the share of servers not yet listed.

    Args:
        tables: ``first_uses``.
    """
    rows = tables["first_uses"]
    caption += (
        " Blocks of 100 tasks in the order of the file; lines: 95 % Wilson intervals. Labels drawn without regard to "
        "use would stay on or below the dashed line."
    )
    figure, axes = canvas(3.4, caption=caption.strip(), title="Servers listed for the first time")
    panel = axes[0, 0]
    panel.vlines(rows["first_task"], 100 * rows["low"], 100 * rows["high"], color=ORANGE)
    panel.plot(
        rows["first_task"], 100 * rows["rate"], "o", markersize=4, color=ORANGE, label="labels that are first uses"
    )
    panel.plot(rows["first_task"], 100 * rows["unused"], "--", color="black", label="servers not used before the block")
    panel.set(xlabel="first task of the block", ylabel="share (%)", ylim=(0, 100))
    panel.grid(axis="y")
    panel.legend()
    return figure


@mpl.rc_context(STYLE)
def plot_mixture_fit(tables: Mapping[str, pd.DataFrame], caption: str = "") -> Figure:
    """The fitted shares of the annotation mixture, and the ratio of observed to fitted statistics.

    Args:
        tables: ``mixture`` and ``mixture_fit``.
    """
    shares = tables["mixture"]
    shares = shares[shares["parameter"].str.fullmatch(r"share (?!of).*")].iloc[::-1]
    fit = tables["mixture_fit"]
    fit = fit[(fit["observed"] > 0) & (fit["fitted"] > 0)].iloc[::-1]
    caption += (
        " Left: shares of the reasons for a label, lines 95 % intervals over different lists. Right: what the lists "
        f"show over what {int(fit['simulations'].iloc[0])} data sets drawn from the fitted mixture show (mean; lines: "
        "smallest and largest); 1 means that the mixture explains it. "
        f"{int((~tables['mixture_fit']['inside'].astype(bool)).sum())} of {len(tables['mixture_fit'])} statistics lie "
        "outside that range, so the shares describe the model, not how the labels were made."
    )
    figure, axes = canvas(
        4.4, 2, caption=caption.strip(), title="The annotation mixture and what it leaves out", width_ratios=[1, 1.6]
    )
    panel, place = axes[0, 0], np.arange(len(shares))
    panel.barh(place, 100 * shares["value"], color=BLUE, height=0.6)
    panel.hlines(place, 100 * shares["low"], 100 * shares["high"], color="black")
    panel.set_yticks(place, [name.removeprefix("share ").replace("_", " ") for name in shares["parameter"]])
    panel.set(xlabel="share of the labels (%)")
    panel.grid(axis="x")
    panel, place = axes[0, 1], np.arange(len(fit))
    ends = fit["observed"] / fit["fitted_high"], fit["observed"] / fit["fitted_low"].where(fit["fitted_low"] > 0)
    panel.hlines(place, *ends, color=ORANGE)
    panel.plot(fit["observed"] / fit["fitted"], place, "o", color=ORANGE)
    panel.axvline(1, color="black", linewidth=0.8, linestyle="--")
    panel.set_yticks(place, [_wrapped(name) for name in fit["statistic"]], fontsize=7)
    panel.set(xlabel="observed / fitted", xlim=(0, None))
    panel.grid(axis="x")
    return figure


def _wrapped(name: str, width: int = 38) -> str:
    """A label in two lines at most."""
    if len(name) <= width:
        return name
    cut = name.rfind(" ", 0, width)
    return f"{name[:cut]}\n{name[cut + 1 :]}"


@mpl.rc_context(STYLE)
def plot_task_quality(tables: Mapping[str, pd.DataFrame], caption: str = "") -> Figure:
    """How well the parts of a task tell it from another task, by block of the file, and what the reader found.

    Args:
        tables: ``task_quality``, and ``task_quality_reading`` where a sample was read.
    """
    table = tables["task_quality"]
    reading = tables.get("task_quality_reading")
    blocks = [name for name in table["block"].unique() if name != "all"] or ["all"]
    usual = table[table["shuffled_in"] == "all tasks"]
    pairs = list(usual[["left", "right"]].drop_duplicates().itertuples(index=False, name=None))
    caption += (
        " Left: share of the cases in which a task's own pair is more alike than a shuffled one (AUC of cosines; "
        "50 %: independent; lines: 95 % intervals, DeLong); open markers: shuffled within the subcategory."
    )
    if reading is not None:
        n = int(reading.loc[reading["block"] == "all", "n"].iloc[0])
        caption += f" Right: name against description of {n} tasks, read once by a language model (Wilson intervals)."
    figure, axes = canvas(
        3.9, 1 if reading is None else 2, caption=caption.strip(), title="Do the parts of a task agree?"
    )
    panel, inks = axes[0, 0], (BLUE, ORANGE, GREY)
    for number, block in enumerate(blocks):
        rows = usual[usual["block"] == block].set_index(["left", "right"]).loc[pairs]
        place = np.arange(len(pairs))[::-1] - 0.16 * (number - (len(blocks) - 1) / 2)
        panel.hlines(place, 100 * rows["auc_low"], 100 * rows["auc_high"], color=inks[number])
        panel.plot(100 * rows["auc"], place, "osD"[number], color=inks[number], markersize=5, label=block)
        inside = table[(table["block"] == block) & (table["shuffled_in"] == "within subcategory")]
        inside = inside.set_index(["left", "right"]).reindex(pairs)
        panel.hlines(place, 100 * inside["auc_low"], 100 * inside["auc_high"], color=inks[number])
        panel.plot(100 * inside["auc"], place, "osD"[number], color=inks[number], markersize=5, markerfacecolor="white")
    panel.axvline(50, color="black", linewidth=0.8, linestyle="--")
    panel.set_yticks(np.arange(len(pairs))[::-1], [" – ".join(pair) for pair in pairs])
    panel.set(xlabel="AUC (%)", xlim=(min(45.0, 100 * usual["auc_low"].min() - 2), 101))
    panel.grid(axis="x")
    panel.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, borderaxespad=0)
    if reading is not None:
        codes = list(dict.fromkeys(reading["code"]))
        for number, block in enumerate(blocks):
            rows = reading[reading["block"] == block].set_index("code").loc[codes]
            place = np.arange(len(codes))[::-1] - 0.2 * (number - (len(blocks) - 1) / 2) * 2
            axes[0, 1].barh(place, 100 * rows["share"], height=0.36, color=inks[number], alpha=0.8)
            axes[0, 1].hlines(place, 100 * rows["low"], 100 * rows["high"], color="black", linewidth=0.9)
        axes[0, 1].set_yticks(np.arange(len(codes))[::-1], codes)
        axes[0, 1].set(xlabel="share of the tasks read (%)", xlim=(0, 100))
        axes[0, 1].grid(axis="x")
    return figure
