"""Phase 2, candidates: the tools that domains, verbs, technical terms and meaning bring, most often named first."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np

from study.data.dataset import FloatArray, IntArray
from study.evaluation.ranking import tie_order
from study.tools.catalogues.catalog import Tool, ToolCatalog
from study.tools.discovery.index import best
from study.tools.discovery.words import tokens
from study.tools.intent.analysis import Intent, analyse
from study.tools.intent.settings import CORRECTED, Intentions, Rules

SIGNALS = ("domain", "verb", "term", "semantic")
# Shorter words (articles, letters of variables) name nothing.
SHORTEST_TERM = 3


class SignalIndex:
    """The tools of a catalogue by domain, action verb and technical term.

    A tool's verbs and domains are those of its name and description, read as a query is. Its terms are the words of its
    name and of its parameters' names, except words that more than `common_term` of the tools share.
    """

    def __init__(self, catalog: ToolCatalog, intentions: Intentions, rules: Rules = CORRECTED) -> None:
        """Read every tool once."""
        self.catalog, self.intentions, self.rules, self.size = catalog, intentions, rules, len(catalog.tools)
        names = [_named(tool) for tool in catalog.tools]
        counts = Counter(word for words in names for word in words)
        most = max(1.0, intentions.ranking.common_term * self.size)
        self.vocabulary = {word for word, count in counts.items() if count <= most and len(word) >= SHORTEST_TERM}
        self.tools: dict[str, dict[str, list[int]]] = {name: defaultdict(list) for name in SIGNALS[:3]}
        for row, (tool, words) in enumerate(zip(catalog.tools, names, strict=True)):
            read = self.read(f"{tool.name.replace('_', ' ')} {tool.description}")
            for signal, keys in (
                ("domain", read.domains),
                ("verb", read.verbs),
                ("term", sorted(words & self.vocabulary)),
            ):
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
        """The tools to be scored, shape (at most ``ranking.candidates``,).

        Args:
            relevance: cosine of the query with every tool, shape (n_tools,); decides between equally often named ones.
                -inf is never a candidate.
        """
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
    """The `count` tools that the signals name most often, shape (at most count,).

    Args:
        named: tool rows by signal, repeats counting.
        relevance: shape (n_tools,), breaks ties; tools equal in that too are taken in the order `order`.
    """
    counts = Counter(row for rows in named.values() for row in rows)
    if rules.first_seen_ties:
        return np.array([row for row, _ in counts.most_common(count)], dtype=np.int64)
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    chosen = sorted(counts, key=lambda row: (-counts[row], -relevance[row], place[row]))
    return np.array(chosen[:count], dtype=np.int64)


def _named(tool: Tool) -> set[str]:
    return set(tokens(" ".join([tool.name, *(parameter.name for parameter in tool.parameters)])))
