"""Phases 1 to 3 of intent-based ranking: the intent of a query, the candidates, the five factors (each in [0, 1])."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from study.advisor.arrays import FloatArray, IntArray
from study.advisor.engine.intent.feedback import Statistics
from study.advisor.engine.intent.settings import CORRECTED, FACTORS, Float64Array, Intentions, Ranking, Rules
from study.advisor.retrieval.documents import Tool, ToolCatalog
from study.advisor.retrieval.ranking import best, tie_order
from study.advisor.retrieval.texts import words_of
from study.errors import StudyError


@dataclass(frozen=True)
class Intent:
    """What a query says about the tool that it needs; each list without repeats, in the order of the query."""

    query: str  # the words as given
    verbs: tuple[str, ...]  # action verbs
    domains: tuple[str, ...]  # domains one of whose keywords occurs
    terms: tuple[str, ...]  # technical terms


def analyse(
    query: str,
    verbs: Collection[str],
    domains: Mapping[str, Collection[str]],
    vocabulary: Collection[str],
    rules: Rules = CORRECTED,
) -> Intent:
    """Read a query.

    `verbs`: known action verbs. `domains`: domain -> keywords. `vocabulary`: technical terms, which the specification
    leaves open; here the words by which the catalogue's own tools and parameters are named (`SignalIndex`).
    """
    words = list(dict.fromkeys(words_of(query)))
    spaced = query.lower().split() if rules.bare_verbs else words
    acting = tuple(dict.fromkeys(word for word in spaced if word in verbs))
    searched = query.lower() if rules.substring_domains else set(words)
    touched = tuple(name for name, own in domains.items() if any(keyword in searched for keyword in own))
    keywords = {keyword for listed in domains.values() for keyword in listed}
    terms = tuple(word for word in words if word in vocabulary and word not in verbs and word not in keywords)
    return Intent(query, acting, touched, terms)


SIGNALS = ("domain", "verb", "term", "semantic")
# Shorter words (articles, letters of variables) name nothing.
SHORTEST_TERM = 3


class SignalIndex:
    """The tools of a catalogue by domain, action verb and technical term.

    A tool's verbs and domains are those of its name and description, read as a query is. Its terms are the words of its
    name and of its parameters' names, except words that more than `common_term` of the tools share.
    """

    def __init__(self, catalog: ToolCatalog, intentions: Intentions, rules: Rules = CORRECTED) -> None:
        self.catalog, self.intentions, self.rules, self.size = catalog, intentions, rules, len(catalog.tools)
        names = [_named(tool) for tool in catalog.tools]
        counts = Counter(word for words in names for word in words)
        most = max(1.0, intentions.ranking.common_term * self.size)
        self.vocabulary = {word for word, count in counts.items() if count <= most and len(word) >= SHORTEST_TERM}
        self.tools: dict[str, dict[str, list[int]]] = {name: defaultdict(list) for name in SIGNALS[:3]}
        for row, (tool, words) in enumerate(zip(catalog.tools, names, strict=True)):
            read = self.read(f"{tool.name.replace('_', ' ')} {tool.description}")
            keys_of = {"domain": read.domains, "verb": read.verbs, "term": sorted(words & self.vocabulary)}
            for signal, keys in keys_of.items():
                for key in keys:
                    self.tools[signal][key].append(row)
        self.order = tie_order(self.size, 0)

    def read(self, query: str) -> Intent:
        """The intent of a query."""
        return analyse(query, self.intentions.verbs, self.intentions.domains, self.vocabulary, self.rules)

    def named(self, intent: Intent, relevance: FloatArray, count: int) -> dict[str, list[int]]:
        """What each signal brings: a tool as often as the intent's keys name it; and the `count` nearest in meaning."""
        keys: dict[str, Sequence[str]] = {"domain": intent.domains, "verb": intent.verbs, "term": intent.terms}
        found = {
            signal: [row for key in listed for row in self.tools[signal].get(key, ())]
            for signal, listed in keys.items()
        }
        return found | {"semantic": best(relevance, count, self.order)[0].tolist()}

    def candidates(self, intent: Intent, relevance: FloatArray) -> IntArray:
        """The tools to be scored, shape (at most ``ranking.candidates``,). `relevance`: cosine of the query with every
        tool, shape (n_tools,); decides between equally often named ones. -inf is never a candidate."""
        count = self.intentions.ranking.candidates
        if count is None:
            return np.flatnonzero(~np.isneginf(relevance)).astype(np.int64)
        named = {
            signal: [row for row in rows if not np.isneginf(relevance[row])]
            for signal, rows in self.named(intent, relevance, count).items()
        }
        return most_named(named, relevance, self.order, count, self.rules)


def most_named(
    named: dict[str, list[int]], relevance: FloatArray, order: IntArray, count: int, rules: Rules
) -> IntArray:
    """The `count` tools that the signals name most often, shape (at most count,). `named`: tool rows by signal, repeats
    counting. `relevance`: shape (n_tools,), breaks ties; tools equal in that too are taken in the order `order`."""
    counts = Counter(row for rows in named.values() for row in rows)
    if rules.first_seen_ties:
        return np.array([row for row, _ in counts.most_common(count)], dtype=np.int64)
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    chosen = sorted(counts, key=lambda row: (-counts[row], -relevance[row], place[row]))
    return np.array(chosen[:count], dtype=np.int64)


def _named(tool: Tool) -> set[str]:
    return set(words_of(" ".join([tool.name, *(parameter.name for parameter in tool.parameters)])))


DAY = 86_400.0  # seconds
DESIGN_CAP = 1_000


def smoothed(part: Float64Array, whole: Float64Array, prior: float, strength: float) -> Float64Array:
    """(part + prior x strength) / (whole + strength): the rate, drawn to `prior` where there is little to go by."""
    rate: Float64Array = (part + prior * strength) / (whole + strength)
    return rate


def success_rate(statistics: Statistics, ranking: Ranking, rules: Rules = CORRECTED) -> Float64Array:
    """Share of calls that worked, drawn to the share over all tools; (n_tools,). Unused tools get that share."""
    calls, successes = statistics.calls, statistics.successes
    if rules.unused_fails:
        return successes / np.maximum(calls, 1)
    overall = successes.sum() / calls.sum() if calls.any() else ranking.neutral
    return smoothed(successes, calls, overall, ranking.prior_strength)


def recency(days: Float64Array, half_life: float, rules: Rules = CORRECTED) -> Float64Array:
    """What is left of popularity after `days` without use: half after a half-life; NaN days (unknown) leave it."""
    age = np.maximum(np.nan_to_num(days, nan=0.0), 0.0)
    left: Float64Array = np.exp(-age / half_life) if rules.e_folding_decay else np.exp2(-age / half_life)
    return left


def popularity(
    statistics: Statistics, ranking: Ranking, now: float, agent: str, rules: Rules = CORRECTED
) -> Float64Array:
    """Calls relative to the cap, decayed, times the agent's bias of 0.5 to 1.5; (n_tools,)."""
    cap = DESIGN_CAP if rules.fixed_cap else ranking.popularity_cap or max(1.0, float(statistics.calls.max(initial=0)))
    base = np.minimum(statistics.calls / cap, 1)
    days = (now - statistics.last_used) / DAY
    # The specification counts whole days.
    left = recency(np.floor(days) if rules.e_folding_decay else days, ranking.half_life_days, rules)
    calls, successes = statistics.agents.get(agent, (np.zeros(len(base)), np.zeros(len(base))))
    rate = smoothed(successes, calls, 0.5, ranking.prior_strength)
    if rules.unused_fails:
        rate = np.where(calls > 0, successes / np.maximum(calls, 1), 0.5)
    value: Float64Array = base * left * (0.5 + rate)
    return value if rules.fixed_cap else np.minimum(value, 1)


def performance(statistics: Statistics, ranking: Ranking, rules: Rules = CORRECTED) -> Float64Array:
    """1 at 0 ms, 0 at `slowest_ms` and above; neutral where nothing was timed; (n_tools,)."""
    mean = statistics.latency_ms / np.maximum(statistics.timed, 1)
    unknown = 1.0 if rules.extreme_unknowns else ranking.neutral
    return np.where(statistics.timed > 0, 1 - np.minimum(mean / ranking.slowest_ms, 1), unknown)


def user_rating(statistics: Statistics, ranking: Ranking, rules: Rules = CORRECTED) -> Float64Array:
    """Mean rating as a share of the scale, drawn to the mean over all tools; neutral without any; (n_tools,)."""
    shares = statistics.rating / ranking.rating_scale
    if rules.extreme_unknowns:
        return shares / np.maximum(statistics.rated, 1)
    overall = shares.sum() / statistics.rated.sum() if statistics.rated.any() else ranking.neutral
    return smoothed(shares, statistics.rated, overall, ranking.prior_strength)


def factors(
    relevance: FloatArray,
    statistics: Statistics,
    ranking: Ranking,
    *,
    now: float = 0.0,
    agent: str = "",
    rules: Rules = CORRECTED,
) -> Float64Array:
    """The five factors of every tool, shape (n_tools, 5), in the order of `settings.FACTORS`. `relevance`: cosines,
    shape (n_tools,); negative ones count as 0. `now`: seconds since 1970."""
    columns = (
        np.clip(relevance.astype(np.float64), 0, 1),
        success_rate(statistics, ranking, rules),
        popularity(statistics, ranking, now, agent, rules),
        performance(statistics, ranking, rules),
        user_rating(statistics, ranking, rules),
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
