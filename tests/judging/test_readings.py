"""Further readings: agreement by hand-computed cases, scores by another reading, and what each threat test finds."""

import numpy as np
import pandas as pd
import pytest

from study.base.errors import StudyError
from study.base.files import write_csv
from study.judging import evaluate, readings, store, threats
from study.judging.collection import Collection
from tests.judging.conftest import change_yaml, truth_of

DATASET = "synthetic"
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
    found = readings.agreement_row(rows)
    assert (found["pairs"], found["positive_agreement"]) == (4, pytest.approx(2 * 1 / (2 * 1 + 1 + 10)))


@pytest.fixture
def read(root):
    """Further readings by the planted truth: UMBRELA's of all pairs, the need's of half the test topics, and cards."""
    change_yaml(root / "conf/judging/pool.yaml", compared=["bm25", "random"])
    judged, truth = store.final(DATASET), truth_of()
    planted = np.array([truth[pair] for pair in judged[store.PAIR].itertuples(index=False, name=None)])
    topics = store.read_table(DATASET, "topics").query("part == 'test'")["task_id"][::2]
    need, kind = judged["task_id"].isin(topics).to_numpy(), np.resize(threats.KINDS, len(judged))
    grades = {"umbrela": planted + 1, "need-1": planted[need], "need-2": 2 * (planted[need] > 0)}
    tables = [
        judged[need if "need" in name else slice(None)].assign(reading=name, given=g) for name, g in grades.items()
    ]
    tables.append(judged.assign(reading="decoys", kind=kind, given=2 * (kind == "claim")))
    table = pd.concat(tables, ignore_index=True).reindex(columns=store.COLUMNS["readings"])
    write_csv(store.file(DATASET, "readings"), table)
    return table, truth, topics


def test_readings_on_our_scale_give_scores_and_threats(read):
    table, truth, topics = read
    for name in ("umbrela", "need"):
        grades = readings.converted(table, name).set_index(store.PAIR)["grade"]
        assert all(grade == truth[pair] for pair, grade in grades.items())
    tables = readings.reading_tables(Collection.load(DATASET))
    both = tables["tables/reading_scores.csv"].query("system == 'bm25' and part == 'test'")
    both = both.set_index(["against", "reading"])
    assert both.loc[("need", "need"), "n"] <= len(topics) < both.loc[("umbrela", "umbrela"), "n"]
    # The judge errs on one pair in ten, and these readings do not.
    assert both.loc[("need", "final"), "n"] == both.loc[("need", "need"), "n"]
    assert both.loc[("umbrela", "umbrela"), "gain"] > 0
    assert tables["tables/reading_order.csv"]["tau"].between(-1, 1).all()
    counted = tables["tables/umbrela.csv"].groupby("umbrela")["pairs"].sum()
    assert counted.sum() == len(store.final(DATASET))
    found = threats.threat_tables(Collection.load(DATASET), tables["tables/reading_scores.csv"])["tables/threats.csv"]
    value = found.set_index("measure")["value"]
    assert value["cards graded useful, claim"] == 1
    assert value["cards graded useful, words"] == value["cards graded useful, instruction"] == 0
    assert value["topics graded by a person"] == 0


def test_a_judge_who_favours_the_first_half_of_a_packet_is_found(root):
    values = threats.placement(Collection.load(DATASET))
    assert abs(values.mean()) < 0.05
    judged, pool = store.read_table(DATASET, "judgements"), store.read_table(DATASET, "pool")
    for number in (1, 2):
        rng = np.random.default_rng([threats.PACKETS_SEED, 4, 1, number])
        ordered = pool[store.PAIR].sort_values(store.PAIR).sample(frac=1, random_state=rng)
        packet = ordered.groupby("task_id")
        early = packet.cumcount() * 2 < packet["server_id"].transform("size") - 1
        first = pd.Series(early.to_numpy(), pd.MultiIndex.from_frame(ordered))
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
    useful = store.pairs(own) & store.pairs(store.final(DATASET).query("final >= 1"))
    assert (found.query("system == 'bm25'")["drop"].abs().sum() > 0) == bool(useful)


def language_scores(*lists):
    """Scores of a run: a task, and its servers."""
    rows = [(task, 1, rank, server) for task, servers in lists for rank, server in enumerate(servers, start=1)]
    collection, runs = Collection.of(TOPICS, JUDGED), {"a": pd.DataFrame(rows, columns=store.RUN)}
    scores = evaluate.score_tables(collection, runs)["tables/scores.csv"]
    return readings.language_scores(collection, LANGUAGE, scores, runs)


def test_scores_by_language_by_hand():
    found = language_scores((1, [10, 11]), (2, [11, 10]))
    mean = found.set_index("demand")["ndcg@10"]
    second = 1 / np.log2(3)
    assert mean["useful"] == pytest.approx((1 + second) / 2)
    assert mean["callable"] == pytest.approx((second + second) / 2)  # server 10 no longer helps with task 1
    assert mean["in_language"] == pytest.approx(second)  # and task 2 has no server left
    assert found.set_index("demand")["n"].to_dict() == {"useful": 2, "callable": 2, "in_language": 1}
    # Runs with many unjudged answers are left out.
    assert language_scores((1, [10, 99]), (2, [10, 98])).empty
    with pytest.raises(StudyError, match="server 11 for task 1"):
        readings.demanded(JUDGED, LANGUAGE.drop(1), 1)


def test_language_agreement_by_hand():
    grades = LANGUAGE.assign(grade_1=[0, 2, 1], grade_2=[1, 2, 1])
    row = readings.language_agreement(grades).iloc[0]
    assert row[["tied", "callable", "in_language", "equal"]].tolist() == pytest.approx([1 / 3, 1 / 3, 1 / 3, 2 / 3])
