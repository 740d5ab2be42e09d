"""How a message names licences, stars and the mark "official", and when "go" or "windows" is a name in it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from study.agent.settings import Words

# Licences

# A licence's name is told from an ordinary word (MIT, ISC, zlib) by its capitals, its version or the word after it.
AFTER = r"(?:[\s-]*(?i:licen[sc]e[ds]?))"
VERSIONED = re.compile(r"(?P<base>[a-z0-9]+?)-(?P<version>\d+(?:\.\d+)*)(?P<rest>(?:-[a-z]+)*)")


def _versioned(key: str) -> str | None:
    """A pattern for the usual spellings of a licence with a version, None for one without.

    "apache-2.0" is also "Apache 2.0", "Apache License 2.0" and "apache v2"; "gpl-3.0" is also "GPLv3".
    """
    match = VERSIONED.fullmatch(key)
    if match is None:
        return None
    base, version = re.escape(match["base"]), match["version"]
    rest = "".join(rf"(?:[\s-]*{part})?" for part in match["rest"].split("-") if part)
    short = version.removesuffix(".0")
    between, mark = rf"{AFTER}?[\s,-]*", r"(?i:v(?:ersion)?\.?\s*)"
    full = rf"(?i:{base}){between}{mark}?{re.escape(version)}(?i:{rest}){AFTER}?"
    forms = [full]
    if short != version:
        # "apache 2" alone may be a web server.
        forms += [
            rf"(?i:{base}){between}{mark}{short}{AFTER}?",
            rf"(?i:{base}){between}{short}{AFTER}",
            rf"{re.escape(match['base'].upper())}{between}{short}",
        ]
    return rf"(?<![\w-])(?:{'|'.join(forms)})(?![\w+])(?!\.\d)"


def licence_patterns(
    known: Mapping[str, str], groups: Mapping[str, list[str]]
) -> Iterator[tuple[str, tuple[str, ...], str]]:
    """(pattern, the names that it stands for, the group), the longest spellings first; '' for no group.

    Args:
        known: the vocabulary of licences, folded spelling -> name.
    """
    for group, keys in groups.items():
        words = r"[\s-]+".join(map(re.escape, group.split()))
        yield rf"(?i:\b(?:non-)?{words}){AFTER}?\b", tuple(known[key] for key in keys if key in known), group
    ordered = sorted(known, key=lambda text: (-len(text), text))
    for key in ordered:
        if pattern := _versioned(key):
            yield pattern, (known[key],), ""
    families: dict[str, list[str]] = {}
    for key, name in known.items():
        base = re.split(r"-\d", key)[0]
        # "GPL" means every version, "MIT" is a licence of its own.
        for spelling in {key, base if base not in known else key}:
            families.setdefault(spelling, []).append(name)
    for key in sorted(families, key=lambda text: (-len(text), text)):
        name = re.escape(key)
        pattern = rf"(?<![\w-])(?:{re.escape(key.upper())}{AFTER}?|(?i:{name}){AFTER})(?![\w+])"
        yield pattern, tuple(families[key]), ""


def read_licences(
    left: str,
    ordered: list[tuple[re.Pattern[str], tuple[str, ...], str]],
    refused: Callable[[int], bool],
    purposes: list[str],
) -> tuple[tuple[str, ...], tuple[str, ...], str]:
    """Licences wanted and unwanted, and `left` with their names blanked out.

    Args:
        ordered: from `licence_patterns`.
        refused: whether a negation stands before a place of the message.
        purposes: groups named after a purpose; without that purpose every licence will do.
    """
    wanted: list[str] = []
    unwanted: list[str] = []
    for pattern, names, group in ordered:
        for match in pattern.finditer(left):
            no = refused(match.start()) or match[0].lower().startswith("non-")
            if not (no and group in purposes):
                (unwanted if no else wanted).extend(names)
            left = left[: match.start()] + " " * len(match[0]) + left[match.end() :]
    return tuple(dict.fromkeys(wanted)), tuple(dict.fromkeys(name for name in unwanted if name not in wanted)), left


# Stars and the mark

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


def stars_of(match: re.Match[str]) -> int:
    """The number of stars in a match of `LEAST_STARS`: "2.5k" is 2500."""
    number, times = next(pair for pair in zip(match.groups()[::2], match.groups()[1::2], strict=True) if pair[0])
    return int(float(number.replace(",", "")) * TIMES[(times or "").lower()])


# Ordinary words

# What ends a clause after a name: "in go, with tests", "in c/c++".
MARKS = r"\s*(?:\Z|[,;:!?)/&]|\.(?!\w))"

# Before and after what stands by itself.
APART = re.compile(r"[,;:.(]\s*\Z")
ENDED = re.compile(MARKS)


def _any(words: Iterable[str]) -> str:
    return "|".join(re.escape(word) for word in sorted(set(words), key=len, reverse=True))


@dataclass(frozen=True)
class WordContext:
    """Which words may stand on either side of a name that is also an ordinary word ("go", "c", "rust", "windows")."""

    cue: re.Pattern[str]
    follows: re.Pattern[str]
    leads: re.Pattern[str]
    ends: re.Pattern[str]

    @classmethod
    def of(cls, words: Words) -> WordContext:
        """From the word lists of ``words.yaml``."""
        after = {*words.connectors, *words.after, *words.reply} - set(words.no_end)
        led = {*words.before, *words.connectors, *words.filler, *words.reply, *words.clear_before}
        return cls(
            re.compile(rf"(?:\A|\W)(?:{_any(words.clear_before)})\s+(?:only\s+)?\Z", re.I),
            re.compile(rf"{MARKS}|\s+(?:{_any(after)})\b", re.I),
            re.compile(rf"(?:\A|[,;:(.!?/&]|(?:\A|\W)(?:{_any(led)}))\s*\Z", re.I),
            re.compile(rf"{MARKS}|\s+(?:{_any([*words.after, *words.reply, *words.ends])})\b", re.I),
        )

    def strong(self, head: str, tail: str) -> bool:
        """Whether a cue stands right before a name and nothing that would make it another word right after it."""
        return bool(self.cue.search(head) and self.follows.match(tail))

    def apart(self, name: str, head: str, tail: str) -> bool:
        """Whether a name in its own spelling stands between marks: "I changed my mind, Go"; letters may be initials."""
        return len(name) > 1 and bool(APART.search(head) and ENDED.match(tail))

    def alone(self, head: str, tail: str, joined: bool = False) -> bool:
        """Whether a name stands by itself: "go", "go please", "I'd like Go"; not "go to the page", "c section".

        Args:
            joined: to a name before it, so that `head` says nothing.
        """
        return bool((joined or self.leads.search(head)) and self.ends.match(tail))
