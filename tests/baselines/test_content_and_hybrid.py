"""The linear content model, rank fusion, and the transfer of collaborative systems to new tasks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.linear_model import Ridge

from baselines.cosine import TfidfCosine
from baselines.ials import ImplicitALS
from baselines.knn_transfer import KnnTransfer, neighbour_weights
from baselines.linear_xmc import LinearXMC
from baselines.msbpr import MSBPR
from baselines.neighbours import ItemKNN, UserKNN
from baselines.recafr import ReCAFR
from baselines.rrf import ReciprocalRankFusion
from study.data.splits import make
from study.errors import StudyError
from tests.baselines.toys import (
    N_SERVERS,
    all_epochs,
    copy_dataset,
    fit,
    group_copies,
    own_block,
    recall10,
    relabelled,
    scores,
    top10,
    without_training,
)

TRANSFERS = ("item_knn_transfer", "ease_transfer", "ials_transfer")
SMALL = {
    "msbpr_transfer": {"base.popularity": 0, "base.learning_rate": 0.05, "base.steps": 50, "base.schedule.epochs": 8},
    "recafr_transfer": {
        "base.width": 16,
        "base.learning_rate": 0.02,
        "base.batch_size": 64,
        "base.schedule.epochs": 20,
    },
}


def configured(name, data, split, tmp_path=None):
    return fit(name, data, split, tmp_path, **SMALL.get(name, {}))


# Linear one-vs-rest


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


def test_linear_xmc_attributes_have_the_stated_weight(cold_blocks):
    features = fit(LinearXMC(attribute_weight=4.0), *cold_blocks).features
    np.testing.assert_allclose(np.asarray(features.multiply(features).sum(axis=1)).ravel(), 1 + 4, rtol=1e-4)


def test_linear_xmc_finds_copies_and_tells_blocks_apart(cold_blocks):
    copies = copy_dataset()
    assert recall10(fit("linear_xmc", *copies, regularisation=0.01), *copies).tolist() == [1.0] * 20
    assert own_block(top10(fit("linear_xmc", *cold_blocks), *cold_blocks), *cold_blocks) == 1


# Rank fusion


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
    train = np.zeros((1, 4), np.float32)
    train[0, list(known)] = 1
    system = ReciprocalRankFusion(members, weights or {}, c, depth)
    fit(system, SimpleNamespace(n_servers=4), SimpleNamespace(train=sp.csr_matrix(train)), tmp_path)
    return system.score(np.array([0]))[0]


def test_rank_fusion_by_hand(tmp_path):
    # a ranks 0 1 2 (3 is its lowest), b ranks 1 2
    np.testing.assert_allclose(fused(tmp_path, a=A, b=B), [1 / 61, 1 / 62 + 1 / 61, 1 / 63 + 1 / 62, 0], rtol=1e-6)
    np.testing.assert_allclose(fused(tmp_path, a=A, b=B, weights={"b": 0.5}, c=0, depth=1), [1, 0.5, 0, 0])
    np.testing.assert_allclose(fused(tmp_path, a=A, b=B, known=[0], c=0, depth=1), [0, 2, 0, 0])


def test_rank_fusion_finds_copies(tmp_path):
    # The toy's servers have words at random, so the lexical member has nothing to say.
    copies = copy_dataset()
    assert recall10(fit("rrf", *copies, tmp_path, **{"weights.tfidf": 0.01}), *copies).tolist() == [1.0] * 20


def test_a_member_that_says_nothing_does_not_count(tmp_path):
    silent = fused(tmp_path, a=A, mute=Fixed([[-np.inf] * 4]), flat=Fixed([[0.5] * 4]))
    np.testing.assert_array_equal(silent, fused(tmp_path, a=A))


def test_members_have_folders_of_their_own_and_weights_must_name_them(tmp_path):
    fused(tmp_path, a=A, b=B)
    assert A.folder != B.folder
    assert A.folder.is_dir()
    with pytest.raises(StudyError, match=r"'c'.*no members"):
        fused(tmp_path, a=A, weights={"c": 1.0})


# Transfer to new tasks


BASES = [
    ItemKNN(),
    UserKNN(),
    ImplicitALS(width=8),
    MSBPR(width=8, popularity=0, steps=20, schedule=all_epochs(2)),
    ReCAFR(width=8, layers=2, learning_rate=0.02, batch_size=64, schedule=all_epochs(3)),
]


@pytest.mark.parametrize("base", BASES, ids=lambda base: type(base).__name__)
def test_a_copy_gets_the_scores_of_its_training_task(base, tmp_path):
    data, split = copy_dataset()
    system = fit(KnnTransfer(base, k=[1], power=[1.0]), data, split, tmp_path)
    copied = system.base.score_representations(system.base.representations[np.arange(20)])
    np.testing.assert_allclose(system.score(split.tasks("test")), copied, rtol=1e-5)
    np.testing.assert_array_equal(system.score(np.arange(20)), base.score(np.arange(20)))  # known tasks are the base's
    if not isinstance(base, UserKNN):  # which does not count a task among its own neighbours
        np.testing.assert_allclose(copied, base.score(np.arange(20)), rtol=1e-5)


def test_transferred_scores_of_msbpr_keep_the_bias_of_the_servers(tmp_path):
    data, split = copy_dataset()
    base = MSBPR(width=8, popularity=0, steps=20, schedule=all_epochs(2))
    system = fit(KnnTransfer(base, k=[5], power=[1.0]), data, split, tmp_path)
    known, new = split.tasks("train"), split.tasks("test")
    weights = neighbour_weights(system.content.similarity(new), 5, 1.0, system.order)
    tasks, servers, bias = (weight.detach().numpy() for weight in base.network.parameters())
    product = weights @ tasks[known] @ servers.T
    assert np.ptp(bias) > np.ptp(product, axis=1).mean()  # too much to go unnoticed
    np.testing.assert_allclose(system.score(new), product + bias, atol=1e-6)


@pytest.mark.parametrize("name", [*TRANSFERS, *SMALL])
def test_transfer_finds_the_lists_of_copies_and_tells_blocks_apart(name, cold_blocks, tmp_path):
    copies = group_copies()
    assert recall10(configured(name, *copies, tmp_path / "copies"), *copies).tolist() == [1.0] * 10
    ranked = top10(configured(name, *cold_blocks, tmp_path / "blocks"), *cold_blocks)
    assert own_block(ranked, *cold_blocks) >= 0.99


def test_known_and_new_tasks_may_be_asked_together():
    system = fit(KnnTransfer(ItemKNN(), k=[1], power=[1.0]), *copy_dataset())
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


# All of them


@pytest.mark.parametrize(
    ("name", "protocol"),
    [("linear_xmc", "cold"), ("rrf", "cold"), ("rrf", "warm"), *((name, "cold") for name in TRANSFERS)],
)
def test_relabelled_servers_change_nothing_and_planted_data_are_served(
    name, protocol, blocks, planted, floor, tmp_path
):
    toy = blocks[0], make(blocks[0], protocol)
    *other, new_row = relabelled(*toy)
    before, after = (fit(name, *each, tmp_path / str(each is toy)) for each in (toy, other))
    if name in ("rrf", "ials_transfer"):  # ties are broken, and starting vectors drawn, in another order
        assert recall10(after, *other).mean() == pytest.approx(recall10(before, *toy).mean(), abs=0.1)
    else:
        tasks = toy[1].tasks("test")
        np.testing.assert_allclose(after.score(tasks)[:, new_row], before.score(tasks), rtol=1e-3, atol=1e-4)
    large = planted, make(planted, protocol)
    assert recall10(fit(name, *large, tmp_path / "planted"), *large).mean() > floor[protocol]
