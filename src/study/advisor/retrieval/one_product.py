"""`field_dense` as one product of vectors, so that an index can search a large catalogue for it.

Its score (`retrieval.field_dense`) is z(S) + p + b * named with S = sum over parts of w * z(cos(view, field)).
With the mean and the covariance of the fields' vectors over the catalogue, the standardisations are known for a request
before any server is looked at: cos has the mean v.mu and the variance v'Cv, and S likewise. So for a request

    score = (q.x - c) / spread,   q = [sum over parts of a field: w v / sd, for each field; spread],
    x = [the vector of each field; p],   c = sum of w mean / sd,   spread = the standard deviation of S.

The bonus of named products is added to the servers that bear the name, which are few and known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from study.advisor.arrays import FloatArray
from study.advisor.retrieval.field_dense import FieldDense, Part


def server_vectors(system: FieldDense) -> FloatArray:
    """x of every server of an indexed catalogue: its fields in order of names, then its prior. Shape (n, d)."""
    fields = [system.fields[name] for name in sorted(system.fields)]
    return np.hstack([*fields, system.prior[:, None]]).astype(np.float32)


@dataclass(frozen=True)
class Questions:
    """Requests as vectors: q of shape (m, d), c and spread of shape (m,)."""

    vectors: FloatArray
    offset: FloatArray
    spread: FloatArray

    def scores(self, products: FloatArray) -> FloatArray:
        """Scores without the bonus, from products q.x of shape (m, k)."""
        return np.asarray((products - self.offset[:, None]) / self.spread[:, None], dtype=np.float32)


@dataclass(frozen=True)
class Moments:
    """Mean (d - 1,) and covariance (d - 1, d - 1) of the fields' vectors over a catalogue, or over a sample of it."""

    mean: NDArray[np.float64]
    covariance: NDArray[np.float64]

    @classmethod
    def of(cls, vectors: FloatArray) -> Moments:
        """Of `server_vectors`, whose last column is left out."""
        fields = vectors[:, :-1]
        mean = fields.mean(axis=0, dtype=np.float64)
        centred = fields - mean.astype(np.float32)
        return cls(mean, (centred.T @ centred).astype(np.float64) / len(vectors))

    def questions(self, terms: Sequence[Part], views: Mapping[str, FloatArray]) -> Questions:
        """Requests, whose `views` have shape (m, width), as vectors."""
        names = sorted({term.field for term in terms})
        m, width = next(iter(views.values())).shape
        q, offset = np.zeros((m, len(names), width)), np.zeros(m)
        for term in terms:
            at = names.index(term.field)
            span, view = slice(at * width, (at + 1) * width), views[term.view].astype(np.float64)
            spread = _spread(view, self.covariance[span, span])
            q[:, at] += term.weight * view / spread[:, None]
            offset += term.weight * (view @ self.mean[span]) / spread
        flat = q.reshape(m, -1)
        spread = _spread(flat, self.covariance)
        vectors = np.hstack([flat, spread[:, None]]).astype(np.float32)
        return Questions(vectors, offset.astype(np.float32), spread.astype(np.float32))


def _spread(rows: NDArray[np.float64], covariance: NDArray[np.float64]) -> NDArray[np.float64]:
    """The standard deviation of each row's product over the catalogue; 1 where it is constant. Shape (m,)."""
    variance = np.einsum("md,de,me->m", rows, covariance, rows, optimize=True)
    return np.sqrt(np.where(variance > 1e-12, variance, 1.0))
