"""`field_dense` over a catalogue that is too large to be scanned: the same ranking, by an index of its vectors.

Its score (`retrieval.field_dense`) is z(S) + p + b * named with S = sum over parts of w * z(cos(view, field)).
With the mean and the covariance of the fields' vectors over the catalogue, the standardisations are known for a request
before any server is looked at: cos has the mean v.mu and the variance v'Cv, and S likewise. So for a request

    score = (q.x - c) / spread,   q = [sum over parts of a field: w v / sd, for each field; spread],
    x = [the vector of each field; p],   c = sum of w mean / sd,   spread = the standard deviation of S.

The bonus of named products is added to the servers that bear the name, which are few and known.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from study.advisor.arrays import Float64Array, FloatArray
from study.advisor.encoders import nearest
from study.advisor.encoders.sentence import DIMENSION, WITHOUT_TORCH, encode, model_version
from study.advisor.retrieval.field_dense import FieldDense, Part, combined_priors, encoded_views
from study.advisor.retrieval.fields import FIELDS, VIEWS, texts
from study.advisor.retrieval.names import ProductNames
from study.advisor.saved.contract import Recommendation, require_request
from study.advisor.saved.field_dense import SavedFieldDense, request_of
from study.base import paths
from study.base.files import replacing
from study.base.settings import read_keys

DEEPEST = 1000  # servers of an answer at most
STATISTICS = 50_000  # servers whose vectors give mean and covariance; all of a smaller catalogue


def server_vectors(system: FieldDense) -> FloatArray:
    """x of every server of an indexed catalogue: its fields in order of names, then its prior. Shape (n, d)."""
    fields = [system.fields[name] for name in sorted(system.fields)]
    return np.hstack([*fields, system.prior[:, None]]).astype(np.float32)


class Questions(NamedTuple):
    """Requests as vectors: q of shape (m, d), c and spread of shape (m,)."""

    vectors: FloatArray
    offset: FloatArray
    spread: FloatArray

    def scores(self, products: FloatArray) -> FloatArray:
        """Scores without the bonus, from products q.x of shape (m, k)."""
        return np.asarray((products - self.offset[:, None]) / self.spread[:, None], dtype=np.float32)


class Moments(NamedTuple):
    """Mean (d - 1,) and covariance (d - 1, d - 1) of the fields' vectors over a catalogue, or over a sample of it."""

    mean: Float64Array
    covariance: Float64Array

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


def _spread(rows: Float64Array, covariance: Float64Array) -> Float64Array:
    """The standard deviation of each row's product over the catalogue; 1 where it is constant. Shape (m,)."""
    variance = np.einsum("md,de,me->m", rows, covariance, rows, optimize=True)
    return np.sqrt(np.where(variance > 1e-12, variance, 1.0))


class LargeFieldDense(SavedFieldDense):
    """`SavedFieldDense` without the vectors of the catalogue in memory. An answer names `DEEPEST` servers at most."""

    index: nearest.NearestIndex
    moments: Moments

    @classmethod
    def of(cls, name: str, system: FieldDense, servers: pd.DataFrame, *, seed: int, folder: Path) -> LargeFieldDense:
        """Index a catalogue (columns of `CARD` and of `Dataset.servers`) in `folder`, or read the index of an earlier
        call. `system`: neither fitted nor indexed.

        Raises StudyError: as `nearest.build`.
        """
        system.prior = combined_priors(servers, system.priors)
        system.products = ProductNames.of(servers) if system.product_bonus else None
        system.fields = {}
        names = sorted({term.field for term in system.terms})

        def piece(start: int, stop: int) -> FloatArray:
            part = servers.iloc[start:stop]
            fields = [encode(texts(part, FIELDS, field), model=system.encoder) for field in names]
            return np.hstack([*fields, system.prior[start:stop, None]])

        contents = pd.util.hash_pandas_object(servers.drop(columns="id")).to_numpy().tobytes()
        identity = hashlib.sha256(f"{system.parts} {model_version(system.encoder)}".encode() + contents).hexdigest()
        source = nearest.Source(len(servers), DIMENSION * len(names) + 1, piece, identity)
        model = cls(name, system, servers, seed=seed)
        model.moments = _moments(folder / f"moments-{identity[:8]}.npz", source)
        served = read_keys(paths.conf() / "recommend" / "requests.yaml", ("served", "unserved"))["served"]
        questions = model.moments.questions(
            system.terms, model.views(pd.concat([request_of(text) for text in served]))
        ).vectors
        model.index = nearest.build(folder / "index", source, questions)
        system.encoder = WITHOUT_TORCH.get(system.encoder, system.encoder)
        return model

    def views(self, requests: pd.DataFrame) -> dict[str, FloatArray]:
        """The vectors of every view of requests that the score reads, each of shape (len(requests), width)."""
        return encoded_views(self.system.terms, requests, partial(encode, model=self.system.encoder, store=False))

    def recommend(self, text: str, *, k: int = 5, **attributes: str) -> list[Recommendation]:
        """See `study.advisor.saved.contract.SavedModel`; the words are read as a task's description."""
        require_request(text, k, len(self.servers))
        system, k, task = self.system, min(k, DEEPEST), request_of(text, **attributes)
        question = self.moments.questions(system.terms, self.views(task))
        bonus = np.zeros(len(self.servers), dtype=np.float32)
        if system.products is not None:
            bonus += system.product_bonus * system.products.named(texts(task, VIEWS, "request"))[0]
        ids, products = self.index.search(question.vectors, k)
        if len(bearers := np.flatnonzero(bonus)):  # the servers that bear the product's name, wherever they stand
            more = self.index.search(question.vectors, len(bearers), bearers)
            ids, products = np.hstack([ids, more[0]]), np.hstack([products, more[1]])
        rows, first = np.unique(ids[ids >= 0], return_index=True)
        scores = question.scores(products[ids >= 0][None])[0, first]
        totals, position = scores + bonus[rows], np.argsort(self.order)
        answer = []
        for rank, at in enumerate(np.lexsort((position[rows], -totals))[:k], start=1):
            prior = float(system.prior[rows[at]])
            parts = {"semantic": scores[at] - prior}
            parts |= {" and ".join(system.priors): prior} if system.priors else {}
            parts |= {"product": bonus[rows[at]]} if system.products is not None else {}
            answer.append(Recommendation.of(rank, self.cards[rows[at]], totals[at], parts))
        return answer

    def closeness(self, text: str, nearest: int) -> tuple[str, float]:
        """See `SavedFieldDense.closeness`."""
        fields = len({term.field for term in self.system.terms})
        question = np.pad(np.tile(self.vector(text) / np.float32(fields), fields), ((0, 0), (0, 1)))
        return self.encoder, float(self.index.search(question, nearest)[1][0].mean())


def _moments(file: Path, source: nearest.Source) -> Moments:
    """The statistics of a catalogue, measured once."""
    if file.exists():
        with np.load(file) as archive:
            return Moments(archive["mean"], archive["covariance"])
    moments = Moments.of(nearest.sampled(source, STATISTICS, nearest.Settings.read()))
    with replacing(file) as temporary, temporary.open("wb") as stream:
        np.savez(stream, mean=moments.mean, covariance=moments.covariance)
    return moments
