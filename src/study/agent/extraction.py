"""From words to a specification, by rules with a vocabulary from the data."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

from study.agent.settings import Words
from study.agent.specification import MOST_STARS, Specification, Vocabulary
from study.agent.text import content_words, phrase, plain

STARS = re.compile(r"(?:at least|more than|over|minimum(?: of)?|>=?)\s*(\d[\d,]{0,9})\s*(?:github\s+)?stars?\b", re.I)
# Largest numbers of stars; the catalogue can be asked for least numbers alone.
FEWER = re.compile(
    r"(?:(?:fewer|less|lower|not? more|not over) than|fewer|under|below|at most|not? more than|not over|up to|"
    r"maximum(?: of)?|<=?)\s*(\d[\d,]{0,9})\s*(?:github\s+)?stars?\b", re.I,
)  # fmt: skip
OFFICIAL = re.compile(r"\bofficial(?:ly)?\b(?:\s+(?:mcp\s+)?servers?)?", re.I)
NOT_OFFICIAL = re.compile(r"\b(?:un|non-?|not |not necessarily )official", re.I)
# A licence's name is told from an ordinary word (MIT, ISC, zlib) by its capitals or by the word after it.
LICENCE_AFTER = r"(?:[\s-]*(?i:licen[sc]e[ds]?))"
# What leaves a constraint open: "written in any language", "on any platform", "regardless of the licence".
NAMED = {"language": "(?:programming )?languages?", "platform": "(?:platform|(?:operating )?system)s?",
         "licence": "licen[cs]es?"}  # fmt: skip
OPEN = {
    kind: re.compile(
        rf"(?P<apart>(?:\A|[,;.(])\s*)?(?P<said>(?:\b(?:written|coded|implemented)\s+)?"
        rf"(?:\b(?:in|with|using|on|under)\s+any\s+{name}|(?:\bregardless\s+of|\bno\s+matter)\s+(?:the|what|which)\s+"
        rf"{name}|\bany\s+{name}(?=\s+(?:is|are|would|will|works?|goes|but)\b)|"
        rf"(?(apart)\bany\s+{name}(?=\s*(?:[,;.!)]|\Z))|(?!)))"
        r"(?:\s+(?:is|would be|are)\s+(?:fine|ok|okay|good)|\s+will do|\s+works?|\s+goes)?\b)", re.I,
    )
    for kind, name in NAMED.items()
}  # fmt: skip
# How far before a name a negation may stand: "not in Python", "no Java or Kotlin".
REACH = 24
# What separates the words of a theme: "Audio/Podcasting" and "E-commerce" are one word each.
# Stands for what was blanked; no message holds it, since control characters are removed.
BLANK = "\x00"
BETWEEN = re.compile(r"[^\w&/+-]+")


@dataclass(frozen=True)
class Extraction:
    """What a message says.

    Attributes:
        task: the message without the phrases that state constraints and preferences: what is searched for.
        specification: the constraints found; `intent` is the whole message in one line.
        rest: content words of the message outside constraints and preferences, as `study.agent.text.content_words`.
        ignored: phrases that state what no filter can do ("fewer than 10 stars").
        problem: why the rules read it although there is a language model; '' where it did, or there is none.
        dropped: values of the language model's reading that the vocabulary does not hold.
    """

    task: str
    specification: Specification
    rest: dict[str, str]
    ignored: tuple[str, ...] = ()
    problem: str = ""
    dropped: int = 0


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
        joints = "|".join(map(re.escape, sorted(words.connectors, key=len, reverse=True)))
        self.hanging = re.compile(
            rf"(?<![\w-])(?:(?:{joints})\s+)+(?={BLANK})|(?<={BLANK})(?:\s+(?:and|or|nor|but|please))+(?!\w)", re.I
        )
        self.empty = ENGLISH_STOP_WORDS | self.filler | {word.casefold() for word in words.connectors}
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
        found["open"], left = _opened(text, left, {"language": found["languages"], "platform": found["platforms"],
                                                   "licence": found["licences"]})  # fmt: skip
        ignored = [match[0] for match in FEWER.finditer(left)]
        left = FEWER.sub(lambda found: " " * len(found[0]), left)
        if match := STARS.search(left):
            found["stars"] = min(MOST_STARS, int(match[1].replace(",", "")))
            left = _blank(left, match)
        if not NOT_OFFICIAL.search(left) and (match := OFFICIAL.search(left)):
            found["official"] = True
            left = _blank(left, match)
        found["domain"] = self._domain(left)
        found["preferences"], left = self._preferences(left)
        task = self._searched(text, left)
        rest = content_words(task, self.filler)
        return Extraction(task, Specification(intent=text, **found), rest, tuple(ignored))

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
                    if self.negation.search(left[max(0, match.start() - REACH) : match.start()]):
                        continue
                    found.append(name)
                    # "private chat messages": the word belongs to the task too.
                    noun = re.match(r"\s+([^\W\d_]+)", left[match.end() :])
                    if " " in cue or noun is None or noun[1].casefold() in self.empty:
                        left = _blank(left, match)
        return tuple(dict.fromkeys(found)), left

    def _domain(self, text: str) -> str:
        """The longest theme that the message names, '' for none. Only names of four letters and more."""
        folded = f" {' '.join(BETWEEN.split(text.casefold()))} "
        names = (name for key, name in self.vocabulary.names["domain"].items() if len(key) > 3 and f" {key} " in folded)
        return max(names, key=lambda name: (len(name), name), default="")


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
