"""How near the study came to each baseline's row of the paper's Table 3, and by what it tried."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from study.analysis.report import plots
from study.analysis.report.results import LONG_SUFFIX, TRANSFER, TUNED_SUFFIX, Results, lineage
from study.analysis.report.tables import RISING, named

METRIC, SECOND = "ndcg@10", "recall@10"
FAR = 0.05  # of METRIC from the printed one: see `nearness`
OWN, TUNED, LONGER = ITSELF = ("own settings", "tuned", "trained longer")
BUG, EXTENSION, VARIANT = "reference bug", "extension", "variant"
# The first three are the method; the others change it, break it or add to it.
KINDS = (*ITSELF, VARIANT, BUG, EXTENSION)
COLUMNS = ["printed", "system", "title", "kind", "protocol", "paper", "ours", "gap", "paper_recall", "recall"]
COLUMNS += ["rising"]
INKS = {"cold": plots.BLUE, "cold_grouped": plots.SKY, "warm": plots.GREEN, "loo": plots.ORANGE, "loo99": plots.PURPLE}


def kind_of(name: str, system: str, family: str) -> str:
    """What a run of `name` tries for the row of `system`: one of `KINDS`.
    An oracle that builds on a method is the method with a bug that reads the answers."""
    if name == system:
        return OWN
    if name == system + TUNED_SUFFIX:
        return TUNED
    if name in (system + LONG_SUFFIX, system + TUNED_SUFFIX + LONG_SUFFIX):
        return LONGER
    if name == f"{system}{TRANSFER}":
        return EXTENSION
    return {"reference_bug": BUG, "oracle": BUG, "extension": EXTENSION}.get(family, VARIANT)


def table3_gaps(results: Results, cells: pd.DataFrame) -> pd.DataFrame:
    """Every run of the system behind a baseline's row of Table 3, and of the systems that build on it or carry it.

    Returns: printed (the paper's name), system, title, kind (of `KINDS`), protocol, paper and ours (`METRIC`), gap
    (ours minus paper), paper_recall and recall (`SECOND`, of both), rising (`Results.rising`); the paper's order, then
    the nearest first. A row of the paper without a run has one line without a protocol and without a number of ours.
    """
    rows = cells[(cells["table"] == "table3") & cells["system"].ne("")]
    rows = rows.assign(column=named(rows))
    wide = rows.pivot_table(index=["printed", "system"], columns="column", values="value", sort=False).reset_index()
    ran = {protocol: results.systems(protocol) for protocol in results.protocols}
    runs = [(name, protocol) for name in results.applies for protocol, names in ran.items() if name in names]
    above, rising, parts = {name: lineage(name) for name, _ in runs}, results.rising(), []
    for paper in wide.to_dict("records"):
        system = str(paper["system"])
        own = [(name, protocol) for name, protocol in runs if system in above[name]] or [(system, "")]
        part = pd.DataFrame(own, columns=["system", "protocol"])
        part = part.assign(printed=paper["printed"], paper=paper[METRIC], paper_recall=paper[SECOND])
        part["title"] = part["system"].map(results.titles)
        part["kind"] = [kind_of(name, system, results.families[name]) for name in part["system"]]
        part["rising"] = [(protocol, name) in rising for name, protocol in own]
        for column, metric in (("ours", METRIC), ("recall", SECOND)):
            part[column] = [results.value(protocol, name, metric) if protocol else np.nan for name, protocol in own]
        part["gap"] = part["ours"] - part["paper"]
        parts.append(part.sort_values("gap", key=lambda gap: gap.abs(), kind="stable"))
    return pd.concat(parts, ignore_index=True)[COLUMNS] if parts else pd.DataFrame(columns=COLUMNS)


def nearness(table: pd.DataFrame, sampled: Collection[str]) -> pd.DataFrame:
    """How near the method itself (`ITSELF`) comes to its printed row, under every protocol that it ran in.

    A variant, a bug or an extension may come near by chance, and so may another protocol than the one at hand; they
    make no method near. A protocol of `sampled` ranks sampled servers and decides nothing, since there every ranking
    looks better.

    Returns: printed, protocol, gap (of the nearest of own settings, tuned values and longer training), far (whether all
    are farther than `FAR` from the paper), side (where they are: above, below, or "on both sides of"), crossed (whether
    all are on one side of the paper, and on the other side in `SECOND`).
    """
    itself = table[table["kind"].isin(ITSELF) & table["ours"].notna() & ~table["protocol"].isin([*sampled])]
    rows = []
    for (printed, protocol), part in itself.groupby(["printed", "protocol"], sort=False):
        gap, above, second = part["gap"], part["gap"] > 0, part["recall"] > part["paper_recall"]
        side = "above" if above.all() else "on both sides of" if above.any() else "below"
        crossed = above.nunique() == second.nunique() == 1 and (above != second).all()
        rows.append((printed, protocol, gap.iloc[gap.abs().argmin()], gap.abs().min() > FAR, side, crossed))
    return pd.DataFrame(rows, columns=["printed", "protocol", "gap", "far", "side", "crossed"])


@plots.styled
def table3_gaps_figure(table: pd.DataFrame, caption: str) -> Figure:
    """The paper's value of each baseline as a bar across its line, every attempt of ours as a marker on it."""
    caption += (
        " Black bar: the paper's value. Colour: our protocol; marker: what was tried. Under warm a task has several "
        "test servers, under loo and loo99 one; loo99 ranks it among 99 sampled ones."
    )
    rising = set(table.loc[table["kind"].isin(ITSELF) & table["rising"], "printed"])
    caption += RISING * bool(rising)
    names = {name: name + " †" * (name in rising) for name in table["printed"]}
    ran, title = table.dropna(subset=["ours"]), "The paper's baselines and every attempt"
    # Protocols with a colour of their own come first.
    protocols = sorted(set(ran["protocol"]), key=lambda name: (name not in INKS, [*INKS, name].index(name), name))
    kinds = [name for name in KINDS if name in set(ran["kind"])]
    figure, panel = plots.one_panel(1.4 + 0.42 * len(names), caption=caption, title=title)
    axis: Any = {"names": names, "row": "printed", "xlabel": f"{plots.metric_name(METRIC)} (0 to 1)", "xlim": (0, None)}
    for kind in kinds:
        marker = plots.MARKERS[KINDS.index(kind)]
        looks = {name: plots.Look(name, INKS.get(name, plots.BLACK), marker) for name in protocols}
        shown = ran.assign(ours=ran["ours"].where(ran["kind"] == kind))
        places = plots.forest(panel, shown, "ours", None, hue="protocol", looks=looks, dodge=0.15, **axis)
    paper = table.groupby("printed", sort=False)["paper"].first()
    at = paper.index.map(places)
    panel.vlines(paper, at - 0.42, at + 0.42, color="black", linewidth=2.2)
    _between(panel, len(names))
    handles: list[Artist] = [Patch(color=INKS.get(name, plots.BLACK)) for name in protocols]
    handles += [
        Line2D([], [], linestyle="none", marker=plots.MARKERS[KINDS.index(name)], color="#555555") for name in kinds
    ]
    plots.legend_below(figure, handles, protocols + kinds)
    return figure


@plots.styled
def paper_dots(paper: Mapping[str, pd.Series], ours: Mapping[str, pd.Series], caption: str) -> Figure:
    """The paper's values beside the study's; both map labels to values by metric@k, in the same metrics."""
    table = pd.DataFrame({**paper, **ours}).rename_axis("metric").reset_index().melt("metric", var_name="label")
    names = {name: plots.metric_name(name) for name in dict.fromkeys(table["metric"])}
    looks = {
        name: look._replace(face="white" if name in paper else None)
        for name, look in plots.distinct(table["label"].unique()).items()
    }
    figure, panel = plots.one_panel(1.6 + 0.42 * len(names), caption=caption, title="The paper's T2MRec and ours")
    axis: Any = {"row": "metric", "names": names, "xlabel": "mean over test tasks (0 to 1)", "xlim": (0, None)}
    plots.forest(panel, table, "value", None, hue="label", looks=looks, dodge=0.12, **axis)
    _between(panel, len(names))
    panel.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, borderaxespad=0)
    return figure


def _between(panel: Axes, lines: int) -> None:
    """A thin rule between every two of so many lines."""
    places = np.arange(lines - 1) + 0.5
    panel.hlines(places, 0, 1, transform=panel.get_yaxis_transform(), color="#DDDDDD", linewidth=0.6)
