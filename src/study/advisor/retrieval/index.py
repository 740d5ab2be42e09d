"""The index of Semantic Tool Discovery (Mudunuri et al.): dense, BM25, TF-IDF or hybrid search over tool documents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from study.advisor.arrays import FloatArray, IntArray
from study.advisor.encoders import choose as embedding
from study.advisor.encoders.choose import Embedder, TextVectors
from study.advisor.retrieval.documents import ToolCatalog
from study.advisor.retrieval.lexical import Bm25, TfIdfIndex
from study.advisor.retrieval.ranking import best, tie_order
from study.advisor.retrieval.texts import decompose, documents
from study.base.errors import StudyError, require_one_of

MODES = ("dense", "bm25", "tfidf", "hybrid")


@dataclass(frozen=True)
class Settings:
    """How to search."""

    mode: str = "dense"  # one of `MODES`; hybrid is the reciprocal rank fusion of dense and BM25
    document: str = "template"  # form of the tool documents, a key of `documents.TEMPLATES`
    limit: int | None = None  # cut descriptions after so many characters; None keeps them
    decompose: bool = False  # search for the parts of a query too, and take each tool's best score
    fusion: int = 60  # the constant of reciprocal rank fusion (Cormack et al. 2009: 60).
    seed: int = 0  # of the order of ties (of hybrid, see `order_of`)

    def __post_init__(self) -> None:
        require_one_of(self.mode, "search mode", MODES)


def nonempty(catalog: ToolCatalog) -> ToolCatalog:
    """The catalogue, which must have tools."""
    if not catalog.tools:
        raise StudyError(f"the catalogue {catalog.name} has no tools", fix="index servers that offer some")
    return catalog


class ToolIndex:
    """Documents of one catalogue, searchable; vectors and word indexes are made when first needed."""

    def __init__(
        self, catalog: ToolCatalog, settings: Settings | None = None, embedder: Embedder | None = None
    ) -> None:
        self.catalog, self.settings = nonempty(catalog), settings or Settings()
        self.embedder = embedder or embedding.configured_embedder()
        self.documents = documents(catalog, self.settings.document, self.settings.limit)
        self.order = order_of(self.settings, len(self.documents))
        self.vectors = TextVectors(self.documents, self.embedder)

    @cached_property
    def words(self) -> Bm25 | TfIdfIndex:
        """The word index."""
        return (TfIdfIndex if self.settings.mode == "tfidf" else Bm25)(self.documents)

    def scores(self, queries: Sequence[str], *, store: bool = True) -> FloatArray:
        """Scores, higher is better, shape (len(queries), n_tools). `store`: keep the queries' vectors on disk; False
        for a user's question."""
        parts = [decompose(query) if self.settings.decompose else [query] for query in queries]
        flat = self._scores([text for part in parts for text in part], store)
        starts = np.cumsum([0, *(len(part) for part in parts)])[:-1]
        highest: FloatArray = np.maximum.reduceat(flat, starts, axis=0) if queries else flat
        return highest

    def _scores(self, texts: list[str], store: bool) -> FloatArray:
        if self.settings.mode in ("bm25", "tfidf"):
            return self.words.scores(texts)
        dense = self.vectors.cosines(texts, store=store)
        return dense if self.settings.mode == "dense" else fuse([dense, self.words.scores(texts)], self.settings.fusion)

    def search(self, query: str, k: int, among: NDArray[np.bool_] | None = None) -> tuple[IntArray, FloatArray]:
        """Rows and scores of the best `k` tools for one query, best first, both of length at most k. Of a query with
        parts the best tool of every part is found too, as far as there are places. `among`: the tools that may be
        found, shape (n_tools,); default all."""
        if k < 1:
            raise StudyError(f"{k} tools were asked for", fix="ask for at least 1")
        if not query.strip():
            raise StudyError("the query is empty", fix="say in words what is to be done")
        scores = self.scores(decompose(query) if self.settings.decompose else [query], store=False)
        if among is not None:
            scores = np.where(among, scores, np.float32(-np.inf))
        rows, _ = best(scores[0], k, self.order)
        rows = with_every_part(rows, scores, self.order)
        return rows, scores[0, rows]


def order_of(settings: Settings, n_tools: int) -> IntArray:
    """In which order tools of one score are taken, shape (n_tools,): a random one, of a fusion that of the catalogue.

    Fusion adds ranks, and BM25 scores 0 for all tools that share no word with a query: random ranks inside that tie
    would be noise that the sum keeps. The reference scores of `hybrid_server` are met by a stable sort alone.
    """
    return np.arange(n_tools) if settings.mode == "hybrid" else tie_order(n_tools, settings.seed)


def with_every_part(rows: IntArray, scores: FloatArray, order: IntArray) -> IntArray:
    """Ranked `rows` in which the best tool of every part takes the last place that no other part's best tool holds.

    `scores`: of the whole query and then of its parts, shape (1 + parts, n_tools). A tool of another domain may score
    less than many tools of the first. A part to which no tool scores above 0 has no best tool.
    """
    firsts = [row for part in scores[1:] if part.max() > 0 for row in best(part, 1, order)[0].tolist()]
    result = rows.tolist()
    for new in dict.fromkeys(firsts):
        free = [row for row in result if row not in firsts]
        if new not in result and free:
            result.remove(free[-1])
            result.append(new)
    return np.array(sorted(result, key=lambda row: -scores[0, row]), dtype=np.int64)


def fuse(matrices: Sequence[FloatArray], constant: int) -> FloatArray:
    """Reciprocal rank fusion: the sum over systems of 1 / (constant + rank), shape of each matrix (b, n). Equal scores
    of a system are ranked in the order of the catalogue, see `order_of`."""
    places = (np.argsort(np.argsort(-scores, axis=1, kind="stable"), axis=1, kind="stable") for scores in matrices)
    fused: FloatArray = (1 / (constant + 1 + np.stack(list(places)))).sum(axis=0).astype(np.float32)
    return fused


def within(ranked: IntArray, sizes: IntArray, budget: int) -> list[list[int]]:
    """The tools that an agent is handed: down the ranking, each one that still fits into the budget of tokens.
    `ranked`: shape (b, K), -1 where unfilled. `sizes`: tokens of each tool's definition, shape (n_tools,)."""
    handed = []
    for row in ranked:
        left, fitting = budget, []
        for tool in row[row >= 0].tolist():
            if sizes[tool] <= left:
                fitting.append(tool)
                left -= int(sizes[tool])
        handed.append(fitting)
    return handed


def matching(catalog: ToolCatalog, servers: Sequence[str], tags: Sequence[str]) -> NDArray[np.bool_] | None:
    """Which tools are of a server by one of these names and with one of these tags, shape (n_tools,); None: all are.

    `servers`: patterns with * and ? of ids, names and aliases. `tags`: categories or sources. Case is no matter.
    Raises StudyError: no server is left.
    """
    if not servers and not tags:
        return None
    named, tagged = ([word.casefold() for word in words] for words in (servers, tags))
    chosen = []
    for server in catalog.servers:
        names = [name.casefold() for name in (server.id, server.name, *server.aliases)]
        marks = {mark.casefold() for mark in (*server.tags, *server.sources)}
        by_name = not named or any(fnmatchcase(name, word) for name in names for word in named)
        chosen.append(by_name and (not tagged or bool(marks.intersection(tagged))))
    if not any(chosen):
        all_marks = sorted({mark for server in catalog.servers for mark in (*server.tags, *server.sources)})
        fix = f"its tags are: {', '.join(all_marks) or 'none'}" if tags else "patterns may hold * and ?"
        limits = [f"named {' or '.join(servers)}"] * bool(servers) + [f"with the tag {' or '.join(tags)}"] * bool(tags)
        raise StudyError(f"{catalog.name} has no server {' '.join(limits)}", fix=fix)
    mask: NDArray[np.bool_] = np.array(chosen)[catalog.server_of]
    return mask
