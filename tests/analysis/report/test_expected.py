"""Expected scores: the schema, the verdicts, and that a verdict follows the measured table and nothing else."""

import math

import numpy as np
import pandas as pd
import pytest
import yaml

from study.analysis.report.expected import compare, load_expected, verdict
from study.base.errors import StudyError
from study.evaluation import per_task

SCORE = {"dataset": "synthetic", "protocol": "cold", "system": "t2mrec", "metric": "recall", "k": 10}
ENTRY = SCORE | {"value": 0.1596, "tolerance": 0.001, "source": "the authors' program, seed 42"}
OTHER = {"dataset": "task2mcp", "protocol": "warm", "system": "bm25", "metric": "ndcg", "k": 5}
VERDICTS = {"OK": [[0.1596], [0.1586, 0.1606], [0.1606], [0.1586]], "OKish": [[0.16061], [0.1616], [0.1576]]}
VERDICTS |= {"FAIL": [[0.16161], [0.15759], [0.1596, math.nan]], "MISSING": [[]]}
WRONG = {"value": [None, "0.16", True, math.nan, 15.96], "tolerance": [-0.1, math.inf], "k": [0, 10.0, True]}
WRONG |= {"metric": ["recal"], "system": ["", 3], "profile": [["laptop"]]}
WRONG |= {"verdict": ["OK"], 1: ["OK"]}  # no keys of an entry


def expected(tmp_path, *entries):
    path = tmp_path / "expected.yaml"
    path.write_text(yaml.safe_dump([dict(entry) for entry in entries]), encoding="utf-8")
    return path


def measured(*values, **changed):
    """One row per value, seeds 0, 1, ..."""
    rows = [{"profile": "laptop", "seed": seed, "value": value} for seed, value in enumerate(values)]
    return pd.DataFrame([SCORE | row | changed for row in rows], columns=per_task.AGGREGATE_COLUMNS)


@pytest.mark.parametrize(("wanted", "values"), [(word, case) for word, cases in VERDICTS.items() for case in cases])
def test_verdict_of_the_mean_over_seeds(tmp_path, wanted, values):
    result = compare(expected(tmp_path, ENTRY), measured(*values)).iloc[0]
    assert result["verdict"] == wanted
    assert result["n_seeds"] == len(values)
    assert result["expected"] == 0.1596
    assert result["source"] == ENTRY["source"]
    # Without a measurement the difference is never a number.
    mean = np.mean(values) if values else math.nan
    assert result[["measured", "diff"]].tolist() == pytest.approx([mean, mean - 0.1596], nan_ok=True)
    assert result["profile"] == ("laptop" if values else "")


@pytest.mark.parametrize(("key", "value"), OTHER.items())
def test_a_score_of_anything_else_does_not_count(tmp_path, key, value):
    assert compare(expected(tmp_path, ENTRY), measured(0.1596, **{key: value}))["verdict"].tolist() == ["MISSING"]


def test_verdicts_follow_the_measured_table(tmp_path):
    path = expected(tmp_path, ENTRY, ENTRY | {"metric": "ndcg", "value": 0.1673})
    table = pd.concat([measured(0.1596), measured(0.3, metric="ndcg")])
    assert compare(path, table)["verdict"].tolist() == ["OK", "FAIL"]
    table = pd.concat([measured(0.3), measured(0.1673, metric="ndcg")])
    assert compare(path, table)["verdict"].tolist() == ["FAIL", "OK"]
    # Two sources may expect different values of one score.
    paper = ENTRY | {"value": 0.6702, "source": "the paper, Table 3"}
    assert compare(expected(tmp_path, ENTRY, paper), measured(0.16))["verdict"].tolist() == ["OK", "FAIL"]


def test_an_entry_of_one_profile_reads_that_profile_and_several_are_never_averaged(tmp_path):
    table = pd.concat([measured(0.1596), measured(0.5, profile="full")])
    path = expected(tmp_path, ENTRY | {"profile": "laptop"}, ENTRY | {"profile": "full"}, ENTRY | {"profile": "smoke"})
    result = compare(path, table)
    assert result["verdict"].tolist() == ["OK", "FAIL", "MISSING"]
    assert result["profile"].tolist() == ["laptop", "full", "smoke"]
    with pytest.raises(StudyError, match="several profiles") as caught:
        compare(expected(tmp_path, ENTRY), table)
    assert caught.value.row == "entry 0"


def test_rounding_in_binary_does_not_move_a_verdict():
    assert verdict(0.1597 - 0.1596, 0.0001) == "OK"
    assert verdict(0.1598 - 0.1596, 0.0001) == "OKish"
    assert verdict(0.0, 0.0) == "OK"
    assert verdict(float("nan"), 1.0) == "FAIL"


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, values in WRONG.items() for value in values])
def test_a_wrong_entry_is_named_with_file_entry_key_and_fix(tmp_path, key, value):
    path = expected(tmp_path, ENTRY, ENTRY | {"k": 5} | {key: value})
    with pytest.raises(StudyError) as caught:
        load_expected(path)
    error = caught.value
    assert error.file == path
    assert error.column.startswith("entry 1") or key == "value"
    assert str(key) in str(error)
    assert error.fix


@pytest.mark.parametrize("key", sorted(ENTRY))
def test_a_missing_key_is_named(tmp_path, key):
    with pytest.raises(StudyError, match=key):
        load_expected(expected(tmp_path, {name: value for name, value in ENTRY.items() if name != key}))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "dataset: synthetic",
        "- 3",
        "- [",
        "- &a [1]\n- *a",
        "just text",
        "- !!python/object/apply:os.getcwd []",
    ],
)
def test_a_file_that_is_no_list_of_entries_is_refused(tmp_path, text):
    path = tmp_path / "expected.yaml"
    path.write_text(text)
    with pytest.raises(StudyError) as caught:
        load_expected(path)
    assert caught.value.file == path


def test_absent_undecodable_and_repeating_files_are_refused(tmp_path):
    with pytest.raises(StudyError, match="no file"):
        load_expected(tmp_path / "absent.yaml")
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\xfa")
    with pytest.raises(StudyError, match="YAML"):
        load_expected(tmp_path / "bytes.yaml")
    with pytest.raises(StudyError, match="repeats entry 0"):
        load_expected(expected(tmp_path, ENTRY, ENTRY | {"value": 0.2}))


def test_an_expected_value_is_the_mean_of_a_committed_per_task_file(tmp_path):
    (tmp_path / "per_task.csv").write_text("task_id,seed,recall@10\n1,42,0.5\n2,42,0.25\n")
    entry = {key: value for key, value in ENTRY.items() if key != "value"}
    path = expected(tmp_path, entry | {"per_task": "per_task.csv"})
    assert compare(path, measured(0.375))["verdict"].tolist() == ["OK"]
    for wrong in ({"per_task": "per_task.csv", "value": 0.375}, {"per_task": "absent.csv"}, {}):
        with pytest.raises(StudyError):
            load_expected(expected(tmp_path, entry | wrong))
