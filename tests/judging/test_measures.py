"""Measures by hand and against trec_eval (through ir-measures)."""

import ir_measures
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ir_measures import Bpref, P, Qrel, ScoredDoc, nDCG

from study.judging import collection as measures
from study.judging.collection import Collection
from study.judging.evaluate import per_task


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
    own = per_task(Collection.of(topics, judgements), run).set_index("task_id")
    qrels = [Qrel(str(t), str(s), int(g)) for t, s, g in judgements[["task_id", "server_id", "final"]].to_numpy()]
    ranked = [ScoredDoc(str(t), str(s), -float(r)) for t, r, s in run[["task_id", "rank", "server_id"]].to_numpy()]
    # trec_eval takes gains as they are, so 2^g - 1 is handed over as the gain.
    exponential = [Qrel(q.query_id, q.doc_id, 2**q.relevance - 1) for q in qrels]
    pairs = [("bpref", Bpref, qrels), ("precision@5", P @ 5, qrels), ("core_precision@10", P(rel=2) @ 10, qrels)]
    pairs += [("ndcg@5", nDCG @ 5, exponential), ("ndcg@10", nDCG @ 10, exponential)]
    for column, measure, truth in pairs:
        for found in ir_measures.iter_calc([measure], truth, ranked):
            value = own.loc[int(found.query_id), column]
            if np.isnan(value):
                assert found.value == 0  # trec_eval calls it 0 where there is nothing to find
            else:
                assert value == pytest.approx(found.value, abs=1e-9), column
