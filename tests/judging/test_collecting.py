"""Answers are taken in full or not at all, and the final grade follows the stated rule."""

import itertools

import pandas as pd
import pytest

from study.errors import StudyError
from study.judging import batches, collecting, store

DATASET = "synthetic"
EXPECTED = [(1, 10), (1, 11), (2, 10)]
GOOD = "task_id,server_id,grade\n1,10,0\n1,11,2\n2,10,1\n"


def test_final_grade_for_every_pair_of_grades():
    waiting = {pair for pair in itertools.product((0, 1, 2), repeat=2) if collecting.final_grade(*pair) is None}
    assert waiting == {(0, 1), (1, 0), (0, 2), (2, 0)}
    assert [collecting.final_grade(g, g) for g in (0, 1, 2)] == [0, 1, 2]
    assert collecting.final_grade(1, 2) == collecting.final_grade(2, 1) == 1
    assert [collecting.final_grade(0, 1, third) for third in (0, 1, 2)] == [0, 1, 1]
    assert [collecting.final_grade(2, 0, third) for third in (0, 1, 2)] == [0, 1, 2]


def test_good_answers_are_read_whatever_their_order(tmp_path):
    path = tmp_path / "01.csv"
    path.write_text("\ufefftask_id,server_id,grade\r\n2, 10, 1\r\n\r\n1,11,2\r\n1,10,0\r\n")
    assert collecting.read_answers(path, EXPECTED) == {(1, 10): 0, (1, 11): 2, (2, 10): 1}


@pytest.mark.parametrize(
    ("text", "row", "reason"),
    [
        (GOOD.replace("1,11,2\n", "1,11,3\n"), 3, "not 0, 1 or 2"),
        (GOOD.replace("1,11,2\n", "1,12,2\n"), 3, "not in this batch"),
        (GOOD.replace("1,11,2\n", "1,10,2\n"), 3, "graded twice"),
        (GOOD.replace("1,11,2\n", ""), 4, "have no grade"),
        (GOOD.replace("1,11,2\n", "1,11\n"), 3, "not three whole numbers"),
        (GOOD.replace("1,11,2\n", "1,11,2,because\n"), 3, "not three whole numbers"),
        (GOOD.replace("1,11,2\n", "1,11,-1\n"), 3, "not three whole numbers"),
        (GOOD.replace("1,11,2\n", "1,11,²\n"), 3, "not three whole numbers"),
        (GOOD.replace("task_id,server_id", "server_id,task_id"), 1, "not the header"),
        ("", 1, "not the header"),
    ],
)
def test_faulty_answers_name_file_and_line(tmp_path, text, row, reason):
    path = tmp_path / "01.csv"
    path.write_text(text)
    with pytest.raises(StudyError, match=reason) as caught:
        collecting.read_answers(path, EXPECTED)
    assert (caught.value.file, caught.value.row) == (path, row)


def test_a_missing_or_extra_answer_file_is_named(root):
    folder = store.work(DATASET) / "round-1"
    first = sorted((folder / "pass-2" / "answers").glob("*.csv"))[0]
    text = first.read_text()
    first.unlink()
    with pytest.raises(StudyError, match="answers are missing"):
        collecting.collect(DATASET, folder, judge="x")
    state = collecting.progress(folder / "pass-2").set_index("batch")["state"]
    assert state[first.stem] == "missing"
    assert set(state.drop(first.stem)) == {"complete"}
    first.write_text(text)
    (first.parent / "99.csv").write_text(text)
    with pytest.raises(StudyError, match="without a batch"):
        collecting.collect(DATASET, folder, judge="x")


def test_progress_says_what_is_wrong(root):
    folder = store.work(DATASET) / "round-1" / "pass-1"
    path = sorted((folder / "answers").glob("*.csv"))[0]
    path.write_text(path.read_text() + "1,2,3\n")
    assert "not 0, 1 or 2" in collecting.progress(folder).set_index("batch").loc[path.stem, "state"]


def test_collecting_twice_changes_nothing_and_other_data_is_refused(root):
    path = store.file(DATASET, "judgements")
    before = path.read_bytes()
    collecting.collect(DATASET, store.work(DATASET) / "round-1", judge="simulated")
    assert path.read_bytes() == before
    with pytest.raises(StudyError, match="batches are of"):
        collecting.collect("task2mcp", store.work(DATASET) / "round-1", judge="simulated")


def test_merge_refuses_passes_of_different_pairs():
    facts = {"round": 1, "guideline_version": "1.0", "judge": "x"}
    with pytest.raises(StudyError, match="one of the two passes only"):
        collecting.merge({(1, 1): 0}, {(1, 2): 0}, {}, **facts)
    with pytest.raises(StudyError, match="without need"):
        collecting.merge({(1, 1): 0}, {(1, 1): 0}, {(1, 1): 0}, **facts)


def test_a_damaged_table_of_judgements_is_refused(root):
    path = store.file(DATASET, "judgements")
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines, lines[1]]))
    with pytest.raises(StudyError, match="repeats task_id and server_id"):
        store.read_table(DATASET, "judgements")
    path.write_text("\n".join([lines[0], "1,2,0,7,,0,1,1.0,x"]))
    with pytest.raises(StudyError, match="not 0, 1 or 2"):
        store.read_table(DATASET, "judgements")
    path.write_text("\n".join([lines[0], "1,2,0,1,,,1,1.0,x"]))
    with pytest.raises(StudyError, match="wait for a third pass"):
        store.final(DATASET)


def test_a_re_annotation_measures_drift(root, truth_of, simulated_judge):
    folder = batches.write_batches(DATASET, batches.AGAIN)
    simulated_judge(folder, truth_of(), seed=9, error_rate=0.0)
    collecting.collect(DATASET, store.work(DATASET) / "round-1", judge="simulated")
    again, judged = store.read_table(DATASET, "rejudged"), store.read_table(DATASET, "judgements")
    path, earlier = store.file(DATASET, "rejudged"), again.assign(round=0)
    pd.concat([earlier, again]).to_csv(path, index=False)
    collecting.collect(DATASET, store.work(DATASET) / "round-1", judge="simulated")
    kept = store.read_table(DATASET, "rejudged")  # what another round's re-annotation found is kept
    assert kept["round"].value_counts().to_dict() == {0: len(again), 1: len(again)}
    assert len(again) == round(0.05 * len(judged))
