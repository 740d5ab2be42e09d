"""Evidence of one server, and claims about it: sentences that a named rule derives from named fields (section 6.3).

Rules are pure functions of context and evidence. Each gives a sentence and the fields that it rests on if the evidence
supports it, else nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from study.agent.settings import Setup, Words
from study.agent.specification import Specification
from study.agent.text import any_phrase, clone_address, content_words, phrase, plain, quoted, safe_link

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
# Long texts are cut: what is cut is no evidence.
LONGEST = 4_000


@dataclass(frozen=True)
class Evidence:
    """What the catalogue says of one server, and how it was ranked.

    Attributes:
        server_id: its id in the data set.
        fields: field -> text as it may be shown; '' where the catalogue says nothing. A link that is no ordinary
            http(s) address is ''.
        scores: `total`, `rank` and the parts of the score.
    """

    server_id: int
    fields: Mapping[str, str]
    scores: Mapping[str, float]

    @property
    def label(self) -> str:
        """Name and id, the name in quotation marks that it cannot close."""
        return f"{quoted(self.fields['name'], 80)} (id {self.server_id})"

    @property
    def language_list(self) -> list[str]:
        """Languages in listed order; the first is the main one."""
        return [part.strip() for part in self.fields["languages"].split(",") if part.strip()]

    @property
    def stars(self) -> int:
        """Stars of the repository at the time of the release."""
        return int(self.fields["stars"])

    @property
    def searchable(self) -> dict[str, str]:
        """The descriptive fields that are not empty."""
        return {name: self.fields[name] for name in DESCRIPTIVE if self.fields[name]}


def shown_fields(server: Mapping[Any, Any]) -> dict[str, str]:
    """The fields of one row of the server table, fit to be shown."""
    fields = {name: plain(str(server[column]), LONGEST) for name, column in COLUMNS.items()}
    for name in LINKS:
        fields[name] = safe_link(str(server[COLUMNS[name]])) or ""
    return fields


# Claims

Sentence = tuple[str, str, tuple[str, ...]]

DESCRIPTIVE = ("name", "description", "tools")
# Beyond so many words a sentence is no longer read.
MOST_WORDS = 6
# So many words before "API key" tell "requires" from "without".
WORDS_BEFORE = 4
REQUEST, SETUP_FILE = "request", "conf/agent/setup.yaml"
# Stands for a rule where a language model made the sentence.
MODEL_RULE = "llm"


@dataclass(frozen=True)
class Claim:
    """One statement of an answer.

    Attributes:
        section: why, tradeoff, adoption, comparison or composition.
        rule: name of the rule that made it; ``llm`` for a sentence of a language model.
        text: the sentence.
        servers: ids of the servers that it speaks about.
        fields: fields of their evidence that it rests on; also ``request`` and ``conf/agent/setup.yaml``.
    """

    section: str
    rule: str
    text: str
    servers: tuple[int, ...]
    fields: tuple[str, ...]


@dataclass(frozen=True)
class Context:
    """What rules may look at besides the evidence.

    Attributes:
        specification: what was asked.
        asked: content words of the request, singular form -> as written.
        words, setup: the files of ``conf/agent``.
        median_stars: of the catalogue.
        mentioned: asked word, singular form -> how many servers of the catalogue mention it.
        rare: at most so many servers mention a rare word.
        evidence: the recommended servers by id.
    """

    specification: Specification
    asked: Mapping[str, str]
    words: Words
    setup: Setup
    median_stars: float
    mentioned: Mapping[str, int]
    rare: float
    evidence: Mapping[int, Evidence] = field(default_factory=dict)


def listing(values: list[str], last: str = "and") -> str:
    """'a, b and c'."""
    return values[0] if len(values) == 1 else f"{', '.join(values[:-1])} {last} {values[-1]}"


def shared(context: Context, evidence: Evidence) -> dict[str, list[str]]:
    """Content words of the request that a server's descriptive fields hold: singular form -> fields."""
    found: dict[str, list[str]] = {}
    for name, text in evidence.searchable.items():
        for word in content_words(text):
            if word in context.asked:
                found.setdefault(word, []).append(name)
    return {word: found[word] for word in context.asked if word in found}


def shown_cues(context: Context, evidence: Evidence, preference: str) -> dict[str, str]:
    """Cues of a preference that a server's descriptive fields hold: cue -> field."""
    pattern = any_phrase(context.words.preferences[preference]["shown"])
    return {match[0].lower(): name for name, text in evidence.searchable.items() for match in pattern.finditer(text)}


def _same(wanted: tuple[str, ...], has: list[str]) -> list[str]:
    folded = {value.casefold() for value in wanted}
    return [value for value in has if value.casefold() in folded]


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


# Rules of one server: (rule, sentence, fields)


def why(c: Context, e: Evidence) -> Iterator[Sentence]:
    """What speaks for a server."""
    if found := shared(c, e):
        fields = tuple(dict.fromkeys(name for names in found.values() for name in names))
        words = listing([f'"{c.asked[word]}"' for word in list(found)[:MOST_WORDS]])
        verb = "mentions" if len(fields) == 1 and fields != ("tools",) else "mention"
        yield "why_words", f"Its {listing(list(fields))} {verb} {words} of your request.", (*fields, REQUEST)
    if same := _same(c.specification.languages, e.language_list):
        yield "why_language", f"It is written in {listing(same)}, as you asked.", ("languages", REQUEST)
    if same := _same(c.specification.platforms, _split(e.fields["platforms"])):
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
        text = f"It has {e.stars} stars; half of the catalogue has at most {c.median_stars:g}."
        yield "why_followed", text, ("stars",)
    place, total = e.scores["rank"], e.scores["total"]
    text = f"By score it stands at place {place:.0f} of the whole catalogue ({total:.3f})."
    yield "why_rank", text, ("rank", "total")


def tradeoffs(c: Context, e: Evidence) -> Iterator[Sentence]:
    """What speaks against a server."""
    texts = (*e.searchable, REQUEST)
    found = shared(c, e)
    missing = [word for word in c.asked if word not in found]
    if missing and not found:
        text = "None of its descriptive fields shares a word with your request; it was found by similarity alone."
        yield "less_words", text, texts
    elif missing:
        words = listing([f'"{c.asked[word]}"' for word in missing[:MOST_WORDS]], "or")
        yield "less_words", f"Nothing in its name, description or tool list mentions {words}.", texts
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
    address = clone_address(link, c.setup.hosts) if link else None
    code = f"Get the code: git clone {address}" if address else f"Start from its address: {link}"
    text = code if link else "The catalogue holds no usable address of its repository."
    yield "adopt_code", text, ("repository_link",)
    if hint := next((c.setup.languages[name] for name in e.language_list if name in c.setup.languages), None):
        yield "adopt_language", hint, ("languages", SETUP_FILE)
    if "Dockerfile" in e.language_list:
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
