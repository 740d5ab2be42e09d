"""Sentences about order, repetition and use of the released lists, and about grouped splits; every number of them comes
from the audit's tables."""

from __future__ import annotations

import pandas as pd

from study.analysis.audit.detectors import ORDER_RULES
from study.analysis.audit.labels_text import Part, Tables, interval
from study.analysis.audit.verdicts_text import listed

METRIC = "ndcg@10"


def about_lists(tables: Tables) -> str:
    """How far order and repetition of the lists are beyond chance."""
    table = tables["label_lists"]
    beyond, n = table[table["observed"] > table["chance_high"]], int(table["n_lists"].iloc[0])
    return (
        f"{len(beyond)} of {len(table)} measures of order and repetition of the {n:,} lists lie "
        f"above the 95 % range of {int(table['permutations'].iloc[0])} permutations."
    )


def about_groups(tables: Tables) -> str:
    """What tasks with the same set of servers have in common."""
    table = tables["label_groups"]
    row = table[table["size"] == 0].iloc[0]
    said = [
        f"{name} in {100 * row[f'same_{name}']:.1f} % (all pairs of tasks: {100 * row[f'chance_{name}']:.1f} %)"
        for name in ("theme", "language", "subcategory")
    ]
    return (
        f"{int(row['groups'])} sets of servers belong to more than one task, {int(row['tasks']):,} tasks in all, up to "
        f"{int(table['size'].max())} to one set. Two tasks of such a group ({int(row['pairs']):,} pairs) agree in "
        f"{listed(said)}, and the whole list stands in the same order in {100 * row['same_order']:.1f} %."
    )


def about_use(tables: Tables) -> str:
    """How evenly the catalogue is listed."""
    said = [
        f"{row['measure']} {row['observed']:.4g} ({row['chance']:.3g}, {row['chance_low']:.3g} to "
        f"{row['chance_high']:.3g})"
        for row in tables["label_use"].to_dict("records")
    ]
    draws = int(tables["label_use"]["draws"].iloc[0])
    return (
        f"Use of the catalogue, in brackets {draws} draws of as many labels evenly, mean and range: {'; '.join(said)}."
    )


def about_subcategories(tables: Tables) -> str:
    """Where in the subcategories of tasks walks are frequent."""
    table = tables["provenance"]
    rows = table[(table["scope"] == "subcategory") & table["class"].isin(ORDER_RULES)]
    found = rows.groupby("name").agg(labels=("labels", "sum"), n=("n", "first"))
    found["share"] = found["labels"] / found["n"]
    least, most = (found.loc[found["share"].agg(end)] for end in ("idxmin", "idxmax"))
    return (
        f"By subcategory, labels whose class is a walk range from {100 * least['share']:.1f} % ({least.name}: "
        f"{int(least['labels'])} of {int(least['n']):,}) to {100 * most['share']:.1f} % ({most.name}: "
        f"{int(most['labels']):,} of {int(most['n']):,})."
    )


def about_grouped(tables: Tables) -> str:
    """What systems lose where near copies do not straddle the split."""
    rows = grouped_rows(tables)
    worse, better = rows[rows["difference_low"] > 0], rows[rows["difference_high"] < 0]
    said = [f"{row['system']} {interval(row, 'difference', 'difference_')}" for _, row in worse.iterrows()]
    one = rows.iloc[0]
    return (
        f"From {one['first_protocol']} ({int(one['n_first'])} test tasks) to {one['second_protocol']} "
        f"({int(one['n_second'])} others) {len(worse)} of {len(rows)} systems lose {METRIC} beyond the 95 % interval "
        f"over tasks, {len(better)} gain; lost: {listed(said)}."
    )


def grouped_rows(tables: Tables) -> pd.DataFrame:
    """The rows of grouped.csv by `METRIC`, largest loss first."""
    table = tables["grouped"]
    return table[table["metric"] == METRIC].sort_values("difference", ascending=False)


PARTS: tuple[Part, ...] = (about_lists, about_groups, about_use, about_subcategories, about_grouped)
