"""Trained long enough? When looks at validation were best, and who stays under item neighbours or near to chance."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd

from study import paths
from study.analysis.report.results import TUNED_SUFFIX, Results, lineage
from study.evaluation.records import read_record
from study.pipeline.plan import parents

# Closed forms without training, the first that has a run (a new task has no servers, so there it is the transfer), and
# what they are compared by.
YARDSTICKS, METRIC = ("item_knn", "item_knn_transfer"), "recall@10"
FAR = 0.05  # of METRIC below the yardstick
SHARE = 1 / 3  # of that gap which other values have to close before they are called its reason
# What learns nothing, for new tasks and for known ones; every method should reach TIMES its METRIC.
FLOORS, TIMES = {True: "random", False: "popularity"}, 5
LONG_SUFFIX = "_long"  # of the row of the same system with more epochs
FAULTY = ("fault", "ceiling")  # families whose rows say what a fault brings, not how well a method is trained
EARLIER = "experts"  # in reports: an earlier stage that ranks by itself (MPT-Rec)
COLUMNS = [
    "system",
    "title",
    "epochs",
    "best_epoch",
    "capped",
    "annealed",
    "seeds",
    "earlier_better",
    "validation_ndcg",
    "seconds_trained",
    "gap",
    "better",
    "better_gap",
]


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
    """Where settings speak of training; of two stages the last one."""
    return [model, *(model.get(part) or {} for part in ("training", "schedule", "second"))]


def cut_short(model: Mapping[str, Any], reports: pd.DataFrame) -> pd.Series:
    """For each seed whether quality may still have been rising when the cap on epochs ended the training.

    A training that always runs to its cap and has a few `looks` at validation was rising if the last one was the best;
    so was one of whose earlier stages that is true.

    Args:
        model: settings of the system.
        reports: a row for each seed, with epochs (that ran) and best_epoch, and a report of its own for each stage
            before the last one.
    """
    ended = reports["epochs"] >= most_epochs(model)
    if annealed(model):
        ended &= reports["best_epoch"] == reports["epochs"]
    return ended | pd.Series([_rose_before(row) for row in reports.to_dict("records")], index=reports.index, dtype=bool)


def annealed(model: Mapping[str, Any]) -> bool:
    """Whether all epochs run, with a rate that falls to 0 at their end: the last of few looks is mostly the best."""
    return any("looks" in place for place in _places(model))


def _rose_before(report: Mapping[Any, Any]) -> bool:
    """Whether an earlier stage that looks at validation was best at its end; a quantiser does not look."""
    stages = [stage for stage in report.values() if isinstance(stage, Mapping) and "best_epoch" in stage]
    return any(stage["best_epoch"] == stage["epochs"] for stage in stages)


def stopping(results: Results, protocol: str, *, builds_on: Callable[[str], Sequence[str]] = parents) -> pd.DataFrame:
    """The systems whose records tell a best epoch, best on the test tasks first; those of `FAULTY` are left out.

    Args:
        builds_on: system -> the systems whose settings it builds on, nearest first; of configured ones.

    Returns: system, title, epochs (that ran), best_epoch (whose weights were kept), validation_ndcg and seconds_trained
        as means over seeds, capped (the seeds whose training the cap on epochs ended, not validation: quality may still
        have been rising), annealed (see there), seeds, earlier_better (seeds in which an earlier stage that ranks by
        itself was better on validation than the last one), gap (`METRIC` minus the yardstick's; NaN where that has
        no run), better and better_gap (title and gap of the best run of the same method under the protocol, if it is
        another one; tuned values, variants and extensions count, rows of `FAULTY` do not).
    """
    ran = results.systems(protocol)
    yardstick = next((results.value(protocol, name, METRIC) for name in YARDSTICKS if name in ran), float("nan"))
    sound = [name for name in ran if results.families.get(name) not in FAULTY]
    gaps = {name: results.value(protocol, name, METRIC) - yardstick for name in sound}
    method = {name: lineage(name, builds_on)[-1] if name in results.applies else name for name in sound}
    rows = []
    for name in sound:
        record = read_record(paths.results(results.dataset) / "records" / protocol / f"{name}.json")
        reports = pd.DataFrame([seed.get("report", {}) for seed in record.get("seeds", [])])
        if "best_epoch" not in reports or "validation_ndcg" not in reports or reports["validation_ndcg"].isna().any():
            continue
        model = record["config"]["system"]["model"]
        stages = [
            row[EARLIER]["validation_ndcg"] > row["validation_ndcg"]
            for row in reports.to_dict("records")
            if isinstance(row.get(EARLIER), Mapping)
        ]
        rows.append(
            {
                "system": name,
                "title": results.titles[name],
                "seeds": len(reports),
                "capped": int(cut_short(model, reports).sum()),
                "annealed": annealed(model),
                "earlier_better": sum(stages),
                "gap": gaps[name],
                **_better(name, [other for other in sound if method[other] == method[name]], gaps, results.titles),
                **reports[["epochs", "best_epoch", "validation_ndcg", "seconds_trained"]].mean(),
            }
        )
    return pd.DataFrame(rows, columns=COLUMNS)


def _better(name: str, same: Sequence[str], gaps: Mapping[str, float], titles: Mapping[str, str]) -> dict[str, Any]:
    """Title and gap of the best run among the `same` method's, if it is better than `name`; else empty and NaN."""
    best = max(same, key=lambda other: gaps[other])
    if gaps[best] > gaps[name]:
        return {"better": titles[best], "better_gap": gaps[best]}
    return {"better": "", "better_gap": float("nan")}


def verdicts(table: pd.DataFrame) -> Sequence[str]:
    """One sentence for every system that stays far under the yardstick, with what its own runs say of the reason.

    What can be read off: the same method does better at other values (its own settings against the tuned ones: they are
    the reason where they close `SHARE` of the gap, and otherwise the text says how much they explain), a longer
    training of it does better, the cap on epochs ended most trainings while validation was still open (which cannot be
    told where the rate falls to 0 at the end), an earlier stage was better than the last one, or another run of the
    method does better.

    Args:
        table: from `stopping`.
    """
    gaps, titles = (dict(zip(table["system"], table[column], strict=True)) for column in ("gap", "title"))
    found = []
    for row in table[table["gap"] < -FAR].to_dict("records"):
        tuned = row["system"].endswith(TUNED_SUFFIX)
        other = row["system"].removesuffix(TUNED_SUFFIX) if tuned else row["system"] + TUNED_SUFFIX
        longer = row["system"] + LONG_SUFFIX
        values, explained = _by_values(row, gaps.get(other, row["gap"]) - row["gap"], tuned=tuned)
        training = _by_training(row, gaps.get(longer))
        why = [*values, *training]
        if row["better"] and row["better"] not in (titles.get(other), titles.get(longer)):
            why.append(f"{row['better']} reaches {METRIC} {row['better_gap'] - row['gap']:.3f} higher")
        if not training and not explained:
            capped = (
                f"not for lack of epochs (the cap of epochs ended training in {row['capped']} of {row['seeds']} seeds)"
            )
            why = [capped, *why] if why else [f"{capped}, and no better values are known"]
        found.append(f"{row['title']} stays {-row['gap']:.3f} under {METRIC} of item neighbours: {'; '.join(why)}.")
    return found


def _by_values(row: Mapping[Any, Any], by: float, *, tuned: bool) -> tuple[list[str], bool]:
    """What the other values of a method say of a row's gap, and whether they are its reason.

    Args:
        by: `METRIC` of the row at the other values minus that of this row.
        tuned: whether the row has the tuned values, and the other one its own settings.
    """
    values, reach = ("the chosen values", "its own settings reach") if tuned else ("its settings", "tuned, it reaches")
    if by <= 0:
        return [], False
    if by >= SHARE * -row["gap"]:
        return [f"wrong by {values} ({reach} {METRIC} {by:.3f} higher)"], True
    return [f"{values} explain {by:.3f} of it ({reach} that much more)"], False


def _by_training(row: Mapping[Any, Any], longer: float | None) -> list[str]:
    """What the epochs and the stages of a row's trainings say of its gap.

    Args:
        longer: gap of the same row with more epochs, if it has run.
    """
    why, seeds = [], row["seeds"]
    if longer is not None:
        by = longer - row["gap"]
        why.append(f"with more epochs {METRIC} is {abs(by):.3f} {'higher' if by > 0 else 'lower'}")
    elif 2 * row["capped"] > seeds and row["annealed"]:
        looks = f"a last look was the best one in {row['capped']} of {seeds} seeds"
        why.append(f"perhaps under-trained ({looks}, as is usual where the rate falls to 0)")
    elif 2 * row["capped"] > seeds:
        why.append(f"under-trained: the cap of epochs ended training in {row['capped']} of {seeds} seeds")
    if 2 * row["earlier_better"] > seeds:
        why.append(
            f"on validation its first stage was better than its last in {row['earlier_better']} of {seeds} seeds"
        )
    return why


def near_floor(results: Results, protocol: str, *, new_tasks: bool) -> Sequence[str]:
    """One sentence for every system, rules and ceilings aside, under `TIMES` the `METRIC` of what learns nothing.

    Args:
        new_tasks: whether the test tasks of the protocol have no training interaction (`study.data.splits.Split.cold`).
    """
    floor, ran = FLOORS[new_tasks], results.systems(protocol)
    if floor not in ran:
        return []
    least = results.value(protocol, floor, METRIC)
    reached = {
        name: results.value(protocol, name, METRIC) / least
        for name in ran
        if results.families[name] not in ("floor", *FAULTY)
    }
    return [
        f"{results.titles[name]} has {times:.1f} times the {METRIC} of {results.titles[floor]} ({least:.4f}), less "
        f"than the {TIMES} times that a method should reach."
        for name, times in reached.items()
        if times < TIMES
    ]
