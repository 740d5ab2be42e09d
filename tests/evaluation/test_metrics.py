"""Measures against hand-computed cases and against what must hold for any ranking."""

import math

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from study.errors import StudyError
from study.evaluation import metrics

MEASURES = sorted(metrics.PER_TASK)


def ranking(*rows):
    return np.array(rows, dtype=np.int64)


def gains(n_servers, *rows):
    """CSR from one {server: gain} per task."""
    return sp.csr_matrix([[row.get(server, 0) for server in range(n_servers)] for row in rows], dtype=np.float32)


@st.composite
def problems(draw, min_relevant=0):
    """Rankings (some with unfilled places) and graded relevant servers of up to 6 tasks, and a cutoff."""
    n_servers = draw(st.integers(4, 14))
    servers = st.integers(0, n_servers - 1)
    width = draw(st.integers(1, n_servers))
    tasks = draw(st.integers(1, 6))
    ranked = [draw(st.lists(servers, unique=True, max_size=width)) for _ in range(tasks)]
    gained = st.dictionaries(servers, st.integers(1, 3), min_size=min_relevant, max_size=n_servers)
    relevant = [draw(gained) for _ in range(tasks)]
    filled = ranking(*(row + [-1] * (width - len(row)) for row in ranked))
    return filled, gains(n_servers, *relevant), draw(st.integers(1, n_servers + 2))


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
    assert metrics.f1_of_means(p, r) == pytest.approx(2 * 0.5 * 0.25 / 0.75)
    assert metrics.f1_of_means(np.zeros(3), np.zeros(3)) == 0
    assert math.isnan(metrics.f1_of_means(np.full(2, np.nan), np.full(2, np.nan)))
    # T2MRec's row of the paper's Table 3, at 5 and at 10; its inputs are rounded to four decimals.
    for p, r, f1 in ((0.4246, 0.5971, 0.4963), (0.3952, 0.6702, 0.4973)):
        assert metrics.f1_of_means(np.array([p]), np.array([r])) == pytest.approx(f1, abs=1e-4), f1


@settings(max_examples=40)
@given(st.integers(0, 2**32 - 1), st.sampled_from([(5, 8), (10, 10)]))
def test_with_equally_many_relevant_servers_both_f1_are_the_same(seed, sizes):
    # Then P = H/k and R = H/n, so F1 is proportional to H: only tasks of different sizes tell the two apart.
    k, n = sizes
    rng = np.random.default_rng(seed)
    ranked = np.stack([rng.permutation(40)[:k] for _ in range(40)])
    relevant = gains(40, *(dict.fromkeys(rng.permutation(40)[:n].tolist(), 1) for _ in range(40)))
    p, r, f1 = (metrics.PER_TASK[name](ranked, relevant, k) for name in ("precision", "recall", "f1"))
    assert f1.mean() == pytest.approx(metrics.f1_of_means(p, r))
    if n == k:  # as the cold protocol of Task2MCP lists ten servers for nearly every task
        assert p == pytest.approx(r)
        assert f1 == pytest.approx(r)


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


@pytest.mark.parametrize(
    ("row", "reason"),
    [([0, 2, 0], "twice"), ([0, 9, 1], "outside"), ([-2, 0, 1], "outside"), ([0, -1, 1], "after an unfilled")],
)
def test_a_list_that_is_no_ranking_is_refused_with_its_row(row, reason):
    with pytest.raises(StudyError, match=reason) as caught:
        metrics.recall(ranking([0, 1, 2], row), gains(9, {0: 1}, {0: 1}), 3)
    assert caught.value.row == 1


def test_misuse_is_refused():
    with pytest.raises(StudyError, match="cutoff"):
        metrics.recall(RANKED, RELEVANT, 0)
    with pytest.raises(StudyError, match="2 rankings for 1 tasks"):
        metrics.recall(ranking([0], [1]), RELEVANT, 1)
    with pytest.raises(StudyError, match="negative gain"):
        metrics.recall(RANKED, -RELEVANT, 1)


def test_per_task_names_and_orders_its_columns():
    table = metrics.per_task(RANKED, RELEVANT, (5, 10))
    assert list(table.columns) == [f"{name}@{k}" for name in metrics.PER_TASK for k in (5, 10)]
    assert table.loc[0, "recall@5"] == pytest.approx(0.5)
    assert {*metrics.PER_TASK, "f1_of_means"} == set(metrics.NAMES)


@given(problems())
def test_values_lie_between_0_and_1_and_are_nan_exactly_without_relevant_servers(problem):
    ranked, relevant, k = problem
    undefined = metrics.n_relevant(relevant) == 0
    for table in (metrics.per_task(ranked, relevant, (k,)), metrics.per_task(ranked, relevant, (k,), graded=True)):
        for column in table:
            values = table[column].to_numpy()
            assert (np.isnan(values) == undefined).all(), column
            assert ((values[~undefined] >= 0) & (values[~undefined] <= 1 + 1e-12)).all(), column


@given(problems(min_relevant=1))
def test_the_ideal_ranking_is_perfect(problem):
    _, relevant, k = problem
    dense = relevant.toarray()
    ideal = np.argsort(-dense, axis=1, kind="stable")
    for name in ("ndcg", "mrr", "hit_rate", "map"):
        assert metrics.PER_TASK[name](ideal, relevant, k) == pytest.approx(np.ones(len(ideal)))
    assert metrics.ndcg(ideal, relevant, k, graded=True) == pytest.approx(np.ones(len(ideal)))
    size = (dense > 0).sum(axis=1)
    assert metrics.recall(ideal, relevant, k) == pytest.approx(np.minimum(k, size) / size)


@given(problems(min_relevant=1))
def test_growing_k_never_lowers_recall_hit_rate_or_mrr(problem):
    ranked, relevant, k = problem
    for measure in (metrics.recall, metrics.hit_rate, metrics.mrr):
        assert (measure(ranked, relevant, k + 1) >= measure(ranked, relevant, k) - 1e-12).all()


@given(problems(min_relevant=1), st.data())
def test_moving_a_more_useful_server_up_never_lowers_anything(problem, data):
    ranked, relevant, k = problem
    if ranked.shape[1] < 2:
        return
    place = data.draw(st.integers(0, ranked.shape[1] - 2))
    pair = metrics.ranked_gains(ranked, relevant, ranked.shape[1])[:, place : place + 2]
    better = (pair[:, 1] > pair[:, 0]) & (ranked[:, place + 1] >= 0)
    swapped = ranked.copy()
    swapped[better, place : place + 2] = ranked[better, place : place + 2][:, ::-1]
    # A graded swap can leave binary measures as they are, but can lower none.
    before, after = (metrics.per_task(order, relevant, (k,), graded=True) for order in (ranked, swapped))
    assert (after.to_numpy() >= before.to_numpy() - 1e-12).all()
    if better.any() and place + 1 < k:
        assert (after[f"ndcg@{k}"][better] > before[f"ndcg@{k}"][better]).all()


@given(problems(), st.randoms(use_true_random=False))
def test_names_of_servers_do_not_matter(problem, random):
    ranked, relevant, k = problem
    n_servers = relevant.shape[1]
    new_name = np.array(random.sample(range(n_servers), n_servers))
    renamed = np.where(ranked >= 0, new_name[ranked], -1)
    dense = np.zeros(relevant.shape, np.float32)
    dense[:, new_name] = relevant.toarray()
    before = metrics.per_task(ranked, relevant, (k,), graded=True)
    after = metrics.per_task(renamed, sp.csr_matrix(dense), (k,), graded=True)
    np.testing.assert_allclose(after, before, rtol=1e-12)


def test_exposure_and_gini_by_hand():
    ranked = ranking([0, 1, 3], [0, 2, -1])  # an unfilled place does not count
    assert metrics.exposure(ranked, 4, 2).tolist() == [2, 1, 1, 0]
    assert metrics.coverage(ranked, 4, 2) == 3 / 4
    assert metrics.coverage(ranked, 4, 3) == 1
    assert metrics.gini(ranking([0, 1], [2, 3]), 4, 2) == pytest.approx(0)
    assert metrics.gini(ranking([0], [0], [0]), 4, 1) == pytest.approx(3 / 4)
    # Counts 0 1 1 2: 2 (1*0 + 2*1 + 3*1 + 4*2) / (4 * 4) - 5/4.
    assert metrics.gini(ranking([0, 1], [0, 2]), 4, 2) == pytest.approx(26 / 16 - 5 / 4)
    # It is half the relative mean difference.
    rng = np.random.default_rng(0)
    ranked = np.stack([rng.permutation(12)[:3] for _ in range(30)])
    counts = metrics.exposure(ranked, 12, 3)
    mean_difference = np.abs(counts[:, None] - counts[None, :]).mean()
    assert metrics.gini(ranked, 12, 3) == pytest.approx(mean_difference / (2 * counts.mean()))


def test_novelty_by_hand():
    # Shares with one added: (6 + 1) / 16, (5 + 1) / 16, 1 / 16, (1 + 1) / 16.
    popularity = np.array([6, 5, 0, 1])
    assert metrics.novelty(ranking([2, 3, -1]), popularity, 3) == pytest.approx((4 + 3) / 2)
    assert metrics.novelty(ranking([2, 3, -1]), popularity, 1) == pytest.approx(4)
    # Where nothing is ranked there is none, and no Gini coefficient.
    empty = ranking([-1, -1])
    assert math.isnan(metrics.gini(empty, 3, 2))
    assert math.isnan(metrics.novelty(empty, np.ones(3, np.int64), 2))
    assert metrics.coverage(empty, 3, 2) == 0


def test_list_level_names_every_measure_and_cutoff():
    ranked, popularity = ranking([0, 1], [2, -1]), np.array([3, 1, 0, 0])
    values = metrics.list_level(ranked, popularity, (1, 2))
    assert values.keys() == {f"{name}@{k}" for name in ("coverage", "gini", "novelty") for k in (1, 2)}
    assert values["coverage@2"] == 3 / 4
    assert values["gini@1"] == metrics.gini(ranked, 4, 1)
    assert values["novelty@2"] == metrics.novelty(ranked, popularity, 2)
