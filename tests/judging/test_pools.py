"""Topics are a fair, repeatable draw; the pool holds what it must and tells a judge nothing; the committed one, too."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from study.base import paths
from study.base.errors import StudyError
from study.config.compose import load
from study.data import dataset as datasets
from study.data import splits
from study.judging import pools, store
from study.runner.rows import run_row
from tests.analysis.toys import change
from tests.judging.conftest import DATASET, SYSTEMS

RELEASED = "task2mcp"


@given(st.lists(st.integers(0, 30), min_size=1, max_size=16), st.integers(0, 60), st.integers(0, 9))
def test_allocation_is_as_equal_as_supply_allows(supply, total, seed):
    available = {f"s{i:02d}": n for i, n in enumerate(supply)}
    if sum(supply) < total:
        with pytest.raises(StudyError, match="topics asked for"):
            pools.allocate(available, total, np.random.default_rng(seed))
        return
    given_ = pools.allocate(available, total, np.random.default_rng(seed))
    assert sum(given_.values()) == total
    assert all(given_[name] <= available[name] for name in available)
    not_exhausted = [count for name, count in given_.items() if count < available[name]]
    assert max(given_.values()) <= min(not_exhausted, default=total) + 1


def test_topics_come_from_their_part_evenly_and_repeatably(shared_root):
    table = store.read_table(DATASET, "topics")
    data = datasets.load(DATASET)
    split = splits.load(paths.splits(DATASET) / "cold.parquet", data)
    for part, count in (("valid", 16), ("test", 32)):
        of_part = table[table["part"] == part]
        assert len(of_part) == count
        assert set(of_part["task_id"]) <= set(data.tasks["id"].to_numpy()[split.tasks(part)])
        sizes = of_part["subcategory"].value_counts()
        supply = data.tasks.iloc[split.tasks(part)]["subcategory_clean"].value_counts()
        assert set(sizes.index) == set(supply.index)
        open_ = [name for name in sizes.index if sizes[name] < supply[name]]
        assert max(sizes[open_]) - min(sizes[open_]) <= 1
    chosen = store.topic_settings()
    pd.testing.assert_frame_equal(pools.sample_topics(data, split, chosen), table)
    other = pools.sample_topics(data, split, replace(chosen, seed=chosen.seed + 1))
    assert set(other["task_id"]) != set(table["task_id"])


def named_by(system):
    """The pairs of the pool that a system named."""
    provenance = store.read_table(DATASET, "provenance")
    return provenance[[system in sources.split(";") for sources in provenance["sources"].fillna("")]]


def test_pool_is_the_union_of_the_runs_and_the_control(shared_root):
    pool, provenance = store.read_table(DATASET, "pool"), store.read_table(DATASET, "provenance")
    runs, control = store.read_runs(DATASET), provenance[provenance["control"] == 1]
    assert list(runs) == ["labels", "bm25", "random", "tfidf"]
    assert store.pairs(pool) == store.pairs(control).union(*map(store.pairs, runs.values()))
    assert (control.groupby("task_id").size() == 5).all()
    assert list(pool.columns) == ["task_id", "server_id", "order", "round"]  # no source reaches a judge
    assert (pool.groupby("task_id")["order"].max() == pool.groupby("task_id").size()).all()
    assert all(store.pairs(named_by(name)) == store.pairs(run_) for name, run_ in runs.items())
    # The order does not betray the source.
    both = pool.merge(provenance, on=store.PAIR)
    position = both["order"] / both.groupby("task_id")["order"].transform("max")
    difference = position[both["control"] == 1].mean() - position[both["control"] == 0].mean()
    assert abs(difference) < 0.08  # five standard errors of 240 control places


def records_of(name):
    records = json.loads((store.folder(DATASET) / "pools.json").read_text())
    return [key for key in records if key.startswith(f"{name}: ")]


def test_pooled_runs_are_those_of_the_run_stage(root):
    stage = run_row(load(["dataset=synthetic", "system=tfidf", "protocol=cold", "profile=smoke"])).top10
    pooled = store.read_runs(DATASET)["tfidf"]
    both = pooled.merge(stage, on=["task_id", "seed", "rank"], suffixes=("", "_stage"))
    assert len(both) == 32 * 10
    assert (both["server_id"] == both["server_id_stage"]).all()


def test_a_new_system_forms_a_second_round_and_a_candidate_is_asked_for_its_part_alone_and_deeper(root):
    before = store.read_table(DATASET, "pool")
    change("judging/pool.yaml", candidates=["popularity"], candidates_depth=14, kept=14)
    pools.make_pool(DATASET)
    topics, run = store.read_table(DATASET, "topics"), store.read_runs(DATASET)["popularity"]
    valid = set(topics.loc[topics["part"] == "valid", "task_id"])
    assert set(run["task_id"]) == valid
    assert (run.groupby("task_id").size() == 14).all()
    assert len(named_by("popularity")) == 14 * len(valid)
    after = store.read_table(DATASET, "pool")
    assert store.pairs(after[after["round"] == 1]) == store.pairs(before)
    new = after[after["round"] == 2]
    assert set(new["task_id"]) <= valid
    assert store.pairs(new)
    assert store.pairs(new) <= store.pairs(run) - store.pairs(store.read_table(DATASET, "judgements"))
    # Once it is a system too, all topics are asked, and outside its part no deeper than of the others.
    change("judging/pool.yaml", systems=[*SYSTEMS, "popularity"])
    pools.make_pool(DATASET)
    assert len(named_by("popularity")) == 14 * len(valid) + 10 * (len(topics) - len(valid))
    assert records_of("popularity") == ["popularity: test", "popularity: valid"]


def test_topics_that_are_added_are_other_tasks_and_pooled_to_a_depth_of_their_own(root):
    chosen, before = store.topic_settings(), store.read_runs(DATASET)
    topics = store.read_table(DATASET, "topics")
    change("judging/topics.yaml", parts=chosen.parts | {"fresh": 9}, sources={"fresh": "test"})
    change("judging/pool.yaml", kept=15, depths={"fresh": 12}, controls={"fresh": 30})
    pools.draw_topics(DATASET)
    pools.make_pool(DATASET)
    all_topics, data = store.read_table(DATASET, "topics"), datasets.load(DATASET)
    fresh = all_topics[all_topics["part"] == "fresh"]["task_id"]
    pd.testing.assert_frame_equal(all_topics[all_topics["part"] != "fresh"].reset_index(drop=True), topics)
    split = splits.load(paths.splits(DATASET) / "cold.parquet", data)
    assert set(fresh) <= set(data.tasks["id"].to_numpy()[split.tasks("test")])
    assert len(set(fresh) - set(topics["task_id"])) == 9
    runs = store.read_runs(DATASET)
    for name, run in runs.items():
        pd.testing.assert_frame_equal(run[~run["task_id"].isin(fresh)].reset_index(drop=True), before[name])
    of_fresh = runs["bm25"][runs["bm25"]["task_id"].isin(fresh)]
    assert (of_fresh.groupby("task_id").size() == 15).all()
    assert store.pairs(named_by("bm25")) == store.pairs(before["bm25"]) | store.pairs(of_fresh[of_fresh["rank"] <= 12])
    provenance = store.read_table(DATASET, "provenance").query("control == 1")
    assert set(provenance[provenance["task_id"].isin(fresh)].groupby("task_id").size()) == {30}
    pool = store.read_table(DATASET, "pool")
    assert set(pool[pool["round"] == 2]["task_id"]) == set(fresh)
    pools.make_pool(DATASET, again=("bm25",))  # one run for all takes the place of both
    assert (len(records_of("bm25")), len(records_of("tfidf"))) == (1, 2)


def test_another_draw_or_part_and_an_unknown_system_are_refused(root):
    with pytest.raises(StudyError, match="no system of the pool: nobody"):
        pools.make_pool(DATASET, again=("nobody",))
    change("judging/pool.yaml", candidates_part="train")
    with pytest.raises(StudyError, match="no topics in 'train'"):
        pools.make_pool(DATASET)
    change("judging/topics.yaml", seed=1)
    with pytest.raises(StudyError, match="outside this draw"):
        pools.draw_topics(DATASET)


@pytest.mark.mirror
def test_the_committed_topics_are_redrawn_exactly(task2mcp):
    data, split, chosen = task2mcp.data, task2mcp.split("cold"), store.topic_settings()
    topics = pools.sample_topics(data, split, chosen)
    pd.testing.assert_frame_equal(topics, store.read_table(RELEASED, "topics"))
    assert not set(data.tasks["id"].to_numpy()[split.tasks("train")]) & set(topics["task_id"])


@pytest.mark.slow
@pytest.mark.mirror
def test_every_pair_exists_the_labels_are_in_the_pool_and_no_text_is(task2mcp):
    data, labels = task2mcp.data, task2mcp.labels()
    pool, listed = store.read_table(RELEASED, "pool"), store.read_runs(RELEASED)["labels"]
    assert set(pool["task_id"]) == set(store.read_table(RELEASED, "topics")["task_id"])
    assert set(pool["server_id"]) <= set(data.servers["id"])
    labelled = labels[labels["task_id"].isin(pool["task_id"]) & (labels["position"] <= 10)]
    places = [listed[["task_id", "rank", "server_id"]], labelled[["task_id", "position", "server_id"]]]
    assert len({frozenset(map(tuple, table.to_numpy().tolist())) for table in places}) == 1
    assert store.pairs(listed) <= store.pairs(pool)
    files = [path for path in store.folder(RELEASED).rglob("*") if path.suffix in (".csv", ".txt")]
    committed = "\n".join(path.read_text(encoding="utf-8") for path in files)
    for texts in (data.tasks["description"], data.servers["description"]):
        assert not any(text in committed for text in texts if len(text) > 20)
