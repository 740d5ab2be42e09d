"""Figures of the audit; each takes the tables of results/<dataset>/audit and robustness by their names."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import PercentFormatter

from study.analysis.audit.consistency import CELL_SETS
from study.analysis.audit.systems import RAN
from study.analysis.audit.verdicts import VERDICTS
from study.analysis.framework import Tables
from study.analysis.report import plots
from study.analysis.report.plots import Look, canvas, forest, heat, metric_name, one_panel, styled
from study.analysis.report.tables import UNFINISHED
from study.base.errors import StudyError
from study.config.compose import sound_systems
from study.evaluation.metrics import PAPER_METRICS

OURS = "ours: "  # begins the name of this study's rows in consistency.csv and feasibility.csv
VERDICT_INKS = dict(zip(VERDICTS, (plots.GREEN, plots.YELLOW, plots.RED, "#DDDDDD", "#A0A0A0"), strict=True))
# Colours for the least change of a cell: rounding, the study's tolerance, ten times that.
CHANGES = [0.0, 1e-4, 1e-3, 1e-2, 1e-1, 1.0]
CHANGE_INKS = {"least change: rounding (possible)": "#F7F7F7", "up to 0.001": "#FDD49E", "up to 0.01": "#FDBB84"}
CHANGE_INKS |= {"up to 0.1": "#E34A33", "more": "#7F0000"}
# The same for distances to a printed row; below 0: of another system.
NEAR = [-1.0, 0.0, 0.01, 0.025, 0.05, 0.1, 1.0]
NEAR_INKS = {"another system": "#FFFFFF", "up to 0.01": "#08306B", "up to 0.025": "#2171B5", "up to 0.05": "#6BAED6"}
NEAR_INKS |= {"up to 0.1": "#C6DBEF", "more": "#F2F6FA"}
BROWN = "#8B6B4A"
# Class of provenance -> colour and how it is printed, in the order in which classes are given.
CLASSES = {
    "theme_token": (plots.BLUE, "word of the theme"),
    "theme_pool": (plots.SKY, "pool of the theme"),
    "text_token": (plots.GREEN, "rare word of the text"),
    "language_run": (plots.ORANGE, "run through the language"),
    "language": (plots.YELLOW, "same language"),
    "alphabetical": (plots.RED, "run through the alphabet"),
    "balancing": (plots.PURPLE, "level run (equally used servers)"),
    "long_run": (BROWN, "other long ascending run"),
    "none": ("#D9D9D9", "none"),
}
# Columns of detectors.csv and of copying.csv that are drawn beside each other.
RATES = {
    "share": Look("released labels"),
    "chance": Look("by chance", "black", "x"),
    "kept": Look("in the same order, as often listed", plots.ORANGE, "D"),
    "even": Look("in the same order, evenly", plots.ORANGE, "D", "white"),
}
TASKS = {
    "mean_other": Look("tasks without a near-duplicate", plots.BLUE, "s"),
    "mean": Look("all tasks", plots.GREY, "|"),
    "mean_duplicate": Look("tasks with a near-duplicate", plots.RED),
}


def titled(systems: Iterable[str]) -> dict[str, str]:
    """System -> title; the name of one that is not configured."""
    known = sound_systems()
    return {name: str(known[name].title) if name in known else name for name in systems}


def of_few(table: pd.DataFrame, few: Collection[str] | None) -> pd.DataFrame:
    """The paper's rows and this study's for some systems (None: all), with titles in the place of names."""
    ours, system = table["row"].str.startswith(OURS), table["row"].str.removeprefix(OURS)
    rows = table["row"].where(~ours, OURS + system.map(titled(system)))
    return table.assign(row=rows)[~ours | system.isin(system if few is None else few)]


def marked(table: pd.DataFrame, keys: list[str], unfinished: Collection[tuple[str, str]]) -> dict[Any, str]:
    """Key of a row -> its signs: * for a stand-in, † where a `known` value is of a run of `unfinished`."""
    doubted = pd.MultiIndex.from_frame(table[["protocol", "system"]]).isin(list(unfinished)) & table["known"]
    found: dict[Any, str] = {}
    for sign, which in ((" †", doubted), ("*", table["counterpart"] == "stand-in")):
        for key in table[which].set_index(keys).index.unique():
            found[key] = sign + found.get(key, "")
    return found


def explain(figure: Figure, inks: Mapping[str, str]) -> None:
    """A legend of colours by their words; its empty title keeps the line below the figure's own title."""
    handles = [Patch(facecolor=ink, edgecolor=plots.GREY, label=words) for words, ink in inks.items()]
    figure.legend(handles=handles, loc="outside upper right", ncols=6, fontsize=7, title=" ", columnspacing=1)


@styled
def verdicts(tables: Tables, protocol: str, unfinished: Collection[tuple[str, str]]) -> Figure:
    """The verdict of every cell of Tables 3 and 4 under one protocol, with the difference where there is one.
    `unfinished`: runs (protocol, system) that have not converged."""
    part = tables["verdicts"][lambda table: table["protocol"] == protocol]
    part = part.assign(
        measure=part["metric"] + "@" + part["k"].map("{:.0f}".format),
        code=part["verdict"].map(VERDICTS.index),
        text=part["diff"].map("{:+z.3f}".format).where(part["diff"].notna(), ""),
        known=part["diff"].notna(),
    )
    keys = ["place", "row"]
    cells = part.pivot_table(["code", "text"], keys, "measure", aggfunc="first")
    cells = cells.reindex(list(part.groupby(keys, sort=False).groups))
    signs = marked(part, keys, unfinished)
    caption = f"Protocol: {protocol}. Numbers: ours minus the paper's. *: compared with the nearest configuration, "
    caption += "which has no LLM re-ranker." + UNFINISHED * any("†" in sign for sign in signs.values())
    title = "The paper's cells: what can be reproduced"
    figure, panel = one_panel(2.1 + 0.27 * len(cells), caption=caption, title=title)
    codes, texts = (cells[name][list(PAPER_METRICS)] for name in ("code", "text"))
    codes.index = pd.Index([f"{row}{signs.get((place, row), '')} ({place})" for place, row in codes.index])
    codes.columns = [metric_name(name).replace(" (mean over tasks)", "").replace("@", "\n@") for name in codes]
    edges = np.arange(len(VERDICTS) + 1) - 0.5
    heat(panel, codes.astype(float), texts, **plots.steps(edges.tolist(), VERDICT_INKS.values()), linewidths=1)
    explain(figure, VERDICT_INKS)
    return figure


@styled
def implied(tables: Tables, lengths: Mapping[str, float], few: Collection[str] | None = None) -> Figure:
    """How many relevant servers per task each row implies, beside the mean `lengths` of lists, by name.
    `few`: the systems of this study that are drawn; None draws all."""
    table = of_few(tables["consistency"], few)
    caption = (
        "k · Precision@k / Recall@k, which lies between the smallest and the largest number of relevant servers of the "
        "tasks with a hit. Bars: range under rounding. Equally long lists would put all points on one line."
    )
    title = "Relevant servers per task, as the cells imply"
    figure, panel = one_panel(1.9 + 0.24 * table["row"].nunique(), caption=caption, title=title)
    looks = plots.distinct({k: f"from the cells at {k}" for k in table["k"]})
    interval = "implied_low", "implied_high"
    forest(panel, table, "implied_relevant", interval, row="row", hue="k", looks=looks, dodge=0.26)
    for (name, length), line in zip(lengths.items(), ("-", "--", ":", "-.", "-"), strict=False):
        panel.axvline(length, color=plots.GREY, linewidth=1.0, linestyle=line, label=name)
    panel.set(xlim=(0.5, 20), xlabel="relevant servers per task (logarithmic)")
    plots.logarithmic(panel.xaxis)
    panel.legend(borderaxespad=0, **plots.ABOVE)
    return figure


@styled
def reproduction(tables: Tables, titles: Mapping[str, str], metric: str = "ndcg@10") -> Figure:
    """How near runs come to one another: one ring a pair, a line at their mean. `titles`: of systems."""
    table = tables["reproduction_pairs"]
    baseline, name = table["baseline"].dropna().iloc[-1], metric_name(metric)
    table = table[table["metric"].fillna(metric).eq(metric) & table["baseline"].fillna(baseline).eq(baseline)]
    panels = {"tau_union": "Kendall's tau over the union", "rbo": "rank-biased overlap"}
    panels |= {"rmse": f"RMSE per task, {name}", "effect_ratio": f"effect ratio, {name}"}
    names = {kind: f"authors' program, {titles.get(kind)} here" for kind in table["comparison"]}
    names |= {"seeds": "two seeds here"}
    caption = f"A ring: a pair of runs; line: their mean. Effect: the gain over {titles[baseline]}."
    title = "The authors' program and this study's rows"
    figure, axes = canvas(3.9, 2, rows=2, share_y=True, caption=caption, title=title)
    looks = {"pair": Look("", face="none"), "mean": Look("", "black", "|")}
    for panel, (measure, label) in zip(axes.flat, panels.items(), strict=True):
        part = table[table["measure"] == measure]
        means = part.groupby("comparison", sort=False)["value"].mean().reset_index()
        for kind, rows, size in (("pair", part, 5), ("mean", means, 14)):
            about: Any = {"row": "comparison", "names": names, "size": size, "xlabel": label}
            forest(panel, rows.assign(kind=kind), "value", None, hue="kind", looks=looks, **about)
    return figure


@styled
def feasibility(tables: Tables, few: Collection[str] | None = None) -> Figure:
    """Which rows can be means over test tasks under which labels: the least change of a cell that makes them so.
    `few`: as in `implied`."""
    table = of_few(tables["feasibility"], few)
    caption = (
        "Number: the least change of some cell after which the row is a mean over test tasks by the paper's "
        'definitions, for any ranking whatever (linear program); "~0": below 0.0005, but beyond rounding.'
    )
    title, height = "Which rows can come from which labels", 3.1 + 0.24 * table["row"].nunique()
    figure, axes = canvas(height, len(CELL_SETS), caption=caption, share_y=True, title=title)
    for panel, name in zip(axes[0], CELL_SETS, strict=True):
        cells = table[table["cells"] == name].pivot_table("change", "row", "labels", sort=False)
        texts = cells.map(lambda x: "ok" if x <= CHANGES[1] else f"{x:.3f}".lstrip("0") if x >= 0.0005 else "~0")
        heat(panel, cells, texts, size=6.5, turn=35, **plots.steps(CHANGES, CHANGE_INKS.values()))
        panel.set_title(name)
    explain(figure, CHANGE_INKS)
    return figure


@styled
def protocol_grid(tables: Tables, measure: str) -> Figure:
    """One measure, like ``recall@10``, of every system under every protocol: how much the protocol alone decides."""
    table = tables["protocol_cells"]
    part = table[table["measure"] + "@" + table["k"].astype(str) == measure]
    rows, looks = part["title"].unique(), plots.distinct(titled(part["system"]))
    caption = f"Bars: 95 % intervals over test tasks; {int(part['seeds'].max())} seed."
    height, title = 1.9 + max(0.26, 0.042 * len(looks)) * len(rows), f"{metric_name(measure)} by protocol"
    figure, panel = one_panel(height, caption=caption, title=title)
    panel.hlines(np.arange(len(rows)) + 0.5, 0, 1, color="lightgrey", linewidth=0.6)
    about: Any = {"dodge": 0.75 / len(looks), "xlabel": f"{metric_name(measure)} (0 to 1)", "xlim": (-0.02, 1.02)}
    forest(panel, part, "value", row="title", hue="system", looks=looks, **about)
    panel.legend(borderaxespad=0, **plots.ABOVE)
    return figure


@styled
def rq1(tables: Tables, unfinished: Collection[tuple[str, str]]) -> Figure:
    """The distance of the nearest run under each protocol to each row of Table 3, by the nearest metric definition.
    `unfinished`: runs (protocol, system) that have not converged."""
    table = tables["rq1"].query("choice == 'nearest definition'")
    other, text = table["counterpart"] == "other", table["distance"].map("{:.2f}".format).str.lstrip("0")
    signs = marked(table.assign(known=~other), ["row"], unfinished)
    caption = (
        "Numbers: root mean square difference to the eight printed cells, by the nearest metric definition. Coloured: "
        "the row's own method, its nearest seed at own settings, tuned or trained longer (* without the LLM "
        "re-ranker); bold: at its nearest. In brackets: the method did not run there, and the nearest other system of "
        "the grid stands in. Empty: no run. Left of the line, the study's protocols; right, the grid's."
    )
    caption += UNFINISHED * any("†" in sign for sign in signs.values())
    table = table.assign(
        shade=table["distance"].mask(other & table["distance"].notna(), NEAR[0] / 2),
        text=text.mask(other, "(" + text + ")"),
        best=(table["nearest"] & ~other).astype(float),
    )
    wide = table.pivot_table(["shade", "text", "best"], "row", "title", aggfunc="first", sort=False)
    protocols = table.drop_duplicates(["source", "protocol"])
    cells, texts, best = (
        pd.DataFrame(wide[name]).reindex(columns=protocols["title"]) for name in ("shade", "text", "best")
    )
    cells.index = pd.Index([row + signs.get(row, "") for row in cells.index])
    title = "How near does each protocol come to each row of Table 3?"
    figure, panel = one_panel(3.9 + 0.27 * len(cells), caption=caption, title=title)
    shades = plots.steps(NEAR, NEAR_INKS.values())
    heat(panel, cells.astype(float), texts, bold=best == 1, size=6.5, turn=55, **shades)
    panel.axvline((protocols["source"] == "study").sum(), color="black", linewidth=1)
    explain(figure, NEAR_INKS)
    return figure


@styled
def provenance(tables: Tables) -> Figure:
    """Shares of the provenance classes, one bar per position in the lists, all labels on top."""
    table = tables["provenance"][lambda table: table["scope"].isin(["all", "position"])]
    shares = 100 * table.pivot_table("share", ["scope", "name"], "class", sort=False).fillna(0.0)
    caption = (
        f"{table['n'].max():,} labels; each has the class of the first detector that fires, in the order of "
        "conf/audit/labels.yaml. Words, pools and the language are what honest labels would show too; catalogue-order "
        "runs are not."
    )
    figure, panel = one_panel(1.9 + 0.25 * len(shares), caption=caption, title="Signs that labels bear, by position")
    left, places = np.zeros(len(shares)), np.arange(len(shares))
    for kind, (ink, label) in CLASSES.items():
        bars = panel.barh(places, shares[kind], left=left, color=ink, label=label, height=0.75)
        look: Any = {"label_type": "center", "fontsize": 7, "color": "white" if ink in (plots.BLUE, BROWN) else "black"}
        panel.bar_label(bars, [f"{x:.0f}" if x >= 7 else "" for x in shares[kind]], **look)
        left += shares[kind]
    names = ["all labels" if kind == "all" else f"position {name}" for kind, name in shares.index]
    limits = {"xlim": (0, 100), "ylim": (len(shares) - 0.5, -0.5)}
    plots.named_rows(panel, places, names, "share of the labels (%)", **limits)
    figure.legend(*panel.get_legend_handles_labels(), loc="outside right upper", fontsize=7.5)
    return figure


@styled
def detectors(tables: Tables) -> Figure:
    """How often each detector fires, against its rate when its kind of evidence is destroyed."""
    table = tables["detectors"]
    union = table["detector"].str.startswith("any ")
    rows = pd.concat([table[union], table[~union].sort_values("share", ascending=False)])
    caption = (
        f"{rows['n'].max():,} labels, each counted by every detector that fires. Lines: 95 % intervals, tasks with the "
        f"same set of servers as one observation. Crosses: mean of {rows['permutations'].max()} permutations (lists "
        "moved to other tasks, or lists in random order). Diamonds, for signs of order: other servers in the same "
        "order, as many in the task's language, drawn as often as they are listed (filled) or evenly (open)."
    )
    figure, panel = one_panel(1.7 + 0.32 * len(rows), caption=caption, title="Detectors against chance")
    names = {name: CLASSES.get(name, ("", name))[1].removeprefix("other ") for name in rows["detector"]}
    drawn = pd.concat([rows.assign(kind=kind, rate=rows[kind]) for kind in RATES])
    drawn[["ci_low", "ci_high"]] = drawn[["ci_low", "ci_high"]].where(drawn["kind"] == "share")
    about: Any = {"xlabel": "share of the labels that the detector marks", "xlim": (-0.01, None)}
    forest(panel, drawn, "rate", row="detector", names=names, hue="kind", looks=RATES, **about)
    panel.xaxis.set_major_formatter(PercentFormatter(1))
    panel.legend(loc="lower right")
    return figure


@styled
def robustness(tables: Tables) -> Figure:
    """Kendall's tau between the base order of the systems and the order under each other choice."""
    rows = tables["rank_robustness"].dropna(subset=["tau"])
    caption = (
        f"Base order: {rows['base'].iloc[0]}. Kendall's tau-b between the systems' means; lines: 95 % bootstrap "
        "intervals over tasks (over splits for random splits and tie rules, over topics for judged usefulness). "
        "Numbers: systems compared. Between seeds, systems without anything random differ by broken ties alone."
    )
    variants = rows["variant"].mask(rows["family"] == "metric", rows["variant"].map(metric_name))
    rows = rows.assign(name=rows["family"] + ": " + variants)
    figure, panel = one_panel(1.7 + 0.22 * len(rows), caption=caption, title="Does the order of the systems hold?")
    places = forest(panel, rows, "tau", ("tau_low", "tau_high"), row="name", hue="family", zero=True)
    panel.set(xlim=(min(-0.05, rows["tau_low"].min() - 0.05), 1.05), xlabel="Kendall's tau with the base order")
    for name, n in zip(rows["name"], rows["systems"], strict=True):
        panel.text(1.02, places[name], str(n), va="center", fontsize=7, transform=panel.get_yaxis_transform())
    panel.tick_params(axis="y", labelsize=7.5)
    return figure


@styled
def copying(tables: Tables, few: Collection[str] | None = None, metric: str = "ndcg@10") -> Figure:
    """Every system on test tasks with and without a near-duplicate in training, for the first protocol of the table;
    beside it, how much more than the first reference a system gains on them, since such tasks are easier for all.
    `few`: the systems that are drawn; None draws all."""
    table = tables["copying"]
    protocol, excess = table["protocol"].iloc[0], next(name for name in map(str, table) if name.startswith("excess_"))
    rows = table[table["protocol"].eq(protocol) & table["metric"].eq(metric) & table["kind"].eq("any_near_duplicate")]
    rows = rows[rows["system"].isin(rows["system"] if few is None else few)].sort_values("mean", ascending=False)
    names, (reference,) = titled(rows["system"]), titled([excess.removeprefix("excess_")]).values()
    caption = (
        f"Protocol: {protocol}. A near-duplicate is a training task with the same or nearly the same label set or text "
        f"({rows['n_duplicate'].iloc[0]} of {rows['n'].iloc[0]} test tasks have one). Lines: 95 % intervals over "
        "tasks. Labels decide which tasks have one, and these are easier for systems that read no labels too. Right: "
        f"the difference between both groups less that of {reference}, which reads no label; above 0 a system gains "
        "more on near-duplicates than that one."
    )
    title = "Scores on tasks with and without a near-duplicate"
    figure, axes = canvas(1.5 + 0.3 * len(rows), 2, caption=caption, share_y=True, title=title)
    drawn = pd.concat(
        [
            rows.assign(kind=name, value=rows[name], low=rows[f"{name}_ci_low"], high=rows[f"{name}_ci_high"])
            for name in (*TASKS, excess)
        ]
    )
    about: Any = {"interval": ("low", "high"), "names": names, "hue": "kind"}
    apart, xlabel = drawn["kind"] == excess, f"{metric_name(metric)} (0 to 1)"
    forest(axes[0, 0], drawn[~apart], "value", looks=TASKS, xlabel=xlabel, xlim=(0, 1), **about)
    axes[0, 0].legend(loc="lower right")
    looks = {excess: Look("", plots.PURPLE, "D")}
    forest(axes[0, 1], drawn[apart], "value", looks=looks, xlabel=f"excess over {reference}", zero=True, **about)
    return figure


@styled
def reference_bugs(tables: Tables) -> Figure:
    """One line per bug, from the method without it (open) to the method with it (filled); one must have run."""
    table = tables["reference_bugs"]
    if not (table["state"] == RAN).any():
        fix = "study run system=msbpr_leaky protocol=warm, then study analyse audit/reference_bugs"
        raise StudyError("no row with a reference bug has run", fix=fix)
    names, metric = (
        table["system"].map(titled(table["system"])) + ": " + table["bug"],
        metric_name(table["metric"].iloc[0]),
    )
    caption = (
        "Open: the method as built here, without the bug of its reference program. Filled: with it, at the same seeds. "
        "Green: the bug raises the score, red: it lowers it, where the 95 % bootstrap interval of the difference over "
        "tasks leaves out 0 and every seed agrees; grey: elsewhere."
    )
    title = "What bugs of reference programs give on the test tasks"
    figure, panel = one_panel(1.6 + 0.42 * len(table), caption=caption, title=title)
    low, high = table[["diff_ci_low", "least"]].min(axis=1), table[["diff_ci_high", "most"]].max(axis=1)
    plots.dumbbells(panel, table.assign(low=low, high=high), names, "without", "with_bug", "low", "high")
    for row, place in zip(table.to_dict("records"), panel.get_yticks(), strict=True):
        text, at, across = row["state"], 0.0, "axes fraction"
        if text == RAN:
            text, at, across = f"{row['diff']:+z.3f}", max(row["without"], row["with_bug"]), "data"
        panel.annotate(text, (at, place), (6, -3), (across, "data"), "offset points", fontsize=7.5)
    panel.margins(x=0.2)  # room for the number beside the last point
    panel.set(xlabel=f"{metric} (0 to 1)", xlim=(0, None))
    return figure
