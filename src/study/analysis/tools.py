"""Figures of the tool-level systems, drawn from the committed per-task files and tables alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

from study.analysis.report import plots
from study.base import paths
from study.base.settings import read_settings
from study.evaluation.statistics import mean_interval
from study.tools import mcp_zero, results

INTERVAL = ("ci_low", "ci_high")


@dataclass(frozen=True)
class Names:
    """``conf/analysis/tool_titles.yaml``, where every key is explained."""

    few: list[str]
    titles: dict[str, str]


def names() -> Names:
    """How figures name the systems of the tool level, and which of them they show."""
    own = read_settings(Names, paths.conf() / "analysis" / "tool_titles.yaml")
    return replace(own, titles={f"{name}_query": title for name, title in own.titles.items()} | own.titles)


def intervals(frames: Mapping[str, pd.DataFrame], metric: str) -> pd.DataFrame:
    """Mean and 95 % bootstrap interval over tasks of one metric per system, best first.
    `frames`: per-task tables by system; those without the metric are left out."""
    known = {name: frame[metric].dropna() for name, frame in frames.items() if metric in frame}
    rows = [{"system": name, "n": len(v), **mean_interval(v, seed=results.SEED)} for name, v in known.items()]
    table = pd.DataFrame(rows, columns=["system", "n", "mean", *INTERVAL])
    return table.sort_values("mean", ascending=False, kind="stable", ignore_index=True)


def _titled(found: Iterable[Any], titles: Mapping[str, str]) -> dict[Any, plots.Look]:
    """A colour and marker for each value, in the order met."""
    return plots.distinct({name: titles.get(name, str(name)) for name in found})


def needle_grid(frame: pd.DataFrame, n_tools: int) -> pd.DataFrame:
    """The trials of the needle test: columns size, position (0 first, 1 last; 0.5 where there is a single tool), hit.
    `frame`: per-task table of a system under ``needle_identity``, in the order of `mcp_zero.grid`."""
    points = mcp_zero.grid(n_tools)
    sizes = [int(task.partition(":")[0]) for task in frame["task_id"]]
    if sizes != [size for size, _ in points]:
        raise ValueError("the trials are not those of the grid")
    position = [index / (size - 1) if size > 1 else 0.5 for size, index in points]
    return pd.DataFrame({"size": sizes, "position": position, "hit": frame["hit_rate@1"].to_numpy()})


@plots.styled
def needle_grids(grids: Mapping[str, pd.DataFrame], caption: str) -> Figure:
    """MCP-Zero's figure 4: one panel per title, a square per trial, by number of tools and position of the target."""
    figure, axes = plots.canvas(3.1, len(grids), caption=caption, share_y=True, title="Needle test: found or missed")
    colours: Any = {"cmap": ListedColormap([plots.ORANGE, plots.SKY]), "vmin": 0, "vmax": 1}
    last = mcp_zero.POSITIONS - 1
    for panel, (title, grid) in zip(axes[0], grids.items(), strict=True):
        # A small collection has fewer positions than rows: each trial fills the rows nearest to it.
        image = np.empty((mcp_zero.POSITIONS, grid["size"].nunique()))
        for column, (_, own) in enumerate(grid.groupby("size")):
            away = np.abs(np.arange(mcp_zero.POSITIONS)[:, None] - np.rint(own["position"].to_numpy() * last))
            image[:, column] = own["hit"].to_numpy()[away.argmin(axis=1)]
        panel.imshow(image, **colours, aspect="auto", origin="upper", interpolation="nearest")
        sizes = np.unique(grid["size"])
        shown = np.linspace(0, len(sizes) - 1, 6).astype(int)
        panel.set_xticks(shown, [f"{sizes[place]:,}" for place in shown])
        panel.set_yticks([0, last // 2, last], ["first", "middle", "last"])
        panel.set(title=f"{title}:\n{grid['hit'].mean():.1%} of {len(grid)}", xlabel="tools on offer")
    axes[0, 0].set_ylabel("position of the target")
    return figure


@plots.styled
def needle_tokens(table: pd.DataFrame, titles: Mapping[str, str], caption: str) -> Figure:
    """MCP-Zero's figure 5 from needle_identity.csv: tokens of tool definitions, all in the prompt or retrieved."""
    figure, panel = plots.one_panel(3.2, caption=caption, title="Tokens that the tools cost")
    prompt = table.drop_duplicates("size").assign(system="", tokens_per_success=lambda own: own["tokens_all_in_prompt"])
    words = {"": "all schemas in the prompt"}
    words |= {name: f"{titles.get(name, name)}, per success" for name in table["system"].unique()}
    rows = pd.concat([prompt, table])
    plots.lines(panel, rows, "size", "tokens_per_success", hue="system", looks=_titled(words, words))
    panel.set(xlabel="tools on offer", ylabel="tokens (word pieces)")
    plots.logarithmic(panel.xaxis)
    plots.logarithmic(panel.yaxis)
    panel.legend(loc="upper left")
    return figure


@plots.styled
def needle_cross(frames: Mapping[str, pd.DataFrame], titles: Mapping[str, str], caption: str) -> Figure:
    """Accuracy by number of tools for requests in another catalogue's words, with 95 % intervals over targets.
    `frames`: per-task tables under ``needle_cross``; a task is "size:target"."""
    figure, panel = plots.one_panel(3.2, caption=caption, title="Needle test in another catalogue's words")
    found = pd.concat(
        intervals({name: own}, "hit_rate@1").assign(size=int(size))
        for name, frame in frames.items()
        for size, own in frame.groupby(frame["task_id"].str.partition(":")[0].astype(int))
    )
    axis: Any = {"xlabel": "tools on offer", "ylabel": "found first (share of targets)", "ylim": (0, 1.02)}
    plots.lines(panel, found, "size", interval=INTERVAL, hue="system", looks=_titled(frames, titles), **axis)
    plots.logarithmic(panel.xaxis)
    panel.legend(loc="lower left")
    return figure


@plots.styled
def dots(table: pd.DataFrame, titles: Mapping[str, str], axis: str, title: str, caption: str) -> Figure:
    """Means with intervals (from `intervals`), one row per system; `axis`: name of the metric with its range."""
    figure, panel = plots.one_panel(1.3 + 0.23 * len(table), caption=caption, title=title)
    shown = {name: titles.get(name, name) for name in table["system"]}
    plots.forest(panel, table, names=shown, xlabel=axis, xlim=(0, None))
    return figure


@plots.styled
def budgets(table: pd.DataFrame, titles: Mapping[str, str], caption: str) -> Figure:
    """Tool recall by tokens handed over, one line per server stage.
    `table`: rows of router.csv for one number of servers, and those without a server stage."""
    figure, panel = plots.one_panel(3.6, caption=caption, title="Task, servers, tools: recall at equal budgets")
    looks = _titled(table["stage"], titles)
    beside = 1.012 ** (table["stage"].map(list(looks).index) - 4)  # so that intervals of one budget do not hide others
    rows = table.assign(beside=table["budget"] * beside)
    shape: Any = {"interval": INTERVAL, "band": False, "hue": "stage", "looks": looks, "ylim": (0, 1.02)}
    plots.lines(panel, rows, "beside", "tool_recall", **shape)
    panel.set(xlabel="tokens of tool definitions handed to the agent (at most)", ylabel="recall of the labelled tools")
    plots.logarithmic(panel.xaxis)
    panel.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), borderaxespad=0)
    return figure


@plots.styled
def pools(table: pd.DataFrame, titles: Mapping[str, str], caption: str) -> Figure:
    """How the quality falls as other catalogues are added. `table`: scaling.csv."""
    columns = {"mrr": "MRR", "recall@10": "Recall@10", "requests_recall@3": "Recall, requests"}
    title, looks = "The same tasks in larger catalogues", _titled(table["system"], titles)
    figure, axes = plots.canvas(2.9, len(columns), caption=caption, share_y=True, title=title)
    for panel, (column, label) in zip(axes[0], columns.items(), strict=True):
        plots.lines(panel, table, "tools", column, hue="system", looks=looks, title=label, xlabel="tools")
        plots.logarithmic(panel.xaxis)
    axes[0, 0].set_ylim(0, 1.1 * float(table[list(columns)].to_numpy(np.float64).max()))
    axes[0, 0].legend(loc="lower left")
    return figure


@plots.styled
def weights(table: pd.DataFrame, control: Mapping[str, float], titles: Mapping[str, str], caption: str) -> Figure:
    """Learned weights: mean over the folds with their range, beside the design's (`control`, by factor).
    `table`: rows of intent_weights.csv for one protocol."""
    figure, panel = plots.one_panel(2.9, caption=caption, title="Weights of the five factors")
    design = pd.DataFrame({"factor": control.keys(), "mean": control.values(), "learned_on": "design"})
    rows, factors = pd.concat([design, table]), {name: name.replace("_", " ") for name in control}
    looks = _titled(rows["learned_on"], {"design": "the design's control", **titles})
    shape: Any = {"row": "factor", "names": factors, "hue": "learned_on", "looks": looks, "dodge": 0.2}
    plots.forest(panel, rows, interval=("least", "greatest"), xlabel="weight (0 to 1)", xlim=(-0.02, 1), **shape)
    panel.legend(loc="lower right")
    return figure
