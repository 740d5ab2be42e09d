"""Trained long enough? When systems that watch validation were at their best, and who stays under item neighbours."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from study import paths
from study.analysis.results import Results
from study.evaluation.records import read_record

YARDSTICK, METRIC = "item_knn", "recall@10"  # a closed form without training, and what it is compared by
LATE = 0.9  # a best look after this share of the epochs: quality may still have been rising
FAR = 0.05  # of METRIC below the yardstick
COLUMNS = ["system", "title", "epochs", "best_epoch", "late", "seeds", "validation_ndcg", "seconds_trained", "gap"]


def stopping(results: Results, protocol: str) -> pd.DataFrame:
    """The systems whose records tell a best epoch, best on the test tasks first.

    Returns: system, title, epochs (that ran), best_epoch (whose weights were kept), validation_ndcg and seconds_trained
        as means over seeds, late (the seeds whose best epoch came after `LATE` of the epochs), seeds, gap (`METRIC`
        minus the yardstick's; NaN where that has no run).
    """
    ran = results.systems(protocol)
    yardstick = results.value(protocol, YARDSTICK, METRIC) if YARDSTICK in ran else float("nan")
    rows = []
    for name in ran:
        path = paths.results(results.dataset) / "records" / protocol / f"{name}.json"
        reports = pd.DataFrame([seed.get("report", {}) for seed in read_record(path).get("seeds", [])])
        if "best_epoch" not in reports or "validation_ndcg" not in reports or reports["validation_ndcg"].isna().any():
            continue
        rows.append({
            "system": name, "title": results.titles[name], "seeds": len(reports),
            "late": int((reports["best_epoch"] > LATE * reports["epochs"]).sum()),
            "gap": results.value(protocol, name, METRIC) - yardstick,
            **reports[["epochs", "best_epoch", "validation_ndcg", "seconds_trained"]].mean(),
        })  # fmt: skip
    return pd.DataFrame(rows, columns=COLUMNS)


def verdicts(table: pd.DataFrame) -> Sequence[str]:
    """One sentence for every system that stays far under the yardstick: under-trained, or wrong for another reason."""
    found = []
    for row in table[table["gap"] < -FAR].to_dict("records"):
        why = (
            f"under-trained: in {row['late']} of {row['seeds']} seeds the best look came after {LATE:.0%} of the epochs"
            if row["late"]
            else "not for lack of epochs: validation had stopped rising in every seed"
        )
        found.append(f"{row['title']} stays {-row['gap']:.3f} under {METRIC} of item neighbours and is {why}.")
    return found
