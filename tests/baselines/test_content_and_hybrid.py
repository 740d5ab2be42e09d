"""The linear content model, rank fusion, and the transfer of collaborative systems to new tasks."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.linear_model import Ridge

from baselines.ials import ImplicitALS
from baselines.knn_transfer import KnnTransfer, neighbour_weights
from baselines.linear_xmc import LinearXMC
from baselines.msbpr import MSBPR
from baselines.neighbours import ItemKNN, UserKNN
from baselines.recafr import ReCAFR
from baselines.rrf import ReciprocalRankFusion
from baselines.tfidf import TfidfCosine
from baselines.training import Schedule
from study.data.splits import make
from study.errors import StudyError
from study.evaluation.ranking import tie_order
from tests.baselines.collaborative_toys import fit_and_recall, group_copies, relabelled, without_training
from tests.baselines.toys import N_SERVERS, block_dataset, build, copy_dataset, recall10, scores, top10

TRANSFERS = ("item_knn_transfer", "ease_transfer", "ials_transfer")
TRAINED = ("msbpr_transfer", "recafr_transfer")
SMALL = {
    "msbpr_transfer": {"base.popularity": 0, "base.learning_rate": 0.05, "base.steps": 50, "base.schedule.epochs": 8},
    "recafr_transfer": {
        "base.width": 16,
        "base.learning_rate": 0.02,
        "base.batch_size": 64,
        "base.schedule.epochs": 20,
    },
}


# Linear one-vs-rest


@pytest.mark.parametrize("regularisation", [0.3, 3.0])
def test_linear_xmc_is_ridge_regression_of_the_labels(regularisation, tmp_path):
    data = block_dataset()
    split = make(data, "cold")
    system = LinearXMC(regularisation=regularisation)
    said = scores(system, data, split, "test", tmp_path)
    known, asked = split.tasks("train"), split.tasks("test")
    ridge = Ridge(alpha=regularisation, fit_intercept=False, solver="cholesky")
    ridge.fit(system.features[known].toarray().astype(np.float64), split.train[known].toarray())
    listed = split.train.getnnz(axis=0) > 0
    predicted = ridge.predict(system.features[asked].toarray())
    np.testing.assert_allclose(said[:, listed], predicted[:, listed], atol=1e-4)


def test_linear_xmc_ranks_servers_without_labels_by_text_alone(tmp_path):
    data, whole = copy_dataset()
    unlisted, listed = np.arange(0, N_SERVERS, 5), np.flatnonzero(np.arange(N_SERVERS) % 5)
    split = without_training(whole, unlisted)
    said = scores(LinearXMC(0.01, text_prior=0.5), data, split, "test", tmp_path)
    cosine = scores(TfidfCosine(), data, split, "test", tmp_path)[:, unlisted]
    lowest = np.minimum(said[:, listed].min(axis=1, keepdims=True), 0)
    assert (lowest < 0).mean() > 0.5
    assert (cosine == 0).any()
    assert (cosine > 0).any()
    np.testing.assert_allclose(said[:, unlisted], np.where(cosine > 0, 0.5 * cosine, lowest), rtol=1e-5)
    none = scores(LinearXMC(0.01, text_prior=0), data, split, "test", tmp_path)
    assert (none[:, unlisted] <= none[:, listed].min(axis=1, keepdims=True)).all()


def test_linear_xmc_attributes_have_the_stated_weight(tmp_path):
    data = block_dataset()
    system = LinearXMC(attribute_weight=4.0)
    system.fit(data, make(data, "cold"), seed=1, workdir=tmp_path)
    lengths = np.asarray(system.features.multiply(system.features).sum(axis=1)).ravel()
    np.testing.assert_allclose(lengths, 1 + 4, rtol=1e-4)


def test_linear_xmc_finds_copies_and_tells_blocks_apart(tmp_path):
    data, split = copy_dataset()
    assert recall10(_ranked("linear_xmc", data, split, tmp_path, regularisation=0.01), split).tolist() == [1.0] * 20
    data = block_dataset()
    split = make(data, "cold")
    own = (_ranked("linear_xmc", data, split, tmp_path) >= N_SERVERS // 2) == (split.tasks("test") >= 20)[:, None]
    assert own.mean() == 1


def _ranked(name, data, split, tmp_path, **model):
    system = build(name, **model)
    system.fit(data, split, seed=1, workdir=tmp_path)
    return top10(system, data, split)


# Rank fusion


@dataclass
class Fixed:
    """A member that always says the same."""

    said: list[list[float]]

    def fit(self, data, split, *, seed, workdir):
        self.folder = workdir

    def score(self, tasks):
        return np.array(self.said, dtype=np.float32)[tasks]


def fused(members, tmp_path, *, known=(), **settings):
    from types import SimpleNamespace

    train = np.zeros((1, 4), np.float32)
    train[0, list(known)] = 1
    system = ReciprocalRankFusion(members, **settings)
    split = SimpleNamespace(train=sp.csr_matrix(train))
    system.fit(SimpleNamespace(n_servers=4), split, seed=1, workdir=tmp_path)
    return system.score(np.array([0]))[0]


def test_rank_fusion_by_hand(tmp_path):
    members = {"a": Fixed([[4, 3, 2, 1]]), "b": Fixed([[0, 9, 5, 0]])}
    # a ranks 0 1 2 (3 is its lowest), b ranks 1 2
    expected = [1 / 61, 1 / 62 + 1 / 61, 1 / 63 + 1 / 62, 0]
    np.testing.assert_allclose(fused(members, tmp_path), expected, rtol=1e-6)


def test_rank_fusion_weighs_cuts_and_leaves_known_servers_out(tmp_path):
    members = {"a": Fixed([[4, 3, 2, 1]]), "b": Fixed([[0, 9, 5, 0]])}
    np.testing.assert_allclose(fused(members, tmp_path, weights={"b": 0.5}, c=0, depth=1), [1, 0.5, 0, 0])
    np.testing.assert_allclose(fused(members, tmp_path, known=[0], c=0, depth=1), [0, 2, 0, 0])


def test_rank_fusion_finds_copies(tmp_path):
    # The toy's servers have words at random, so the lexical member has nothing to say.
    data, split = copy_dataset()
    ranked = _ranked("rrf", data, split, tmp_path, **{"weights.tfidf": 0.01})
    assert recall10(ranked, split).tolist() == [1.0] * 20


def test_a_member_that_says_nothing_does_not_count(tmp_path):
    silent = {"a": Fixed([[4, 3, 2, 1]]), "mute": Fixed([[-np.inf] * 4]), "flat": Fixed([[0.5] * 4])}
    np.testing.assert_array_equal(fused(silent, tmp_path), fused({"a": Fixed([[4, 3, 2, 1]])}, tmp_path))


def test_members_have_folders_of_their_own_and_weights_must_name_them(tmp_path):
    members = {"a": Fixed([[1, 2, 3, 4]]), "b": Fixed([[1, 2, 3, 4]])}
    fused(members, tmp_path)
    assert members["a"].folder != members["b"].folder
    assert members["a"].folder.is_dir()
    with pytest.raises(StudyError, match=r"'c'.*no members"):
        fused(members, tmp_path, weights={"c": 1.0})


# Transfer to new tasks


def trained(epochs):
    return Schedule(epochs=epochs, patience=None)


BASES = [
    ItemKNN(),
    UserKNN(),
    ImplicitALS(width=8),
    MSBPR(width=8, popularity=0, steps=20, schedule=trained(2)),
    ReCAFR(width=8, layers=2, learning_rate=0.02, batch_size=64, schedule=trained(3)),
]


@pytest.mark.parametrize("base", BASES, ids=lambda base: type(base).__name__)
def test_a_copy_gets_the_scores_of_its_training_task(base, tmp_path):
    data, split = copy_dataset()
    system = KnnTransfer(base, k=[1], power=[1.0])
    system.fit(data, split, seed=1, workdir=tmp_path)
    copied = system.base.score_representations(system.base.representations[np.arange(20)])
    np.testing.assert_allclose(system.score(split.tasks("test")), copied, rtol=1e-5)
    np.testing.assert_array_equal(system.score(np.arange(20)), base.score(np.arange(20)))  # known tasks are the base's
    if not isinstance(base, UserKNN):  # which does not count a task among its own neighbours
        np.testing.assert_allclose(copied, base.score(np.arange(20)), rtol=1e-5)


@pytest.mark.parametrize("k", [1, 5])
def test_transferred_scores_of_msbpr_keep_the_bias_of_the_servers(k, tmp_path):
    data, split = copy_dataset()
    base = MSBPR(width=8, popularity=0, steps=20, schedule=trained(2))
    system = KnnTransfer(base, k=[k], power=[1.0])
    system.fit(data, split, seed=1, workdir=tmp_path)
    known, new = split.tasks("train"), split.tasks("test")
    weights = neighbour_weights(system.content.similarity(new), k, 1.0, system.order)
    tasks, servers, bias = (weight.detach().numpy() for weight in base.network.parameters())
    product = weights @ tasks[known] @ servers.T
    assert np.ptp(bias) > np.ptp(product, axis=1).mean()  # too much to go unnoticed
    np.testing.assert_allclose(system.score(new), product + bias, atol=1e-6)


@pytest.mark.parametrize("name", [*TRANSFERS, *TRAINED])
def test_transfer_finds_the_lists_of_copies(name, tmp_path):
    data, split = group_copies()
    assert recall10(_ranked(name, data, split, tmp_path, **SMALL.get(name, {})), split).tolist() == [1.0] * 10


@pytest.mark.parametrize("name", [*TRANSFERS, *TRAINED])
def test_transfer_tells_blocks_apart(name, tmp_path):
    data = block_dataset()
    split = make(data, "cold")
    ranked = _ranked(name, data, split, tmp_path, **SMALL.get(name, {}))
    assert ((ranked >= N_SERVERS // 2) == (split.tasks("test") >= 20)[:, None]).mean() >= 0.99


def test_known_and_new_tasks_may_be_asked_together(tmp_path):
    data, split = copy_dataset()
    system = KnnTransfer(ItemKNN(), k=[1], power=[1.0])
    system.fit(data, split, seed=1, workdir=tmp_path)
    mixed = system.score(np.array([25, 3, 24]))
    np.testing.assert_array_equal(mixed[1], system.score(np.array([3]))[0])
    np.testing.assert_array_equal(mixed[[0, 2]], system.score(np.array([25, 24])))


def test_k_is_chosen_on_validation(tmp_path):
    data, split = copy_dataset()
    # Validation tasks are the copies, so one neighbour is best; test labels play no part.
    split = replace(split, valid=split.test, test=split.valid)
    system = KnnTransfer(UserKNN(), k=[20, 1], power=[1.0])
    system.fit(data, split, seed=1, workdir=tmp_path)
    assert system.chosen == (1, 1.0)
    assert system.uses_validation
    assert not KnnTransfer(UserKNN(), k=[1], power=[1.0]).uses_validation


def test_neighbour_weights_by_hand():
    similarity = np.array([[0.5, 0.25, -np.inf, 0.1], [0, 0, 0, 0]], dtype=np.float32)
    said = neighbour_weights(similarity, 2, 2.0, np.arange(4)).toarray()
    np.testing.assert_allclose(said[0], [0.8, 0.2, 0, 0], rtol=1e-6)
    np.testing.assert_allclose(said[1], [0.5, 0.5, 0, 0])


# All of them


@pytest.mark.parametrize("name", ["linear_xmc", "item_knn_transfer", "ease_transfer"])
def test_relabelled_servers_get_the_same_scores(name, tmp_path):
    data = block_dataset()
    split = make(data, "cold")
    *other, new_row = relabelled(data, split)
    before, after = (scores(build(name), *each, "test", tmp_path) for each in ((data, split), other))
    np.testing.assert_allclose(after[:, new_row], before, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("name", "protocol"), [("rrf", "warm"), ("rrf", "cold"), ("ials_transfer", "cold")])
def test_relabelled_servers_leave_the_quality(name, protocol, tmp_path):
    data = block_dataset()
    split = make(data, protocol)
    *other, _ = relabelled(data, split)  # ties are broken, and starting vectors drawn, in another order
    small = SMALL.get(name, {})
    before, after = (fit_and_recall(name, *each, tmp_path, **small) for each in ((data, split), other))
    assert after == pytest.approx(before, abs=0.1)


def test_fusion_serves_known_tasks_five_times_better_than_popularity(planted, floor, tmp_path):
    assert fit_and_recall("rrf", planted, make(planted, "warm"), tmp_path) > floor["warm"]


@pytest.mark.parametrize("name", ["linear_xmc", "rrf", *TRANSFERS])
def test_new_tasks_are_served_five_times_better_than_by_chance(name, planted, floor, tmp_path):
    assert fit_and_recall(name, planted, make(planted, "cold"), tmp_path, **SMALL.get(name, {})) > floor["cold"]


def test_tie_order_of_the_fusion_is_the_evaluators(tmp_path):
    system = ReciprocalRankFusion({"a": Fixed([[1, 2, 3, 4]])})
    from types import SimpleNamespace

    system.fit(SimpleNamespace(n_servers=4), SimpleNamespace(train=sp.csr_matrix((1, 4))), seed=7, workdir=tmp_path)
    np.testing.assert_array_equal(system.order, tie_order(4, 7))
