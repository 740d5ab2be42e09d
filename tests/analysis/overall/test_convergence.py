"""When systems were at their best on validation, on hand-made records."""

import pandas as pd
import pytest

from study import paths
from study.analysis.overall.convergence import cut_short, most_epochs, near_floor, stopping, verdicts
from study.analysis.report.results import Results
from study.evaluation.records import record
from study.files import write_json

RECALL = {
    "item_knn": 0.6,
    "ngcf": 0.5,
    "ngcf_tuned": 0.45,
    "bpr": 0.56,
    "neumf": 0.4,
    "simplex": 0.5,
    "simplex_tuned": 0.58,
    "ease": 0.3,
}
# System -> (epochs, best epoch, validation NDCG@10) of each seed; CAP epochs are allowed.
CAP = 200
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
    return record(seeds=seeds or [{}], config={"system": {"model": PLACES.get(name, {"epochs": CAP})}})


@pytest.fixture
def results(tmp_path, monkeypatch):
    monkeypatch.setenv("T2M_ROOT", str(tmp_path))
    for name in RECALL:
        seeds = [
            {
                "seed": seed,
                "report": {
                    "epochs": epochs,
                    "best_epoch": best,
                    "validation_ndcg": ndcg,
                    "seconds_trained": 10.0 * seed,
                },
            }
            for seed, (epochs, best, ndcg) in enumerate(REPORTS.get(name, []), start=1)
        ]
        write_json(paths.results("synthetic") / "records" / "warm" / f"{name}.json", made(name, seeds))
    rows = [("warm", name, metric, 10, mean) for name, mean in RECALL.items() for metric in ("recall", "ndcg")]
    overall = pd.DataFrame(rows, columns=["protocol", "system", "metric", "k", "mean"])
    nothing = pd.DataFrame()
    return Results(
        "synthetic",
        "Synthetic",
        ["warm"],
        {name: name.upper() for name in RECALL},
        {},
        {},
        [],
        overall.rename(columns={"mean": "value"}),
        overall,
        nothing,
        nothing,
    )


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


def test_of_two_stages_the_last_ones_cap_counts_and_its_last_look():
    model = {"first": {"epochs": 30, "looks": 5}, "second": {"epochs": {**SIZES, "laptop": 10}, "looks": 5}}
    assert most_epochs(model) == 10
    reports = pd.DataFrame({"epochs": [10, 10], "best_epoch": [8, 10]})
    assert cut_short(model, reports).tolist() == [False, True]
    assert cut_short({"epochs": 10}, reports).tolist() == [True, True]


def test_a_stage_before_the_last_may_be_the_one_that_was_cut_short():
    model = {"first": {"epochs": 30, "looks": 5}, "second": {"epochs": 10, "looks": 5}}
    risen, best_before, blind = (
        {"epochs": 30, "best_epoch": 30},
        {"epochs": 30, "best_epoch": 24},
        {"epochs": 300, "seconds_trained": 1.0},
    )
    reports = pd.DataFrame(
        {
            "epochs": 10,
            "best_epoch": [8, 8, 10, 8],
            "experts": [risen, best_before, best_before, None],
            "quantiser": [blind, blind, blind, blind],
        }
    )
    assert cut_short(model, reports).tolist() == [True, False, True, False]


def test_best_looks_by_hand(results):
    table = stopping(results, "warm").set_index("system")
    # Best first; the others have no best epoch.
    assert list(table.index) == ["simplex_tuned", "bpr", "ngcf", "simplex", "ngcf_tuned", "neumf"]
    assert table.loc["ngcf", ["epochs", "best_epoch", "seconds_trained"]].tolist() == pytest.approx(
        [560 / 3, 440 / 3, 20]
    )
    capped = {"simplex_tuned": 1, "bpr": 1, "ngcf": 2, "simplex": 1, "ngcf_tuned": 0, "neumf": 1}
    assert table["capped"].to_dict() == capped
    assert table.loc[["ngcf", "neumf", "bpr"], "seeds"].tolist() == [3, 2, 1]
    assert table.loc["neumf", "validation_ndcg"] == pytest.approx(0.6)
    assert table.loc[["bpr", "ngcf"], "gap"].tolist() == pytest.approx([-0.04, -0.1])


def test_rows_with_a_fault_are_left_out(results):
    families = {"ngcf": "fault", "bpr": "ceiling", "neumf": "graph"}
    found = stopping(Results(**{**vars(results), "families": families}), "warm")
    assert sorted(found["system"]) == ["neumf", "ngcf_tuned", "simplex", "simplex_tuned"]


def test_who_stays_far_under_item_neighbours_is_named_with_the_reason(results):
    said = {sentence.split(" stays ")[0]: sentence for sentence in verdicts(stopping(results, "warm"))}
    assert list(said) == ["NGCF", "SIMPLEX", "NGCF_TUNED", "NEUMF"]
    assert said["NGCF"] == (
        "NGCF stays 0.100 under recall@10 of item neighbours: under-trained: the cap of epochs ended training in 2 of "
        "3 seeds."
    )
    assert "wrong by its settings (tuned, it reaches recall@10 0.080 higher); under-trained" in said["SIMPLEX"]
    assert said["NGCF_TUNED"].endswith("wrong by the chosen values (its own settings reach recall@10 0.050 higher).")
    assert "not for lack of epochs (the cap of epochs ended training in 1 of 2 seeds)" in said["NEUMF"]


ROW = {
    "system": "a",
    "title": "A",
    "epochs": 9.0,
    "best_epoch": 9.0,
    "capped": 2,
    "annealed": True,
    "seeds": 3,
    "earlier_better": 0,
    "validation_ndcg": 0.1,
    "seconds_trained": 1.0,
    "gap": -0.3,
    "better": "",
    "better_gap": float("nan"),
}


def test_a_rate_that_falls_to_nothing_leaves_it_open_until_a_longer_training_has_run():
    (said,) = verdicts(pd.DataFrame([ROW]))
    assert said.endswith(
        "perhaps under-trained (a last look was the best one in 2 of 3 seeds, as is usual where the rate falls to 0)."
    )
    longer = ROW | {"system": "a_long", "title": "A long", "gap": -0.1}
    assert verdicts(pd.DataFrame([ROW, longer]))[0].endswith("with more epochs recall@10 is 0.200 higher.")
    assert verdicts(pd.DataFrame([ROW, longer | {"gap": -0.4}]))[0].endswith(
        "with more epochs recall@10 is 0.100 lower."
    )


TUNED = {"system": "a_tuned", "title": "A (tuned)", "capped": 0}


@pytest.mark.parametrize(
    ("gap", "reason"),
    [
        (-0.19, "wrong by its settings (tuned, it reaches recall@10 0.110 higher)."),
        (
            -0.21,
            "not for lack of epochs (the cap of epochs ended training in 0 of 3 seeds); its settings explain 0.090 "
            "of it (tuned, it reaches that much more).",
        ),
    ],
)
def test_other_values_are_the_reason_where_they_close_a_third_of_the_gap(gap, reason):
    own = ROW | {"capped": 0, "better": "A (tuned)", "better_gap": gap}
    said, _ = verdicts(pd.DataFrame([own, ROW | TUNED | {"gap": gap}]))
    assert said == f"A stays 0.300 under recall@10 of item neighbours: {reason}"


def test_the_chosen_values_may_explain_a_part_alone():
    own, tuned = ROW | {"gap": -0.25}, ROW | TUNED | {"better": "A", "better_gap": -0.25}
    said = verdicts(pd.DataFrame([own, tuned]))[1]
    assert said.endswith("; the chosen values explain 0.050 of it (its own settings reach that much more).")


def test_a_variant_that_does_better_is_named_and_no_better_values_are_denied():
    better = {"better": "A (two views)", "better_gap": -0.296}
    (said,) = verdicts(pd.DataFrame([ROW | {"capped": 0} | better]))
    assert said == (
        "A stays 0.300 under recall@10 of item neighbours: not for lack of epochs (the cap of epochs ended training in "
        "0 of 3 seeds); A (two views) reaches recall@10 0.004 higher."
    )
    (alone,) = verdicts(pd.DataFrame([ROW | {"capped": 0}]))
    assert alone.endswith("0 of 3 seeds), and no better values are known.")
    longer = ROW | {"system": "a_long", "title": "A long", "gap": -0.1}
    said = verdicts(pd.DataFrame([ROW | {"better": "A long", "better_gap": -0.1}, longer]))[0]
    assert said.endswith(": with more epochs recall@10 is 0.200 higher.")  # named once


def test_the_best_run_of_the_same_method_is_found_faults_aside(results):
    # SimpleX is a variant of NGCF here, and its tuned twin first one with a fault.
    above = {"ngcf_tuned": ["ngcf"], "simplex": ["ngcf"], "simplex_tuned": ["simplex", "ngcf"]}
    changed = {"applies": {name: ["warm"] for name in RECALL}, "families": {"simplex_tuned": "fault"}}
    found = stopping(Results(**{**vars(results), **changed}), "warm", builds_on=lambda name: above.get(name, []))
    better = found.set_index("system")["better"].to_dict()
    assert better == {"bpr": "", "neumf": "", "ngcf": "", "simplex": "", "ngcf_tuned": "NGCF"}
    changed["families"] = {}
    found = stopping(Results(**{**vars(results), **changed}), "warm", builds_on=lambda name: above.get(name, []))
    found = found.set_index("system")
    assert found["better"].to_dict() == {
        "bpr": "",
        "neumf": "",
        "ngcf": "SIMPLEX_TUNED",
        "simplex": "SIMPLEX_TUNED",
        "ngcf_tuned": "SIMPLEX_TUNED",
        "simplex_tuned": "",
    }
    assert found.loc["ngcf", "better_gap"] == pytest.approx(-0.02)


def test_a_first_stage_that_was_better_is_told():
    (said,) = verdicts(pd.DataFrame([ROW | {"capped": 0, "earlier_better": 2}]))
    assert said.endswith("item neighbours: on validation its first stage was better than its last in 2 of 3 seeds.")
    assert "first stage" not in verdicts(pd.DataFrame([ROW | {"earlier_better": 1}]))[0]


def test_stages_are_counted_and_new_tasks_are_compared_with_the_transfer(results):
    reports = [
        {
            "epochs": 9,
            "best_epoch": 9,
            "validation_ndcg": 0.2,
            "seconds_trained": 1.0,
            "experts": {"epochs": 5, "best_epoch": best, "validation_ndcg": value},
        }
        for best, value in ((4, 0.3), (5, 0.1))
    ]
    made_of = {"first": {"epochs": 5, "looks": 5}, "second": {"epochs": 9, "looks": 5}}
    seeds = [{"seed": seed, "report": report} for seed, report in enumerate(reports)]
    write_json(
        paths.results("synthetic") / "records" / "cold" / "two.json",
        record(seeds=seeds, config={"system": {"model": made_of}}),
    )
    write_json(paths.results("synthetic") / "records" / "cold" / "item_knn_transfer.json", made("x", []))
    rows = pd.DataFrame(
        [
            ("cold", name, metric, 10, value)
            for name, value in (("two", 0.1), ("item_knn_transfer", 0.25))
            for metric in ("recall", "ndcg")
        ],
        columns=["protocol", "system", "metric", "k", "value"],
    )
    titles = {"two": "Two", "item_knn_transfer": "Transfer"}
    new = Results(
        **{
            **vars(results),
            "metrics": rows,
            "titles": titles,
            "protocols": ["cold"],
            "overall": rows.rename(columns={"value": "mean"}),
        }
    )
    table = stopping(new, "cold").set_index("system")
    assert table.index.tolist() == ["two"]
    assert table.loc["two", ["capped", "earlier_better", "annealed"]].tolist() == [2, 1, True]
    assert table.loc["two", "gap"] == pytest.approx(-0.15)


def test_without_item_neighbours_nobody_is_judged(results):
    metrics = results.metrics[results.metrics["system"] != "item_knn"]
    alone = Results(**{**vars(results), "metrics": metrics})
    assert len(stopping(alone, "warm")) == 6
    assert verdicts(stopping(alone, "warm")) == []
    assert stopping(alone, "cold").empty


@pytest.mark.parametrize(("new_tasks", "named"), [(False, ["Low"]), (True, ["Chance's twin", "Low"])])
def test_who_comes_near_to_what_learns_nothing_is_named(results, new_tasks, named):
    recall = {"good": 0.5, "low": 0.049, "twin": 0.05, "ruled": 0.01, "popularity": 0.01, "random": 0.0101}
    values = [("p", name, metric, 10, value) for name, value in recall.items() for metric in ("recall", "ndcg")]
    rows = pd.DataFrame(values, columns=["protocol", "system", "metric", "k", "value"])
    families = dict.fromkeys(recall, "published") | dict.fromkeys(("ruled", "popularity", "random"), "floor")
    titles = {**{name: name.title() for name in recall}, "twin": "Chance's twin"}
    new = Results(
        **{
            **vars(results),
            "metrics": rows,
            "titles": titles,
            "families": families,
            "overall": rows.rename(columns={"value": "mean"}),
        }
    )
    said = near_floor(new, "p", new_tasks=new_tasks)
    assert [sentence.split(" has ")[0] for sentence in said] == named
    if not new_tasks:
        assert said == [
            "Low has 4.9 times the recall@10 of Popularity (0.0100), less than the 5 times that a method should reach."
        ]
    without = Results(**{**vars(new), "metrics": rows[rows["system"] != ("random" if new_tasks else "popularity")]})
    assert near_floor(without, "p", new_tasks=new_tasks) == []
