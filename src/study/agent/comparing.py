"""Rules about several servers: when to prefer which, and which to use together."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

from study.agent.claims import (
    REQUEST,
    SINGLE,
    Claim,
    Context,
    Sentence,
    listing,
    of_server,
    shared,
    shown_cues,
)
from study.agent.evidence import Evidence

# A difference in stars is worth a word when one server has at least so many times the other's.
STARS_RATIO = 3


def prefer_words(c: Context, a: Evidence, b: Evidence) -> Sentence:
    """Words of the request that only `a` mentions."""
    more = [word for word in shared(c, a) if word not in shared(c, b)]
    if not more:
        return None
    words = listing([f'"{c.asked[word]}"' for word in more[:6]])
    one = len(more) == 1
    return (
        f"Prefer {a.label} if {words} matter{'s' if one else ''}: only this one mentions {'it' if one else 'them'}.",
        ("name", "description", "tools", REQUEST),
    )


def prefer_stars(c: Context, a: Evidence, b: Evidence) -> Sentence:
    """Several times the stars."""
    if a.stars < STARS_RATIO * max(1, b.stars):
        return None
    return f"Prefer {a.label} if a larger following matters: {a.stars} stars against {b.stars}.", ("stars",)


def prefer_licence(c: Context, a: Evidence, b: Evidence) -> Sentence:
    """Only `a` states a licence."""
    if not a.fields["licence"] or b.fields["licence"]:
        return None
    return f"Prefer {a.label} if you need a stated licence: it has {a.fields['licence']}, the other states none.", (
        "licence",
    )


def prefer_language(c: Context, a: Evidence, b: Evidence) -> Sentence:
    """Different main languages; said once per pair."""
    if (
        not a.language_list
        or not b.language_list
        or a.language_list[0] == b.language_list[0]
        or a.server_id > b.server_id
    ):
        return None
    first, second = a.language_list[0], b.language_list[0]
    return f"{a.label} is mainly written in {first}, {b.label} in {second}: prefer what you can maintain.", (
        "languages",
    )


def prefer_official(c: Context, a: Evidence, b: Evidence) -> Sentence:
    """Only `a` is official."""
    if a.fields["official"] != "official" or b.fields["official"] == "official":
        return None
    return f"Prefer {a.label} if it must be official.", ("official",)


def prefer_preference(c: Context, a: Evidence, b: Evidence) -> Sentence:
    """Preferences that only `a` speaks for."""
    names = [name for name in c.specification.preferences if shown_cues(c, a, name) and not shown_cues(c, b, name)]
    if not names:
        return None
    return f"Prefer {a.label} for {listing(names)}: only its own words speak for it.", (
        "name", "description", "tools", REQUEST,
    )  # fmt: skip


Pair = Callable[[Context, Evidence, Evidence], Sentence]
PAIRS: tuple[Pair, ...] = (
    prefer_words,
    prefer_preference,
    prefer_stars,
    prefer_licence,
    prefer_language,
    prefer_official,
)


def compose(c: Context, a: Evidence, b: Evidence) -> Sentence:
    """`a` covers most of the request and `b` adds words that `a` does not mention."""
    first, second = shared(c, a), shared(c, b)
    more = [word for word in second if word not in first]
    if not first or not more:
        return None

    def words(found: list[str]) -> str:
        return listing([f'"{c.asked[word]}"' for word in found[:6]])

    together = len(first) + len(more)
    return (
        f"{a.label} covers {words(list(first))}; {b.label} adds {words(more)}. Together they mention {together} of the "
        f"{len(c.asked)} words of your request.",
        ("name", "description", "tools", REQUEST),
    )


def compare(context: Context, ids: list[int]) -> list[Claim]:
    """When to prefer which, for every pair of the given servers."""
    claims = []
    for first, second in combinations(ids, 2):
        for one, other in ((first, second), (second, first)):
            for rule in PAIRS:
                if found := rule(context, context.evidence[one], context.evidence[other]):
                    claims.append(Claim("comparison", rule.__name__, found[0], (one, other), found[1]))
    return claims


def composition(context: Context, ids: list[int]) -> list[Claim]:
    """The pair that together mentions most of the request, if two mention more than one does."""
    best: tuple[int, Claim] | None = None
    for first in ids:
        for second in ids:
            found = compose(context, context.evidence[first], context.evidence[second]) if first != second else None
            if found is None:
                continue
            size = len(set(shared(context, context.evidence[first])) | set(shared(context, context.evidence[second])))
            if best is None or size > best[0]:
                best = (size, Claim("composition", "compose", found[0], (first, second), found[1]))
    return [best[1]] if best else []


ALL: tuple[Callable[..., Sentence], ...] = (*(rule for rules in SINGLE.values() for rule in rules), *PAIRS, compose)
RULES: dict[str, Callable[..., Sentence]] = {rule.__name__: rule for rule in ALL}


def again(context: Context, claim: Claim) -> Claim | None:
    """What the claim's rule says of the evidence now; None if it says nothing, or the rule or a server is unknown."""
    rule = RULES.get(claim.rule)
    if rule is None or not all(server in context.evidence for server in claim.servers):
        return None
    if len(claim.servers) != (
        1 if any(claim.rule == single.__name__ for rules in SINGLE.values() for single in rules) else 2
    ):
        return None
    found = rule(context, *(context.evidence[server] for server in claim.servers))
    return Claim(claim.section, claim.rule, found[0], claim.servers, found[1]) if found else None


def sections(context: Context, server: int) -> dict[str, list[Claim]]:
    """Why, trade-offs and adoption of one server."""
    return {section: of_server(context, context.evidence[server], section) for section in SINGLE}
