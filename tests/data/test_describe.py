"""What the authors' program is given, and how a data set is described: by hand, and complete for every protocol."""

import pandas as pd
import pytest

from study.data import describe, prepare, program_input
from study.data.dataset import load


@pytest.fixture
def small(release, tmp_path):
    release.tasks[1]["language"] = "Python"
    release.labels = 'task_id,mcp_ids\n1,"[2, 3, 10]"\n2,"[10, 3, 2]"\n3,"[2, 3, 10]"\n'
    release.all_labels = 'task_id,mcp_ids\n1,"[2, 3, 10, 4]"\n2,"[3, 10, 2]"\n3,"[2, 3]"\n'
    prepare.prepare("x", release.write(tmp_path / "raw"), tmp_path / "out")
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
    assert (tables / "cleaning.csv").exists()


def test_two_servers_and_two_tasks_by_hand(release, tmp_path):
    release.servers, release.tasks = release.servers[:2], release.tasks[1::-1]  # ids 10 and 2; 2 and 1
    release.servers[0] |= {"name": "one, two"}
    release.servers[1] |= {"name": "null"}
    release.labels = 'task_id,mcp_ids\n2,"[10, 0, 10]"\n1,"[2, 10, 2, 10, 2, 10, 2, 10, 2, 10, 2]"\n'
    raw = release.write(tmp_path / "raw")
    counts = program_input.convert(raw, tmp_path, labels="mcp_task.csv").set_index("file")
    servers, tasks, wide = (pd.read_csv(tmp_path / name) for name in ("mcp_raw.csv", "task.csv", "mcp_task.csv"))
    assert servers["num"].tolist() == [10, 2]
    assert servers["name"][0] == "one, two"
    assert servers["language"].isna().tolist() == [False, True]
    assert tasks[["task_id", "theme"]].to_numpy().tolist() == [[2, "Real estate"], [1, "Real Estate"]]
    assert list(wide) == ["task_id", *(f"mcp{rank}" for rank in range(1, 12))]
    assert wide.iloc[0].dropna().tolist() == [2, 10, 0, 10]
    assert program_input.read_wide(tmp_path / "mcp_task.csv") == {2: {10, 0}, 1: {2, 10}}
    # pandas takes the name "null" for nothing; an absent language is no change.
    assert counts["altered"].tolist() == [1, 0, 0]
    assert counts["rows"].tolist() == [2, 2, 2]
