"""Near-duplicates of test tasks in training: planted leaks, hand-computed shares, and what a copying system shows."""

import numpy as np
import pandas as pd
import pytest

from study.analysis.audit import leakage as audited
from study.analysis.framework import run_analyses
from study.base import paths
from study.base.errors import StudyError
from study.config import compose as config
from study.data import splits
from study.data.dataset import relevance_from_lists
from study.data.splits import TEST, TRAIN, VALID, Split, make
from tests.analysis.toys import toy
from tests.rows import put_row

SERVERS, PER_PART = 400, 60


def split_of(data, part):
    lists = [
        tuple(row if own == kind else row[:0] for row, own in zip(data.lists, part, strict=True))
        for kind in (TRAIN, VALID, TEST)
    ]
    return Split("cold", *(relevance_from_lists(rows, data.n_servers) for rows in lists), cold=True)


@pytest.fixture(scope="module")
def planted():
    """60 training and 60 test tasks; of the latter 20 repeat a set, 10 hold 9 of 10, 8 repeat a text, 6 nearly."""
    rng = np.random.default_rng(0)
    lists = [rng.choice(SERVERS, 10, replace=False) for _ in range(2 * PER_PART)]
    texts = [" ".join(f"w{rng.integers(10_000)}" for _ in range(12)) for _ in range(2 * PER_PART)]
    for row in range(20):
        lists[PER_PART + row] = rng.permutation(lists[row])
    for row in range(20, 30):
        other = np.setdiff1d(np.arange(SERVERS), lists[row])
        lists[PER_PART + row] = np.r_[lists[row][:9], rng.choice(other, 1)]
    for row in range(30, 38):
        texts[PER_PART + row] = texts[row]
    for row in range(38, 44):
        texts[PER_PART + row] = texts[row].rsplit(" ", 1)[0]  # one word of twelve is missing
    data = toy([{"name": text} for text in texts], lists, SERVERS)
    return data, split_of(data, [TRAIN] * PER_PART + [TEST] * PER_PART)


def near(data, split):
    return audited.near_duplicates(data, split, near_labels=0.9, near_text=0.9)


@pytest.fixture(scope="module")
def duplicates(planted):
    return near(*planted).assign(protocol="cold")


def test_planted_near_duplicates_are_found_in_training_alone_and_none_by_a_grouped_split(planted, duplicates):
    assert duplicates[list(audited.KINDS)].sum().tolist() == [20, 30, 8, 14, 44]
    assert duplicates["task_id"].tolist() == list(planted[0].tasks["id"])[PER_PART:]
    assert duplicates["same_labels"].tolist()[:20] == [1] * 20
    row = audited.share_table(duplicates).set_index("kind").loc["same_labels"]
    assert row["share"] == pytest.approx(1 / 3)
    assert row["ci_low"] < 1 / 3 < row["ci_high"]
    data, _ = planted
    assert near(data, split_of(data, [VALID] * 30 + [TRAIN] * 30 + [TEST] * PER_PART))["same_labels"].sum() == 0
    grouped = near(data, make(data, "cold_grouped"))
    assert grouped[["same_labels", "same_text", "near_text"]].to_numpy().sum() == 0


def test_a_copying_system_and_an_honest_one_are_told_apart_by_a_reference_where_copies_are_easier(duplicates):
    has, rng = duplicates["any_near_duplicate"].to_numpy() == 1, np.random.default_rng(1)
    # Tasks with a near-duplicate are easier for all; only the copier gains more from them than the reference does.
    easier = np.where(has, 0.3, 0.1) + 0.02 * rng.normal(size=PER_PART)
    values = {"bm25": easier, "honest": easier + 0.1 + 0.02 * rng.normal(size=PER_PART)}
    values["copier"] = easier + np.where(has, 0.4, 0.0) + 0.02 * rng.normal(size=PER_PART)
    scores = {name: pd.DataFrame({"m": row}, index=duplicates["task_id"]) for name, row in values.items()}
    table = audited.copying_table(scores, duplicates, ["m"], seed=0, reference="bm25")
    table = table.query("kind == 'any_near_duplicate'").set_index("system")
    assert (table["n_duplicate"] == 44).all()
    honest, copier = table.loc["honest"], table.loc["copier"]
    assert honest["diff_ci_low"] > 0.1  # by the plain difference it would be a copier
    assert honest["diff"] == pytest.approx(honest["mean_duplicate"] - honest["mean_other"])
    assert honest["excess_bm25_ci_low"] < 0 < honest["excess_bm25_ci_high"]
    gain = values["copier"] - easier
    assert copier["excess_bm25"] == pytest.approx(gain[has].mean() - gain[~has].mean())
    assert copier["excess_bm25_ci_low"] > 0.35
    assert table.loc["bm25", "excess_bm25"] == 0
    table = audited.copying_table(scores, duplicates, ["m"], seed=0, reference="absent")
    assert table["excess_absent"].isna().all()


def test_the_tables_hold_ids_and_numbers_of_the_splits_and_systems_that_are_there(planted, tmp_path, monkeypatch):
    data, split = planted
    monkeypatch.setattr(paths, "results", lambda dataset: tmp_path / "results")
    monkeypatch.setattr(paths, "splits", lambda dataset: tmp_path / "splits")
    monkeypatch.setattr("study.data.dataset.load", lambda name: data)
    configuration = config.load(["dataset=synthetic"])
    with pytest.raises(StudyError, match="split is missing"):
        list(run_analyses(["audit/leakage"], configuration))
    splits.save(split, data, tmp_path / "splits" / "cold.parquet")
    ids = data.tasks["id"].to_numpy()[split.tasks("test")]
    values = pd.DataFrame({"task_id": ids, "seed": 1, "ndcg@10": 0.5, "recall@10": 0.5, "mrr@10": 0.5})
    for system in ("tfidf", "removed_system"):
        put_row("synthetic", "cold", system, values)
    written = list(run_analyses(["audit/leakage"], configuration))
    tables = {path.name.split(".")[0]: pd.read_csv(path) for path in written}
    assert set(tables) == {"leakage_tasks", "leakage", "copying"}
    assert set(tables["leakage_tasks"]) - set(tables["leakage_tasks"].select_dtypes("number")) == {"protocol"}
    assert set(tables["copying"]["system"]) == {"tfidf"}  # files of systems that are not configured are left out
    assert tables["copying"]["diff"].dropna().eq(0).all()
    assert tables["copying"]["excess_bm25"].isna().all()  # it did not run
