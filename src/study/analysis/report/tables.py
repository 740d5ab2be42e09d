"""Tables for people: the same numbers as CSV, Markdown and LaTeX, and in a terminal."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from study.analysis.framework import read_group_table
from study.analysis.report.runs import SIDES, read_statistics
from study.config.compose import sound_systems
from study.evaluation.metrics import PAPER_METRICS

if TYPE_CHECKING:
    from rich.table import Table

SHOWN, WIDTH = ("recall@10", "ndcg@10"), 100  # metrics and columns of letters in a terminal
DIGITS = 4
SECONDS = {"seconds_fit": "training (s)", "seconds_score": "scoring (s)"}  # column of runs.csv -> as printed
NOT_RUN = "not run"
# Marks of a paired comparison with the reference, and what LaTeX prints for them and for Markdown's emphasis.
ABOVE, BELOW = "↑", "↓"
LATEX = (
    (r"\*\*(\d[^*]*)\*\*", r"\\textbf{\1}"),
    (r"\*(\d[^*]*)\*", r"\\underline{\1}"),
    ("±", r"$\\pm$"),
    (ABOVE, r"$\\uparrow$"),
    (BELOW, r"$\\downarrow$"),
)


def comparison(
    overall: pd.DataFrame,
    protocol: str,
    titles: Mapping[str, str],
    metrics: Sequence[str] = PAPER_METRICS,
    *,
    not_run: Sequence[str] = (),
    unranked: Collection[str] | None = None,
    marks: Mapping[tuple[str, str], str] | None = None,
    costs: pd.DataFrame | None = None,
) -> pd.DataFrame:
    """One row per system, one column per metric, cells "mean ± sd" over seeds; best system first by the last metric.

    Args:
        overall: columns system, protocol, metric, k, mean, sd, n_seeds.
        not_run: systems without a run: last, in that order.
        unranked: systems that cannot be best, such as oracles; given, the best of each column is ``**bold**`` and the
            second best ``*italic*``, as Markdown has it. What is printed alike is equally good.
        marks: (system, metric) -> mark that follows the cell.
        costs: runs.csv of the report stage; given, parameters and seconds stand in columns of their own.
    """
    rows = overall[overall["protocol"] == protocol].assign(name=name_metrics)
    means, spread = (rows.pivot_table(value, "system", "name", dropna=False) for value in ("mean", "sd"))
    means = means[list(metrics)].sort_values(metrics[-1], ascending=False, kind="stable")
    spread = spread.reindex_like(means).map(lambda sd: "" if pd.isna(sd) else f" ± {sd:.{DIGITS}f}")
    table = means.map(f"{{:.{DIGITS}f}}".format) + spread
    if unranked is not None:
        rank = means[~means.index.isin(list(unranked))].round(DIGITS).rank(method="dense", ascending=False)
        stars = rank.reindex(means.index).map(lambda one: {1: "**", 2: "*"}.get(one, ""))
        table = stars + table + stars
    for (system, metric), mark in (marks or {}).items():
        if system in table.index and metric in metrics:
            table[metric] = table[metric].mask(table.index == system, table[metric] + f" {mark}")
    table = table.reindex([*means.index, *not_run]).fillna("")
    table.loc[list(not_run), metrics[0]] = NOT_RUN
    if costs is not None:
        table = table.join(sizes(costs[costs["protocol"] == protocol].set_index("system"))).fillna("")
    return table.rename(index=titles).rename_axis(index="system", columns=None).reset_index()


def name_metrics(rows: pd.DataFrame) -> pd.Series:
    """``metric@k`` of each row of a table with columns metric and k."""
    return rows["metric"] + "@" + rows["k"].astype(str)


def marks(tested: pd.DataFrame) -> dict[tuple[str, str], str]:
    """(system, metric) -> arrow up or down where a system is significantly above or below the reference.

    The test of ``conf/statistics.yaml`` decides, after Holm's correction over the family that the file declares.
    `tested`: rows of significance.csv of one protocol.
    """
    if tested.empty:
        return {}
    settings = read_statistics()
    significant = settings.finds(tested)
    sides = zip(significant["system"], significant["metric"], significant[SIDES[settings.test]], strict=True)
    return {(system, metric): ABOVE if side > 0 else BELOW for system, metric, side in sides}


def add_remarks(titles: Mapping[str, str], costs: pd.DataFrame, protocol: str) -> dict[str, str]:
    """The titles, with "1 seed" where a run has no spread, and "not converged" where most seeds were best on validation
    when training, or a stage of it, ended."""
    labels = dict(titles)
    for row in costs[costs["protocol"] == protocol].to_dict("records"):
        notes = ["1 seed"] * (row["seeds"] == 1) + ["not converged"] * (2 * row["not_converged"] > row["seeds"])
        if notes:
            labels[row["system"]] = f"{titles.get(row['system'], row['system'])} ({', '.join(notes)})"
    return labels


def sizes(costs: pd.DataFrame) -> pd.DataFrame:
    """Trained parameters (millions) and what training and scoring took (s, mean over seeds) as printed, empty where it
    was not counted; `costs` and the result have one row per system."""
    counts = costs["parameters"].map(lambda count: "" if pd.isna(count) else f"{count / 1e6:,.2f}")
    seconds = costs[list(SECONDS)].rename(columns=SECONDS).map(duration)
    return pd.concat([counts.rename("parameters (M)"), seconds], axis=1)


def duration(value: float) -> str:
    """Seconds with three digits: 0.289, 73.8, 1,234; empty where nothing was measured."""
    return "" if pd.isna(value) else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def markdown(table: pd.DataFrame) -> str:
    """A Markdown table; the first column to the left, numbers to the right."""
    rows = [list(table.columns), ["---"] + ["---:"] * (table.shape[1] - 1), *table.itertuples(index=False)]
    return "".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in row) + " |\n" for row in rows)


def latex(table: pd.DataFrame, caption: str) -> str:
    """A LaTeX table (booktabs)."""
    styled = table.style.hide(axis="index").format(escape="latex").format_index(escape="latex", axis=1)
    text: str = styled.to_latex(hrules=True, caption=caption, column_format="l" + "r" * (table.shape[1] - 1))
    for pattern, replacement in LATEX:
        text = re.sub(pattern, replacement, text)
    return text


def terminal_table(table: pd.DataFrame, title: str) -> Table:
    """A table of text for a terminal, its first column cut where the line is too long."""
    from rich.table import Table

    grid = Table(title=title, width=WIDTH)
    for column, heading in enumerate(map(str, table)):
        shape: Any = (
            {"overflow": "ellipsis", "ratio": 1} if column == 0 else {"justify": "right", "min_width": len(heading)}
        )
        grid.add_column(heading, no_wrap=True, **shape)
    for cells in table.astype(str).itertuples(index=False):
        grid.add_row(*cells)
    return grid


def overall_tables(dataset: str) -> list[Table]:
    """The overall results for a terminal, one table per protocol, best NDCG@10 first: means ± sd of `SHOWN`, arrows
    beside T2MRec, difference to T2MRec (NDCG@10), seconds to fit."""
    reported = {name: read_group_table(dataset, "report", name) for name in ("overall", "significance", "runs")}
    titles, tables = {name: str(system.title) for name, system in sound_systems().items()}, []
    for protocol in sorted(reported["overall"]["protocol"].unique()):
        tested = reported["significance"].query("protocol == @protocol")
        costs = reported["runs"].query("protocol == @protocol")
        table = comparison(reported["overall"], protocol, {}, SHOWN, marks=marks(tested)).set_index("system")
        beside = {"fit (s)": costs.set_index("system")["seconds_fit"].map("{:,.1f}".format)}
        if len(tested):
            diff = tested.query("metric == 'ndcg@10'").set_index("system")["diff"]
            beside = {"to T2MRec": diff.map("{:+.3f}".format), **beside}
        table = table.join(pd.DataFrame(beside)).fillna("").rename(index=titles).reset_index()
        title = f"{dataset}, protocol {protocol}: how well systems fit the released labels"
        tables.append(terminal_table(table, title))
    return tables
