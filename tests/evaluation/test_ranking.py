"""The order that every measure sees: highest score first, ties by the seeded order, -inf and NaN never ranked."""

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from study.data.splits import make
from study.data.toys import block_dataset
from study.evaluation import ranking
from study.evaluation.runs import run_seed

INF = np.inf


def floats(values):
    return np.array(values, dtype=np.float32)


def naive_top_k(scores, k, order):
    """Sort (score, place in the tie order) pairs one row at a time."""
    place = {server: i for i, server in enumerate(order)}
    rows = []
    for row in scores:
        rankable = [server for server, score in enumerate(row) if not np.isnan(score) and score > -INF]
        best = sorted(rankable, key=lambda server: (-row[server], place[server]))[:k]
        rows.append(best + [-1] * (min(k, len(row)) - len(best)))
    return rows


@pytest.mark.parametrize(
    ("scores", "k", "order", "servers", "best"),
    [
        pytest.param([[1, 1, 1, 5]], 4, [2, 0, 1, 3], [[3, 2, 0, 1]], [[5, 1, 1, 1]], id="ties as ordered"),
        pytest.param([[-INF, 0.5, np.nan, -2]], 3, range(4), [[1, 3, -1]], [[0.5, -2, -INF]], id="-inf and NaN"),
        pytest.param([[np.nan] * 4], 3, range(4), [[-1] * 3], [[-INF] * 3], id="NaN alone"),
        pytest.param([[3.0, INF, 1.0]], 2, range(3), [[1, 0]], [[INF, 3.0]], id="+inf is the best"),
        pytest.param([[1, 2, 3]], 10, range(3), [[2, 1, 0]], [[3, 2, 1]], id="k beyond the catalogue"),
    ],
)
def test_top_k_by_hand(scores, k, order, servers, best):
    found = ranking.top_k(floats(scores), k, np.array(order))
    assert [part.tolist() for part in found] == [servers, best]


def test_the_tie_order_is_a_permutation_that_depends_on_the_seed_alone():
    first = ranking.tie_order(500, 1)
    assert sorted(first) == list(range(500))
    assert (first == ranking.tie_order(500, 1)).all()
    assert (first != ranking.tie_order(500, 2)).any()
    assert (first != np.arange(500)).any()


# Few distinct values, so that most examples hold ties.
LEVELS = st.sampled_from([-INF, np.nan, -1.0, -0.0, 0.0, 0.5, 1.0, INF])


@settings(max_examples=200)
@given(
    scores=hnp.arrays(np.float32, st.tuples(st.integers(0, 9), st.integers(1, 9)), elements=LEVELS),
    k=st.integers(1, 12),
    seed=st.integers(0, 99),
)
def test_top_k_agrees_with_a_naive_sort(scores, k, seed):
    order, before = ranking.tie_order(scores.shape[1], seed), scores.copy()
    servers, best = ranking.top_k(scores, k, order)
    np.testing.assert_array_equal(scores, before)
    assert servers.shape == best.shape == (len(scores), min(k, scores.shape[1]))
    assert servers.tolist() == naive_top_k(scores.tolist(), k, order.tolist())
    filled = servers >= 0
    looked_up = np.take_along_axis(scores, np.where(filled, servers, 0), axis=1)
    np.testing.assert_array_equal(best, np.where(filled, looked_up, -INF))


def test_known_interactions_are_masked_for_their_own_task_only_and_so_is_what_is_no_candidate():
    known = sp.csr_matrix(floats([[1, 0, 0], [0, 0, 1], [0, 1, 1]]))
    scores = ranking.mask_known(floats([[1, 2, 3], [4, 5, 6]]), np.array([2, 0]), known)
    assert scores.tolist() == [[1, -INF, -INF], [-INF, 5, 6]]
    # Of sampled candidates only those can be ranked.
    kept = ranking.restrict(floats([[1, 2, 3], [4, 5, 6]]), np.array([[2, 0], [1, 2]]))
    assert kept.tolist() == [[1, -INF, 3], [-INF, 5, 6]]


@given(n=st.integers(0, 50), size=st.integers(1, 12))
def test_chunks_cover_every_task_once_in_order(n, size):
    tasks = np.arange(n)
    parts = [tasks[part] for part in ranking.chunks(tasks, size)]
    assert np.concatenate([*parts, tasks[:0]]).tolist() == tasks.tolist()
    assert all(1 <= len(part) <= size for part in parts)


def test_a_tie_counts_where_it_touches_the_first_k():
    scores = floats([[3, 2, 1, 0], [3, 3, 1, 0], [3, 2, 2, 0], [3, 2, 1, 1], [3, 1, -INF, -INF]])
    assert ranking.tied(scores, 2).tolist() == [False, True, True, False, False]


class Answers:
    """Scores the servers that a part holds for a task above all others."""

    def __init__(self, part):
        self.part = part

    def fit(self, data, split, *, seed, workdir):
        self.relevance = split.part(self.part)

    def score(self, tasks):
        return np.asarray(self.relevance[tasks].todense(), dtype=np.float32)


@pytest.mark.parametrize("part", ["valid", "test"])
def test_under_sampled_candidates_each_part_is_measured_by_its_own_labels(part, tmp_path):
    data = block_dataset()
    split = make(data, "loo99", negatives=12)
    right = run_seed(Answers(part), data, split, seed=1, workdir=tmp_path, part=part)
    assert right.per_task["ndcg@10"].tolist() == [1.0] * len(split.tasks(part))
    other = {"valid": "test", "test": "valid"}[part]
    wrong = run_seed(Answers(other), data, split, seed=1, workdir=tmp_path, part=part)
    assert wrong.per_task["ndcg@10"].mean() < 1


def test_validation_under_sampled_candidates_ranks_what_leave_one_out_ranks(tmp_path):
    data, system = block_dataset(), Answers("train")
    splits = (make(data, protocol, negatives=12) for protocol in ("loo", "loo99"))
    runs = [run_seed(system, data, split, seed=1, workdir=tmp_path, part="valid") for split in splits]
    np.testing.assert_array_equal(runs[0].top["server_id"], runs[1].top["server_id"])
