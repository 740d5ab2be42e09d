"""The description of a data set: hand-counted on a small one, complete for every protocol."""

import pandas as pd
import pytest

from study.data import describe, prepare
from study.data.dataset import load


@pytest.fixture
def small(release, tmp_path):
    release.tasks[1]["language"] = "Python"
    release.labels = 'task_id,mcp_ids\n1,"[2, 3, 10]"\n2,"[10, 3, 2]"\n3,"[2, 3, 10]"\n'
    release.all_labels = 'task_id,mcp_ids\n1,"[2, 3, 10, 4]"\n2,"[3, 10, 2]"\n3,"[2, 3]"\n'
    prepare.prepare("x", release.write(tmp_path / "raw"), tmp_path / "out", tmp_path / "out")
    return load("x", tmp_path / "out"), pd.read_parquet(tmp_path / "out/labels_all.parquet")


def test_table2_by_hand(small):
    table = describe.table2("task2mcp", small[0]).set_index(["set", "attribute"])
    category = table.loc["servers", "category"]
    assert category[["paper", "released", "case_folded", "normalised", "diff"]].tolist() == [22, 2, 2, 1, -21]
    assert table.loc[("servers", "language"), ["released", "normalised"]].tolist() == [1, 2]
    assert table.loc[("tasks", "theme"), ["released", "case_folded", "normalised"]].tolist() == [3, 2, 2]
    assert table.loc[("servers", "mcp_num"), "released"] == 5
    assert table.loc[("servers", "license"), "note"] == "empty in 1 rows"
    # Of other data the paper says nothing.
    table = describe.table2("synthetic", small[0])
    assert table[["paper", "diff"]].isna().all(axis=None)
    assert (table["place"] == "").all()


def test_overview_by_hand(small):
    table = describe.overview(*small).set_index(["group", "measure"])["value"]
    assert table["labels", "labels"] == 9
    assert table["labels", "lists strictly ascending by server id"] == 2
    assert table["labels", "lists that repeat an earlier task's list exactly"] == 1
    assert table["labels", "lists that repeat an earlier task's set of servers"] == 2
    assert table["labels", "most tasks that share one set of servers"] == 3
    # Task 2 alone asks for Python; of its servers 10 and 3 are written in it, 2 has no language.
    assert table["labels", "labels whose server is written in the task's language"] == 2
    popularity = table["popularity of servers (tasks that list them)"]
    assert popularity["servers that no task lists"] == 2
    assert popularity["share of all labels on the most listed tenth of the servers"] == pytest.approx(1 / 3)
    assert table["longer lists"].tolist() == [9, 2, 4]


def test_write(synthetic_raw, conf_root):
    prepare.prepare("synthetic", synthetic_raw)
    describe.write_description("synthetic")
    tables = conf_root / "results/synthetic/tables"
    written = pd.read_csv(tables / "table2.csv")
    assert written["released"].tolist() == describe.table2("synthetic", load("synthetic"))["released"].tolist()
    counts = pd.read_csv(tables / "overview.csv")
    assert "longer lists" in set(counts["group"])
    assert counts["value"].notna().all()
