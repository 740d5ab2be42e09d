"""When systems were at their best on validation, on hand-made records."""

from dataclasses import replace

import pandas as pd
import pytest

from study.analysis.overall.convergence import convergence, cut_short, far_behind, most_epochs, near_trivial
from tests.analysis.report.helpers import means, results_of
from tests.rows import put_row

RECALL = {"item_knn": 0.6, "ngcf": 0.5, "ngcf_tuned": 0.45, "bpr": 0.56, "neumf": 0.4}
RECALL |= {"simplex": 0.5, "simplex_tuned": 0.58, "ease": 0.3}
# System -> (epochs, best epoch, validation NDCG@10) of each seed; CAP epochs are allowed.
CAP = 200
REPORT = ("epochs", "best_epoch", "validation_ndcg", "seconds_trained")
REPORTS = {
    "ngcf": [(200, 180, 0.4), (200, 150, 0.6), (160, 110, 0.5)],  # the cap ended two of three
    "ngcf_tuned": [(120, 70, 0.5)],
    "bpr": [(200, 200, 0.5)],
    "neumf": [(100, 50, 0.5), (200, 140, 0.7)],  # the cap ended half of them, not most
    "simplex": [(200, 200, 0.3)],
    "simplex_tuned": [(200, 200, 0.5)],
    "ease": [(1, 1, None)],  # looks at nothing
}
SIZES = {"_target_": "baselines.settings.of_profile", "profile": "laptop", "smoke": 2, "laptop": CAP, "full": 9}
PLACES = {"simplex": {"training": {"epochs": CAP}}, "ngcf": {"schedule": {"epochs": SIZES, "patience": 5}}}


def made(name, seeds):
    """A record whose settings state the cap in one of the places where systems have it."""
    return {"seeds": seeds or [{}], "config": {"system": {"model": PLACES.get(name, {"epochs": CAP})}}}


@pytest.fixture
def results(new_root):
    for name in RECALL:
        seeds = [
            {"seed": seed, "report": dict(zip(REPORT, (*report, 10.0 * seed), strict=True))}
            for seed, report in enumerate(REPORTS.get(name, []), start=1)
        ]
        put_row("synthetic", "warm", name, record=made(name, seeds))
    rows = [("warm", name, metric, value) for name, value in RECALL.items() for metric in ("recall", "ndcg")]
    return results_of("synthetic", ["warm"], RECALL, **means(rows))


@pytest.mark.parametrize(
    ("model", "cap"),
    [
        ({"epochs": 7}, 7),
        ({"training": {"epochs": SIZES}}, CAP),
        ({"schedule": {"epochs": {**SIZES, "profile": "full"}}}, 9),
        ({"k": [5], "base": {"schedule": {"epochs": SIZES}}}, CAP),  # a transfer
        ({"k": 5, "training": None}, float("inf")),
    ],
)
def test_the_cap_is_found_where_settings_state_it(model, cap):
    assert most_epochs(model) == cap


def test_of_two_stages_the_last_ones_cap_counts_and_each_may_be_the_one_that_was_cut_short():
    model = {"first": {"epochs": 30, "evaluations": 5}, "second": {"epochs": {**SIZES, "laptop": 10}, "evaluations": 5}}
    assert most_epochs(model) == 10
    reports = pd.DataFrame({"epochs": [10, 10], "best_epoch": [8, 10]})
    assert cut_short(model, reports).tolist() == [False, True]
    assert cut_short({"epochs": 10}, reports).tolist() == [True, True]
    risen, best_before = {"epochs": 30, "best_epoch": 30}, {"epochs": 30, "best_epoch": 24}
    blind = {"epochs": 300, "seconds_trained": 1.0}
    reports = pd.DataFrame({"epochs": 10, "best_epoch": [8, 8, 10, 8], "quantiser": [blind] * 4})
    reports["experts"] = [risen, best_before, best_before, None]
    assert cut_short(model, reports).tolist() == [True, False, True, False]


def test_best_looks_by_hand(results):
    table = convergence(results, "warm").set_index("system")
    # Best first; the others have no best epoch.
    assert list(table.index) == ["simplex_tuned", "bpr", "ngcf", "simplex", "ngcf_tuned", "neumf"]
    means_of_ngcf = table.loc["ngcf", ["epochs", "best_epoch", "seconds_trained"]].tolist()
    assert means_of_ngcf == pytest.approx([560 / 3, 440 / 3, 20])
    capped = {"simplex_tuned": 1, "bpr": 1, "ngcf": 2, "simplex": 1, "ngcf_tuned": 0, "neumf": 1}
    assert table["capped"].to_dict() == capped
    assert table.loc[["ngcf", "neumf", "bpr"], "seeds"].tolist() == [3, 2, 1]
    assert table.loc["neumf", "validation_ndcg"] == pytest.approx(0.6)
    assert table.loc[["bpr", "ngcf"], "gap"].tolist() == pytest.approx([-0.04, -0.1])
    # Rows with a fault are left out.
    families = {"ngcf": "reference_bug", "bpr": "oracle", "neumf": "graph"}
    found = convergence(replace(results, families=families), "warm")
    assert sorted(found["system"]) == ["neumf", "ngcf_tuned", "simplex", "simplex_tuned"]


def test_who_stays_far_below_item_neighbours_is_listed_with_what_its_and_longer_runs_tell(results):
    rows = far_behind(convergence(results, "warm")).set_index("title")
    assert rows.index.tolist() == ["NGCF", "SIMPLEX", "NGCF_TUNED", "NEUMF"]
    assert rows["gap"].tolist() == pytest.approx([-0.1, -0.1, -0.15, -0.2])
    assert rows.loc["SIMPLEX", "other_values"] == pytest.approx(0.08)
    assert rows["by_values"].to_dict() == {"NGCF": False, "SIMPLEX": True, "NGCF_TUNED": True, "NEUMF": False}
    assert pd.isna(rows.loc["NEUMF", ["other_values", "more_epochs"]]).all()
    # Without item neighbours nobody is judged.
    alone = replace(results, metrics=results.metrics[results.metrics["system"] != "item_knn"])
    assert len(convergence(alone, "warm")) == 6
    assert far_behind(convergence(alone, "warm")).empty
    assert convergence(alone, "cold").empty
    # A longer training is set beside its row.
    rows = [("a", "A", -0.3), ("a_long", "A long", -0.1), ("b", "B", -0.3), ("b_tuned", "B (tuned)", -0.21)]
    table = pd.DataFrame(rows, columns=["system", "title", "gap"]).assign(seeds=3, capped=0, earlier_better=0)
    found = far_behind(table).set_index("title")
    assert found.loc["A", "more_epochs"] == pytest.approx(0.2)
    assert found.loc["B", "other_values"] == pytest.approx(0.09)
    assert not found.loc["B", "by_values"]  # less than a third of the gap


def test_the_best_run_of_the_same_method_is_found_faults_aside(results, monkeypatch):
    # SimpleX is a variant of NGCF here, and its tuned twin first one with a fault.
    above = {"ngcf_tuned": ["ngcf"], "simplex": ["ngcf"], "simplex_tuned": ["simplex", "ngcf"]}
    monkeypatch.setattr("study.analysis.report.results.parents", lambda name: above.get(name, []))
    changed = {"applies": {name: ["warm"] for name in RECALL}, "families": {"simplex_tuned": "reference_bug"}}
    found = convergence(replace(results, **changed), "warm")
    better = found.set_index("system")["better"].to_dict()
    assert better == {"bpr": "", "neumf": "", "ngcf": "", "simplex": "", "ngcf_tuned": "NGCF"}
    changed["families"] = {}
    found = convergence(replace(results, **changed), "warm")
    found, others = found.set_index("system"), {"bpr": "", "neumf": "", "simplex_tuned": ""}
    assert found["better"].to_dict() == others | dict.fromkeys(("ngcf", "simplex", "ngcf_tuned"), "SIMPLEX_TUNED")
    assert found.loc["ngcf", "better_gap"] == pytest.approx(-0.02)


def test_stages_are_counted_and_new_tasks_are_compared_with_the_transfer(results):
    last = {"epochs": 9, "best_epoch": 9, "validation_ndcg": 0.2, "seconds_trained": 1.0}
    first = [{"epochs": 5, "best_epoch": best, "validation_ndcg": value} for best, value in ((4, 0.3), (5, 0.1))]
    model = {"first": {"epochs": 5, "evaluations": 5}, "second": {"epochs": 9, "evaluations": 5}}
    seeds = [{"seed": seed, "report": last | {"experts": report}} for seed, report in enumerate(first)]
    put_row("synthetic", "cold", "two", record={"seeds": seeds, "config": {"system": {"model": model}}})
    put_row("synthetic", "cold", "item_knn_transfer", record=made("x", []))
    values = {"two": 0.1, "item_knn_transfer": 0.25}
    rows = [("cold", name, metric, value) for name, value in values.items() for metric in ("recall", "ndcg")]
    new = results_of("synthetic", ["cold"], values, **means(rows))
    table = convergence(new, "cold").set_index("system")
    assert table.index.tolist() == ["two"]
    assert table.loc["two", ["capped", "earlier_better", "annealed"]].tolist() == [2, 1, True]
    assert table.loc["two", "gap"] == pytest.approx(-0.15)


@pytest.mark.parametrize(("new_tasks", "named"), [(False, ["LOW"]), (True, ["TWIN", "LOW"])])
def test_who_comes_near_to_what_learns_nothing_is_listed(new_tasks, named):
    recall = {"good": 0.5, "low": 0.049, "twin": 0.05, "ruled": 0.01, "popularity": 0.01, "random": 0.0101}
    families = dict.fromkeys(recall, "published") | dict.fromkeys(("ruled", "popularity", "random"), "trivial")
    rows = [("p", name, metric, value) for name, value in recall.items() for metric in ("recall", "ndcg")]
    new = results_of("synthetic", ["p"], recall, families=families, **means(rows))
    found = near_trivial(new, "p", new_tasks=new_tasks)
    assert found["title"].tolist() == named
    assert found["times"].iloc[-1] == pytest.approx(0.049 / (0.0101 if new_tasks else 0.01))
    floor = "random" if new_tasks else "popularity"
    without = replace(new, metrics=new.metrics[new.metrics["system"] != floor])
    assert near_trivial(without, "p", new_tasks=new_tasks).empty
