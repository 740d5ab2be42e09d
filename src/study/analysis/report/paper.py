"""What the paper prints (Tables 2 to 4, optima of Figures 6 to 9), and what follows from its cells by arithmetic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from study.analysis.report.results import TUNED_SUFFIX
from study.analysis.report.tables import cell, comparison, marked, named, remarked
from study.base import paths
from study.base.errors import StudyError
from study.base.settings import read_keys
from study.data.describe import printed_table2
from study.evaluation.metrics import PAPER_METRICS

# What is set beside the paper: its T2MRec rows hold the F1 of the mean precision and recall (notebook 05_audit).
COMPARED = tuple(name.replace("f1@", "f1_of_means@") for name in PAPER_METRICS)
COLUMNS = ["table", "place", "group", "printed", "system", "metric", "k", "value", "stand_in", "differs"]


def _read(path: Path | None = None) -> dict[str, Any]:
    path = path or paths.conf() / "paper" / "tables.yaml"
    keys = ("dataset", "unit", "metrics", "tables", "figures")
    return read_keys(path, keys, fix="restore the file from the repository")


def load(path: Path | None = None) -> pd.DataFrame:
    """Every cell of Tables 3 and 4, one per row, from ``conf/paper/tables.yaml`` unless `path` says otherwise.

    Returns: columns table (``table3``, ``table4``), place, group, printed (the paper's name), system (the study's name
    of the same configuration, empty where there is none), metric, k, value (in [0, 1]), stand_in (the nearest
    configuration where there is no same one), differs (what it lacks) and own (system, else stand_in); attribute
    ``dataset`` names the data set that the values describe. A missing file, a row of another length and a cell outside
    [0, 1] raise `StudyError`.
    """
    content = _read(path)
    metrics = [name.split("@") for name in content["metrics"]]
    rows = []
    for table, part in content["tables"].items():
        for entry in part["rows"]:
            if len(entry["values"]) != len(metrics) or not all(0 <= value <= 1 for value in entry["values"]):
                problem = f"{table} needs {len(metrics)} cells from 0 to 1 per row"
                raise StudyError(problem, file=path, row=entry["printed"], fix="copy the row from the paper again")
            for (metric, k), value in zip(metrics, entry["values"], strict=True):
                row = (table, part["place"], entry["group"], entry["printed"], entry["system"] or "", metric, int(k))
                rows.append((*row, value, entry.get("stand_in", ""), entry.get("differs", "")))
    frame = pd.DataFrame(rows, columns=COLUMNS)
    frame["own"] = frame["system"].where(frame["system"] != "", frame["stand_in"])
    frame.attrs["dataset"] = content["dataset"]
    return frame


def printed_gains() -> pd.Series:
    """The line "Gains" of Table 3, in %, by metric@k."""
    content = _read()
    return pd.Series(content["tables"]["table3"]["gains"], index=content["metrics"], name="gain", dtype=float)


def table2() -> pd.DataFrame:
    """The counts of Table 2: columns table, place, set (servers or tasks), attribute, value (a count)."""
    content = printed_table2()
    rows = [
        ("table2", content["place"], part, name, value)
        for part, counts in content["counts"].items()
        for name, value in counts.items()
    ]
    return pd.DataFrame(rows, columns=["table", "place", "set", "attribute", "value"])


def optima() -> pd.DataFrame:
    """What the text states for Figures 6 to 9: columns figure, place, statement, key, optimum, below.
    `key` and `optimum` name a setting of T2MRec and its best value; `below` bounds a p-value."""
    figures = _read()["figures"]
    rows = [{"figure": name, "key": "", "optimum": None, "below": None} | part for name, part in figures.items()]
    return pd.DataFrame(rows, columns=["figure", "place", "statement", "key", "optimum", "below"])


def wide(cells: pd.DataFrame, table: str) -> pd.DataFrame:
    """One table as printed: index printed name in the paper's order, one column per metric@k."""
    part = cells[cells["table"] == table].assign(column=named)
    shaped = part.pivot_table(index="printed", columns="column", values="value", sort=False)
    return shaped[list(PAPER_METRICS)].rename_axis(columns=None)


def gains(table3: pd.DataFrame, method: str = "T2MRec") -> pd.DataFrame:
    """Two readings of "relative improvement over the strongest baseline", in %; `table3`: from `wide`. Returns: one row
    per metric@k: best_baseline, over_baseline = (method - best) / best, and over_method = (method - best) / method."""
    others = table3.drop(index=method)
    own, best = table3.loc[method], others.max()
    over = {"over_baseline": 100 * (own - best) / best, "over_method": 100 * (own - best) / own}
    return pd.DataFrame({"best_baseline": others.idxmax(), **over})


def counterparts(cells: pd.DataFrame) -> pd.DataFrame:
    """The rows of Table 3 in its order; behind each, those of other tables that describe the same system. Returns:
    columns system (the study's name of the same or of the nearest configuration), table, place, printed, differs."""
    rows = cells.drop_duplicates(["table", "printed"]).copy()
    known, in_table3 = rows["system"] != "", rows["table"] == "table3"
    rows["system"] = rows["own"]
    order = list(rows.loc[in_table3, "system"])
    kept = rows[in_table3 | (known & rows["system"].isin(order))]
    place = kept["system"].map(order.index)
    columns = ["system", "table", "place", "printed", "differs"]
    return kept.loc[place.sort_values(kind="stable").index, columns].reset_index(drop=True)


def beside(
    cells: pd.DataFrame,
    overall: pd.DataFrame,
    protocol: str,
    titles: Mapping[str, str],
    applies: Mapping[str, Sequence[str]],
    *,
    marks: Mapping[tuple[str, str], str] | None = None,
    costs: pd.DataFrame | None = None,
    applicable_alone: bool = False,
) -> pd.DataFrame:
    """Table 3 row by row as the paper prints it, and under each row the study's runs of that system under a protocol.

    The best value of a column is ``**bold**`` and the second best ``*italic*``, in Table 3 and among the study's rows
    apart. The paper's printed F1 stands in the columns f1_of_means.

    Args:
        cells: from `load`.
        overall, marks, costs: as in `tables.comparison`; with costs, titles are `remarked`.
        applies: system -> the protocols that it is for; a tuned variant, ``<system>_tuned``, gets a row of its own.
        applicable_alone: leave out the paper's rows whose systems the protocol is not for.

    Returns: columns system, source, `COMPARED` and those of the costs, as text.
    """
    groups = counterparts(cells)
    titles = titles if costs is None else remarked(titles, costs, protocol)
    if applicable_alone:
        groups = groups[[protocol in applies.get(name, ()) for name in groups["system"]]]
    variants = {
        name: [own for own in (name, name + TUNED_SUFFIX) if protocol in applies.get(own, ())]
        for name in groups["system"]
    }
    names = [name for own in variants.values() for name in own]
    runs = overall[(overall["protocol"] == protocol) & overall["system"].isin(names)]
    absent = [name for name in names if name not in set(runs["system"])]
    ours = comparison(runs, protocol, {}, COMPARED, not_run=absent, unranked=(), marks=marks, costs=costs)
    ours = ours.set_index("system")
    differs = groups.groupby("system")["differs"].agg(lambda parts: ", ".join(filter(None, parts)))
    printed = {table: _printed(cells, table) for table in dict.fromkeys(groups["table"])}
    rows: list[dict[Any, Any]] = []
    for system, part in groups.groupby("system", sort=False):
        for row in part.to_dict("records"):
            texts = printed[row["table"]].loc[row["printed"]].to_dict()
            rows.append({"system": row["printed"], "source": f"paper, {row['place']}"} | texts)
        for name in variants[str(system)]:
            title = titles.get(name, name) + (f", {differs[system]}" if differs[system] else "")
            rows.append({"system": title, "source": f"ours, {protocol}"} | ours.loc[name].to_dict())
    return pd.DataFrame(rows, columns=["system", "source", *ours.columns]).fillna("")


def _printed(cells: pd.DataFrame, table: str) -> pd.DataFrame:
    """A table of the paper as text with its best and second best; index printed, columns `COMPARED`."""
    values = wide(cells, table)
    texts = {}
    for source, target in zip(PAPER_METRICS, COMPARED, strict=True):
        column = values[source].map(lambda value: cell(value, None))
        texts[target] = marked(column, values[source], target, list(values.index) if table == "table3" else None)
    return pd.DataFrame(texts)


def describes(dataset: str) -> bool:
    """Whether the paper's numbers are of this data set."""
    return bool(load().attrs["dataset"] == dataset)


def printed_rows() -> pd.DataFrame:
    """The rows of Tables 3 and 4, each once: table, place, row, own (the study's system of the same or nearest
    configuration, empty where there is none) and the `PAPER_METRICS`.
    """
    cells, parts = load(), []
    for table, own in cells.groupby("table", sort=False):
        about = own.drop_duplicates("printed").set_index("printed")[["table", "place", "own"]]
        parts.append(about.join(wide(cells, str(table))).rename_axis("row").reset_index())
    # Table 4 repeats the method's row of Table 3.
    rows = pd.concat(parts, ignore_index=True).drop_duplicates(["row", *PAPER_METRICS], ignore_index=True)
    return rows[["table", "place", "row", "own", *PAPER_METRICS]]
