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

# beta1^q falls below float32's resolution of the sum after this many skipped steps (0.9^200 = 7e-10).
HORIZON = 200
# Smaller magnitudes are set to zero: denormal numbers slow the processor down a hundredfold and cannot show, since eps
# is 1e-8 and the square root of TINY is 1e-15.
TINY = np.float32(1e-30)


@numba.njit(parallel=True, cache=True)
def _catch_up(
    rows: Int,
    weight: Float,
    m: Float,
    v: Float,
    last: Int,
    step: int,
    lr: float,
    decay: float,
    beta1: float,
    beta2: float,
    eps: float,
    geometric: NDArray[np.float64],
    bias: NDArray[np.float64],
) -> None:
    """Bring `rows` to the state after `step` (in place). `geometric` (2, HORIZON + 1), `bias` (2, > step)."""
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
    indptr: NDArray[np.int32],
    documents: NDArray[np.int32],
    values: Float,
    gradient: Float,
    weight: Float,
    m: Float,
    v: Float,
    last: Int,
    step: int,
    lr: float,
    decay: float,
    beta1: float,
    beta2: float,
    eps: float,
) -> None:
    """One AdamW step of `rows` with gradient X^T G, formed row by row and never stored (in place)."""
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
def _project(indptr: NDArray[np.int32], terms: NDArray[np.int32], values: Float, weight: Float) -> Float:
    """X W for sparse X, one row of X at a time, shape (b, width)."""
    out = np.zeros((len(indptr) - 1, weight.shape[1]), np.float32)
    for i in prange(len(indptr) - 1):
        for p in range(indptr[i], indptr[i + 1]):
            term, value = terms[p], values[p]
            for j in range(weight.shape[1]):
                out[i, j] += value * weight[term, j]
    return out


class RowAdamW:
    """AdamW state of one weight matrix whose gradients are X^T G with sparse X.

    Args:
        weight: shape (n_terms, width), float32, changed in place.
        lr, weight_decay, betas, eps: as in torch.optim.AdamW.
    """

    def __init__(
        self,
        weight: Float,
        *,
        lr: float,
        weight_decay: float = 0.01,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
    ) -> None:
        self.weight, self.lr, self.decay, self.betas, self.eps = weight, lr, 1 - lr * weight_decay, betas, eps
        self.m, self.v = np.zeros_like(weight), np.zeros_like(weight)
        self.last = np.zeros(len(weight), np.int64)
        self.step_count = 0
        beta1, beta2 = betas
        q = np.arange(HORIZON + 1)
        self._geometric = np.stack([(beta1 / (self.decay * beta2**0.5)) ** q, (beta1 / (self.decay * beta2)) ** q])
        self._bias = np.zeros((2, 0))

    def _bias_table(self, steps: int) -> NDArray[np.float64]:
        """Bias corrections up to `steps`: sqrt(c2) / c1 and c2 / c1, shape (2, steps + 1)."""
        if self._bias.shape[1] <= steps:
            beta1, beta2 = self.betas
            count = np.arange(1, 2 * steps + 2)
            c1, c2 = 1 - beta1**count, 1 - beta2**count
            self._bias = np.concatenate([np.zeros((2, 1)), np.stack([np.sqrt(c2) / c1, c2 / c1])], axis=1)
        return self._bias

    def catch_up(self, rows: Int) -> None:
        """Bring `rows` to the present step; call before they are read."""
        if self.step_count:
            _catch_up(
                rows,
                self.weight,
                self.m,
                self.v,
                self.last,
                self.step_count,
                self.lr,
                self.decay,
                *self.betas,
                self.eps,
                self._geometric,
                self._bias_table(self.step_count),
            )

    def project(self, batch: sp.csr_matrix, rows: Int) -> Float:
        """batch @ weight with the rows that it uses brought up to date.

        Args:
            batch: shape (b, n_terms).
            rows: the terms that the batch uses.

        Returns: shape (b, width).
        """
        self.catch_up(rows)
        out: Float = _project(batch.indptr, batch.indices, batch.data, self.weight)
        return out

    def catch_up_all(self) -> None:
        """Bring every row to the present step; call before the matrix is used as a whole."""
        self.catch_up(np.arange(len(self.weight)))

    def step(self, rows: Int, batch: sp.csc_matrix, gradient: Float) -> None:
        """One step with the gradient batch^T gradient.

        Args:
            rows: the terms that the batch uses, caught up, shape (n_used,).
            batch: the batch's vectors restricted to `rows`, shape (b, n_used).
            gradient: of the loss with respect to batch @ weight[rows], shape (b, width).
        """
        self.step_count += 1
        _update(
            rows,
            batch.indptr,
            batch.indices,
            batch.data,
            np.ascontiguousarray(gradient),
            self.weight,
            self.m,
            self.v,
            self.last,
            self.step_count,
            self.lr,
            self.decay,
            *self.betas,
            self.eps,
        )

    def state(self) -> dict[str, np.ndarray]:
        """Everything but the weights, for a checkpoint."""
        return {"m": self.m, "v": self.v, "last": self.last, "step": np.array(self.step_count)}

    def load(self, state: dict[str, np.ndarray]) -> None:
        """Restore what `state` gave."""
        self.m[:], self.v[:], self.last[:] = state["m"], state["v"], state["last"]
        self.step_count = int(state["step"])
