"""How near the study came to each baseline's row of the paper's Table 3, and by what it tried."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from study.analysis.colours import BLACK, BLUE, GREEN, ORANGE, PURPLE, SKY
from study.analysis.legends import legend_below
from study.analysis.plots import MARKERS, STYLE, canvas, metric_name
from study.analysis.results import TUNED_SUFFIX, Results
from study.pipeline.plan import parents

METRIC = "ndcg@10"
# Farther than this from the printed NDCG@10 a row is called far, and the text says what was tried.
FAR = 0.05
OWN, TUNED, FAULT, EXTENSION, VARIANT = "own settings", "tuned", "fault", "extension", "variant"
TRANSFER = "_transfer"  # a system that ranks for new tasks through a base, whose settings its file repeats
KINDS = (OWN, TUNED, VARIANT, FAULT, EXTENSION)
COLUMNS = ["printed", "system", "title", "kind", "protocol", "paper", "ours", "gap"]
INKS = {"cold": BLUE, "cold_grouped": SKY, "warm": GREEN, "loo": ORANGE, "loo99": PURPLE}


def kind_of(name: str, system: str, family: str) -> str:
    """What a run of `name` tries for the row of `system`: one of `KINDS`.

    A ceiling that builds on a method is the method with a fault that reads the answers.
    """
    if name == system:
        return OWN
    if name == system + TUNED_SUFFIX:
        return TUNED
    if name == f"{system}{TRANSFER}":
        return EXTENSION
    return {"fault": FAULT, "ceiling": FAULT, "extension": EXTENSION}.get(family, VARIANT)


def attempts(
    results: Results, cells: pd.DataFrame, *, builds_on: Callable[[str], Sequence[str]] = parents
) -> pd.DataFrame:
    """Every run of the system behind a baseline's row of Table 3, and of the systems that build on it or carry it.

    Args:
        cells: from `study.analysis.paper.load`.
        builds_on: system -> the systems whose settings it builds on.

    Returns: printed (the paper's name), system, title, kind (of `KINDS`), protocol, paper and ours (`METRIC`), gap
        (ours minus paper); the paper's order, then the nearest first. A row of the paper without a run has one line
        without a protocol and without a number of ours.
    """
    metric, k = METRIC.split("@")
    wanted = (
        (cells["table"] == "table3") & (cells["metric"] == metric) & (cells["k"] == int(k)) & cells["system"].ne("")
    )
    ran = {protocol: results.systems(protocol) for protocol in results.protocols}
    names = [name for name in results.applies if any(name in systems for systems in ran.values())]
    above = {name: (name, name.removesuffix(TRANSFER), *builds_on(name)) for name in names}
    parts = []
    for row in cells[wanted].to_dict("records"):
        found: list[tuple[str, str, str, str]] = []
        for name in names:
            if row["system"] in above[name]:
                kind = kind_of(name, row["system"], results.families[name])
                found += [(name, results.titles[name], kind, protocol) for protocol in ran if name in ran[protocol]]
        part = pd.DataFrame(found or [(row["system"], results.titles[row["system"]], OWN, "")], columns=COLUMNS[1:5])
        ours = [
            results.value(protocol, name, METRIC) if protocol else np.nan
            for name, protocol in zip(part["system"], part["protocol"], strict=True)
        ]
        part = part.assign(printed=row["printed"], paper=row["value"], ours=ours, gap=np.array(ours) - row["value"])
        parts.append(part.sort_values("gap", key=lambda gap: gap.abs(), kind="stable"))
    return pd.concat(parts, ignore_index=True)[COLUMNS] if parts else pd.DataFrame(columns=COLUMNS)


def in_order(protocols: Iterable[str]) -> list[str]:
    """Each protocol once, those with a colour of their own first."""
    found = set(protocols)
    return [*(name for name in INKS if name in found), *sorted(found - INKS.keys())]


def said(table: pd.DataFrame) -> list[str]:
    """A sentence per row of the paper that the nearest attempt is far from: what was tried, and what came nearest."""
    sentences = []
    for printed, rows in table.groupby("printed", sort=False):
        ran, paper = rows.dropna(subset=["ours"]), rows["paper"].iloc[0]
        if ran.empty:
            sentences.append(f"{printed}: the paper prints {paper:.3f}; ours has not run.")
        elif abs(ran["gap"].iloc[0]) > FAR:
            nearest = ran.iloc[0]
            tried = {kind: in_order(same["protocol"]) for kind, same in ran.groupby("kind")}
            listed = "; ".join(f"{kind} ({', '.join(tried[kind])})" for kind in KINDS if kind in tried)
            sentences.append(
                f"{printed}: the paper prints {paper:.3f}; tried: {listed}; nearest: {nearest['title']} under "
                f"{nearest['protocol']}, {nearest['ours']:.3f} ({nearest['gap']:+.3f})."
            )
    return sentences


@mpl.rc_context(STYLE)
def attempts_figure(table: pd.DataFrame, caption: str) -> Figure:
    """The paper's value of each baseline as a bar across its line, every attempt of ours as a marker on it."""
    printed = list(dict.fromkeys(table["printed"]))
    caption += (
        " Black bar: the paper's value. Colour: our protocol; marker: what was tried. Under warm a task has several "
        "test servers, under loo and loo99 one; loo99 ranks it among 99 sampled ones."
    )
    figure, axes = canvas(1.4 + 0.42 * len(printed), caption=caption, title="The paper's baselines and every attempt")
    panel = axes[0, 0]
    places = {name: len(printed) - 1 - number for number, name in enumerate(printed)}
    protocols = in_order(table.dropna(subset=["ours"])["protocol"])
    kinds = [name for name in KINDS if name in set(table.dropna(subset=["ours"])["kind"])]
    for name, rows in table.groupby("printed", sort=False):
        panel.vlines(rows["paper"].iloc[0], places[name] - 0.42, places[name] + 0.42, color="black", linewidth=2.2)
    for row in table.dropna(subset=["ours"]).to_dict("records"):
        ink = INKS.get(row["protocol"], BLACK)
        shift = 0.15 * ((len(protocols) - 1) / 2 - protocols.index(row["protocol"]))
        panel.plot(row["ours"], places[row["printed"]] + shift, linestyle="none", color=ink,
                   marker=MARKERS[KINDS.index(row["kind"])], markersize=5, markeredgecolor="white")  # fmt: skip
    panel.set_yticks(list(places.values()), list(places), parse_math=False)
    panel.hlines(
        np.arange(len(printed) - 1) + 0.5, 0, 1, transform=panel.get_yaxis_transform(), color="#DDDDDD", linewidth=0.6
    )
    panel.set(xlabel=f"{metric_name(METRIC)} (0 to 1)", xlim=(0, None), ylim=(-0.6, len(printed) - 0.4))
    panel.grid(axis="x")
    handles: list[Artist] = [Patch(color=INKS.get(name, BLACK)) for name in protocols]
    handles += [Line2D([], [], linestyle="none", marker=MARKERS[KINDS.index(name)], color="#555555") for name in kinds]
    legend_below(figure, handles, protocols + kinds)
    return figure
