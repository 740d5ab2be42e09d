"""Retrievers: anything that scores the whole catalogue for one specification (paper, section 6.2, third stage)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol

import numpy as np

from study.advisor.agent.specification import Specification
from study.advisor.arrays import FloatArray
from study.advisor.encoders.sentence import WITHOUT_TORCH, cosines, encode
from study.advisor.saved import ahead
from study.advisor.saved.field_dense import closeness, explain, request_of
from study.advisor.saved.saved import USEFUL, folder_of
from study.data.dataset import Dataset, join_values
from study.errors import StudyError, require_one_of

if TYPE_CHECKING:
    from study.advisor.retrieval.field_dense import FieldDense

# Requests whose vectors are kept: a conversation asks with the same words many times.
KEPT_REQUESTS = 1_024
# Requests whose scores are kept with their parts, five numbers for each server of the catalogue.
KEPT_SCORES = 128


@dataclass(frozen=True)
class Scores:
    """Scores of every server for one request."""

    total: FloatArray  # what the order follows, shape (n_servers,), float32; -inf where a server is not ranked
    parts: Mapping[str, FloatArray]  # name -> values that the total is made of, shape (n_servers,)
    added: frozenset[str] = frozenset()  # parts that only some servers have; 0 for the others


class Retriever(Protocol):
    """A retriever; it may be asked from many threads at once."""

    name: str  # how answers name it

    def score(self, specification: Specification) -> Scores:
        """Scores of the whole catalogue."""


def query_text(specification: Specification) -> str:
    """What is searched for: the intent and the theme, joined as the study joins the fields of a task."""
    return join_values((specification.intent, specification.domain))


class Dense:
    """Cosine of MiniLM sentence vectors of request and server text, as `baselines.cosine.DenseCosine`."""

    name = "minilm"

    def __init__(self, data: Dataset) -> None:
        self.servers = encode(data.server_texts(), model="minilm")  # (n_servers, d), cached on disk
        # The tokeniser keeps its state (truncation, padding) in one object that threads must not share.
        self.lock = threading.Lock()
        self.embed = lru_cache(maxsize=KEPT_REQUESTS)(self._embed)
        self.embed("")  # loads the encoder now rather than at the first request

    def _embed(self, text: str) -> FloatArray:
        with self.lock:
            vector: FloatArray = encode([text], model=WITHOUT_TORCH["minilm"], store=False)[0]
            return vector

    def score(self, specification: Specification) -> Scores:
        """Cosines in [-1, 1]."""
        cosine = cosines(self.embed(query_text(specification))[None], self.servers)[0]
        return Scores(cosine, {"semantic": cosine})


class Useful:
    """`field_dense`, chosen for usefulness, or another form of it; a request is read as the description of a task.
    `forms`: systems, of which the first that was saved answers, as `name` says; if none was, the last is indexed."""

    def __init__(self, data: Dataset, *forms: str) -> None:
        saved = ((name, _saved(data, name)) for name in forms)
        found = next(((name, system) for name, system in saved if system is not None), None)
        self.name, self.system = found or (forms[-1], _indexed(data, forms[-1]))
        self.lock = threading.Lock()  # as in `Dense`
        ahead.wait()
        self.ask = lru_cache(maxsize=KEPT_SCORES)(self._ask)
        self.ask("", "")

    def _ask(self, intent: str, theme: str) -> Scores:
        with self.lock:
            return Scores(*explain(self.system, request_of(intent, theme=theme)))

    def closeness(self, text: str, nearest: int) -> tuple[str, float]:
        """As `SavedFieldDense.closeness`."""
        with self.lock:
            return "minilm", closeness(self.system, request_of(text), nearest)

    def score(self, specification: Specification) -> Scores:
        """Sums of standardised cosines, a template's malus and a product's bonus, in standard deviations."""
        return self.ask(specification.intent, specification.domain)


def _saved(data: Dataset, name: str) -> FieldDense | None:
    """The saved model of a system, if there is one of this catalogue: it loads in a fraction of the time."""
    from study.advisor.saved.field_dense import SavedFieldDense

    try:
        model = SavedFieldDense.load(folder_of(data.name, name))
    except StudyError:  # none, or one that `study recommend` complains about
        return None
    same = all(
        model.servers[column].tolist() == data.servers[column].tolist() for column in ("id", "name", "description")
    )
    return model.system if same else None


def _indexed(data: Dataset, name: str) -> FieldDense:
    from study.config.compose import build_system, load

    system: FieldDense = build_system(load([f"system={name}"]).system)
    system.index(data.servers)
    # The catalogue is cached; a request must not wait for torch to load.
    system.encoder = WITHOUT_TORCH.get(system.encoder, system.encoder)
    return system


class Lexical:
    """TF-IDF cosine of request and server text; needs no encoder and starts in a second."""

    name = "tfidf"

    def __init__(self, data: Dataset) -> None:
        from sklearn.feature_extraction.text import TfidfVectorizer  # takes most of a second, which the others need not

        self.vectorizer = TfidfVectorizer(sublinear_tf=True, stop_words="english")
        self.servers = self.vectorizer.fit_transform(data.server_texts())

    def score(self, specification: Specification) -> Scores:
        """Cosines in [0, 1]."""
        query = self.vectorizer.transform([query_text(specification)])
        cosine = np.asarray((self.servers @ query.T).toarray()[:, 0], dtype=np.float32)
        return Scores(cosine, {"lexical": cosine})


class Trained:
    """The saved T2MRec model of the data set (`study export`); servers outside its pool are not ranked."""

    name = "t2mrec"

    def __init__(self, data: Dataset) -> None:
        from study.advisor.saved.t2mrec import Recommender

        folder = folder_of(data.name, "t2mrec")
        self.model = Recommender.load(folder)
        self.row = {int(server): row for row, server in enumerate(data.servers["id"])}
        if {int(server["id"]) for server in self.model.cards} != set(self.row):
            fix = f"run: study export dataset={data.name}"
            raise StudyError("the saved model has another catalogue than the prepared data", file=folder, fix=fix)
        self.ranked = min(len(self.row), max(self.model.scoring.pool, 200))

    def score(self, specification: Specification) -> Scores:
        """Places of the fused and expanded order as scores (1 is best, then 1/2, 1/3 ...), with s_sem and s_str."""
        found = self.model.recommend(
            specification.intent,
            language=specification.languages[0] if specification.languages else "",
            theme=specification.domain,
            k=self.ranked,
        )
        rows = np.array([self.row[item.server_id] for item in found], dtype=np.int64)
        # Fused scores of anchors and centroid similarities of the rest share no scale, so places stand for both.
        total = np.full(len(self.row), -np.inf, dtype=np.float32)
        total[rows] = [1 / item.rank for item in found]
        parts = {name: np.full(len(self.row), np.nan, dtype=np.float32) for name in ("semantic", "structural")}
        for name, values in parts.items():
            values[rows] = [item.parts[name] for item in found]
        return Scores(total, parts)


RETRIEVERS: dict[str, Callable[[Dataset], Retriever]] = {
    "useful": lambda data: Useful(data, *USEFUL),
    "field_dense": lambda data: Useful(data, "field_dense"),
    **{kind.name: kind for kind in (Dense, Lexical, Trained)},
}


def require_retriever(name: str) -> str:
    """The name of a retriever; StudyError for one that none has."""
    require_one_of(name, "retriever", RETRIEVERS)
    return name


def build_retriever(name: str, data: Dataset) -> Retriever:
    """The retriever `name` over the servers of a data set."""
    return RETRIEVERS[require_retriever(name)](data)
