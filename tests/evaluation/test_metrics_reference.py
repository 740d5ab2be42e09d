"""Measures against ir-measures (trec_eval underneath), on random rankings and gains."""

import ir_measures
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from ir_measures import AP, RR, P, R, Success, nDCG

from study.evaluation import metrics

GAIN_OF_GRADE = {1: 1, 2: 3, 3: 7}
GRADED = nDCG(gains=GAIN_OF_GRADE)
BINARY = nDCG(gains={1: 1, 2: 1, 3: 1})


@st.composite
def collections(draw):
    """Random collections with at least one relevant server per task; some tasks have no answers."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n_tasks, n_servers, width = draw(st.integers(1, 8)), draw(st.integers(12, 40)), draw(st.integers(1, 12))
    share = draw(st.floats(0.02, 0.8))
    relevant = rng.integers(1, 4, (n_tasks, n_servers)) * (rng.random((n_tasks, n_servers)) < share)
    relevant[np.arange(n_tasks), rng.integers(0, n_servers, n_tasks)] = 1
    ranked = np.stack([rng.permutation(n_servers)[:width] for _ in range(n_tasks)])
    ranked[np.arange(width) >= rng.integers(0, width + 1, n_tasks)[:, None]] = -1
    return ranked, sp.csr_matrix(relevant.astype(np.float32))


def reference(ranked, relevant, measures):
    """Values per task, 0 without answers; scores fall strictly with rank, so no tie rule takes part."""
    judged, (task, place) = relevant.tocoo(), np.nonzero(ranked >= 0)
    qrels = pd.DataFrame({"query_id": judged.row, "doc_id": judged.col, "relevance": judged.data.astype(int)})
    run = pd.DataFrame({"query_id": task, "doc_id": ranked[task, place], "score": -place.astype(float)})
    named = {"query_id": str, "doc_id": str}
    values = {measure: np.zeros(len(ranked)) for measure in measures}
    for found in ir_measures.iter_calc(measures, qrels.astype(named), run.astype(named)):
        values[found.measure][int(found.query_id)] = found.value
    return values


@given(collections(), st.sampled_from([1, 2, 3, 4, 5, 7, 10, 20]))
def test_all_measures_agree_with_ir_measures(collection, k):
    ranked, relevant = collection
    theirs = reference(ranked, relevant, [R @ k, P @ k, RR @ k, Success @ k, AP @ k, BINARY @ k, GRADED @ k])
    size = metrics.n_relevant(relevant)
    precision, recall = theirs[P @ k], theirs[R @ k]
    with_hits = precision + recall > 0
    f1 = np.where(with_hits, 2 * precision * recall / np.where(with_hits, precision + recall, 1), 0)
    expected = {"recall": recall, "precision": precision, "f1": f1, "ndcg": theirs[BINARY @ k], "mrr": theirs[RR @ k]}
    # trec_eval divides by |M+|, the study by min(k, |M+|).
    expected |= {"hit_rate": theirs[Success @ k], "map": theirs[AP @ k] * size / np.minimum(k, size)}
    assert expected.keys() == metrics.PER_TASK.keys()
    for graded, ndcg in ((False, BINARY @ k), (True, GRADED @ k)):
        ours = metrics.per_task(ranked, relevant, (k,), graded=graded)
        for name, values in (expected | {"ndcg": theirs[ndcg]}).items():
            np.testing.assert_allclose(ours[f"{name}@{k}"], values, atol=1e-9, err_msg=name)


def test_the_reference_does_depend_on_the_order():
    relevant = sp.csr_matrix(np.array([[1, 0, 0]], np.float32))
    first, last = (reference(np.array([row]), relevant, [RR @ 3])[RR @ 3] for row in ([0, 1, 2], [2, 1, 0]))
    assert first == pytest.approx([1])
    assert last == pytest.approx([1 / 3])
