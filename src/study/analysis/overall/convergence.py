"""Training-length checks: epochs of the best validation score, seeds cut short, gaps to item neighbours and chance."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from study.analysis.report.results import LONG_SUFFIX, TUNED_SUFFIX, Results, lineage
from study.analysis.report.runs import APART
from study.runner.row_store import read_records

# Closed forms without training, the first that has a run (a new task has no servers, so there it is the transfer), and
# what they are compared by.
YARDSTICKS, METRIC = ("item_knn", "item_knn_transfer"), "recall@10"
FAR = 0.05  # of METRIC below the yardstick
SHARE = 1 / 3  # of that gap which other values have to close before they are called its reason
# What learns nothing, for new tasks and for known ones; every method should reach TIMES its METRIC.
TRIVIAL, TIMES = {True: "random", False: "popularity"}, 5
EARLIER = "experts"  # in reports: an earlier stage that ranks by itself (MPT-Rec)
COLUMNS = ["system", "title", "epochs", "best_epoch", "capped", "annealed", "seeds", "earlier_better"]
COLUMNS += ["validation_ndcg", "seconds_trained", "gap", "better", "better_gap"]
REASONS = ["gap", "seeds", "capped", "earlier_better", "other_values", "by_values", "more_epochs"]


def most_epochs(model: Mapping[str, Any]) -> float:
    """The cap on epochs in a system's settings, as records hold them; infinite where they state none.

    It stands in the model itself, in its part for training, or in the `base` that a transfer ranks through; as a
    number, or as one for each profile (`baselines.settings.of_profile`).
    """
    found = next((place["epochs"] for place in _places(model) if place.get("epochs")), None)
    if found is None:
        return most_epochs(model["base"]) if model.get("base") else float("inf")
    return float(found[found["profile"]] if isinstance(found, Mapping) else found)


def _places(model: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The parts of a model's settings that may hold training settings, such as epochs."""
    return [model, *(model.get(part) or {} for part in ("training", "schedule", "second"))]


def cut_short(model: Mapping[str, Any], reports: pd.DataFrame) -> pd.Series:
    """For each seed whether quality may still have been rising when the cap on epochs ended the training.

    A training that always runs to its cap and has a few `evaluations` was rising if the last one was the best;
    so was one of whose earlier stages that is true. `reports` has a row per seed with epochs (that ran) and best_epoch,
    and a report for each stage before the last one; a quantiser does not look at validation.
    """
    ended = reports["epochs"] >= most_epochs(model)
    if annealed(model):
        ended &= reports["best_epoch"] == reports["epochs"]
    before = [
        any(isinstance(stage, Mapping) and stage.get("best_epoch", -1) == stage.get("epochs") for stage in report)
        for report in reports.to_numpy()
    ]
    return ended | np.array(before, dtype=bool)


def annealed(model: Mapping[str, Any]) -> bool:
    """Whether all epochs run, with a rate that falls to 0: the last of few evaluations is mostly the best."""
    return any("evaluations" in place for place in _places(model))


def convergence(results: Results, protocol: str) -> pd.DataFrame:
    """The systems whose records tell a best epoch, best on the test tasks first; those of `APART` are left out.

    Returns: system, title, epochs (that ran), best_epoch (whose weights were kept), validation_ndcg and seconds_trained
    as means over seeds, capped (the seeds whose training the cap on epochs ended, not validation: quality may still
    have been rising), annealed (see there), seeds, earlier_better (seeds in which an earlier stage that ranks by itself
    was better on validation than the last one), gap (`METRIC` minus the yardstick's; NaN where that has no run), better
    and better_gap (title and gap of the best run of the same method under the protocol, if it is another one; tuned
    values, variants and extensions count, rows of `APART` do not).
    """
    ran = results.systems(protocol)
    yardstick = next((results.value(protocol, name, METRIC) for name in YARDSTICKS if name in ran), float("nan"))
    sound = [name for name in ran if results.families.get(name) not in APART]
    gaps = {name: results.value(protocol, name, METRIC) - yardstick for name in sound}
    method = {name: lineage(name)[-1] if name in results.applies else name for name in sound}
    rows, records = [], read_records(results.dataset, protocol)
    for name in sound:
        record = records[protocol, name]
        reports = pd.DataFrame([seed.get("report", {}) for seed in record.get("seeds", [])])
        if "best_epoch" not in reports or "validation_ndcg" not in reports or reports["validation_ndcg"].isna().any():
            continue
        model = record["config"]["system"]["model"]
        staged = [row for row in reports.to_dict("records") if isinstance(row.get(EARLIER), Mapping)]
        earlier = sum(row[EARLIER]["validation_ndcg"] > row["validation_ndcg"] for row in staged)
        best = max((other for other in sound if method[other] == method[name]), key=lambda other: gaps[other])
        other = gaps[best] > gaps[name]
        row = {"system": name, "title": results.titles[name], "seeds": len(reports), "earlier_better": earlier}
        row |= {"capped": int(cut_short(model, reports).sum()), "annealed": annealed(model), "gap": gaps[name]}
        row |= {"better": results.titles[best] if other else "", "better_gap": gaps[best] if other else float("nan")}
        rows.append(row | dict(reports[["epochs", "best_epoch", "validation_ndcg", "seconds_trained"]].mean()))
    return pd.DataFrame(rows, columns=COLUMNS)


def far_behind(table: pd.DataFrame) -> pd.DataFrame:
    """The systems of `convergence` that stay more than `FAR` under the yardstick, and what their runs tell of why.

    Returns: title, gap, seeds, capped, earlier_better, other_values (how much higher `METRIC` is at the other values of
    the same method, its own settings against the tuned ones), by_values (whether they close `SHARE` of the gap),
    more_epochs (how much higher after a longer training); NaN where there is no such run.
    """
    gaps = dict(zip(table["system"], table["gap"], strict=True))
    own, is_tuned = table["system"].str.removesuffix(TUNED_SUFFIX), table["system"].str.endswith(TUNED_SUFFIX)
    found = table.assign(
        other_values=own.where(is_tuned, own + TUNED_SUFFIX).map(gaps) - table["gap"],
        more_epochs=(table["system"] + LONG_SUFFIX).map(gaps) - table["gap"],
    )
    found["by_values"] = found["other_values"] >= SHARE * -found["gap"]
    return found.loc[found["gap"] < -FAR, ["title", *REASONS]].reset_index(drop=True)


def near_trivial(results: Results, protocol: str, *, new_tasks: bool) -> pd.DataFrame:
    """The systems, rules and oracles aside, that have less than `TIMES` the `METRIC` of what learns nothing.

    `new_tasks`: whether the test tasks have no training interaction (`study.data.splits.Split.cold`).

    Returns: title, times (their `METRIC` over that of the rule), trivial (the rule's title) and value (its `METRIC`).
    """
    trivial, ran = TRIVIAL[new_tasks], results.systems(protocol)
    names = [name for name in ran if results.families[name] not in ("trivial", *APART)] if trivial in ran else []
    least = results.value(protocol, trivial, METRIC) if names else float("nan")
    rows = [(results.titles[name], results.value(protocol, name, METRIC) / least) for name in names]
    table = pd.DataFrame(rows, columns=["title", "times"]).assign(trivial=results.titles.get(trivial, ""), value=least)
    return table[table["times"] < TIMES].reset_index(drop=True)
