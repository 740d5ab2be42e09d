"""The committed files: damaged ones are refused, final grades follow the rule, and no text of the data is in them."""

import itertools

import pandas as pd
import pytest

from study.base.errors import StudyError
from study.judging import store, verify

DATASET, RELEASED = "synthetic", "task2mcp"


def test_final_grade_for_every_pair_of_grades_of_the_same_pairs():
    cases = pd.DataFrame(itertools.product((0, 1, 2), (0, 1, 2), (None, 0, 1, 2)), columns=["one", "two", "three"])
    rows = cases.set_axis(["grade_1", "grade_2", "grade_3"], axis=1).astype("Int64")
    final = verify.final_grades(rows).groupby([rows["grade_1"], rows["grade_2"]]).agg(list).to_dict()
    assert {pair for pair, grades in final.items() if grades[0] is pd.NA} == {(0, 1), (1, 0), (0, 2), (2, 0)}
    assert [final[grade, grade] for grade in (0, 1, 2)] == [[0] * 4, [1] * 4, [2] * 4]
    assert final[1, 2] == final[2, 1] == [1] * 4
    assert final[0, 1][1:] == [0, 1, 1]
    assert final[2, 0][1:] == [0, 1, 2]


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
    for file, read in ((path, store.final), (runs, store.read_runs)):
        file.unlink()
        with pytest.raises(StudyError, match="the table is missing"):
            read(DATASET)


@pytest.mark.mirror
def test_the_committed_topics_come_from_their_parts_evenly(task2mcp):
    data, split, topics = task2mcp.data, task2mcp.split("cold"), store.read_table(RELEASED, "topics")
    assert topics["part"].value_counts().to_dict() == {"test": 80, "fresh": 60, "valid": 40}
    for part, own in topics.groupby("part"):
        source = "valid" if part == "valid" else "test"
        assert set(own["task_id"]) <= set(data.tasks["id"].to_numpy()[split.tasks(source)])
        sizes = own["subcategory"].value_counts()
        assert (len(sizes), sizes.max() - sizes.min() <= 1) == (16, True)


@pytest.mark.slow
@pytest.mark.mirror
def test_every_pair_exists_the_labels_are_in_the_pool_and_no_text_is(task2mcp):
    data, labels = task2mcp.data, task2mcp.labels()
    pool, listed = store.read_table(RELEASED, "pool"), store.read_runs(RELEASED)["labels"]
    assert set(pool["task_id"]) == set(store.read_table(RELEASED, "topics")["task_id"])
    assert set(pool["server_id"]) <= set(data.servers["id"])
    wanted = labels[labels["task_id"].isin(pool["task_id"]) & (labels["position"] <= 10)]
    ranks = [listed[["task_id", "rank", "server_id"]], wanted[["task_id", "position", "server_id"]]]
    assert len({frozenset(map(tuple, table.to_numpy().tolist())) for table in ranks}) == 1
    assert store.pairs(listed) <= store.pairs(pool)
    files = [path for path in store.folder(RELEASED).rglob("*") if path.suffix in (".csv", ".txt")]
    committed = "\n".join(path.read_text(encoding="utf-8") for path in files)
    for texts in (data.tasks["description"], data.servers["description"]):
        assert not any(text in committed for text in texts if len(text) > 20)
