"""What must hold for every configured system, also for those added later."""

from __future__ import annotations

import numpy as np
import pytest
from baseline_toys import ask, block_dataset, build, ranked_systems, scores, with_other_answers

from study import config
from study.data.dataset import relevance_from_lists
from study.data.splits import make

FULL_RANKING = ("cold", "cold_grouped", "warm", "loo")


@pytest.fixture(scope="module", params=ranked_systems())
def fitted(request, tmp_path_factory):
    """One toy run per system: its name, data, split and scores of the test tasks."""
    name = request.param
    protocols = config.load([f"system={name}", "profile=smoke"]).system.protocols
    protocol = next((choice for choice in protocols if choice in FULL_RANKING), None)
    if protocol is None:
        pytest.skip("applies to no full-ranking protocol")
    data = block_dataset()
    split = make(data, protocol)
    return name, data, split, scores(build(name), data, split, "test", tmp_path_factory.mktemp(name))


def test_scores_cover_the_catalogue_and_are_numbers(fitted):
    _, data, split, said = fitted
    assert said.shape[0] == len(split.tasks("test"))
    assert said.shape[1] >= min(data.n_servers, 10)
    assert not np.isnan(said).any()
    assert np.isfinite(said).any(axis=1).all()


def test_same_seed_gives_same_scores(fitted, tmp_path):
    name, data, split, said = fitted
    np.testing.assert_array_equal(scores(build(name), data, split, "test", tmp_path), said)


def test_held_out_labels_change_no_score(fitted, tmp_path):
    """The leak test. A system that stops early on validation labels says so with ``uses_validation = True``."""
    name, data, split, said = fitted
    system = build(name)
    parts = ("test",) if getattr(system, "uses_validation", False) else ("valid", "test")
    other_data, other_split = with_other_answers(data, split, parts)
    assert (other_data.relevance != data.relevance).nnz
    system.fit(other_data, other_split, seed=1, workdir=tmp_path)
    # What a ranking leaves out is told by the evaluator, so the question is asked as before.
    np.testing.assert_array_equal(ask(system, split, "test"), said)


class Leaky:
    """Scores read from one place that a system must not look at."""

    def __init__(self, read):
        self.read = read

    def fit(self, data, split, *, seed, workdir):
        self.matrix = self.read(data, split)

    def score(self, tasks):
        return self.matrix[tasks].toarray().astype(np.float32)


@pytest.mark.parametrize("protocol", ["cold", "warm"])
@pytest.mark.parametrize(
    "read",
    [
        lambda data, split: data.relevance,
        lambda data, split: split.test,
        lambda data, split: split.valid,
        lambda data, split: relevance_from_lists(data.lists, data.n_servers),
    ],
    ids=["relevance", "test", "valid", "lists"],
)
def test_the_leak_test_catches_a_leak(read, protocol, tmp_path):
    data = block_dataset()
    split = make(data, protocol)
    other = with_other_answers(data, split, ("valid", "test"))
    everyone = np.arange(data.n_tasks)
    said = []
    for each in ((data, split), other):
        system = Leaky(read)
        system.fit(*each, seed=1, workdir=tmp_path)
        said.append(system.score(everyone))
    assert (said[0] != said[1]).any()


@pytest.mark.parametrize("protocol", ["cold", "warm"])
def test_other_answers_keep_what_a_system_may_see(protocol):
    data = block_dataset()
    split = make(data, protocol)
    other_data, other = with_other_answers(data, split, ("valid", "test"))
    assert (other.train != split.train).nnz == 0
    for part in ("valid", "test"):
        assert other.part(part).multiply(split.part(part)).nnz == 0
        np.testing.assert_array_equal(np.diff(other.part(part).indptr), np.diff(split.part(part).indptr))
    assert ((other.train + other.valid + other.test) != other_data.relevance).nnz == 0
