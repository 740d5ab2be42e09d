"""The authors' program: that only the pinned bytes run, what is read of it, and how it is measured."""

import hashlib
import json
import math

import pandas as pd
import pytest

from study.base.errors import StudyError
from study.config.compose import load
from study.runner import authors_program
from tests.tiny_study import TINY

TEN = list(range(1, 11))
# Answers with the servers 1 to 10, whatever the task; the environment decides nothing but may not hold a key.
FAKE = """
import csv, json, os, sys
words = dict(word.removeprefix("--").split("=", 1) for word in sys.argv[1:])
assert "OPENAI_API_KEY" not in os.environ and os.environ["OMP_NUM_THREADS"] == "1"
print("read", len(open(words["data_dir"] + "/mcp_raw.csv").readlines()), "in", os.getcwd())
os.makedirs(words["output_dir"])
with open(words["output_dir"] + "/recs_test.csv", "w") as stream:
    rows = csv.writer(stream)
    rows.writerow(["task_id", "top5", "top10"])
    rows.writerow([3, json.dumps(list(range(1, 6))), json.dumps(list(range(1, 11)))])
"""


def test_measures_by_hand_with_a_listed_id_that_no_server_has():
    # Task 4 lists 1, 3 and 0: hits at ranks 1 and 3. Task 9 lists 11: no hit.
    found = authors_program.measure({4: TEN, 9: TEN}, {4: {0, 1, 3}, 9: {11}}).set_index("task_id")
    ideal = 1 + 1 / math.log2(3) + 1 / math.log2(4)
    hand = {"recall@5": 2 / 3, "precision@5": 2 / 5, "precision@10": 2 / 10, "f1@10": 4 / 13, "ndcg@10": 1.5 / ideal}
    assert found.loc[4, list(hand)].to_dict() == pytest.approx(hand)
    assert (found.loc[9].drop("seed") == 0).all()


def test_only_the_pinned_program_runs_and_a_finished_run_is_not_repeated(root, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    monkeypatch.delenv("T2M_MIRROR", raising=False)
    place = root / "data" / "authors" / "program" / "fake.py"
    place.parent.mkdir(parents=True)
    place.write_text(FAKE)
    pinned = hashlib.sha256(FAKE.encode()).hexdigest()
    source = {"repository": "a/b", "commit": "c", "files": {"fake.py": pinned}}
    (root / "conf" / "authors.yaml").write_text(json.dumps({"source": [source], "arguments": {"epochs": 2}}))
    config = load(TINY)
    authors_program.prepare(config)
    first = authors_program.results_folder("synthetic") / "top10.csv"
    first.parent.mkdir()
    first.write_text(f'task_id,top5,top10\n3,"{TEN[4::-1]}","{TEN[4::-1] + TEN[5:]}"\n')
    folder = authors_program.run(config)
    assert (folder / "agreement.csv").read_text() == "tasks,same_order,same_set\n1,0,1\n"
    assert pd.read_csv(folder / "metrics.csv")["run"].tolist() == ["first"] * 8 + ["again"] * 8
    made = json.loads((folder / "again" / "record.json").read_text())
    assert (made["program"]["sha256"], made["arguments"], made["threads"]) == (pinned, {"epochs": 2}, 1)
    inside = authors_program.input_folder("synthetic") / "epochs_2"
    assert (inside / "run.log").read_text() == f"read 61 in {inside}\n"
    authors_program.run(config)  # the fake one would fail: its output folder is there
    (inside / "done.json").unlink()
    with pytest.raises(StudyError, match="ended with code 1"):
        authors_program.run(config)
    (inside / "run.log").unlink()
    place.write_text(f"{FAKE}\n")
    monkeypatch.setenv("T2M_MIRROR", str(root / "none"))
    with pytest.raises(StudyError, match="the mirror lacks a file"):  # what is not the pinned program is fetched anew
        authors_program.run(config)
    assert not (inside / "run.log").exists()


WRONG = {
    "9,[1],[1]": "task_id",
    '3,"[1, 2, 3, 4, 5]","[1, 2, 3, 4, 5]"': "top10",
    f'3,"{TEN[:5]}","{[1, 1, *TEN[2:]]}"': "top10",
    f'3,"{TEN[:5]}","{[*TEN[:9], 99]}"': "top10",
    f'3,"{TEN[1:6]}","{TEN}"': "top5",
    "3,__import__('os'),[]": None,
    f'4,"{TEN[:5]}","{TEN}"': "task_id",  # for a second time
}


@pytest.mark.parametrize("line", WRONG)
def test_malformed_recommendations_are_refused_with_file_and_line(tmp_path, line):
    path = tmp_path / "recs_test.csv"
    path.write_text(f'task_id,top5,top10\n4,"{TEN[:5]}","{TEN}"\n{line}\n')
    with pytest.raises(StudyError) as caught:
        authors_program.read_top10(path, {3, 4}, set(TEN))
    assert (caught.value.file, caught.value.row, caught.value.column) == (path, "line 3", WRONG[line])
