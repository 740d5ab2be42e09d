"""What the report stage's tables say: families of tests, intervals, reading them again, cells for people, the paper."""

import shutil

import numpy as np
import pandas as pd
import pytest
from statsmodels.stats.multitest import multipletests

from study.analysis.audit import verdicts
from study.analysis.report import paper, tables
from study.analysis.report import runs as reported
from study.analysis.report.results import Results
from study.analysis.report.runs import Statistics, compare_with_reference, declared_families, read_statistics
from study.base import paths
from study.base.errors import StudyError
from study.base.files import write_csv
from study.config.compose import choices
from study.evaluation import per_task
from study.evaluation.metrics import PAPER_METRICS
from study.evaluation.statistics import bootstrap_interval
from tests.analysis.toys import seeded
from tests.rows import put_row
from tests.tiny_study import REPOSITORY


def frames(names):
    """Per-task tables of 40 tasks, each system a little better than the one before."""
    rng, found = np.random.default_rng(0), {}
    base = rng.uniform(0.1, 0.6, 40)
    for place, name in enumerate(names):
        values = {metric: base + 0.01 * place + rng.normal(0, 0.05, 40) for metric in ("recall@10", "ndcg@10")}
        found[name] = per_task.table(range(40), 0, pd.DataFrame(values).clip(0, 1))
    return found


def test_every_family_is_corrected_by_itself_and_a_further_system_changes_no_p_value_of_another():
    families, cells = declared_families("cold", []), ["system", "metric"]
    ran = ["t2mrec", "bm25", "own", "lc_rec", "t2mrec_wo_cl", "popularity_theme"]
    table = compare_with_reference(frames(ran), "cold", [])
    assert table["system"].tolist() == [name for name in ran[1:] for _ in range(2)]  # in the order given
    for family, members in families.items():
        rows = table[table["system"].isin(members)]
        missing = [1.0] * (2 * len(members) - len(rows))
        for test in ("wilcoxon_p", "randomisation_p"):
            expected = multipletests([*rows[test], *missing], method="holm")[1][: len(rows)]
            np.testing.assert_allclose(rows[f"{test}_holm"], expected, err_msg=family)
    assert table.loc[table["system"] == "own", ["wilcoxon_p_holm", "randomisation_p_holm"]].isna().all(axis=None)
    # The new ones come last, so that the others keep their values.
    after = compare_with_reference(frames([*ran, "further", "own_tuned"]), "cold", [])
    pd.testing.assert_frame_equal(after.set_index(cells).loc[table.set_index(cells).index], table.set_index(cells))


def test_a_family_names_systems_of_conf_each_once_and_the_papers_eleven_stand_for_known_and_for_new_tasks():
    assert {len(declared_families(protocol, [])["paper"]) for protocol in ("cold", "warm", "loo")} == {11}
    declared = read_statistics()
    names = [name for family in declared.families.values() for name in family]
    assert set(names) | set(declared.judged) - {"labels"} <= set(choices("system"))
    with pytest.raises(StudyError, match="bm25 stands twice"):
        Statistics("wilcoxon", 0.05, {"a": ["bm25"], "b": ["bm25"]}, [], {})


@pytest.mark.parametrize(("test", "found"), [("randomisation", ["a"]), ("wilcoxon", ["b", "c"])])
def test_the_declared_test_finds_what_is_below_its_level_and_not_what_is_at_it(test, found):
    tested = pd.DataFrame({"system": ["a", "b", "c"], "randomisation_p_holm": [0.049, 0.05, 0.2]})
    tested = tested.assign(wilcoxon_p_holm=[0.05, 0.01, 0.04])
    assert Statistics(test, 0.05, {}, [], {}).finds(tested)["system"].tolist() == found


def test_a_mean_has_one_interval_wherever_it_stands():
    rng = np.random.default_rng(3)
    values = (pd.DataFrame(rng.uniform(0, 1, (30, len(PAPER_METRICS))), columns=PAPER_METRICS) for _ in range(2))
    frame = pd.concat([per_task.table(range(30), seed, part) for seed, part in enumerate(values)], ignore_index=True)
    few = frame[["task_id", "seed", "ndcg@10", "recall@5"]]  # over the same tasks, so with the same draws
    systems = {"few": few, "a": frame, "b": frame[frame["task_id"] < 20], "less": few.drop(columns="ndcg@10")}
    found = reported.mean_intervals(systems).set_index(["system", "measure"])
    # By hand: the bootstrap of the tasks' means over seeds.
    tasks = frame.groupby("task_id")["ndcg@10"].mean().to_numpy()
    assert found.loc[("a", "ndcg@10")].tolist() == pytest.approx(bootstrap_interval(tasks, seed=0))
    assert found.loc[("few", "ndcg@10")].tolist() == pytest.approx(bootstrap_interval(tasks, seed=0))
    recall = frame.groupby("task_id")["recall@5"].mean().to_numpy()
    for system in ("few", "a", "less"):
        assert found.loc[(system, "recall@5")].tolist() == pytest.approx(bootstrap_interval(recall, seed=0))
    assert found.loc[("b", "ndcg@10")].tolist() == pytest.approx(bootstrap_interval(tasks[:20], seed=0))
    printed, overall = verdicts.measure_cells({"a": frame})["a"].cells, reported.overall_means({"a": frame}).loc["a"]
    for name in ("recall@5", "ndcg@10", "f1_of_means@10"):
        ends = found.loc[("a", name)].tolist()
        for table in (printed, overall):
            assert table.loc[name, ["ci_low", "ci_high"]].tolist() == pytest.approx(ends)
        assert ends[0] < overall.loc[name, "mean"] < ends[1]
    alone = reported.mean_intervals({"one": frame[frame["task_id"] == 0]})
    assert alone[["ci_low", "ci_high"]].isna().all(axis=None)


def test_the_best_epoch_of_any_stage_may_be_the_last_one():
    stage = {"epochs": 30, "best_epoch": 30}
    reports = [{"epochs": 15, "best_epoch": 12, "experts": stage}, {"epochs": 15, "best_epoch": 9, "quantiser": {}}]
    assert reported.lengths(reports) == {"epochs": 15, "best_epoch": 10.5, "not_converged": 1}
    assert (
        reported.lengths([{"epochs": 5, "best_epoch": 5, "experts": stage | {"best_epoch": 3}}])["not_converged"] == 1
    )
    assert np.isnan(list(reported.lengths([{"epochs": 5}]).values())).all()


def test_results_are_read_with_titles_and_kinds_and_values_are_averaged_over_seeds(new_root):
    shutil.copytree(REPOSITORY / "conf", new_root / "conf")
    frame = seeded({0: [1, 0.5, 0, 0.5], 1: [1, 0.5, 1, 1]})
    put_row("synthetic", "cold", "t2mrec", frame)
    rows = reported.with_intervals(per_task.aggregate(frame, "synthetic", "cold", "t2mrec", "smoke"), {"t2mrec": frame})
    for name in ("overall", "runs", "significance", "comparisons", "metrics.csv"):
        write_csv(paths.tables("synthetic") / f"{name}.csv", rows)
    results = Results.load("synthetic")
    assert results.per_task("cold", "t2mrec")["ndcg@10"].tolist() == [1, 0.5, 0.5, 0.75]
    assert results.protocols == ["cold"]
    assert (results.titles["tfidf"], results.families["bm25"]) == ("TF-IDF cosine", "lexical")


def overall(*rows, protocol="cold", metric="ndcg"):
    return pd.DataFrame(rows, columns=["system", "mean", "sd"]).assign(protocol=protocol, metric=metric, k=10)


def test_a_comparison_keeps_one_protocol_puts_the_best_first_and_says_what_was_not_run():
    rows = pd.concat([overall(("a", 0.1, 0.01), ("b", 0.2, np.nan)), overall(("c", 0.9, 0.1), protocol="warm")])
    table = tables.comparison(rows, "cold", {"a": "System A"}, ("ndcg@10",), not_run=["d"])
    assert table.to_numpy().tolist() == [["b", "0.2000"], ["System A", "0.1000 ± 0.0100"], ["d", "not run"]]
    # Best and second best are told by what is printed; oracles take no part.
    rows = overall(("oracle", 0.9, np.nan), ("a", 0.50001, 0.01), ("b", 0.50002, 0.01), ("c", 0.3, np.nan))
    marks = {("c", "ndcg@10"): tables.BELOW, ("a", "recall@10"): tables.BELOW}
    table = tables.comparison(rows, "cold", {}, ("ndcg@10",), unranked=["oracle"], marks=marks, not_run=["e"])
    printed = dict.fromkeys(("a", "b"), "**0.5000 ± 0.0100**") | {"oracle": "0.9000", "c": "*0.3000* ↓", "e": "not run"}
    assert dict(zip(table["system"], table["ndcg@10"], strict=True)) == printed
    # Seconds stand beside the rows that have a run under the protocol, with three digits.
    columns = ["protocol", "system", "seconds_fit", "seconds_score", "parameters"]
    costs = [("cold", "a", 1234.5, 0.2894, 1_198_072), ("cold", "c", 73.84, 99.96, np.nan), ("warm", "b", 1.0, 1.0, 1)]
    costs, rows = pd.DataFrame(costs, columns=columns), overall(("a", 0.5, np.nan), ("c", 0.4, np.nan))
    table = tables.comparison(rows, "cold", {}, ("ndcg@10",), not_run=["b"], costs=costs)
    assert table.iloc[:, -3:].to_numpy().tolist() == [["1.20", "1,234", "0.289"], ["", "73.8", "100"], ["", "", ""]]


def test_arrows_stand_where_the_declared_test_finds_a_difference():
    rows = [("tfidf", -0.4, 0.01, 0.02), ("rrf", 0.1, 0.04, 0.06), ("ease", 0.1, 0.2, 0.04)]
    tested = pd.DataFrame(rows, columns=["system", "diff", "wilcoxon_p_holm", "randomisation_p_holm"])
    assert tables.marks(tested.assign(metric="ndcg@10")) == {("tfidf", "ndcg@10"): "↓", ("ease", "ndcg@10"): "↑"}


def test_markdown_and_latex_escape_what_they_read_and_latex_has_emphasis_and_arrows_of_its_own():
    text = tables.markdown(pd.DataFrame({"system": ["a|b"], "value": [1]}))
    assert text.splitlines() == ["| system | value |", "| --- | ---: |", "| a\\|b | 1 |"]
    rows = {"system": ["a_b & 5 %", "a * b * c"], "x": ["1 ± 2", "**0.5 ± 0.1** ↑"], "y": ["", "*0.4* ↓"]}
    text = tables.latex(pd.DataFrame(rows), "caption")
    parts = ["a\\_b \\& 5 \\%", "1 $\\pm$ 2", "\\toprule", "a * b * c", "\\textbf{0.5 $\\pm$ 0.1} $\\uparrow$"]
    assert [part for part in [*parts, "\\underline{0.4} $\\downarrow$"] if part not in text] == []


def test_titles_say_where_there_is_one_seed_and_where_most_seeds_were_best_at_the_end():
    rows = [("one", 1, np.nan), ("both", 1, 1), ("most", 3, 2), ("few", 3, 1), ("none", 3, np.nan)]
    costs = pd.DataFrame(rows, columns=["system", "seeds", "not_converged"]).assign(protocol="cold")
    costs.loc[len(costs)] = ["few", 1, 1, "warm"]
    titles = {name: name.upper() for name in costs["system"]}
    said = {"one": "ONE (1 seed)", "both": "BOTH (1 seed, not converged)", "most": "MOST (not converged)"}
    assert tables.add_remarks(titles, costs, "cold") == titles | said


def test_every_cell_of_the_papers_tables_is_there_as_its_text_repeats_it():
    cells = paper.load()
    assert cells.groupby("table").size().to_dict() == {"table3": 12 * 8, "table4": 5 * 8}
    assert not cells.duplicated(["table", "printed", "metric", "k"]).any()
    table3, table4 = paper.wide(cells, "table3"), paper.wide(cells, "table4")
    assert list(table3.columns) == list(PAPER_METRICS)
    assert table3.loc["NeuMF"].tolist() == [0.5375, 0.6423, 0.1101, 0.0674, 0.1902, 0.1226, 0.4377, 0.4568]
    # Section 5.5.2 says these numbers in words, independently of the tables.
    said = {
        "T2MRec": {"recall@5": 0.5971, "recall@10": 0.6702, "precision@10": 0.3952, "f1@10": 0.4973, "ndcg@10": 0.6633},
        "w/o CL": {"recall@10": 0.4568, "precision@10": 0.2514, "f1@10": 0.3218, "ndcg@10": 0.4413},
        "w/o Two-tower": {"recall@10": 0.5481, "f1@10": 0.3970, "ndcg@10": 0.5297},
        "w/o Lexical": {"recall@10": 0.6482, "precision@10": 0.3836, "f1@10": 0.4805, "ndcg@10": 0.6463},
        "w/o Re-ranking": {"recall@5": 0.5932, "recall@10": 0.6668, "ndcg@5": 0.5389, "ndcg@10": 0.6574},
    }
    assert {name: table4.loc[name, list(values)].to_dict() for name, values in said.items()} == said
    assert (table4.loc["T2MRec"] == table3.loc["T2MRec"]).all()
    # Systems named by the paper exist, and one row of the method is the same configuration.
    assert {*cells["system"], *cells["stand_in"]} - {""} <= set(choices("system"))
    assert (cells["system"] == "").equals(cells["stand_in"] != "")
    named = cells.loc[cells["system"].str.startswith("t2mrec"), ["table", "printed", "system"]].drop_duplicates()
    assert named.to_numpy().tolist() == [["table4", "w/o Re-ranking", "t2mrec"]]


def test_the_printed_gains_are_over_the_method_and_not_over_the_baseline():
    gains, printed = paper.gains(paper.wide(paper.load(), "table3")), paper.printed_gains()
    assert gains.loc["recall@5", "best_baseline"] == "MPT-Rec"
    assert gains.loc["recall@5", "over_baseline"] == pytest.approx(100 * (0.5971 / 0.5838 - 1))
    # The cells are rounded to four digits; precision@10 is printed 62.89 where the cells give 62.98.
    assert (gains["over_method"] - printed).abs().drop("precision@10").max() < 0.005
    assert (gains["over_method"] - printed).abs().max() < 0.1
    assert (gains["over_baseline"] - printed).abs().min() > 0.04
