"""From words to a specification, by rules with a vocabulary from the data."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from study.agent.settings import Words
from study.agent.specification import MOST_STARS, Specification, Vocabulary
from study.agent.text import content_words, phrase, plain

STARS = re.compile(r"(?:at least|more than|over|minimum(?: of)?|>=?)\s*(\d[\d,]{0,9})\s*(?:github\s+)?stars?\b", re.I)
OFFICIAL = re.compile(r"\bofficial(?:ly)?\b(?:\s+(?:mcp\s+)?servers?)?", re.I)
NOT_OFFICIAL = re.compile(r"\b(?:un|non-?|not |not necessarily )official", re.I)
# A licence's name is told from an ordinary word (MIT, ISC, zlib) by its capitals or by the word after it.
LICENCE_AFTER = r"(?:[\s-]*(?i:licen[sc]e[ds]?))"
# How far before a name a negation may stand: "not in Python", "no Java or Kotlin".
REACH = 24
# What separates the words of a theme: "Audio/Podcasting" and "E-commerce" are one word each.
BETWEEN = re.compile(r"[^\w&/+-]+")


@dataclass(frozen=True)
class Extraction:
    """What a message says.

    Attributes:
        task: the message without the phrases that state constraints and preferences: what is searched for.
        specification: the constraints found; `intent` is the whole message in one line.
        rest: content words of the message outside constraints and preferences, as `study.agent.text.content_words`.
    """

    task: str
    specification: Specification
    rest: dict[str, str]


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
        self.negation = re.compile(
            rf"(?:{'|'.join(map(re.escape, words.negations))})\s+(?:(?:{joined})\s+)*\Z", re.I
        )  # fmt: skip
        self.before = re.compile(rf"(?:\A|\W)(?:{'|'.join(map(re.escape, words.before))})\s+(?:only\s+)?\Z", re.I)
        self.after = re.compile(rf"\s*(?:{'|'.join(map(re.escape, words.after))})\b", re.I)
        self.names = {kind: self._patterns(kind) for kind in ("language", "platform")}

    def _patterns(self, kind: str) -> list[tuple[re.Pattern[str], str, bool]]:
        """(pattern, name, ambiguous), longer spellings first, so that 'C++' is found before 'C'."""
        spellings = dict(self.vocabulary.names[kind])
        for alias, name in self.words.aliases[kind].items():
            if found := self.vocabulary.canonical(kind, name):
                spellings.setdefault(alias, found)
        unclear = {name.casefold() for name in self.words.ambiguous}
        ordered = sorted(spellings.items(), key=lambda item: (-len(item[0]), item[0]))
        return [(phrase(spelling), name, spelling in unclear) for spelling, name in ordered]

    def extract(self, message: str) -> Extraction:
        """The specification that a message states."""
        text = plain(message)
        left = text
        found: dict[str, Any] = {}
        for kind, wanted, unwanted in (
            ("language", "languages", "unwanted_languages"),
            ("platform", "platforms", None),
        ):
            yes, no, left = self._find(kind, text, left)
            found[wanted] = tuple(yes)
            if unwanted:
                found[unwanted] = tuple(name for name in no if name not in yes)
        found["licences"], found["unwanted_licences"], left = self._licences(left)
        if match := STARS.search(left):
            found["stars"] = min(MOST_STARS, int(match[1].replace(",", "")))
            left = _blank(left, match)
        if not NOT_OFFICIAL.search(left) and (match := OFFICIAL.search(left)):
            found["official"] = True
            left = _blank(left, match)
        found["domain"] = self._domain(left)
        found["preferences"], left = self._preferences(left)
        rest = content_words(left, self.filler)
        return Extraction(" ".join(left.split()), Specification(intent=text, **found), rest)

    def _find(self, kind: str, text: str, left: str) -> tuple[list[str], list[str], str]:
        """Names wanted and unwanted in order of appearance, and `left` with them blanked out."""
        hits: list[tuple[int, str, bool]] = []
        previous: tuple[int, bool] | None = None
        spots: list[tuple[int, int, str]] = []
        for pattern, name, unclear in self.names[kind]:
            for match in pattern.finditer(left):
                head, tail = text[max(0, match.start() - REACH) : match.start()], text[match.end() :]
                clear = match[0] == name and (self.before.search(head) or self.after.match(tail) or text == match[0])
                if not unclear or clear:
                    spots.append((match.start(), match.end(), name))
                    left = _blank(left, match)
        for start, end, name in sorted(spots):
            head = text[max(0, start - REACH) : start]
            refused = self.negation.search(head) is not None
            # "no Java or Kotlin": a name joined to a refused one is refused too.
            if previous and re.fullmatch(r"\s*(?:,|or|and|nor)\s*", text[previous[0] : start], re.I):
                refused = refused or previous[1]
            previous = (end, refused)
            hits.append((start, name, refused))
        wanted = list(dict.fromkeys(name for _, name, refused in hits if not refused))
        unwanted = list(dict.fromkeys(name for _, name, refused in hits if refused))
        return wanted, unwanted, left

    def _licences(self, left: str) -> tuple[tuple[str, ...], tuple[str, ...], str]:
        wanted: list[str] = []
        unwanted: list[str] = []
        known = self.vocabulary.names["licence"]
        for group, names in self.words.licence_groups.items():
            for match in re.finditer(rf"\b{re.escape(group)}{LICENCE_AFTER}?\b", left, re.I):
                wanted += [known[name] for name in names if name in known]
                left = _blank(left, match)
        families: dict[str, list[str]] = {}
        for key, name in known.items():
            base = re.split(r"-\d", key)[0]
            # "GPL" means every version, "MIT" is a licence of its own.
            for spelling in {key, base if base not in known else key}:
                families.setdefault(spelling, []).append(name)
        for key in sorted(families, key=lambda text: (-len(text), text)):
            name = re.escape(key)
            pattern = rf"(?<![\w-])(?:{re.escape(key.upper())}{LICENCE_AFTER}?|(?i:{name}){LICENCE_AFTER})(?![\w+])"
            for match in re.finditer(pattern, left):
                refused = self.negation.search(left[max(0, match.start() - REACH) : match.start()])
                (unwanted if refused else wanted).extend(families[key])
                left = _blank(left, match)
        return tuple(dict.fromkeys(wanted)), tuple(dict.fromkeys(name for name in unwanted if name not in wanted)), left

    def _preferences(self, left: str) -> tuple[tuple[str, ...], str]:
        found = []
        for name, cues in self.words.preferences.items():
            for cue in sorted(cues["asked"], key=len, reverse=True):
                for match in phrase(cue).finditer(left):
                    if not self.negation.search(left[max(0, match.start() - REACH) : match.start()]):
                        found.append(name)
                        left = _blank(left, match)
        return tuple(dict.fromkeys(found)), left

    def _domain(self, text: str) -> str:
        """The longest theme that the message names, '' for none. Only names of four letters and more."""
        folded = f" {' '.join(BETWEEN.split(text.casefold()))} "
        names = (name for key, name in self.vocabulary.names["domain"].items() if len(key) > 3 and f" {key} " in folded)
        return max(names, key=lambda name: (len(name), name), default="")


def _blank(text: str, match: re.Match[str]) -> str:
    """`text` with the match overwritten by spaces, so that positions stay."""
    return text[: match.start()] + " " * (match.end() - match.start()) + text[match.end() :]
