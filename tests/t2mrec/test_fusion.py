"""Fusion, centroid and expansion worked out by hand (paper, eq. 18-22), and what must hold for any input."""

import numpy as np
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from study.evaluation.ranking import tie_order
from study.t2mrec.fusion import centroids, expand, fuse
from study.t2mrec.inference import normalize

SERVERS = np.array([[1, 0], [0, 1], [0.8, 0.6], [-1, 0]], np.float32)
TASK = np.array([[1, 0]], np.float32)


def test_fused_scores_and_the_centroid_which_is_the_mean_of_task_and_anchors():
    fused = fuse(np.float32([[1.0, 0.0]]), np.float32([[0.0, 1.0]]), weight=0.9)
    np.testing.assert_allclose(fused, [[0.9, 0.1]], rtol=1e-6)
    anchors = np.array([[1, 2]])
    np.testing.assert_allclose(centroids(TASK, SERVERS, anchors), [[(1 + 0 + 0.8) / 3, (0 + 1 + 0.6) / 3]], rtol=1e-6)
    sparse = centroids(sp.csr_matrix(TASK), sp.csr_matrix(SERVERS), anchors)
    np.testing.assert_allclose(sparse.toarray(), centroids(TASK, SERVERS, anchors), rtol=1e-6)
    missing = np.array([[2, -1]])  # which does not count
    np.testing.assert_allclose(centroids(TASK, SERVERS, missing), [[0.9, 0.3]], rtol=1e-6)


def test_expansion_follows_the_centroid_not_the_task():
    # The anchor is server 1 (fused 0.9). The centroid (0.5, 0.5) is nearest to server 2, then 0, then 3,
    # while the fused score alone would put server 3 second.
    fused = np.array([[0.1, 0.9, 0.2, 0.5]], np.float32)
    rows, scores = expand(fused, TASK, SERVERS, anchors=1, pool=4, order=np.arange(4))
    np.testing.assert_array_equal(rows, [[1, 2, 0, 3]])
    np.testing.assert_allclose(scores, [[0.9, 0.7 - 1.1, 0.5 - 1.1, -0.5 - 1.1]], rtol=1e-5)


def test_servers_that_must_not_be_returned_are_not():
    fused = np.array([[0.1, -np.inf, 0.2, 0.5]], np.float32)
    rows, scores = expand(fused, TASK, SERVERS, anchors=2, pool=4, order=np.arange(4))
    assert set(rows[0]) == {0, 2, 3, -1}
    assert np.isneginf(scores[0, -1])


@given(st.integers(0, 2**32 - 1), st.integers(1, 8), st.integers(0, 6), st.integers(5, 30))
def test_pool_holds_the_anchors_first_and_no_server_twice(seed, anchors, more, n):
    rng = np.random.default_rng(seed)
    tasks, servers = (normalize(rng.normal(size=(count, 4)).astype(np.float32)) for count in (3, n))
    fused = rng.normal(size=(3, n)).astype(np.float32)
    rows, scores = expand(fused, tasks, servers, anchors=anchors, pool=anchors + more, order=tie_order(n, seed % 100))
    for row, score, values in zip(rows, scores, fused, strict=True):
        filled = row[row >= 0]
        assert len(set(filled)) == len(filled) == min(n, anchors + more)
        assert list(filled[:anchors]) == list(np.argsort(-values)[:anchors])
        assert (np.diff(score[row >= 0]) <= 0).all()
