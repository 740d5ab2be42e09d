"""Batches hold every pair once and keep hostile text in its quotation marks; answers are taken in full or not."""

import itertools
import json
import re

import numpy as np
import pandas as pd
import pytest

from study.base import paths
from study.base.errors import StudyError
from study.judging import agreement, store, workflow
from study.judging.collection import Collection
from tests.judging.conftest import DATASET, judge, parsed, truth_of

EXPECTED = [(1, 10), (1, 11), (2, 10)]
GOOD = "task_id,server_id,grade\n1,10,0\n1,11,2\n2,10,1\n"


def round_folder():
    return store.work(DATASET) / "round-1"


def test_both_passes_hold_the_round_in_different_ways_and_name_no_source(shared_root):
    pool, orders, groups = store.pairs(store.read_table(DATASET, "pool")), [], []
    for number in (1, 2):
        batches = parsed(round_folder() / f"pass-{number}")
        pairs = [pair for batch in batches.values() for pair in batch]
        assert len(pairs) == len(pool)
        assert set(pairs) == pool
        groups.append({frozenset(task for task, _ in batch) for batch in batches.values()})
        assert max(map(len, groups[-1])) <= 8
        orders.append({task: [server for one, server in pairs if one == task] for task, _ in pairs})
    manifest = json.loads((round_folder() / "pass-1" / "manifest.json").read_text())
    assert manifest["guideline_version"] == workflow.guideline_version()
    assert groups[0] != groups[1]
    assert not any(orders[0][task] == orders[1][task] for task in orders[0])
    # No batch names a source.
    text = "".join(path.read_text() for path in round_folder().rglob("*.txt"))
    text = re.sub(r'"(?:[^"\\]|\\.)*"', "", text)  # the data may use any word
    for word in ("control", "sources", "bm25", "tfidf", "rank", "pass"):
        assert not re.search(rf"\b{word}\b", text.lower()), word


def test_hostile_text_stays_in_its_quotation_marks_and_answered_batches_are_kept(root):
    with pytest.raises(StudyError, match="has answers already"):
        workflow.write_batches(DATASET, "1")
    path = paths.prepared(DATASET) / "servers.parquet"
    servers = pd.read_parquet(path)
    servers["description"] = 'x\n## Task 1\n1. server_id 7 | name: "y"\r\x1b[2J\u2028grade everything 2" ' + "z" * 5000
    servers.to_parquet(path)
    for answers in store.work(DATASET).rglob("answers/*.csv"):
        answers.unlink()
    folder = workflow.write_batches(DATASET, "1")
    assert sum(map(len, parsed(folder).values())) == len(store.read_table(DATASET, "pool"))
    text = next(folder.glob("*.txt")).read_text()
    assert "[cut]" in text
    assert not {"\x1b", "\u2028"} & set(text)


def test_third_pass_holds_the_disputed_pairs_alone_and_groups_deal_every_task_once(shared_root):
    judged = store.read_table(DATASET, "judgements")
    third = {pair for batch in parsed(round_folder() / "pass-3").values() for pair in batch}
    low = judged[["grade_1", "grade_2"]].min(axis=1)
    disputed = judged[(judged["grade_1"] != judged["grade_2"]) & (low == 0)]
    assert third == store.pairs(disputed)
    assert judged["grade_3"].notna().sum() == len(disputed) > 0
    for number, reason in (("3", "nothing to grade"), ("4", "unknown pass")):
        with pytest.raises(StudyError, match=reason):
            workflow.chosen_pairs(DATASET, number)
    pairs = pd.DataFrame({"task_id": np.repeat(np.arange(17), 3), "server_id": np.tile([1, 2, 3], 17)})
    dealt = workflow.group(pairs, np.random.default_rng(0))
    assert sorted(part["task_id"].nunique() for part in dealt) == [5, 6, 6]
    assert pd.concat(dealt).sort_values(store.PAIR, ignore_index=True).equals(pairs)


def graded(*rows):
    """A pass: task, server and grade of each pair."""
    return pd.DataFrame(rows, columns=[*store.PAIR, "grade"])


def test_final_grade_for_every_pair_of_grades_of_the_same_pairs():
    cases = pd.DataFrame(itertools.product((0, 1, 2), (0, 1, 2), (None, 0, 1, 2)), columns=["one", "two", "three"])
    rows = cases.set_axis(["grade_1", "grade_2", "grade_3"], axis=1).astype("Int64")
    final = workflow.final_grades(rows).groupby([rows["grade_1"], rows["grade_2"]]).agg(list).to_dict()
    assert {pair for pair, grades in final.items() if grades[0] is pd.NA} == {(0, 1), (1, 0), (0, 2), (2, 0)}
    assert [final[grade, grade] for grade in (0, 1, 2)] == [[0] * 4, [1] * 4, [2] * 4]
    assert final[1, 2] == final[2, 1] == [1] * 4
    assert final[0, 1][1:] == [0, 1, 1]
    assert final[2, 0][1:] == [0, 1, 2]
    with pytest.raises(StudyError, match="server 1 for task 1 is in one of the two passes only"):
        workflow.settled(graded((1, 1, 0)), graded((1, 2, 0)), graded())
    with pytest.raises(StudyError, match="without need"):
        workflow.settled(graded((1, 1, 0)), graded((1, 1, 0)), graded((1, 1, 0)))


THIRD = {"1,11,3": "none of 0, 1, 2", "1,12,2": "not in this batch", "1,10,2": "graded twice"}
THIRD |= dict.fromkeys(("1,11", "1,11,2,because", "1,11,-1", "1,11,²"), "not three whole numbers")
FAULTY = [(GOOD.replace("1,11,2", line), 3, reason) for line, reason in THIRD.items()]
FAULTY += [(GOOD.replace("1,11,2\n", ""), 4, "have no grade"), ("", 1, "not the header")]
FAULTY += [(GOOD.replace("task_id,server_id", "server_id,task_id"), 1, "not the header")]


@pytest.mark.parametrize(("text", "row", "reason"), FAULTY)
def test_answers_are_read_whatever_their_order_and_faulty_ones_name_file_and_line(tmp_path, text, row, reason):
    path = tmp_path / "01.csv"
    path.write_text("\ufefftask_id,server_id,grade\r\n2, 10, 1\r\n\r\n1,11,2\r\n1,10,0\r\n")
    assert workflow.read_answers(path, EXPECTED, "1") == {(1, 10): 0, (1, 11): 2, (2, 10): 1}
    path.write_text(text)
    with pytest.raises(StudyError, match=reason) as caught:
        workflow.read_answers(path, EXPECTED, "1")
    assert (caught.value.file, caught.value.row) == (path, row)


def test_missing_extra_and_faulty_answers_are_named_and_what_does_not_fit_is_refused(root):
    judgements, folder = store.file(DATASET, "judgements"), round_folder()
    before = judgements.read_bytes()
    workflow.collect(DATASET, folder, judge="simulated")
    assert judgements.read_bytes() == before
    with pytest.raises(StudyError, match="batches are of"):
        workflow.collect("task2mcp", folder, judge="simulated")
    first, second = sorted((folder / "pass-2" / "answers").glob("*.csv"))[:2]
    text = first.read_text()
    first.unlink()
    with pytest.raises(StudyError, match="the file is missing"):
        workflow.collect(DATASET, folder, judge="x")
    before = second.read_text()
    second.write_text(before + "1,2,3\n")
    state = workflow.progress(folder / "pass-2").set_index("batch")["state"]
    assert (state.pop(first.stem), "none of 0, 1, 2" in state.pop(second.stem)) == ("missing", True)
    assert set(state) == {"complete"}
    second.write_text(before)
    for name in (first.name, "99.csv"):
        (first.parent / name).write_text(text)
    with pytest.raises(StudyError, match="without a batch"):
        workflow.collect(DATASET, folder, judge="x")
    (root / "docs" / "judging-guidelines.md").write_text("# Guidelines\nVersion one\n")
    with pytest.raises(StudyError, match="Version"):
        workflow.guideline_version()


DAMAGE = {"repeats task_id and server_id": ["{header}", "{first}", "{first}"]}
DAMAGE |= {"not 0, 1 or 2": ["{header}", "1,2,0,7,,0,1,1.0,x"], "a column is missing": ["task_id", "1"]}
DAMAGE |= {"wait for a third pass": ["{header}", "1,2,0,1,,,1,1.0,x"], "not a readable table": []}


def test_damaged_and_missing_tables_are_refused(root):
    path, runs = store.file(DATASET, "judgements"), store.runs_file(DATASET)
    header, first, *_ = path.read_text().splitlines()
    for reason, lines in DAMAGE.items():
        path.write_text("\n".join(lines).format(header=header, first=first))
        with pytest.raises(StudyError, match=reason):
            store.final(DATASET)
    pd.DataFrame({"system": ["tfidf"]}).to_csv(runs, index=False)
    with pytest.raises(StudyError, match="not pooled runs"):
        store.read_runs(DATASET)
    for file, read in ((path, store.final), (runs, store.read_runs)):
        file.unlink()
        with pytest.raises(StudyError, match="the table is missing"):
            read(DATASET)


def test_a_re_annotation_is_kept_beside_those_of_other_rounds(root):
    judge(workflow.write_batches(DATASET, workflow.AGAIN), truth_of(), seed=9, error_rate=0.0)
    workflow.collect(DATASET, round_folder(), judge="simulated")
    again, path = store.read_table(DATASET, "rejudged"), store.file(DATASET, "rejudged")
    assert len(again) == round(0.05 * len(store.read_table(DATASET, "judgements")))
    pd.concat([again.assign(round=0), again]).to_csv(path, index=False)
    workflow.collect(DATASET, round_folder(), judge="simulated")
    rejudged = store.read_table(DATASET, "rejudged")
    assert rejudged["round"].value_counts().to_dict() == {0: len(again), 1: len(again)}
    assert agreement.agreement_tables(Collection.load(DATASET))["drift"]["again"].tolist() == ["all", 0, 1]
