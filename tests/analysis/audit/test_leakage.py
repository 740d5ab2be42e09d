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


@pytest.fixture(scope="module")
def found(planted):
    return audited.near_duplicates(*planted, near_labels=0.9, near_text=0.9)


def test_planted_near_duplicates_are_found_in_training_alone_and_none_by_a_grouped_split(planted, found):
    assert found[list(audited.KINDS)].sum().tolist() == [20, 30, 8, 14, 44]
    assert found["task_id"].tolist() == list(planted[0].tasks["id"])[PER_PART:]
    assert found["same_labels"].tolist()[:20] == [1] * 20
    table = audited.share_table({"cold": found}).set_index("kind")
    assert table.loc["same_labels", "share"] == pytest.approx(1 / 3)
    assert table.loc["same_labels", "ci_low"] < 1 / 3 < table.loc["same_labels", "ci_high"]
    data, _ = planted
    split = split_of(data, [VALID] * 30 + [TRAIN] * 30 + [TEST] * PER_PART)
    assert audited.near_duplicates(data, split, near_labels=0.9, near_text=0.9)["same_labels"].sum() == 0
    found = audited.near_duplicates(data, make(data, "cold_grouped"), near_labels=0.9, near_text=0.9)
    assert found[["same_labels", "same_text", "near_text"]].to_numpy().sum() == 0


def copying(found, values, **options):
    scores = {name: pd.DataFrame({"m": row}, index=found["task_id"]) for name, row in values.items()}
    table = audited.copying_table(scores, found, ["m"], seed=0, **options)
    return table.query("kind == 'any_near_duplicate'").set_index("system")


def test_a_copying_system_and_an_honest_one_are_told_apart_by_a_reference_where_copies_are_easier(found):
    has = found["any_near_duplicate"].to_numpy() == 1
    noise = np.random.default_rng(1).normal(size=PER_PART)
    table = copying(found, {"copier": np.where(has, 0.9, 0.0), "honest": 0.3 + 0.05 * noise})
    copier, honest = table.loc["copier"], table.loc["honest"]
    assert copier[["from_duplicates", "lost", "diff"]].tolist() == pytest.approx([1, 1, 0.9])
    assert honest["from_duplicates"] == pytest.approx(44 / 60, abs=0.02)
    assert abs(honest["lost"]) < 0.1
    assert honest["diff_ci_low"] < 0 < honest["diff_ci_high"]
    assert (table["n_duplicate"] == 44).all()
    with pytest.raises(StudyError, match="not test tasks"):
        audited.copying_table({"other": pd.DataFrame({"m": [0.5]}, index=[999])}, found, ["m"], seed=0)
    # Tasks with a near-duplicate are easier for all; only the copier gains more from them than the reference does.
    easier = np.where(has, 0.3, 0.1) + 0.02 * np.random.default_rng(4).normal(size=PER_PART)
    values = {"bm25": easier, "honest": easier + 0.1 + 0.02 * noise}
    values["copier"] = easier + np.where(has, 0.4, 0.0) + 0.02 * noise
    table = copying(found, values, references=["bm25", "absent"])
    honest, copier = table.loc["honest"], table.loc["copier"]
    assert honest["diff_ci_low"] > 0.1  # by the plain difference it would be a copier
    assert honest["excess_bm25_ci_low"] < 0 < honest["excess_bm25_ci_high"]
    gain = values["copier"] - easier
    assert copier["excess_bm25"] == pytest.approx(gain[has].mean() - gain[~has].mean())
    assert copier["excess_bm25_ci_low"] > 0.35
    assert table.loc["bm25", "excess_bm25"] == 0
    assert table["excess_absent"].isna().all()
    # Both groups of tasks are needed.
    alone = audited.difference("excess", np.array([0.1, 0.2, 0.3]), np.array([]), seed=0)
    assert np.isnan(list(alone.values())).all()


def test_two_protocols_by_hand_and_the_interval_of_a_difference_holds_its_level():
    first = {"a": pd.DataFrame({"m": [1.0, 0.5]}), "b": pd.DataFrame({"m": [1.0, 1.0]})}
    second = {"a": pd.DataFrame({"m": [0.25, 0.25, 0.5, 0.5]})}
    row = audited.protocol_table(first, second, ["m"], seed=0)
    assert len(row) == 1
    assert row.loc[0, ["diff", "lost", "n_first", "n_second"]].tolist() == pytest.approx([0.375, 0.5, 2, 4])
    rng, hits = np.random.default_rng(2), 0
    for seed in range(150):
        low, high = audited.difference_interval(rng.normal(1, 1, 60), rng.normal(3, 2, 90), seed=seed, resamples=2_000)
        hits += low <= -2 <= high
    assert 0.88 < hits / 150 <= 1
    assert np.isnan(audited.difference_interval(np.ones(1), np.ones(9), seed=0, resamples=9)).all()


def test_the_stage_writes_ids_and_numbers(planted, tmp_path, monkeypatch):
    data, split = planted
    monkeypatch.setattr(paths, "results", lambda dataset: tmp_path / "results")
    monkeypatch.setattr(paths, "splits", lambda dataset: tmp_path / "splits")
    monkeypatch.setattr("study.data.dataset.load", lambda name: data)
    configuration = config.load(["dataset=synthetic"])
    with pytest.raises(StudyError, match="no split"):
        list(run_analyses(["audit/leakage"], configuration))
    for protocol in ("cold", "cold_grouped"):
        part = split if protocol == "cold" else make(data, protocol)
        splits.save(part, data, tmp_path / "splits" / f"{protocol}.parquet")
        ids = data.tasks["id"].to_numpy()[part.tasks("test")]
        values = pd.DataFrame({"task_id": ids, "seed": 1, "ndcg@10": 0.5, "recall@10": 0.5, "mrr@10": 0.5})
        for system in ("tfidf", "removed_system"):
            put_row("synthetic", protocol, system, values)
    written = list(run_analyses(["audit/leakage"], configuration))
    tables = {path.name.split(".")[0]: pd.read_csv(path) for path in written}
    assert set(tables) == {"leakage_tasks", "leakage", "copying", "grouped"}
    assert set(tables["leakage_tasks"]) - set(tables["leakage_tasks"].select_dtypes("number")) == {"protocol"}
    assert set(tables["copying"]["system"]) == {"tfidf"}  # files of systems that are not configured are left out
    assert tables["grouped"]["diff"].abs().max() == 0
    assert tables["copying"]["excess_tfidf"].dropna().eq(0).all()
    assert tables["copying"]["excess_bm25"].isna().all()  # it did not run
