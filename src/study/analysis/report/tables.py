"""Tables for people: the same numbers as CSV, Markdown and LaTeX, and in a terminal."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from study.analysis.framework import GroupTables
from study.analysis.report.runs import SIDES, read_statistics
from study.base import paths
from study.base.errors import StudyError
from study.config.compose import sound_systems
from study.evaluation.metrics import PAPER_METRICS

if TYPE_CHECKING:
    from rich.table import Table

SHOWN, WIDTH = ("recall@10", "ndcg@10"), 100  # metrics and columns of letters in a terminal
DIGITS = 4
LONG = 15  # rows of a table that a notebook shows unfolded
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
    metrics: tuple[str, ...] = PAPER_METRICS,
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
            second best ``*italic*``, as Markdown has it.
        marks: (system, metric) -> mark that follows the cell.
        costs: runs.csv of the report stage; given, parameters and seconds stand in columns of their own.
    """
    rows = overall[overall["protocol"] == protocol]
    rows = rows.assign(name=named(rows))
    means = rows.pivot_table(index="system", columns="name", values="mean").reindex(columns=list(metrics))
    means = means.sort_values(metrics[-1], ascending=False, kind="stable")
    spread = rows.pivot_table(index="system", columns="name", values="sd").reindex_like(means)
    ranked = None if unranked is None else [name for name in means.index if name not in unranked]
    table = pd.DataFrame({"system": means.index})
    for name in metrics:
        cells = pd.Series({at: cell(means[name][at], spread[name][at]) for at in means.index}, dtype=object)
        table[name] = marked(cells, means[name], name, ranked, marks).to_numpy()
    # The word stands once, in the first cell.
    absent = pd.DataFrame({"system": list(not_run), metrics[0]: NOT_RUN})
    table = pd.concat([table, absent], ignore_index=True).fillna("") if not_run else table
    if costs is not None:
        table = table.assign(**sizes(costs, protocol, list(table["system"])))
    return table.assign(system=[titles.get(name, name) for name in table["system"]])


def named(rows: pd.DataFrame) -> pd.Series:
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
    sure = settings.finds(tested)
    arrows = np.where(sure[SIDES[settings.test]] > 0, ABOVE, BELOW)
    return dict(zip(zip(sure["system"], sure["metric"], strict=True), arrows.tolist(), strict=True))


def marked(
    cells: pd.Series,
    means: pd.Series,
    metric: str,
    ranked: Sequence[str] | None,
    marks: Mapping[tuple[str, str], str] | None = None,
) -> pd.Series:
    """The cells of a column with the best and second best of `ranked` emphasised, and the marks behind them.

    `cells` and `means` are text and value by system; without `ranked` nothing is emphasised. Values that are printed
    alike are equally good, so there may be several best and several second best.
    """
    printed = {str(name): round(float(value), DIGITS) for name, value in means.items() if pd.notna(value)}
    best = sorted({printed[name] for name in ranked or () if name in printed}, reverse=True)[:2]
    found = {}
    for name, text in cells.items():
        at = str(name)
        place = best.index(printed[at]) if at in (ranked or ()) and printed.get(at) in best else 2
        star, mark = "*" * (2 - place), (marks or {}).get((at, metric), "")
        found[name] = f"{star}{text}{star}" + (f" {mark}" if mark else "")
    return pd.Series(found, index=cells.index, dtype=object)


UNFINISHED = " †: not converged: in most seeds of a run behind it, the last validation was the best."


def not_converged(costs: pd.DataFrame) -> pd.Series:
    """Of which rows of runs.csv most seeds were best on validation when training, or a stage of it, ended."""
    return 2 * costs["rising"] > costs["seeds"]


def remarked(titles: Mapping[str, str], costs: pd.DataFrame, protocol: str) -> dict[str, str]:
    """The titles, with "1 seed" where a run has no spread, and "not converged" where it is so of most seeds."""
    found, own = dict(titles), costs[costs["protocol"] == protocol]
    for row, late in zip(own.to_dict("records"), not_converged(own), strict=True):
        if said := ["1 seed"] * (row["seeds"] == 1) + ["not converged"] * late:
            found[row["system"]] = f"{titles.get(row['system'], row['system'])} ({', '.join(said)})"
    return found


def sizes(costs: pd.DataFrame, protocol: str, systems: Sequence[str]) -> dict[str, list[str]]:
    """Trained parameters (millions) and what training and scoring took (s, mean over seeds), as printed; empty where a
    system has no run, or none that counts them. Returns: one list per column, in the order of `systems`."""
    known = costs[costs["protocol"] == protocol].set_index("system").reindex(list(systems))
    counts = known.get("parameters", pd.Series(pd.NA, index=known.index))
    found = {"parameters (M)": ["" if pd.isna(count) else f"{count / 1e6:,.2f}" for count in counts]}
    return found | {title: known[column].map(duration).tolist() for column, title in SECONDS.items()}


def duration(value: float) -> str:
    """Seconds with three digits: 0.289, 73.8, 1,234; empty where nothing was measured."""
    return "" if pd.isna(value) else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def cell(mean: float, deviation: float | None) -> str:
    """ "0.1602 ± 0.0011", without the deviation where there is a single seed."""
    return f"{mean:.{DIGITS}f}" + ("" if deviation is None or pd.isna(deviation) else f" ± {deviation:.{DIGITS}f}")


def markdown(table: pd.DataFrame) -> str:
    """A Markdown table; the first column to the left, numbers to the right."""

    def line(cells: list[str]) -> str:
        return "| " + " | ".join(text.replace("|", "\\|") for text in cells) + " |"

    rule = ["---"] + ["---:"] * (table.shape[1] - 1)
    rows = [line([str(value) for value in row]) for row in table.itertuples(index=False)]
    return "\n".join([line(list(table.columns)), line(rule), *rows]) + "\n"


def latex(table: pd.DataFrame, caption: str) -> str:
    """A LaTeX table (booktabs)."""
    styled = table.style.hide(axis="index").format(escape="latex").format_index(escape="latex", axis=1)
    text: str = styled.to_latex(hrules=True, caption=caption, column_format="l" + "r" * (table.shape[1] - 1))
    for pattern, replacement in LATEX:
        text = re.sub(pattern, replacement, text)
    return text


def p_value(p: float) -> str:
    """A p-value as printed; one below the range of double precision is not zero. Empty where nothing was tested."""
    return "" if pd.isna(p) else "<1e-300" if p < 1e-300 else f"{p:.2g}"


def show_table(table: pd.DataFrame, caption: str = "", *, folded: bool | None = None) -> None:
    """Show a table in a notebook, under a caption in bold.

    `folded`: whether it opens on a click only; None folds a table of more than `LONG` rows.
    """
    from IPython import display

    text = f"**{caption}**\n\n{markdown(table)}" if caption else markdown(table)
    if folded or (folded is None and len(table) > LONG):
        summary = escape(caption or f"Table of {len(table)} rows")
        text = f"<details>\n<summary>{summary}</summary>\n\n{markdown(table)}\n</details>"
    display.display(display.Markdown(text))  # type: ignore[no-untyped-call]


def terminal_table(table: pd.DataFrame, title: str) -> Table:
    """A table of text for a terminal, its first column cut where the line is too long."""
    from rich.table import Table

    made = Table(title=title, width=WIDTH)
    for place, heading in enumerate(map(str, table)):
        shape: Any = (
            {"overflow": "ellipsis", "ratio": 1} if place == 0 else {"justify": "right", "min_width": len(heading)}
        )
        made.add_column(heading, no_wrap=True, **shape)
    for cells in table.astype(str).itertuples(index=False):
        made.add_row(*cells)
    return made


def overall_tables(dataset: str) -> list[Table]:
    """The overall results for a terminal, one table per protocol, best NDCG@10 first: means ± sd of `SHOWN`, arrows
    beside T2MRec, difference to T2MRec (NDCG@10), seconds to fit."""
    found = GroupTables(dataset, "report")
    overall, tests, runs = (found[name] for name in ("overall", "significance", "runs"))
    titles, made = {name: str(settings.title) for name, settings in sound_systems().items()}, []
    for kind, columns in (("overall", ("protocol", "system", "mean", "sd")), ("runs", ("seconds_fit",))):
        if missing := [column for column in columns if column not in found[kind]]:
            file, fix = paths.tables(dataset) / f"{kind}.csv", f"run: study report dataset={dataset}"
            raise StudyError("a column is missing", file=file, column=missing[0], fix=fix)
    for protocol in sorted(overall["protocol"].unique()):
        own = tests[tests["protocol"] == protocol]
        table = comparison(overall, protocol, {}, SHOWN, marks=marks(own) if len(own) else None).set_index("system")
        seconds = runs[runs["protocol"] == protocol].set_index("system")["seconds_fit"].map("{:,.1f}".format)
        if len(own):
            diff = own[own["metric"] == "ndcg@10"].set_index("system")["diff"].map("{:+.3f}".format)
            table["to T2MRec"] = diff.reindex(table.index).fillna("")
        table["fit (s)"] = seconds.reindex(table.index).fillna("")
        title = f"{dataset}, protocol {protocol}: how well systems fit the released labels"
        made.append(terminal_table(table.rename(index=titles).reset_index(), title))
    return made
