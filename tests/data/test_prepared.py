"""Prepared tables that systems would stumble over are refused at a stage's border, with file, row and column."""

import pandas as pd
import pytest

from study.base.errors import StudyError
from study.data import dataset

WRONG = {
    "null text": (
        "servers",
        lambda table: table.assign(description=[None, *table["description"][1:]]),
        "row 0, column d",
    ),
    "a number": ("tasks", lambda table: table.assign(theme=3), "row 0, column theme"),
    "an id twice": ("servers", lambda table: pd.concat([table, table.iloc[[2]]]), "stands twice"),
    "a place in words": ("labels", lambda table: table.assign(position="first"), "no whole number"),
    "a task twice": ("tasks", lambda table: pd.concat([table, table]), "stands twice"),
    "a column less": ("tasks", lambda table: table.drop(columns="name"), "column name"),
}


@pytest.mark.parametrize("fault", WRONG)
def test_a_wrong_table_is_named(root, fault):
    part, change, said = WRONG[fault]
    file = root / "data" / "prepared" / "synthetic" / f"{part}.parquet"
    change(pd.read_parquet(file)).to_parquet(file)
    with pytest.raises(StudyError, match=said) as caught:
        dataset.load("synthetic")
    assert "prepared/synthetic" in str(caught.value)
    assert "study prepare dataset=synthetic" in str(caught.value)


def test_empty_tables_are_named_and_whole_ones_are_read(root):
    assert dataset.load("synthetic").n_servers == 60
    for part in ("servers", "tasks", "labels"):
        file = root / "data" / "prepared" / "synthetic" / f"{part}.parquet"
        pd.read_parquet(file).iloc[:0].to_parquet(file)
    with pytest.raises(StudyError, match="the table is empty"):
        dataset.load("synthetic")
