"""What the paper prints (Tables 2 to 4, optima of Figures 6 to 9), and what follows from its cells by arithmetic."""

from __future__ import annotations

from typing import Any

import pandas as pd

from study.analysis.report.tables import name_metrics
from study.base import paths
from study.base.settings import read_yaml
from study.data.describe import printed_table2
from study.evaluation.metrics import PAPER_METRICS

# What is set beside the paper: its T2MRec rows hold the F1 of the mean precision and recall (notebook 05_audit).
COMPARED = tuple(name.replace("f1@", "f1_of_means@") for name in PAPER_METRICS)
COLUMNS = ["table", "place", "group", "printed", "system", "metric", "k", "value", "stand_in", "differs", "own"]


def _read() -> dict[str, Any]:
    return read_yaml(paths.conf() / "paper" / "tables.yaml", fix="restore the file from the repository")


def load() -> pd.DataFrame:
    """Every cell of Tables 3 and 4, one per row.

    Returns: columns table (``table3``, ``table4``), place, group, printed (the paper's name), system (the study's name
    of the same configuration, empty where there is none), metric, k, value (in [0, 1]), stand_in (the nearest
    configuration where there is no same one), differs (what it lacks) and own (system, else stand_in); attribute
    ``dataset`` names the data set that the values describe.
    """
    content = _read()
    rows = [
        {"stand_in": "", "differs": "", **row, "table": table, "place": part["place"], "measure": content["metrics"]}
        for table, part in content["tables"].items()
        for row in part["rows"]
    ]
    cells = pd.DataFrame(rows).explode(["measure", "values"], ignore_index=True).rename(columns={"values": "value"})
    cells[["metric", "k"]] = cells["measure"].str.split("@", expand=True)
    cells = cells.astype({"k": int, "value": float}).fillna({"system": ""})
    cells = cells.assign(own=cells["system"].where(cells["system"] != "", cells["stand_in"]))[COLUMNS]
    cells.attrs["dataset"] = content["dataset"]
    return cells


def printed_gains() -> pd.Series:
    """The line "Gains" of Table 3, in %, by metric@k."""
    content = _read()
    return pd.Series(content["tables"]["table3"]["gains"], index=content["metrics"], name="gain", dtype=float)


def table2() -> pd.DataFrame:
    """The counts of Table 2: columns set (servers or tasks), attribute, value (a count), table, place."""
    content = printed_table2()
    counts = [(part, *count) for part, counts in content["counts"].items() for count in counts.items()]
    table = pd.DataFrame(counts, columns=["set", "attribute", "value"])
    return table.assign(table="table2", place=content["place"])


def optima() -> pd.DataFrame:
    """What the text states for Figures 6 to 9: columns figure, place, statement, key, optimum, below.
    `key` and `optimum` name a setting of T2MRec and its best value; `below` bounds a p-value."""
    blank = {"key": "", "optimum": None, "below": None}
    rows = [blank | {"figure": name} | part for name, part in _read()["figures"].items()]
    return pd.DataFrame(rows, columns=["figure", "place", "statement", "key", "optimum", "below"])


def wide(cells: pd.DataFrame, table: str) -> pd.DataFrame:
    """One table as printed: index printed name in the paper's order, one column per metric@k."""
    part = cells[cells["table"] == table].assign(column=name_metrics)
    shaped = part.pivot_table(index="printed", columns="column", values="value", sort=False)
    return shaped[list(PAPER_METRICS)].rename_axis(columns=None)


def gains(table3: pd.DataFrame, method: str = "T2MRec") -> pd.DataFrame:
    """Two readings of "relative improvement over the strongest baseline", in %; `table3`: from `wide`. Returns: one row
    per metric@k: best_baseline, over_baseline = (method - best) / best, and over_method = (method - best) / method."""
    others = table3.drop(index=method)
    scores, best = table3.loc[method], others.max()
    over = {"over_baseline": 100 * (scores - best) / best, "over_method": 100 * (scores - best) / scores}
    return pd.DataFrame({"best_baseline": others.idxmax(), **over})


def describes(dataset: str) -> bool:
    """Whether the paper's numbers are of this data set."""
    return bool(_read()["dataset"] == dataset)


def printed_rows() -> pd.DataFrame:
    """The rows of Tables 3 and 4, each once: table, place, row, own (the study's system of the same or nearest
    configuration, empty where there is none) and the `PAPER_METRICS`.
    """
    cells, parts = load(), []
    for table, group in cells.groupby("table", sort=False):
        about = group.drop_duplicates("printed").set_index("printed")[["table", "place", "own"]]
        parts.append(about.join(wide(cells, str(table))).rename_axis("row").reset_index())
    # Table 4 repeats the method's row of Table 3.
    rows = pd.concat(parts, ignore_index=True).drop_duplicates(["row", *PAPER_METRICS], ignore_index=True)
    return rows[["table", "place", "row", "own", *PAPER_METRICS]]
