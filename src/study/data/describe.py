"""What a data set holds: Table 2 of the paper beside the release, and the counts that decide how to read results."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pandas as pd
import scipy.stats

from study.base import files, paths
from study.base.settings import read_keys
from study.data import normalise
from study.data.dataset import Dataset, load

COUNTS = ["released", "case_folded", "normalised"]


def printed_table2() -> dict[str, Any]:
    """Table 2 as the paper prints it: dataset, place, and counts, set (servers or tasks) -> attribute -> count."""
    return read_keys(paths.conf() / "paper" / "table2.yaml", ("dataset", "place", "counts"))


def table2(name: str, data: Dataset) -> pd.DataFrame:
    """Table 2 of the paper beside the counts of data set `name`.

    Returns: one row per attribute. `released` counts the different non-empty values as published, `case_folded` those
        left when case is ignored, `normalised` those left when spelling variants are unified (for lists: the different
        entries); `diff` is normalised - paper. The paper's columns are empty for any other data set.
    """
    paper, rows = printed_table2(), []
    ours = paper["dataset"] == name
    for part, attributes in paper["counts"].items():
        table = data.servers if part == "servers" else data.tasks
        for attribute, printed in attributes.items():
            if attribute.endswith("_num"):
                counts, note = [len(table)] * 3, "rows"
            else:
                unified = [f"{attribute}_tokens", f"{attribute}_clean", attribute]
                column = next(column for column in unified if column in table)
                listed = column.endswith("tokens")
                folded = map(normalise.case_key, table[attribute])
                counts = [normalise.distinct(values) for values in (table[attribute], folded)]
                counts.append(normalise.distinct(table[column], listed=listed))
                note = f"empty in {int((table[attribute] == '').sum())} rows"
                note += "; lists are counted by entry in `normalised`" if listed else ""
            row = {"set": part, "attribute": attribute, "paper": printed if ours else None}
            rows.append(row | dict(zip(COUNTS, counts, strict=True)) | {"note": note})
    counted = pd.DataFrame(rows).astype(dict.fromkeys(["paper", *COUNTS], "Int64"))
    counted = counted.assign(diff=counted["normalised"] - counted["paper"], place=paper["place"] if ours else "")
    return counted[["set", "attribute", "paper", *COUNTS, "diff", "place", "note"]]


def overview(data: Dataset, labels_all: pd.DataFrame | None = None) -> pd.DataFrame:
    """Counts of a data set, one per row: group, measure, value. `labels_all`: the longer lists where the data set has
    them (columns task_id, server_id, position)."""
    ids = data.servers["id"].to_numpy()
    exact = {tuple(row) for row in data.lists}
    sets = Counter(tuple(sorted(row)) for row in data.lists)
    ascending = [len(row) > 1 and bool((np.diff(ids[row]) > 0).all()) for row in data.lists]
    spoken, requested = (
        [{token.casefold() for token in normalise.tokens(text)} for text in table["language_tokens"]]
        for table in (data.servers, data.tasks)
    )
    listed = np.bincount(data.relevance.indices, minlength=data.n_servers)
    top = np.sort(listed)[::-1][: max(1, data.n_servers // 10)]
    groups: dict[str, dict[str, float]] = {
        "servers": _text_counts(data.servers),
        "tasks": _text_counts(data.tasks),
        "labels": {
            "labels": data.relevance.nnz,
            "lists strictly ascending by server id": sum(ascending),
            "lists that repeat an earlier task's list exactly": len(data.lists) - len(exact),
            "lists that repeat an earlier task's set of servers": len(data.lists) - len(sets),
            "most tasks that share one set of servers": max(sets.values()),
            "labels whose server is written in the task's language": sum(
                bool(requested[task] & spoken[server]) for task, row in enumerate(data.lists) for server in row
            ),
        },
        "popularity of servers (tasks that list them)": {
            "servers that no task lists": int((listed == 0).sum()),
            "share of all labels on the most listed tenth of the servers": float(top.sum() / listed.sum()),
        },
    }
    if labels_all is not None:
        lengths = labels_all.groupby("task_id").size()
        groups["longer lists"] = {
            "labels": lengths.sum(),
            "shortest list": lengths.min(),
            "longest list": lengths.max(),
        }
    rows = [(group, measure, value) for group, counts in groups.items() for measure, value in counts.items()]
    return pd.DataFrame(rows, columns=["group", "measure", "value"])


def _text_counts(table: pd.DataFrame) -> dict[str, float]:
    counts: dict[str, float] = {"rows": len(table)}
    counts |= {f"different {column}s": table[column].nunique() for column in ("name", "description")}
    alphabetical = table["name"].str.casefold().rank()
    if alphabetical.min() < alphabetical.max():
        # 1 means that the id of a server or task tells its place in the alphabet.
        correlation = scipy.stats.spearmanr(table["id"], alphabetical).statistic
        counts["rank correlation of id and alphabetical place of the name"] = float(correlation)
    return counts


def write_description(name: str) -> None:
    """Write table2.csv and overview.csv of the prepared data set `name` into its tables folder."""
    folder, data = paths.tables(name), load(name)
    longer = paths.prepared(name) / "labels_all.parquet"
    files.write_csv(folder / "table2.csv", table2(name, data))
    counts = overview(data, pd.read_parquet(longer) if longer.exists() else None)
    files.write_csv(folder / "overview.csv", counts)
