"""Rules about all servers of an answer at once: what tells them apart, and which two go further together.

A sentence names both sides: the servers that have something, and all others of the answer, which have not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import permutations

from study.agent.claims import DESCRIPTIVE, MOST_WORDS, REQUEST, Claim, Context, Evidence, listing, shared, shown_cues

# A difference in stars is worth a word when one server has at least so many times the other's.
STARS_RATIO = 3
# Requests of many words divide the servers in many ways; the ones with most words are said.
MOST_DIVISIONS = 4

# The sentence, the fields that it rests on, and the servers that it names.
Finding = tuple[str, tuple[str, ...], tuple[int, ...]]
Group = Sequence[Evidence]


def _labels(group: Iterable[Evidence]) -> str:
    return listing([item.label for item in group], "or")


def _ids(group: Iterable[Evidence]) -> str:
    return listing([f"id {item.server_id}" for item in group])


def _rest(group: Group, having: Group) -> list[Evidence]:
    return [item for item in group if item not in having]


def _servers(*parts: Group) -> tuple[int, ...]:
    return tuple(item.server_id for part in parts for item in part)


def divisions(having: Mapping[str, Sequence[bool]], group: Group) -> list[tuple[list[str], list[Evidence]]]:
    """Names that the same servers have, and these servers; without what all or none of them have.

    Args:
        having: name -> for each server of the group whether it has it.
    """
    found: dict[tuple[bool, ...], list[str]] = {}
    for name, has in having.items():
        if any(has) and not all(has):
            found.setdefault(tuple(has), []).append(name)
    return [(names, [item for item, yes in zip(group, has, strict=True) if yes]) for has, names in found.items()]


def prefer_words(c: Context, group: Group) -> list[Finding]:
    """Words of the request that some servers mention and the others do not."""
    mentioned = [shared(c, item) for item in group]
    findings: list[Finding] = []
    parts = divisions({word: [word in found for found in mentioned] for word in c.asked}, group)
    for words, having in sorted(parts, key=lambda part: -len(part[0]))[:MOST_DIVISIONS]:
        rest = _rest(group, having)
        few, one = words[:MOST_WORDS], len(words) == 1
        if one:
            lack = f"{_ids(rest)} {'does' if len(rest) == 1 else 'do'} not mention it"
        else:
            lack = f"{_ids(rest)} mention{'s' if len(rest) == 1 else ''} none of them"
        quoted = listing([f'"{c.asked[word]}"' for word in few])
        text = f"Prefer {_labels(having)} if {quoted} matter{'s' if one else ''}: {lack}."
        findings.append((text, (*DESCRIPTIVE, REQUEST), _servers(having, rest)))
    return findings


def prefer_preference(c: Context, group: Group) -> list[Finding]:
    """Preferences that the own words of some servers speak for."""
    names = {name: [bool(shown_cues(c, item, name)) for item in group] for name in c.specification.preferences}
    findings: list[Finding] = []
    for found, having in divisions(names, group):
        rest = _rest(group, having)
        own = "its own words speak" if len(having) == 1 else "their own words speak"
        text = f"Prefer {_labels(having)} for {listing(found)}: {own} for it, those of {_ids(rest)} do not."
        findings.append((text, (*DESCRIPTIVE, REQUEST), _servers(having, rest)))
    return findings


def prefer_stars(c: Context, group: Group) -> list[Finding]:
    """The widest gap between followings, if it is several times wide."""
    ordered = sorted(group, key=lambda item: -item.stars)
    # A server without stars counts as one with one star.
    wide = [ordered[place - 1].stars / max(1, ordered[place].stars) for place in range(1, len(ordered))]
    if not wide or max(wide) < STARS_RATIO:
        return []
    cut = wide.index(max(wide)) + 1
    having, rest = ordered[:cut], ordered[cut:]
    more = f"{'at least ' if len(having) > 1 else ''}{having[-1].stars} stars"
    less = f"{'at most ' if len(rest) > 1 else ''}{rest[0].stars}"
    text = f"Prefer {_labels(having)} if a larger following matters: {more} against {less} ({_ids(rest)})."
    return [(text, ("stars",), _servers(having, rest))]


def prefer_licence(c: Context, group: Group) -> list[Finding]:
    """A stated licence."""
    return [
        (
            f"Prefer {_labels(having)} if you need a stated licence: the catalogue states none for {_ids(rest)}.",
            ("licence",),
            _servers(having, rest),
        )
        for _, having in divisions({"licence": [bool(item.fields["licence"]) for item in group]}, group)
        for rest in (_rest(group, having),)
    ]


def prefer_official(c: Context, group: Group) -> list[Finding]:
    """The catalogue's mark."""
    return [
        (
            f"Prefer {_labels(having)} if it must be official: {_ids(rest)} {'is' if len(rest) == 1 else 'are'} not "
            "marked so.",
            ("official",),
            _servers(having, rest),
        )
        for _, having in divisions({"official": [item.fields["official"] == "official" for item in group]}, group)
        for rest in (_rest(group, having),)
    ]


def prefer_language(c: Context, group: Group) -> list[Finding]:
    """Different main languages."""
    main: dict[str, list[Evidence]] = {}
    for item in group:
        main.setdefault(item.language_list[0] if item.language_list else "", []).append(item)
    stated = {name: servers for name, servers in main.items() if name}
    if len(stated) < 2:
        return []
    parts = [f"{name} for {_ids(servers)}" for name, servers in stated.items()]
    parts += [f"none stated for {_ids(main[''])}"] if "" in main else []
    return [(f"Main languages: {'; '.join(parts)}. Prefer what you can maintain.", ("languages",), _servers(group))]


def own_part(c: Context, own: Sequence[str], other: Sequence[str]) -> bool:
    """Whether the words `own` of the request hold a rare one, or two, that `other` lacks.

    One word that hundreds of servers use ("data", "manage") is no reason to run two servers.
    """
    alone = [word for word in own if word not in other]
    return len(alone) > 1 or any(c.mentioned[word] <= c.rare for word in alone)


def weight(c: Context, words: Iterable[str]) -> float:
    """Sum over words of the request of 1 / (1 + servers of the catalogue that mention it): rare words weigh most."""
    return sum(1 / (1 + c.mentioned[word]) for word in words)


def compose(c: Context, group: Group) -> list[Finding]:
    """The two servers that together mention most of the request, if each has a part of its own and no single server
    mentions as many words. Rare words weigh more; of equal pairs the first stands higher in the answer."""
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
    return [(text, (*DESCRIPTIVE, REQUEST), (first.server_id, second.server_id))]


Comparison = Callable[[Context, Group], list[Finding]]
COMPARISONS: tuple[Comparison, ...] = (
    prefer_words,
    prefer_preference,
    prefer_stars,
    prefer_licence,
    prefer_language,
    prefer_official,
)


def _claims(context: Context, section: str, rules: Iterable[Comparison]) -> list[Claim]:
    group = list(context.evidence.values())
    return [
        Claim(section, rule.__name__, text, servers, fields)
        for rule in rules
        for text, fields, servers in rule(context, group)
    ]


def compare(context: Context) -> list[Claim]:
    """What tells the servers of the context apart, and when to prefer which."""
    return _claims(context, "comparison", COMPARISONS)


def composition(context: Context) -> list[Claim]:
    """The pair that together mentions most of the request, if two that differ mention more than any one does."""
    return _claims(context, "composition", (compose,))
