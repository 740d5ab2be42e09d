"""MPT-Rec with one category new at a time: whose labels the experts and the prompts have seen."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from baselines.mpt_rec import MPTRecEmerging, only
from baselines.training import Optimisation
from study.data.splits import make
from study.errors import StudyError
from tests.baselines.toys import block_dataset, recall10, top10


def small(epochs: int = 2, **changes: object) -> MPTRecEmerging:
    stage = Optimisation(epochs=epochs, batch_size=64, learning_rate=1e-2, weight_decay=0.0, warm_up=0.0, clip=5.0)
    sizes = {"experts": (16, 8), "towers": (8,), "attention": 8, "dense": 6, "negatives": 2, "dropout": 0.0}
    return MPTRecEmerging(**{**sizes, "first": stage, "second": stage, **changes})


def three_categories():
    """The blocks, with categories across them, of 20, 12 and 8 tasks."""
    data = block_dataset()
    data.tasks["category"] = np.tile(["one"] * 10 + ["two"] * 6 + ["three"] * 4, 2)
    return data


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    data = three_categories()
    split = make(data, "warm")
    system = small()
    system.fit(data, split, seed=1, workdir=tmp_path_factory.mktemp("emerging"))
    return system, data, split


def without(part: sp.csr_matrix, rows: np.ndarray) -> sp.csr_matrix:
    """`part` with the lists of `rows` reversed along the servers."""
    dense = part.toarray()
    dense[rows] = dense[rows][:, ::-1]
    return sp.csr_matrix(dense)


def test_experts_never_see_a_label_of_the_new_category_and_prompts_none_of_another(fitted, tmp_path):
    """Changing the labels of one category moves every expert but those that it is new to, and its own prompts alone."""
    system, data, split = fitted
    rows = np.flatnonzero(data.tasks["category"] == "two")
    changed = replace(split, train=without(split.train, rows), valid=without(split.valid, rows))
    other = small()
    other.fit(data, changed, seed=1, workdir=tmp_path)
    new = int(system.category[rows[0]])
    assert sorted(system.models) == [1, 2, 3]
    for number in system.models:
        one, two = system.models[number], other.models[number]
        experts = [
            torch.equal(a, b)
            for a, b in zip(one.stage1.state_dict().values(), two.stage1.state_dict().values(), strict=True)
        ]
        assert all(experts) == (number == new)
    assert not torch.equal(*(next(each.models[new].prompts.parameters()) for each in (system, other)))


def test_there_is_an_expert_for_each_other_category(fitted):
    system, _, split = fitted
    for number, model in system.models.items():
        assert len(model.stage1.experts.specific) == 2
        new = np.flatnonzero(system.category == number)
        assert (model.prompt[np.intersect1d(new, split.tasks("train"))] >= 0).all()
        assert set(np.flatnonzero(model.listed.counts)) <= set(new)


def test_a_task_is_scored_by_the_model_to_which_its_category_is_new(fitted):
    system, _, _ = fitted
    rows = np.array([3, 12, 18, 25, 39])
    found = system.score(rows)
    for row, scores in zip(rows, found, strict=True):
        own = system.models[int(system.category[row])]
        np.testing.assert_allclose(scores, own.score(np.array([row]))[0], rtol=1e-5)
    assert len({system.category[row] for row in rows}) == 3


def test_prompts_of_a_new_category_tell_the_blocks_apart(tmp_path):
    """What the frozen experts learned of other categories carries over: the blocks are the same in all of them."""
    data = three_categories()
    split = make(data, "cold")
    system = small(epochs=12)
    system.fit(data, split, seed=1, workdir=tmp_path)
    assert recall10(top10(system, data, split), split).mean() > 0.6


def test_an_unknown_category_is_scored_by_the_first_model(fitted, monkeypatch):
    system, _, _ = fitted
    monkeypatch.setattr(system, "category", np.where(np.arange(40) == 3, 0, system.category))
    np.testing.assert_array_equal(system.score(np.array([3])), system.models[1].score(np.array([3])))


def test_one_category_is_refused(tmp_path):
    data = block_dataset()
    data.tasks["category"] = "one"
    with pytest.raises(StudyError, match="one category"):
        small().fit(data, make(data, "warm"), seed=1, workdir=tmp_path)


def test_only_some_tasks_keep_their_interactions(fitted):
    _, data, split = fitted
    mask = np.arange(data.n_tasks) % 2 == 0
    kept = only(split, mask)
    for name in ("train", "valid"):
        assert kept.part(name)[mask].toarray().tolist() == split.part(name)[mask].toarray().tolist()
        assert set(kept.tasks(name)) == set(split.tasks(name)) & set(np.flatnonzero(mask))
    assert kept.test is split.test
