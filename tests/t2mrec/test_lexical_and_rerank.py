"""Lexical vectors, their saved form, and the contract of the re-ranker."""

import json

import numpy as np
import pytest

from study.data.dataset import Dataset
from study.data.splits import Split
from study.t2mrec import lexical
from study.t2mrec.fusion import rerank_pool


def test_vectors_are_unit_and_share_a_vocabulary(toy: Dataset, toy_split: Split) -> None:
    vectorizer, tasks, servers = lexical.vectorize(toy, toy_split.tasks("train"))
    assert tasks.shape == (toy.n_tasks, len(vectorizer.vocabulary_))
    assert servers.shape == (toy.n_servers, len(vectorizer.vocabulary_))
    for matrix in (tasks, servers):
        np.testing.assert_allclose(np.sqrt(matrix.multiply(matrix).sum(axis=1)), 1, rtol=1e-5)


def test_vocabulary_knows_no_test_task(toy: Dataset, toy_split: Split) -> None:
    vectorizer, _, _ = lexical.vectorize(toy, toy_split.tasks("train"))
    test_only = {f"item{row}" for row in toy_split.tasks("test")}
    assert not test_only & set(vectorizer.vocabulary_)
    assert {f"item{row}" for row in toy_split.tasks("train")} <= set(vectorizer.vocabulary_)


def test_vocabulary_is_cut(toy: Dataset, toy_split: Split) -> None:
    vectorizer, _, _ = lexical.vectorize(toy, toy_split.tasks("train"), max_features=17)
    assert len(vectorizer.vocabulary_) == 17


def test_saved_vectorizer_gives_the_same_vectors(toy: Dataset, toy_split: Split) -> None:
    vectorizer, tasks, _ = lexical.vectorize(toy, toy_split.tasks("train"))
    rebuilt = lexical.from_json(json.loads(json.dumps(lexical.to_json(vectorizer))))
    np.testing.assert_allclose(rebuilt.transform(toy.task_texts()).toarray(), tasks.toarray(), rtol=1e-6)


POOL = np.array([4, 2, 9])


@pytest.mark.parametrize(
    ("answer", "expected", "valid"),
    [
        ([9, 4, 2], [9, 4, 2], True),
        ([9, 4], [4, 2, 9], False),
        ([9, 4, 4], [4, 2, 9], False),
        ([9, 4, 7], [4, 2, 9], False),
        ([9, 4, 2, 1], [4, 2, 9], False),
    ],
    ids=["permutation", "too short", "repeat", "outside the pool", "too long"],
)
def test_reranker_can_only_reorder(toy: Dataset, answer: list[int], expected: list[int], valid: bool) -> None:
    order, accepted = rerank_pool(lambda data, task, pool: np.array(answer), toy, 0, POOL)
    assert (list(order), accepted) == (expected, valid)


def test_without_reranker_the_order_stays(toy: Dataset) -> None:
    assert list(rerank_pool(None, toy, 0, POOL)[0]) == list(POOL)
