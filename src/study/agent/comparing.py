"""Rules about all servers of an answer at once: what tells them apart, and which two go further together.

A sentence names both sides: the servers that have something, and all others of the answer, which have not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import permutations

from study.agent.claims import DESCRIPTIVE, MOST_WORDS, REQUEST, Claim, Context, Evidence, listing, shared, shown_cues

# A difference in stars is worth a word when one server has at least so many times the other's.
STARS_RATIO = 3
# Requests of many words divide the servers in many ways; the ones with most words are said.
MOST_DIVISIONS = 4

Group = Sequence[Evidence]
TEXTS = (*DESCRIPTIVE, REQUEST)


def _labels(group: Group) -> str:
    return listing([item.label for item in group], "or")


def _ids(group: Group) -> str:
    return listing([f"id {item.server_id}" for item in group])


def _claim(rule: str, text: str, fields: tuple[str, ...], group: Group, section: str = "comparison") -> Claim:
    return Claim(section, rule, text, tuple(item.server_id for item in group), fields)


def divisions(having: Mapping[str, Sequence[bool]], group: Group) -> list[tuple[list[str], Group, Group]]:
    """Names that the same servers have, these servers, and all others; without what all or none of them have.

    Args:
        having: name -> for each server of the group whether it has it.
    """
    found: dict[tuple[bool, ...], list[str]] = {}
    for name, has in having.items():
        if any(has) and not all(has):
            found.setdefault(tuple(has), []).append(name)

    def side(has: Sequence[bool], wanted: bool) -> Group:
        return [item for item, yes in zip(group, has, strict=True) if yes == wanted]

    return [(names, side(has, True), side(has, False)) for has, names in found.items()]


def prefer_words(c: Context, group: Group) -> Iterator[Claim]:
    """Words of the request that some servers mention and the others do not."""
    mentioned = [shared(c, item) for item in group]
    parts = divisions({word: [word in found for found in mentioned] for word in c.asked}, group)
    for words, having, rest in sorted(parts, key=lambda part: -len(part[0]))[:MOST_DIVISIONS]:
        one = len(words) == 1
        if one:
            lack = f"{_ids(rest)} {'does' if len(rest) == 1 else 'do'} not mention it"
        else:
            lack = f"{_ids(rest)} mention{'s' if len(rest) == 1 else ''} none of them"
        quoted = listing([f'"{c.asked[word]}"' for word in words[:MOST_WORDS]])
        text = f"Prefer {_labels(having)} if {quoted} matter{'s' if one else ''}: {lack}."
        yield _claim("prefer_words", text, TEXTS, [*having, *rest])


def prefer_preference(c: Context, group: Group) -> Iterator[Claim]:
    """Preferences that the own words of some servers speak for."""
    names = {name: [bool(shown_cues(c, item, name)) for item in group] for name in c.specification.preferences}
    for found, having, rest in divisions(names, group):
        own = "its own words speak" if len(having) == 1 else "their own words speak"
        text = f"Prefer {_labels(having)} for {listing(found)}: {own} for it, those of {_ids(rest)} do not."
        yield _claim("prefer_preference", text, TEXTS, [*having, *rest])


def prefer_stars(c: Context, group: Group) -> Iterator[Claim]:
    """The widest gap between followings, if it is several times wide."""
    ordered = sorted(group, key=lambda item: -item.stars)
    # A server without stars counts as one with one star.
    wide = [ordered[place - 1].stars / max(1, ordered[place].stars) for place in range(1, len(ordered))]
    if wide and max(wide) >= STARS_RATIO:
        cut = wide.index(max(wide)) + 1
        having, rest = ordered[:cut], ordered[cut:]
        more = f"{'at least ' if len(having) > 1 else ''}{having[-1].stars} stars"
        less = f"{'at most ' if len(rest) > 1 else ''}{rest[0].stars}"
        text = f"Prefer {_labels(having)} if a larger following matters: {more} against {less} ({_ids(rest)})."
        yield _claim("prefer_stars", text, ("stars",), ordered)


def prefer_licence(c: Context, group: Group) -> Iterator[Claim]:
    """A stated licence."""
    for _, having, rest in divisions({"licence": [bool(item.fields["licence"]) for item in group]}, group):
        text = f"Prefer {_labels(having)} if you need a stated licence: the catalogue states none for {_ids(rest)}."
        yield _claim("prefer_licence", text, ("licence",), [*having, *rest])


def prefer_language(c: Context, group: Group) -> Iterator[Claim]:
    """Different main languages."""
    main: dict[str, list[Evidence]] = {}
    for item in group:
        main.setdefault(item.language_list[0] if item.language_list else "", []).append(item)
    parts = [f"{name} for {_ids(servers)}" for name, servers in main.items() if name]
    if len(parts) > 1:
        parts += [f"none stated for {_ids(main[''])}"] if "" in main else []
        text = f"Main languages: {'; '.join(parts)}. Prefer what you can maintain."
        yield _claim("prefer_language", text, ("languages",), group)


def prefer_official(c: Context, group: Group) -> Iterator[Claim]:
    """The catalogue's mark."""
    for _, having, rest in divisions({"official": [e.fields["official"] == "official" for e in group]}, group):
        lack = f"{_ids(rest)} {'is' if len(rest) == 1 else 'are'} not marked so"
        text = f"Prefer {_labels(having)} if it must be official: {lack}."
        yield _claim("prefer_official", text, ("official",), [*having, *rest])


def own_part(c: Context, own: Sequence[str], other: Sequence[str]) -> bool:
    """Whether the words `own` of the request hold a rare one, or two, that `other` lacks.

    One word that hundreds of servers use ("data", "manage") is no reason to run two servers.
    """
    alone = [word for word in own if word not in other]
    return len(alone) > 1 or any(c.mentioned[word] <= c.rare for word in alone)


def weight(c: Context, words: Iterable[str]) -> float:
    """Sum over words of the request of 1 / (1 + servers of the catalogue that mention it): rare words weigh most."""
    return sum(1 / (1 + c.mentioned[word]) for word in words)


def composition(c: Context) -> list[Claim]:
    """The two servers that together mention most of the request, if each has a part of its own and no single server
    mentions as many words. Rare words weigh more; of equal pairs the first stands higher in the answer."""
    group = list(c.evidence.values())
    covers = {item.server_id: list(shared(c, item)) for item in group}
    single = max(map(len, covers.values()), default=0)
    pairs: list[tuple[Evidence, Evidence]] = []
    for first, second in permutations(group, 2):
        had, more = covers[first.server_id], covers[second.server_id]
        parts = own_part(c, had, more) and own_part(c, more, had)
        if len(had) >= len(more) and parts and len({*had, *more}) > single:
            pairs.append((first, second))
    if not pairs:
        return []
    first, second = max(pairs, key=lambda pair: weight(c, {*covers[pair[0].server_id], *covers[pair[1].server_id]}))
    had = covers[first.server_id]
    more = [word for word in covers[second.server_id] if word not in had]

    def words(found: list[str]) -> str:
        return listing([f'"{c.asked[word]}"' for word in found[:MOST_WORDS]])

    text = (
        f"{first.label} covers {words(had)}; {second.label} adds {words(more)}. Together they mention "
        f"{len(had) + len(more)} of the {len(c.asked)} words of your request; no single server here mentions more "
        f"than {single}."
    )
    return [_claim("compose", text, TEXTS, [first, second], "composition")]


def compare(context: Context) -> list[Claim]:
    """What tells the servers of the context apart, and when to prefer which."""
    rules = (prefer_words, prefer_preference, prefer_stars, prefer_licence, prefer_language, prefer_official)
    group = list(context.evidence.values())
    return [claim for rule in rules for claim in rule(context, group)]
