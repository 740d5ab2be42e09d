"""Hand-computed cases, brute-force recomputations and independent solvers for what is fitted in closed form."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.linear_model import ElasticNet, Ridge

from baselines.collaborative import keep_largest
from baselines.cosine import TfidfCosine
from baselines.ease import Ease
from baselines.ials import ImplicitALS
from baselines.knn_transfer import KnnTransfer, neighbour_weights
from baselines.linear_xmc import LinearXMC
from baselines.msbpr import MSBPR
from baselines.neighbours import ItemKNN, UserKNN, similarity, squared_norms
from baselines.random_walk import RandomWalk
from baselines.recafr import ReCAFR
from baselines.rrf import ReciprocalRankFusion
from baselines.slim import Slim
from study.base.errors import StudyError
from study.evaluation.ranking import tie_order
from tests.baselines.toys import N_SERVERS, all_epochs, bare, copy_dataset, fit, scores, without_training

# 4 tasks x 5 servers; server 4 is listed by nobody.
TOY = sp.csr_matrix(np.array([[1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [0, 1, 1, 0, 0], [0, 0, 0, 1, 0]], dtype=np.float32))
ORDER = np.arange(5)
binary = arrays(np.int8, (9, 7), elements=st.integers(0, 1))
SIMILAR = [("cosine", 0, 2 / np.sqrt(2 * 3)), ("cosine", 1, 2 / (np.sqrt(6) + 1)), ("jaccard", 0, 2 / 3)]
SIMILAR += [("jaccard", 2, 2 / 5), ("dice", 0, 4 / 5), ("dice", 5, 4 / 10)]
# What a copy of a training task is ranked by.
BIASED = {"width": 8, "popularity": 0, "steps": 20, "schedule": all_epochs(2)}
BASES = [ItemKNN(), UserKNN(), ImplicitALS(width=8), MSBPR(**BIASED)]
BASES += [ReCAFR(width=8, layers=2, learning_rate=0.02, batch_size=64, schedule=all_epochs(3))]


@pytest.mark.parametrize(("kind", "shrink", "expected"), SIMILAR)
def test_similarity_of_servers_0_and_1_by_hand(kind, shrink, expected):
    profiles = sp.csr_matrix(TOY.T)
    norms = squared_norms(profiles)  # 2 3 2 1 0
    said = similarity(profiles @ profiles.T, norms, norms, kind=kind, shrink=shrink)
    assert said[0, 1] == pytest.approx(expected)
    assert said[0, 3] == 0


@given(binary, st.integers(1, 9), st.integers(0, 99))
def test_keep_largest_breaks_ties_by_the_given_order(dense, k, seed):
    full = dense * np.random.default_rng(seed).integers(1, 4, dense.shape)
    order = np.random.default_rng(seed).permutation(7)
    for row, kept in zip(full, keep_largest(sp.csr_matrix(full.astype(np.float32)), k, order).toarray(), strict=True):
        best = order[np.argsort(-row[order], kind="stable")][:k]
        np.testing.assert_array_equal(kept, np.where(np.isin(np.arange(7), best), row, 0))


@given(binary)
def test_item_knn_is_the_brute_force_sum(dense):
    weights = ItemKNN().item_weights(sp.csr_matrix(dense.astype(np.float32)), np.arange(7)).toarray()
    n = dense.sum(axis=0)
    expected = dense.T.astype(int) @ dense / np.maximum(np.sqrt(np.outer(n, n)), 1)
    np.fill_diagonal(expected, 0)
    np.testing.assert_allclose(weights, expected, rtol=1e-6, atol=1e-6)


def test_item_knn_keeps_the_neighbours_of_the_ranked_server():
    # Server 1 shares two tasks with 0 and with 2, so with k = 1 each of the two keeps 1, and 1 keeps one of them.
    weights = ItemKNN(k=1).item_weights(TOY, ORDER).toarray()
    assert np.argwhere(weights > 0).tolist() == [[0, 1], [1, 0], [1, 2]]  # 0, 1 equals 2, 1; 0 comes first in the order


@given(binary, st.sampled_from([1.0, 3.0]))
def test_user_knn_is_the_brute_force_sum_over_other_tasks(dense, power):
    train = sp.csr_matrix(dense.astype(np.float32))
    said = fit(UserKNN(power=power), *bare(train)).score(np.arange(9))
    norms = np.sqrt(dense.sum(axis=1))
    for task in np.flatnonzero(norms):
        expected = np.zeros(7)
        for other in np.flatnonzero(norms):
            if other != task:
                expected += (dense[task] @ dense[other] / (norms[task] * norms[other])) ** power * dense[other]
        np.testing.assert_allclose(said[task], expected, rtol=1e-5, atol=1e-6)


def test_ease_has_a_zero_diagonal_and_solves_the_ridge_problem():
    regularisation, dense = 2.0, TOY.toarray()
    weights = Ease(regularisation).item_weights(TOY, ORDER)
    assert not weights.diagonal().any()
    for server in range(5):
        others = np.setdiff1d(np.arange(5), server)
        features = dense[:, others]
        ridge = np.linalg.solve(features.T @ features + regularisation * np.eye(4), features.T @ dense[:, server])
        np.testing.assert_allclose(weights[others, server], ridge, atol=1e-5)


@pytest.mark.parametrize(("alpha", "l1_ratio"), [(0.01, 0.1), (0.02, 0.9)])
def test_slim_equals_the_elastic_net_on_all_servers(alpha, l1_ratio):
    dense = (np.random.default_rng(3).random((30, 12)) < 0.3).astype(np.float64)
    train = sp.csr_matrix(dense, dtype=np.float32)
    weights = Slim(alpha=alpha, l1_ratio=l1_ratio).item_weights(train, np.arange(12)).toarray()
    for server in range(12):
        features = dense.copy()
        features[:, server] = 0
        net = ElasticNet(alpha=alpha, l1_ratio=l1_ratio, positive=True, fit_intercept=False, tol=1e-8, max_iter=10_000)
        np.testing.assert_allclose(weights[:, server], net.fit(features, dense[:, server]).coef_, atol=2e-3)
    assert (weights > 0).any()


def walks(**settings):
    return RandomWalk(**settings).item_weights(TOY, ORDER).toarray()


def test_walks_by_hand():
    """From server 0 (tasks 0 and 1, chance 1/2 each) to server 1: 1/2 * 1/2 + 1/2 * 1/3."""
    assert walks()[0].tolist() == pytest.approx([0, 1 / 4 + 1 / 6, 1 / 6, 0, 0])
    assert not walks()[3].any()
    assert walks(alpha=2.0)[0, 1] == pytest.approx((1 / 4) * (1 / 4) + (1 / 4) * (1 / 9))
    assert walks(alpha=0.0).tolist() == [[0, 2, 1, 0, 0], [2, 0, 2, 0, 0], [1, 2, 0, 0, 0], [0] * 5, [0] * 5]
    for beta in (0.7, 1):  # a whole number, as `--values 1` gives it, too
        np.testing.assert_allclose(walks(beta=beta), walks() / np.array([2, 3, 2, 1, 1]) ** float(beta), rtol=1e-5)


@pytest.mark.parametrize("alpha", [0.0, 1.3])
def test_normalised_walks_give_every_server_of_a_history_one_vote(alpha):
    plain, equal = (walks(alpha=alpha, beta=0.4, normalise=flag) for flag in (False, True))
    np.testing.assert_allclose(equal[:3], plain[:3] / plain[:3].sum(axis=1, keepdims=True), rtol=1e-5)
    assert not equal[3:].any()


@pytest.mark.parametrize("scaling", [0.0, 1.0])
def test_ials_solves_the_normal_equations(scaling):
    rng = np.random.default_rng(0)
    others = rng.normal(size=(7, 3)).astype(np.float32)
    dense = (rng.random((9, 7)) < 0.4).astype(np.float64)
    dense[4] = 0
    model = ImplicitALS(width=3, unobserved_weight=0.3, regularisation=0.2, frequency_scaling=scaling)
    said = model.solve(sp.csr_matrix(dense, dtype=np.float32), others)
    for row, seen in enumerate(dense):
        strength = 0.2 * (seen.sum() + 0.3 * 7) ** scaling
        left = 0.3 * others.T @ others + others.T @ np.diag(seen) @ others + strength * np.eye(3)
        expected = np.linalg.solve(left, others.T @ seen) if seen.any() else np.zeros(3)
        np.testing.assert_allclose(said[row], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("regularisation", [0.3, 3.0])
def test_linear_xmc_is_ridge_regression_of_the_labels(regularisation, cold_blocks):
    data, split = cold_blocks
    system = fit(LinearXMC(regularisation=regularisation), data, split)
    known, asked = split.tasks("train"), split.tasks("test")
    said = system.score(asked)
    ridge = Ridge(alpha=regularisation, fit_intercept=False, solver="cholesky")
    ridge.fit(system.features[known].toarray().astype(np.float64), split.train[known].toarray())
    listed = split.train.getnnz(axis=0) > 0
    predicted = ridge.predict(system.features[asked].toarray())
    np.testing.assert_allclose(said[:, listed], predicted[:, listed], atol=1e-4)
    weighted = fit(LinearXMC(attribute_weight=4.0), data, split).features  # attributes have the stated weight
    np.testing.assert_allclose(np.asarray(weighted.multiply(weighted).sum(axis=1)).ravel(), 1 + 4, rtol=1e-4)


def test_linear_xmc_ranks_servers_without_labels_by_text_alone():
    data, whole = copy_dataset()
    unlisted, listed = np.arange(0, N_SERVERS, 5), np.flatnonzero(np.arange(N_SERVERS) % 5)
    split = without_training(whole, unlisted)
    said = scores(LinearXMC(0.01, text_prior=0.5), data, split, "test", None)
    cosine = scores(TfidfCosine(), data, split, "test", None)[:, unlisted]
    lowest = np.minimum(said[:, listed].min(axis=1, keepdims=True), 0)
    assert (lowest < 0).mean() > 0.5
    assert (cosine == 0).any()
    assert (cosine > 0).any()
    np.testing.assert_allclose(said[:, unlisted], np.where(cosine > 0, 0.5 * cosine, lowest), rtol=1e-5)
    none = scores(LinearXMC(0.01, text_prior=0), data, split, "test", None)
    assert (none[:, unlisted] <= none[:, listed].min(axis=1, keepdims=True)).all()


@dataclass
class Fixed:
    """A member that always says the same."""

    said: list[list[float]]

    def fit(self, data, split, *, seed, workdir):
        self.folder = workdir

    def score(self, tasks):
        return np.array(self.said, dtype=np.float32)[tasks]


A, B = Fixed([[4, 3, 2, 1]]), Fixed([[0, 9, 5, 0]])


def fused(tmp_path, *, known=(), weights=None, c=60, depth=100, **members):
    train = np.isin(np.arange(4), known)[None].astype(np.float32)
    system = fit(ReciprocalRankFusion(members, weights or {}, c, depth), *bare(train), tmp_path, seed=7)
    np.testing.assert_array_equal(system.order, tie_order(4, 7))  # as the evaluator's
    return system.score(np.array([0]))[0]


def test_rank_fusion_by_hand(tmp_path):
    # a ranks 0 1 2 (3 is its lowest), b ranks 1 2
    np.testing.assert_allclose(fused(tmp_path, a=A, b=B), [1 / 61, 1 / 62 + 1 / 61, 1 / 63 + 1 / 62, 0], rtol=1e-6)
    np.testing.assert_allclose(fused(tmp_path, a=A, b=B, weights={"b": 0.5}, c=0, depth=1), [1, 0.5, 0, 0])
    np.testing.assert_allclose(fused(tmp_path, a=A, b=B, known=[0], c=0, depth=1), [0, 2, 0, 0])
    # A member that says nothing does not count.
    silent = fused(tmp_path, a=A, mute=Fixed([[-np.inf] * 4]), flat=Fixed([[0.5] * 4]))
    np.testing.assert_array_equal(silent, fused(tmp_path, a=A))


def test_members_have_folders_of_their_own_and_weights_must_name_them(tmp_path):
    fused(tmp_path, a=A, b=B)
    assert A.folder != B.folder
    assert A.folder.is_dir()
    with pytest.raises(StudyError, match="unknown member 'c'"):
        fused(tmp_path, a=A, weights={"c": 1.0})


@pytest.mark.parametrize("base", BASES, ids=lambda base: type(base).__name__)
def test_a_copy_gets_the_scores_of_its_training_task(base, tmp_path):
    data, split = copy_dataset()
    system = fit(KnnTransfer(base, k=[1], power=[1.0]), data, split, tmp_path)
    copied = system.base.score_representations(system.base.representations[np.arange(20)])
    np.testing.assert_allclose(system.score(split.tasks("test")), copied, rtol=1e-5)
    np.testing.assert_array_equal(system.score(np.arange(20)), base.score(np.arange(20)))  # known tasks are the base's
    if not isinstance(base, UserKNN):  # which does not count a task among its own neighbours
        np.testing.assert_allclose(copied, base.score(np.arange(20)), rtol=1e-5)
    if isinstance(base, ItemKNN):  # known and new tasks may be asked together
        mixed = system.score(np.array([25, 3, 24]))
        np.testing.assert_array_equal(mixed[1], system.score(np.array([3]))[0])
        np.testing.assert_array_equal(mixed[[0, 2]], system.score(np.array([25, 24])))


def test_k_is_chosen_on_validation():
    data, split = copy_dataset()
    # Validation tasks are the copies, so one neighbour is best; test labels play no part.
    split = replace(split, valid=split.test, test=split.valid)
    system = fit(KnnTransfer(UserKNN(), k=[20, 1], power=[1.0]), data, split)
    assert system.chosen == (1, 1.0)
    assert system.uses_validation
    assert not KnnTransfer(UserKNN(), k=[1], power=[1.0]).uses_validation


def test_neighbour_weights_by_hand():
    similarity = np.array([[0.5, 0.25, -np.inf, 0.1], [0, 0, 0, 0]], dtype=np.float32)
    said = neighbour_weights(similarity, 2, 2.0, np.arange(4)).toarray()
    np.testing.assert_allclose(said[0], [0.8, 0.2, 0, 0], rtol=1e-6)
    np.testing.assert_allclose(said[1], [0.5, 0.5, 0, 0])
