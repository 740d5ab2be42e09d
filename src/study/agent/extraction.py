"""From words to a specification, by rules with a vocabulary from the data."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, NamedTuple

from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

from study.agent import lexicon
from study.agent.lexicon import LEAST_STARS, MOST_STARS, NOT_OFFICIAL, OFFICIAL, WordContext
from study.agent.settings import Words
from study.agent.specification import STARS_LIMIT, Specification, Vocabulary
from study.agent.text import content_words, phrase, plain

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


@dataclass(frozen=True)
class Extraction:
    """What a message says.

    Attributes:
        task: the message without the phrases that state constraints and preferences: what is searched for.
        specification: the constraints found; `intent` is the whole message in one line.
        rest: content words of the message outside constraints and preferences, as `study.agent.text.content_words`.
        ignored: phrases that state what no filter can do ("fewer than 10 stars").
        released: constraints that need not hold ("it should not be official").
        problem: why the rules read it although there is a language model; '' where it did, or there is none.
        dropped: values of the language model's reading that the vocabulary does not hold.
    """

    task: str
    specification: Specification
    rest: dict[str, str]
    ignored: tuple[str, ...] = ()
    released: tuple[str, ...] = ()
    problem: str = ""
    dropped: int = 0


class Spot(NamedTuple):
    """A name in a message: from `start` to `end`; `clear` if it cannot be an ordinary word there."""

    start: int
    end: int
    name: str
    clear: bool


class Extractor:
    """Finds constraints and preferences in a message. Linear in its length; the message itself is never changed.

    Args:
        vocabulary: names that the data holds.
        words: aliases, cues and preferences.
    """

    def __init__(self, vocabulary: Vocabulary, words: Words) -> None:
        self.vocabulary, self.words = vocabulary, words
        self.filler = frozenset(words.filler)
        joined = "in|use|using|with|any|a|an|the|or|and|written"
        self.negation = re.compile(rf"(?:{'|'.join(map(re.escape, words.negations))})\s+(?:(?:{joined})\s+)*\Z", re.I)
        self.before = re.compile(rf"(?:\A|\W)(?:{'|'.join(map(re.escape, words.before))})\s+(?:only\s+)?\Z", re.I)
        self.after = re.compile(rf"\s*(?:{'|'.join(map(re.escape, words.after))})\b", re.I)
        self.context = WordContext.of(words)
        joints = "|".join(map(re.escape, sorted(words.connectors, key=len, reverse=True)))
        self.hanging = re.compile(
            rf"(?<![\w-])(?:(?:{joints})\s+)+(?={BLANK})|(?<={BLANK})(?:\s+(?:and|or|nor|but|please))+(?!\w)", re.I
        )
        self.empty = ENGLISH_STOP_WORDS | self.filler | {word.casefold() for word in words.connectors}
        self.names = {kind: self._patterns(kind) for kind in ("language", "platform")}
        licences = lexicon.licence_patterns(vocabulary.names["licence"], words.licence_groups)
        self.licences = [(re.compile(pattern), names, group) for pattern, names, group in licences]

    def _patterns(self, kind: str) -> list[tuple[re.Pattern[str], str, bool]]:
        """(pattern, name, ambiguous), longer spellings first, so that 'C++' is found before 'C'."""
        spellings = dict(self.vocabulary.names[kind])
        for alias, name in self.words.aliases[kind].items():
            if found := self.vocabulary.canonical(kind, name):
                spellings.setdefault(alias, found)
        unclear = {name.casefold() for name in self.words.ambiguous}
        ordered = sorted(spellings.items(), key=lambda item: (-len(item[0]), item[0]))
        return [(phrase(spelling), name, spelling in unclear) for spelling, name in ordered]

    def extract(self, message: str, asked: str = "") -> Extraction:
        """The specification that a message states.

        Args:
            asked: kind of constraint that was just asked for; "go" is then a language, which it is not elsewhere.
        """
        text = plain(message)
        left = text
        found: dict[str, Any] = {}
        for kind, wanted, unwanted in (
            ("language", "languages", "unwanted_languages"),
            ("platform", "platforms", None),
        ):
            yes, no, left = self._find(kind, text, left, asked == kind)
            found[wanted] = tuple(yes)
            if unwanted:
                found[unwanted] = tuple(name for name in no if name not in yes)
        found["licences"], found["unwanted_licences"], left = lexicon.read_licences(
            left, self.licences, lambda start: self._refused(text, start), self.words.purposes
        )
        found["open"], left = _opened(
            text, left, {"language": found["languages"], "platform": found["platforms"], "licence": found["licences"]}
        )
        ignored = [match[0] for match in MOST_STARS.finditer(left)]
        left = MOST_STARS.sub(lambda found: " " * len(found[0]), left)
        if match := LEAST_STARS.search(left):
            found["stars"] = min(STARS_LIMIT, lexicon.stars_of(match))
            left = _blank(left, match)
        released = ("official",) if NOT_OFFICIAL.search(left) else ()
        left = NOT_OFFICIAL.sub(lambda found: " " * len(found[0]), left)
        if not released and (match := OFFICIAL.search(left)):
            found["official"] = True
            left = _blank(left, match)
        found["domain"] = self._domain(left)
        found["preferences"], left = self._preferences(left)
        task = self._searched(text, left)
        rest = content_words(task, self.filler)
        return Extraction(task, Specification(intent=text, **found), rest, tuple(ignored), released)

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

    def _spots(self, kind: str, text: str, left: str, asked: bool) -> list[Spot]:
        """Where names of a kind may stand, in order; `clear` where they surely do."""
        spots = []
        for pattern, name, unclear in self.names[kind]:
            for match in pattern.finditer(left):
                head, tail = text[max(0, match.start() - REACH) : match.start()], text[match.end() :]
                exact = match[0] == name and bool(
                    self.before.search(head) or self.after.match(tail) or self.context.apart(name, head, tail)
                )
                clear = (
                    not unclear
                    or exact
                    or self.context.strong(head, tail)
                    or (asked and self.context.alone(head, tail))
                )
                spots.append(Spot(match.start(), match.end(), name, clear))
                left = _blank(left, match)
        return sorted(spots)

    def _find(self, kind: str, text: str, left: str, asked: bool) -> tuple[list[str], list[str], str]:
        """Names wanted and unwanted in order of appearance, and `left` with them blanked out."""
        spots = self._spots(kind, text, left, asked)
        around = "".join(
            text[end : spot.start] for end, spot in zip([0, *(spot.end for spot in spots)], spots, strict=False)
        )
        around += text[spots[-1].end :] if spots else ""
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
            cued = any(spot.clear for spot in chain)
            for spot in chain:
                head, tail = text[max(0, spot.start - REACH) : spot.start], text[spot.end :]
                # A name beside a clear one shares its cue; so does a message of nothing but names.
                if not spot.clear and not (
                    (cued or names_alone) and self.context.alone(head, tail, chain[0] is not spot)
                ):
                    continue
                refused = refused or self._refused(text, spot.start)
                (unwanted if refused else wanted)[spot.name] = None
                left = left[: spot.start] + " " * (spot.end - spot.start) + left[spot.end :]
        return list(wanted), [name for name in unwanted if name not in wanted], left

    def _preferences(self, left: str) -> tuple[tuple[str, ...], str]:
        found = []
        for name, cues in self.words.preferences.items():
            for cue in sorted(cues["asked"], key=len, reverse=True):
                for match in phrase(cue).finditer(left):
                    if self.negation.search(left[max(0, match.start() - REACH) : match.start()]):
                        continue
                    found.append(name)
                    # "private chat messages": the word belongs to the task too.
                    noun = re.match(r"\s+([^\W\d_]+)", left[match.end() :])
                    if " " in cue or noun is None or noun[1].casefold() in self.empty:
                        left = _blank(left, match)
        return tuple(dict.fromkeys(found)), left

    def _theme(self, key: str, folded: str) -> bool:
        return len(key) > 3 and key not in self.empty and f" {key} " in folded

    def _domain(self, text: str) -> str:
        """The longest theme that the message names and does not refuse, '' for none. Names of four letters and more."""
        folded = f" {' '.join(BETWEEN.split(text.casefold()))} "
        names = [name for key, name in self.vocabulary.names["domain"].items() if self._theme(key, folded)]
        meant = (name for name in names if not self._refused(folded, folded.index(f" {name.casefold()} ") + 1))
        return max(meant, key=lambda name: (len(name), name), default="")


def _opened(text: str, left: str, wanted: dict[str, tuple[str, ...]]) -> tuple[tuple[str, ...], str]:
    """Constraints that a message leaves open, and `left` without the phrases that say only this."""
    found = []
    for kind, pattern in OPEN.items():
        for match in pattern.finditer(left):
            if wanted[kind]:
                continue
            found.append(kind)
            # "audio in any language" may mean what is spoken, so that the words stay in the search.
            if match["apart"] is not None or re.match(
                r"written|coded|implemented|regardless|no\b", match["said"], re.I
            ):
                left = _blank(left, match)
    return tuple(dict.fromkeys(found)), left


def _blank(text: str, match: re.Match[str]) -> str:
    """`text` with the match overwritten by spaces, so that positions stay."""
    return text[: match.start()] + " " * (match.end() - match.start()) + text[match.end() :]
