"""The row-lazy optimiser against torch's dense AdamW."""

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from study.t2mrec.row_adamw import RowAdamW

TERMS, WIDTH, BATCH = 60, 16, 8


def batches(steps, *, seed, per_row=3):
    rng = np.random.default_rng(seed)
    out = []
    for _ in range(steps):
        dense = np.zeros((BATCH, TERMS), np.float32)
        for row in dense:
            # A long tail: most terms are used rarely, some never, as in a vocabulary.
            columns = np.minimum(rng.geometric(0.08, per_row) - 1, TERMS - 5)
            row[columns] = rng.random(per_row)
        out.append((sp.csr_matrix(dense), rng.normal(size=(BATCH, WIDTH)).astype(np.float32)))
    return out


def ones():
    return RowAdamW(np.ones((TERMS, WIDTH), np.float32), lr=1e-2)


def play(optimizer, part):
    for vectors, gradient in part:
        optimizer.project((vectors.indptr, vectors.indices, vectors.data))
        optimizer.step(gradient)


def train_both(steps, *, scale, lr=1e-2, seed=0):
    rng = np.random.default_rng(seed)
    start = rng.normal(size=(TERMS, WIDTH)).astype(np.float32)
    dense = torch.nn.Parameter(torch.from_numpy(start.copy()))
    reference = torch.optim.AdamW([dense], lr=lr, weight_decay=0.01)
    lazy = RowAdamW(start.copy(), lr=lr, weight_decay=0.01)
    for vectors, gradient in batches(steps, seed=seed):
        gradient = gradient * np.float32(scale)
        dense.grad = torch.from_numpy(vectors.toarray().T @ gradient)
        reference.step()
        play(lazy, [(vectors, gradient)])
    lazy.catch_up_all()
    return dense.detach().numpy(), lazy.weight


@pytest.mark.parametrize("scale", [1.0, 1e-3])
@pytest.mark.parametrize("steps", [1, 2, 30, 400])
def test_equals_dense_adamw(steps, scale):
    dense, lazy = train_both(steps, scale=scale, lr=1e-2)
    # A weight moves by about lr per step at most; the ways agree to a few parts in ten thousand of that.
    np.testing.assert_allclose(lazy, dense, atol=2e-4 * 1e-2 * steps, rtol=0)


def test_stays_close_where_eps_matters():
    # Gradients of the size of eps = 1e-8: the drawn-out eps is then an approximation, within a hundredth of the way.
    dense, lazy = train_both(200, scale=1e-7)
    start = train_both(0, scale=1e-7)[0]
    assert np.abs(lazy - dense).max() < 0.01 * np.abs(dense - start).max()


def test_state_restores_the_same_way():
    data, straight, first = batches(40, seed=3), ones(), ones()
    play(straight, data)
    play(first, data[:20])
    second = ones()
    second.load({name: value.copy() for name, value in first.state().items()})
    play(second, data[20:])
    for optimizer in (straight, second):
        optimizer.catch_up_all()
    np.testing.assert_array_equal(straight.weight, second.weight)


def test_projection_reads_rows_that_are_up_to_date():
    *data, (last, _) = batches(30, seed=2)
    lazy = ones()
    play(lazy, data)
    projected = lazy.project((last.indptr, last.indices, last.data))
    lazy.catch_up_all()
    np.testing.assert_allclose(projected, last.toarray() @ lazy.weight, rtol=1e-5, atol=1e-6)
