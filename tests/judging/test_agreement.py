"""Kappa against scikit-learn, by hand, and its interval over topics."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import cohen_kappa_score

from study.base.errors import StudyError
from study.judging import agreement, store
from study.judging.collection import Collection
from tests.judging.conftest import truth_of

DATASET = "synthetic"
grades = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=2, max_size=60)


@given(grades, st.sampled_from(["linear", "quadratic"]))
def test_kappa_equals_that_of_scikit_learn(pairs, weights):
    first, second = (np.array(side) for side in zip(*pairs, strict=True))
    counts = agreement.confusions(first, second)
    own = float(agreement.weighted_kappa(counts, weights))
    if len(set(first) | set(second)) == 1:
        assert np.isnan(own)
        return
    assert own == pytest.approx(cohen_kappa_score(first, second, labels=[0, 1, 2], weights=weights), abs=1e-12)


def test_interval_is_over_topics_and_covers():
    rng = np.random.default_rng(0)
    grades = rng.integers(3, size=(40, 20))
    others = np.where(rng.random(grades.shape) < 0.7, grades, 0)
    counts = np.stack([agreement.confusions(*pair) for pair in zip(grades, others, strict=True)])
    low, high = agreement.kappa_interval(counts, "quadratic", seed=1)
    point = float(agreement.weighted_kappa(counts.sum(axis=0), "quadratic"))
    assert low < point < high
    wide = agreement.kappa_interval(counts[:10], "quadratic", seed=1)
    assert wide[1] - wide[0] > high - low
    one = np.array([[[4, 0, 0], [0, 0, 0], [0, 0, 0]]])
    assert all(np.isnan(agreement.kappa_interval(one, "linear", seed=1)))


def test_table_counts_every_pair_and_finds_the_planted_agreement(shared_root):
    collection = Collection.load(DATASET)
    judged = collection.judgements
    table = agreement.agreement_table(collection)
    overall = table.iloc[0]
    assert overall["pairs"] == len(judged)
    assert table.loc[table["scope"] == "subcategory", "pairs"].sum() == len(judged)
    # Quadratic kappa of two alike passes is their correlation; one tenth of each is a random grade.
    truth = truth_of()
    planted = np.array([truth[int(task), int(server)] for task, server in judged[store.PAIR].to_numpy()])
    mixed = np.concatenate([np.repeat(planted, 27), np.repeat([0, 1, 2], len(planted))])
    assert overall["kappa_quadratic"] == pytest.approx(0.9**2 * planted.var() / mixed.var(), abs=0.04)
    assert overall["kappa_quadratic_ci_low"] < overall["kappa_quadratic"] < overall["kappa_quadratic_ci_high"]
    equal = (judged["grade_1"] == judged["grade_2"]).mean()
    assert overall["equal"] == pytest.approx(float(equal))
    confusion = agreement.confusion_table(judged).set_index(["grade_1", "grade_2"])["pairs"]
    counted = judged.groupby(["grade_1", "grade_2"]).size()
    assert confusion[confusion > 0].to_dict() == counted.to_dict()
    with pytest.raises(StudyError, match="not a topic"):
        Collection.of(collection.topics.iloc[1:], judged)


def test_drift_finds_a_planted_shift(shared_root):
    judged = store.read_table(DATASET, "judgements")
    some = judged[judged["grade_1"] == judged["grade_2"]].sample(200, random_state=0)
    again = some[store.PAIR].assign(grade=np.minimum(some["final"] + 1, 2), round=2, guideline_version="1.0", judge="x")
    whole, found = (row for _, row in agreement.drift(judged, again).iterrows())
    assert (whole["round"], whole["pairs"], whole["shift"]) == ("all", 200, found["shift"])
    assert found["useful_again"] == 1
    assert found["useful_final"] == pytest.approx((some["final"] > 0).mean())
    planted = float((np.minimum(some["final"] + 1, 2) - some["final"]).mean())
    assert found["shift"] == pytest.approx(planted)
    assert 0 < found["ci_low"] < planted < found["ci_high"]
    still = agreement.drift(judged, some[store.PAIR].assign(grade=some["final"], round=2)).iloc[1]
    assert (still["shift"], still["kappa_quadratic"]) == (0.0, 1.0)
    both = agreement.drift(judged, pd.concat([again, again.assign(grade=some["final"], round=3)]))
    assert both[["round", "again"]].to_numpy().tolist() == [["all", "all"], [1, 2], [1, 3]]
    assert both["shift"].tolist() == pytest.approx([found["shift"] / 2, found["shift"], 0.0])
    strange = pd.DataFrame({"task_id": [-1], "server_id": [-1], "grade": [0], "round": [2]})
    with pytest.raises(StudyError, match="not judged before"):
        agreement.drift(judged, strange)


def test_a_persons_grades_are_compared_with_the_final_ones(root):
    judged = store.final(DATASET)
    folder, task = store.folder(DATASET) / "by_hand" / "ann", int(judged["task_id"].iloc[0])
    own = judged[judged["task_id"] == task][store.PAIR].assign(grade=judged["final"])
    folder.mkdir(parents=True)
    own.to_csv(folder / f"{task}.csv", index=False)
    found = agreement.agreement_tables(Collection.load(DATASET))["tables/by_hand.csv"].iloc[0]
    assert (found["judge"], found["topics"], found["pairs"]) == ("ann", 1, len(own))
    assert found["equal"] == found["kappa_quadratic"] == 1
    own.assign(grade=0).to_csv(folder / f"{task}.csv", index=False)
    assert agreement.agreement_tables(Collection.load(DATASET))["tables/by_hand.csv"].iloc[0]["mean_hand"] == 0
