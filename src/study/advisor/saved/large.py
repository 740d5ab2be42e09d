"""`field_dense` over a catalogue that is too large to be scanned: the same ranking, by an index of its vectors."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pandas as pd

from study.advisor.arrays import FloatArray, IntArray
from study.advisor.encoders import nearest
from study.advisor.encoders.sentence import DIMENSION, WITHOUT_TORCH, encode, model_version
from study.advisor.retrieval.field_dense import FieldDense, combined_priors
from study.advisor.retrieval.fields import FIELDS, VIEWS, texts
from study.advisor.retrieval.names import ProductNames
from study.advisor.retrieval.one_product import Moments
from study.advisor.saved.contract import Recommendation, require_request
from study.advisor.saved.field_dense import SavedFieldDense, request_of
from study.base import paths
from study.base.files import replacing
from study.base.settings import read_keys

DEEPEST = 1000  # servers of an answer at most
STATISTICS = 50_000  # servers whose vectors give mean and covariance; all of a smaller catalogue


class LargeFieldDense(SavedFieldDense):
    """`SavedFieldDense` without the vectors of the catalogue in memory. An answer names `DEEPEST` servers at most."""

    index: nearest.NearestIndex
    moments: Moments

    @classmethod
    def of(cls, name: str, system: FieldDense, servers: pd.DataFrame, *, seed: int, folder: Path) -> LargeFieldDense:
        """Index a catalogue (columns of `CARD` and of `Dataset.servers`) in `folder`, or read the index of a stopped or
        finished call. `system`: neither fitted nor indexed.

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
        tasks = pd.concat([request_of(text) for text in _requests()])
        questions = model.moments.questions(system.terms, model.views(tasks)).vectors
        model.index = nearest.build(folder / "index", source, questions)
        system.encoder = WITHOUT_TORCH.get(system.encoder, system.encoder)
        return model

    def views(self, requests: pd.DataFrame) -> dict[str, FloatArray]:
        """The vectors of every view of requests that the score reads, each of shape (len(requests), width)."""
        names = sorted({term.view for term in self.system.terms})
        stacked = [text for name in names for text in texts(requests, VIEWS, name)]
        vectors = encode(stacked, model=self.system.encoder, store=False).reshape(len(names), len(requests), -1)
        return dict(zip(names, vectors, strict=True))

    def recommend(
        self, text: str, *, language: str = "", category: str = "", subcategory: str = "", theme: str = "", k: int = 5
    ) -> list[Recommendation]:
        """See `study.advisor.saved.contract.SavedModel`; the words are read as a task's description."""
        require_request(text, k, len(self.servers))
        task = request_of(text, language=language, category=category, subcategory=subcategory, theme=theme)
        question = self.moments.questions(self.system.terms, self.views(task))
        bonus = self._bonus(texts(task, VIEWS, "request")[0])
        ids, products = self.index.search(question.vectors, min(k, DEEPEST))
        if bonus:  # the servers that bear the product's name, wherever they stand
            bearing = np.zeros(self.index.n, dtype=np.bool_)
            bearing[list(bonus)] = True
            more = self.index.search(question.vectors, len(bonus), bearing)
            ids, products = np.hstack([ids, more[0]]), np.hstack([products, more[1]])
        rows, first = np.unique(ids[ids >= 0], return_index=True)
        scores = question.scores(products[ids >= 0][None])[0, first]
        named = np.array([self.system.product_bonus * bonus.get(int(row), 0.0) for row in rows], dtype=np.float32)
        best = self._ordered(rows, scores + named)[: min(k, DEEPEST)]
        return [self._recommendation(rank, rows[at], scores[at], named[at]) for rank, at in enumerate(best, start=1)]

    def _ordered(self, rows: IntArray, totals: FloatArray) -> IntArray:
        """The places of `rows`, best first; ties in the seeded order."""
        position = np.empty_like(self.order)
        position[self.order] = np.arange(len(self.order))
        return np.lexsort((position[rows], -totals))

    def _recommendation(self, rank: int, row: int, score: float, product: float) -> Recommendation:
        prior = float(self.system.prior[row])
        parts = {"semantic": score - prior}
        if self.system.priors:
            parts[" and ".join(self.system.priors)] = prior
        if self.system.products is not None:
            parts["product"] = product
        card = {str(column): value for column, value in self.cards[row].items()}
        return Recommendation.of(rank, card, score + product, parts)

    def _bonus(self, text: str) -> dict[int, float]:
        """The rows that bear the name of a product which a request names, as in `ProductNames.named`."""
        if self.system.products is None:
            return {}
        named = self.system.products.named([text])[0]
        return {int(row): float(named[row]) for row in np.flatnonzero(named)}

    def closeness(self, text: str, nearest: int) -> tuple[str, float]:
        """See `SavedFieldDense.closeness`."""
        view = encode(texts(request_of(text), VIEWS, "description"), model=self.system.encoder, store=False)
        fields = len({term.field for term in self.system.terms})
        question = np.pad(np.tile(view / np.float32(fields), fields), ((0, 0), (0, 1)))
        _, products = self.index.search(question, nearest)
        return self.encoder, float(products[0].mean())


def _moments(file: Path, source: nearest.Source) -> Moments:
    """The statistics of a catalogue, measured once."""
    if file.exists():
        with np.load(file) as archive:
            return Moments(archive["mean"], archive["covariance"])
    moments = Moments.of(nearest.sampled(source, STATISTICS, nearest.Settings.read()))
    with replacing(file) as temporary, temporary.open("wb") as stream:
        np.savez(stream, mean=moments.mean, covariance=moments.covariance)
    return moments


def _requests() -> list[str]:
    """Requests that measure what an index finds."""
    return list(read_keys(paths.conf() / "recommend" / "requests.yaml", ("served", "unserved"))["served"])
