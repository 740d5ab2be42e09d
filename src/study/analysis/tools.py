"""Figures of the tool-level systems, drawn from the committed per-task files and tables alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

from study import paths
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
    YELLOW,
    canvas,
    logarithmic,
    named_rows,
    one_panel,
    styled,
)
from study.config.reader import read_settings
from study.evaluation.statistics import mean_interval
from study.tools import results
from study.tools.mcp_zero import experiments as mcp_zero


@dataclass(frozen=True)
class Names:
    """``conf/analysis/tool_titles.yaml``, where every key is explained."""

    few: list[str]
    titles: dict[str, str]


INKS = (BLUE, ORANGE, GREEN, RED, PURPLE, SKY, YELLOW, GREY, BLACK)


def intervals(frames: Mapping[str, pd.DataFrame], metric: str) -> pd.DataFrame:
    """Mean and 95 % bootstrap interval over tasks of one metric per system, best first.
    `frames`: per-task tables by system; those without the metric are left out."""
    known = {name: frame[metric].dropna() for name, frame in frames.items() if metric in frame}
    rows = [{"system": name, "n": len(v), **mean_interval(v, seed=results.SEED)} for name, v in known.items()]
    table = pd.DataFrame(rows, columns=["system", "n", "mean", "ci_low", "ci_high"])
    return table.sort_values("mean", ascending=False, kind="stable", ignore_index=True)


def names() -> Names:
    """How figures name the systems of the tool level, and which of them they show."""
    own = read_settings(Names, paths.conf() / "analysis" / "tool_titles.yaml")
    return replace(own, titles={f"{name}_query": title for name, title in own.titles.items()} | own.titles)


def needle_grid(frame: pd.DataFrame, n_tools: int) -> pd.DataFrame:
    """The trials of the needle test: columns size, position (0 first, 1 last; 0.5 where there is a single tool), hit.
    `frame`: per-task table of a system under ``needle_identity``, in the order of `mcp_zero.grid`."""
    points = mcp_zero.grid(n_tools)
    sizes = [int(task.partition(":")[0]) for task in frame["task_id"]]
    if sizes != [size for size, _ in points]:
        raise ValueError("the trials are not those of the grid")
    position = [index / (size - 1) if size > 1 else 0.5 for size, index in points]
    return pd.DataFrame({"size": sizes, "position": position, "hit": frame["hit_rate@1"].to_numpy()})


@styled
def needle_grids(grids: Mapping[str, pd.DataFrame], caption: str) -> Figure:
    """MCP-Zero's figure 4: one panel per title, a square per trial, by number of tools and position of the target."""
    figure, axes = canvas(3.1, len(grids), caption=caption, share_y=True, title="Needle test: found or missed")
    for panel, (title, grid) in zip(axes[0], grids.items(), strict=True):
        sizes = np.unique(grid["size"])
        column = np.searchsorted(sizes, grid["size"])
        row = np.rint(grid["position"] * (mcp_zero.POSITIONS - 1)).astype(int)
        # A small collection has fewer positions than rows: each trial fills the rows nearest to it.
        image = np.full((mcp_zero.POSITIONS, len(sizes)), np.nan)
        for place in range(len(sizes)):
            own = np.flatnonzero(column == place)
            nearest = np.abs(np.arange(mcp_zero.POSITIONS)[:, None] - row[own].to_numpy()[None]).argmin(axis=1)
            image[:, place] = grid["hit"].to_numpy()[own[nearest]]
        colours = {"cmap": ListedColormap([ORANGE, SKY]), "vmin": 0, "vmax": 1}
        panel.imshow(image, **colours, aspect="auto", origin="upper", interpolation="nearest")
        shown = np.linspace(0, len(sizes) - 1, 6).astype(int)
        panel.set_xticks(shown, [f"{sizes[place]:,}" for place in shown])
        panel.set_yticks([0, (mcp_zero.POSITIONS - 1) // 2, mcp_zero.POSITIONS - 1], ["first", "middle", "last"])
        panel.set(title=f"{title}:\n{grid['hit'].mean():.1%} of {len(grid)}", xlabel="tools on offer")
    axes[0, 0].set_ylabel("position of the target")
    return figure


@styled
def needle_tokens(table: pd.DataFrame, titles: Mapping[str, str], caption: str) -> Figure:
    """MCP-Zero's figure 5 from needle_identity.csv: tokens of tool definitions, all in the prompt or retrieved."""
    figure, panel = one_panel(3.2, caption=caption, title="Tokens that the tools cost")
    series = {"all schemas in the prompt": table.drop_duplicates("size").set_index("size")["tokens_all_in_prompt"]}
    for name, own in table.groupby("system", sort=False):
        series[f"{titles.get(str(name), str(name))}, per success"] = own.set_index("size")["tokens_per_success"]
    for number, (label, values) in enumerate(series.items()):
        panel.plot(values.index, values, marker=MARKERS[number], markersize=4, color=INKS[number], label=label)
    panel.set(xlabel="tools on offer", ylabel="tokens (word pieces)")
    logarithmic(panel.xaxis)
    logarithmic(panel.yaxis)
    panel.grid()
    panel.legend(loc="upper left")
    return figure


@styled
def needle_cross(frames: Mapping[str, pd.DataFrame], titles: Mapping[str, str], caption: str) -> Figure:
    """Accuracy by number of tools for requests in another catalogue's words, with 95 % intervals over targets.
    `frames`: per-task tables under ``needle_cross``; a task is "size:target"."""
    figure, panel = one_panel(3.2, caption=caption, title="Needle test in another catalogue's words")
    for number, (name, frame) in enumerate(frames.items()):
        by_size = {int(size): own for size, own in frame.groupby(frame["task_id"].str.partition(":")[0])}
        sizes = sorted(by_size)
        found = pd.concat([intervals({name: by_size[size]}, "hit_rate@1") for size in sizes])
        ink = INKS[number]
        panel.fill_between(sizes, found["ci_low"], found["ci_high"], color=ink, alpha=0.2, linewidth=0)
        panel.plot(sizes, found["mean"], marker=MARKERS[number], color=ink, label=titles.get(name, name))
    panel.set(xlabel="tools on offer", ylabel="found first (share of targets)", ylim=(0, 1.02))
    logarithmic(panel.xaxis)
    panel.grid()
    panel.legend(loc="lower left")
    return figure


@styled
def dots(table: pd.DataFrame, titles: Mapping[str, str], axis: str, title: str, caption: str) -> Figure:
    """Means with intervals (from `intervals`), one row per system; `axis`: name of the metric with its range."""
    figure, panel = one_panel(1.3 + 0.23 * len(table), caption=caption, title=title)
    place = np.arange(len(table))[::-1]
    panel.hlines(place, table["ci_low"], table["ci_high"], color=BLUE, linewidth=1.4)
    panel.plot(table["mean"], place, "o", color=BLUE, markersize=5)
    names = [titles.get(name, name) for name in table["system"]]
    named_rows(panel, place, names, axis, xlim=(0, None), ylim=(-0.7, len(table) - 0.3))
    return figure


@styled
def budgets(table: pd.DataFrame, titles: Mapping[str, str], caption: str) -> Figure:
    """Tool recall by tokens handed over, one line per server stage.
    `table`: rows of router.csv for one number of servers, and those without a server stage."""
    figure, panel = one_panel(3.6, caption=caption, title="Task, servers, tools: recall at equal budgets")
    for number, (name, own) in enumerate(table.groupby("stage", sort=False)):
        ink = INKS[number % len(INKS)]
        look = {"marker": MARKERS[number], "markersize": 5, "color": ink}
        beside = own["budget"] * 1.012 ** (number - 4)  # so that intervals of one budget do not hide each other
        panel.plot(beside, own["tool_recall"], label=titles.get(str(name), str(name)), **look)
        panel.vlines(beside, own["ci_low"], own["ci_high"], color=ink, linewidth=0.8)
    panel.set(xlabel="tokens of tool definitions handed to the agent (at most)", ylim=(0, 1.02))
    panel.set_ylabel("recall of the labelled tools")
    logarithmic(panel.xaxis)
    panel.grid()
    panel.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), borderaxespad=0)
    return figure


@styled
def pools(table: pd.DataFrame, titles: Mapping[str, str], caption: str) -> Figure:
    """How the quality falls as other catalogues are added. `table`: scaling.csv."""
    columns = {"mrr": "MRR", "recall@10": "Recall@10", "requests_recall@3": "Recall, requests"}
    figure, axes = canvas(2.9, len(columns), caption=caption, share_y=True, title="The same tasks in larger catalogues")
    for panel, (column, label) in zip(axes[0], columns.items(), strict=True):
        for number, (name, own) in enumerate(table.groupby("system", sort=False)):
            look = {"marker": MARKERS[number], "color": INKS[number]}
            panel.plot(own["tools"], own[column], label=titles.get(str(name), str(name)), **look)
        panel.set(title=label, xlabel="tools")
        logarithmic(panel.xaxis)
        panel.grid()
    axes[0, 0].set_ylim(0, 1.1 * float(table[list(columns)].to_numpy(np.float64).max()))
    axes[0, 0].legend(loc="lower left")
    return figure


@styled
def weights(table: pd.DataFrame, control: Mapping[str, float], titles: Mapping[str, str], caption: str) -> Figure:
    """Learned weights: mean over the folds with their range, beside the design's (`control`, by factor).
    `table`: rows of intent_weights.csv for one protocol."""
    figure, panel = one_panel(2.9, caption=caption, title="Weights of the five factors: the design's, and learned ones")
    names = list(control)
    place = np.arange(len(names))
    panel.plot(place - 0.2, list(control.values()), "D", color=GREY, label="the design's control")
    for number, (source, own) in enumerate(table.groupby("learned_on", sort=False)):
        rows, ink = own.set_index("factor").loc[names], INKS[number]
        at = place + 0.2 * number
        panel.vlines(at, rows["least"], rows["greatest"], color=ink)
        panel.plot(at, rows["mean"], MARKERS[number], color=ink, label=titles.get(str(source), str(source)))
    panel.set_xticks(place, [name.replace("_", " ") for name in names])
    panel.set(ylabel="weight (0 to 1)", ylim=(-0.02, 1))
    panel.grid(axis="y")
    panel.legend(loc="upper right")
    return figure
