"""Reading the reported results: order, captions, uncertainty, costs."""

import shutil

import numpy as np
import pandas as pd
import pytest

from study.analysis.report.results import Results, licensed
from study.analysis.report.runs import with_intervals
from study.base import paths
from study.base.errors import StudyError
from study.base.files import write_csv
from study.evaluation import per_task
from tests.rows import put_row

CONF = paths.conf()
VALUES = {  # system -> per-task NDCG@10 of two seeds; six tasks
    "t2mrec": [[1, 0.5, 0.5, 0, 0.5, 0.5], [1, 0.5, 0.5, 0, 1, 1]],
    "tfidf": [[0, 0.5, 0, 0, 0, 0.5], [0, 0.5, 0, 0, 0, 0.5]],
    "oracle_neighbour": [[1, 1, 1, 1, 1, 1]],
}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """The files of the report stage and what they come from."""
    root = tmp_path_factory.mktemp("root")
    shutil.copytree(CONF, root / "conf")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("T2M_ROOT", str(root))
        folder, metrics, costs, frames = paths.results("synthetic"), [], [], {}
        for system, seeds in VALUES.items():
            parts = [per_task.table(range(6), seed, pd.DataFrame({"ndcg@10": row})) for seed, row in enumerate(seeds)]
            frames[system] = pd.concat(parts)
            hardware = {"processor": "P", "cores": 2, "accelerator": None}
            put_row("synthetic", "cold", system, pd.concat(parts), record={"hardware": hardware})
            metrics.append(per_task.aggregate(pd.concat(parts), "synthetic", "cold", system, "smoke"))
            costs.append(("cold", system, "smoke", len(seeds), 6, 2.0, 0.3, 100.0, 7, 0.5))
        measured = ["seconds_fit", "seconds_score", "peak_memory_mib", "parameters", "tie_rate"]
        columns = ["protocol", "system", "profile", "seeds", "tasks", *measured]
        columns_of_tests = ["system", "diff", "wilcoxon_p_holm", "randomisation_p_holm"]
        tests = [("tfidf", -0.4, 0.01, 0.02), ("rrf", 0.1, 0.04, 0.06), ("ease", 0.1, 0.2, 0.04)]
        tested = pd.DataFrame(tests, columns=columns_of_tests).assign(metric="ndcg@10", protocol="cold", family=6)
        write_csv(folder / "tables" / "metrics.csv.xz", pd.concat(metrics))
        write_csv(folder / "tables" / "overall.csv", with_intervals(pd.concat(metrics), frames))
        write_csv(folder / "tables" / "runs.csv", pd.DataFrame(costs, columns=columns).assign(rising=0))
        for name in ("significance", "comparisons"):  # of one form; here with the same rows
            write_csv(folder / "tables" / f"{name}.csv", tested)
        yield Results.load("synthetic")


def test_systems_come_best_first_with_their_titles_and_texts_are_shown_only_under_a_licence(results):
    assert licensed("synthetic")
    assert not licensed("task2mcp")
    assert results.protocols == ["cold"]
    assert results.systems("cold") == ["oracle_neighbour", "t2mrec", "tfidf"]
    assert results.systems("warm") == []
    assert results.titles["tfidf"] == "TF-IDF cosine"


def test_marks_follow_the_declared_test_and_point_where_the_mean_differs(results):
    assert results.marks("cold") == {("tfidf", "ndcg@10"): "↓", ("ease", "ndcg@10"): "↑"}
    assert results.marks("warm") == {}


def test_systems_of_the_protocol_without_a_run_are_named_but_those_that_the_data_set_leaves_out(results):
    not_run = set(results.not_run("cold"))
    assert {"bm25", "random"} <= not_run
    assert not {"item_knn", "ease"} & not_run  # not for new tasks
    assert not {"t2mrec", "tfidf", "oracle_neighbour", "neumf", "neumf_tuned"} & not_run
    assert {"oracle_neighbour", "msbpr_leaky", "tiger_unconstrained"} <= set(results.apart())
    assert "tiger" not in results.apart()


def test_caption_says_question_data_protocol_tasks_and_profile(results):
    assert results.caption("cold") == (
        "Question: fitting the released labels. Data: Synthetic. Protocol: cold (new tasks), 6 test tasks. "
        "Profile: smoke."
    )
    assert results.caption("warm").endswith("Protocol: warm (known tasks). No system has a run yet.")


def test_per_task_averages_over_seeds_costs_are_per_task_and_summary_holds_both_uncertainties(results):
    table = results.cost_table("cold").set_index("system")
    assert table["milliseconds_per_task"].tolist() == pytest.approx([50.0] * 3)
    assert table.index.tolist() == ["oracle_neighbour", "t2mrec", "tfidf"]
    assert table.loc["tfidf", "quality"] == pytest.approx(1 / 6, abs=1e-6)
    assert results.per_task("cold", "t2mrec")["ndcg@10"].tolist() == [1, 0.5, 0.5, 0, 0.75, 0.75]
    assert results.value("cold", "tfidf", "ndcg@10") == pytest.approx(1 / 6, abs=1e-6)
    table = results.summary("cold", "ndcg@10").set_index("system")
    assert table.loc["t2mrec", "mean"] == pytest.approx(7 / 12, abs=1e-6)
    assert table.loc["t2mrec", "sd"] == pytest.approx(np.std([0.5, 4 / 6], ddof=1), abs=1e-6)
    assert pd.isna(table.loc["oracle_neighbour", "sd"])
    assert table["mean"].between(table["ci_low"], table["ci_high"]).all()
    assert table.loc["oracle_neighbour", ["ci_low", "ci_high"]].tolist() == [1, 1]
    assert table.loc["t2mrec", "ci_high"] - table.loc["t2mrec", "ci_low"] > 0.2


def test_without_a_report_the_fix_is_named(new_root):
    with pytest.raises(StudyError, match="study report dataset=synthetic"):
        Results.load("synthetic")
