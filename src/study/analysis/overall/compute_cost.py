"""What fits and searches took: which fits were long, and the core hours behind every row of the paper's Table 3.

A fit has one core (`threads` of the profile), so its seconds by the clock are core seconds. They were measured on a
machine that did other work as well, which makes single ones too long.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pandas as pd

from study import paths
from study.analysis.overall.table3_gaps import OWN, TUNED, kind_of
from study.analysis.report.results import Results, lineage
from study.evaluation.records import read_record
from study.pipeline.plan import parents

LONG = 600  # seconds by the clock that a fit under the profile laptop should not exceed
HOUR = 3600
# Kinds of effort, in the order of the table: runs at the system's own settings and tuned, searches, and the runs of
# variants, faults and extensions.
SEARCHES, SIDE = "searches", "side rows"
KINDS = (OWN, TUNED, SEARCHES, SIDE)
PUBLISHED = "published"  # family of the methods that this study wrote after their papers
COLUMNS = ["printed", "system", "family", *KINDS, "total"]


def fits(results: Results) -> pd.DataFrame:
    """Every fit behind the tables, from the records of the runs.

    Returns: protocol, system, title, seed, seconds_fit, seconds_score (of all test tasks).
    """
    rows = []
    for run in results.costs[["protocol", "system"]].to_dict("records"):
        path = paths.results(results.dataset) / "records" / run["protocol"] / f"{run['system']}.json"
        rows += [
            (
                run["protocol"],
                run["system"],
                results.titles[run["system"]],
                seed["seed"],
                seed["seconds_fit"],
                seed["seconds_score"],
            )
            for seed in read_record(path)["seeds"]
        ]
    return pd.DataFrame(rows, columns=["protocol", "system", "title", "seed", "seconds_fit", "seconds_score"])


def long_fits(fitted: pd.DataFrame, protocol: str) -> list[str]:
    """The systems of a protocol whose longest seed took more than `LONG`, that seed and the mean, the longest first.

    Args:
        fitted: from `fits`.
    """
    by_system = fitted[fitted["protocol"] == protocol].groupby("system")
    table = by_system.agg(
        title=("title", "first"), mean=("seconds_fit", "mean"), longest=("seconds_fit", "max"), seeds=("seed", "size")
    ).sort_values("longest", ascending=False)
    said = []
    for row in table[table["longest"] > LONG].to_dict("records"):
        seeds = f"mean of {row['seeds']} seeds {row['mean'] / 60:.1f}" if row["seeds"] > 1 else "one seed"
        said.append(f"{row['title']} ({row['longest'] / 60:.1f} min, {seeds})")
    return said


def effort(
    results: Results,
    fitted: pd.DataFrame,
    searches: pd.DataFrame,
    printed: Mapping[str, str],
    *,
    builds_on: Callable[[str], Sequence[str]] = parents,
) -> pd.DataFrame:
    """Core hours behind each row of the paper's Table 3 that has a run, its share in every kind of effort.

    Args:
        fitted: from `fits`.
        searches: from `study.analysis.overall.tuning.tuned`.
        printed: the paper's name -> system; the systems that build on it, or carry it to new tasks, count with it.
        builds_on: system -> the systems whose settings it builds on, nearest first; of configured ones.

    Returns: printed, system, family, the `KINDS` and total, in core hours (fitting and scoring), in the paper's order.
    """
    core = (fitted["seconds_fit"] + fitted["seconds_score"]).groupby(fitted["system"]).sum()
    searched = searches.groupby("system")["seconds"].sum()
    above = {name: lineage(name, builds_on) for name in {*core.index, *searched.index} & results.applies.keys()}
    rows = []
    for title, system in printed.items():
        hours = dict.fromkeys(KINDS, 0.0)
        for name in (name for name in sorted(above) if system in above[name]):
            kind = kind_of(name, system, results.families[name])
            hours[kind if kind in KINDS else SIDE] += float(core.get(name, 0)) / HOUR
            hours[SEARCHES] += float(searched.get(name, 0)) / HOUR
        if any(hours.values()):
            family = results.families[system]
            rows.append({"printed": title, "system": system, "family": family, **hours, "total": sum(hours.values())})
    # Without a row pandas would take the hours for objects.
    return pd.DataFrame(rows, columns=COLUMNS).astype(dict.fromkeys([*KINDS, "total"], float))


def summed(table: pd.DataFrame) -> pd.DataFrame:
    """The table of `effort` with two sums below it: the rows of `PUBLISHED`, and all rows; a sum names no system."""
    sums = [
        {
            "printed": f"sum of the {len(part)} of family {family}" if family else f"sum of all {len(part)}",
            "system": "",
            "family": family,
            **part[[*KINDS, "total"]].sum(),
        }
        for family, part in ((PUBLISHED, table[table["family"] == PUBLISHED]), ("", table))
        if len(part)
    ]
    return pd.concat([table, pd.DataFrame(sums, columns=COLUMNS)], ignore_index=True) if sums else table


def said(table: pd.DataFrame, fitted: pd.DataFrame, searches: pd.DataFrame) -> str:
    """What the rows of `PUBLISHED` took of all that fits, scoring and searches of the data set took.

    Args:
        table, fitted, searches: as of `effort`.
    """
    ran = float((fitted["seconds_fit"] + fitted["seconds_score"]).sum()) / HOUR
    searched = float(searches["seconds"].sum()) / HOUR
    part = table[table["family"] == PUBLISHED]
    text = f"All runs of the data set took {ran:.1f} core hours and all searches {searched:.1f}."
    if part.empty:
        return text
    shares = ", ".join(f"{kind} {part[kind].sum():.1f}" for kind in KINDS)
    return (
        f"The {len(part)} baselines of family {PUBLISHED} ({', '.join(part['printed'])}) took "
        f"{part['total'].sum():.1f} core hours: {shares}. {text}"
    )
