"""Measures against hand-computed cases, and against ir-measures (trec_eval underneath) on random rankings and gains."""

import math

import ir_measures
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from ir_measures import AP, RR, P, R, Success, nDCG

from study.base.errors import StudyError
from study.evaluation import metrics

MEASURES = sorted(metrics.PER_TASK)
GAIN_OF_GRADE = {1: 1, 2: 3, 3: 7}
GRADED = nDCG(gains=GAIN_OF_GRADE)
BINARY = nDCG(gains={1: 1, 2: 1, 3: 1})


def ranking(*rows):
    return np.array(rows, dtype=np.int64)


def gains(n_servers, *rows):
    """CSR from one {server: gain} per task."""
    return sp.csr_matrix([[row.get(server, 0) for server in range(n_servers)] for row in rows], dtype=np.float32)


# One task, M+ = {1, 4, 7, 9}, ranked 4 0 7 2 3: hits at ranks 1 and 3.
RANKED = ranking([4, 0, 7, 2, 3])
RELEVANT = gains(10, {1: 1, 4: 1, 7: 1, 9: 1})
DCG = 1 + 1 / math.log2(4)
IDCG_4 = 1 + 1 / math.log2(3) + 1 / math.log2(4) + 1 / math.log2(5)
BY_HAND = {
    "recall": {1: 1 / 4, 5: 2 / 4},
    "precision": {1: 1, 5: 2 / 5, 10: 2 / 10},  # five of ten places stay unfilled and count as misses
    "f1": {1: 2 * 1 * 0.25 / 1.25, 5: 2 * 0.4 * 0.5 / 0.9},
    "ndcg": {2: 1 / (1 + 1 / math.log2(3)), 5: DCG / IDCG_4, 10: DCG / IDCG_4},
    "mrr": {5: 1},
    "hit_rate": {1: 1},
    "map": {2: (1 / 1) / 2, 5: (1 / 1 + 2 / 3) / 4},
}


@pytest.mark.parametrize(("name", "k"), [(name, k) for name, values in BY_HAND.items() for k in values])
def test_hand_computed_value(name, k):
    assert metrics.PER_TASK[name](RANKED, RELEVANT, k) == pytest.approx([BY_HAND[name][k]])


def test_the_first_hit_decides_mrr_and_a_hit_beyond_k_does_not_count():
    relevant = gains(5, {3: 1})
    assert metrics.mrr(ranking([0, 1, 3, 2]), relevant, 4) == pytest.approx([1 / 3])
    assert metrics.mrr(ranking([0, 1, 3, 2]), relevant, 2).tolist() == [0]
    assert metrics.hit_rate(ranking([0, 1, 3, 2]), relevant, 2).tolist() == [0]


def test_graded_ndcg_by_hand():
    # Gains 3, 1, 2 are worth 7, 1, 3. Ranked: gain 1, useless, gain 3. Ideal at 2: 7 then 3.
    relevant = gains(6, {0: 3, 1: 1, 2: 2})
    dcg_3 = 1 + 7 / math.log2(4)
    ideal_2 = 7 + 3 / math.log2(3)
    ideal_3 = ideal_2 + 1 / math.log2(4)
    ranked = ranking([1, 5, 0])
    assert metrics.ndcg(ranked, relevant, 3, graded=True) == pytest.approx([dcg_3 / ideal_3])
    assert metrics.ndcg(ranked, relevant, 2, graded=True) == pytest.approx([1 / ideal_2])
    table = metrics.per_task(ranked, relevant, (3,), graded=True)
    assert table["ndcg@3"].tolist() == pytest.approx([dcg_3 / ideal_3])
    assert metrics.per_task(ranked, relevant, (3,))["ndcg@3"].tolist() != table["ndcg@3"].tolist()


def test_f1_of_means_is_not_the_mean_of_f1():
    # Task 0: P = 1, R = 0.5. Task 1: P = 0, R = 0.
    ranked, relevant = ranking([0, 1], [2, 3]), gains(6, {0: 1, 1: 1, 4: 1, 5: 1}, {0: 1})
    p, r = metrics.precision(ranked, relevant, 2), metrics.recall(ranked, relevant, 2)
    assert metrics.f1(ranked, relevant, 2).mean() == pytest.approx((2 * 0.5 / 1.5) / 2)
    assert metrics.harmonic_mean(p.mean(), r.mean()) == pytest.approx(2 * 0.5 * 0.25 / 0.75)
    assert metrics.harmonic_mean([0.5, 0, 0.2], [0.25, 0, 0]).tolist() == pytest.approx([1 / 3, 0, 0])
    assert math.isnan(metrics.harmonic_mean(np.nan, np.nan))
    # T2MRec's row of the paper's Table 3, at 5 and at 10; its inputs are rounded to four decimals.
    for p, r, f1 in ((0.4246, 0.5971, 0.4963), (0.3952, 0.6702, 0.4973)):
        assert metrics.harmonic_mean(p, r) == pytest.approx(f1, abs=1e-4), f1


@pytest.mark.parametrize("name", MEASURES)
def test_a_task_without_relevant_servers_is_nan_in_its_own_row_only_and_a_useless_server_is_not_relevant(name):
    ranked = ranking([0, 1], [0, 1], [2, 3])
    relevant = gains(5, {0: 1}, {}, {0: 1})
    values = metrics.PER_TASK[name](ranked, relevant, 2)
    assert np.isnan(values).tolist() == [False, True, False]
    assert values[0] > 0
    assert values[2] == 0
    no_tasks = np.empty((0, 3), np.int64), sp.csr_matrix((0, 5), dtype=np.float32)
    assert metrics.PER_TASK[name](*no_tasks, 2).shape == (0,)
    # A server judged useless is stored with gain 0.
    relevant = gains(4, {0: 1, 1: 2})
    relevant.data[relevant.indices == 0] = 0
    ranked = ranking([0, 2, 1])
    without = metrics.PER_TASK[name](ranked, gains(4, {1: 2}), 3)
    assert metrics.PER_TASK[name](ranked, relevant, 3).tolist() == without.tolist()
    relevant.data[:] = 0
    assert np.isnan(metrics.PER_TASK[name](ranked, relevant, 3)).all()


TWO = gains(9, {0: 1}, {0: 1})
MISUSED = [(ranking([0, 1, 2], [0, 2, 0]), TWO, 3, "twice", 1), (ranking([0, 1, 2], [0, 9, 1]), TWO, 3, "outside", 1)]
MISUSED += [(ranking([0, 1, 2], [-2, 0, 1]), TWO, 3, "outside", 1)]
MISUSED += [(ranking([0, 1, 2], [0, -1, 1]), TWO, 3, "after an unfilled", 1), (RANKED, RELEVANT, 0, "cutoff", None)]
MISUSED += [(ranking([0], [1]), RELEVANT, 1, "2 rankings for 1 tasks", None)]
MISUSED += [(RANKED, -RELEVANT, 1, "negative gain", None)]


@pytest.mark.parametrize(("ranked", "relevant", "k", "reason", "row"), MISUSED)
def test_a_list_that_is_no_ranking_is_refused_with_its_row_and_so_is_other_misuse(ranked, relevant, k, reason, row):
    with pytest.raises(StudyError, match=reason) as caught:
        metrics.recall(ranked, relevant, k)
    assert caught.value.row == row


def listed(name, k, popularity, *rows):
    return metrics.list_level(ranking(*rows), np.array(popularity), (k,))[f"{name}@{k}"]


def test_coverage_and_gini_by_hand():
    even, rows = [1] * 4, ([0, 1, 3], [0, 2, -1])  # an unfilled place does not count
    assert [listed("coverage", k, even, *rows) for k in (1, 2, 3)] == [1 / 4, 3 / 4, 1]
    assert listed("gini", 2, even, [0, 1], [2, 3]) == pytest.approx(0)
    assert listed("gini", 1, even, [0], [0], [0]) == pytest.approx(3 / 4)
    # Counts 0 1 1 2: 2 (1*0 + 2*1 + 3*1 + 4*2) / (4 * 4) - 5/4.
    assert listed("gini", 2, even, [0, 1], [0, 2]) == pytest.approx(26 / 16 - 5 / 4)
    # It is half the relative mean difference.
    rng = np.random.default_rng(0)
    rows = [rng.permutation(12)[:3] for _ in range(30)]
    counts = np.bincount(np.ravel(rows), minlength=12)
    mean_difference = np.abs(counts[:, None] - counts[None, :]).mean()
    assert listed("gini", 3, [1] * 12, *rows) == pytest.approx(mean_difference / (2 * counts.mean()))


def test_novelty_by_hand():
    # Shares with one added: (6 + 1) / 16, (5 + 1) / 16, 1 / 16, (1 + 1) / 16.
    assert listed("novelty", 3, [6, 5, 0, 1], [2, 3, -1]) == pytest.approx((4 + 3) / 2)
    assert listed("novelty", 1, [6, 5, 0, 1], [2, 3, -1]) == pytest.approx(4)
    # Where nothing is ranked there is none, and no Gini coefficient.
    assert math.isnan(listed("gini", 2, [1] * 3, [-1, -1]))
    assert math.isnan(listed("novelty", 2, [1] * 3, [-1, -1]))
    assert listed("coverage", 2, [1] * 3, [-1, -1]) == 0


@st.composite
def collections(draw):
    """Random collections; some tasks have no answers, and some have no relevant server."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n_tasks, n_servers, share = draw(st.integers(1, 8)), draw(st.integers(4, 40)), draw(st.floats(0.02, 0.8))
    width = draw(st.integers(1, min(12, n_servers)))
    relevant = rng.integers(1, 4, (n_tasks, n_servers)) * (rng.random((n_tasks, n_servers)) < share)
    relevant[0, rng.integers(n_servers)] = 1
    ranked = np.stack([rng.permutation(n_servers)[:width] for _ in range(n_tasks)])
    ranked[np.arange(width) >= rng.integers(0, width + 1, n_tasks)[:, None]] = -1
    return ranked, sp.csr_matrix(relevant.astype(np.float32))


def reference(ranked, relevant, measures):
    """Values per task, 0 without answers; scores fall strictly with rank, so no tie rule takes part."""
    judged, (task, place) = relevant.tocoo(), np.nonzero(ranked >= 0)
    qrels = pd.DataFrame({"query_id": judged.row, "doc_id": judged.col, "relevance": judged.data.astype(int)})
    run = pd.DataFrame({"query_id": task, "doc_id": ranked[task, place], "score": -place.astype(float)})
    named = {"query_id": str, "doc_id": str}
    values = {measure: np.zeros(len(ranked)) for measure in measures}
    for found in ir_measures.iter_calc(measures, qrels.astype(named), run.astype(named)):
        values[found.measure][int(found.query_id)] = found.value
    return values


@given(collections(), st.sampled_from([1, 2, 3, 4, 5, 7, 10, 20]))
def test_all_measures_agree_with_ir_measures_and_are_nan_exactly_without_relevant_servers(collection, k):
    ranked, relevant = collection
    theirs = reference(ranked, relevant, [R @ k, P @ k, RR @ k, Success @ k, AP @ k, BINARY @ k, GRADED @ k])
    size = metrics.n_relevant(relevant)
    precision, recall = theirs[P @ k], theirs[R @ k]
    with_hits = precision + recall > 0
    f1 = np.where(with_hits, 2 * precision * recall / np.where(with_hits, precision + recall, 1), 0)
    expected = {"recall": recall, "precision": precision, "f1": f1, "ndcg": theirs[BINARY @ k], "mrr": theirs[RR @ k]}
    # trec_eval divides by |M+|, the study by min(k, |M+|).
    expected |= {"hit_rate": theirs[Success @ k], "map": theirs[AP @ k] * size / np.clip(size, 1, k)}
    assert expected.keys() == metrics.PER_TASK.keys()
    for graded, ndcg in ((False, BINARY @ k), (True, GRADED @ k)):
        ours = metrics.per_task(ranked, relevant, (k,), graded=graded)
        for name, values in (expected | {"ndcg": theirs[ndcg]}).items():
            wanted = np.where(size > 0, values, np.nan)
            np.testing.assert_allclose(ours[f"{name}@{k}"], wanted, atol=1e-9, err_msg=name)
