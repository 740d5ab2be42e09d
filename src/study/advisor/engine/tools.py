"""Tools for a request: of a catalogue, or of the servers in it that a recommender of servers names first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from study.advisor.arrays import FloatArray, IntArray
from study.advisor.encoders.choose import Embedder, quick_embedder
from study.advisor.engine.intent.recommender import Context, FoundTool, IntentRecommender
from study.advisor.retrieval.documents import ToolCatalog
from study.advisor.retrieval.index import Settings, ToolIndex, within
from study.advisor.retrieval.ranking import best, tie_order
from study.advisor.retrieval.route import Request, Router, Routing, parse_requests
from study.advisor.retrieval.texts import decompose, definition_tokens
from study.base.errors import StudyError, require_one_of

SEARCHES = ("dense", "bm25", "tfidf", "hybrid")
# MCP-Zero's two stages, and the ranking by what earlier uses taught.
ROUTED, INTENT = "routed", "intent"
METHODS = (*SEARCHES, ROUTED, INTENT)
# The scores of all servers of a catalogue for a request, shape (n_servers,), with the embedder of its texts.
ServerStage = Callable[[ToolCatalog, str, Embedder], FloatArray]


@dataclass(frozen=True)
class ToolOptions:
    """How tools are found.

    Attributes:
        k: tools in the answer; None for as many as the budget takes.
        method: one of `METHODS`. A request block is always routed.
        decompose: search for the parts of a request too.
        among: the tools that may be found, shape (n_tools,), default all.
        servers: how many servers stay before tools are searched; None keeps all.
        stage: what scores servers; without one nothing but the tools decides.
        budget: tokens of the definitions that are handed over whole.
        context: who asks, for `INTENT`.
    """

    k: int | None = 5
    method: str = "dense"
    decompose: bool = False
    among: NDArray[np.bool_] | None = None
    servers: int | None = None
    stage: ServerStage | None = None
    budget: int | None = None
    context: Context = field(default_factory=Context)


@dataclass(frozen=True)
class ToolAnswer:
    """The tools for one request."""

    items: tuple[FoundTool, ...]  # best first
    servers: tuple[tuple[int, float], ...] = ()  # rows and scores of those that a stage left, best first
    tokens: int = 0  # of the definitions that are handed over


class Tools:
    """The tools of one catalogue, ready to be searched by every method.

    `document`: form of the texts that are searched; requests and intents are matched with names and descriptions, as
    they were measured. `how`: keys, store, experiment and requirements of `IntentRecommender`.
    """

    def __init__(
        self,
        catalog: ToolCatalog,
        embedder: Embedder | None = None,
        *,
        document: str = "template",  # which `study tools index` embeds
        **how: Any,
    ) -> None:
        self.catalog, self.embedder, self.document, self.how = catalog, embedder or quick_embedder(), document, how
        self.indexes = dict[tuple[str, bool], ToolIndex]()

    def index(self, method: str = "dense", *, decompose: bool = False) -> ToolIndex:
        """The search by one of `SEARCHES`."""
        if (method, decompose) not in self.indexes:
            settings = Settings(mode=method, document=self.document, decompose=decompose)
            self.indexes[method, decompose] = ToolIndex(self.catalog, settings, self.embedder)
        return self.indexes[method, decompose]

    @cached_property
    def router(self) -> Router:
        """The search by a server's and a tool's description (MCP-Zero)."""
        return Router(self.catalog, Routing(), self.embedder)

    @cached_property
    def recommender(self) -> IntentRecommender:
        """The ranking by intent."""
        return IntentRecommender(self.catalog, embedder=self.embedder, **self.how)

    @cached_property
    def tokens(self) -> IntArray:
        """Tokens of every tool's definition, shape (n_tools,)."""
        return definition_tokens(self.catalog)

    def find(self, request: str | Request, options: ToolOptions | None = None) -> ToolAnswer:
        """See `engine.answer.ask`. Raises StudyError: an empty request, an unknown method, or a number below 1."""
        options = options or ToolOptions()
        require_one_of(options.method, "search method", METHODS)
        if min(value for value in (options.k, options.servers, options.budget, 1) if value is not None) < 1:
            raise StudyError("tools, servers or budget below 1", fix="use numbers from 1")
        words = request if isinstance(request, str) else " ".join(request)
        if not words.strip():
            raise StudyError("the request is empty", fix="say in words what is to be done")
        blocks = [request] if isinstance(request, Request) else parse_requests(request)
        among, servers = options.among, tuple[tuple[int, float], ...]()
        if options.stage is not None:
            scores = options.stage(self.catalog, words, self.embedder)
            # The best servers, with their scores, and which tools are theirs.
            rows, values = best(scores, options.servers or len(scores), tie_order(len(scores), 0))
            servers = tuple(zip(rows.tolist(), values.tolist(), strict=True))
            passed = np.isin(self.catalog.server_of, rows)
            among = passed if among is None else among & passed
        items = self._ranked(words, blocks, options, among)
        if options.budget is not None:
            ranked = np.array([[item.row for item in items]], dtype=np.int64)
            whole = set(within(ranked, self.tokens, options.budget)[0])
            items = [replace(item, whole=item.row in whole) for item in items]
        tokens = int(self.tokens[[item.row for item in items if item.whole]].sum()) if options.budget else 0
        return ToolAnswer(tuple(items), servers, tokens)

    def _ranked(
        self, words: str, blocks: Sequence[Request], options: ToolOptions, among: NDArray[np.bool_] | None
    ) -> Sequence[FoundTool]:
        depth = options.k or len(self.catalog.tools)
        if options.method == INTENT and not blocks:
            self.recommender.refresh()
            return self.recommender.recommend(words, options.context, depth, among=among)
        if blocks or options.method == ROUTED:
            parts = decompose(words) if options.decompose else [words]
            requests = blocks or [Request(part, part) for part in parts]
            scores = self.router.scores(requests, store=False).max(axis=0)
            scores = scores if among is None else np.where(among, scores, np.float32(-np.inf))
            rows, values = best(scores, depth, tie_order(len(scores), 0))
        else:
            rows, values = self.index(options.method, decompose=options.decompose).search(words, depth, among=among)
        return [FoundTool(row, value) for row, value in zip(rows.tolist(), values.tolist(), strict=True)]
