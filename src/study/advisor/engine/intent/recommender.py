"""Intent-based ranking: the intent of a query, candidates by four signals, five factors, context filters, tool chains.

Query and context in, ranked tools with the parts of their scores out; answers are cached. A session is a run of one
agent's successful uses with less than a stated time between them. A tool follows another one where a session uses it at
any later time; per session that counts once.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import chain, combinations
from pathlib import Path
from typing import Any

import numpy as np
from cachetools import LRUCache, TTLCache
from numpy.typing import NDArray

from study.advisor.arrays import FloatArray, IntArray
from study.advisor.encoders.choose import Embedder
from study.advisor.engine.intent.feedback import Event, FeedbackStore, Statistics, statistics
from study.advisor.engine.intent.settings import (
    CONTROL,
    FACTORS,
    Float64Array,
    Intentions,
    Limit,
    Ranking,
    Sessions,
    intent_settings,
)
from study.advisor.retrieval.documents import ToolCatalog, tool_keys
from study.advisor.retrieval.index import Settings, ToolIndex
from study.advisor.retrieval.lexical import words_of
from study.advisor.retrieval.ranking import best, tie_order
from study.base.errors import StudyError
from study.base.settings import build_settings

PAIRS = 10_000  # an agent chooses its own name


@dataclass(frozen=True)
class Context:
    """Who asks, and from where. None means "not stated": that filter is then off."""

    agent: str = ""  # the agent's name
    permissions: frozenset[str] | None = None  # what it may do
    services: frozenset[str] | None = None  # what runs at its side
    languages: frozenset[str] | None = None  # languages, systems: of its project, in any case
    systems: frozenset[str] | None = None


@dataclass(frozen=True)
class Requirements:
    """What a tool needs. Empty means that it needs nothing, or serves every project."""

    permissions: frozenset[str] = frozenset()  # permissions, services: all of them are needed
    services: frozenset[str] = frozenset()
    languages: frozenset[str] = frozenset()  # languages, systems: one of them must be the project's
    systems: frozenset[str] = frozenset()


@dataclass(frozen=True)
class _File(Context):
    """Who asks, and what tools need by their keys."""

    needs: Mapping[str, Requirements] = field(default_factory=dict)


def read_context(path: Path) -> tuple[Context, Mapping[str, Requirements]]:
    """Who asks, and what tools need by key, from a JSON file: the fields of `Context`, and ``needs``, tool key -> those
    of `Requirements`, each a list of names. What is left out is not stated."""
    fix = "write: agent, permissions, services, languages, systems, and needs (tool key -> lists of names)"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise StudyError(f"cannot be read ({error})", file=path, fix=fix) from error
    read = build_settings(_File, content, path)
    return Context(**{field.name: getattr(read, field.name) for field in fields(Context)}), read.needs


class RateLimiter:
    """At most `calls` uses of one tool by one agent in any window of `seconds`; `PAIRS` of both are remembered."""

    def __init__(self, limit: Limit) -> None:
        self.limit = limit
        self.calls: LRUCache[tuple[str, str], deque[float]] = LRUCache(PAIRS)

    def record(self, agent: str, tool: str, now: float) -> None:
        """Count a call; `now` in seconds of a clock that never goes back."""
        self.calls.setdefault((agent, tool), deque(maxlen=self.limit.calls)).append(now)

    def limited(self, agent: str, tool: str, now: float) -> bool:
        """Whether one more call would be too many."""
        times = self.calls.get((agent, tool))
        return times is not None and len(times) == self.limit.calls and times[0] > now - self.limit.seconds


def obstacle(needs: Requirements, context: Context) -> str | None:
    """Why the tool is of no use in the context, or None."""
    for name in ("permission", "service"):
        demand, held = getattr(needs, f"{name}s"), getattr(context, f"{name}s")
        if held is not None and (missing := sorted(demand - held)):
            return f"{name} missing: {', '.join(missing)}"
    for name in ("language", "system"):
        served, theirs = getattr(needs, f"{name}s"), getattr(context, f"{name}s")
        if theirs and served and not _fold(served) & _fold(theirs):
            return f"serves another {name}: {', '.join(sorted(served))}"
    return None


def _fold(names: frozenset[str]) -> set[str]:
    return {name.strip().casefold() for name in names}


# What a query says about the tool that it needs, by signal: domains one of whose keywords occurs, action verbs, and
# technical terms, each without repeats.
Intent = dict[str, list[str]]


def analyse(query: str, intentions: Intentions, vocabulary: Collection[str], designed: bool = False) -> Intent:
    """Read a query, as all of this module with `settings.DEFECTS` where `designed`. `vocabulary`: technical terms,
    which the specification leaves open; here the words by which the catalogue's own tools and parameters are named."""
    words, verbs, domains = list(dict.fromkeys(words_of(query))), intentions.verbs, intentions.domains
    spaced = query.lower().split() if designed else words
    searched = query.lower() if designed else set(words)
    known = verbs.union(*domains.values())
    return {
        "domain": [name for name, keywords in domains.items() if any(keyword in searched for keyword in keywords)],
        "verb": list(dict.fromkeys(word for word in spaced if word in verbs)),
        "term": [word for word in words if word in vocabulary and word not in known],
    }


# Shorter words (articles, letters of variables) name nothing.
SHORTEST_TERM = 3


class SignalIndex:
    """The tools of a catalogue by domain, action verb and technical term.

    A tool's verbs and domains are those of its name and description, read as a query is. Its terms are the words of its
    name and of its parameters' names, except words that more than `common_term` of the tools share.
    """

    def __init__(self, catalog: ToolCatalog, intentions: Intentions, designed: bool = False) -> None:
        self.intentions, self.designed, self.order = intentions, designed, tie_order(len(catalog.tools), 0)
        naming = (" ".join([tool.name, *(one.name for one in tool.parameters)]) for tool in catalog.tools)
        names = [set(words_of(text)) for text in naming]
        most = max(1.0, intentions.ranking.common_term * len(names))
        common = Counter(chain(*names)).items()
        self.vocabulary = {word for word, count in common if count <= most and len(word) >= SHORTEST_TERM}
        self.tools = defaultdict[tuple[str, str], list[int]](list)
        for row, (tool, words) in enumerate(zip(catalog.tools, names, strict=True)):
            read = self.read(f"{tool.name.replace('_', ' ')} {tool.description}")
            read["term"] = sorted(words & self.vocabulary)
            for signal, keys in read.items():
                for key in keys:
                    self.tools[signal, key].append(row)

    def read(self, query: str) -> Intent:
        """The intent of a query."""
        return analyse(query, self.intentions, self.vocabulary, self.designed)

    def named(self, intent: Intent, relevance: FloatArray, count: int) -> dict[str, list[int]]:
        """What each signal brings: a tool as often as the intent's keys name it; and the `count` nearest in meaning."""
        rows = {
            signal: [row for key in keys for row in self.tools.get((signal, key), ())]
            for signal, keys in intent.items()
        }
        return rows | {"semantic": best(relevance, count, self.order)[0].tolist()}

    def candidates(self, intent: Intent, relevance: FloatArray) -> IntArray:
        """The tools to be scored, shape (at most ``ranking.candidates``,). `relevance`: cosine of the query with every
        tool, shape (n_tools,); decides between equally often named ones. -inf is never a candidate."""
        count = self.intentions.ranking.candidates
        if count is None:
            return np.flatnonzero(~np.isneginf(relevance)).astype(np.int64)
        rows = chain(*self.named(intent, relevance, count).values())
        able = [row for row in rows if not np.isneginf(relevance[row])]
        return most_named(able, relevance, self.order, count, self.designed)


def most_named(named: Sequence[int], relevance: FloatArray, order: IntArray, count: int, designed: bool) -> IntArray:
    """The `count` tools that are named most often, shape (at most count,). `named`: their rows, one signal after the
    other. `relevance`: shape (n_tools,), breaks ties; tools equal in that too are taken in the order `order`."""
    counts, position = Counter(named), np.argsort(order)
    if designed:
        return np.array([row for row, _ in counts.most_common(count)], dtype=np.int64)
    chosen = sorted(counts, key=lambda row: (-counts[row], -relevance[row], position[row]))
    return np.array(chosen[:count], dtype=np.int64)


DAY = 86_400.0  # seconds
DESIGN_CAP = 1_000


def smoothed(part: Float64Array, whole: Float64Array, prior: float, strength: float) -> Float64Array:
    """The rate, drawn to `prior` where there is little to go by."""
    return np.asarray((part + prior * strength) / (whole + strength), dtype=np.float64)


def rate(part: Float64Array, whole: Float64Array, ranking: Ranking, designed: bool) -> Float64Array:
    """The share of `part` in `whole`, drawn to that over all tools, which unused tools get; neutral without any."""
    if designed:
        return part / np.maximum(whole, 1)
    overall = part.sum() / whole.sum() if whole.any() else ranking.neutral
    return smoothed(part, whole, overall, ranking.prior_strength)


def recency(days: Float64Array, half_life: float, designed: bool = False) -> Float64Array:
    """What is left of popularity after `days` without use: half after a half-life; NaN days (unknown) leave it."""
    age = np.maximum(np.nan_to_num(days, nan=0.0), 0.0)
    left: Float64Array = np.exp(-age / half_life) if designed else np.exp2(-age / half_life)
    return left


def popularity(
    statistics: Statistics, ranking: Ranking, now: float, agent: str, designed: bool = False
) -> Float64Array:
    """Calls relative to the cap, decayed, times the agent's bias of 0.5 to 1.5; (n_tools,)."""
    cap = DESIGN_CAP if designed else ranking.popularity_cap or max(1.0, float(statistics.calls.max(initial=0)))
    base = np.minimum(statistics.calls / cap, 1)
    days = (now - statistics.last_used) / DAY
    # The specification counts whole days.
    left = recency(np.floor(days) if designed else days, ranking.half_life_days, designed)
    calls, successes = statistics.agents.get(agent, (np.zeros(len(base)), np.zeros(len(base))))
    own = smoothed(successes, calls, 0.5, ranking.prior_strength)
    if designed:
        own = np.where(calls > 0, successes / np.maximum(calls, 1), 0.5)
    value: Float64Array = base * left * (0.5 + own)
    return value if designed else np.minimum(value, 1)


def factors(
    relevance: FloatArray,
    statistics: Statistics,
    ranking: Ranking,
    *,
    now: float = 0.0,
    agent: str = "",
    designed: bool = False,
) -> Float64Array:
    """The five factors of every tool, shape (n_tools, 5), in the order of `settings.FACTORS`: performance is 1 at 0 ms,
    0 at `slowest_ms` and above, and neutral where nothing was timed. `relevance`: cosines, shape (n_tools,); negative
    ones count as 0. `now`: seconds since 1970."""
    mean = statistics.latency_ms / np.maximum(statistics.timed, 1)
    unknown = 1.0 if designed else ranking.neutral
    columns = (
        np.clip(relevance.astype(np.float64), 0, 1),
        rate(statistics.successes, statistics.calls, ranking, designed),
        popularity(statistics, ranking, now, agent, designed),
        np.where(statistics.timed > 0, 1 - np.minimum(mean / ranking.slowest_ms, 1), unknown),
        rate(statistics.rating / ranking.rating_scale, statistics.rated, ranking, designed),
    )
    return np.stack(columns, axis=1)


def by_factor(weights: Float64Array) -> dict[str, float]:
    """Weights by factor."""
    return {name: float(value) for name, value in zip(FACTORS, weights, strict=True)}


def assign(agent: str, variants: Sequence[str], experiment: str) -> str:
    """The variant of an agent: equal shares, always the same, and independent from one experiment to the next."""
    if not variants:
        raise StudyError("there are no variants", fix="name at least one")
    digest = hashlib.sha256(f"{experiment}\0{agent}".encode("utf-8", "replace")).digest()
    # 64 bits leave a bias of less than 1e-18 for any number of variants.
    return variants[int.from_bytes(digest[:8], "big") % len(variants)]


def sessions_of(events: Iterable[Event], seconds: float) -> dict[str, list[list[tuple[str, float]]]]:
    """The sessions of every agent, oldest first: keys of the tools that it used with success, and when it finished."""
    by_agent: dict[str, list[list[tuple[str, float]]]] = defaultdict(list)
    for event in events:
        moment = event.finished if event.finished is not None else event.asked
        if not event.success or event.selected is None or moment is None:
            continue
        sessions = by_agent[event.agent]
        if not sessions or moment - sessions[-1][-1][1] >= seconds:
            sessions.append([])
        sessions[-1].append((event.selected, moment))
    return by_agent


class Chains:
    """How often one tool follows another, counted over sessions. `sessions`: tool rows in the order of use."""

    def __init__(self, sessions: Iterable[Sequence[int]], n_tools: int, settings: Sessions) -> None:
        self.n_tools, self.settings = n_tools, settings
        self.begun: Counter[int] = Counter()
        self.after: dict[int, Counter[int]] = defaultdict(Counter)
        for used in sessions:
            self.begun.update(set(used))
            for one, other in {pair for pair in combinations(used, 2) if pair[0] != pair[1]}:
                self.after[one][other] += 1

    def following(self, recent: Iterable[int]) -> Float64Array:
        """Per tool, shape (n_tools,): the greatest share of the sessions with a recent tool in which it came later; a
        share is drawn to 0 by `prior_strength` sessions. 0 where nothing is known."""
        shares = np.zeros(self.n_tools)
        for one in set(recent):
            for other, count in self.after.get(one, {}).items():
                shares[other] = max(shares[other], count / (self.begun[one] + self.settings.prior_strength))
        return shares

    def next_of(self, row: int, most: int) -> list[int]:
        """The tools that most often came after one, in at least `least` sessions; at most `most`, best first."""
        counts: Mapping[int, int] = self.after.get(row, {})
        often = [(-count, other) for other, count in counts.items() if count >= self.settings.least]
        return [other for _, other in sorted(often)[:most]]


@dataclass(frozen=True)
class FoundTool:
    """One tool of an answer; its key, factors and `why`, the parts of the score in words, are of this ranking alone."""

    row: int  # in the catalogue
    score: float  # the weighted sum, and what the session adds, or that of another method
    whole: bool = True  # whether its definition fits into the budget
    key: str = ""  # its stable name
    factors: Mapping[str, float] = field(default_factory=dict)
    why: str = ""


Scored = tuple[FoundTool, ...]


class IntentRecommender:
    """Intent-based ranking over one catalogue.

    `store`: of feedback. `keys`: stable names of the tools, default `tool_keys`. `requirements`: what tools need, by
    key. `experiment`: a running comparison, in which an agent has the weights of its variant; otherwise it has those of
    the control. `clock`: seconds since 1970.
    """

    def __init__(
        self,
        catalog: ToolCatalog,
        *,
        store: FeedbackStore | None = None,
        keys: Sequence[str] | None = None,
        requirements: Mapping[str, Requirements] | None = None,
        intentions: Intentions | None = None,
        experiment: str | None = None,
        embedder: Embedder | None = None,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.store, self.intentions = store, intentions or intent_settings()
        self.requirements, self.experiment = requirements or {}, experiment
        self.clock, self.monotonic = clock, monotonic
        self.index = ToolIndex(catalog, Settings(document=self.intentions.ranking.document), embedder)
        self.signals = SignalIndex(catalog, self.intentions)
        self.keys = tuple(keys or tool_keys(catalog))
        self.rows = {key: row for row, key in enumerate(self.keys)}
        self.limiter = RateLimiter(self.intentions.rate_limit)
        size = self.intentions.cache
        self.cache: TTLCache[tuple[Any, ...], Scored] = TTLCache(size.entries, size.seconds, monotonic)
        self.hits = 0
        self.n_events = -1
        self.refresh()

    def refresh(self) -> None:
        """Read new feedback; answers made from older feedback are not given any more."""
        events = self.store.events() if self.store else []
        if len(events) == self.n_events:
            return
        self.statistics: Statistics = statistics(events, self.keys)
        self.n_events = len(events)
        settings = self.intentions.sessions
        self.sessions = sessions_of(events, settings.seconds)
        rows = (
            [self.rows[key] for key, _ in used if key in self.rows] for runs in self.sessions.values() for used in runs
        )
        self.chains = Chains(rows, len(self.keys), settings)

    def recent(self, agent: str) -> list[int]:
        """The tools of the session that an agent is in, in the order of use."""
        sessions = self.sessions.get(agent)
        if not sessions or self.clock() - sessions[-1][-1][1] >= self.intentions.sessions.seconds:
            return []
        return [self.rows[key] for key, _ in sessions[-1] if key in self.rows]

    def recommend(
        self, query: str, context: Context | None = None, count: int = 10, *, among: NDArray[np.bool_] | None = None
    ) -> Scored:
        """The best usable tools, best first, at most `count`. `among`: those that may be found, shape (n_tools,),
        default all. Raises StudyError: the query is empty, or count below 1."""
        if not query.strip() or count < 1:
            raise StudyError("the query is empty, or fewer than 1 tool is wanted", fix="say what is to be done")
        context, variants = context or Context(), self.intentions.variants
        variant = assign(context.agent, list(variants), self.experiment) if self.experiment else CONTROL
        weights, recent = variants[variant], self.recent(context.agent)
        # All that an answer depends on, a stranger's text by its hash, which is short.
        long = query.encode("utf-8", "surrogatepass"), b"" if among is None else among.tobytes()
        digests = (hashlib.sha256(part).digest() for part in long)
        key = (*digests, context, weights.tobytes(), self.n_events, *recent)
        scored = self.cache.get(key)
        self.hits += scored is not None
        if scored is None:
            scored = self.cache[key] = self._score(query, context, weights, recent, among)
        # After the cache, as rate limits change from one moment to the next. A tool that is not named needs nothing.
        now = self.monotonic()
        usable = (
            item
            for item in scored
            if obstacle(self.requirements.get(item.key, Requirements()), context) is None
            and not self.limiter.limited(context.agent, item.key, now)
        )
        return tuple(usable)[:count]

    def _score(
        self, query: str, context: Context, weights: Float64Array, recent: list[int], among: NDArray[np.bool_] | None
    ) -> Scored:
        relevance = self.index.vectors.cosines([query], store=False)[0]
        offered = relevance.copy() if among is None else np.where(among, relevance, np.float32(-np.inf))
        # Tools of no use here must not take the places of candidates.
        needing = [row for row, key in enumerate(self.keys) if key in self.requirements]
        offered[[row for row in needing if obstacle(self.requirements[self.keys[row]], context)]] = -np.inf
        rows = self.signals.candidates(self.signals.read(query), offered)
        now, ranking = self.clock(), self.intentions.ranking
        table = factors(relevance, self.statistics, ranking, now=now, agent=context.agent)[rows]
        scores = table @ weights + self.intentions.sessions.weight * self.chains.following(recent)[rows]
        # Candidates come most often named first, so equal scores keep that order.
        tools = []
        for i in np.argsort(-scores, kind="stable"):
            said: Any = {"factors": by_factor(table[i]), "why": why(table[i] * weights)}
            tools.append(FoundTool(int(rows[i]), float(scores[i]), key=self.keys[rows[i]], **said))
        return tuple(tools)

    def used(self, agent: str, key: str) -> None:
        """Count a call for the rate limit."""
        self.limiter.record(agent, key, self.monotonic())


def why(parts: Float64Array) -> str:
    """The parts of a score in words, largest first."""
    ordered = sorted(by_factor(parts).items(), key=lambda item: -item[1])
    return ", ".join(f"{name.replace('_', ' ')} {value:.3f}" for name, value in ordered if value > 0)
