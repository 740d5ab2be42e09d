"""Further readings: agreement by hand-computed cases, scores by another reading, and what each threat test finds."""

import shutil

import numpy as np
import pandas as pd
import pytest

from study.base.errors import StudyError
from study.judging import evaluate, readings, store, threats, workflow
from study.judging.collection import Collection
from tests.analysis.toys import change
from tests.judging.conftest import DATASET, answer, truth_of

TOPICS = pd.DataFrame({"task_id": [1, 2], "part": "test", "subcategory": "x"})
JUDGED = pd.DataFrame(
    [(1, 10, 2), (1, 11, 1), (1, 12, 0), (2, 10, 1), (2, 11, 0)], columns=["task_id", "server_id", "final"]
).assign(grade_1=lambda rows: rows["final"], grade_2=lambda rows: rows["final"])
LANGUAGE = pd.DataFrame([(1, 10, 0), (1, 11, 2), (2, 10, 1)], columns=["task_id", "server_id", "final"])
COUNTS = np.array([[6.0, 1, 0], [2, 3, 1], [0, 0, 4]])


def test_agreement_of_two_readings_is_that_of_its_definition():
    # Both useful: 3 + 1 + 4 = 8; first alone 2, second alone 1.
    assert readings.positive_agreement(COUNTS) == pytest.approx(16 / 19)
    assert readings.ordinal_alpha(np.diag([3.0, 2, 1])) == 1
    both = [pair for pair, n in np.ndenumerate(COUNTS) for _ in range(int(n))]
    values = [grade for pair in both for grade in pair]
    n, number = len(values), {grade: values.count(grade) for grade in range(3)}

    def distance(one, two):
        low, high = min(one, two), max(one, two)
        return (sum(number[g] for g in range(low, high + 1)) - (number[low] + number[high]) / 2) ** 2

    observed = np.mean([distance(*pair) for pair in both])
    expected = sum(distance(values[i], values[j]) for i in range(n) for j in range(n) if i != j) / (n * (n - 1))
    assert readings.ordinal_alpha(COUNTS) == pytest.approx(1 - observed / expected)
    # A drawn pair counts for those that it stands for.
    rows = pd.DataFrame([(1, 0, 0, 10.0), (1, 0, 1, 10.0), (2, 1, 1, 1.0), (2, 2, 0, 1.0)])
    rows.columns = ["task_id", "one", "other", "weight"]
    row = readings.agreement_row(rows)
    assert (row["pairs"], row["positive_agreement"]) == (4, pytest.approx(2 * 1 / (2 * 1 + 1 + 10)))


def test_checks_are_written_answered_and_told_apart(root):
    change("judging/pool.yaml", compared=["bm25", "random"])
    truth, judged = truth_of(), store.final(DATASET)
    folders = {name: workflow.write_batches(DATASET, name) for name in workflow.CHECKS}
    answer(folders["need-1"], lambda task, server: 3)
    with pytest.raises(StudyError, match="the grade 3 is none of 0, 1, 2"):
        workflow.collect(DATASET, folders["need-1"].parent, judge="simulated")
    answer(folders["need-1"], lambda task, server: truth[task, server])
    answer(folders["need-2"], lambda task, server: 2 * (truth[task, server] > 0))
    answer(folders["umbrela"], lambda task, server: truth[task, server] + 1)
    decoys = workflow.decoys(DATASET).set_index(store.PAIR)["kind"]
    answer(folders["decoys"], lambda task, server: 2 * (decoys[task, server] == "claim"))
    workflow.collect(DATASET, folders["decoys"].parent, judge="simulated")
    stored = store.read_table(DATASET, "readings")
    sizes = stored.groupby("reading").size()
    useful = int((judged["final"] >= 1).sum())
    assert sizes["umbrela"] == useful + round(0.1 * (len(judged) - useful))
    tasks = stored.query("reading == 'need-1'")["task_id"]
    assert sizes["need-1"] == sizes["need-2"] == judged["task_id"].isin(tasks).sum()
    for name in ("umbrela", "need"):
        grades = readings.converted(stored, name).set_index(store.PAIR)["grade"]
        assert all(grade == truth[pair] for pair, grade in grades.items())
    tables = readings.reading_tables(Collection.load(DATASET))
    both = tables["reading_scores"].query("system == 'bm25' and part == 'test'")
    both = both.set_index(["against", "reading"])
    # The judge errs on one pair in ten, and these readings do not.
    assert both.loc[("need", "final"), "n"] == both.loc[("need", "need"), "n"]
    assert tables["reading_order"]["tau"].between(-1, 1).all()
    table = threats.threat_tables(Collection.load(DATASET), tables["reading_scores"])["threats"]
    value = table.set_index("measure")["value"]
    assert value["cards graded useful, claim"] == 1
    assert value["cards graded useful, words"] == value["cards graded useful, instruction"] == 0
    assert value["topics graded by a person"] == 0


def test_a_decoy_shows_another_card_of_a_server_without_use(shared_root):
    chosen, judged = workflow.decoys(DATASET), store.final(DATASET).set_index(store.PAIR)
    finals = judged.loc[pd.MultiIndex.from_frame(chosen[store.PAIR]), "final"].to_numpy()
    assert ((finals >= 1) == (chosen["kind"] == "useful").to_numpy()).all()
    server, task = {"description": "Sends mail."}, {"description": "Plot the sales of the year"}
    cards = {kind: workflow.altered(kind, server, task)["description"] for kind in workflow.KINDS}
    assert cards["useful"] == cards["useless"] == "Sends mail."
    assert cards["words"] == "Sends mail. Keywords: plot, sales, year."
    assert cards["instruction"] == f"Sends mail. {workflow.INSTRUCTION}"
    assert cards["claim"] == "Plot the sales of the year Sends mail."


def test_a_judge_who_favours_the_first_half_of_a_packet_is_found(root):
    values = threats.placement(Collection.load(DATASET))
    assert abs(values.mean()) < 0.05
    judged, pool = store.read_table(DATASET, "judgements"), store.read_table(DATASET, "pool")
    for number in ("1", "2"):
        ordered = pd.concat(workflow.group(pool[store.PAIR], workflow.order_of(1, number)))
        packet = ordered.groupby("task_id")
        in_first_half = packet.cumcount() * 2 < packet["server_id"].transform("size") - 1
        first = pd.Series(in_first_half.to_numpy(), pd.MultiIndex.from_frame(ordered))
        grades = first.reindex(pd.MultiIndex.from_frame(judged[store.PAIR])).to_numpy()
        judged[f"grade_{number}"] = np.where(grades, 1, 0)
    judged["final"] = judged[["grade_1", "grade_2"]].min(axis=1)
    judged.to_csv(store.file(DATASET, "judgements"), index=False)
    assert threats.placement(Collection.load(DATASET)).mean() > 0.9


def test_lengths_that_rise_with_the_grade_are_found(root):
    judged = store.final(DATASET)
    by_chance = np.nanmean(threats.length_effect(Collection.load(DATASET)))
    total = judged.groupby("server_id")["final"].sum().rename("characters").reset_index()
    total.to_csv(store.file(DATASET, "lengths"), index=False)
    assert np.nanmean(threats.length_effect(Collection.load(DATASET))) > by_chance + 0.2
    # The lengths of one topic's servers are its grades.
    task = judged.groupby("task_id")["final"].nunique().idxmax()
    lengths = judged.loc[judged["task_id"] == task, ["server_id", "final"]].rename(columns={"final": "characters"})
    lengths.to_csv(store.file(DATASET, "lengths"), index=False)
    others = sorted(judged.loc[judged["server_id"].isin(lengths["server_id"]), "task_id"].unique())
    assert threats.length_effect(Collection.load(DATASET))[others.index(task)] == pytest.approx(1)


def test_without_a_system_its_own_finds_are_unknown(collection):
    left_out = threats.leave_one_out(collection)
    named = store.read_table(DATASET, "provenance")
    unique_pairs = named[(named["control"] == 0) & (named["sources"] == "bm25")]
    assert left_out.query("system == 'bm25'")["alone"].sum() == len(unique_pairs) > 0
    assert (left_out.loc[left_out["alone"] == 0, "drop"] == 0).all()
    useful = store.pairs(unique_pairs) & store.pairs(store.final(DATASET).query("final >= 1"))
    assert (left_out.query("system == 'bm25'")["drop"].abs().sum() > 0) == bool(useful)


def language_scores(*lists):
    """Scores of a run: a task, and its servers."""
    rows = [(task, 1, rank, server) for task, servers in lists for rank, server in enumerate(servers, start=1)]
    collection, runs = Collection.of(TOPICS, JUDGED), {"a": pd.DataFrame(rows, columns=store.RUN)}
    scores = evaluate.score_tables(collection, runs)["scores"]
    return readings.language_scores(collection, LANGUAGE, scores, runs)


def test_scores_by_language_by_hand():
    scores = language_scores((1, [10, 11]), (2, [11, 10]))
    mean = scores.set_index("demand")["ndcg@10"]
    second = 1 / np.log2(3)
    assert mean["useful"] == pytest.approx((1 + second) / 2)
    assert mean["callable"] == pytest.approx((second + second) / 2)  # server 10 no longer helps with task 1
    assert mean["in_language"] == pytest.approx(second)  # and task 2 has no server left
    assert scores.set_index("demand")["n"].to_dict() == {"useful": 2, "callable": 2, "in_language": 1}
    # Runs with many unjudged answers are left out.
    assert language_scores((1, [10, 99]), (2, [10, 98])).empty
    with pytest.raises(StudyError, match="server 11 for task 1"):
        readings.demanded(JUDGED, LANGUAGE.drop(1), 1)


def test_two_passes_over_all_useful_pairs_keep_the_lower_grade(root):
    useful = store.pairs(store.final(DATASET).query("final >= 1"))
    assert 0 < len(useful) < len(store.final(DATASET))
    for number, name in enumerate(workflow.LANGUAGE):
        folder = workflow.write_batches(DATASET, name)
        assert all("Language and system" in path.read_text() for path in folder.glob("*.txt"))
        answer(folder, lambda task, server, number=number: (task + server + number) % 3)
    workflow.collect(DATASET, folder.parent, judge="simulated")
    table = store.read_table(DATASET, "language_grades")
    assert store.pairs(table) == useful
    total = table["task_id"] + table["server_id"]
    assert (table["final"] == np.minimum(total % 3, (total + 1) % 3)).all()
    row = readings.language_agreement(table).iloc[0]
    assert row["tied"] + row["callable"] + row["in_language"] == pytest.approx(1)
    assert row["equal"] == 0
    with pytest.raises(StudyError, match="nothing to grade"):
        workflow.write_batches(DATASET, "language-1")
    path = store.file(DATASET, "language_grades")
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))  # a further round found one useful pair
    shutil.rmtree(folder.parent)
    for name in workflow.LANGUAGE:
        folder = workflow.write_batches(DATASET, name)
        answer(folder, lambda *_: 2)
    assert len(workflow.collect(DATASET, folder.parent, judge="simulated")) == 1
    pd.testing.assert_frame_equal(store.read_table(DATASET, "language_grades").iloc[:-1], table.iloc[:-1])
    assert store.pairs(store.read_table(DATASET, "language_grades")) == useful
