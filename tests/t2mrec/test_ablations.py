"""What an ablation leaves out is out, and what hard negatives add are hard and negative."""

from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from study.data.dataset import Dataset
from study.data.splits import Split
from study.errors import StudyError
from study.evaluation.ranking import top_k
from study.t2mrec.module import PairEpoch, nearest_negatives
from study.t2mrec.settings import Lexical, Scoring, Towers, Training
from study.t2mrec.system import T2MRec

ORDER = np.arange(5)
SERVERS = sp.csr_matrix(np.array([[1, 0], [0.8, 0.6], [0.6, 0.8], [0, 1], [0, 1]], np.float32))
TASKS = sp.csr_matrix(np.array([[1, 0], [0, 1], [1, 0]], np.float32))
# The first task has server 0, the second 1 and 4, the third is no training task.
POSITIVES = sp.csr_matrix(np.array([[1, 0, 0, 0, 0], [0, 1, 0, 0, 1], [0, 0, 0, 0, 0]], np.float32))


def fitted(toy: Dataset, split: Split, workdir: Path, scoring: Scoring, **training: object) -> T2MRec:
    settings = Training(epochs=4, batch_size=16, **training)  # type: ignore[arg-type]
    system = T2MRec(Lexical(), Towers(hidden=32, output=16), settings, scoring)
    system.fit(toy, split, seed=2, workdir=workdir)
    return system


def test_nearest_negatives_by_hand() -> None:
    found = nearest_negatives(TASKS, SERVERS, POSITIVES, pool=2, order=ORDER)
    assert found.tolist() == [[1, 2], [3, 2], [0, 0]]


def test_a_pool_that_no_task_can_fill_is_refused() -> None:
    assert nearest_negatives(TASKS, SERVERS, POSITIVES, pool=3, order=ORDER)[1].tolist() == [3, 2, 0]
    with pytest.raises(StudyError, match="more than 5 servers"):
        nearest_negatives(TASKS, SERVERS, POSITIVES, pool=4, order=ORDER)


def test_hard_negatives_come_from_the_tasks_own_pool_and_all_get_their_turn(toy: Dataset, toy_split: Split) -> None:
    rows = toy_split.tasks("train")
    eye_tasks, eye_servers = (sp.eye_array(n, format="csr") for n in toy_split.train.shape)
    hard = np.random.default_rng(0).permuted(np.tile(np.arange(50), (100, 1)), axis=1)[:, :6]
    seen: dict[int, set[int]] = {int(task): set() for task in rows}
    for epoch in range(20):
        for batch in PairEpoch(
            eye_tasks, eye_servers, toy_split.train, rows, batch_size=16, seed=0, epoch=epoch, hard=hard, n_hard=2
        ):
            tasks, servers = batch.tasks.indices, batch.servers.indices
            assert len(servers) == 3 * len(tasks)
            drawn = servers[len(tasks) :].reshape(-1, 2)
            assert (drawn[:, 0] != drawn[:, 1]).all()
            for task, pair in zip(tasks, drawn, strict=True):
                seen[int(task)] |= set(pair.tolist())
    assert all(seen[int(task)] == set(hard[task].tolist()) for task in rows)


def test_hard_negatives_leave_the_pairs_of_an_epoch_as_they_are(toy: Dataset, toy_split: Split) -> None:
    rows = toy_split.tasks("train")
    eye_tasks, eye_servers = (sp.eye_array(n, format="csr") for n in toy_split.train.shape)
    options = {"batch_size": 16, "seed": 4, "epoch": 7}
    plain = PairEpoch(eye_tasks, eye_servers, toy_split.train, rows, **options)
    hard = PairEpoch(eye_tasks, eye_servers, toy_split.train, rows, **options, hard=np.zeros((100, 9), int), n_hard=1)
    np.testing.assert_array_equal(plain.rows, hard.rows)
    np.testing.assert_array_equal(plain.servers, hard.servers)


@pytest.mark.parametrize("shared", [False, True])
def test_hard_negatives_change_what_is_learned(toy: Dataset, toy_split: Split, tmp_path: Path, shared: bool) -> None:
    towers, scores = Towers(hidden=32, output=16, shared=shared), []
    for number, hard in enumerate((0, 2, 2)):
        training = Training(epochs=4, batch_size=16, hard_negatives=hard, hard_pool=8)
        system = T2MRec(Lexical(), towers, training, Scoring())
        system.fit(toy, toy_split, seed=2, workdir=tmp_path / str(number))
        scores.append(system.score(toy_split.tasks("test")))
    assert np.abs(scores[0] - scores[1]).max() > 1e-3
    np.testing.assert_array_equal(scores[1], scores[2])


def test_one_direction_changes_what_is_learned(toy: Dataset, toy_split: Split, tmp_path: Path) -> None:
    both = fitted(toy, toy_split, tmp_path / "both", Scoring())
    one = fitted(toy, toy_split, tmp_path / "one", Scoring(), symmetric=False)
    assert np.abs(both.task_embeddings - one.task_embeddings).max() > 1e-3


def test_without_expansion_the_fused_score_alone_ranks(toy: Dataset, toy_split: Split, tmp_path: Path) -> None:
    system = fitted(toy, toy_split, tmp_path, Scoring(expansion=False, pool=20))
    asked, known = toy_split.tasks("test"), toy_split.known("test")
    for k in (10, 30):
        rows, scores = system.rank(asked, k, known)
        expected_rows, expected_scores = top_k(system.score(asked), k, system.order)
        np.testing.assert_array_equal(rows, expected_rows)
        np.testing.assert_array_equal(scores, expected_scores)
    system.scoring = Scoring(pool=20)
    assert (system.rank(asked, 10, known)[0] != top_k(system.score(asked), 10, system.order)[0]).any()


def test_without_structure_the_semantic_score_alone_is_fused(toy: Dataset, toy_split: Split, tmp_path: Path) -> None:
    system = fitted(toy, toy_split, tmp_path, Scoring(semantic_weight=1.0))
    asked = toy_split.tasks("test")
    np.testing.assert_array_equal(system.score(asked), system.semantic(asked))
    system.scoring = Scoring()
    assert np.abs(system.score(asked) - system.semantic(asked)).max() > 0.01
