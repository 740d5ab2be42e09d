"""The committed collection belongs to the released data: topics are redrawn exactly, every id exists."""

import os

import pandas as pd
import pytest

from study.judging import pools, settings, store

DATASET = "task2mcp"
pytestmark = [
    pytest.mark.mirror,
    pytest.mark.skipif(not os.environ.get("T2M_MIRROR"), reason="T2M_MIRROR names no folder with the public data"),
]


def test_topics_are_redrawn_exactly(task2mcp):
    data, split = task2mcp.data, task2mcp.split("cold")
    chosen = settings.read(settings.Topics)
    drawn = pools.sample_topics(data, split, parts=chosen.parts, seed=chosen.seed)
    pd.testing.assert_frame_equal(drawn, store.read_table(DATASET, "topics"))
    assert drawn["subcategory"].nunique() == 16
    assert drawn["part"].value_counts().to_dict() == {"test": 80, "valid": 40}
    trained = set(data.tasks["id"].to_numpy()[split.tasks("train")])
    assert not trained & set(drawn["task_id"])


def test_every_pair_of_the_pool_exists_and_the_labels_are_in_it(task2mcp):
    data, labels = task2mcp.data, task2mcp.labels()
    pool, runs = store.read_table(DATASET, "pool"), store.read_runs(DATASET)
    assert set(pool["task_id"]) == set(store.read_table(DATASET, "topics")["task_id"])
    assert set(pool["server_id"]) <= set(data.servers["id"])
    listed = labels[labels["task_id"].isin(pool["task_id"]) & (labels["position"] <= 10)]
    released = {tuple(row) for row in listed[["task_id", "position", "server_id"]].to_numpy().tolist()}
    assert {tuple(row) for row in runs["labels"][["task_id", "rank", "server_id"]].to_numpy().tolist()} == released
    pairs = {tuple(pair) for pair in pool[store.PAIR].to_numpy().tolist()}
    assert {(task, server) for task, _, server in released} <= pairs


def test_no_text_of_the_data_is_in_the_collection(task2mcp):
    data = task2mcp.data
    committed = "\n".join(
        path.read_text(encoding="utf-8") for path in store.folder(DATASET).rglob("*") if path.suffix in (".csv", ".txt")
    )
    for texts in (data.tasks["description"], data.servers["description"]):
        assert not any(text in committed for text in texts if len(text) > 20)
