"""AdamW for the wide first layer that touches only the rows a batch uses, and still equals dense AdamW.

The first layer of a tower has one row of weights per vocabulary term, 50,000 in all, of which a batch of 256 texts
uses about 1,700. Dense AdamW nevertheless rewrites every row at every step, because moments and weight decay go on
where the gradient is zero: 51 million weights, three arrays, 2,400 steps. But without a gradient a row's way is known
in advance, so it can be caught up in one go when the row is next used:

    m_(s+n) = beta1^n m_s,   v_(s+n) = beta2^n v_s,
    w_(s+n) = decay^n w_s - lr * sum_q decay^(n-q) * (beta1^q m_s / c1_q) / (sqrt(beta2^q v_s / c2_q) + eps)

with decay = 1 - lr * weight_decay, c1_q = 1 - beta1^(s+q), c2_q = 1 - beta2^(s+q). Only eps ties the sum to the
single weight. It is drawn out by sum_q a_q / (b_q x + eps) ~ A / (x + eps B / A), A = sum a_q / b_q,
B = sum a_q / b_q^2: exact for eps = 0 and to first order in eps, and eps = 1e-8 matters only where sqrt(v) is as small.
The test compares with torch.optim.AdamW.
"""

from __future__ import annotations

import math

import numba
import numpy as np
import scipy.sparse as sp
from numba import prange
from numpy.typing import NDArray

Float = NDArray[np.float32]
Int = NDArray[np.int64]
Index = NDArray[np.int32]
Arrays = tuple[Float, Float, Float, Int]  # weights, both moments, the last step of each row
# A sparse matrix by rows: row i holds values[starts[i]:starts[i + 1]] at the terms of the same places.
Rows = tuple[Index, Index, Float]  # starts, terms, values
Rates = tuple[float, float, float, float, float]  # learning rate, decay, beta1, beta2, eps

BETA1, BETA2, EPS = 0.9, 0.999, 1e-8  # torch's defaults
# BETA1^q falls below float32's resolution of the sum after this many skipped steps (0.9^200 = 7e-10).
HORIZON = 200
# Smaller magnitudes are set to zero: denormal numbers slow the processor down a hundredfold and cannot show, since eps
# is 1e-8 and the square root of TINY is 1e-15.
TINY = np.float32(1e-30)


@numba.njit(parallel=True, cache=True)
def _catch_up(
    rows: Int, arrays: Arrays, step: int, rates: Rates, geometric: NDArray[np.float64], bias: NDArray[np.float64]
) -> None:
    """Bring `rows` to the state after `step` (in place). `geometric` (2, HORIZON + 1), `bias` (2, > step)."""
    weight, m, v, last = arrays
    lr, decay, beta1, beta2, eps = rates
    for k in prange(rows.shape[0]):
        row = rows[k]
        start = last[row]
        skipped = step - start
        if skipped <= 0:
            continue
        a_sum, b_sum = 0.0, 0.0
        if start > 0:
            for q in range(1, min(skipped, HORIZON) + 1):
                a_sum += geometric[0, q] * bias[0, start + q]
                b_sum += geometric[1, q] * bias[1, start + q]
        shrink = decay**skipped
        move = np.float32(lr * shrink * a_sum)
        epsilon = np.float32(eps * b_sum / a_sum if a_sum > 0 else eps)
        keep, m_factor, v_factor = np.float32(shrink), np.float32(beta1**skipped), np.float32(beta2**skipped)
        for j in range(weight.shape[1]):
            m_old, v_old = m[row, j], v[row, j]
            weight[row, j] = weight[row, j] * keep - move * m_old / (np.float32(math.sqrt(v_old)) + epsilon)
            m_new, v_new = m_old * m_factor, v_old * v_factor
            m[row, j] = m_new if abs(m_new) > TINY else np.float32(0)
            v[row, j] = v_new if v_new > TINY else np.float32(0)
        last[row] = step


@numba.njit(parallel=True, cache=True)
def _update(
    rows: Int,
    indptr: Index,
    documents: Index,
    values: Float,
    gradient: Float,
    arrays: Arrays,
    step: int,
    rates: Rates,
) -> None:
    """One AdamW step of `rows` with gradient X^T G, formed row by row and never stored (in place)."""
    weight, m, v, last = arrays
    lr, decay, beta1, beta2, eps = rates
    width = weight.shape[1]
    f1, f2, o1, o2 = np.float32(beta1), np.float32(beta2), np.float32(1 - beta1), np.float32(1 - beta2)
    keep, epsilon = np.float32(decay), np.float32(eps)
    rate, scale = np.float32(lr / (1 - beta1**step)), np.float32(1 / (1 - beta2**step))
    for k in prange(rows.shape[0]):
        row = rows[k]
        g = np.zeros(width, np.float32)
        for p in range(indptr[k], indptr[k + 1]):
            document, value = documents[p], values[p]
            for j in range(width):
                g[j] += value * gradient[document, j]
        for j in range(width):
            m_new = f1 * m[row, j] + o1 * g[j]
            v_new = f2 * v[row, j] + o2 * g[j] * g[j]
            m_new = m_new if abs(m_new) > TINY else np.float32(0)
            v_new = v_new if v_new > TINY else np.float32(0)
            m[row, j], v[row, j] = m_new, v_new
            weight[row, j] = weight[row, j] * keep - rate * m_new / (np.float32(math.sqrt(v_new * scale)) + epsilon)
        last[row] = step


@numba.njit(parallel=True, cache=True)
def _project(starts: Index, terms: Index, values: Float, weight: Float) -> Float:
    """X W for sparse X, one row of X at a time, shape (b, width)."""
    out = np.zeros((len(starts) - 1, weight.shape[1]), np.float32)
    for i in prange(len(starts) - 1):
        for p in range(starts[i], starts[i + 1]):
            term, value = terms[p], values[p]
            for j in range(weight.shape[1]):
                out[i, j] += value * weight[term, j]
    return out


def _by_term(starts: Index, terms: Index, values: Float, n_terms: int) -> tuple[Int, Index, Index, Float]:
    """The columns of a sparse matrix that hold anything: their terms, and as `_update` reads them."""
    columns = sp.csr_array((values, terms, starts), shape=(len(starts) - 1, n_terms)).tocsc()
    used = np.flatnonzero(np.diff(columns.indptr))
    return used, columns.indptr[np.append(used, n_terms)], columns.indices, columns.data


class RowAdamW:
    """AdamW state of one weight matrix whose gradients are X^T G with sparse X; rates as in torch.optim.AdamW.
    `weight`: shape (n_terms, width), float32, changed in place."""

    def __init__(self, weight: Float, *, lr: float, weight_decay: float = 0.01) -> None:
        self.weight, decay = weight, 1 - lr * weight_decay
        self.m, self.v = np.zeros(weight.shape, np.float32), np.zeros(weight.shape, np.float32)
        self.last = np.zeros(len(weight), np.int64)
        self._arrays, self._rates = (weight, self.m, self.v, self.last), (lr, decay, BETA1, BETA2, EPS)
        self.step_count = 0
        q = np.arange(HORIZON + 1)
        self._geometric = np.stack([(BETA1 / (decay * BETA2**0.5)) ** q, (BETA1 / (decay * BETA2)) ** q])
        self._bias = np.zeros((2, 0))

    def _bias_table(self, steps: int) -> NDArray[np.float64]:
        """Bias corrections up to `steps`: sqrt(c2) / c1 and c2 / c1, shape (2, steps + 1)."""
        if self._bias.shape[1] <= steps:
            count = np.arange(1, 2 * steps + 2)
            c1, c2 = 1 - BETA1**count, 1 - BETA2**count
            self._bias = np.concatenate([np.zeros((2, 1)), np.stack([np.sqrt(c2) / c1, c2 / c1])], axis=1)
        return self._bias

    def catch_up(self, rows: Int) -> None:
        """Bring `rows` to the present step; call before they are read."""
        if self.step_count:
            tables = self._geometric, self._bias_table(self.step_count)
            _catch_up(rows, self._arrays, self.step_count, self._rates, *tables)

    def project(self, batch: Rows) -> Float:
        """batch @ weight, with the rows of weight that it uses brought up to date; shape (b, width)."""
        self.used = _by_term(*batch, len(self.weight))
        self.catch_up(self.used[0])
        return np.asarray(_project(*batch, self.weight))

    def catch_up_all(self) -> None:
        """Bring every row to the present step; call before the matrix is used as a whole."""
        self.catch_up(np.arange(len(self.weight)))

    def step(self, gradient: Float) -> None:
        """One step. `gradient`: of the loss with respect to what `project` gave last, shape (b, width)."""
        self.step_count += 1
        gradient = np.ascontiguousarray(gradient)
        _update(*self.used, gradient, self._arrays, self.step_count, self._rates)

    def state(self) -> dict[str, np.ndarray]:
        """Weights, moments and counts, for a checkpoint."""
        return {"weight": self.weight, "m": self.m, "v": self.v, "last": self.last, "step": np.array(self.step_count)}

    def load(self, state: dict[str, np.ndarray]) -> None:
        """Restore what `state` gave."""
        self.weight[:], self.m[:], self.v[:], self.last[:] = (state[name] for name in ("weight", "m", "v", "last"))
        self.step_count = int(state["step"])
