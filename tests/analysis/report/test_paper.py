"""The paper's tables: every cell as printed, and what follows from them by hand."""

import pandas as pd
import pytest
import yaml

from study.analysis.report import paper
from study.base import paths
from study.base.errors import StudyError
from study.config.compose import choices
from study.evaluation.metrics import PAPER_METRICS


@pytest.fixture(scope="module")
def cells():
    return paper.load()


def test_every_cell_of_both_tables_is_there_and_a_row_survives_reshaping(cells):
    assert cells.groupby("table").size().to_dict() == {"table3": 12 * 8, "table4": 5 * 8}
    assert not cells.duplicated(["table", "printed", "metric", "k"]).any()
    assert cells["value"].between(0, 1).all()
    assert cells.attrs["dataset"] == "task2mcp"
    places = cells[["table", "place"]].drop_duplicates().itertuples(index=False, name=None)
    assert list(places) == [("table3", "Table 3"), ("table4", "Table 4")]
    table3 = paper.wide(cells, "table3")
    assert list(table3.columns) == list(PAPER_METRICS)
    assert table3.index[[0, -1]].tolist() == ["NeuMF", "T2MRec"]
    assert table3.loc["NeuMF"].tolist() == [0.5375, 0.6423, 0.1101, 0.0674, 0.1902, 0.1226, 0.4377, 0.4568]


def test_cells_as_the_paper_repeats_them_in_its_text(cells):
    # Section 5.5.2 says these numbers in words, independently of the tables.
    table4 = paper.wide(cells, "table4")
    said = {
        "T2MRec": {"recall@5": 0.5971, "recall@10": 0.6702, "precision@10": 0.3952, "f1@10": 0.4973, "ndcg@10": 0.6633},
        "w/o CL": {"recall@10": 0.4568, "precision@10": 0.2514, "f1@10": 0.3218, "ndcg@10": 0.4413},
        "w/o Two-tower": {"recall@10": 0.5481, "f1@10": 0.3970, "ndcg@10": 0.5297},
        "w/o Lexical": {"recall@10": 0.6482, "precision@10": 0.3836, "f1@10": 0.4805, "ndcg@10": 0.6463},
        "w/o Re-ranking": {"recall@5": 0.5932, "recall@10": 0.6668, "ndcg@5": 0.5389, "ndcg@10": 0.6574},
    }
    for name, values in said.items():
        for metric, value in values.items():
            assert table4.loc[name, metric] == value, (name, metric)
    assert table4.loc["T2MRec", "ndcg@5"] == 0.5452
    assert (table4.loc["T2MRec"] == paper.wide(cells, "table3").loc["T2MRec"]).all()


def test_the_printed_gains_are_over_the_method_and_not_over_the_baseline(cells):
    gains = paper.gains(paper.wide(cells, "table3"))
    printed = paper.printed_gains()
    assert gains.loc["recall@5", "best_baseline"] == "MPT-Rec"
    assert gains.loc["recall@5", "over_baseline"] == pytest.approx(100 * (0.5971 / 0.5838 - 1))
    # The cells are rounded to four digits; precision@10 is printed 62.89 where the cells give 62.98.
    assert (gains["over_method"] - printed).abs().drop("precision@10").max() < 0.005
    assert (gains["over_method"] - printed).abs().max() < 0.1
    assert (gains["over_baseline"] - printed).abs().min() > 0.04


def test_systems_named_by_the_paper_exist_and_one_row_of_the_method_is_the_same_configuration(cells):
    assert {*cells["system"], *cells["stand_in"]} - {""} <= set(choices("system"))
    assert (cells["system"] == "").equals(cells["stand_in"] != "")
    named = cells.loc[cells["system"].str.startswith("t2mrec"), ["table", "printed", "system"]].drop_duplicates()
    assert named.to_numpy().tolist() == [["table4", "w/o Re-ranking", "t2mrec"]]


APPLIES = {key: ["warm", "loo99"] for key in ("neumf", "neumf_tuned")}
APPLIES |= {key: ["cold", "warm"] for key in ("t2mrec", "t2mrec_tuned", "gdsrec")}


def ran(*runs):
    """Rows of overall.csv: the same mean for every metric of (system, protocol, mean)."""
    rows = [(*run[:2], *name.split("@"), run[2], 0.01) for run in runs for name in paper.COMPARED]
    return pd.DataFrame(rows, columns=["system", "protocol", "metric", "k", "mean", "sd"])


def test_counterparts_follow_table_3_and_bring_the_row_without_the_re_ranker(cells):
    rows = paper.counterparts(cells)
    assert rows["system"].tolist()[:2] == ["neumf", "msbpr"]
    assert rows["printed"].tolist()[11:] == ["T2MRec", "w/o Re-ranking"]
    assert rows["system"].tolist()[11:] == ["t2mrec", "t2mrec"]


def test_ours_stand_under_the_papers_row_of_the_same_system(cells):
    known = [("t2mrec", "cold", 0.6), ("t2mrec_tuned", "cold", 0.7), ("tfidf", "cold", 0.9), ("neumf", "warm", 0.8)]
    overall, columns = ran(*known), ["protocol", "system", "seconds_fit", "seconds_score"]
    costs = pd.DataFrame([("cold", "t2mrec", 80.0, 0.5)], columns=columns).assign(seeds=2, rising=0)
    marks = {("t2mrec_tuned", "ndcg@10"): "↑"}
    table = paper.beside(cells, overall, "cold", {"t2mrec": "Ours"}, APPLIES, marks=marks, costs=costs)
    rows = table[["system", "source", "recall@5", "ndcg@10", "training (s)"]].to_numpy().tolist()
    assert rows[0] == ["NeuMF", "paper, Table 3", "0.5375", "0.4568", ""]
    assert "neumf" not in set(table["system"])  # not for the protocol
    assert ["gdsrec", "ours, cold", "not run", "", ""] in rows
    assert rows[-4:] == [
        ["T2MRec", "paper, Table 3", "**0.5971**", "**0.6633**", ""],
        ["w/o Re-ranking", "paper, Table 4", "0.5932", "0.6574", ""],
        ["Ours, no LLM re-ranker", "ours, cold", "*0.6000 ± 0.0100*", "*0.6000 ± 0.0100*", "80"],
        ["t2mrec_tuned, no LLM re-ranker", "ours, cold", "**0.7000 ± 0.0100**", "**0.7000 ± 0.0100** ↑", ""],
    ]
    assert table["source"].str.startswith("paper").sum() == 13
    assert table.loc[table["system"] == "MPT-Rec", "recall@5"].tolist() == ["*0.5838*"]
    assert table.loc[table["system"] == "NeuMF", "f1_of_means@5"].tolist() == ["0.1902"]


def test_rows_of_systems_that_a_protocol_is_not_for_can_be_left_out(cells):
    table = paper.beside(cells, ran(("neumf", "loo99", 0.5)), "loo99", {}, APPLIES, applicable_alone=True)
    assert table["system"].tolist() == ["NeuMF", "neumf", "neumf_tuned"]
    assert table["recall@5"].tolist() == ["0.5375", "**0.5000 ± 0.0100**", "not run"]
    table = paper.beside(cells, ran(), "warm", {}, APPLIES)  # no run at all still gives the paper's rows
    assert set(table.loc[table["source"] == "ours, warm", "recall@5"]) == {"not run"}


@pytest.mark.parametrize("values", [[0.1] * 7, [0.1] * 7 + [1.2]])
def test_a_damaged_row_is_refused(tmp_path, values):
    content = yaml.safe_load((paths.conf() / "paper" / "tables.yaml").read_text())
    content["tables"]["table3"]["rows"][2]["values"] = values
    path = tmp_path / "tables.yaml"
    path.write_text(yaml.safe_dump(content))
    with pytest.raises(StudyError, match="table3 needs 8 cells") as caught:
        paper.load(path)
    assert caught.value.row == "ReCAFR"
    with pytest.raises(StudyError, match=r"none\.yaml: cannot be read"):
        paper.load(tmp_path / "none.yaml")
