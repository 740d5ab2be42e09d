"""What an ablation leaves out is out, and what hard negatives add are hard and negative."""

import numpy as np
import pytest
import scipy.sparse as sp

from study.errors import StudyError
from study.evaluation.ranking import top_k
from study.t2mrec.module import nearest_negatives
from study.t2mrec.settings import Lexical, Scoring, Towers, Training
from study.t2mrec.system import T2MRec

ORDER = np.arange(5)
SERVERS = sp.csr_matrix(np.array([[1, 0], [0.8, 0.6], [0.6, 0.8], [0, 1], [0, 1]], np.float32))
TASKS = sp.csr_matrix(np.array([[1, 0], [0, 1], [1, 0]], np.float32))
# The first task has server 0, the second 1 and 4, the third is no training task.
POSITIVES = sp.csr_matrix(np.array([[1, 0, 0, 0, 0], [0, 1, 0, 0, 1], [0, 0, 0, 0, 0]], np.float32))


def fitted(toy, split, workdir, scoring=None, *, shared=False, **training):
    towers, settings = Towers(hidden=32, output=16, shared=shared), Training(epochs=4, batch_size=16, **training)
    system = T2MRec(Lexical(), towers, settings, scoring or Scoring())
    system.fit(toy, split, seed=2, workdir=workdir)
    return system


def test_nearest_negatives_by_hand():
    found = nearest_negatives(TASKS, SERVERS, POSITIVES, pool=2, order=ORDER)
    assert found.tolist() == [[1, 2], [3, 2], [0, 0]]
    assert nearest_negatives(TASKS, SERVERS, POSITIVES, pool=3, order=ORDER)[1].tolist() == [3, 2, 0]
    with pytest.raises(StudyError, match="more than 5 servers"):  # a pool that no task can fill
        nearest_negatives(TASKS, SERVERS, POSITIVES, pool=4, order=ORDER)


def test_hard_negatives_come_from_the_tasks_own_pool_and_all_get_their_turn(toy_split, pair_epoch):
    hard = np.random.default_rng(0).permuted(np.tile(np.arange(50), (100, 1)), axis=1)[:, :6]
    seen = {int(task): set() for task in toy_split.tasks("train")}
    for epoch in range(20):
        for batch in pair_epoch(seed=0, epoch=epoch, hard=hard, n_hard=2):
            tasks, servers = batch.tasks.indices, batch.servers.indices
            assert len(servers) == 3 * len(tasks)
            drawn = servers[len(tasks) :].reshape(-1, 2)
            assert (drawn[:, 0] != drawn[:, 1]).all()
            for task, pair in zip(tasks, drawn, strict=True):
                seen[int(task)] |= set(pair.tolist())
    assert seen == {task: set(hard[task].tolist()) for task in seen}


def test_hard_negatives_leave_the_pairs_of_an_epoch_as_they_are(pair_epoch):
    plain, hard = (pair_epoch(seed=4, epoch=7, **more) for more in ({}, {"hard": np.zeros((100, 9), int), "n_hard": 1}))
    np.testing.assert_array_equal(plain.rows, hard.rows)
    np.testing.assert_array_equal(plain.servers, hard.servers)


@pytest.mark.parametrize("shared", [False, True])
def test_hard_negatives_change_what_is_learned(toy, toy_split, tmp_path, shared):
    scores = []
    for number, hard in enumerate((0, 2, 2)):
        settings = {"shared": shared, "hard_negatives": hard, "hard_pool": 8}
        system = fitted(toy, toy_split, tmp_path / str(number), **settings)
        scores.append(system.score(toy_split.tasks("test")))
    assert np.abs(scores[0] - scores[1]).max() > 1e-3
    np.testing.assert_array_equal(scores[1], scores[2])


def test_one_direction_changes_what_is_learned(toy, toy_split, tmp_path):
    both = fitted(toy, toy_split, tmp_path / "both")
    one = fitted(toy, toy_split, tmp_path / "one", symmetric=False)
    assert np.abs(both.task_embeddings - one.task_embeddings).max() > 1e-3


def test_without_expansion_the_fused_score_alone_ranks(toy, toy_split, tmp_path):
    system = fitted(toy, toy_split, tmp_path, Scoring(expansion=False, pool=20))
    asked, known = toy_split.tasks("test"), toy_split.known("test")
    for k in (10, 30):
        rows, scores = system.rank(asked, k, known)
        expected_rows, expected_scores = top_k(system.score(asked), k, system.order)
        np.testing.assert_array_equal(rows, expected_rows)
        np.testing.assert_array_equal(scores, expected_scores)
    system.scoring = Scoring(pool=20)
    assert (system.rank(asked, 10, known)[0] != top_k(system.score(asked), 10, system.order)[0]).any()


def test_without_structure_the_semantic_score_alone_is_fused(toy, toy_split, tmp_path):
    system = fitted(toy, toy_split, tmp_path, Scoring(semantic_weight=1.0))
    asked = toy_split.tasks("test")
    np.testing.assert_array_equal(system.score(asked), system.semantic(asked))
    system.scoring = Scoring()
    assert np.abs(system.score(asked) - system.semantic(asked)).max() > 0.01
