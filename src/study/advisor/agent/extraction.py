"""From words to a specification, by rules with a vocabulary from the data."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from study.advisor.agent.settings import Words
from study.advisor.agent.specification import STARS_LIMIT, Specification, Vocabulary
from study.advisor.agent.text import STOP_WORDS, content_words, phrase, plain

# What leaves a constraint open: "written in any language", "on any platform", "regardless of the licence".
NAMED = {
    "language": "(?:programming )?languages?",
    "platform": "(?:platform|(?:operating )?system)s?",
    "licence": "licen[cs]es?",
}
OPEN = {
    kind: re.compile(
        rf"(?P<apart>(?:\A|[,;.(])\s*)?(?P<said>(?:\b(?:written|coded|implemented)\s+)?"
        rf"(?:\b(?:in|with|using|on|under)\s+any\s+{name}|(?:\bregardless\s+of|\bno\s+matter)\s+(?:the|what|which)\s+"
        rf"{name}|\bany\s+{name}(?=\s+(?:is|are|would|will|works?|goes|but)\b)|"
        rf"(?(apart)\bany\s+{name}(?=\s*(?:[,;.!)]|\Z))|(?!)))"
        r"(?:\s+(?:is|would be|are)\s+(?:fine|ok|okay|good)|\s+will do|\s+works?|\s+goes)?\b)",
        re.I,
    )
    for kind, name in NAMED.items()
}
# How far before a name a negation may stand: "not in Python", "no Java or Kotlin".
REACH = 24
# Between names that share a cue or a negation: "Go or Rust", "neither Java nor C#".
JOINED = re.compile(r"\s*(?:[,/&]|(?:,\s*)?(?:and|or|nor))\s*", re.I)
# Stands for what was blanked; no message holds it, since control characters are removed.
BLANK = "\x00"
# What separates the words of a theme: "Audio/Podcasting" and "E-commerce" are one word each.
BETWEEN = re.compile(r"[^\w&/+-]+")
# A licence's name is told from an ordinary word (MIT, ISC, zlib) by its capitals, its version or the word after it.
LICENCE = r"(?:[\s-]*(?i:licen[sc]e[ds]?))"
VERSIONED = re.compile(r"(?P<base>[a-z0-9]+?)-(?P<version>\d+(?:\.\d+)*)(?P<rest>(?:-[a-z]+)*)")
NUMBER = r"(\d[\d,]{0,9}(?:\.\d{1,3})?)\s?([km])?"
STARS = r"\s*(?:github\s+)?stars?\b"
LEAST = r"(?:at least|no (?:fewer|less) than|not (?:fewer|less) than|more than|over|above|min(?:imum)?(?: of)?|>=?|≥)"
MOST = (
    r"(?:(?<!no )(?<!not )(?:fewer|less|lower) than|not? more than|fewer|under|below|at most|not over(?: than)?|up to|"
    r"max(?:imum)?(?: of)?|<=?|≤)"
)
# "at least 100 stars", "100+ stars", "100 stars or more", "stars > 100".
LEAST_STARS = re.compile(
    rf"(?<!\w){LEAST}\s*{NUMBER}\s*\+?{STARS}|\b{NUMBER}\s*(?:\+|or more|and more|plus){STARS}|"
    rf"\b{NUMBER}{STARS}\s+(?:or|and)\s+(?:more|up|above)\b|"
    rf"\bstars?\s*(?::|is|are|must be|should be)?\s*{LEAST}\s*{NUMBER}\b|\bstars?\s*:?\s*{NUMBER}\s*\+",
    re.I,
)
# Largest numbers of stars; the catalogue can be asked for least numbers alone.
MOST_STARS = re.compile(
    rf"(?<!\w){MOST}\s*{NUMBER}{STARS}|\b{NUMBER}{STARS}\s+or\s+(?:fewer|less)\b|"
    rf"\bstars?\s*(?::|is|are|must be|should be)?\s*{MOST}\s*{NUMBER}\b",
    re.I,
)
TIMES = {"": 1, "k": 1_000, "m": 1_000_000}

OFFICIAL = re.compile(r"\bofficial(?:ly)?\b(?:\s+(?:mcp\s+)?servers?)?", re.I)
# A denial in the same clause takes the mark back: "it should not be official", "official or not".
SAME_CLAUSE = r"(?:(?!\b(?:and|but|only|just)\b)[^,.;:!?()]){0,40}?"
NOT_OFFICIAL = re.compile(
    r"\b(?:un|non-?)official(?:\s+(?:mcp\s+)?servers?)?|"
    r"(?:\b(?:i|we|it|they|that|this|you)\s+)?(?:\b(?:should|must|do|does|need|needs|may|can|will|would|is|are)\s+)?"
    r"(?:\b(?:not|never|no|without|neither|whether|dont|doesnt|neednt|isnt)|\b[a-z]+n['’]t)\b"
    rf"(?:\s+(?:only|just|necessarily))?\s{SAME_CLAUSE}\bofficial\b(?:\s+(?:mcp\s+)?servers?)?|"
    r"\bofficial\s+(?:or\s+(?:not|unofficial)|(?:is|are)?\s*not\b|isn['’]t\b|does(?:n['’]t| not) matter)"
    r"(?:\s+(?:needed|required|necessary))?",
    re.I,
)
# What ends a clause after a name: "in go, with tests", "in c/c++".
MARKS = r"\s*(?:\Z|[,;:!?)/&]|\.(?!\w))"
# Before and after what stands by itself.
APART = re.compile(r"[,;:.(]\s*\Z")
ENDED = re.compile(MARKS)


@dataclass(frozen=True)
class Extraction:
    """What a message says."""

    task: str  # the message without the phrases that state constraints and preferences: what is searched for
    specification: Specification  # the constraints found; its intent is the whole message in one line
    rest: dict[str, str]  # content words of the task, as `study.advisor.agent.text.content_words`
    ignored: tuple[str, ...] = ()  # phrases that state what no filter can do ("fewer than 10 stars")
    released: tuple[str, ...] = ()  # constraints that need not hold ("it should not be official")
    problem: str = ""  # why rules read it although there is a language model; '' where it did, or there is none
    dropped: int = 0  # values of the language model's reading that the vocabulary does not hold


class Spot(NamedTuple):
    """A name in a message: from `start` to `end`; `clear` if it cannot be an ordinary word there."""

    start: int
    end: int
    name: str
    clear: bool


class WordContext:
    """Which words on either side make a name of what is also an ordinary word ("go", "c", "rust", "windows")."""

    def __init__(self, words: Words) -> None:
        goes_on = {*words.connectors, *words.after, *words.reply} - set(words.no_end)
        led = {*words.before, *words.connectors, *words.filler, *words.reply, *words.clear_before}
        self.before = re.compile(rf"(?:\A|\W)(?:{_any(words.before)})\s+(?:only\s+)?\Z", re.I)
        self.after = re.compile(rf"\s*(?:{_any(words.after)})\b", re.I)
        self.cue = re.compile(rf"(?:\A|\W)(?:{_any(words.clear_before)})\s+(?:only\s+)?\Z", re.I)
        self.follows = re.compile(rf"{MARKS}|\s+(?:{_any(goes_on)})\b", re.I)
        self.leads = re.compile(rf"(?:\A|[,;:(.!?/&]|(?:\A|\W)(?:{_any(led)}))\s*\Z", re.I)
        self.ends = re.compile(rf"{MARKS}|\s+(?:{_any([*words.after, *words.reply, *words.ends])})\b", re.I)

    def clear(self, said: str, name: str, head: str, tail: str) -> bool:
        """Whether the words around `said` make it the name: a cue right before it, or, in the name's own spelling, a
        word right before or after it, or marks on both sides ("I changed my mind, Go"; a letter may be an initial)."""
        if self.cue.search(head) and self.follows.match(tail):
            return True
        apart = len(name) > 1 and APART.search(head) and ENDED.match(tail)
        return said == name and bool(self.before.search(head) or self.after.match(tail) or apart)

    def alone(self, head: str, tail: str, *, joined: bool = False) -> bool:
        """Whether a name stands by itself: "go", "go please", "I'd like Go"; not "go to the page", "c section".
        `joined`: to a name before it, so that `head` says nothing."""
        return bool((joined or self.leads.search(head)) and self.ends.match(tail))


class Extractor:
    """Finds constraints and preferences in a message. Linear in its length; the message itself is never changed.
    `vocabulary`: names that the data holds. `words`: aliases, cues and preferences."""

    def __init__(self, vocabulary: Vocabulary, words: Words) -> None:
        self.vocabulary, self.words = vocabulary, words
        self.filler = frozenset(words.filler)
        joined = "in|use|using|with|any|a|an|the|or|and|written"
        self.negation = re.compile(rf"(?:{_any(words.negations)})\s+(?:(?:{joined})\s+)*\Z", re.I)
        self.context = WordContext(words)
        self.hanging = re.compile(
            rf"(?<![\w-])(?:(?:{_any(words.connectors)})\s+)+(?={BLANK})|"
            rf"(?<={BLANK})(?:\s+(?:and|or|nor|but|please))+(?!\w)",
            re.I,
        )
        self.empty = STOP_WORDS | self.filler | {word.casefold() for word in words.connectors}
        self.names = {kind: self._patterns(kind) for kind in ("language", "platform")}
        known = licence_patterns(vocabulary.names["licence"], words.licence_groups)
        self.licences = [(re.compile(pattern), names, group) for pattern, names, group in known]

    def _patterns(self, kind: str) -> list[tuple[re.Pattern[str], str, bool]]:
        """(pattern, name, ambiguous), longer spellings first, so that 'C++' is found before 'C'."""
        spellings = dict(self.vocabulary.names[kind])
        for alias, name in self.words.aliases[kind].items():
            if found := self.vocabulary.canonical(kind, name):
                spellings.setdefault(alias, found)
        unclear = {name.casefold() for name in self.words.ambiguous}
        return [(phrase(spelling), spellings[spelling], spelling in unclear) for spelling in _longest_first(spellings)]

    def extract(self, message: str, asked: str = "") -> Extraction:
        """The specification that a message states. `asked`: kind of constraint that was just asked for; "go" is then a
        language, which it is not elsewhere."""
        text = plain(message)
        found: dict[str, Any] = {}
        found["languages"], found["unwanted_languages"], left = self._find("language", text, text, asked)
        found["platforms"], _, left = self._find("platform", text, left, asked)
        found["licences"], found["unwanted_licences"], left = self._licences(text, left)
        stated = {"language": found["languages"], "platform": found["platforms"], "licence": found["licences"]}
        found["open"], left = _opened(left, stated)
        ignored = tuple(match[0] for match in MOST_STARS.finditer(left))
        left = _without(MOST_STARS, left)
        if match := LEAST_STARS.search(left):
            found["stars"] = min(STARS_LIMIT, _stars(match))
            left = _blank(left, *match.span())
        released = ("official",) if NOT_OFFICIAL.search(left) else ()
        left = _without(NOT_OFFICIAL, left)
        if not released and (match := OFFICIAL.search(left)):
            found["official"] = True
            left = _blank(left, *match.span())
        found["domain"] = self._domain(left)
        found["preferences"], left = self._preferences(left)
        task = self._searched(text, left)
        return Extraction(
            task, Specification(intent=text, **found), content_words(task, self.filler), ignored, released
        )

    def _searched(self, text: str, left: str) -> str:
        """`left` without the words and marks that only joined the blanked phrases to the rest."""
        if left == text:
            return text
        marked = "".join(BLANK if gone != letter else gone for letter, gone in zip(text, left, strict=True))
        marked = re.sub(rf"{BLANK}(?:\s*{BLANK})*", BLANK, marked)
        before = ""
        while before != marked:
            before = marked
            marked = self.hanging.sub("", marked)
            marked = re.sub(rf"{BLANK}[\s,;]*{BLANK}", BLANK, marked)
        line = " ".join(re.sub(rf"\([\s,;{BLANK}]*\)", " ", marked).replace(BLANK, " ").split())
        return re.sub(r"\s*([,;.])(?:\s*[,;.])*(?=\s|\Z)", r"\1", line).strip(" ,;:")

    def _refused(self, text: str, start: int) -> bool:
        """Whether a negation stands before a place of the text."""
        return self.negation.search(text[max(0, start - REACH) : start]) is not None

    def _spots(self, kind: str, text: str, left: str, asked: str) -> list[Spot]:
        """Where names of a kind may stand, in order; `clear` where they surely do."""
        spots = []
        for pattern, name, unclear in self.names[kind]:
            for match in pattern.finditer(left):
                head, tail = text[max(0, match.start() - REACH) : match.start()], text[match.end() :]
                clear = not unclear or self.context.clear(match[0], name, head, tail)
                clear = clear or (asked == kind and self.context.alone(head, tail))
                spots.append(Spot(*match.span(), name, clear))
                left = _blank(left, *match.span())
        return sorted(spots)

    def _find(self, kind: str, text: str, left: str, asked: str) -> tuple[tuple[str, ...], tuple[str, ...], str]:
        """Names wanted and unwanted in order of appearance, and `left` with them blanked out."""
        spots = self._spots(kind, text, left, asked)
        around = text
        for spot in reversed(spots):
            around = around[: spot.start] + around[spot.end :]
        names_alone = not any(word not in self.empty for word in BETWEEN.split(around.casefold()) if len(word) > 1)
        chains: list[list[Spot]] = []
        for spot in spots:
            if chains and JOINED.fullmatch(text[chains[-1][-1].end : spot.start]):
                chains[-1].append(spot)
            else:
                chains.append([spot])
        wanted: dict[str, None] = {}
        unwanted: dict[str, None] = {}
        for chain in chains:
            # "no Java or Kotlin": a name joined to a refused one is refused too.
            refused = False
            # A name beside a clear one shares its cue; so does a message of nothing but names.
            cued = names_alone or any(spot.clear for spot in chain)
            for spot in chain:
                head, tail = text[max(0, spot.start - REACH) : spot.start], text[spot.end :]
                if spot.clear or (cued and self.context.alone(head, tail, joined=chain[0] is not spot)):
                    refused = refused or self._refused(text, spot.start)
                    (unwanted if refused else wanted)[spot.name] = None
                    left = _blank(left, spot.start, spot.end)
        return tuple(wanted), tuple(name for name in unwanted if name not in wanted), left

    def _licences(self, text: str, left: str) -> tuple[tuple[str, ...], tuple[str, ...], str]:
        """Licences wanted and unwanted, and `left` with their names blanked out."""
        wanted: dict[str, None] = {}
        unwanted: dict[str, None] = {}
        for pattern, names, group in self.licences:
            for match in pattern.finditer(left):
                no = self._refused(text, match.start()) or match[0].lower().startswith("non-")
                # Without the purpose that a group is named after, every licence will do.
                if not (no and group in self.words.purposes):
                    (unwanted if no else wanted).update(dict.fromkeys(names))
                left = _blank(left, *match.span())
        return tuple(wanted), tuple(name for name in unwanted if name not in wanted), left

    def _preferences(self, left: str) -> tuple[tuple[str, ...], str]:
        """Preferences, and `left` without the words that say only this."""
        found = []
        for name, cues in self.words.preferences.items():
            for cue in sorted(cues["asked"], key=len, reverse=True):
                for match in phrase(cue).finditer(left):
                    if self._refused(left, match.start()):
                        continue
                    found.append(name)
                    # "private chat messages": the word belongs to the task too.
                    noun = re.match(r"\s+([^\W\d_]+)", left[match.end() :])
                    if " " in cue or noun is None or noun[1].casefold() in self.empty:
                        left = _blank(left, *match.span())
        return tuple(dict.fromkeys(found)), left

    def _domain(self, text: str) -> str:
        """The longest theme that the message names and does not refuse, '' for none. Names of four letters and more."""
        folded = f" {' '.join(BETWEEN.split(text.casefold()))} "
        meant = (
            name
            for key, name in self.vocabulary.names["domain"].items()
            if len(key) > 3 and key not in self.empty and f" {key} " in folded
            if not self._refused(folded, folded.index(f" {key} ") + 1)
        )
        return max(meant, key=lambda name: (len(name), name), default="")


def _opened(left: str, stated: Mapping[str, tuple[str, ...]]) -> tuple[tuple[str, ...], str]:
    """Constraints that a message leaves open, and `left` without the phrases that say only this."""
    found = []
    for kind in (kind for kind in OPEN if not stated[kind]):
        for match in OPEN[kind].finditer(left):
            found.append(kind)
            # "audio in any language" may mean what is spoken, so that the words stay in the search.
            if match["apart"] is not None or re.match(
                r"written|coded|implemented|regardless|no\b", match["said"], re.I
            ):
                left = _blank(left, *match.span())
    return tuple(dict.fromkeys(found)), left


def licence_patterns(
    known: Mapping[str, str], groups: Mapping[str, list[str]]
) -> Iterator[tuple[str, tuple[str, ...], str]]:
    """(pattern, the names that it stands for, the group), the longest spellings first; '' for no group. `known`: the
    vocabulary of licences, folded spelling -> name."""
    for group, keys in groups.items():
        words = r"[\s-]+".join(map(re.escape, group.split()))
        yield rf"(?i:\b(?:non-)?{words}){LICENCE}?\b", tuple(known[key] for key in keys if key in known), group
    for key in _longest_first(known):
        if pattern := _versioned(key):
            yield pattern, (known[key],), ""
    families: dict[str, list[str]] = {}
    for key, name in known.items():
        base = re.split(r"-\d", key)[0]
        # "GPL" means every version, "MIT" is a licence of its own.
        for spelling in {key, base if base not in known else key}:
            families.setdefault(spelling, []).append(name)
    for key in _longest_first(families):
        any_case, capitals = re.escape(key), re.escape(key.upper())
        pattern = rf"(?<![\w-])(?:{capitals}{LICENCE}?|(?i:{any_case}){LICENCE})(?![\w+])"
        yield pattern, tuple(families[key]), ""


def _versioned(key: str) -> str | None:
    """A pattern for the usual spellings of a licence with a version, None for one without. "apache-2.0" is also "Apache
    2.0", "Apache License 2.0" and "apache v2"; "gpl-3.0" is also "GPLv3"."""
    match = VERSIONED.fullmatch(key)
    if match is None:
        return None
    base, version = re.escape(match["base"]), match["version"]
    rest = "".join(rf"(?:[\s-]*{part})?" for part in match["rest"].split("-") if part)
    short = version.removesuffix(".0")
    between, mark = rf"{LICENCE}?[\s,-]*", r"(?i:v(?:ersion)?\.?\s*)"
    forms = [rf"(?i:{base}){between}{mark}?{re.escape(version)}(?i:{rest}){LICENCE}?"]
    if short != version:
        # "apache 2" alone may be a web server.
        forms += [
            rf"(?i:{base}){between}{mark}{short}{LICENCE}?",
            rf"(?i:{base}){between}{short}{LICENCE}",
            rf"{base.upper()}{between}{short}",
        ]
    return rf"(?<![\w-])(?:{'|'.join(forms)})(?![\w+])(?!\.\d)"


def _stars(match: re.Match[str]) -> int:
    """The number of stars in a match of `LEAST_STARS`: "2.5k" is 2500."""
    number, times = next(pair for pair in zip(match.groups()[::2], match.groups()[1::2], strict=True) if pair[0])
    return int(float(number.replace(",", "")) * TIMES[(times or "").lower()])


def _longest_first(texts: Iterable[str]) -> list[str]:
    return sorted(texts, key=lambda text: (-len(text), text))


def _any(words: Iterable[str]) -> str:
    return "|".join(map(re.escape, _longest_first(set(words))))


def _blank(text: str, start: int, end: int) -> str:
    """`text` with a part overwritten by spaces, so that positions stay."""
    return text[:start] + " " * (end - start) + text[end:]


def _without(pattern: re.Pattern[str], text: str) -> str:
    """`text` with every match overwritten by spaces."""
    return pattern.sub(lambda found: " " * len(found[0]), text)
