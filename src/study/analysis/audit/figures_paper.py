"""Figures of the audit of the paper's numbers; each draws one figure from tables of results/<dataset>/audit."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from study.analysis.audit.consistency import CELL_SETS
from study.analysis.audit.verdicts import CANNOT, NOT, NOT_RUN, ORDER, REPRODUCED
from study.analysis.report.plots import (
    BLUE,
    GREEN,
    GREY,
    MARKERS,
    ORANGE,
    RED,
    canvas,
    logarithmic,
    metric_name,
    named_rows,
    one_panel,
    styled,
)
from study.analysis.report.tables import RISING
from study.config.compose import sound_systems
from study.evaluation.metrics import PAPER_METRICS

Tables = Mapping[str, pd.DataFrame]
OURS = "ours: "  # begins the name of this study's rows in consistency.csv and feasibility.csv
VERDICT_COLOURS = {REPRODUCED: GREEN, ORDER: "#F0E442", NOT: RED, NOT_RUN: "#DDDDDD", CANNOT: "#A0A0A0"}
# Steps of the colour scale for changes of a cell: rounding, the study's tolerance, ten times that.
STEPS = [0.0, 1e-4, 1e-3, 1e-2, 1e-1, 1.0]
SHADES = ["#F7F7F7", "#FDD49E", "#FDBB84", "#E34A33", "#7F0000"]  # darker where more is wrong, in grey too
# How a verdict is called where its colour is explained, if not by its name.
VERDICT_NAMES = {CANNOT: "does not apply to new tasks"}
LEAST_CHANGE = (
    "Number: the least change of some cell after which the row is a mean over test tasks by the paper's definitions, "
    'for any ranking whatever (linear program); "~0": below 0.0005, but beyond rounding.'
)
# The same for distances to a printed row, dark where near, so that the order survives in grey.
NEAR_STEPS = [0.0, 0.01, 0.025, 0.05, 0.1, 1.0]
NEAR_SHADES = ["#08306B", "#2171B5", "#6BAED6", "#C6DBEF", "#F2F6FA"]
STEP_NAMES = ["least change: rounding (possible)", "up to 0.001", "up to 0.01", "up to 0.1", "more"]
ABOVE: Any = {"loc": "lower left", "bbox_to_anchor": (0, 1), "ncols": 3}  # where a legend stands above the axes


def ordered(*columns: pd.Series) -> list[Any]:
    """The values of a column, or of several as tuples, each once, in the order of the table."""
    return list(dict.fromkeys(columns[0] if len(columns) == 1 else zip(*columns, strict=True)))


def titled(systems: Iterable[str]) -> list[str]:
    """The titles of systems; the name of one that is not configured."""
    known = sound_systems()
    return [str(known[name].title) if name in known else name for name in systems]


def of_runs(table: pd.DataFrame, runs: Collection[tuple[str, str]]) -> Any:
    """Which rows are of one of the runs (protocol, system)."""
    return pd.MultiIndex.from_frame(table[["protocol", "system"]]).isin(list(runs))


def of_few(table: pd.DataFrame, few: Collection[str] | None) -> pd.DataFrame:
    """The paper's rows and this study's for some systems (None: all), with titles in the place of names."""
    ours = table["row"].str.startswith(OURS)
    system = table["row"].str.removeprefix(OURS)
    rows = table["row"].where(~ours, OURS + pd.Series(titled(system), index=table.index))
    return table.assign(row=rows)[~ours | system.isin(system if few is None else few)]


@styled
def plot_verdicts(tables: Tables, protocol: str, rising: Collection[tuple[str, str]]) -> Figure:
    """The verdict of every cell of Tables 3 and 4 under one protocol, with the difference where there is one.
    `rising`: runs (protocol, system) that were still rising."""
    table = tables["verdicts"]
    part = table[table["protocol"] == protocol]
    rows = ordered(part["place"], part["row"])
    caption = (
        f"Protocol: {protocol}. Numbers: ours minus the paper's. Rows marked * are compared with the nearest "
        "configuration, which has no LLM re-ranker."
    )
    early = part[of_runs(part, rising) & part["diff"].notna()]
    unripe = ordered(early["place"], early["row"])
    caption += RISING * bool(unripe)
    title = "The paper's cells: what can be reproduced"
    figure, panel = one_panel(2.1 + 0.27 * len(rows), caption=caption, title=title)
    for entry in part.to_dict("records"):
        x = PAPER_METRICS.index(f"{entry['metric']}@{entry['k']:.0f}")
        y = rows.index((entry["place"], entry["row"]))
        ink = VERDICT_COLOURS[entry["verdict"]]
        panel.add_patch(Rectangle((x - 0.48, y - 0.45), 0.96, 0.9, color=ink, linewidth=0))
        if not pd.isna(entry["diff"]):
            ink = "white" if entry["verdict"] in (NOT, REPRODUCED) else "black"
            panel.text(x, y, f"{entry['diff']:+z.3f}", ha="center", va="center", fontsize=7.5, color=ink)
    stand_ins = part[part["counterpart"] == "stand-in"]
    marked = ordered(stand_ins["place"], stand_ins["row"])
    signs = {pair: "*" * (pair in marked) + " †" * (pair in unripe) for pair in rows}
    labels = [f"{row}{signs[place, row]} ({place})" for place, row in rows]
    panel.set_yticks(range(len(rows)), labels)
    names = [metric_name(name).replace(" (mean over tasks)", "").replace("@", "\n@") for name in PAPER_METRICS]
    panel.set_xticks(range(len(names)), names, fontsize=7.5)
    panel.set(xlim=(-0.5, len(names) - 0.5), ylim=(len(rows) - 0.5, -0.5))
    handles = [Patch(color=ink, label=VERDICT_NAMES.get(name, name)) for name, ink in VERDICT_COLOURS.items()]
    panel.legend(handles=handles, borderaxespad=0.3, **ABOVE)
    return figure


@styled
def plot_implied(tables: Tables, lengths: Mapping[str, float], few: Collection[str] | None = None) -> Figure:
    """How many relevant servers per task each row implies, beside the mean `lengths` of lists, by name.

    `few`: the systems of this study that are drawn; None draws all.
    """
    table = of_few(tables["consistency"], few)
    rows = ordered(table["row"])
    caption = (
        "k · Precision@k / Recall@k, which lies between the smallest and the largest number of relevant servers of the "
        "tasks with a hit. Bars: range under rounding. Equally long lists would put all points on one line."
    )
    title = "Relevant servers per task, as the cells imply"
    figure, panel = one_panel(1.9 + 0.24 * len(rows), caption=caption, title=title)
    for (k, part), shift, ink, marker in zip(table.groupby("k"), (0.13, -0.13), (BLUE, ORANGE), MARKERS, strict=False):
        place = np.array([len(rows) - rows.index(row) for row in part["row"]]) + shift
        panel.hlines(place, part["implied_low"], part["implied_high"], color=ink, linewidth=1.2)
        label = f"from the cells at {k}"
        panel.plot(part["implied_relevant"], place, linestyle="none", marker=marker, color=ink, label=label)
    for number, (name, length) in enumerate(lengths.items()):
        panel.axvline(length, color=GREY, linewidth=1.0, linestyle=("-", "--", ":", "-.")[number % 4], label=name)
    panel.set_xlim(0.5, 20)
    logarithmic(panel.xaxis)
    places, ylim = np.arange(len(rows), 0, -1), (0.3, len(rows) + 0.7)
    named_rows(panel, places, rows, "relevant servers per task (logarithmic)", ylim=ylim)
    panel.legend(borderaxespad=0, **ABOVE)
    return figure


@styled
def plot_reproduction(tables: Tables, titles: Mapping[str, str], metric: str = "ndcg@10") -> Figure:
    """How near runs come to one another: one dot a pair, a line at their mean. `titles`: of systems."""
    table, baseline = tables["reproduction_pairs"], tables["reproduction_pairs"]["baseline"].dropna().iloc[-1]
    name = metric_name(metric)
    panels = {
        "tau_union": "Kendall's tau over the union",
        "rbo": "rank-biased overlap",
        "rmse": f"RMSE per task, {name}",
        "effect_ratio": f"effect ratio, {name}",
    }
    kinds = ordered(table["comparison"])
    names = [f"authors' program, {titles[kind]} here" if kind in titles else "two seeds here" for kind in kinds]
    caption = f"A dot: a pair of runs; line: their mean. Effect: the gain over {titles[baseline]}."
    title = "The authors' program and this study's rows"
    figure, axes = canvas(3.9, 2, rows=2, share_y=True, caption=caption, title=title)
    table = table[
        table["metric"].isna() | ((table["metric"] == metric) & (table["baseline"].fillna(baseline) == baseline))
    ]
    for panel, (measure, label) in zip(axes.flat, panels.items(), strict=True):
        part = table[table["measure"] == measure]
        for place, (kind, ink) in enumerate(zip(kinds, (RED, BLUE, BLUE, GREY), strict=False)):
            values = part.loc[part["comparison"] == kind, "value"]
            panel.plot(values, np.full(len(values), -place), linestyle="none", marker="o", alpha=0.5, color=ink)
            panel.plot(values.mean(), -place, marker="|", markersize=14, color="black")
        named_rows(panel, -np.arange(len(kinds)), names, label, ylim=(0.5 - len(kinds), 0.5))
    return figure


@styled
def plot_feasibility(tables: Tables, few: Collection[str] | None = None) -> Figure:
    """Which rows can be means over test tasks under which labels: the least change of a cell that makes them so.

    `few`: as in `plot_implied`.
    """
    table = of_few(tables["feasibility"], few)
    table = table[table["cells"].isin(CELL_SETS)]
    rows, labels = ordered(table["row"]), ordered(table["labels"])
    title = "Which rows can come from which labels"
    figure, axes = canvas(3.1 + 0.24 * len(rows), 2, caption=LEAST_CHANGE, share_y=True, title=title)
    for panel, (cells, part) in zip(axes[0], table.groupby("cells", sort=False), strict=True):
        matrix = part.pivot_table(index="row", columns="labels", values="change", sort=False).loc[rows, labels]
        shade(panel, matrix, labels, rotation=35)
        panel.set_title(str(cells))
    legend(figure)
    return figure


@styled
def plot_definitions(tables: Tables, labels: Sequence[str]) -> Figure:
    """The same for other metric definitions than the paper's, one panel per assumption about the labels."""
    table = tables["feasibility"]
    table = table[(table["table"] != "own") & ~table["cells"].isin(["all eight cells"])]
    rows, kinds = ordered(table["row"]), ordered(table["cells"])
    caption = f"{LEAST_CHANGE} F1 is left out; the other metric definitions are those of the protocol grid."
    title = "The same under other metric definitions"
    figure, axes = canvas(3.9 + 0.24 * len(rows), len(labels), caption=caption, share_y=True, title=title)
    names = ["as defined", *(name.removeprefix("without F1, ").replace(" and ", "\nand ") for name in kinds[1:])]
    for panel, name in zip(axes[0], labels, strict=True):
        part = table[table["labels"] == name]
        matrix = part.pivot_table(index="row", columns="cells", values="change", sort=False).loc[rows, kinds]
        shade(panel, matrix, names, size=7)
        panel.set_title(name)
    legend(figure)
    return figure


@styled
def plot_pairs(tables: Tables) -> Figure:
    """Which two rows can come from one set of test tasks; the diagonal shows each row alone."""
    table = tables["row_pairs"]
    rows = list(dict.fromkeys([*table["row_a"], *table["row_b"]]))
    matrix = pd.DataFrame(np.nan, index=rows, columns=rows)
    for entry in table.to_dict("records"):
        a, b = entry["row_a"], entry["row_b"]
        matrix.loc[a, b] = matrix.loc[b, a] = entry["change"]
        matrix.loc[a, a], matrix.loc[b, b] = entry["change_a"], entry["change_b"]
    caption = f"{LEAST_CHANGE} F1 is left out; label lists of up to {int(table['max_relevant'].max())} servers."
    title = "Which rows can come from one set of test tasks"
    figure, axes = canvas(2.4 + 0.27 * len(rows), caption=caption, title=title)
    shade(axes[0, 0], matrix, rows)
    legend(figure)
    return figure


def shade(panel: Axes, matrix: pd.DataFrame, names: Sequence[str], *, rotation: float = 45, size: float = 7.5) -> None:
    """A matrix of changes as coloured fields with numbers; `names` stand below its columns."""
    panel.set_xticks(range(len(names)), names, rotation=rotation, ha="right", fontsize=size)
    panel.set_yticks(range(len(matrix)), matrix.index)
    values = matrix.to_numpy(np.float64)
    panel.imshow(values, cmap=ListedColormap(SHADES), norm=BoundaryNorm(STEPS, len(SHADES)), aspect="auto")
    for y, x in np.argwhere(~np.isnan(values)):
        value = float(values[y, x])
        # A field is too narrow for "<.001".
        text = "ok" if value <= STEPS[1] else f"{value:.3f}".lstrip("0") if value >= 0.0005 else "~0"
        panel.text(x, y, text, ha="center", va="center", fontsize=6.5, color="white" if value > STEPS[4] else "black")


def legend(figure: Figure) -> None:
    """The legend of `shade`."""
    handles = [Patch(color=ink, label=name) for ink, name in zip(SHADES, STEP_NAMES, strict=True)]
    # The empty title keeps the line below the figure's own title.
    figure.legend(handles=handles, loc="outside upper right", ncols=5, fontsize=7.5, title=" ")


@styled
def plot_distances(tables: Tables, row: str, system: str) -> Figure:
    """How far every protocol lies from one printed row, for its own system and for the nearest other one."""
    table = tables["protocol_distances"]
    part = table[table["row"] == row]
    titles, (name,) = ordered(part["title"]), titled([system])
    caption = (
        f"Root mean square difference to the eight printed cells of {row} (logarithmic). Bars: 95 % intervals over "
        f"test tasks. Filled: {name} by the paper's definitions. Open: {name} by the nearest metric definition. "
        "Cross: the nearest other system by the nearest metric definition."
    )
    title = f"Which protocol gives the printed row {row}?"
    figure, panel = one_panel(1.6 + 0.26 * len(titles), caption=caption, title=title)
    place = {title: len(titles) - number for number, title in enumerate(titles)}
    defined, nearest = (part[part["choice"] == name] for name in ("as defined", "nearest definition"))
    others = nearest[nearest["system"] != system]
    series = [
        (defined[defined["system"] == system], 0.2, "o", RED, f"{name}, as defined"),
        (nearest[nearest["system"] == system], 0.0, "o", "white", f"{name}, nearest definition"),
        (others.loc[others.groupby("title", sort=False)["distance"].idxmin()], -0.2, "X", GREY, "nearest other system"),
    ]
    for lines, shift, marker, inside, label in series:
        ink = GREY if inside == GREY else RED
        y = lines["title"].map(place) + shift
        panel.hlines(y, lines["ci_low"], lines["ci_high"], color=ink, linewidth=1.0)
        look = {"linestyle": "none", "marker": marker, "color": ink, "markerfacecolor": inside}
        panel.plot(lines["distance"], y, label=label, **look)
    logarithmic(panel.xaxis)
    ylim = (0.3, len(titles) + 0.7)
    named_rows(panel, list(place.values()), titles, "distance (root mean square difference)", ylim=ylim)
    panel.legend(borderaxespad=0, **ABOVE | {"ncols": 2})
    return figure


@styled
def plot_grid(tables: Tables, measure: str) -> Figure:
    """One measure, like ``recall@10``, of every system under every protocol: how much the protocol alone decides."""
    name, k = measure.split("@")
    table = tables["protocol_cells"]
    part = table[(table["measure"] == name) & (table["k"] == int(k))]
    titles, systems = ordered(part["title"]), ordered(part["system"])
    place = {title: len(titles) - number for number, title in enumerate(titles)}
    caption = f"Bars: 95 % intervals over test tasks; {int(part['seeds'].max())} seed."
    height = 1.9 + max(0.26, 0.042 * len(systems)) * len(titles)
    figure, panel = one_panel(height, caption=caption, title=f"{metric_name(measure)} by protocol")
    panel.hlines([y - 0.5 for y in place.values()], 0, 1, color="lightgrey", linewidth=0.6)
    inks = [RED, BLUE, GREEN, ORANGE, GREY]
    for number, (system, label) in enumerate(zip(systems, titled(systems), strict=True)):
        lines, ink = part[part["system"] == system], inks[number % len(inks)]
        y = lines["title"].map(place) + 0.75 / len(systems) * ((len(systems) - 1) / 2 - number)
        panel.hlines(y, lines["ci_low"], lines["ci_high"], color=ink, linewidth=1.0)
        panel.plot(lines["value"], y, linestyle="none", marker=MARKERS[number], markersize=5, color=ink, label=label)
    limits = {"xlim": (-0.02, 1.02), "ylim": (0.3, len(titles) + 0.7)}
    named_rows(panel, list(place.values()), titles, f"{metric_name(measure)} (0 to 1)", **limits)
    panel.legend(borderaxespad=0, **ABOVE)
    return figure


@styled
def plot_rq1(tables: Tables, rising: Collection[tuple[str, str]]) -> Figure:
    """The distance of the nearest run under each protocol to each row of Table 3, by the nearest metric definition.
    `rising`: runs (protocol, system) that were still rising."""
    table = tables["rq1"].query("choice == 'nearest definition'")
    rows, places = ordered(table["row"]), ordered(table["source"], table["protocol"])
    titles = table.drop_duplicates(["source", "protocol"])["title"]
    gap = 0.5  # columns between the study's protocols and the grid's
    at = {place: number + gap * (place[0] == "grid") for number, place in enumerate(places)}
    caption = (
        "Numbers: root mean square difference to the eight printed cells, by the metric definition that is nearest. "
        "Filled fields: the row's own method, its nearest seed at own settings, tuned or trained longer (* without the "
        "LLM re-ranker). Italic numbers on a strip: that method did not run there, and the nearest other system of the "
        "grid stands in. Framed: the row's own method at its nearest. Empty: no run."
    )
    unripe = set(table.loc[of_runs(table, rising) & (table["counterpart"] != "other"), "row"])
    caption += RISING * bool(unripe)
    title = "How near does each protocol come to each row of Table 3?"
    figure, panel = one_panel(3.9 + 0.27 * len(rows), caption=caption, title=title)
    shades, norm = ListedColormap(NEAR_SHADES), BoundaryNorm(NEAR_STEPS, len(NEAR_SHADES))
    for entry in table.dropna(subset=["distance"]).to_dict("records"):
        x, y = at[entry["source"], entry["protocol"]], rows.index(entry["row"])
        own, value = entry["counterpart"] != "other", float(entry["distance"])
        ink, edge = shades(norm(value)), "black" if own and entry["nearest"] else "none"
        corner, height = (y - 0.46, 0.92) if own else (y + 0.3, 0.16)
        patch = Rectangle((x - 0.47, corner), 0.94, height, facecolor=ink, edgecolor=edge, linewidth=1.6)
        panel.add_patch(patch)
        look: Any = {"style": "normal" if own else "italic", "ha": "center", "va": "center", "fontsize": 6.8}
        shade_of_text = "white" if own and value < NEAR_STEPS[2] else "black"
        panel.text(x, y - 0.08 * (not own), f"{value:.2f}".lstrip("0"), color=shade_of_text, **look)
    stand_ins = set(table.loc[table["counterpart"] == "stand-in", "row"])
    panel.set_yticks(range(len(rows)), [f"{row}{'*' * (row in stand_ins)}{' †' * (row in unripe)}" for row in rows])
    panel.set_xticks(list(at.values()), titles, rotation=55, ha="right", rotation_mode="anchor", fontsize=7)
    panel.tick_params(length=0)
    last = max(at.values())
    panel.set(xlim=(-0.6, last + 0.6), ylim=(len(rows) - 0.4, -0.6))
    for source, name in (("study", "study's protocols"), ("grid", "grid of protocols")):
        first = min(x for place, x in at.items() if place[0] == source)
        panel.text(first - 0.47, -0.75, name, fontsize=8, weight="bold")
    words = [f"up to {step:g}" for step in NEAR_STEPS[1:-1]] + ["more"]
    handles = [Patch(facecolor=ink, edgecolor=GREY, label=name) for ink, name in zip(NEAR_SHADES, words, strict=True)]
    figure.legend(handles=handles, loc="outside upper right", ncols=5, fontsize=7.5, title=" ")
    return figure
