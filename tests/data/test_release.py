"""The published data gives the committed tables of it; test_splits.py compares the split with scikit-learn's."""

import pandas as pd
import pytest

from study.base import paths
from study.base.files import write_csv
from study.config.compose import load
from study.data import describe, splits
from study.data.stages import TUNED_ON

pytestmark = pytest.mark.mirror


@pytest.mark.slow
def test_the_committed_tables_are_what_the_published_data_gives(task2mcp, tmp_path):
    tuning = {protocol: task2mcp.split(protocol) for protocol in TUNED_ON}
    protocols = load(["dataset=task2mcp"]).dataset.protocols
    counts = [splits.summary(task2mcp.data, task2mcp.split(protocol), tuning) for protocol in protocols]
    tables = {
        "cleaning": task2mcp.cleaning,
        "table2": describe.table2("task2mcp", task2mcp.data),
        "overview": describe.overview(task2mcp.data, task2mcp.labels("labels_all")),
        "splits": pd.concat(counts),
    }
    for name, table in tables.items():
        write_csv(tmp_path / f"{name}.csv", table)
        committed = (paths.tables("task2mcp") / f"{name}.csv").read_bytes()
        assert (tmp_path / f"{name}.csv").read_bytes() == committed, name


def test_no_list_lies_in_two_parts_and_what_is_tuned_on_is_no_test_label(task2mcp):
    split = task2mcp.split("cold_grouped")
    keys = [{tuple(sorted(task2mcp.data.lists[row])) for row in split.tasks(name)} for name in splits.PARTS]
    assert len(set.union(*keys)) == sum(map(len, keys))
    assert task2mcp.split("warm").valid.multiply(task2mcp.split("loo").test).nnz == 0
