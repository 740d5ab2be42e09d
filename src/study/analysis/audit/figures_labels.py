"""Figures of the labels, the tasks, the robustness of the systems' order and the reference bugs.

Tables come in by the names of their files.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from study.analysis.audit.figures_paper import Tables, ordered, titled
from study.analysis.audit.systems import NOT_RUN, RAN
from study.analysis.report.plots import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    RED,
    SKY,
    YELLOW,
    canvas,
    dumbbells,
    metric_name,
    named_rows,
    one_panel,
    styled,
)
from study.errors import StudyError

BROWN = "#8B6B4A"
# Class of provenance -> colour and how it is printed, in the order in which classes are given.
CLASSES = {
    "theme_token": (BLUE, "word of the theme"),
    "theme_pool": (SKY, "pool of the theme"),
    "text_token": (GREEN, "rare word of the text"),
    "language_run": (ORANGE, "run through the language"),
    "language": (YELLOW, "same language"),
    "alphabetical": (RED, "run through the alphabet"),
    "balancing": (PURPLE, "level run (equally used servers)"),
    "long_run": (BROWN, "other long ascending run"),
    "none": ("#D9D9D9", "none"),
}
SCOPES = {"all": "", "position": "position ", "twelfth of the file": "part ", "subcategory": ""}
INKS = {
    "seeds": GREY,
    "metric": BLUE,
    "labels": ORANGE,
    "tie rule": SKY,
    "protocol": GREEN,
    "random splits": PURPLE,
    "judged": RED,
}


@styled
def plot_provenance(tables: Tables, scope: str = "position") -> Figure:
    """Shares of the provenance classes, one bar per name of a scope of the table, all labels on top."""
    table = tables["provenance"]
    chosen = table[table["scope"].isin(["all", scope])]
    bars = ordered(chosen["scope"], chosen["name"])
    n = int(table.loc[table["scope"] == "all", "n"].iloc[0])
    caption = (
        f"{n:,} labels; each has the class of the first detector that fires, in the order of conf/audit/labels.yaml. "
        "Words, pools and the language are what honest labels would show too; catalogue-order runs are not."
    )
    figure, panel = one_panel(1.9 + 0.25 * len(bars), caption=caption, title=f"Signs that labels bear, by {scope}")
    left = np.zeros(len(bars))
    place = np.arange(len(bars))[::-1]
    for kind, (ink, label) in CLASSES.items():
        share = chosen[chosen["class"] == kind].set_index(["scope", "name"])["share"]
        width = np.array([100 * share.get(bar, 0.0) for bar in bars])
        panel.barh(place, width, left=left, color=ink, label=label, height=0.75)
        for y, start, value in zip(place, left, width, strict=True):
            if value >= 7:
                shade = "white" if ink in (BLUE, RED, BROWN, GREEN) else "black"
                middle = start + value / 2
                panel.text(middle, y, f"{value:.0f}", color=shade, ha="center", va="center", fontsize=7)
        left += width
    panel.set_yticks(place, ["all labels" if kind == "all" else f"{SCOPES[kind]}{name}" for kind, name in bars])
    panel.set(xlabel="share of the labels (%)", xlim=(0, 100))
    figure.legend(*panel.get_legend_handles_labels(), loc="outside right upper", fontsize=7.5)
    return figure


@styled
def plot_detectors(tables: Tables) -> Figure:
    """How often each detector fires, against its rate when its kind of evidence is destroyed."""
    table = tables["detectors"]
    # Unions on top, in the table's order; the others by how often they fire.
    union = table["detector"].str.startswith("any ")
    rows = pd.concat([table[~union].sort_values("share"), table[union]], ignore_index=True)
    caption = (
        f"{int(rows['n'].iloc[0]):,} labels, each counted by every detector that fires. Lines: 95 % intervals, tasks "
        f"with the same set of servers as one observation. Crosses: mean of {int(rows['permutations'].iloc[0])} "
        "permutations (lists moved to other tasks, or lists in random order). Diamonds, for signs of order: other "
        "servers in the same order, as many in the task's language, drawn as often as they are listed (filled) or "
        "evenly (open)."
    )
    figure, panel = one_panel(1.7 + 0.32 * len(rows), caption=caption, title="Detectors against chance")
    place = np.arange(len(rows))
    panel.hlines(place, 100 * rows["ci_low"], 100 * rows["ci_high"], color=BLUE)
    panel.plot(100 * rows["share"], place, "o", color=BLUE, label="released labels")
    panel.plot(100 * rows["chance"], place, "x", color="black", label="by chance")
    for name, inside, how in (("kept", ORANGE, "as often listed"), ("even", "white", "evenly")):
        look = {"color": ORANGE, "markerfacecolor": inside, "markersize": 4.5, "linestyle": "none"}
        panel.plot(100 * rows[name], place, "D", label=f"in the same order, {how}", **look)
    labels = [CLASSES[name][1].removeprefix("other ") if name in CLASSES else name for name in rows["detector"]]
    limits = {"xlim": (-1, None), "ylim": (-0.6, len(rows) - 0.4)}
    named_rows(panel, place, labels, "share of the labels that the detector marks (%)", **limits)
    panel.legend(loc="lower right")
    return figure


@styled
def plot_first_uses(tables: Tables) -> Figure:
    """Where in the file servers are listed for the first time, against the share of servers not yet listed."""
    rows = tables["first_uses"]
    caption = (
        "Blocks of 100 tasks in the order of the file; lines: 95 % Wilson intervals. Labels drawn without regard to "
        "use would stay on or below the dashed line."
    )
    figure, panel = one_panel(3.4, caption=caption, title="Servers listed for the first time")
    first = rows["first_task"]
    panel.vlines(first, 100 * rows["ci_low"], 100 * rows["ci_high"], color=ORANGE)
    panel.plot(first, 100 * rows["rate"], "o", markersize=4, color=ORANGE, label="labels that are first uses")
    panel.plot(first, 100 * rows["unused"], "--", color="black", label="servers not used before the block")
    panel.set(xlabel="first task of the block", ylabel="share (%)", ylim=(-2, 102))
    panel.grid(axis="y")
    panel.legend()
    return figure


@styled
def plot_robustness(tables: Tables) -> Figure:
    """Kendall's tau between the base order of the systems and the order under each other choice."""
    rows = tables["rank_robustness"].dropna(subset=["tau"])
    caption = (
        f"Base order: {rows['base'].iloc[0]}. Kendall's tau-b between the systems' means; lines: 95 % bootstrap "
        "intervals over tasks (over splits for random splits and tie rules, over topics for judged usefulness). "
        "Numbers: systems compared. Between seeds, systems without anything random differ by broken ties alone."
    )
    figure, panel = one_panel(1.7 + 0.22 * len(rows), caption=caption, title="Does the order of the systems hold?")
    place = np.arange(len(rows))[::-1]
    for y, row in zip(place, rows.to_dict("records"), strict=True):
        ink = INKS[row["family"]]
        panel.hlines(y, row["tau_low"], row["tau_high"], color=ink, linewidth=1.4)
        panel.plot(row["tau"], y, "o", color=ink, markersize=5)
        panel.text(1.02, y, f"{int(row['systems'])}", va="center", fontsize=7, transform=panel.get_yaxis_transform())
    panel.axvline(0, color="black", linewidth=0.8, linestyle="--")
    pairs = zip(rows["family"], rows["variant"], strict=True)
    labels = [f"{kind}: {metric_name(name) if kind == 'metric' else name}" for kind, name in pairs]
    limits = {"xlim": (min(-0.05, rows["tau_low"].min() - 0.05), 1.05), "ylim": (-0.7, len(rows) - 0.3)}
    named_rows(panel, place, labels, "Kendall's tau with the base order", **limits)
    panel.tick_params(axis="y", labelsize=7.5)
    return figure


@styled
def plot_splits(tables: Tables) -> Figure:
    """The cheap systems over random splits: mean, range and standard deviation."""
    rows = tables["random_splits"]
    rows = rows[rows["tie_rule"] == "seeded permutation"].sort_values("mean")
    caption = (
        f"{int(rows['n_splits'].max())} random splits of the tasks, one seed each. Thin line: smallest to largest; "
        "thick line: ± one standard deviation."
    )
    figure, panel = one_panel(1.5 + 0.28 * len(rows), caption=caption, title="Systems over random splits")
    place = np.arange(len(rows))
    panel.hlines(place, rows["min"], rows["max"], color=BLUE, linewidth=1)
    panel.hlines(place, rows["mean"] - rows["sd"], rows["mean"] + rows["sd"], color=BLUE, linewidth=6, alpha=0.4)
    panel.plot(rows["mean"], place, "o", color=BLUE, markersize=4)
    named_rows(panel, place, titled(rows["system"]), f"{metric_name(rows['metric'].iloc[0])} (0 to 1)", xlim=(0, None))
    return figure


@styled
def plot_copying(tables: Tables, few: Collection[str] | None = None, metric: str = "ndcg@10") -> Figure:
    """Every system on test tasks with and without a near-duplicate in training, for the first protocol of the table.

    Beside it, how much more than the first reference a system gains on them, since such tasks are easier for all.
    `few`: the systems that are drawn; None draws all.
    """
    table = tables["copying"]
    protocol = table["protocol"].iloc[0]
    rows = table[(table["protocol"] == protocol) & (table["metric"] == metric)]
    rows = rows[rows["kind"] == "any_near_duplicate"].sort_values("mean")
    rows = rows if few is None else rows[rows["system"].isin(few)]
    references = [name for name in rows if re.fullmatch(r"excess_(?!.*_(low|high)$).+", name)][:1]
    caption = (
        f"Protocol: {protocol}. A near-duplicate is a training task with the same or nearly the same label set or text "
        f"({rows['n_duplicate'].iloc[0]} of {rows['n'].iloc[0]} test tasks have one). Lines: 95 % intervals over "
        "tasks. Labels decide which tasks have one, and these are easier for systems that read no labels too."
    )
    beside_whom = titled(name.removeprefix("excess_") for name in references)
    for title in beside_whom:
        caption += (
            f" Right: the difference between both groups less that of {title}, which reads no label; above 0 a system "
            "gains more on near-duplicates than that one."
        )
    title, columns = "Scores on tasks with and without a near-duplicate", 1 + len(references)
    figure, axes = canvas(1.5 + 0.3 * len(rows), columns, caption=caption, share_y=True, title=title)
    panel, place = axes[0, 0], np.arange(len(rows))
    series = (
        ("mean_other", BLUE, "s", "tasks without a near-duplicate"),
        ("mean", GREY, "|", "all tasks"),
        ("mean_duplicate", RED, "o", "tasks with a near-duplicate"),
    )
    for name, ink, marker, label in series:
        panel.hlines(place, rows[f"{name}_ci_low"], rows[f"{name}_ci_high"], color=ink, linewidth=1.2)
        panel.plot(rows[name], place, marker, color=ink, markersize=5 if marker != "|" else 11, label=label)
    for name, title in zip(references, beside_whom, strict=True):
        beside = axes[0, 1]
        beside.hlines(place, rows[f"{name}_ci_low"], rows[f"{name}_ci_high"], color=PURPLE, linewidth=1.2)
        beside.plot(rows[name], place, "D", color=PURPLE, markersize=4)
        beside.axvline(0, color="black", linewidth=0.8, linestyle="--")
        beside.set(xlabel=f"excess over {title}")
        beside.grid(axis="x")
    named_rows(panel, place, titled(rows["system"]), f"{metric_name(metric)} (0 to 1)", xlim=(0, 1))
    panel.legend(loc="lower right")
    return figure


@styled
def plot_reference_bugs(tables: Tables) -> Figure:
    """One line per bug, from the method without it (open) to the method with it (filled); one must have run."""
    table = tables["reference_bugs"]
    if not (table["state"] == RAN).any():
        fix = "study run system=msbpr_leaky protocol=warm, then study analyse audit/reference_bugs"
        raise StudyError("no row with a reference bug has run", fix=fix)
    lines = zip(titled(table["system"]), table["bug"], strict=True)
    titles, metric = [f"{name}: {bug}" for name, bug in lines], str(table["metric"].iloc[0])
    caption = (
        "Open: the method as built here, without the bug of its reference program. Filled: with it, at the same seeds. "
        "Green: the bug raises the score, red: it lowers it, where the 95 % bootstrap interval of the difference over "
        "tasks leaves out 0 and every seed agrees; grey: elsewhere."
    )
    title = "What bugs of reference programs give on the test tasks"
    figure, panel = one_panel(1.6 + 0.42 * len(table), caption=caption, title=title)
    places = np.arange(len(table))[::-1]
    clear = table.assign(
        diff_ci_low=table[["diff_ci_low", "least"]].min(axis=1),
        diff_ci_high=table[["diff_ci_high", "most"]].max(axis=1),
    )
    dumbbells(panel, clear, titles, "without", "with_bug", "diff_ci_low", "diff_ci_high")
    for row, place in zip(table.to_dict("records"), places, strict=True):
        text, at, across = NOT_RUN, 0.0, "axes fraction"
        if row["state"] == RAN:
            text, at, across = f"{row['diff']:+z.3f}", max(row["without"], row["with_bug"]), "data"
        panel.annotate(text, (at, place), (6, -3), (across, "data"), "offset points", fontsize=7.5)
    panel.margins(x=0.2)  # room for the number beside the last point
    panel.set(xlabel=f"{metric_name(metric)} (0 to 1)", xlim=(0, None))
    return figure


DRAWN = (plot_detectors, plot_first_uses, plot_provenance, plot_copying)
FIGURES: dict[str, Callable[[Tables], Figure]] = {
    plot.__name__.removeprefix("plot_"): plot for plot in (*DRAWN, plot_robustness, plot_splits, plot_reference_bugs)
}
