"""The per-task table: what it accepts, and how it becomes means over tasks and over seeds."""

import lzma
import math

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

from study.base.errors import StudyError
from study.base.files import write_csv, write_parquet
from study.evaluation import metrics, per_task


def frame(**columns):
    """Two tasks, two seeds."""
    return pd.DataFrame({"task_id": [7, 9, 7, 9], "seed": [0, 0, 1, 1], **columns})


def test_table_puts_ids_and_seed_before_the_values_and_keeps_rows_together():
    values = metrics.per_task(np.array([[0, 1], [1, 2]]), sp.csr_matrix(np.eye(2, 3, dtype=np.float32)), (1, 2))
    table = per_task.table([7, 9], 3, values)
    assert list(table.columns[:4]) == ["task_id", "seed", "recall@1", "recall@2"]
    assert table["task_id"].tolist() == [7, 9]
    assert table["seed"].tolist() == [3, 3]
    assert table["recall@1"].tolist() == [1, 1]
    # Whatever their index; another number of ids is refused.
    values = pd.DataFrame({"recall@5": [0.1, 0.2]}, index=[5, 3])
    assert per_task.table(["a", "b"], 0, values)["recall@5"].tolist() == [0.1, 0.2]
    with pytest.raises(StudyError, match="3 task ids for 2 rows"):
        per_task.table([1, 2, 3], 0, values)


@pytest.mark.parametrize("name", ["t.csv", "t.csv.xz"])
def test_a_written_file_reads_back(tmp_path, name):
    table = frame(**{"ndcg@10": [0.25, np.nan, 1.0, np.nan]})
    write_csv(tmp_path / name, table)
    pd.testing.assert_frame_equal(per_task.read(tmp_path / name), table)


def test_packed_lists_read_back_and_take_less(tmp_path):
    tasks, size = 500, 15_000
    lists = pd.DataFrame(
        {
            "task_id": np.repeat(np.arange(tasks, dtype="int32") * 7 - 5, 30),
            "seed": np.resize(np.repeat([1, 2, 3], 10), size).astype("int16"),
            "rank": np.resize(np.arange(1, 11), size).astype("int8"),
            "server_id": np.random.default_rng(0).integers(-9, 6000, size).astype("int32"),
            "name": np.resize(["a", None], size),
        }
    )
    for packed in (False, True):
        write_parquet(tmp_path / f"{packed}.parquet", lists, packed=packed)
        pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / f"{packed}.parquet"), lists)
    assert (tmp_path / "True.parquet").stat().st_size < 0.8 * (tmp_path / "False.parquet").stat().st_size


WHOLE = frame(**{"ndcg@10": 0.5})
NO_METRICS = ("ndgc@10", "ndcg@0", "ndcg", "f1_of_means@5")
BROKEN = [(frame(**{name: 0.5}), "not a metric@k", None, name) for name in NO_METRICS]
BROKEN += [(WHOLE.drop(columns="seed"), "lacks", None, "seed"), (WHOLE[:3], "same tasks", None, "seed")]
BROKEN += [(WHOLE.assign(task_id=[7, 9, 7, 8]), "same tasks", None, "seed")]
BROKEN += [(WHOLE.assign(seed=[0, 0, 1, 0]), "twice", 3, None)]
BROKEN += [(frame(**{"ndcg@10": [0.5, 0.5, 1.5, 0.5]}), "outside", 2, "ndcg@10")]


@pytest.mark.parametrize(("broken", "reason", "row", "column"), BROKEN)
def test_a_broken_table_is_refused_with_its_place(tmp_path, broken, reason, row, column):
    write_csv(tmp_path / "system.csv", broken)
    with pytest.raises(StudyError, match=reason) as caught:
        per_task.read(tmp_path / "system.csv")
    assert (caught.value.file, caught.value.row, caught.value.column) == (tmp_path / "system.csv", row, column)
    assert caught.value.fix


def test_missing_empty_and_truncated_files_are_user_errors(tmp_path):
    whole = lzma.compress(b"task_id,seed,ndcg@10\n" + b"1,0,0.123456\n" * 50)
    for content in (None, b"", whole[:-12], whole[:20], b"\xff\xfe\x00"):
        path = tmp_path / "system.csv.xz"
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(StudyError) as caught:
            per_task.read(path)
        assert caught.value.file == path


def test_aggregate_by_hand():
    table = frame(**{"precision@5": [1.0, 0.0, 0.2, 0.4], "recall@5": [0.5, 0.0, 0.1, 0.2]})
    result = per_task.aggregate(table, "synthetic", "cold", "bm25", "smoke")
    assert list(result.columns) == ["dataset", "protocol", "system", "profile", "seed", "metric", "k", "value"]
    assert set(result.iloc[:, :4].itertuples(index=False, name=None)) == {("synthetic", "cold", "bm25", "smoke")}
    # In the order of tables: recall, precision, f1_of_means.
    assert result["metric"].tolist() == ["recall", "precision", "f1_of_means"] * 2
    assert result["seed"].tolist() == [0, 0, 0, 1, 1, 1]
    assert result["k"].unique().tolist() == [5]
    expected = [0.25, 0.5, 2 * 0.25 * 0.5 / 0.75, 0.15, 0.3, 2 * 0.15 * 0.3 / 0.45]
    assert result["value"].tolist() == pytest.approx(expected)
    # Of a full table it holds every metric once.
    values = metrics.per_task(np.array([[0, 1], [1, 2]]), sp.csr_matrix(np.eye(2, 3, dtype=np.float32)), (5, 10))
    result = per_task.aggregate(per_task.table([1, 2], 0, values), "d", "p", "s", "f")
    assert list(zip(result["metric"], result["k"], strict=True)) == [(m, k) for m in metrics.NAMES for k in (5, 10)]
    # Tasks without relevant servers are left out of means.
    table = frame(**{"precision@5": [0.4, np.nan, 0.2, np.nan], "recall@5": [0.8, np.nan, 0.4, np.nan]})
    result = per_task.aggregate(table, "d", "p", "s", "f").set_index(["seed", "metric"])["value"]
    assert result.index.is_unique
    assert result[0, "precision"] == pytest.approx(0.4)
    assert result[0, "f1_of_means"] == pytest.approx(2 * 0.4 * 0.8 / 1.2)


def test_overall_is_mean_and_sample_deviation_over_seeds():
    parts = [
        per_task.aggregate(frame(**{"ndcg@10": [0.2, 0.4, 0.5, 0.7]}), "d", "p", "zeta", "f"),
        per_task.aggregate(frame(**{"ndcg@10": 0.1})[:2], "d", "p", "alpha", "f"),
    ]
    summary = per_task.overall(pd.concat(parts))
    columns = ["dataset", "protocol", "system", "profile", "metric", "k", "mean", "sd", "n_seeds"]
    assert list(summary.columns) == columns
    assert summary["system"].tolist() == ["zeta", "alpha"]
    assert summary["mean"].tolist() == pytest.approx([0.45, 0.1])
    assert summary["sd"].tolist() == pytest.approx([0.3 / math.sqrt(2), math.nan], nan_ok=True)
    assert summary["n_seeds"].tolist() == [2, 1]
