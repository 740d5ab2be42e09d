"""Further readings: agreement by hand-computed cases, scores by another reading, and what each threat test finds."""

import numpy as np
import pandas as pd
import pytest

from study.errors import StudyError
from study.judging import annotation, passes, readings, store, threats
from study.judging.collection import Collection
from tests.judging.conftest import change_yaml, parsed, truth_of

DATASET = "synthetic"
COUNTS = np.array([[6.0, 1, 0], [2, 3, 1], [0, 0, 4]])


def pairs_of(counts):
    """The pairs of grades that a table counts."""
    return [(one, two) for (one, two), n in np.ndenumerate(counts) for _ in range(int(n))]


def test_positive_agreement_counts_what_both_find_useful():
    # Both useful: 3 + 1 + 4 = 8; first alone 2, second alone 1.
    assert readings.positive_agreement(COUNTS) == pytest.approx(16 / 19)


def test_ordinal_alpha_is_that_of_its_definition():
    assert readings.ordinal_alpha(np.diag([3.0, 2, 1])) == 1
    both = pairs_of(COUNTS)
    values = [grade for pair in both for grade in pair]
    number = {grade: values.count(grade) for grade in range(3)}

    def distance(one, two):
        low, high = min(one, two), max(one, two)
        return (sum(number[g] for g in range(low, high + 1)) - (number[low] + number[high]) / 2) ** 2

    observed = np.mean([distance(*pair) for pair in both])
    n = len(values)
    expected = sum(distance(values[i], values[j]) for i in range(n) for j in range(n) if i != j) / (n * (n - 1))
    assert readings.ordinal_alpha(COUNTS) == pytest.approx(1 - observed / expected)


def test_a_drawn_pair_counts_for_those_it_stands_for():
    rows = pd.DataFrame([(1, 0, 0, 10.0), (1, 0, 1, 10.0), (2, 1, 1, 1.0), (2, 2, 0, 1.0)])
    rows.columns = ["task_id", "one", "other", "weight"]
    found = readings.agreement_row(rows)
    assert found["pairs"] == 4
    assert found["positive_agreement"] == pytest.approx(2 * 1 / (2 * 1 + 1 + 10))


def answer(folder, grade):
    """Answer a pass: `grade` of a pair."""
    for name, pairs in parsed(folder).items():
        lines = [f"{task},{server},{grade(task, server)}" for task, server in pairs]
        (folder / "answers" / f"{name}.csv").write_text("\n".join([annotation.ANSWER_HEADER, *lines]))


def test_checks_are_written_answered_and_told_apart(root):
    change_yaml(root / "conf/judging/pool.yaml", compared=["bm25", "random"])
    truth, judged = truth_of(), store.final(DATASET)
    folders = {name: annotation.write_batches(DATASET, name) for name in passes.CHECKS}
    answer(folders["need-1"], lambda task, server: 3)
    with pytest.raises(StudyError, match="the grade 3 is none of 0, 1, 2"):
        annotation.collect_checks(DATASET, folders["need-1"].parent, judge="simulated")
    answer(folders["need-1"], lambda task, server: truth[task, server])
    answer(folders["need-2"], lambda task, server: 2 * (truth[task, server] > 0))
    answer(folders["umbrela"], lambda task, server: truth[task, server] + 1)
    decoys = passes.decoys(DATASET).set_index(store.PAIR)["kind"]
    answer(folders["decoys"], lambda task, server: 2 * (decoys[task, server] == "claim"))
    annotation.collect_checks(DATASET, folders["decoys"].parent, judge="simulated")
    found = store.read_table(DATASET, "readings")
    sizes = found.groupby("reading").size()
    useful = int((judged["final"] >= 1).sum())
    assert sizes["umbrela"] == useful + round(0.1 * (len(judged) - useful))
    assert (
        sizes["need-1"] == sizes["need-2"] == judged["task_id"].isin(found.query("reading == 'need-1'").task_id).sum()
    )
    for name in ("umbrela", "need"):
        grades = readings.converted(found, name).set_index(store.PAIR)["grade"]
        assert all(grade == truth[pair] for pair, grade in grades.items())
    tables = readings.reading_tables(Collection.load(DATASET))
    both = (
        tables["tables/reading_scores.csv"]
        .query("system == 'bm25' and part == 'test'")
        .set_index(["against", "reading"])
    )
    # The judge errs on one pair in ten, and these readings do not.
    assert both.loc[("need", "final"), "n"] == both.loc[("need", "need"), "n"]
    assert tables["tables/reading_order.csv"]["tau"].between(-1, 1).all()
    table = threats.threat_tables(Collection.load(DATASET), tables["tables/reading_scores.csv"])["tables/threats.csv"]
    value = table.set_index("measure")["value"]
    assert value["cards graded useful, claim"] == 1
    assert value["cards graded useful, words"] == value["cards graded useful, instruction"] == 0
    assert value["topics graded by a person"] == 0


def test_a_decoy_shows_another_card_of_a_server_without_use(shared_root):
    chosen, judged = passes.decoys(DATASET), store.final(DATASET).set_index(store.PAIR)
    finals = judged.loc[pd.MultiIndex.from_frame(chosen[store.PAIR]), "final"].to_numpy()
    assert ((finals >= 1) == (chosen["kind"] == "useful").to_numpy()).all()
    server, task = {"description": "Sends mail."}, {"description": "Plot the sales of the year"}
    shown = {kind: passes.altered(kind, server, task)["description"] for kind in passes.KINDS}
    assert shown["useful"] == shown["useless"] == "Sends mail."
    assert shown["words"] == "Sends mail. Keywords: plot, sales, year."
    assert shown["instruction"] == f"Sends mail. {passes.INSTRUCTION}"
    assert shown["claim"] == "Plot the sales of the year Sends mail."


def test_a_judge_who_favours_the_first_half_of_a_packet_is_found(root):
    values = threats.placement(Collection.load(DATASET))
    assert abs(values.mean()) < 0.05
    judged, pool = store.read_table(DATASET, "judgements"), store.read_table(DATASET, "pool")
    for number in ("1", "2"):
        ordered = pd.concat(passes.group(pool[store.PAIR], 8, passes.order_of(1, number)))
        place = (
            ordered.groupby("task_id").cumcount() * 2 < ordered.groupby("task_id")["server_id"].transform("size") - 1
        )
        first = pd.Series(place.to_numpy(), pd.MultiIndex.from_frame(ordered))
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
    own = judged.loc[judged["task_id"] == task, ["server_id", "final"]].rename(columns={"final": "characters"})
    own.to_csv(store.file(DATASET, "lengths"), index=False)
    others = sorted(judged.loc[judged["server_id"].isin(own["server_id"]), "task_id"].unique())
    assert threats.length_effect(Collection.load(DATASET))[others.index(task)] == pytest.approx(1)


def test_without_a_system_its_own_finds_are_unknown(shared_root):
    found = threats.leave_one_out(Collection.load(DATASET))
    named = store.read_table(DATASET, "provenance")
    own = named[(named["control"] == 0) & (named["sources"] == "bm25")]
    assert found.query("system == 'bm25'")["alone"].sum() == len(own) > 0
    assert (found.loc[found["alone"] == 0, "drop"] == 0).all()
    useful = store.pairs(own) & store.pairs(store.useful(DATASET))
    assert (found.query("system == 'bm25'")["drop"].abs().sum() > 0) == bool(useful)
