"""What the paper prints (Tables 2 to 4, optima of Figures 6 to 9), and what follows from its cells by arithmetic."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from study import paths
from study.analysis.tables import PAPER_METRICS, cell
from study.errors import StudyError

# What is set beside the paper: its T2MRec rows hold the F1 of the mean precision and recall (see `arithmetic`).
COMPARED = tuple(name.replace("f1@", "f1_of_means@") for name in PAPER_METRICS)
COLUMNS = ["table", "place", "group", "printed", "system", "metric", "k", "value", "stand_in", "differs"]


def _read(path: Path | None) -> dict[str, Any]:
    path = path or paths.conf() / "paper" / "tables.yaml"
    if not path.exists():
        raise StudyError("the paper's tables are missing", file=path, fix="restore the file from the repository")
    content: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return content


def load(path: Path | None = None) -> pd.DataFrame:
    """Every cell of Tables 3 and 4, one per row.

    Args:
        path: by default ``conf/paper/tables.yaml``.

    Returns: columns table (``table3``, ``table4``), place, group, printed (the paper's name), system (the study's name
        of the same configuration, empty where there is none), metric, k, value (in [0, 1]), stand_in (the nearest
        configuration where there is no same one) and differs (what it lacks); attribute ``dataset`` names the data set
        that the values describe.

    Raises:
        StudyError: a missing file, a row with too few or too many cells, or a cell outside [0, 1].
    """
    content = _read(path)
    metrics = [name.split("@") for name in content["metrics"]]
    rows = []
    for table, part in content["tables"].items():
        for entry in part["rows"]:
            if len(entry["values"]) != len(metrics) or not all(0 <= value <= 1 for value in entry["values"]):
                raise StudyError(
                    f"{table} needs {len(metrics)} cells from 0 to 1 per row", file=path, row=entry["printed"],
                    fix="copy the row from the paper again",
                )  # fmt: skip
            for (metric, k), value in zip(metrics, entry["values"], strict=True):
                rows.append((
                    table, part["place"], entry["group"], entry["printed"], entry["system"] or "", metric, int(k),
                    value, entry.get("stand_in", ""), entry.get("differs", ""),
                ))  # fmt: skip
    frame = pd.DataFrame(rows, columns=COLUMNS)
    frame.attrs["dataset"] = content["dataset"]
    return frame


def printed_gains(path: Path | None = None) -> pd.Series:
    """The line "Gains" of Table 3, in %, by metric@k."""
    content = _read(path)
    return pd.Series(content["tables"]["table3"]["gains"], index=content["metrics"], name="gain", dtype=float)


def table2(path: Path | None = None) -> pd.DataFrame:
    """The counts of Table 2: columns table, place, set (servers or tasks), attribute, value (a count)."""
    path = path or paths.conf() / "paper" / "tables.yaml"
    content = _read(path.with_name(_read(path)["table2"]))
    rows = [(part, name, value) for part, counts in content["counts"].items() for name, value in counts.items()]
    frame = pd.DataFrame(rows, columns=["set", "attribute", "value"])
    return frame.assign(table="table2", place=content["place"])[["table", "place", "set", "attribute", "value"]]


def optima(path: Path | None = None) -> pd.DataFrame:
    """What the text states for Figures 6 to 9: columns figure, place, statement, key, optimum, below.

    `key` and `optimum` name a setting of ``conf/system/t2mrec.yaml`` and its best value; `below` bounds a p-value.
    """
    figures = _read(path)["figures"]
    rows = [{"figure": name, "key": "", "optimum": None, "below": None} | part for name, part in figures.items()]
    return pd.DataFrame(rows, columns=["figure", "place", "statement", "key", "optimum", "below"])


def wide(cells: pd.DataFrame, table: str) -> pd.DataFrame:
    """One table as printed: index printed name in the paper's order, one column per metric@k."""
    part = cells[cells["table"] == table].assign(column=lambda rows: rows["metric"] + "@" + rows["k"].astype(str))
    shaped = part.pivot_table(index="printed", columns="column", values="value", sort=False)
    return shaped[list(PAPER_METRICS)].rename_axis(columns=None)


def gains(table3: pd.DataFrame, method: str = "T2MRec") -> pd.DataFrame:
    """Two readings of "relative improvement over the strongest baseline", in %.

    Args:
        table3: from `wide`.

    Returns: one row per metric@k: best_baseline, over_baseline = (method - best) / best, and over_method =
        (method - best) / method.
    """
    others = table3.drop(index=method)
    own, best = table3.loc[method], others.max()
    return pd.DataFrame({
        "best_baseline": others.idxmax(),
        "over_baseline": 100 * (own - best) / best,
        "over_method": 100 * (own - best) / own,
    })  # fmt: skip


def arithmetic(table: pd.DataFrame) -> pd.DataFrame:
    """What the printed precision P and recall R say about the printed F1 and about the labels.

    Returns: per row and cutoff: f1_printed, f1_from_means = 2 P R / (P + R), and implied_relevant = k P / R. Where
        every test task has n relevant servers, k P = n R holds for every ranking, so `implied_relevant` is n.
    """
    rows = []
    for name, values in table.iterrows():
        for k in (5, 10):
            precision, recall = values[f"precision@{k}"], values[f"recall@{k}"]
            rows.append({
                "printed": name, "k": k, "f1_printed": values[f"f1@{k}"],
                "f1_from_means": 2 * precision * recall / (precision + recall),
                "implied_relevant": k * precision / recall,
            })  # fmt: skip
    return pd.DataFrame(rows)


def beside(cells: pd.DataFrame, overall: pd.DataFrame, protocol: str, titles: dict[str, str]) -> pd.DataFrame:
    """The paper's rows and the study's rows of one protocol in one table, best NDCG@10 first.

    Args:
        cells: from `load`.
        overall: of the report stage: system, protocol, metric, k, mean, sd.
        titles: system -> how it is printed.

    Returns: columns source, system and `COMPARED`; cells as text, "mean ± sd" for the study's. The paper's printed F1
        stands in the columns f1_of_means.
    """
    rows = []
    for table in dict.fromkeys(cells["table"]):
        place = cells.loc[cells["table"] == table, "place"].iloc[0]
        for name, values in wide(cells, table).iterrows():
            if table == "table4" and name in set(cells.loc[cells["table"] == "table3", "printed"]):
                continue
            texts = {target: cell(values[source], None) for source, target in zip(PAPER_METRICS, COMPARED, strict=True)}
            rows.append({"source": f"paper, {place}", "system": str(name)} | texts)
    ours = overall[overall["protocol"] == protocol]
    for system, part in ours.groupby("system", sort=False):
        named = part.set_index(part["metric"] + "@" + part["k"].astype(str))
        means, deviations = named["mean"], named["sd"]
        texts = {name: cell(means[name], deviations[name]) for name in COMPARED}
        rows.append({"source": f"ours, {protocol}", "system": titles.get(str(system), str(system))} | texts)
    table = pd.DataFrame(rows)
    order = table[COMPARED[-1]].str.split().str[0].astype(float).sort_values(ascending=False, kind="stable").index
    return table.loc[order].reset_index(drop=True)
