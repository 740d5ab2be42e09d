"""The committed tables of `best` and `label_fit` hold the study's goals for them, as docs/best.md says."""

import pandas as pd
import pytest

from study import paths
from study.evaluation import per_task
from study.evaluation.significance import compare

FOLDER = paths.results("task2mcp")


@pytest.fixture(scope="module")
def overall():
    table = pd.read_csv(FOLDER / "tables" / "overall.csv")
    return table[table["k"] == 10].set_index(["protocol", "metric", "system"])["mean"].sort_index()


def test_best_is_of_more_use_than_every_system_that_is_no_variant_of_it():
    against = pd.read_csv(FOLDER / "best" / "judged_test.csv").set_index("system")
    minilm = against.loc["minilm"]  # differences are the other system's minus that of `best`
    assert minilm["difference"] <= -0.08
    assert minilm["ci_high"] < 0
    others = against[~against.index.str.match("best_")]
    assert len(others) > 10
    assert (others["difference"] < 0).all()
    assert (others["ci_high"] < 0).all()


def test_label_fit_reaches_its_goals_on_new_tasks(overall):
    assert overall["cold", "ndcg", "label_fit"] >= 0.34
    assert overall["cold", "recall", "label_fit"] >= 0.33
    assert overall["cold_grouped", "ndcg", "label_fit"] >= 2 * overall["cold_grouped", "ndcg", "t2mrec"]


@pytest.mark.parametrize("protocol", ["cold", "cold_grouped", "warm"])
def test_label_fit_is_first(overall, protocol):
    others = overall[protocol, "ndcg"].drop("oracle_neighbour")  # which reads the answers
    assert others.idxmax() == "label_fit"


@pytest.mark.parametrize("protocol", ["cold", "cold_grouped", "warm"])
def test_label_fit_beats_t2mrec_beyond_doubt(protocol):
    table = pd.read_csv(FOLDER / "tables" / "significance.csv")
    own = table[(table["protocol"] == protocol) & (table["system"] == "label_fit")]
    assert len(own) == 2
    assert (own["difference"] > 0).all()
    assert own[["wilcoxon_p_holm", "randomisation_p_holm"]].to_numpy().max() < 0.001


@pytest.mark.parametrize(
    ("metric", "numbers"), [("ndcg@10", (0.002, -0.002, 0.007)), ("recall@10", (0.008, 0.002, 0.013))]
)
def test_label_fit_beside_item_knn_is_as_the_document_says(metric, numbers):
    ours, other = (per_task.read(FOLDER / "per_task" / "warm" / f"{name}.csv.xz") for name in ("label_fit", "item_knn"))
    found = compare(ours, other, metric, seed=0)
    assert tuple(round(found[name], 3) for name in ("difference", "ci_low", "ci_high")) == numbers
    text = (paths.root() / "docs" / "best.md").read_text(encoding="utf-8")
    assert "{} [{}, {}]".format(*numbers) in text
