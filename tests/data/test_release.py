"""The published data: every stated count, and the authors' split."""

import os

import numpy as np
import pytest
from sklearn.model_selection import train_test_split

from study.data import describe, splits

pytestmark = [
    pytest.mark.mirror,
    pytest.mark.skipif(not os.environ.get("T2M_MIRROR"), reason="T2M_MIRROR names no mirror of the public data"),
]


def test_sizes(task2mcp):
    data, longer = task2mcp.data, task2mcp.labels("labels_all")
    assert (data.n_servers, data.n_tasks, len(longer)) == (5642, 4801, 61104)
    # 48,010 printed ids, 52 of them 0.
    assert data.relevance.nnz == 48010 - 52
    assert data.servers["id"].max() == 5646


@pytest.mark.parametrize(
    ("rule", "table", "column", "rows", "values"),
    [
        ("id 0 (no server has it) left out", "labels", "server_id", 31, 52),
        ("repeated id in one list left out", "labels", "server_id", 5, 21),
        ("id 0 (no server has it) left out", "labels_all", "server_id", 0, 0),
        ("repeated id in one list left out", "labels_all", "server_id", 0, 0),
        ("null becomes empty text", "servers", "license", 1798, 1798),
        ("null becomes empty text", "servers", "language", 166, 166),
        ("null becomes empty text", "servers", "subcategory", 1, 1),
        ("null becomes empty text", "servers", "system", 5608, 5608),
        ("null becomes empty text", "servers", "tools", 5566, 5566),
        ("outer white space", "servers", "description", 0, 0),
        ("spelling variants unified", "servers", "category_clean", 124, 63),
        ("spelling variants unified", "tasks", "theme_clean", 48, 612),
        ("repeated text", "servers", "url", 2, 1),
        ("repeated text", "servers", "description", 126, 63),
        ("repeated text", "tasks", "name", 872, 454),
        ("repeated text", "tasks", "description", 698, 616),
    ],
)
def test_cleaning_counts(task2mcp, rule, table, column, rows, values):
    counts = task2mcp.cleaning.set_index(["rule", "table", "column"])
    assert counts.loc[(rule, table, column), ["rows", "values"]].tolist() == [rows, values]


def test_authors_split(task2mcp):
    data = task2mcp.data
    ids = data.tasks["id"].tolist()
    train, rest = train_test_split(ids, test_size=0.4, random_state=42)
    valid, test = train_test_split(rest, test_size=0.5, random_state=42)
    split = splits.make(data, "cold")
    assert [len(split.tasks(name)) for name in splits.PARTS] == [2880, 960, 961]
    for name, expected in (("train", train), ("valid", valid), ("test", test)):
        assert sorted(data.tasks["id"].iloc[split.tasks(name)]) == sorted(expected)


def test_grouped_split_of_the_release(task2mcp):
    data = task2mcp.data
    split = splits.make(data, "cold_grouped", similarity=0.9)
    assert [len(split.tasks(name)) for name in splits.PARTS] == [2880, 961, 960]
    keys = [{tuple(sorted(data.lists[row])) for row in split.tasks(name)} for name in splits.PARTS]
    assert not keys[0] & keys[1]
    assert not keys[0] & keys[2]
    assert not keys[1] & keys[2]


def test_where_validation_tasks_of_cold_are_test_tasks_of_other_splits(task2mcp):
    """The counts that docs/deviations.md states for the rows whose values are chosen on `cold`."""
    data = task2mcp.data
    valid = splits.make(data, "cold").tasks("valid")
    held_out = {name: splits.make(data, name, similarity=0.9).test for name in ("cold_grouped", "warm", "loo")}
    shared = {name: (int(part[valid].sum()), int(part.sum())) for name, part in held_out.items()}
    assert {name: shared[name] for name in ("warm", "loo")} == {"warm": (1920, 9596), "loo": (960, 4800)}
    grouped = splits.make(data, "cold_grouped", similarity=0.9).tasks("test")
    assert (len(np.intersect1d(valid, grouped)), len(grouped)) == (180, 960)
    # What the other rows are tuned on is no test label of `loo`.
    assert splits.make(data, "warm").valid.multiply(held_out["loo"]).nnz == 0


def test_table2(task2mcp):
    table = describe.table2("task2mcp", task2mcp.data).set_index(["set", "attribute"])
    assert table["released"].to_dict() == {
        ("servers", "mcp_num"): 5642,
        ("servers", "license"): 37,
        ("servers", "language"): 637,
        ("servers", "subcategory"): 64,
        ("servers", "category"): 63,
        ("servers", "system"): 8,
        ("servers", "official"): 2,
        ("tasks", "task_num"): 4801,
        ("tasks", "language"): 21,
        ("tasks", "category"): 4,
        ("tasks", "subcategory"): 16,
        ("tasks", "theme"): 612,
    }
    differing = table[table["difference"] != 0]["difference"].to_dict()
    assert differing == {
        ("servers", "language"): 4,
        ("servers", "subcategory"): 12,
        ("servers", "category"): 27,
        ("tasks", "task_num"): 1,
        ("tasks", "theme"): -1,
    }
    assert table.loc[("tasks", "theme"), "case_folded"] == table.loc[("tasks", "theme"), "paper"]


def test_overview(task2mcp):
    data, longer = task2mcp.data, task2mcp.labels("labels_all")
    table = describe.overview("task2mcp", data, longer).set_index(["group", "measure"])["value"]
    labels = table["labels"]
    assert labels["lists that repeat an earlier task's list exactly"] == 859
    assert labels["lists strictly ascending by server id"] == 1093
    assert table["longer lists", "tasks whose longer list begins with their list"] == 4801
    assert table["servers", "rank correlation of id and alphabetical place of the name"] > 0.99
    assert np.isfinite(table).all()


def test_tasks_and_servers_share_no_category_at_either_level(task2mcp):
    data = task2mcp.data
    for column in ("category_clean", "subcategory_clean"):
        assert not set(data.servers[column].str.casefold()) & set(data.tasks[column].str.casefold())
