"""Phase 1, intent analysis: the action verbs, domains and technical terms of a query."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from study.tools.discovery.words import tokens
from study.tools.intent.settings import CORRECTED, Rules


@dataclass(frozen=True)
class Intent:
    """What a query says about the tool that it needs; each list without repeats, in the order of the query.

    Attributes:
        query: the words as given.
        verbs: action verbs.
        domains: domains one of whose keywords occurs.
        terms: technical terms.
    """

    query: str
    verbs: tuple[str, ...]
    domains: tuple[str, ...]
    terms: tuple[str, ...]


def analyse(
    query: str,
    verbs: Collection[str],
    domains: Mapping[str, Collection[str]],
    vocabulary: Collection[str],
    rules: Rules = CORRECTED,
) -> Intent:
    """Read a query.

    Args:
        verbs: known action verbs.
        domains: domain -> keywords.
        vocabulary: what counts as a technical term. The design leaves this open; here it is the words by which the
            catalogue's own tools and parameters are named (`candidates.SignalIndex`).
    """
    words = list(dict.fromkeys(tokens(query)))
    spaced = query.lower().split() if rules.bare_verbs else words
    acting = tuple(dict.fromkeys(word for word in spaced if word in verbs))
    lowered = query.lower()
    present = set(words)
    touched = tuple(
        name
        for name, keywords in domains.items()
        if any(keyword in (lowered if rules.substring_domains else present) for keyword in keywords)
    )
    keywords = {keyword for listed in domains.values() for keyword in listed}
    terms = tuple(word for word in words if word in vocabulary and word not in verbs and word not in keywords)
    return Intent(query, acting, touched, terms)
