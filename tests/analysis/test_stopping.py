"""When systems were at their best on validation, on hand-made records."""

import pandas as pd
import pytest

from study import paths
from study.analysis.results import Results
from study.analysis.stopping import stopping, verdicts
from study.evaluation.records import record
from study.files import write_json

RECALL = {"item_knn": 0.6, "ngcf": 0.5, "bpr": 0.56, "neumf": 0.4, "ease": 0.3}
# System -> (epochs, best epoch, validation NDCG@10) of each seed.
REPORTS = {
    "ngcf": [(200, 200, 0.4), (200, 180, 0.6)],  # one best look in the last tenth; 180 is not after 90 % of 200
    "bpr": [(1000, 1000, 0.5)],
    "neumf": [(100, 50, 0.5), (80, 40, 0.7)],
    "ease": [(1, 1, None)],  # looks at nothing
}


@pytest.fixture
def results(tmp_path, monkeypatch):
    monkeypatch.setenv("T2M_ROOT", str(tmp_path))
    for name in RECALL:
        seeds = [
            {"seed": seed, "report": {"epochs": epochs, "best_epoch": best, "validation_ndcg": ndcg,
                                      "seconds_trained": 10.0 * seed}}
            for seed, (epochs, best, ndcg) in enumerate(REPORTS.get(name, []), start=1)
        ]  # fmt: skip
        write_json(paths.results("synthetic") / "records" / "warm" / f"{name}.json", record(seeds=seeds or [{}]))
    rows = [("warm", name, metric, 10, mean) for name, mean in RECALL.items() for metric in ("recall", "ndcg")]
    overall = pd.DataFrame(rows, columns=["protocol", "system", "metric", "k", "mean"])
    nothing = pd.DataFrame()
    return Results("synthetic", "Synthetic", ["warm"], {name: name.upper() for name in RECALL}, {}, {}, [],
                   overall.rename(columns={"mean": "value"}), overall, nothing, nothing)  # fmt: skip


def test_best_looks_by_hand(results):
    table = stopping(results, "warm").set_index("system")
    assert list(table.index) == ["bpr", "ngcf", "neumf"]  # best first; the others have no best epoch
    assert table.loc["ngcf", ["epochs", "best_epoch", "seconds_trained"]].tolist() == [200, 190, 15]
    assert table["late"].to_dict() == {"bpr": 1, "ngcf": 1, "neumf": 0}
    assert table["seeds"].to_dict() == {"bpr": 1, "ngcf": 2, "neumf": 2}
    assert table["validation_ndcg"].to_dict() == pytest.approx({"bpr": 0.5, "ngcf": 0.5, "neumf": 0.6})
    assert table["gap"].to_dict() == pytest.approx({"bpr": -0.04, "ngcf": -0.1, "neumf": -0.2})


def test_who_stays_far_under_item_neighbours_is_named_with_the_reason(results):
    ngcf, neumf = verdicts(stopping(results, "warm"))
    assert ngcf.startswith("NGCF stays 0.100 under recall@10 of item neighbours and is under-trained: in 1 of 2 seeds")
    assert neumf.startswith("NEUMF stays 0.200 under")
    assert "not for lack of epochs" in neumf


def test_without_item_neighbours_nobody_is_judged(results):
    metrics = results.metrics[results.metrics["system"] != "item_knn"]
    alone = Results(**{**vars(results), "metrics": metrics})
    assert len(stopping(alone, "warm")) == 3
    assert verdicts(stopping(alone, "warm")) == []
    assert stopping(alone, "cold").empty
