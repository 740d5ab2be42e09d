"""Evidence of one server, and claims about it: sentences that a named rule derives from named fields (section 6.3).

A rule is a pure function of the context and the evidence. It returns a sentence and the fields that the sentence rests
on, or None where the evidence does not support it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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

Sentence = tuple[str, tuple[str, ...]] | None

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


# Why


def why_words(c: Context, e: Evidence) -> Sentence:
    """Words of the request that the server's own texts hold."""
    found = shared(c, e)
    if not found:
        return None
    fields = tuple(dict.fromkeys(name for names in found.values() for name in names))
    words = listing([f'"{c.asked[word]}"' for word in list(found)[:MOST_WORDS]])
    verb = "mentions" if len(fields) == 1 and fields != ("tools",) else "mention"
    return f"Its {listing(list(fields))} {verb} {words} of your request.", (*fields, REQUEST)


def why_language(c: Context, e: Evidence) -> Sentence:
    """An asked language."""
    found = _same(c.specification.languages, e.language_list)
    return (f"It is written in {listing(found)}, as you asked.", ("languages", REQUEST)) if found else None


def why_platform(c: Context, e: Evidence) -> Sentence:
    """An asked system."""
    found = _same(c.specification.platforms, _split(e.fields["platforms"]))
    return (f"It names {listing(found)} as its system, as you asked.", ("platforms", REQUEST)) if found else None


def why_licence(c: Context, e: Evidence) -> Sentence:
    """An asked licence."""
    wanted = bool(c.specification.licences) and e.fields["licence"] in c.specification.licences
    return (f"Its licence is {e.fields['licence']}, as you asked.", ("licence", REQUEST)) if wanted else None


def why_official(c: Context, e: Evidence) -> Sentence:
    """The catalogue's mark."""
    return ("The catalogue marks it as official.", ("official",)) if e.fields["official"] == "official" else None


def why_preference(c: Context, e: Evidence) -> Sentence:
    """Cues of the stated preferences."""
    found = {name: shown_cues(c, e, name) for name in c.specification.preferences}
    parts = [f"{name}: {listing([chr(34) + cue + chr(34) for cue in cues])}" for name, cues in found.items() if cues]
    fields = tuple(dict.fromkeys(field for cues in found.values() for field in cues.values()))
    return (f"Its own words speak for what you prefer ({'; '.join(parts)}).", (*fields, REQUEST)) if parts else None


def why_followed(c: Context, e: Evidence) -> Sentence:
    """More stars than half of the catalogue, and ten at least."""
    if e.stars <= c.median_stars or e.stars < 10:
        return None
    return f"It has {e.stars} stars; half of the catalogue has at most {c.median_stars:g}.", ("stars",)


def why_rank(c: Context, e: Evidence) -> Sentence:
    """Place and score before filters."""
    text = f"By score it stands at place {e.scores['rank']:.0f} of the whole catalogue ({e.scores['total']:.3f})."
    return text, ("rank", "total")


# Trade-offs


def less_words(c: Context, e: Evidence) -> Sentence:
    """Words of the request that are missing."""
    missing = [word for word in c.asked if word not in shared(c, e)]
    if not missing:
        return None
    if len(missing) == len(c.asked):
        return "None of its descriptive fields shares a word with your request; it was found by similarity alone.", (
            *e.searchable,
            REQUEST,
        )
    words = listing([f'"{c.asked[word]}"' for word in missing[:MOST_WORDS]], "or")
    return f"Nothing in its name, description or tool list mentions {words}.", (*e.searchable, REQUEST)


def less_licence(c: Context, e: Evidence) -> Sentence:
    """No, an unusual, or a copyleft licence."""
    if not e.fields["licence"]:
        return "The catalogue states no licence: ask before you use or change it.", ("licence",)
    if e.fields["licence"] == "other":
        return "Its licence is not one of the usual ones: read it.", ("licence",)
    if e.fields["licence"] in c.words.copyleft:
        return f"{e.fields['licence']} is a copyleft licence: it can bind what you build on it.", ("licence",)
    return None


def less_platform(c: Context, e: Evidence) -> Sentence:
    """A system was asked for and none is stated."""
    if not c.specification.platforms or e.fields["platforms"]:
        return None
    return "The catalogue does not say on which systems it runs.", ("platforms", REQUEST)


def less_preference(c: Context, e: Evidence) -> Sentence:
    """Stated preferences that nothing speaks for."""
    silent = [name for name in c.specification.preferences if not shown_cues(c, e, name)]
    fields = (*e.searchable, REQUEST)
    return (f"Its descriptive fields say nothing about {listing(silent, 'or')}.", fields) if silent else None


def less_followed(c: Context, e: Evidence) -> Sentence:
    """Fewer stars than half of the catalogue."""
    if e.stars >= c.median_stars:
        return None
    stars = f"{e.stars} star{'' if e.stars == 1 else 's'}"
    return f"It has {stars}, less than half of the catalogue (median {c.median_stars:g}).", ("stars",)


def less_active(c: Context, e: Evidence) -> Sentence:
    """No activity."""
    return ("Its activity is 0 in the catalogue.", ("activity",)) if e.fields["activity"] == "0" else None


# Adoption


def adopt_code(c: Context, e: Evidence) -> Sentence:
    """Where the code is."""
    link = e.fields["repository_link"]
    if not link:
        return "The catalogue holds no usable address of its repository.", ("repository_link",)
    address = clone_address(link, c.setup.hosts)
    text = f"Get the code: git clone {address}" if address else f"Start from its address: {link}"
    return text, ("repository_link",)


def adopt_language(c: Context, e: Evidence) -> Sentence:
    """What servers in its main language usually need."""
    hint = next((c.setup.languages[name] for name in e.language_list if name in c.setup.languages), None)
    return (hint, ("languages", SETUP_FILE)) if hint else None


def adopt_docker(c: Context, e: Evidence) -> Sentence:
    """The repository holds a Dockerfile."""
    return (c.setup.docker, ("languages", SETUP_FILE)) if "Dockerfile" in e.language_list else None


def adopt_key(c: Context, e: Evidence) -> Sentence:
    """Its description speaks of an API key."""
    found = phrase("API key").search(e.fields["description"])
    if not found:
        return None
    before = " ".join(e.fields["description"][: found.start()].split()[-WORDS_BEFORE:])
    return (
        f"Its description speaks of an API key: {quoted(f'… {before} {found[0]} …')} Check what the README asks for.",
        ("description",),
    )


def adopt_client(c: Context, e: Evidence) -> Sentence:
    """What holds for every MCP server."""
    return c.setup.general, (SETUP_FILE,)


Rule = Callable[[Context, Evidence], Sentence]
SINGLE: dict[str, tuple[Rule, ...]] = {
    "why": (why_words, why_language, why_platform, why_licence, why_official, why_preference, why_followed, why_rank),
    "tradeoff": (less_words, less_licence, less_platform, less_preference, less_followed, less_active),
    "adoption": (adopt_code, adopt_language, adopt_docker, adopt_key, adopt_client),
}


def sections(context: Context, server: int) -> dict[str, list[Claim]]:
    """Section (why, tradeoff, adoption) -> the claims that the evidence of a server supports."""
    evidence = context.evidence[server]
    made = {name: [(rule.__name__, rule(context, evidence)) for rule in rules] for name, rules in SINGLE.items()}
    return {
        name: [Claim(name, rule, found[0], (server,), found[1]) for rule, found in claims if found]
        for name, claims in made.items()
    }
