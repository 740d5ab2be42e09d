"""Navigational queries: whether a server of the name in a request comes first, where it is the tool and where not."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
import scipy.sparse as sp

from study.config.compose import build_system, load
from study.data.dataset import Dataset, FloatArray
from study.data.splits import Split
from study.errors import StudyError
from study.evaluation.ranking import tie_order
from study.usefulness.products import Product, inside, key

EMPTY = ("language", "category", "theme", "subcategory")
# The forms of the requests, as the table names them.
WRITTEN, LOWER, NOT_THE_TOOL = "as written", "lower case", "word is not the tool"
SLOT = "{product}"


@dataclass(frozen=True)
class Kind:
    """Products, and sentences with `SLOT` that ask for one of them."""

    products: list[str]
    sentences: list[str]


@dataclass(frozen=True)
class Sentence:
    """A request with a word that names no tool in it."""

    word: str
    text: str


@dataclass(frozen=True)
class Navigational:
    """``conf/usefulness/navigational.yaml``, where every key is explained."""

    seed: int
    requests: int
    top1: float
    systems: list[str]
    kinds: dict[str, Kind]
    not_the_tool: dict[str, list[Sentence]]

    def __post_init__(self) -> None:
        """Refuse requests that would ask something else than they seem to."""
        for kind, entry in self.kinds.items():
            for sentence in entry.sentences:
                if SLOT not in sentence:
                    fix = f"write {SLOT} in it"
                    raise StudyError(f"no product is asked for: {sentence}", column=f"kinds.{kind}", fix=fix)
        seen: set[str] = set()
        for kind, entries in self.not_the_tool.items():
            for number, own in enumerate(entries):
                column = f"not_the_tool.{kind}.{number}"
                if not key(own.word) or not re.search(rf"(?<!\w){re.escape(own.word)}(?!\w)", own.text):
                    problem = f"{own.word!r} is no name in: {own.text}"
                    raise StudyError(problem, column=column, fix="write it as the text does")
                if own.text in seen:
                    raise StudyError(f"asked twice: {own.text}", column=column, fix="remove one of them")
                seen.add(own.text)


@dataclass(frozen=True)
class Query:
    """One request: its form (`WRITTEN`, `LOWER` or `NOT_THE_TOOL`), and the kind of its product or word.

    `word` is the product, or a word that is not the tool, as the request writes it; `sentence` has `SLOT` where a
    product is named; `bearers` are rows of the servers whose name holds the word.
    """

    form: str
    kind: str
    word: str
    sentence: str
    bearers: tuple[int, ...]

    @property
    def text(self) -> str:
        """The request as it is asked."""
        return self.sentence.replace(SLOT, self.word)


def draw_queries(settings: Navigational, servers: pd.DataFrame) -> list[Query]:
    """The requests for a product that the catalogue can answer, at most `requests` of them, by seed, as written."""
    names = [key(name) for name in servers["name"]]
    found = [
        Query(WRITTEN, kind, product, sentence, bearers)
        for kind, entry in settings.kinds.items()
        for product in entry.products
        if (bearers := _bearers(names, product))
        for sentence in entry.sentences
    ]
    chosen = np.random.default_rng(settings.seed).permutation(len(found))[: settings.requests]
    return [found[place] for place in sorted(chosen)]


def lower_case(query: Query) -> Query:
    """The same request with the product in lower case; the rest of the sentence stays as it is."""
    return replace(query, form=LOWER, word=query.word.lower())


def not_the_tool(settings: Navigational, servers: pd.DataFrame) -> list[Query]:
    """The requests with a word that must not decide, where the catalogue has a server of that name."""
    names = [key(name) for name in servers["name"]]
    return [
        Query(NOT_THE_TOOL, kind, entry.word, entry.text, bearers)
        for kind, entries in settings.not_the_tool.items()
        for entry in entries
        if (bearers := _bearers(names, entry.word))
    ]


def _bearers(names: Sequence[Product], word: str) -> tuple[int, ...]:
    """Rows of the names in which the words of `word` follow one another."""
    wanted = key(word)
    return tuple(row for row, name in enumerate(names) if wanted and inside(wanted, name))


def all_forms(settings: Navigational, servers: pd.DataFrame) -> list[Query]:
    """Every request to ask, form by form."""
    written = draw_queries(settings, servers)
    return [*written, *map(lower_case, written), *not_the_tool(settings, servers)]


def as_tasks(queries: Sequence[Query]) -> pd.DataFrame:
    """The requests in the form of tasks: the text is the description, everything else is empty."""
    frame = pd.DataFrame({"id": np.arange(len(queries)), "name": "", "description": [own.text for own in queries]})
    return frame.assign(**dict.fromkeys(EMPTY, ""))


def scores(name: str, data: Dataset, queries: Sequence[Query]) -> FloatArray:
    """Scores of a system of ``conf/system`` that learns from no label, shape (len(queries), n_servers)."""
    nothing = sp.csr_matrix((len(queries), data.n_servers), dtype=np.float32)
    lists = tuple(np.empty(0, dtype=np.int64) for _ in queries)
    asked = Dataset("navigational", data.servers, as_tasks(queries), nothing, lists)
    system = build_system(load([f"system={name}"]).system)
    with tempfile.TemporaryDirectory() as folder:
        system.fit(asked, Split("cold", nothing, nothing, nothing, cold=True), seed=0, workdir=Path(folder))
    found: FloatArray = system.score(np.arange(len(queries)))
    return found


def first_bears_word(scores: FloatArray, queries: Sequence[Query], order: np.ndarray) -> np.ndarray:
    """Whether the first server of each request bears its word, ties in the given order; shape (n,), bool.
    `scores` has shape (n, n_servers); `order` is that of `study.evaluation.ranking.tie_order`."""
    first = order[scores[:, order].argmax(axis=1)]
    return np.array([int(row) in query.bearers for row, query in zip(first, queries, strict=True)], dtype=bool)


def shares(bears: np.ndarray, queries: Sequence[Query]) -> pd.DataFrame:
    """How often the first server bears the word, by form, and in each form for all requests and then by kind.
    Returns: columns form, kind, requests (their number) and first_bears_word (the share)."""
    facts = {"form": [own.form for own in queries], "kind": [own.kind for own in queries], "bears": bears}
    found = []
    for form, own in pd.DataFrame(facts).groupby("form", sort=False):
        kinds = pd.concat([own.assign(kind="all"), own]).groupby("kind", sort=False)["bears"]
        table = kinds.agg(requests="size", first_bears_word="mean").reset_index()
        found.append(table.assign(form=form))
    return pd.concat(found, ignore_index=True)[["form", "kind", "requests", "first_bears_word"]]


def navigational_table(settings: Navigational, data: Dataset) -> pd.DataFrame:
    """Every system's shares: the columns of `shares` behind the column system."""
    asked, order = all_forms(settings, data.servers), tie_order(data.n_servers, 0)
    found = []
    for name in settings.systems:
        bears = first_bears_word(scores(name, data, asked), asked, order)
        found.append(shares(bears, asked).assign(system=name))
    return pd.concat(found, ignore_index=True)[["system", "form", "kind", "requests", "first_bears_word"]]
