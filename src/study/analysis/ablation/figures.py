"""The figures of RQ2: what removing a part does, overall and within categories."""

from __future__ import annotations

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from study.analysis.ablation.claims import ALPHA
from study.analysis.report.colours import BLUE, GREY
from study.analysis.report.plots import STYLE, canvas, metric_name


@mpl.rc_context(STYLE)
def effects(table: pd.DataFrame, metrics: tuple[str, ...], caption: str) -> Figure:
    """What every variant loses or gains against full T2MRec, beside what the paper says it loses.

    Args:
        table: rows of table4.csv of one protocol, the reference left out; a variant without a run says so.
        metrics: one panel each, e.g. ``ndcg@10``.
    """
    names = list(dict.fromkeys(table["title"]))
    caption += " Variant minus T2MRec. Dot: ours, with the 95 % bootstrap interval over tasks."
    if table["paper_effect"].notna().any():
        caption += (
            " Cross: what the same step does in the paper, whose full method and variants re-rank with an LLM; of ours "
            "only the one named so does."
        )
    figure, axes = canvas(
        1.6 + 0.34 * len(names),
        len(metrics),
        caption=caption,
        share_y=True,
        title="What removing or changing a part does",
    )
    for panel, metric in zip(axes[0], metrics, strict=True):
        for y, name in enumerate(reversed(names)):
            row = table[(table["title"] == name) & (table["metric"] == metric)].iloc[0]
            if pd.isna(row["difference"]):
                panel.text(
                    0.02, y, "not run", va="center", fontsize=8, color=GREY, transform=panel.get_yaxis_transform()
                )
            else:
                panel.plot([row["ci_low"], row["ci_high"]], [y, y], color=BLUE, linewidth=1.5)
                panel.plot(row["difference"], y, marker="o", color=BLUE, markersize=5)
            if not pd.isna(row["paper_effect"]):
                panel.plot(row["paper_effect"], y, marker="x", color="black", markersize=6)
        panel.axvline(0, color=GREY, linewidth=0.8)
        panel.set(xlabel=f"difference in {metric_name(metric)}", ylim=(-0.6, len(names) - 0.4))
        panel.grid(axis="x")
    axes[0, 0].set_yticks(range(len(names)), list(reversed(names)))
    return figure


@mpl.rc_context(STYLE)
def by_group(table: pd.DataFrame, titles: dict[str, str], metric: str, caption: str) -> Figure:
    """Differences to full T2MRec within groups of tasks, one line of cells per variant.

    Args:
        table: rows of by_group.csv of one protocol and level.
        titles: system -> how it is printed.
    """
    cells = table.pivot_table(index="system", columns="group", values="difference", sort=False)
    larger = table.assign(p=table[["wilcoxon_p_holm", "randomisation_p_holm"]].max(axis=1))
    sure = larger.pivot_table(index="system", columns="group", values="p", sort=False) < ALPHA
    caption += (
        f" Variant minus T2MRec; bold: p < {ALPHA} by both Wilcoxon's and the randomisation test, each Holm-corrected "
        "over all cells."
    )
    figure, axes = canvas(1.8 + 0.42 * len(cells), caption=caption, title=f"{metric_name(metric)} by group of tasks")
    panel, span = axes[0, 0], float(np.nanmax(np.abs(cells.to_numpy()))) or 1.0
    panel.imshow(cells.to_numpy(), cmap="PuOr", vmin=-span, vmax=span, aspect="auto")
    for y, system in enumerate(cells.index):
        for x, group in enumerate(cells.columns):
            value = cells.loc[system, group]
            panel.text(
                x,
                y,
                f"{value:+.3f}",
                ha="center",
                va="center",
                fontsize=6.5 if len(cells.columns) > 6 else 8,
                fontweight="bold" if sure.loc[system, group] else "normal",
                rotation=90 if len(cells.columns) > 6 else 0,
                color="white" if abs(value) > 0.65 * span else "black",
            )
    many = len(cells.columns) > 6
    names = list(cells.columns) if many else [name.replace("& ", "&\n") for name in cells.columns]
    panel.set_xticks(range(len(names)), names, **({"rotation": 35, "ha": "right"} if many else {}))
    panel.set_yticks(range(len(cells)), [titles.get(str(name), str(name)) for name in cells.index])
    return figure
