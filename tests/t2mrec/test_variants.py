"""What ablations leave out is out, what hard negatives add is hard and negative, and what the authors' program does."""

import math
from collections import Counter

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import torch

from study.advisor.retrieval.structure import StructuralFeatures, languages
from study.base.errors import StudyError
from study.evaluation.ranking import top_k
from study.t2mrec.pairs import draw_pairs, draw_triples, nearest_negatives
from study.t2mrec.settings import Lexical, Scoring, Towers, Training
from study.t2mrec.system import T2MRec
from study.t2mrec.towers import program_bce

ORDER = np.arange(5)
SERVERS = sp.csr_matrix(np.array([[1, 0], [0.8, 0.6], [0.6, 0.8], [0, 1], [0, 1]], np.float32))
TASKS = sp.csr_matrix(np.array([[1, 0], [0, 1], [1, 0]], np.float32))
# The first task has server 0, the second 1 and 4, the third is no training task.
POSITIVES = sp.csr_matrix(np.array([[1, 0, 0, 0, 0], [0, 1, 0, 0, 1], [0, 0, 0, 0, 0]], np.float32))


def test_nearest_negatives_by_hand():
    found = nearest_negatives(TASKS, SERVERS, POSITIVES, pool=2, order=ORDER)
    assert found.tolist() == [[1, 2], [3, 2], [0, 0]]
    assert nearest_negatives(TASKS, SERVERS, POSITIVES, pool=3, order=ORDER)[1].tolist() == [3, 2, 0]
    with pytest.raises(StudyError, match="more than 5 servers"):  # a pool that no task can fill
        nearest_negatives(TASKS, SERVERS, POSITIVES, pool=4, order=ORDER)


def test_hard_negatives_come_from_the_tasks_own_pool_and_all_get_their_turn(toy_split):
    hard = np.random.default_rng(0).permuted(np.tile(np.arange(50), (100, 1)), axis=1)[:, :6]
    seen = {int(task): set() for task in toy_split.tasks("train")}
    for epoch in range(20):
        plain, pairs = (
            draw_pairs(toy_split.train, np.random.default_rng(epoch), hard=own, count=2) for own in (None, hard)
        )
        np.testing.assert_array_equal(plain.tasks, pairs.tasks)  # they leave the pairs as they are
        np.testing.assert_array_equal(plain.positives, pairs.positives)
        assert (pairs.negatives[:, 0] != pairs.negatives[:, 1]).all()
        for task, own in zip(pairs.tasks, pairs.negatives, strict=True):
            seen[int(task)] |= set(own.tolist())
        tasks, servers, _ = next(pairs.batches(16))
        np.testing.assert_array_equal(servers[len(tasks) :], pairs.negatives[: len(tasks)].ravel())
    assert seen == {task: set(hard[task].tolist()) for task in seen}


def test_without_expansion_the_fused_score_alone_ranks(toy, toy_split, tmp_path):
    settings = Training(epochs=4, batch_size=16), Scoring(expansion=False, pool=20)
    system = T2MRec(Lexical(), Towers(hidden=32, output=16), *settings)
    system.fit(toy, toy_split, seed=2, workdir=tmp_path)
    asked, known = toy_split.tasks("test"), toy_split.known("test")
    for k in (10, 30):
        rows, scores = system.rank(asked, k, known)
        expected_rows, expected_scores = top_k(system.score(asked), k, system.order)
        np.testing.assert_array_equal(rows, expected_rows)
        np.testing.assert_array_equal(scores, expected_scores)
    system.scoring = Scoring(pool=20)
    assert (system.rank(asked, 10, known)[0] != top_k(system.score(asked), 10, system.order)[0]).any()


def test_the_programs_loss_by_hand():
    tasks = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    servers = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.8, 0.6], [-1.0, 0.0]])
    # Cosines 1 and .8 of the positives, .8 and 0 of the negatives; log(1 + e^-s) and log(1 + e^s).
    each = [math.log(1 + math.exp(z)) for z in (-1, -0.8, 0.8, 0)]
    assert program_bce(tasks, servers, temperature=1.0).item() == pytest.approx(np.mean(each), abs=1e-6)


def test_every_positive_has_ten_negatives_that_its_task_does_not_list(toy_split):
    found = draw_triples(toy_split.train, negatives=10, seed=3)
    positives = {(task, server) for task, server in zip(*toy_split.train.nonzero(), strict=True)}
    assert Counter(map(tuple, found[:, :2])) == dict.fromkeys(positives, 10)
    assert not {(task, server) for task, _, server in found} & positives
    assert len(np.unique(found, axis=0)) == len(found)  # no negative twice beside one positive
    np.testing.assert_array_equal(found, draw_triples(toy_split.train, negatives=10, seed=3))
    assert (found != draw_triples(toy_split.train, negatives=10, seed=4)).any()
    # Uniform: 10 of the 45 servers that a task does not list, for each of its positives.
    drawn = np.bincount(found[:, 2], minlength=toy_split.train.shape[1])
    free = toy_split.train.shape[0] - np.bincount(toy_split.train.indices, minlength=toy_split.train.shape[1])
    np.testing.assert_allclose(drawn / drawn.sum(), free / free.sum(), atol=0.01)


def test_languages_as_the_program_names_them():
    assert languages("Shell, C++ / sh (Node)", "program") == {"shell", "cpp", "javascript"}
    assert languages("node.js", "program") == {"node.js"}
    columns = ["category", "subcategory", "language", "system", "theme"]
    servers = pd.DataFrame([["a", "b", name, "", ""] for name in ("Shell", "Bash", "C#,Go")], columns=columns)
    tasks = pd.DataFrame([["a", "b", name, "", ""] for name in ("Bash", "csharp")], columns=columns)
    category, language, theme = StructuralFeatures(servers, aliases="program")(tasks)
    np.testing.assert_array_equal(language, [[0, 1, 0], [0, 0, 1]])
    usual = StructuralFeatures(servers)(tasks)
    np.testing.assert_array_equal(usual[1], [[1, 1, 0], [0, 0, 1]])
    np.testing.assert_array_equal([category, theme], usual[[0, 2]])
