"""Evidence of servers, and claims: sentences that a named rule derives from named fields (paper, section 6.3).

Rules are pure functions of the context. Each gives a sentence and the fields that it rests on where the evidence
supports it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, permutations
from typing import Any

from study.advisor.agent.settings import Setup, Words
from study.advisor.agent.specification import Specification
from study.advisor.agent.text import clone_address, content_words, phrase, plain, quoted, safe_link

# Field of the evidence -> column of the server table.
COLUMNS = {
    "name": "name",
    "description": "description",
    "tools": "tools",
    "languages": "language_tokens",
    "platforms": "system_tokens",
    "licence": "license_clean",
    "category": "category_clean",
    "subcategory": "subcategory_clean",
    "author": "author",
    "stars": "stars_count",
    "watchers": "watching_count",
    "activity": "activity",
    "official": "official",
    "directory": "origin",
    "repository_link": "url",
    "directory_link": "web_url",
}
LINKS = ("repository_link", "directory_link")
DESCRIPTIVE = ("name", "description", "tools")
# Long texts are cut: what is cut is no evidence.
LONGEST = 4_000
# Beyond so many words a sentence is no longer read.
MOST_WORDS = 6
# So many words before "API key" tell "requires" from "without".
WORDS_BEFORE = 4
# A difference in stars is worth a word when one server has at least so many times the other's.
STARS_RATIO = 3
# Requests of many words divide the servers in many ways; the ones with most words are said.
MOST_DIVISIONS = 4
REQUEST, SETUP_FILE = "request", "conf/agent/setup.yaml"
# Stands for a rule where a language model made the sentence.
MODEL_RULE = "llm"
# Rule, sentence, fields.
Sentence = tuple[str, str, tuple[str, ...]]


@dataclass(frozen=True)
class Evidence:
    """What the catalogue says of one server, and how it was ranked."""

    server_id: int
    fields: Mapping[str, str]  # text as it may be shown; '' for nothing, and for a link that is no ordinary address
    scores: Mapping[str, float]  # `total`, `rank` and the parts of the score

    @property
    def label(self) -> str:
        """Name and id, the name in quotation marks that it cannot close."""
        return f"{quoted(self.fields['name'], 80)} (id {self.server_id})"

    def listed(self, name: str) -> list[str]:
        """The values of a field that lists several; the first language is the main one."""
        return [part.strip() for part in self.fields[name].split(",") if part.strip()]

    @property
    def stars(self) -> int:
        """Stars of the repository at the time of the release."""
        return int(self.fields["stars"])

    @property
    def descriptive(self) -> dict[str, str]:
        """The descriptive fields that are not empty."""
        return {name: self.fields[name] for name in DESCRIPTIVE if self.fields[name]}


def shown_fields(server: Mapping[Any, Any]) -> dict[str, str]:
    """The fields of one row of the server table, fit to be shown."""
    fields = {name: plain(str(server[column]), LONGEST) for name, column in COLUMNS.items()}
    return fields | {name: safe_link(str(server[COLUMNS[name]])) or "" for name in LINKS}


@dataclass(frozen=True)
class Claim:
    """One statement of an answer."""

    section: str  # why, tradeoff, adoption, comparison or composition
    rule: str  # what made it; `MODEL_RULE` for a language model
    text: str
    servers: tuple[int, ...]  # ids of the servers that it speaks about
    fields: tuple[str, ...]  # of their evidence, that it rests on; also `REQUEST` and `SETUP_FILE`


@dataclass(frozen=True)
class Context:
    """What rules may look at."""

    specification: Specification
    asked: Mapping[str, str]  # content words of the request, singular form -> as written
    words: Words
    setup: Setup
    median_stars: float  # of the catalogue
    mentioned: Mapping[str, int]  # asked word, singular form -> how many servers of the catalogue mention it
    rare: float  # at most so many servers mention a rare word
    evidence: Mapping[int, Evidence]  # the recommended servers by id, best first


def listing(values: list[str], last: str = "and") -> str:
    """'a, b and c'."""
    return values[0] if len(values) == 1 else f"{', '.join(values[:-1])} {last} {values[-1]}"


def shared(context: Context, evidence: Evidence) -> dict[str, list[str]]:
    """Content words of the request that a server's descriptive fields hold: singular form -> fields."""
    found: dict[str, list[str]] = {}
    for name, text in evidence.descriptive.items():
        for word in content_words(text):
            if word in context.asked:
                found.setdefault(word, []).append(name)
    return {word: found[word] for word in context.asked if word in found}


def shown_cues(context: Context, evidence: Evidence, preference: str) -> dict[str, str]:
    """Cues of a preference that a server's descriptive fields hold: cue -> field."""
    pattern = phrase(*context.words.preferences[preference]["shown"])
    return {match[0].lower(): name for name, text in evidence.descriptive.items() for match in pattern.finditer(text)}


def _words(c: Context, words: Iterable[str], last: str = "and") -> str:
    """The first of these words of the request, as written."""
    return listing([f'"{c.asked[word]}"' for word in list(words)[:MOST_WORDS]], last)


def _same(wanted: Iterable[str], has: list[str]) -> list[str]:
    folded = {value.casefold() for value in wanted}
    return [value for value in has if value.casefold() in folded]


# Rules of one server: (rule, sentence, fields)


def why(c: Context, e: Evidence) -> Iterator[Sentence]:
    """What speaks for a server."""
    if found := shared(c, e):
        fields = tuple(dict.fromkeys(name for names in found.values() for name in names))
        verb = "mentions" if len(fields) == 1 and fields != ("tools",) else "mention"
        yield "why_words", f"Its {listing(list(fields))} {verb} {_words(c, found)} of your request.", (*fields, REQUEST)
    if same := _same(c.specification.languages, e.listed("languages")):
        yield "why_language", f"It is written in {listing(same)}, as you asked.", ("languages", REQUEST)
    if same := _same(c.specification.platforms, e.listed("platforms")):
        yield "why_platform", f"It names {listing(same)} as its system, as you asked.", ("platforms", REQUEST)
    if e.fields["licence"] in c.specification.licences:
        yield "why_licence", f"Its licence is {e.fields['licence']}, as you asked.", ("licence", REQUEST)
    if e.fields["official"] == "official":
        yield "why_official", "The catalogue marks it as official.", ("official",)
    cues = {name: shown for name in c.specification.preferences if (shown := shown_cues(c, e, name))}
    if cues:
        parts = [f"{name}: {listing([chr(34) + cue + chr(34) for cue in shown])}" for name, shown in cues.items()]
        fields = tuple(dict.fromkeys(field for shown in cues.values() for field in shown.values()))
        text = f"Its own words speak for what you prefer ({'; '.join(parts)})."
        yield "why_preference", text, (*fields, REQUEST)
    if e.stars > c.median_stars and e.stars >= 10:
        yield (
            "why_followed",
            f"It has {e.stars} stars; half of the catalogue has at most {c.median_stars:g}.",
            ("stars",),
        )
    place, total = e.scores["rank"], e.scores["total"]
    text = f"By score it stands at place {place:.0f} of the whole catalogue ({total:.3f})."
    yield "why_rank", text, ("rank", "total")


def tradeoffs(c: Context, e: Evidence) -> Iterator[Sentence]:
    """What speaks against a server."""
    texts = (*e.descriptive, REQUEST)
    found = shared(c, e)
    missing = [word for word in c.asked if word not in found]
    if missing and not found:
        text = "None of its descriptive fields shares a word with your request; it was found by similarity alone."
        yield "less_words", text, texts
    elif missing:
        text = f"Nothing in its name, description or tool list mentions {_words(c, missing, 'or')}."
        yield "less_words", text, texts
    licence = e.fields["licence"]
    if not licence:
        yield "less_licence", "The catalogue states no licence: ask before you use or change it.", ("licence",)
    elif licence == "other":
        yield "less_licence", "Its licence is not one of the usual ones: read it.", ("licence",)
    elif licence in c.words.copyleft:
        yield "less_licence", f"{licence} is a copyleft licence: it can bind what you build on it.", ("licence",)
    if c.specification.platforms and not e.fields["platforms"]:
        yield "less_platform", "The catalogue does not say on which systems it runs.", ("platforms", REQUEST)
    if silent := [name for name in c.specification.preferences if not shown_cues(c, e, name)]:
        yield "less_preference", f"Its descriptive fields say nothing about {listing(silent, 'or')}.", texts
    if e.stars < c.median_stars:
        stars = f"{e.stars} star{'' if e.stars == 1 else 's'}"
        text = f"It has {stars}, less than half of the catalogue (median {c.median_stars:g})."
        yield "less_followed", text, ("stars",)
    if e.fields["activity"] == "0":
        yield "less_active", "Its activity is 0 in the catalogue.", ("activity",)


def adoption(c: Context, e: Evidence) -> Iterator[Sentence]:
    """How to set a server up; general knowledge comes from ``setup.yaml``."""
    link = e.fields["repository_link"]
    text = f"Start from its address: {link}" if link else "The catalogue holds no usable address of its repository."
    if address := clone_address(link, c.setup.hosts):
        text = f"Get the code: git clone {address}"
    yield "adopt_code", text, ("repository_link",)
    languages = e.listed("languages")
    if hint := next((c.setup.languages[name] for name in languages if name in c.setup.languages), None):
        yield "adopt_language", hint, ("languages", SETUP_FILE)
    if "Dockerfile" in languages:
        yield "adopt_docker", c.setup.docker, ("languages", SETUP_FILE)
    if found := phrase("API key").search(e.fields["description"]):
        before = " ".join(e.fields["description"][: found.start()].split()[-WORDS_BEFORE:])
        said = quoted(f"… {before} {found[0]} …")
        text = f"Its description speaks of an API key: {said} Check what the README asks for."
        yield "adopt_key", text, ("description",)
    yield "adopt_client", c.setup.general, (SETUP_FILE,)


def sections(context: Context, server: int) -> dict[str, list[Claim]]:
    """Section (why, tradeoff, adoption) -> the claims that the evidence of a server supports."""
    evidence = context.evidence[server]
    made = {"why": why, "tradeoff": tradeoffs, "adoption": adoption}
    return {
        name: [Claim(name, rule, text, (server,), fields) for rule, text, fields in rules(context, evidence)]
        for name, rules in made.items()
    }


# Rules of all servers of an answer. A sentence names both sides: those that have something, and all others.

Group = Sequence[Evidence]
TEXTS = (*DESCRIPTIVE, REQUEST)


def _ids(group: Group) -> str:
    return listing([f"id {item.server_id}" for item in group])


def _prefer(rule: str, having: Group, reason: str, rest: Group, fields: tuple[str, ...]) -> Claim:
    text = f"Prefer {listing([item.label for item in having], 'or')} {reason}."
    return Claim("comparison", rule, text, tuple(item.server_id for item in (*having, *rest)), fields)


def divisions(having: Mapping[str, Sequence[bool]], group: Group) -> list[tuple[list[str], Group, Group]]:
    """Names that the same servers have, these servers, and all others; without what all or none of them have. `having`:
    name -> for each server of the group whether it has it."""
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
        matter, lack = "matter", f"mention{'s' if len(rest) == 1 else ''} none of them"
        if len(words) == 1:
            matter, lack = "matters", f"{'does' if len(rest) == 1 else 'do'} not mention it"
        yield _prefer("prefer_words", having, f"if {_words(c, words)} {matter}: {_ids(rest)} {lack}", rest, TEXTS)


def prefer_preference(c: Context, group: Group) -> Iterator[Claim]:
    """Preferences that the own words of some servers speak for."""
    names = {name: [bool(shown_cues(c, item, name)) for item in group] for name in c.specification.preferences}
    for found, having, rest in divisions(names, group):
        own = "its own words speak" if len(having) == 1 else "their own words speak"
        reason = f"for {listing(found)}: {own} for it, those of {_ids(rest)} do not"
        yield _prefer("prefer_preference", having, reason, rest, TEXTS)


def prefer_stars(c: Context, group: Group) -> Iterator[Claim]:
    """The widest gap between followings, if it is several times wide."""
    ordered = sorted(group, key=lambda item: -item.stars)
    # A server without stars counts as one with one star.
    wide = [more.stars / max(1, less.stars) for more, less in pairwise(ordered)]
    if wide and max(wide) >= STARS_RATIO:
        cut = wide.index(max(wide)) + 1
        having, rest = ordered[:cut], ordered[cut:]
        more = f"{'at least ' if len(having) > 1 else ''}{having[-1].stars} stars"
        less = f"{'at most ' if len(rest) > 1 else ''}{rest[0].stars}"
        reason = f"if a larger following matters: {more} against {less} ({_ids(rest)})"
        yield _prefer("prefer_stars", having, reason, rest, ("stars",))


def prefer_licence(c: Context, group: Group) -> Iterator[Claim]:
    """A stated licence."""
    for _, having, rest in divisions({"": [bool(item.fields["licence"]) for item in group]}, group):
        reason = f"if you need a stated licence: the catalogue states none for {_ids(rest)}"
        yield _prefer("prefer_licence", having, reason, rest, ("licence",))


def prefer_language(c: Context, group: Group) -> Iterator[Claim]:
    """Different main languages."""
    main: dict[str, list[Evidence]] = {}
    for item in group:
        main.setdefault(next(iter(item.listed("languages")), ""), []).append(item)
    parts = [f"{name} for {_ids(servers)}" for name, servers in main.items() if name]
    if len(parts) > 1:
        parts += [f"none stated for {_ids(main[''])}"] if "" in main else []
        text = f"Main languages: {'; '.join(parts)}. Prefer what you can maintain."
        yield Claim("comparison", "prefer_language", text, tuple(c.evidence), ("languages",))


def prefer_official(c: Context, group: Group) -> Iterator[Claim]:
    """The catalogue's mark."""
    for _, having, rest in divisions({"": [item.fields["official"] == "official" for item in group]}, group):
        reason = f"if it must be official: {_ids(rest)} {'is' if len(rest) == 1 else 'are'} not marked so"
        yield _prefer("prefer_official", having, reason, rest, ("official",))


def weight(c: Context, words: Iterable[str]) -> float:
    """Sum over words of the request of 1 / (1 + servers of the catalogue that mention it): rare words weigh most."""
    return sum(1 / (1 + c.mentioned[word]) for word in words)


def composition(c: Context) -> list[Claim]:
    """The two servers that together mention most of the request, if each has a part of its own and no single server
    mentions as many words. Rare words weigh more; of equal pairs the first stands higher in the answer."""
    covers = {server: list(shared(c, item)) for server, item in c.evidence.items()}
    single = max(map(len, covers.values()), default=0)

    def own(server: int, other: int) -> bool:
        """Whether a server has a rare word, or two, that the other lacks; "data" alone is no reason to run two."""
        alone = [word for word in covers[server] if word not in covers[other]]
        return len(alone) > 1 or any(c.mentioned[word] <= c.rare for word in alone)

    def together(pair: tuple[int, int]) -> set[str]:
        return {*covers[pair[0]], *covers[pair[1]]}

    pairs = [
        (one, two)
        for one, two in permutations(covers, 2)
        if len(covers[one]) >= len(covers[two]) and own(one, two) and own(two, one)
    ]
    pairs = [pair for pair in pairs if len(together(pair)) > single]
    if not pairs:
        return []
    best = max(pairs, key=lambda pair: weight(c, together(pair)))
    first, second = (c.evidence[server] for server in best)
    more = [word for word in covers[best[1]] if word not in covers[best[0]]]
    text = (
        f"{first.label} covers {_words(c, covers[best[0]])}; {second.label} adds {_words(c, more)}. Together they "
        f"mention {len(together(best))} of the {len(c.asked)} words of your request; no single server here mentions "
        f"more than {single}."
    )
    return [Claim("composition", "compose", text, best, TEXTS)]


def compare(context: Context) -> list[Claim]:
    """What tells the servers of the context apart, and when to prefer which."""
    rules = (prefer_words, prefer_preference, prefer_stars, prefer_licence, prefer_language, prefer_official)
    group = list(context.evidence.values())
    return [claim for rule in rules for claim in rule(context, group)]
