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

from study.analysis.report.plots import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    MARKERS,
    ORANGE,
    PURPLE,
    RED,
    SKY,
    legend_below,
    metric_name,
    named_rows,
    one_panel,
    styled,
)
from study.analysis.report.results import LONG_SUFFIX, TRANSFER, TUNED_SUFFIX, Results, lineage
from study.analysis.report.tables import RISING, named

METRIC, SECOND = "ndcg@10", "recall@10"
FAR = 0.05  # of METRIC from the printed one: see `nearness`
OWN, TUNED, LONGER = ITSELF = ("own settings", "tuned", "trained longer")
BUG, EXTENSION, VARIANT = "reference bug", "extension", "variant"
KINDS = (
    *ITSELF,
    VARIANT,
    BUG,
    EXTENSION,
)  # the first three are the method; the others change it, break it or add to it
COLUMNS = ["printed", "system", "title", "kind", "protocol", "paper", "ours", "gap", "paper_recall", "recall"]
COLUMNS += ["rising"]
INKS = {"cold": BLUE, "cold_grouped": SKY, "warm": GREEN, "loo": ORANGE, "loo99": PURPLE}


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
    names = [name for name in results.applies if any(name in systems for systems in ran.values())]
    above = {name: lineage(name) for name in names}
    parts, rising = [], list(results.rising())
    for paper in wide.to_dict("records"):
        system = str(paper["system"])
        found = [
            (name, kind_of(name, system, results.families[name]), protocol)
            for name in names
            if system in above[name]
            for protocol in ran
            if name in ran[protocol]
        ]
        part = pd.DataFrame(found or [(system, OWN, "")], columns=["system", "kind", "protocol"])
        part = part.assign(printed=paper["printed"], paper=paper[METRIC], paper_recall=paper[SECOND])
        part["title"] = part["system"].map(results.titles)
        part["rising"] = pd.MultiIndex.from_frame(part[["protocol", "system"]]).isin(rising)
        for column, metric in (("ours", METRIC), ("recall", SECOND)):
            runs = zip(part["protocol"], part["system"], strict=True)
            part[column] = [results.value(*run, metric) if run[0] else np.nan for run in runs]
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


@styled
def table3_gaps_figure(table: pd.DataFrame, caption: str) -> Figure:
    """The paper's value of each baseline as a bar across its line, every attempt of ours as a marker on it."""
    printed = list(dict.fromkeys(table["printed"]))
    caption += (
        " Black bar: the paper's value. Colour: our protocol; marker: what was tried. Under warm a task has several "
        "test servers, under loo and loo99 one; loo99 ranks it among 99 sampled ones."
    )
    rising = set(table.loc[table["kind"].isin(ITSELF) & table["rising"], "printed"])
    caption += RISING * bool(rising)
    title = "The paper's baselines and every attempt"
    figure, panel = one_panel(1.4 + 0.42 * len(printed), caption=caption, title=title)
    places = {name: len(printed) - 1 - number for number, name in enumerate(printed)}
    ran = table.dropna(subset=["ours"])
    # Protocols with a colour of their own come first.
    protocols = [name for name in INKS if name in set(ran["protocol"])]
    protocols += sorted(set(ran["protocol"]) - INKS.keys())
    kinds = [name for name in KINDS if name in set(ran["kind"])]
    for name, value in table.groupby("printed", sort=False)["paper"].first().items():
        panel.vlines(value, places[name] - 0.42, places[name] + 0.42, color="black", linewidth=2.2)
    for row in ran.to_dict("records"):
        ink = INKS.get(row["protocol"], BLACK)
        shift = 0.15 * ((len(protocols) - 1) / 2 - protocols.index(row["protocol"]))
        shape: Any = {"marker": MARKERS[KINDS.index(row["kind"])], "markersize": 5, "markeredgecolor": "white"}
        panel.plot(row["ours"], places[row["printed"]] + shift, linestyle="none", color=ink, **shape)
    _between(panel, len(printed))
    limits = {"xlim": (0, None), "ylim": (-0.6, len(printed) - 0.4)}
    names = [name + " †" * (name in rising) for name in places]
    named_rows(panel, list(places.values()), names, f"{metric_name(METRIC)} (0 to 1)", **limits)
    handles: list[Artist] = [Patch(color=INKS.get(name, BLACK)) for name in protocols]
    handles += [Line2D([], [], linestyle="none", marker=MARKERS[KINDS.index(name)], color="#555555") for name in kinds]
    legend_below(figure, handles, protocols + kinds)
    return figure


@styled
def paper_dots(paper: Mapping[str, pd.Series], ours: Mapping[str, pd.Series], caption: str) -> Figure:
    """The paper's values beside the study's; both map labels to values by metric@k, in the same metrics."""
    metrics = list(next(iter(paper.values())).index)
    figure, panel = one_panel(1.6 + 0.42 * len(metrics), caption=caption, title="The paper's T2MRec and ours")
    inks, series = [GREY, "#000000", RED, BLUE, GREEN, ORANGE, PURPLE], {**paper, **ours}
    for number, (label, values) in enumerate(series.items()):
        ink, marker = inks[number % len(inks)], MARKERS[number % len(MARKERS)]
        place = np.arange(len(metrics))[::-1] + 0.12 * ((len(series) - 1) / 2 - number)
        look: Any = {"marker": marker, "markersize": 6, "markerfacecolor": "white" if label in paper else ink}
        panel.plot(values[metrics], place, linestyle="none", color=ink, label=label, **look)
    _between(panel, len(metrics))
    names, xlabel = [metric_name(name) for name in reversed(metrics)], "mean over test tasks (0 to 1)"
    named_rows(panel, range(len(metrics)), names, xlabel, xlim=(0, None))
    panel.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, borderaxespad=0)
    return figure


def _between(panel: Axes, lines: int) -> None:
    """A thin rule between every two of so many lines."""
    places = np.arange(lines - 1) + 0.5
    panel.hlines(places, 0, 1, transform=panel.get_yaxis_transform(), color="#DDDDDD", linewidth=0.6)
