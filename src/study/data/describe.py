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

# Attribute of Table 2 -> the prepared column with unified spellings.
UNIFIED = {
    ("servers", "license"): "license_clean",
    ("servers", "language"): "language_tokens",
    ("servers", "system"): "system_tokens",
    ("servers", "category"): "category_clean",
    ("servers", "subcategory"): "subcategory_clean",
    ("servers", "official"): "official",
    ("tasks", "language"): "language_tokens",
    ("tasks", "category"): "category_clean",
    ("tasks", "subcategory"): "subcategory_clean",
    ("tasks", "theme"): "theme_clean",
}
COUNTS = ["released", "case_folded", "normalised"]
QUANTILES = (0.0, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0)


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
                column = UNIFIED[part, attribute]
                listed = column.endswith("tokens")
                folded = map(normalise.case_key, table[attribute])
                counts = [normalise.distinct(values) for values in (table[attribute], folded)]
                counts.append(normalise.distinct(table[column], listed=listed))
                note = f"empty in {int((table[attribute] == '').sum())} rows"
                note += "; lists are counted by entry in `normalised`" if listed else ""
            row = {"set": part, "attribute": attribute, "paper": printed if ours else None}
            rows.append(row | dict(zip(COUNTS, counts, strict=True)) | {"note": note})
    found = pd.DataFrame(rows).astype({"paper": "Int64"})
    found = found.assign(diff=found["normalised"] - found["paper"], place=paper["place"] if ours else "")
    found = found[["set", "attribute", "paper", *COUNTS, "diff", "place", "note"]]
    return found.astype(dict.fromkeys(COUNTS, "Int64"))


def overview(data: Dataset, labels_all: pd.DataFrame | None = None) -> pd.DataFrame:
    """Counts of a data set, one per row: group, measure, value. `labels_all`: the longer lists where the data set has
    them (columns task_id, server_id, position)."""
    groups: dict[str, dict[str, float]] = {
        "servers": _text_counts(data.servers),
        "tasks": _text_counts(data.tasks),
        "labels": _list_counts(data),
        "popularity of servers (tasks that list them)": _popularity(data),
    }
    if labels_all is not None:
        groups["longer lists"] = _longer(data, labels_all)
    rows = [(group, measure, value) for group, counts in groups.items() for measure, value in counts.items()]
    return pd.DataFrame(rows, columns=["group", "measure", "value"])


def _text_counts(table: pd.DataFrame) -> dict[str, float]:
    counts: dict[str, float] = {"rows": len(table)}
    for column in ("name", "description"):
        counts[f"different {column}s"] = table[column].nunique()
    lengths = table["description"].str.len()
    counts |= {"median characters of a description": lengths.median(), "longest description": lengths.max()}
    place = table["name"].str.casefold().rank()
    if place.min() < place.max():
        # 1 means that the id of a server or task tells its place in the alphabet.
        correlation = scipy.stats.spearmanr(table["id"], place).statistic
        counts["rank correlation of id and alphabetical place of the name"] = float(correlation)
    return counts


def _list_counts(data: Dataset) -> dict[str, float]:
    lengths = np.array([len(row) for row in data.lists])
    ids = data.servers["id"].to_numpy()
    exact = Counter(tuple(row) for row in data.lists)
    sets = Counter(tuple(sorted(row)) for row in data.lists)
    return {
        "labels": int(lengths.sum()),
        "shortest list": int(lengths.min()),
        "median list": float(np.median(lengths)),
        "longest list": int(lengths.max()),
        "lists strictly ascending by server id": sum(
            len(row) > 1 and bool((np.diff(ids[row]) > 0).all()) for row in data.lists
        ),
        "lists that repeat an earlier task's list exactly": len(data.lists) - len(exact),
        "lists that repeat an earlier task's set of servers": len(data.lists) - len(sets),
        "most tasks that share one set of servers": max(sets.values()),
        "labels whose server is written in the task's language": _language_matches(data),
    }


def _language_matches(data: Dataset) -> int:
    spoken = [{token.casefold() for token in normalise.tokens(text)} for text in data.servers["language_tokens"]]
    wanted = [{token.casefold() for token in normalise.tokens(text)} for text in data.tasks["language_tokens"]]
    return sum(bool(wanted[task] & spoken[server]) for task, row in enumerate(data.lists) for server in row)


def _popularity(data: Dataset) -> dict[str, float]:
    listed = np.bincount(data.relevance.indices, minlength=data.n_servers)
    top = np.sort(listed)[::-1][: max(1, data.n_servers // 10)]
    return {
        "servers that no task lists": int((listed == 0).sum()),
        **{f"quantile {share:g}": float(np.quantile(listed, share)) for share in QUANTILES},
        "mean": float(listed.mean()),
        "share of all labels on the most listed tenth of the servers": float(top.sum() / listed.sum()),
    }


def _longer(data: Dataset, labels_all: pd.DataFrame) -> dict[str, float]:
    ids = data.servers["id"].to_numpy()
    longer = labels_all.sort_values(["task_id", "position"]).groupby("task_id")["server_id"].apply(list)
    lengths = longer.map(len)
    pairs = [(ids[row].tolist(), longer[task]) for task, row in zip(data.tasks["id"], data.lists, strict=True)]
    return {
        "labels": int(lengths.sum()),
        "shortest list": int(lengths.min()),
        "mean list": float(lengths.mean()),
        "longest list": int(lengths.max()),
        "tasks whose longer list begins with their list": sum(long[: len(row)] == row for row, long in pairs),
        "tasks whose longer list holds their whole list": sum(set(row) <= set(long) for row, long in pairs),
    }


def write_description(name: str) -> None:
    """Write table2.csv and overview.csv of the prepared data set `name` into its tables folder."""
    folder, data = paths.tables(name), load(name)
    longer = paths.prepared(name) / "labels_all.parquet"
    files.write_csv(folder / "table2.csv", table2(name, data))
    counts = overview(data, pd.read_parquet(longer) if longer.exists() else None)
    files.write_csv(folder / "overview.csv", counts)
