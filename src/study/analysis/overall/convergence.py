"""Training-length checks: epochs of the best validation score, and gaps to item neighbours and other runs."""

from __future__ import annotations

import pandas as pd

from study.analysis.report.results import LONG_SUFFIX, TUNED_SUFFIX, Results, lineage
from study.analysis.report.runs import APART

# Closed forms without training, the first that has a run (a new task has no servers, so there it is the transfer), and
# what they are compared by.
YARDSTICKS, METRIC = ("item_knn", "item_knn_transfer"), "recall@10"
FAR = 0.05  # of METRIC below the yardstick
COLUMNS = ["system", "title", "seeds", "epochs", "best_epoch", "rising"]
COLUMNS += ["gap", "other_values", "more_epochs", "better", "better_gap"]


def convergence(results: Results, protocol: str) -> pd.DataFrame:
    """The systems whose runs tell a best epoch, best on the test tasks first; those of `APART` are left out.

    Returns: system, title, seeds, epochs (that ran), best_epoch (whose weights were kept) and rising, as in runs.csv;
    gap (`METRIC` minus the yardstick's; NaN where that has no run); other_values (how much higher `METRIC` is at the
    other values of the same method, its own settings against the tuned ones) and more_epochs (after a longer training),
    NaN without such a run; better and better_gap (title and gap of the best run of the same method under the protocol,
    if it is another one; tuned values, variants and extensions count).
    """
    sound = [name for name in results.systems(protocol) if results.families.get(name) not in APART]
    values = pd.Series({name: results.value(protocol, name, METRIC) for name in sound}, dtype=float)
    gaps = values - next((values[name] for name in YARDSTICKS if name in values), float("nan"))
    method = pd.Series({name: lineage(name)[-1] if name in results.applies else name for name in sound})
    runs = results.costs[results.costs["protocol"] == protocol].set_index("system")
    trained = [name for name in sound if name in runs.index[runs["best_epoch"].notna()]]
    table = runs.loc[trained, ["seeds", "epochs", "best_epoch", "rising"]]
    table = table.assign(title=[results.titles[name] for name in trained], gap=gaps.reindex(trained).to_numpy())
    for name in trained:
        tuned = name.endswith(TUNED_SUFFIX)
        other = name.removesuffix(TUNED_SUFFIX) if tuned else name + TUNED_SUFFIX
        for column, run in (("other_values", other), ("more_epochs", name + LONG_SUFFIX)):
            table.loc[name, column] = gaps.get(run, float("nan")) - gaps[name]
        best = str(values[method == method[name]].idxmax())
        better = values[best] > values[name]
        table.loc[name, "better"] = results.titles[best] if better else ""
        table.loc[name, "better_gap"] = gaps[best] if better else float("nan")
    return table.rename_axis("system").reset_index().reindex(columns=COLUMNS)
