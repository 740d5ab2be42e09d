"""What a request is read as: typos and short names, the client it comes from, wishes, the direction of a conversion."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache

from study.advisor.encoders.sentence import folder_of
from study.advisor.saved.settings import Answering

# Words and names such as "C++", "node.js" and "k8s"; a hyphen joins two.
WORD = re.compile(r"[^\W_]+(?:[.'’][^\W_]+)*")
# Wish -> how a request states it.
WISHES = {
    "popular": re.compile(
        r"\b(?:(?:most\s+)?popular|widely[\s-]used|well[\s-]known|(?:many|most)\s+(?:github\s+)?stars|best[\s-]known)\b",
        re.I,
    ),
    "official": re.compile(r"(?<!non-)(?<!not )(?<!un)\bofficial(?:ly)?\b", re.I),
    "maintained": re.compile(r"\b(?:(?:well|actively)[\s-])?maintained\b|\bup[\s-]to[\s-]date\s+servers?\b", re.I),
}
# Joins what is converted to what it becomes.
_INTO = r"(?:\s+(?:files?|documents?))?[\s-]*(?:\b(?:to|into|as)\b|\b2\b|->|→)[\s-]*(?:[a-z-]+\s+)?"

# A server that makes a format, and one that reads it.
_MAKES = r"\b(?:to|into|as|creat\w+|generat\w+|produc\w+|write|writing)\s+(?:[\w-]+\s+){{0,3}}?(?:{0})s?\b"
_READS = (
    r"\b(?:from|read(?:s|ing)?|extract\w*|pars\w+|analy[sz]\w+|search\w*|load\w*|process\w*|summari[sz]\w*|manipulat\w+)\s+"
    r"(?:[\w,-]+\s+){{0,5}}?(?:{0})s?\b|\b(?:{0})\s+(?:reader|parser|extract\w*|tools|manipulation|files?|documents?)\b"
)


@dataclass(frozen=True)
class Understood:
    """A request as it is searched for.

    Attributes:
        text: the request with what was replaced or left out.
        notes: what was understood otherwise than written, one sentence each.
        unknown: words that no server's text holds, as written.
        partly: whether they are half of the request, so that the others are searched for alone.
        wishes: keys of `WISHES`.
        direction: formats, from which and into which; empty texts where nothing is converted.
    """

    text: str
    notes: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    partly: bool = False
    wishes: tuple[str, ...] = ()
    direction: tuple[str, str] = ("", "")


# A look-up compares a word with thousands: that many of a request, among its first characters.
LOOK_UPS, MISTYPED = 20, 2_000


def plain(name: str) -> str:
    """A name without the case of its letters, and with one space for all that is neither letter nor digit."""
    return " ".join(re.findall(r"[^\W_]+", name.casefold()))


def vocabulary(texts: Iterable[str]) -> Counter[str]:
    """Word in lower case -> how many of the texts hold it."""
    return Counter(word for text in texts for word in set(WORD.findall(text.lower())))


def understand(request: str, counts: Mapping[str, int], settings: Answering) -> Understood:
    """Read a request. `counts`: the `vocabulary` of the catalogue's names and descriptions; empty where it is too small
    to tell a word that no server knows."""
    text, wishes, notes, unknown = request, list[str](), list[str](), list[str]()
    for name, pattern in WISHES.items():
        if pattern.search(text):
            wishes.append(name)
            text = _without(pattern, text)
    names = "|".join(re.escape(name).replace(r"\ ", r"\s+") for name in settings.clients)
    client = re.compile(rf"\b(?:from|inside|within|in)\s+(?:my\s+)?(?P<name>{names})\b(?!\s*['’]s)", re.I)
    if (match := client.search(text)) and WORD.search(left := _without(client, text)):
        text = left
        notes.append(f"{match['name']} is taken for your client, not for what the server is about")
    text = _apart(text, settings.formats, notes)
    text = _aliases(text, settings.aliases, notes)
    if counts:
        text, unknown = _typos(text, counts, settings, notes)
    words = WORD.findall(text[:MISTYPED])
    partly = bool(unknown) and len(unknown) * 2 >= len(words)
    if partly:
        # Another language, or no language: what servers could be found by are the names in it.
        text = " ".join(word for word in words if word not in unknown)
    direction = next(iter(conversions(text, settings.formats)), ("", ""))
    return Understood(text, tuple(notes), tuple(unknown), partly, tuple(wishes), direction)


def _without(pattern: re.Pattern[str], text: str) -> str:
    return " ".join(pattern.sub(" ", text).split())


def _apart(text: str, formats: Mapping[str, list[str]], notes: list[str]) -> str:
    """The text with "md2pdf" as "markdown to pdf", which servers' texts hold; it is added to the notes."""
    meant = _spellings(formats)
    any_of = "|".join(map(re.escape, meant))

    def read(match: re.Match[str]) -> str:
        apart = " to ".join(meant[part.lower()] for part in match.groups())
        notes.append(f"{match[0]!r} is read as {apart}")
        return apart

    return re.sub(rf"\b({any_of})2({any_of})\b", read, text, flags=re.I)


def _spellings(formats: Mapping[str, list[str]]) -> dict[str, str]:
    """How a format is written -> its name, longer spellings first."""
    meant = {spelling: name for name, others in formats.items() for spelling in (name, *others)}
    return dict(sorted(meant.items(), key=lambda item: -len(item[0])))


def _aliases(text: str, aliases: Mapping[str, str], notes: list[str]) -> str:
    """The text with short names written out; each is added to the notes."""
    for match in list(WORD.finditer(text)):
        name = aliases.get(match[0].lower())
        if name and not re.search(rf"\b{re.escape(name)}\b", text, re.I):
            notes.append(f"{match[0]!r} is read as {name}")
            # Both stay: some servers write the short name.
            text = re.sub(rf"\b{re.escape(match[0])}\b", f"{name} ({match[0]})", text, count=1)
    return text


@cache
def english() -> frozenset[str]:
    """Words that the sentence encoder knows as a whole, so that none of them is taken for a typo."""
    listed = (folder_of("minilm") / "vocab.txt").read_text(encoding="utf-8")
    return frozenset(word for word in listed.split("\n") if len(word) > 2 and word.isalpha())


def _typos(text: str, counts: Mapping[str, int], settings: Answering, notes: list[str]) -> tuple[str, list[str]]:
    """The text with probable typos corrected, each of which is added to the notes, and words that stay unknown."""
    unknown, looked_up = [], 0
    frequent = [*(name for name, count in counts.items() if count >= settings.typos.servers), *settings.aliases]
    for word in dict.fromkeys(WORD.findall(text[:MISTYPED])):
        low = word.lower()
        spelt = {low, low.removesuffix("s"), low.removesuffix("'s"), low.removesuffix("’s")}
        if counts.keys() & spelt or low in settings.aliases:
            continue
        if len(low) >= settings.typos.letters and low not in english() and looked_up < LOOK_UPS:
            looked_up += 1
            # A first letter is seldom mistyped, and a word of another length is another word.
            near = [name for name in frequent if name[0] == low[0] and abs(len(name) - len(low)) <= 1]
            best = get_close_matches(low, near, n=3, cutoff=settings.typos.similarity)
            if best:
                meant = settings.aliases.get(best[0], best[0])
                text = re.sub(rf"\b{re.escape(word)}\b", meant, text)
                notes.append(f"{word!r} is read as {meant!r}")
                continue
        unknown.append(word)
    return text, unknown


def conversions(text: str, formats: Mapping[str, list[str]]) -> list[tuple[str, str]]:
    """Every conversion that a text names, such as ("markdown", "pdf"), in order; "pdf2md" names one, too."""
    meant = _spellings(formats)
    any_of = "|".join(map(re.escape, meant))
    pattern = re.compile(rf"(?:\b|(?<=2))({any_of}){_INTO}({any_of})\b|\b({any_of})2({any_of})\b", re.I)
    pairs = ([part.lower() for part in match.groups() if part] for match in pattern.finditer(text))
    return [(meant[source], meant[target]) for source, target in pairs]


def reversed_only(text: str, conversion: tuple[str, str], formats: Mapping[str, list[str]]) -> bool:
    """Whether a server's text speaks of making what the request converts from and not of reading it, or names
    conversions out of what the request converts into and none into it."""
    source = "|".join(re.escape(spelling) for spelling in (conversion[0], *formats[conversion[0]]))
    named = conversions(text, formats)
    if any(first == conversion[1] for first, _ in named) and not any(last == conversion[1] for _, last in named):
        return True
    if any(first == conversion[0] for first, _ in named) or re.search(_READS.format(source), text, re.I):
        return False
    return any(last == conversion[0] for _, last in named) or bool(re.search(_MAKES.format(source), text, re.I))
