"""Topics are a fair, repeatable draw; the pool holds what it must and tells a judge nothing."""

import numpy as np
import pandas as pd
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from study import paths
from study.config.compose import load
from study.data import dataset as datasets
from study.data import split_files
from study.errors import StudyError
from study.judging import pools, settings, store
from study.runner.rows import run

DATASET = "synthetic"


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
    if not_exhausted:
        assert max(not_exhausted) - min(not_exhausted) <= 1
        assert max(given_.values()) <= min(not_exhausted) + 1


def test_topics_come_from_their_part_evenly_and_repeatably(shared_root):
    table = store.read_table(DATASET, "topics")
    data = datasets.load(DATASET)
    split = split_files.load(paths.splits(DATASET) / "cold.parquet", data)
    for part, count in (("valid", 16), ("test", 32)):
        ids = table.loc[table["part"] == part, "task_id"]
        assert len(ids) == count
        assert set(ids) <= set(data.tasks["id"].to_numpy()[split.tasks(part)])
        sizes = table[table["part"] == part]["subcategory"].value_counts()
        supply = data.tasks.iloc[split.tasks(part)]["subcategory_clean"].value_counts()
        assert set(sizes.index) == set(supply.index)
        open_ = [name for name in sizes.index if sizes[name] < supply[name]]
        assert max(sizes[open_]) - min(sizes[open_]) <= 1
    chosen = settings.read(settings.Topics)
    pd.testing.assert_frame_equal(pools.sample_topics(data, split, parts=chosen.parts, seed=chosen.seed), table)
    other = pools.sample_topics(data, split, parts=chosen.parts, seed=chosen.seed + 1)
    assert set(other["task_id"]) != set(table["task_id"])


def test_other_topics_than_the_judged_ones_are_refused(root):
    path = root / "conf" / "judging" / "topics.yaml"
    path.write_text(path.read_text().replace("seed: 20260", "seed: 1"))
    with pytest.raises(StudyError, match="outside this draw"):
        pools.draw_topics(DATASET)


def test_pool_is_the_union_of_the_runs_and_the_control(shared_root):
    pool, provenance, runs = (
        store.read_table(DATASET, "pool"),
        store.read_table(DATASET, "provenance"),
        store.read_runs(DATASET),
    )
    assert list(runs) == ["labels", "bm25", "random", "tfidf"]
    named = {tuple(pair) for frame in runs.values() for pair in frame[store.PAIR].to_numpy().tolist()}
    control = {tuple(pair) for pair in provenance.loc[provenance["control"] == 1, store.PAIR].to_numpy().tolist()}
    assert {tuple(pair) for pair in pool[store.PAIR].to_numpy().tolist()} == named | control
    assert (provenance[provenance["control"] == 1].groupby("task_id").size() == 5).all()
    assert list(pool.columns) == ["task_id", "server_id", "order", "round"]  # no source reaches a judge
    assert (pool.groupby("task_id")["order"].max() == pool.groupby("task_id").size()).all()
    for name, frame in runs.items():
        pairs = provenance[provenance["sources"].fillna("").str.split(";").map(lambda found, name=name: name in found)]
        assert len(pairs) == len(frame[store.PAIR].drop_duplicates())


def test_pool_order_does_not_betray_the_source(shared_root):
    pool = store.read_table(DATASET, "pool").merge(store.read_table(DATASET, "provenance"), on=store.PAIR)
    place = pool["order"] / pool.groupby("task_id")["order"].transform("max")
    difference = place[pool["control"] == 1].mean() - place[pool["control"] == 0].mean()
    assert abs(difference) < 0.08  # five standard errors of 240 control places


def test_pooled_runs_are_those_of_the_run_stage(root):
    run(load(["dataset=synthetic", "system=tfidf", "protocol=cold", "profile=smoke"]))
    stage = pd.read_parquet(paths.results(DATASET) / "top10" / "cold" / "tfidf.parquet").astype("int64")
    pooled = store.read_runs(DATASET)["tfidf"]
    both = pooled.merge(stage, on=["task_id", "seed", "rank"], suffixes=("", "_stage"))
    assert len(both) == 32 * 10
    assert (both["server_id"] == both["server_id_stage"]).all()


def test_a_new_system_forms_a_second_round(root):
    before, judged = store.read_table(DATASET, "pool"), store.read_table(DATASET, "judgements")
    path = root / "conf" / "judging" / "pool.yaml"
    path.write_text(path.read_text().replace("not_there_yet", "popularity"))
    pools.make_pool(DATASET)
    after = store.read_table(DATASET, "pool")
    kept = after[after["round"] == 1]
    assert set(map(tuple, kept[store.PAIR].to_numpy())) == set(map(tuple, before[store.PAIR].to_numpy()))
    new = after[after["round"] == 2]
    assert len(new) > 0
    assert not set(map(tuple, new[store.PAIR].to_numpy())) & set(map(tuple, judged[store.PAIR].to_numpy()))
    popularity = store.read_runs(DATASET)["popularity"]
    assert set(map(tuple, new[store.PAIR].to_numpy())) <= set(map(tuple, popularity[store.PAIR].to_numpy()))


def test_a_candidate_is_asked_for_its_part_alone_and_deeper(root):
    path = root / "conf" / "judging" / "pool.yaml"
    chosen = yaml.safe_load(path.read_text()) | {"candidates": ["popularity"], "candidates_depth": 14}
    path.write_text(yaml.safe_dump(chosen))
    pools.make_pool(DATASET)
    topics_, run_ = store.read_table(DATASET, "topics"), store.read_runs(DATASET)["popularity"]
    valid = set(topics_.loc[topics_["part"] == "valid", "task_id"])
    assert set(run_["task_id"]) == valid
    assert (run_.groupby("task_id").size() == 14).all()
    provenance = store.read_table(DATASET, "provenance")
    named = provenance[provenance["sources"].fillna("").str.split(";").map(lambda found: "popularity" in found)]
    assert len(named) == 14 * len(valid)
    assert set(store.read_table(DATASET, "pool").query("round == 2")["task_id"]) <= valid
    # Once it is a system too, all topics are asked, and outside its part no deeper than of the others.
    path.write_text(yaml.safe_dump(chosen | {"systems": [*chosen["systems"], "popularity"]}))
    pools.make_pool(DATASET, again=("popularity",))
    provenance = store.read_table(DATASET, "provenance")
    named = provenance[provenance["sources"].fillna("").str.split(";").map(lambda found: "popularity" in found)]
    assert len(named) == 14 * len(valid) + 10 * (len(topics_) - len(valid))


def test_candidates_of_a_part_without_topics_are_refused(root):
    path = root / "conf" / "judging" / "pool.yaml"
    path.write_text(path.read_text().replace("candidates_part: valid", "candidates_part: train"))
    with pytest.raises(StudyError, match="no topics in 'train'"):
        pools.make_pool(DATASET)


@pytest.mark.parametrize("text", ["systems: []\n", "- a\n", "a: [\n"])
def test_misspelt_settings_are_refused(tmp_path, text):
    (tmp_path / "pool.yaml").write_text(text)
    with pytest.raises(StudyError):
        settings.read(settings.Pool, tmp_path / "pool.yaml")
