"""Long fits, core hours, and rows that a protocol does not ask, on hand-made records."""

import pandas as pd
import pytest

from study import paths
from study.analysis.overall import compute_cost as effort
from study.analysis.report.results import Results
from study.evaluation.records import record
from study.files import write_json

# (protocol, system) -> seconds of fitting each seed; scoring takes 36 s each time.
SECONDS = {
    ("warm", "a"): [324, 684, 324],  # the mean hides the long one
    ("warm", "a_tuned"): [600, 600],
    ("cold", "a_transfer"): [3564],
    ("warm", "a_fault"): [684],
    ("warm", "b"): [324],
    ("warm", "other"): [7164],
}
ABOVE = {"a_tuned": ["a"], "a_fault": ["a"]}
FAMILIES = {
    "a": "published",
    "a_tuned": "published",
    "a_transfer": "hybrid",
    "a_fault": "fault",
    "b": "graph",
    "other": "graph",
}
SEARCHES = pd.DataFrame(
    {"system": ["a_tuned", "a_tuned", "other", "b_tuned"], "seconds": [1800.0, 1800.0, 720.0, None]}
)
PRINTED = {"A": "a", "B": "b", "C": "c"}


@pytest.fixture
def results(tmp_path, monkeypatch):
    monkeypatch.setenv("T2M_ROOT", str(tmp_path))
    for (protocol, system), seconds in SECONDS.items():
        seeds = [{"seed": seed, "seconds_fit": value, "seconds_score": 36} for seed, value in enumerate(seconds)]
        write_json(paths.results("synthetic") / "records" / protocol / f"{system}.json", record(seeds=seeds))
    # A record that no table holds yet.
    write_json(paths.results("synthetic") / "records" / "cold" / "b.json", record(seeds=[]))
    costs, nothing = pd.DataFrame(SECONDS.keys(), columns=["protocol", "system"]), pd.DataFrame()
    return Results(
        "synthetic",
        "Synthetic",
        ["cold", "warm"],
        {name: name.upper() for name in FAMILIES},
        FAMILIES,
        {name: ["warm"] for name in FAMILIES},
        [],
        nothing,
        nothing,
        nothing,
        costs,
    )


@pytest.fixture
def hours(results):
    return effort.effort(results, effort.fits(results), SEARCHES, PRINTED, builds_on=lambda name: ABOVE.get(name, []))


def test_every_seed_of_every_run_is_a_fit(results):
    fitted = effort.fits(results)
    assert len(fitted) == sum(map(len, SECONDS.values()))
    assert fitted.loc[fitted["system"] == "a", "seconds_fit"].tolist() == [324, 684, 324]
    assert set(fitted["seconds_score"]) == {36}


def test_a_long_seed_is_named_though_the_mean_is_short(results):
    fitted = effort.fits(results)
    assert effort.long_fits(fitted, "warm") == [
        "OTHER (119.4 min, one seed)",
        "A (11.4 min, mean of 3 seeds 7.4)",
        "A_FAULT (11.4 min, one seed)",
    ]
    assert effort.long_fits(fitted, "cold") == ["A_TRANSFER (59.4 min, one seed)"]
    assert effort.long_fits(fitted, "loo") == []


def test_core_hours_by_kind(hours):
    rows = hours.set_index("printed")
    assert rows.index.tolist() == ["A", "B"]  # nothing of C has run
    assert rows.loc["A", list(effort.KINDS)].tolist() == pytest.approx([0.4, 1272 / 3600, 1.0, 1.2])
    assert rows.loc["A", "total"] == pytest.approx(0.4 + 1272 / 3600 + 1.0 + 1.2)
    assert rows.loc["B", [*effort.KINDS, "total"]].tolist() == pytest.approx([0.1, 0, 0, 0, 0.1])


def test_the_published_rows_are_summed_apart(hours):
    table = effort.summed(hours)
    assert table["printed"].tolist() == ["A", "B", "sum of the 1 of family published", "sum of all 2"]
    totals = table["total"].tolist()
    assert totals[2:] == pytest.approx([totals[0], totals[0] + totals[1]])
    assert effort.summed(hours.iloc[:0]).empty


def test_hours_are_numbers_where_no_row_has_run(results):
    none = effort.effort(results, effort.fits(results), SEARCHES, {"C": "c"}, builds_on=lambda name: [])
    assert none.empty
    assert set(none[[*effort.KINDS, "total"]].dtypes.map(str)) == {"float64"}


def test_the_sentence_names_the_sums(results, hours):
    said = effort.said(hours, effort.fits(results), SEARCHES)
    # 9 fits: 14,268 s of fitting and 9 times 36 s of scoring.
    assert said == (
        "The 1 baselines of family published (A) took 3.0 core hours: own settings 0.4, tuned 0.4, searches 1.0, side "
        "rows 1.2. All runs of the data set took 4.1 core hours and all searches 1.2."
    )
    assert effort.said(hours.iloc[1:], effort.fits(results), SEARCHES).startswith("All runs of the data set")


def test_a_row_whose_method_is_for_a_protocol_is_not_asked_there(results, monkeypatch):
    above = {"tiger_list": ["tiger"], "tiger_tuned": ["tiger"], "tiger_tuned_long": ["tiger_tuned", "tiger"]}
    applies = {
        "tiger": ["warm", "loo"],
        "tiger_tuned": ["warm", "loo"],
        "tiger_list": ["warm"],
        "tiger_tuned_long": ["warm"],
        "tiger_transfer": ["cold"],
        "tfidf": ["cold"],
    }
    monkeypatch.setattr(
        "study.analysis.report.results.lineage",
        lambda name: [name, name.removesuffix("_transfer"), *above.get(name, [])],
    )
    monkeypatch.setattr(Results, "systems", lambda self, protocol: ["tiger"] if protocol == "loo" else [])
    plan = Results(**{**vars(results), "applies": applies, "planned": list(applies)})
    assert plan.not_asked("loo") == ["tiger_list", "tiger_tuned_long", "tiger_transfer"]
    assert plan.absent("loo") == (["tiger_tuned"], ["tfidf"])
    # Under cold the method itself cannot rank, so neither can its variants.
    assert plan.not_asked("cold") == []
    assert plan.absent("cold") == (
        ["tiger_transfer", "tfidf"],
        ["tiger", "tiger_tuned", "tiger_list", "tiger_tuned_long"],
    )
