"""The published data: every stated count; test_splits.py compares the split with scikit-learn's."""

import numpy as np
import pytest

from study.base import paths
from study.base.files import write_csv
from study.data import describe, splits

pytestmark = pytest.mark.mirror


def test_sizes_and_categories(task2mcp):
    data, longer = task2mcp.data, task2mcp.labels("labels_all")
    assert (data.n_servers, data.n_tasks, len(longer)) == (5642, 4801, 61104)
    # 48,010 printed ids, 52 of them 0.
    assert data.relevance.nnz == 48010 - 52
    assert data.servers["id"].max() == 5646
    # Tasks and servers share no category at either level.
    for column in ("category_clean", "subcategory_clean"):
        assert not set(data.servers[column].str.casefold()) & set(data.tasks[column].str.casefold())


def test_the_committed_tables_are_what_the_published_data_gives(task2mcp, tmp_path):
    tables = {
        "cleaning": task2mcp.cleaning,
        "table2": describe.table2("task2mcp", task2mcp.data),
        "overview": describe.overview(task2mcp.data, task2mcp.labels("labels_all")),
    }
    for name, table in tables.items():
        write_csv(tmp_path / f"{name}.csv", table)
        committed = (paths.tables("task2mcp") / f"{name}.csv").read_bytes()
        assert (tmp_path / f"{name}.csv").read_bytes() == committed, name


def test_sizes_of_the_authors_split_and_of_the_grouped_one(task2mcp):
    data = task2mcp.data
    split = splits.make(data, "cold")
    assert [len(split.tasks(name)) for name in splits.PARTS] == [2880, 960, 961]
    split = splits.make(data, "cold_grouped", similarity=0.9)
    assert [len(split.tasks(name)) for name in splits.PARTS] == [2880, 961, 960]
    keys = [{tuple(sorted(data.lists[row])) for row in split.tasks(name)} for name in splits.PARTS]
    assert len(set.union(*keys)) == sum(map(len, keys))  # no list in two parts


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
