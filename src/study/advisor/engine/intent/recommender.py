"""The recommender: query and context in, ranked tools with the parts of their scores out; answers are cached."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
from cachetools import TTLCache
from numpy.typing import NDArray

from study.advisor.arrays import FloatArray
from study.advisor.encoders.choose import Embedder
from study.advisor.engine.intent.context import Context, RateLimiter, Requirements, obstacle, usable
from study.advisor.engine.intent.feedback import FeedbackStore, Statistics, statistics
from study.advisor.engine.intent.ranking import SignalIndex, assign, by_factor, factors
from study.advisor.engine.intent.sessions import Chains, Sessions, session_settings, sessions_of
from study.advisor.engine.intent.settings import CONTROL, CORRECTED, Float64Array, Intentions, Rules, intent_settings
from study.advisor.retrieval.documents import ToolCatalog, tool_keys
from study.advisor.retrieval.index import Settings, ToolIndex
from study.errors import StudyError

# What an answer depends on besides the question: fingerprints of the catalogue, of the settings with the tools'
# requirements, and of the tools that may be found; how many events the statistics hold; the tools used a moment ago.
State = tuple[str | int, ...]


def cache_key(query: str, count: int, context: Context, weights: Float64Array, state: State, rules: Rules) -> str:
    """The name of an answer, SHA-256 in hex. Rate limits are not part of it: they are applied after the cache."""
    if rules.query_only_cache:
        return hashlib.sha256(query.encode("utf-8", "replace")).hexdigest()
    stated = {name: sorted(value) if isinstance(value, frozenset) else value for name, value in vars(context).items()}
    parts = [query, count, stated, weights.tolist(), state, asdict(rules)]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class RankedTool:
    """One tool."""

    row: int  # row, key: its row in the catalogue and its stable name
    key: str
    score: float  # the weighted sum, and what the session adds
    factors: Mapping[str, float]  # the value of each factor
    why: str  # the parts of the score, largest first


Scored = tuple[RankedTool, ...]


class IntentRecommender:
    """Intent-based ranking over one catalogue.

    `store`: of feedback. `keys`: stable names of the tools, default `tool_keys`. `requirements`: what tools need, by
    key. `weights`: of the factors; default those of the
    agent's variant in `experiment` (a running comparison), or of the control. `clock`: seconds since 1970.
    """

    def __init__(
        self,
        catalog: ToolCatalog,
        *,
        store: FeedbackStore | None = None,
        keys: Sequence[str] | None = None,
        requirements: Mapping[str, Requirements] | None = None,
        intentions: Intentions | None = None,
        sessions: Sessions | None = None,
        rules: Rules = CORRECTED,
        weights: Float64Array | None = None,
        experiment: str | None = None,
        embedder: Embedder | None = None,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.catalog, self.store, self.rules = catalog, store, rules
        self.intentions, self.session_rules = intentions or intent_settings(), sessions or session_settings()
        self.requirements, self.weights, self.experiment = requirements or {}, weights, experiment
        self.clock, self.monotonic = clock, monotonic
        self.index = ToolIndex(catalog, Settings(document=self.intentions.ranking.document), embedder)
        self.signals = SignalIndex(catalog, self.intentions, rules)
        self.keys = tuple(keys or tool_keys(catalog))
        self.rows = {key: row for row, key in enumerate(self.keys)}
        self.limiter = RateLimiter(self.intentions.rate_limit)
        size = self.intentions.cache
        self.cache: TTLCache[str, Scored] = TTLCache(size.entries, size.seconds, monotonic)
        self.hits = 0
        self.n_events = -1
        self.refresh()

    def refresh(self) -> None:
        """Read new feedback; answers made from older feedback are not given any more."""
        events = self.store.events() if self.store else []
        if len(events) == self.n_events:
            return
        self.statistics: Statistics = statistics(events, self.keys, self.rules)
        self.n_events = len(events)
        settings = self.session_rules
        self.sessions = sessions_of(events, settings.seconds)
        known = (
            [self.rows[key] for key, _ in used if key in self.rows] for own in self.sessions.values() for used in own
        )
        self.chains = Chains(known, len(self.keys), settings)

    def recent(self, agent: str) -> list[int]:
        """The tools of the session that an agent is in, in the order of use."""
        own = self.sessions.get(agent)
        if not own or self.clock() - own[-1][-1][1] >= self.session_rules.seconds:
            return []
        return [self.rows[key] for key, _ in own[-1] if key in self.rows]

    @cached_property
    def _fingerprints(self) -> tuple[str, str]:
        needs = {name: [sorted(part) for part in vars(need).values()] for name, need in self.requirements.items()}
        chosen = json.dumps([asdict(self.intentions.ranking), needs], sort_keys=True)
        return self.catalog.fingerprint(), hashlib.sha256(chosen.encode()).hexdigest()

    def weights_for(self, agent: str) -> Float64Array:
        """The weights that an agent's recommendations use, shape (5,)."""
        if self.weights is not None:
            return self.weights
        variants = self.intentions.variants
        chosen: Float64Array = variants[assign(agent, list(variants), self.experiment) if self.experiment else CONTROL]
        return chosen

    def recommend(
        self,
        query: str,
        context: Context | None = None,
        count: int = 10,
        *,
        among: NDArray[np.bool_] | None = None,
    ) -> Scored:
        """The best usable tools, best first, at most `count`. `among`: those that may be found, shape (n_tools,),
        default all. Raises StudyError: the query is empty, or count below 1."""
        if not query.strip() or count < 1:
            raise StudyError("the query is empty, or fewer than 1 tool is wanted", fix="say what is to be done")
        context = context or Context()
        weights, recent = self.weights_for(context.agent), self.recent(context.agent)
        allowed = "" if among is None else hashlib.sha256(among.tobytes()).hexdigest()
        state: State = (*self._fingerprints, allowed, self.n_events, *recent)
        name = cache_key(query, count, context, weights, state, self.rules)
        scored = self.cache.get(name)
        self.hits += scored is not None
        if scored is None:
            scored = self.cache[name] = self._score(query, context, weights, recent, among)
        if self.rules.filter_last:
            scored = scored[:count]
        # After the cache, as rate limits change from one moment to the next.
        rows = [item.row for item in scored]
        kept, _ = usable(rows, self.keys, self.requirements, context, self.limiter, self.monotonic())
        return tuple(item for item in scored if item.row in set(kept))[:count]

    def _score(
        self,
        query: str,
        context: Context,
        weights: Float64Array,
        recent: Sequence[int],
        among: NDArray[np.bool_] | None,
    ) -> Scored:
        relevance: FloatArray = self.index.embedder.encode([query], store=False)[0] @ self.index.vectors.T
        offered = relevance.copy() if among is None else np.where(among, relevance, np.float32(-np.inf))
        if not self.rules.filter_last:
            # Tools of no use here must not take the places of candidates.
            needing = [row for row, key in enumerate(self.keys) if key in self.requirements]
            offered[[row for row in needing if obstacle(self.requirements[self.keys[row]], context)]] = -np.inf
        rows = self.signals.candidates(self.signals.read(query), offered)
        when: dict[str, Any] = {"now": self.clock(), "agent": context.agent, "rules": self.rules}
        table = factors(relevance, self.statistics, self.intentions.ranking, **when)[rows]
        scores = table @ weights + self.session_rules.weight * self.chains.following(recent)[rows]
        # Candidates come most often named first, so equal scores keep that order.
        found = []
        for i in np.argsort(-scores, kind="stable"):
            parts = by_factor(table[i]), why(table[i] * weights)
            found.append(RankedTool(int(rows[i]), self.keys[rows[i]], float(scores[i]), *parts))
        return tuple(found)

    def used(self, agent: str, key: str) -> None:
        """Count a call for the rate limit."""
        self.limiter.record(agent, key, self.monotonic())


def why(parts: Float64Array) -> str:
    """The parts of a score in words, largest first."""
    ordered = sorted(by_factor(parts).items(), key=lambda item: -item[1])
    return ", ".join(f"{name.replace('_', ' ')} {value:.3f}" for name, value in ordered if value > 0)
