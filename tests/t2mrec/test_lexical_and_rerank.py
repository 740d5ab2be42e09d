"""Lexical vectors, their saved form, and the contract of the re-ranker."""

import json

import numpy as np
import pytest

from study.t2mrec import lexical
from study.t2mrec.fusion import rerank_pool


def test_vectors_are_unit_by_a_vocabulary_that_knows_no_test_task_and_is_saved(toy, toy_split):
    vectorizer, tasks, servers = lexical.vectorize(toy, toy_split.tasks("train"))
    words = set(vectorizer.vocabulary_)
    assert (tasks.shape, servers.shape) == ((toy.n_tasks, len(words)), (toy.n_servers, len(words)))
    for matrix in (tasks, servers):
        np.testing.assert_allclose(np.sqrt(matrix.multiply(matrix).sum(axis=1)), 1, rtol=1e-5)
    assert not {f"item{row}" for row in toy_split.tasks("test")} & words
    assert {f"item{row}" for row in toy_split.tasks("train")} <= words
    assert len(lexical.vectorize(toy, toy_split.tasks("train"), max_features=17)[0].vocabulary_) == 17
    rebuilt = lexical.from_json(json.loads(json.dumps(lexical.to_json(vectorizer))))
    np.testing.assert_allclose(rebuilt.transform(toy.task_texts()).toarray(), tasks.toarray(), rtol=1e-6)


POOL = np.array([4, 2, 9])


@pytest.mark.parametrize(
    "answer",
    [[9, 4, 2], [9, 4], [9, 4, 4], [9, 4, 7], [9, 4, 2, 1]],
    ids=["permutation", "too short", "repeat", "outside the pool", "too long"],
)
def test_reranker_can_only_reorder_and_without_one_the_order_stays(toy, answer):
    order, accepted = rerank_pool(lambda data, task, pool: np.array(answer), toy, 0, POOL)
    assert (list(order), accepted) == ((answer, True) if answer == [9, 4, 2] else ([4, 2, 9], False))
    assert list(rerank_pool(None, toy, 0, POOL)[0]) == [4, 2, 9]
