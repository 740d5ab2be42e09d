"""The second grade: language and system of the useful pairs."""

import shutil

import numpy as np
import pandas as pd
import pytest

from study.errors import StudyError
from study.judging import annotation, language_grades, passes, store
from study.judging.collection import Collection

DATASET = "synthetic"
TOPICS = pd.DataFrame({"task_id": [1, 2], "part": "test", "subcategory": "x"})
JUDGED = pd.DataFrame(
    [(1, 10, 2), (1, 11, 1), (1, 12, 0), (2, 10, 1), (2, 11, 0)], columns=["task_id", "server_id", "final"]
).assign(grade_1=lambda rows: rows["final"], grade_2=lambda rows: rows["final"])
LANGUAGE = pd.DataFrame([(1, 10, 0), (1, 11, 2), (2, 10, 1)], columns=["task_id", "server_id", "final"])


def run(*lists):
    rows = [(task, 1, rank, server) for task, servers in lists for rank, server in enumerate(servers, start=1)]
    return pd.DataFrame(rows, columns=store.RUN)


def test_scores_by_hand():
    found = language_grades.scores(Collection.of(TOPICS, JUDGED), LANGUAGE, {"a": run((1, [10, 11]), (2, [11, 10]))})
    mean = found.set_index("demand")["ndcg@10"]
    second = 1 / np.log2(3)
    assert mean["useful"] == pytest.approx((1 + second) / 2)
    assert mean["callable"] == pytest.approx((second + second) / 2)  # server 10 no longer helps with task 1
    assert mean["in_language"] == pytest.approx(second)  # and task 2 has no server left
    assert found.set_index("demand")["n"].to_dict() == {"useful": 2, "callable": 2, "in_language": 1}


def test_runs_with_many_unjudged_answers_are_left_out():
    found = language_grades.scores(Collection.of(TOPICS, JUDGED), LANGUAGE, {"a": run((1, [10, 99]), (2, [10, 98]))})
    assert found.empty


def test_a_useful_pair_without_a_second_grade_is_named():
    with pytest.raises(StudyError, match="server 11 for task 1"):
        language_grades.demanded(JUDGED, LANGUAGE.drop(1), 1)


def test_two_passes_over_all_useful_pairs_keep_the_lower_grade(root):
    useful = store.pairs(store.useful(DATASET))
    assert 0 < len(useful) < len(store.final(DATASET))
    for number, name in enumerate(passes.LANGUAGE):
        folder = annotation.write_batches(DATASET, name)
        for batch, pairs in annotation.read_manifest(folder)["batches"].items():
            assert "Language and system" in (folder / f"{batch}.txt").read_text()
            lines = [f"{task},{server},{(task + server + number) % 3}" for task, server in pairs]
            (folder / "answers" / f"{batch}.csv").write_text("\n".join([annotation.ANSWER_HEADER, *lines]))
    annotation.collect_language(DATASET, folder.parent, judge="simulated")
    table = store.read_table(DATASET, "language_grades")
    assert store.pairs(table) == useful
    total = table["task_id"] + table["server_id"]
    assert (table["final"] == np.minimum(total % 3, (total + 1) % 3)).all()
    row = language_grades.agreement_row(table).iloc[0]
    assert row["tied"] + row["callable"] + row["in_language"] == pytest.approx(1)
    assert row["equal"] == 0
    with pytest.raises(StudyError, match="nothing to grade"):
        annotation.write_batches(DATASET, "language-1")
    path = store.file(DATASET, "language_grades")
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))  # a further round found one useful pair
    shutil.rmtree(folder.parent)
    for name in passes.LANGUAGE:
        folder = annotation.write_batches(DATASET, name)
        ((task, server),) = annotation.read_manifest(folder)["batches"]["01"]
        (folder / "answers" / "01.csv").write_text(f"{annotation.ANSWER_HEADER}\n{task},{server},2\n")
    assert len(annotation.collect_language(DATASET, folder.parent, judge="simulated")) == 1
    pd.testing.assert_frame_equal(store.read_table(DATASET, "language_grades").iloc[:-1], table.iloc[:-1])
    assert store.pairs(store.read_table(DATASET, "language_grades")) == useful
