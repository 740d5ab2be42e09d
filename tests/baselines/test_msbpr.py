"""MSBPR: hand-computed sets and loss, and what may not leak."""

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from baselines.msbpr import MSBPR, Factors, column_cosine, user_preference
from tests.baselines.toys import all_epochs, all_training, fit, make_dataset, weights_of, with_other_answers

# Server 0 is listed by all, 1 by two, 2 and 3 by one, 4 by nobody.
TRAIN = sp.csr_matrix(np.array([[1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [1, 0, 0, 1, 0]], dtype=float))


def mined(train=TRAIN, known=None, **settings):
    system = MSBPR(**{"popularity": 0, **settings})
    system.mine(train, train if known is None else known)
    return system


def test_the_sets_of_a_toy_by_hand():
    """s(0, 2) = (S02 + S12) / 2 = 1 and s(0, 3) = (S03 + S13) / 2 = 1/2; s(1, 3) = 1/3; s(2, 1) = s(2, 2) = 1/2."""
    system = mined()
    assert system.potential.indices.tolist() == [2, 3, 1, 2]
    assert system.potential.counts.tolist() == [2, 0, 2]
    assert system.unpopular.tolist() == [4]
    assert system.n_disliked.tolist() == [1, 1, 1]
    assert system.n_uncertain.tolist() == [0, 1, 0]  # only server 3 of task 1 is neither
    assert mined(item_threshold={"corated": 0.51}).potential.indices.tolist() == [2]
    wider = mined(popularity=1)
    assert wider.unpopular.tolist() == [2, 3, 4]
    assert wider.potential.indices.tolist() == [1]  # what is disliked is not liked
    assert wider.n_disliked.tolist() == [3, 2, 2]


def test_user_and_hybrid_preferences_by_hand():
    alike = column_cosine(sp.csr_matrix(TRAIN.T), "full").toarray()
    np.testing.assert_allclose(alike, [[1, 2 / 6**0.5, 1 / 2], [2 / 6**0.5, 1, 1 / 6**0.5], [1 / 2, 1 / 6**0.5, 1]])
    near = user_preference(TRAIN, sp.csr_matrix(alike), 0.45).toarray()
    weight = 2 / 6**0.5
    np.testing.assert_allclose(near[0], [1, weight / (weight + 0.5), weight / (weight + 0.5), 0.5 / (weight + 0.5), 0])
    np.testing.assert_allclose(near[2], [1, 1, 0, 0, 0])  # task 1 is below the threshold
    assert user_preference(TRAIN, sp.csr_matrix(alike), 2.0).nnz == 0  # no neighbour: no liked server
    # S_H(0, 1) = 1, S_H(0, 2) = 3/4 (servers 1 and 3 share no task), S_H(1, 2) = 4/6: task 0 has both neighbours, which
    # list server 2 by 1 / 1.75 and server 3 by 0.75 / 1.75; the others have task 0 alone.
    liked = mined(variant="hybrid", user_threshold={"corated": 0.7}, preference_threshold=0.5).potential
    assert (liked.indices.tolist(), liked.counts.tolist()) == ([2, 1], [1, 0, 1])


@given(
    arrays(np.int8, (7, 6), elements=st.integers(0, 1)), st.sampled_from(["item", "user", "hybrid"]), st.integers(0, 2)
)
def test_the_four_sets_are_a_partition_and_draws_stay_in_them(matrix, variant, popularity):
    matrix[0, 0] = 1
    train_ = sp.csr_matrix(matrix.astype(float))
    system = mined(train_, variant=variant, popularity=popularity, steps=3)
    liked = sp.csr_matrix(
        (np.ones(len(system.potential.indices)), system.potential.indices, system.potential.indptr), shape=matrix.shape
    ).toarray()
    unpopular = matrix.sum(axis=0) <= popularity
    assert not (liked * matrix).any()
    assert not (liked * unpopular).any()
    for tasks, (observed, potential, uncertain, disliked), weights in system.draws(np.random.default_rng(0), 0):
        _, liking, rest, bad = weights > 0
        assert weights[0].all()
        assert matrix[tasks, observed].all()
        assert liked[tasks, potential][liking].all()
        assert unpopular[disliked][bad].all()
        assert not matrix[tasks, disliked][bad].any()
        taken = matrix + liked + unpopular
        assert not taken[tasks, uncertain][rest].any()
        np.testing.assert_array_equal(rest, (taken[tasks] == 0).any(axis=1))


def test_the_loss_by_hand():
    torch.manual_seed(0)
    system = MSBPR(width=3, decay_tasks=0.1, decay_servers=0.2, decay_bias=0.3)
    system.network = Factors(np.linspace(-0.2, 0.3, 5).astype(np.float32), 3, 3, 0.5).double()
    tasks, servers = np.array([0, 1, 2, 0]), np.array([[0, 2, 3, 1], [2, 0, 1, 3], [3, 3, 4, 4], [4, 4, 2, 2]])
    there = np.array([[1, 1, 1, 1], [1, 0, 1, 1], [1, 1, 1, 1], [1, 1, 0, 1]], dtype=np.float32)
    U, V, b = weights_of(system.network)
    total = 0.0
    for n, u in enumerate(tasks):
        rows, has = servers[:, n], there[:, n]
        f = [b[row] + U[u] @ V[row] for row in rows]
        for better, worse in ((0, 2), (0, 3), (1, 2), (1, 3)):
            if has[better] and has[worse]:
                total -= np.log(1 / (1 + np.exp(-(f[better] - f[worse]))))
        total += 0.05 * U[u] @ U[u]
        total += sum(0.1 * V[row] @ V[row] + 0.15 * b[row] ** 2 for row in rows[has > 0])
    assert system.loss((tasks, servers, there)).item() == pytest.approx(total)


@pytest.mark.parametrize("leaky", [False, True])
@pytest.mark.parametrize("variant", ["item", "user", "hybrid"])
def test_only_the_leaky_similarity_sees_held_out_servers(variant, leaky, blocks, tmp_path):
    settings = {"variant": variant, "similarity": "full", "item_threshold": {"full": 0.3}, "leaky_similarity": leaky}
    sets = []
    for each in (blocks, with_other_answers(*blocks, ("valid", "test"))):
        system = MSBPR(**settings, schedule=all_epochs(1), steps=1)
        sets.append(fit(system, *each, tmp_path / str(len(sets))).potential.keys.tolist())
    assert (sets[0] != sets[1]) == leaky


def test_servers_start_with_their_popularity(tmp_path):
    """b_i = (sum over u of r_ui) / n - mean r."""
    data = make_dataset([{"name": "a"}] * 3, [{"name": "b"}] * 5, [[0, 1], [1, 0, 2], [0, 3]])
    system = fit(MSBPR(spread=0.0, schedule=all_epochs(0)), data, all_training(data), tmp_path)
    expected = np.array([3, 2, 1, 1, 0]) / 3 - 7 / 15
    np.testing.assert_allclose(system.score(np.arange(3)), np.tile(expected, (3, 1)), atol=1e-6)
