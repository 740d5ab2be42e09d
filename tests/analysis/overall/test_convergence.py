"""When systems were at their best on validation, and how far they are from other runs, on hand-made tables."""

from dataclasses import replace

import pandas as pd
import pytest

from study.analysis.overall.convergence import convergence
from tests.analysis.report.helpers import means, results_of

RECALL = {"item_knn": 0.6, "ngcf": 0.5, "ngcf_tuned": 0.45, "bpr": 0.56, "neumf": 0.4}
RECALL |= {"simplex": 0.5, "simplex_tuned": 0.58, "ease": 0.3, "neumf_long": 0.55}
# System -> seeds, epochs, best epoch and rising of runs.csv; the others look for no best epoch.
RUNS = {"ngcf": (3, 180.0, 150.0, 2), "ngcf_tuned": (1, 120.0, 70.0, 0), "bpr": (1, 200.0, 200.0, 1)}
RUNS |= {"neumf": (2, 150.0, 95.0, 0), "simplex": (1, 200.0, 200.0, 1), "simplex_tuned": (1, 200.0, 200.0, 1)}


@pytest.fixture
def results():
    rows = [("warm", name, metric, value) for name, value in RECALL.items() for metric in ("recall", "ndcg")]
    runs = {name: RUNS.get(name, (1, None, None, None)) for name in RECALL}
    costs = pd.DataFrame([("warm", name, *about) for name, about in runs.items()])
    costs = costs.set_axis(["protocol", "system", "seeds", "epochs", "best_epoch", "rising"], axis=1)
    return results_of("synthetic", ["warm"], RECALL, costs=costs, **means(rows))


def test_best_epochs_and_gaps_by_hand(results):
    table = convergence(results, "warm").set_index("system")
    # Best first; the others have no best epoch.
    assert list(table.index) == ["simplex_tuned", "bpr", "ngcf", "simplex", "ngcf_tuned", "neumf"]
    assert table.loc["ngcf", ["title", "seeds", "epochs", "best_epoch", "rising"]].tolist() == ["NGCF", 3, 180, 150, 2]
    assert table.loc[["bpr", "ngcf"], "gap"].tolist() == pytest.approx([-0.04, -0.1])
    assert table.loc[["simplex", "simplex_tuned"], "other_values"].tolist() == pytest.approx([0.08, -0.08])
    assert table.loc["neumf", "more_epochs"] == pytest.approx(0.15)
    assert table.loc["bpr", ["other_values", "more_epochs", "better_gap"]].isna().all()
    # Rows with a fault are left out, and without item neighbours there is no gap.
    families = {"ngcf": "reference_bug", "bpr": "oracle", "neumf": "graph"}
    found = convergence(replace(results, families=families), "warm")
    assert sorted(found["system"]) == ["neumf", "ngcf_tuned", "simplex", "simplex_tuned"]
    alone = replace(results, metrics=results.metrics[results.metrics["system"] != "item_knn"])
    assert convergence(alone, "warm")["gap"].isna().all()
    assert convergence(alone, "cold").empty


def test_the_best_run_of_the_same_method_is_found_faults_aside(results, monkeypatch):
    # SimpleX is a variant of NGCF here, and its tuned twin first one with a fault.
    above = {"ngcf_tuned": ["ngcf"], "simplex": ["ngcf"], "simplex_tuned": ["simplex", "ngcf"]}
    monkeypatch.setattr("study.analysis.report.results.parents", lambda name: above.get(name, []))
    changed = {"applies": {name: ["warm"] for name in RECALL}, "families": {"simplex_tuned": "reference_bug"}}
    better = convergence(replace(results, **changed), "warm").set_index("system")["better"].to_dict()
    assert better == {"bpr": "", "neumf": "", "ngcf": "", "simplex": "", "ngcf_tuned": "NGCF"}
    changed["families"] = {}
    found = convergence(replace(results, **changed), "warm").set_index("system")
    others = {"bpr": "", "neumf": "", "simplex_tuned": ""}
    assert found["better"].to_dict() == others | dict.fromkeys(("ngcf", "simplex", "ngcf_tuned"), "SIMPLEX_TUNED")
    assert found.loc["ngcf", "better_gap"] == pytest.approx(-0.02)
