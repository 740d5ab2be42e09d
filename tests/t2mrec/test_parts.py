"""Parts of the method on cases worked out by hand (paper, eq. 9-22), and what must hold for any input."""

import json
import math
from collections import Counter
from functools import partial

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given
from hypothesis import strategies as st

from study.advisor.retrieval.fusion import centroids, expand, fuse
from study.advisor.retrieval.lexical import TfIdf
from study.advisor.retrieval.structure import StructuralFeatures, languages, operating_systems
from study.advisor.retrieval.towers import normalize
from study.base.errors import StudyError
from study.evaluation.ranking import tie_order, top_k
from study.t2mrec import lexical
from study.t2mrec.pairs import Pairs, draw_pairs, draw_triples, nearest_negatives
from study.t2mrec.settings import Lexical, Scoring, Towers, Training
from study.t2mrec.system import T2MRec
from study.t2mrec.towers import info_nce, pointwise_bce, program_bce


def softplus(z):
    return math.log(1 + math.exp(z))


def test_info_nce_by_hand():
    tasks, servers = torch.eye(2), torch.tensor([[1.0, 0.0], [0.6, 0.8]])
    # Cosines: [[1, .6], [0, .8]]. Rows: -log e^1/(e^1+e^.6), -log e^.8/(e^0+e^.8). Columns: over (1, 0) and (.6, .8).
    rows = (softplus(-0.4) + softplus(-0.8)) / 2
    columns = (softplus(-1.0) + softplus(-0.2)) / 2
    assert info_nce(tasks, servers, temperature=1.0, symmetric=False).item() == pytest.approx(rows, abs=1e-6)
    assert info_nce(tasks, servers, temperature=1.0).item() == pytest.approx((rows + columns) / 2, abs=1e-6)
    assert info_nce(tasks, tasks, temperature=0.1).item() == pytest.approx(softplus(-10), abs=1e-7)
    same = torch.ones(7, 3) / math.sqrt(3)
    assert info_nce(same, same, temperature=0.07).item() == pytest.approx(math.log(7), abs=1e-5)


def test_extra_negatives_count_in_the_task_direction_alone():
    tasks, servers = torch.eye(2), torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]])
    # Cosines: [[1, 0, .6], [0, 1, .8]]. The third server has no task, so columns are over the first two alone.
    rows = sum(math.log(1 + math.exp(-1.0) + math.exp(near - 1)) for near in (0.6, 0.8)) / 2
    columns = softplus(-1.0)
    assert info_nce(tasks, servers, temperature=1.0, symmetric=False).item() == pytest.approx(rows, abs=1e-6)
    assert info_nce(tasks, servers, temperature=1.0).item() == pytest.approx((rows + columns) / 2, abs=1e-6)


def test_servers_of_a_batch_as_a_set_by_hand():
    pairs = Pairs(np.array([7, 3, 5]), np.array([4, 2, 4]), np.array([[2], [9], [9]]))
    tasks, servers, own = next(pairs.batches(16, as_set=True))
    assert (tasks.tolist(), servers.tolist(), own.tolist()) == ([7, 3, 5], [2, 4, 9], [1, 0, 1])
    # Cosines: [[1, .6], [0, .8]]; the second server is both tasks' own. Columns: over (.6, .8) twice.
    embedded = torch.eye(2), torch.tensor([[1.0, 0.0], [0.6, 0.8]]), torch.tensor([1, 1])
    rows, columns = (softplus(0.4) + softplus(-0.8)) / 2, (softplus(0.2) + softplus(-0.2)) / 2
    assert info_nce(*embedded, temperature=1.0, symmetric=False).item() == pytest.approx(rows, abs=1e-6)
    assert info_nce(*embedded, temperature=1.0).item() == pytest.approx((rows + columns) / 2, abs=1e-6)
    # Point-wise: cosines .6 and .8 of the positives, 1 and 0 of the negatives.
    each = (softplus(-0.6) + softplus(-0.8)) / 2, (softplus(1) + softplus(0)) / 2
    assert pointwise_bce(*embedded, temperature=1.0).item() == pytest.approx(np.mean(each), abs=1e-6)


# Both kinds weigh the same; a single pair has no negatives; of two positives of cosine 1, the negatives are two of
# cosine 1 and four of cosine -1, extra ones among them.
BCE = [([1] * 5, [1] * 5, (softplus(-1) + softplus(1)) / 2), ([1], [1], softplus(-1) / 2)]
BCE += [([1] * 2, [1, 1, -1, -1], (softplus(-1) + (2 * softplus(1) + 4 * softplus(-1)) / 6) / 2)]


@pytest.mark.parametrize(("tasks", "servers", "expected"), BCE)
def test_bce_by_hand(tasks, servers, expected):
    tasks, servers = (torch.tensor(values, dtype=torch.float32)[:, None] for values in (tasks, servers))
    assert pointwise_bce(tasks, servers, temperature=1.0).item() == pytest.approx(expected, abs=1e-6)


ROWS = [("Automation", "Robots", "Python, Dockerfile", "macOS,Windows"), ("Automation", "Cars", "Go", "")]
ROWS += [("Search", "Robots", "", "Linux"), ("Search", "Web", "JS", "")]
CATALOGUE = pd.DataFrame(ROWS, columns=["category", "subcategory", "language", "system"])
ASKED = pd.DataFrame(
    [("Automation", "Robots", "python", "Machining"), ("Search", "Cars", "JavaScript", "Ubuntu hosting")],
    columns=["category", "subcategory", "language", "theme"],
)


def test_features_by_hand():
    category, language, theme = StructuralFeatures(CATALOGUE)(ASKED)
    # Same leaf 1; same category, other leaf 0.5; equal subcategory names under other categories are other leaves: 0.
    np.testing.assert_array_equal(category, [[1, 0.5, 0, 0], [0, 0, 0.5, 0.5]])
    np.testing.assert_array_equal(language, [[1, 0, 0, 0], [0, 0, 0, 1]])  # any common token after aliasing
    # "Machining" holds "mac": the accident of the authors' rule, kept and named in docs/deviations.md.
    np.testing.assert_array_equal(theme, [[1, 0, 0, 0], [0, 0, 1, 0]])


def test_languages_and_operating_systems():
    assert (languages(""), languages("TypeScript, JS")) == (set(), {"typescript", "javascript"})
    assert (languages("C++"), languages("C")) == ({"c++"}, {"c"})
    assert (operating_systems("PV/wind"), operating_systems("Retail")) == ({"windows"}, set())


SERVERS = np.array([[1, 0], [0, 1], [0.8, 0.6], [-1, 0]], np.float32)
TASK = np.array([[1, 0]], np.float32)


def near(tasks, servers):
    return lambda anchors: centroids(tasks, servers, anchors) @ servers.T


def test_fused_scores_and_the_centroid_which_is_the_mean_of_task_and_anchors():
    fused = fuse(np.float32([[1.0, 0.0]]), np.float32([[0.0, 1.0]]), weight=0.9)
    np.testing.assert_allclose(fused, [[0.9, 0.1]], rtol=1e-6)
    anchors = np.array([[1, 2]])
    np.testing.assert_allclose(centroids(TASK, SERVERS, anchors), [[(1 + 0 + 0.8) / 3, (0 + 1 + 0.6) / 3]], rtol=1e-6)
    missing = np.array([[2, -1]])  # which does not count
    np.testing.assert_allclose(centroids(TASK, SERVERS, missing), [[0.9, 0.3]], rtol=1e-6)
    for servers, task in ((SERVERS, TASK), (sp.csr_matrix(SERVERS), sp.csr_matrix(TASK))):  # without towers: sparse
        system = T2MRec(Lexical(), Towers(), Training(), Scoring())
        system.task_embeddings, system.server_embeddings = task, servers
        for rows in (anchors, missing):
            near = system._centroid_similarity(np.array([0]), rows)
            np.testing.assert_allclose(near, centroids(TASK, SERVERS, rows) @ SERVERS.T, rtol=1e-6)


def test_expansion_follows_the_centroid_not_the_task():
    # The anchor is server 1 (fused 0.9). The centroid (0.5, 0.5) is nearest to server 2, then 0, then 3,
    # while the fused score alone would put server 3 second.
    fused = np.array([[0.1, 0.9, 0.2, 0.5]], np.float32)
    rows, scores = expand(fused, near(TASK, SERVERS), anchors=1, pool=4, order=np.arange(4))
    np.testing.assert_array_equal(rows, [[1, 2, 0, 3]])
    np.testing.assert_allclose(scores, [[0.9, 0.7 - 1.1, 0.5 - 1.1, -0.5 - 1.1]], rtol=1e-5)


def test_servers_that_must_not_be_returned_are_not():
    fused = np.array([[0.1, -np.inf, 0.2, 0.5]], np.float32)
    rows, scores = expand(fused, near(TASK, SERVERS), anchors=2, pool=4, order=np.arange(4))
    assert set(rows[0]) == {0, 2, 3, -1}
    assert np.isneginf(scores[0, -1])


@given(st.integers(0, 2**32 - 1), st.integers(1, 8), st.integers(0, 6), st.integers(5, 30))
def test_pool_holds_the_anchors_first_and_no_server_twice(seed, anchors, more, n):
    rng = np.random.default_rng(seed)
    tasks, servers = (normalize(rng.normal(size=(count, 4)).astype(np.float32)) for count in (3, n))
    fused = rng.normal(size=(3, n)).astype(np.float32)
    rows, scores = expand(
        fused, near(tasks, servers), anchors=anchors, pool=anchors + more, order=tie_order(n, seed % 100)
    )
    for row, score, values in zip(rows, scores, fused, strict=True):
        filled = row[row >= 0]
        assert len(set(filled)) == len(filled) == min(n, anchors + more)
        assert list(filled[:anchors]) == list(np.argsort(-values)[:anchors])
        assert (np.diff(score[row >= 0]) <= 0).all()


def test_vectors_are_unit_by_a_vocabulary_that_knows_no_test_task_and_is_saved(toy, toy_split):
    vectorizer, tasks, servers = lexical.vectorize(toy, toy_split.tasks("train"))
    words = set(vectorizer.vocabulary_)
    assert (tasks.shape, servers.shape) == ((toy.n_tasks, len(words)), (toy.n_servers, len(words)))
    for matrix in (tasks, servers):
        np.testing.assert_allclose(np.sqrt(matrix.multiply(matrix).sum(axis=1)), 1, rtol=1e-5)
    assert not {f"item{row}" for row in toy_split.tasks("test")} & words
    assert {f"item{row}" for row in toy_split.tasks("train")} <= words
    assert len(lexical.vectorize(toy, toy_split.tasks("train"), max_features=17)[0].vocabulary_) == 17
    rebuilt = TfIdf.of_saved(json.loads(json.dumps(lexical.to_json(vectorizer)))).transform(toy.task_texts())
    assert (rebuilt.indices.tolist(), rebuilt.data.tolist()) == (tasks.indices.tolist(), tasks.data.tolist())
    tower = np.random.default_rng(0).normal(size=(len(words), 8)).astype(np.float32)
    np.testing.assert_array_equal(rebuilt @ tower, tasks @ tower)


def test_nearest_negatives_by_hand():
    servers = sp.csr_matrix(np.array([[1, 0], [0.8, 0.6], [0.6, 0.8], [0, 1], [0, 1]], np.float32))
    tasks = sp.csr_matrix(np.array([[1, 0], [0, 1], [1, 0]], np.float32))
    # The first task has server 0, the second 1 and 4, the third is no training task.
    positives = sp.csr_matrix(np.array([[1, 0, 0, 0, 0], [0, 1, 0, 0, 1], [0, 0, 0, 0, 0]], np.float32))
    nearest = partial(nearest_negatives, tasks, servers, positives, order=np.arange(5))
    assert nearest(pool=2).tolist() == [[1, 2], [3, 2], [0, 0]]
    assert nearest(pool=3)[1].tolist() == [3, 2, 0]
    with pytest.raises(StudyError, match="more than 5 servers"):  # a pool that no task can fill
        nearest(pool=4)


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
    expected = np.mean([softplus(z) for z in (-1, -0.8, 0.8, 0)])
    assert program_bce(tasks, servers, temperature=1.0).item() == pytest.approx(expected, abs=1e-6)


def test_every_positive_has_ten_negatives_that_its_task_does_not_list(toy_split):
    triples = draw_triples(toy_split.train, negatives=10, seed=3)
    positives = {(task, server) for task, server in zip(*toy_split.train.nonzero(), strict=True)}
    assert Counter(map(tuple, triples[:, :2])) == dict.fromkeys(positives, 10)
    assert not {(task, server) for task, _, server in triples} & positives
    assert len(np.unique(triples, axis=0)) == len(triples)  # no negative twice beside one positive
    np.testing.assert_array_equal(triples, draw_triples(toy_split.train, negatives=10, seed=3))
    assert (triples != draw_triples(toy_split.train, negatives=10, seed=4)).any()
    # Uniform: 10 of the 45 servers that a task does not list, for each of its positives.
    drawn = np.bincount(triples[:, 2], minlength=toy_split.train.shape[1])
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
