"""Figures of leakage and of the robustness of the systems' order. Tables come in by the names of their files."""

from __future__ import annotations

import re
from collections.abc import Mapping

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from study.analysis.report.colours import BLUE, GREEN, GREY, ORANGE, PURPLE, RED, SKY
from study.analysis.report.plots import STYLE, canvas, metric_name

INKS = {
    "seeds": GREY,
    "metric": BLUE,
    "labels": ORANGE,
    "tie rule": SKY,
    "protocol": GREEN,
    "random splits": PURPLE,
    "judged": RED,
}


@mpl.rc_context(STYLE)
def plot_robustness(tables: Mapping[str, pd.DataFrame], caption: str = "") -> Figure:
    """Kendall's tau between the base order of the systems and the order under each other choice.

    Args:
        tables: ``rank_robustness``.
    """
    rows = tables["rank_robustness"].dropna(subset=["tau"])
    caption += (
        f" Base order: {rows['base'].iloc[0]}. Kendall's tau-b between the systems' means; lines: 95 % bootstrap "
        "intervals over tasks (over splits for random splits and tie rules, over topics for judged usefulness). "
        "Numbers: systems compared. Between seeds, systems without anything random differ by broken ties alone."
    )
    figure, axes = canvas(1.7 + 0.22 * len(rows), caption=caption.strip(), title="Does the order of the systems hold?")
    panel, place = axes[0, 0], np.arange(len(rows))[::-1]
    for y, row in zip(place, rows.to_dict("records"), strict=True):
        ink = INKS[row["family"]]
        panel.hlines(y, row["tau_low"], row["tau_high"], color=ink, linewidth=1.4)
        panel.plot(row["tau"], y, "o", color=ink, markersize=5)
        panel.text(1.02, y, f"{int(row['systems'])}", va="center", fontsize=7, transform=panel.get_yaxis_transform())
    panel.axvline(0, color="black", linewidth=0.8, linestyle="--")
    labels = [f"{family}: {variant}" for family, variant in zip(rows["family"], rows["variant"], strict=True)]
    panel.set_yticks(place, labels, fontsize=7.5)
    panel.set(
        xlabel="Kendall's tau with the base order",
        xlim=(min(-0.05, rows["tau_low"].min() - 0.05), 1.05),
        ylim=(-0.7, len(rows) - 0.3),
    )
    panel.grid(axis="x")
    return figure


@mpl.rc_context(STYLE)
def plot_splits(tables: Mapping[str, pd.DataFrame], caption: str = "") -> Figure:
    """The cheap systems over random splits: mean, range and standard deviation.

    Args:
        tables: ``random_splits``.
    """
    rows = tables["random_splits"]
    rows = rows[rows["tie_rule"] == "seeded permutation"].sort_values("mean")
    caption += (
        f" {int(rows['n_splits'].max())} random splits of the tasks, one seed each. Thin line: smallest to largest; "
        "thick line: ± one standard deviation."
    )
    figure, axes = canvas(1.5 + 0.28 * len(rows), caption=caption.strip(), title="Systems over random splits")
    panel, place = axes[0, 0], np.arange(len(rows))
    panel.hlines(place, rows["min"], rows["max"], color=BLUE, linewidth=1)
    panel.hlines(place, rows["mean"] - rows["sd"], rows["mean"] + rows["sd"], color=BLUE, linewidth=6, alpha=0.4)
    panel.plot(rows["mean"], place, "o", color=BLUE, markersize=4)
    panel.set_yticks(place, rows["system"])
    panel.set(xlabel=f"{metric_name(rows['metric'].iloc[0])} (0 to 1)", xlim=(0, None))
    panel.grid(axis="x")
    return figure


@mpl.rc_context(STYLE)
def plot_copying(tables: Mapping[str, pd.DataFrame], metric: str = "ndcg@10", caption: str = "") -> Figure:
    """Every system on test tasks with and without a twin in training, for the first protocol of the table.

    Beside it, how much more than the first reference a system gains from twins, since such tasks are easier for all.

    Args:
        tables: ``copying``.
    """
    table = tables["copying"]
    protocol = table["protocol"].iloc[0]
    rows = table[(table["protocol"] == protocol) & (table["metric"] == metric) & (table["kind"] == "any_twin")]
    rows = rows.sort_values("mean")
    first = rows.iloc[0]
    references = [name for name in rows if re.fullmatch(r"excess_(?!.*_(low|high)$).+", name)]
    caption += (
        f" Protocol: {protocol}. A twin is a training task with the same or nearly the same label set or text "
        f"({int(first['n_twin'])} of {int(first['n'])} test tasks have one). Lines: 95 % intervals over tasks. "
        "Twins are found by labels, and their tasks are easier for systems that read none too."
    )
    if references:
        caption += (
            f" Right: the difference between both groups less that of {references[0].removeprefix('excess_')}, which "
            "reads no label; above 0 a system gains more from twins than that one."
        )
    figure, axes = canvas(
        1.5 + 0.3 * len(rows),
        2 if references else 1,
        caption=caption.strip(),
        share_y=True,
        title="Scores on tasks with and without a twin",
    )
    panel, place = axes[0, 0], np.arange(len(rows))
    series = (
        ("mean_other", BLUE, "s", "tasks without a twin"),
        ("mean", GREY, "|", "all tasks"),
        ("mean_twin", RED, "o", "tasks with a twin"),
    )
    for name, ink, marker, label in series:
        panel.hlines(place, rows[f"{name}_low"], rows[f"{name}_high"], color=ink, linewidth=1.2)
        panel.plot(rows[name], place, marker, color=ink, markersize=5 if marker != "|" else 11, label=label)
    for name in references[:1]:
        beside = axes[0, 1]
        beside.hlines(place, rows[f"{name}_low"], rows[f"{name}_high"], color=PURPLE, linewidth=1.2)
        beside.plot(rows[name], place, "D", color=PURPLE, markersize=4)
        beside.axvline(0, color="black", linewidth=0.8, linestyle="--")
        beside.set(xlabel=f"excess over {name.removeprefix('excess_')}")
        beside.grid(axis="x")
    panel.set_yticks(place, rows["system"])
    panel.set(xlabel=f"{metric_name(metric)} (0 to 1)", xlim=(0, 1))
    panel.grid(axis="x")
    panel.legend(loc="lower right")
    return figure
