"""Reads a finished sentence of a rule and tests it against the evidence, without the code that wrote it.

A rule that errs would agree with itself when it is run again. Here its words are looked for letter by letter, its
numbers are counted anew, and a sentence that tells servers apart must name every server of the answer on the right
side.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable
from functools import lru_cache

from study.agent.claims import Claim, Context
from study.agent.evidence import Evidence

NAME = re.compile(r"“[^”]*” ?")
WORDS = re.compile(r'"([^"]*)"')
ID = re.compile(r"\bid (\d+)")
TEXTS = ("name", "description", "tools")


def _folded(text: str) -> str:
    return unicodedata.normalize("NFKC", text).lower()


@lru_cache(maxsize=4_096)
def _pattern(word: str) -> re.Pattern[str]:
    """A word by itself, with or without the s of a plural."""
    if word.isdigit():
        return re.compile(rf"(?<!\d){word}(?!\d)")
    base = word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word
    plural = "s?" if len(base) > 2 and not base.endswith("s") else ""
    letter = r"[^\W\d_\u4e00-\u9fff]"
    return re.compile(rf"(?<!{letter}){re.escape(base)}{plural}(?!{letter})")


def mentions(evidence: Evidence, word: str, fields: Iterable[str] = TEXTS) -> bool:
    """Whether one of the fields holds a word of a request."""
    return any(_pattern(_folded(word)).search(_folded(evidence.fields[name])) for name in fields)


def speaks_for(c: Context, evidence: Evidence, preference: str) -> bool:
    """Whether one of the descriptive fields holds a cue of a preference."""
    cues = "|".join(map(re.escape, c.words.preferences[preference]["shown"]))
    return any(re.search(rf"(?<![\w+#])(?:{cues})(?![\w+#])", evidence.fields[name], re.I) for name in TEXTS)


def _parts(text: str) -> list[str]:
    """The members of 'a, b and c'."""
    return [part for part in re.split(r", | and | or ", text) if part]


def _values(evidence: Evidence, field: str) -> set[str]:
    return {part.strip().casefold() for part in evidence.fields[field].split(",") if part.strip()}


def _asked(c: Context, words: Iterable[str]) -> bool:
    request = _folded(c.specification.intent)
    return all(_pattern(_folded(word)).search(request) for word in words)


# One server. Each test gets the match of its rule's form of words.

Single = Callable[[Context, Evidence, re.Match[str]], bool]


def _words_are_there(c: Context, e: Evidence, m: re.Match[str]) -> bool:
    fields, words = _parts(m[1]), WORDS.findall(m[2])
    each = all(mentions(e, word, fields) for word in words) and _asked(c, words)
    return set(fields) <= set(TEXTS) and bool(words) and each


def _listed(field: str, wanted: str) -> Single:
    def test(c: Context, e: Evidence, m: re.Match[str]) -> bool:
        named = {part.casefold() for part in _parts(m[1])}
        return named <= _values(e, field) & {value.casefold() for value in getattr(c.specification, wanted)}

    return test


def _cues_are_there(c: Context, e: Evidence, m: re.Match[str]) -> bool:
    held = " \n ".join(e.fields[name] for name in TEXTS).casefold()
    for part in m[1].split("; "):
        name, _, cues = part.partition(": ")
        shown = {cue.casefold() for cue in c.words.preferences.get(name, {}).get("shown", ())}
        said = {cue.casefold() for cue in WORDS.findall(cues)}
        if name not in c.specification.preferences or not said or not said <= shown or any(x not in held for x in said):
            return False
    return True


def _no_word_is_there(c: Context, e: Evidence, m: re.Match[str]) -> bool:
    words = WORDS.findall(m[0]) or list(c.asked.values())
    return _asked(c, words) and not any(mentions(e, word) for word in words)


def _hint(c: Context, e: Evidence, m: re.Match[str]) -> bool:
    return any(hint == m[0] and name.casefold() in _values(e, "languages") for name, hint in c.setup.languages.items())


def _key(c: Context, e: Evidence, m: re.Match[str]) -> bool:
    letters = re.sub(r"[“”\"\s]", "", e.fields["description"])
    return re.sub(r"\s", "", m[1]) in letters and m[1].casefold().endswith("api key")


def _stars(c: Context, e: Evidence, m: re.Match[str]) -> bool:
    return m[1] == e.fields["stars"] and m[2] == f"{c.median_stars:g}"


# Rule -> forms of its sentence, each with its test.
ONE: dict[str, tuple[tuple[str, Single], ...]] = {
    "why_words": ((r"Its (.+?) mentions? (\".+) of your request\.", _words_are_there),),
    "why_language": ((r"It is written in (.+), as you asked\.", _listed("languages", "languages")),),
    "why_platform": ((r"It names (.+) as its system, as you asked\.", _listed("platforms", "platforms")),),
    "why_licence": ((r"Its licence is (.+), as you asked\.", _listed("licence", "licences")),),
    "why_official": ((r"The catalogue marks it as official\.", lambda c, e, m: e.fields["official"] == "official"),),
    "why_preference": ((r"Its own words speak for what you prefer \((.+)\)\.", _cues_are_there),),
    "why_followed": (
        (
            r"It has (\d+) stars; half of the catalogue has at most (.+)\.",
            lambda c, e, m: _stars(c, e, m) and int(m[1]) > c.median_stars,
        ),
    ),
    "why_rank": (
        (
            r"By score it stands at place (\d+) of the whole catalogue \((.+)\)\.",
            lambda c, e, m: int(m[1]) == e.scores["rank"] and abs(float(m[2]) - e.scores["total"]) < 1e-3,
        ),
    ),
    "less_words": (
        (r"None of its descriptive fields shares a word with your request; .+", _no_word_is_there),
        (r"Nothing in its name, description or tool list mentions .+\.", _no_word_is_there),
    ),
    "less_licence": (
        (r"The catalogue states no licence: .+", lambda c, e, m: e.fields["licence"] == ""),
        (r"Its licence is not one of the usual ones: .+", lambda c, e, m: e.fields["licence"] == "other"),
        (r"(\S+) is a copyleft licence: .+", lambda c, e, m: e.fields["licence"] == m[1] in c.words.copyleft),
    ),
    "less_platform": (
        (r"The catalogue does not say on which systems it runs\.", lambda c, e, m: e.fields["platforms"] == ""),
    ),
    "less_preference": (
        (
            r"Its descriptive fields say nothing about (.+)\.",
            lambda c, e, m: all(
                name in c.specification.preferences and not speaks_for(c, e, name) for name in _parts(m[1])
            ),
        ),
    ),
    "less_followed": (
        (
            r"It has (\d+) stars?, less than half of the catalogue \(median (.+)\)\.",
            lambda c, e, m: _stars(c, e, m) and int(m[1]) < c.median_stars,
        ),
    ),
    "less_active": ((r"Its activity is 0 in the catalogue\.", lambda c, e, m: e.fields["activity"] == "0"),),
    "adopt_code": (
        (r"The catalogue holds no usable address of its repository\.", lambda c, e, m: not e.fields["repository_link"]),
        (r"Get the code: git clone (\S+)", lambda c, e, m: m[1] == e.fields["repository_link"].rstrip("/")),
        (r"Start from its address: (\S+)", lambda c, e, m: m[1] == e.fields["repository_link"]),
    ),
    "adopt_language": ((r".+", _hint),),
    "adopt_docker": ((r".+", lambda c, e, m: m[0] == c.setup.docker and "dockerfile" in _values(e, "languages")),),
    "adopt_key": ((r"Its description speaks of an API key: “… (.+) …” Check what the README asks for\.", _key),),
    "adopt_client": ((r".+", lambda c, e, m: m[0] == c.setup.general),),
}

# Several servers. Names are taken out first: a stranger's name may look like an id. Each test gets the servers that are
# preferred, all others, and the match.

Sides = Callable[[Context, list[Evidence], list[Evidence], re.Match[str]], bool]


def _words_divide(c: Context, having: list[Evidence], rest: list[Evidence], m: re.Match[str]) -> bool:
    words = WORDS.findall(m[2])
    said = all(mentions(item, word) for item in having for word in words)
    return bool(words) and _asked(c, words) and said and not any(mentions(e, word) for e in rest for word in words)


def _preferences_divide(c: Context, having: list[Evidence], rest: list[Evidence], m: re.Match[str]) -> bool:
    names = _parts(m[2])
    known = set(names) <= set(c.specification.preferences)
    return known and all(
        all(speaks_for(c, item, name) for item in having) and not any(speaks_for(c, item, name) for item in rest)
        for name in names
    )


def _stars_divide(c: Context, having: list[Evidence], rest: list[Evidence], m: re.Match[str]) -> bool:
    more, less = min(int(item.fields["stars"]) for item in having), max(int(item.fields["stars"]) for item in rest)
    return [int(number) for number in re.findall(r"\d+", m[2])] == [more, less] and more > less


LACK = r"(?:(?:does|do) not mention it|mentions? none of them)"
SEVERAL: dict[str, tuple[str, Sides]] = {
    "prefer_words": (rf"Prefer (.+?) if (\".+\") matters?: (.+) {LACK}\.", _words_divide),
    "prefer_preference": (
        r"Prefer (.+?) for (.+?): (?:its|their) own words speak for it, those of (.+) do not\.",
        _preferences_divide,
    ),
    "prefer_stars": (
        r"Prefer (.+?) if a larger following matters: ((?:at least )?\d+ stars against (?:at most )?\d+) \((.+)\)\.",
        _stars_divide,
    ),
    "prefer_licence": (
        r"Prefer (.+?) if (you need) a stated licence: the catalogue states none for (.+)\.",
        lambda c, having, rest, m: (
            all(item.fields["licence"] for item in having) and not any(item.fields["licence"] for item in rest)
        ),
    ),
    "prefer_official": (
        r"Prefer (.+?) if (it must) be official: (.+) (?:is|are) not marked so\.",
        lambda c, having, rest, m: (
            {item.fields["official"] == "official" for item in having} == {True}
            and {item.fields["official"] == "official" for item in rest} == {False}
        ),
    ),
}
LANGUAGES = re.compile(r"(.+?) for ((?:id \d+|, | and )+)")
TOGETHER = re.compile(
    r"\(id (\d+)\) covers (.+?); \(id (\d+)\) adds (.+?)\. Together they mention (\d+) of the (\d+) words of "
    r"your request; no single server here mentions more than (\d+)\."
)


def _ids(text: str) -> list[int]:
    return [int(number) for number in ID.findall(text)]


def _divides(c: Context, rule: str, text: str) -> bool:
    pattern, test = SEVERAL[rule]
    match = re.fullmatch(pattern, text)
    if match is None:
        return False
    having, rest = _ids(match[1]), _ids(match[3])
    if sorted([*having, *rest]) != sorted(c.evidence) or not having or not rest:
        return False
    return test(c, [c.evidence[server] for server in having], [c.evidence[server] for server in rest], match)


def _languages(c: Context, text: str) -> bool:
    match = re.fullmatch(r"Main languages: (.+)\. Prefer what you can maintain\.", text)
    said: dict[int, str] = {}
    for part in match[1].split("; ") if match else ():
        if found := LANGUAGES.fullmatch(part):
            said |= dict.fromkeys(_ids(found[2]), found[1])
    main = {
        server: item.fields["languages"].split(",")[0].strip() or "none stated" for server, item in c.evidence.items()
    }
    return said == main


def _together(c: Context, text: str) -> bool:
    match = TOGETHER.fullmatch(text)
    if match is None or not {int(match[1]), int(match[3])} <= set(c.evidence):
        return False
    first, second = c.evidence[int(match[1])], c.evidence[int(match[3])]
    words = list(c.asked.values())
    single = max(sum(mentions(item, word) for word in words) for item in c.evidence.values())
    union = sum(mentions(first, word) or mentions(second, word) for word in words)
    covered, added = WORDS.findall(match[2]), WORDS.findall(match[4])
    told = all(mentions(first, word) for word in covered) and all(
        mentions(second, word) and not mentions(first, word) for word in added
    )
    parts = _own_part(c, first, second) and _own_part(c, second, first)
    return told and parts and union > single and [int(match[n]) for n in (5, 6, 7)] == [union, len(words), single]


def _own_part(c: Context, server: Evidence, other: Evidence) -> bool:
    alone = [key for key, word in c.asked.items() if mentions(server, word) and not mentions(other, word)]
    return len(alone) >= 2 or any(c.mentioned[key] <= c.rare for key in alone)


def holds(context: Context, claim: Claim) -> bool:
    """Whether the sentence of a rule is true of the evidence; an unknown rule or form of words is not."""
    if claim.rule in ONE:
        server = context.evidence.get(claim.servers[0]) if len(claim.servers) == 1 else None
        found = ((re.fullmatch(pattern, claim.text), test) for pattern, test in ONE[claim.rule])
        return server is not None and any(match and test(context, server, match) for match, test in found)
    text = NAME.sub("", claim.text)
    if claim.rule in SEVERAL:
        return _divides(context, claim.rule, text)
    other = {"prefer_language": _languages, "compose": _together}.get(claim.rule)
    return other is not None and other(context, text)
