"""Measures against trec_eval and scikit-learn, by hand, and agreement with its interval over topics."""

import ir_measures
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ir_measures import Bpref, P, Qrel, ScoredDoc, nDCG
from sklearn.metrics import cohen_kappa_score

from study.base.errors import StudyError
from study.judging import agreement, store
from study.judging import collection as measures
from study.judging.collection import Collection
from study.judging.evaluate import per_task
from tests.judging.conftest import DATASET, truth_of


def grades(*places):
    return np.array([places], dtype=np.int8)


def bpref(places, useful, useless):
    return float(measures.bpref(grades(*places), np.array([useful]), np.array([useless]))[0])


def test_by_hand():
    row = grades(2, 0, -1, 1, -2)
    assert measures.precision(row, 5, least=1)[0] == 2 / 5
    assert measures.precision(row, 5, least=2)[0] == 1 / 5
    assert measures.unjudged(row, 5)[0] == 1 / 4
    assert measures.unjudged(grades(-2, -2), 2)[0] == 0
    # Three useful servers, two useless ones, one useless above the second: (1 + (1 - 1/2)) / 3.
    assert bpref((2, 0, -1, 1, -2), 3, 2) == pytest.approx(1.5 / 3)
    assert bpref((1, 1), 2, 0) == 1
    assert np.isnan(bpref((0, 0), 0, 2))
    value, residual = measures.rbp(row, 0.5)
    assert value[0] == pytest.approx(0.5 + 0.0625)
    assert residual[0] == pytest.approx(0.125 + 0.5**5)


@given(st.lists(st.sampled_from([-2, -1, 0, 1, 2]), min_size=1, max_size=10), st.floats(0.05, 0.95))
def test_rbp_is_the_expected_yield_of_a_reader_who_stops(places, p):
    # A reader who stops after exactly n places (probability (1-p) p^(n-1)) has met hits(n); Moffat and Zobel, eq. 2.
    padded = np.array(places + [0] * 600)
    hits = np.cumsum(padded >= 1)
    stops = (1 - p) * p ** np.arange(len(padded))
    value, residual = measures.rbp(grades(*places), p)
    assert value[0] == pytest.approx((1 - p) * (stops @ hits), abs=1e-9)
    best = measures.rbp(grades(*[1 if g == -1 else g for g in places]), p)[0][0] + p ** len(places)
    assert value[0] + residual[0] == pytest.approx(best)
    assert 0 <= value[0] <= value[0] + residual[0] <= 1 + 1e-12


@st.composite
def collections(draw):
    """Topics with judged servers of random grades, and a run that also answers unjudged ones."""
    n = draw(st.integers(2, 4))
    judgements, run = [], []
    for task in range(1, n + 1):
        judged = draw(st.dictionaries(st.integers(1, 25), st.integers(0, 2), min_size=1, max_size=20))
        judgements += [(task, server, grade) for server, grade in judged.items()]
        answers = draw(st.lists(st.integers(1, 40), min_size=10, max_size=10, unique=True))
        run += [(task, 1, rank, server) for rank, server in enumerate(answers, start=1)]
    frame = pd.DataFrame(judgements, columns=["task_id", "server_id", "final"]).astype("Int64")
    topics = pd.DataFrame({"task_id": range(1, n + 1), "part": "test", "subcategory": "a"})
    frame = frame.assign(grade_1=frame["final"], grade_2=frame["final"])
    return topics, frame, pd.DataFrame(run, columns=["task_id", "seed", "rank", "server_id"])


@settings(max_examples=60)
@given(collections())
def test_scores_equal_those_of_trec_eval(case):
    topics, judgements, run = case
    ours = per_task(Collection.of(topics, judgements), run).set_index("task_id")
    qrels = [Qrel(str(t), str(s), int(g)) for t, s, g in judgements[["task_id", "server_id", "final"]].to_numpy()]
    ranked = [ScoredDoc(str(t), str(s), -float(r)) for t, r, s in run[["task_id", "rank", "server_id"]].to_numpy()]
    # trec_eval takes gains as they are, so 2^g - 1 is handed over as the gain.
    exponential = [Qrel(q.query_id, q.doc_id, 2**q.relevance - 1) for q in qrels]
    pairs = [("bpref", Bpref, qrels), ("precision@5", P @ 5, qrels), ("core_precision@10", P(rel=2) @ 10, qrels)]
    pairs += [("ndcg@5", nDCG @ 5, exponential), ("ndcg@10", nDCG @ 10, exponential)]
    for column, measure, truth in pairs:
        for theirs in ir_measures.iter_calc([measure], truth, ranked):
            value = ours.loc[int(theirs.query_id), column]
            if np.isnan(value):
                assert theirs.value == 0  # trec_eval calls it 0 where there is nothing to find
            else:
                assert value == pytest.approx(theirs.value, abs=1e-9), column


pairs_of_grades = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=2, max_size=60)


@given(pairs_of_grades, st.sampled_from(["linear", "quadratic"]))
def test_kappa_equals_that_of_scikit_learn(pairs, weights):
    first, second = (np.array(side) for side in zip(*pairs, strict=True))
    counts = agreement.confusions(first, second)
    kappa = float(agreement.weighted_kappa(counts, weights))
    if len(set(first) | set(second)) == 1:
        assert np.isnan(kappa)
        return
    assert kappa == pytest.approx(cohen_kappa_score(first, second, labels=[0, 1, 2], weights=weights), abs=1e-12)


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


def test_table_counts_every_pair_and_finds_the_planted_agreement(collection):
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
    whole, later = (row for _, row in agreement.drift(judged, again).iterrows())
    assert (whole["round"], whole["pairs"], whole["shift"]) == ("all", 200, later["shift"])
    planted = float((np.minimum(some["final"] + 1, 2) - some["final"]).mean())
    assert later["shift"] == pytest.approx(planted)
    assert 0 < later["ci_low"] < planted < later["ci_high"]
    still = agreement.drift(judged, some[store.PAIR].assign(grade=some["final"], round=2)).iloc[1]
    assert (still["shift"], still["kappa_quadratic"]) == (0.0, 1.0)
    both = agreement.drift(judged, pd.concat([again, again.assign(grade=some["final"], round=3)]))
    assert both["shift"].tolist() == pytest.approx([later["shift"] / 2, later["shift"], 0.0])
    strange = pd.DataFrame({"task_id": [-1], "server_id": [-1], "grade": [0], "round": [2]})
    with pytest.raises(StudyError, match="not judged before"):
        agreement.drift(judged, strange)


def test_a_persons_grades_are_compared_with_the_final_ones(root):
    judged = store.final(DATASET)
    folder, task = store.folder(DATASET) / "by_hand" / "ann", int(judged["task_id"].iloc[0])
    grades = judged[judged["task_id"] == task][store.PAIR].assign(grade=judged["final"])
    folder.mkdir(parents=True)
    grades.to_csv(folder / f"{task}.csv", index=False)
    row = agreement.agreement_tables(Collection.load(DATASET))["by_hand"].iloc[0]
    assert (row["judge"], row["topics"], row["pairs"]) == ("ann", 1, len(grades))
    assert row["equal"] == row["kappa_quadratic"] == 1
    grades.assign(grade=0).to_csv(folder / f"{task}.csv", index=False)
    assert agreement.agreement_tables(Collection.load(DATASET))["by_hand"].iloc[0]["mean_hand"] == 0
