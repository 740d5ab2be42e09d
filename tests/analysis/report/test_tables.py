"""Tables for people: cells, order, and characters that mean something to Markdown and LaTeX."""

import numpy as np
import pandas as pd
import pytest

from study.analysis.report import tables
from study.analysis.report.runs import lengths


def overall(*rows, protocol="cold", metric="ndcg"):
    return pd.DataFrame(rows, columns=["system", "mean", "sd"]).assign(protocol=protocol, metric=metric, k=10)


def test_comparison_keeps_one_protocol_puts_the_best_first_and_says_what_was_not_run():
    cold, warm = overall(("a", 0.1, 0.01), ("b", 0.2, np.nan)), overall(("c", 0.9, 0.1), protocol="warm")
    rows = pd.concat([cold, warm])
    table = tables.comparison(rows, "cold", {"a": "System A"}, ("ndcg@10",))
    assert table.to_numpy().tolist() == [["b", "0.2000"], ["System A", "0.1000 ± 0.0100"]]
    # A system that was not run has words and no number.
    rows = pd.concat([overall(("a", 0.5, 0.1), metric="recall"), overall(("a", 0.25, 0.1))])
    table = tables.comparison(rows, "cold", {"b": "Model B"}, ("recall@10", "ndcg@10"), not_run=["b"])
    assert table.to_numpy().tolist() == [["a", "0.5000 ± 0.1000", "0.2500 ± 0.1000"], ["Model B", "not run", ""]]


def test_markdown_and_latex_escape_what_they_read_and_latex_has_emphasis_and_arrows_of_its_own():
    text = tables.markdown(pd.DataFrame({"system": ["a|b"], "value": [1]}))
    assert text.splitlines() == ["| system | value |", "| --- | ---: |", "| a\\|b | 1 |"]
    rows = {"system": ["a_b & 5 %", "a * b * c"], "x": ["1 ± 2", "**0.5 ± 0.1** ↑"], "y": ["", "*0.4* ↓"]}
    text = tables.latex(pd.DataFrame(rows), "caption")
    for part in ("a\\_b \\& 5 \\%", "1 $\\pm$ 2", "\\toprule", "a * b * c"):
        assert part in text
    assert "\\textbf{0.5 $\\pm$ 0.1} $\\uparrow$" in text
    assert "\\underline{0.4} $\\downarrow$" in text


def test_best_and_second_best_are_told_by_what_is_printed_and_oracles_take_no_part():
    several_seeds = [("a", 0.50001, 0.01), ("b", 0.50002, 0.01)]
    rows = overall(("oracle", 0.9, np.nan), *several_seeds, ("c", 0.3, np.nan), ("d", 0.2, np.nan))
    marks = {("c", "ndcg@10"): tables.BELOW, ("d", "recall@10"): tables.BELOW}
    table = tables.comparison(rows, "cold", {}, ("ndcg@10",), unranked=["oracle"], marks=marks, not_run=["e"])
    printed = dict.fromkeys(("a", "b"), "**0.5000 ± 0.0100**") | {"oracle": "0.9000", "c": "*0.3000* ↓", "d": "0.2000"}
    printed |= {"e": "not run"}
    assert dict(zip(table["system"], table["ndcg@10"], strict=True)) == printed
    assert list(table["system"])[-1] == "e"


def test_seconds_stand_beside_the_rows_that_have_a_run_under_the_protocol():
    rows = overall(("a", 0.5, np.nan))
    columns = ["protocol", "system", "seconds_fit", "seconds_score"]
    costs = pd.DataFrame([("cold", "a", 1234.5, 0.2894), ("warm", "b", 1.0, 1.0)], columns=columns)
    table = tables.comparison(rows, "cold", {"a": "A"}, ("ndcg@10",), not_run=["b"], costs=costs)
    assert table.columns[-3:].tolist() == ["parameters (M)", "training (s)", "scoring (s)"]
    assert table.iloc[:, -3:].to_numpy().tolist() == [["", "1,234", "0.289"], ["", "", ""]]
    costs = costs.assign(parameters=1_198_072, seconds_score=np.nan)
    table = tables.comparison(rows, "cold", {}, ("ndcg@10",), costs=costs)
    assert table.iloc[:, -3:].to_numpy().tolist() == [["1.20", "1,234", ""]]


def test_titles_say_where_there_is_one_seed_and_where_most_seeds_were_best_at_the_end():
    rows = [("one", 1, np.nan), ("both", 1, 1), ("most", 3, 2), ("few", 3, 1), ("none", 3, np.nan)]
    costs = pd.DataFrame(rows, columns=["system", "seeds", "rising"]).assign(protocol="cold")
    costs.loc[len(costs)] = ["few", 1, 1, "warm"]
    titles = {name: name.upper() for name in costs["system"]}
    said = {"one": "ONE (1 seed)", "both": "BOTH (1 seed, still rising)", "most": "MOST (still rising)"}
    assert tables.remarked(titles, costs, "cold") == titles | said
    sizes = costs.assign(parameters=np.where(costs["system"] == "both", np.nan, 893_000))
    said = {"one": "ONE\n(1 seed)", "both": "BOTH\n(1 seed, still rising)"}
    said["most"] = "MOST\n(still rising, 0.89 M parameters)"
    assert tables.remarked(titles, sizes, "cold", sized=True) == titles | said


def test_the_best_epoch_of_any_stage_may_be_the_last_one():
    stage = {"epochs": 30, "best_epoch": 30}
    reports = [{"epochs": 15, "best_epoch": 12, "experts": stage}, {"epochs": 15, "best_epoch": 9, "quantiser": {}}]
    assert lengths(reports) == {"epochs": 15, "best_epoch": 10.5, "rising": 1}
    assert lengths([{"epochs": 5, "best_epoch": 5, "experts": stage | {"best_epoch": 3}}])["rising"] == 1
    assert np.isnan(list(lengths([{"epochs": 5}]).values())).all()


DURATIONS = [(0.0, "0"), (0.289, "0.289"), (73.84, "73.8"), (99.96, "100"), (100, "100"), (23456.7, "23,457")]


@pytest.mark.parametrize(("value", "text"), DURATIONS)
def test_durations_have_three_digits(value, text):
    assert tables.duration(value) == text
