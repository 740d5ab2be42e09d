"""Expected scores: the schema, the verdicts, and that a verdict follows the measured table and nothing else."""

import math

import numpy as np
import pandas as pd
import pytest
import yaml

from study.analysis.report import expected
from study.analysis.report.expected import compare, load_expected, verdict
from study.base.errors import StudyError
from study.evaluation import per_task

SCORE = {"dataset": "synthetic", "protocol": "cold", "system": "t2mrec", "metric": "recall", "k": 10}
ENTRY = SCORE | {"value": 0.1596, "tolerance": 0.001, "source": "the authors' program, seed 42"}


def written(folder, *entries):
    path = folder / "expected.yaml"
    path.write_text(yaml.safe_dump([dict(entry) for entry in entries]), encoding="utf-8")
    return path


def measured(*values, **changed):
    """One row per value, seeds 0, 1, ..."""
    rows = [{"profile": "laptop", "seed": seed, "value": value} for seed, value in enumerate(values)]
    return pd.DataFrame([SCORE | row | changed for row in rows], columns=per_task.AGGREGATE_COLUMNS)


VERDICTS = [([0.1596], "OK"), ([0.1586, 0.1606], "OK"), ([0.16061], "OKish"), ([0.1576], "OKish")]
VERDICTS += [([0.15759], "FAIL"), ([0.1596, math.nan], "FAIL"), ([], "MISSING")]


@pytest.mark.parametrize(("values", "wanted"), VERDICTS)
def test_verdict_of_the_mean_over_seeds(tmp_path, wanted, values):
    result = compare(written(tmp_path, ENTRY), measured(*values)).iloc[0]
    assert result[["verdict", "n_seeds", "expected"]].tolist() == [wanted, len(values), 0.1596]
    # Without a measurement the difference is never a number.
    mean = np.mean(values) if values else math.nan
    assert result[["measured", "diff"]].tolist() == pytest.approx([mean, mean - 0.1596], nan_ok=True)
    assert result["profile"] == ("laptop" if values else "")


def test_verdicts_follow_the_measured_table_and_profiles_are_never_averaged(tmp_path):
    path = written(tmp_path, ENTRY)
    for key, value in {"dataset": "task2mcp", "protocol": "warm", "system": "bm25", "metric": "ndcg", "k": 5}.items():
        assert compare(path, measured(0.1596, **{key: value}))["verdict"].tolist() == ["MISSING"]
    # Two sources may expect different values of one score.
    other = ENTRY | {"value": 0.6702, "source": "the paper, Table 3"}
    path = written(tmp_path, ENTRY, other, ENTRY | {"metric": "ndcg", "value": 0.1673})
    table = pd.concat([measured(0.16), measured(0.3, metric="ndcg")])
    assert compare(path, table)["verdict"].tolist() == ["OK", "FAIL", "FAIL"]
    table = pd.concat([measured(0.1596), measured(0.5, profile="full")])
    path = written(tmp_path, *(ENTRY | {"profile": name} for name in ("laptop", "full", "smoke")))
    assert compare(path, table)["verdict"].tolist() == ["OK", "FAIL", "MISSING"]
    with pytest.raises(StudyError, match="several profiles"):
        compare(written(tmp_path, ENTRY), table)
    # Rounding in binary does not move a verdict.
    differences = {0.1597 - 0.1596: "OK", 0.1598 - 0.1596: "OKish", 0.0: "OK", float("nan"): "FAIL"}
    assert {value: verdict(value, 0.0001) for value in differences} == differences


WRONG = [("value", None), ("value", "0.16"), ("value", 15.96), ("tolerance", math.inf), ("k", 0), ("metric", "recal")]


@pytest.mark.parametrize(("key", "value"), [*WRONG, ("system", ""), ("verdict", "OK")])
def test_a_wrong_entry_is_named_with_file_entry_key_and_fix(tmp_path, key, value):
    path = written(tmp_path, ENTRY, ENTRY | {"k": 5} | {key: value})
    with pytest.raises(StudyError) as caught:
        load_expected(path)
    assert caught.value.file == path
    assert caught.value.column.startswith("entry 1") or key == "value"
    assert key in str(caught.value)
    assert caught.value.fix


@pytest.mark.parametrize("text", [b"\xff\xfe\xfa", b"[]", b"dataset: synthetic", b"- 3", b"- [", b"- &a [1]\n- *a"])
def test_a_file_that_is_no_list_of_entries_is_refused(tmp_path, text):
    path = tmp_path / "expected.yaml"
    path.write_bytes(text)
    with pytest.raises(StudyError) as caught:
        load_expected(path)
    assert caught.value.file == path


def test_repeated_entries_are_named_and_a_value_may_be_the_mean_of_a_file(tmp_path):
    with pytest.raises(StudyError, match="repeats entry 0"):
        load_expected(written(tmp_path, ENTRY, ENTRY | {"value": 0.2}))
    (tmp_path / "per_task.csv").write_text("task_id,seed,recall@10\n1,42,0.5\n2,42,0.25\n")
    entry = {key: value for key, value in ENTRY.items() if key != "value"}
    path = written(tmp_path, entry | {"per_task": "per_task.csv"})
    assert compare(path, measured(0.375))["verdict"].tolist() == ["OK"]
    for wrong in ({"per_task": "per_task.csv", "value": 0.375}, {"per_task": "absent.csv"}, {}):
        with pytest.raises(StudyError):
            load_expected(written(tmp_path, entry | wrong))


def test_scores_are_verified_against_the_tables_that_are_there(new_root, monkeypatch):
    with pytest.raises(StudyError, match="no metrics to verify"):
        expected.verify()
    (new_root / "results" / "synthetic" / "tables").mkdir(parents=True)
    (new_root / "results" / "synthetic" / "tables" / "metrics.csv.xz").touch()
    written(new_root / "results", ENTRY, ENTRY | {"metric": "ndcg"})
    monkeypatch.setattr(expected, "measured_scores", lambda dataset: measured(0.16, dataset=dataset))
    verdicts, text = expected.verify()
    assert verdicts == ["OK", "MISSING"]
    assert "1 OK, 1 MISSING" in text
