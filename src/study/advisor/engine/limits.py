"""What a server must be beside what it does: stated as values, or read from the clauses of a request by rules."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import Field, StrictBool, StrictInt, StrictStr, field_validator, model_validator

from study.advisor.engine.facts import Facts
from study.advisor.strict import Strict

# Name in a request -> name in the facts.
NAMES = "Python,TypeScript,JavaScript,Go,Rust,Java,Kotlin,C#,C++,C,PHP,Ruby,Swift,R,Scala,Dart,Lua,Elixir"
LANGUAGES = {name.casefold(): name for name in NAMES.split(",")} | {
    "golang": "Go",
    "js": "JavaScript",
    "node.js": "JavaScript",
    "ts": "TypeScript",
    "csharp": "C#",
    "cpp": "C++",
}
LICENCES = ("MIT", "Apache-2.0", "Apache 2.0", "Apache", "BSD", "ISC", "GPL", "AGPL", "LGPL", "MPL", "Unlicense")
PLATFORMS = {"linux": "Linux", "macos": "macOS", "mac": "macOS", "windows": "Windows", "docker": "Docker"}
# What a developer may prefer -> how a clause says it.
PREFERENCES = {
    "latency": r"low[- ]latency|fast|quick|real[- ]?time",
    "reliability": r"reliable|robust|stable|trustworthy|production[- ]ready",
    "privacy": r"private|privacy(?: matters)?|confidential",
    "ease of adoption": r"easy(?: to (?:adopt|install|set up|use))?|simple to (?:adopt|install|set up|use)",
}
# Place -> how a clause says it.
PLACES = {"local": r"local(?:ly)?|offline|self[- ]hosted", "remote": r"remote|(?<!self[- ])hosted"}
# What runs a server, with a version or alone.
VERSIONED = r"(?:node(?:\.js)?|deno|bun|python|java|jdk|jre|jvm|\.net|php|ruby|go) ?v?\d{1,4}(?:\.\d{1,4}){0,3}"
RUNTIME = rf"{VERSIONED}|node(?:\.js)?|deno|bun|jdk|jre|jvm|\.net"
# Before a name, it makes it unwanted.
NEGATION = r"(?:no|nor|not|neither|never|without|except|excluding|avoid|anything but|other than)"
# Limits that no field of the catalogue answers.
UNTOLD = ("platforms", "runtime", "domain", "preferences")
Names = Annotated[list[StrictStr], Field(max_length=100)]


class Limits(Strict):
    """What a server must be; leave out what does not matter. `describe_catalog` lists the values."""

    languages: Names = Field(default=[], description="Programming languages, one of which the server uses.")
    unwanted_languages: Names = Field(default=[], description="Languages that the server must not use.")
    platforms: Names = Field(default=[], description="Operating systems, one of which it must support.")
    runtime: StrictStr = Field(default="", max_length=60, description="What must be able to run it, e.g. Node 20.")
    licences: Names = Field(
        default=[], description="Single licences, one of which it must have; groups (permissive) fail."
    )
    unwanted_licences: Names = Field(
        default=[], description="Single licences that it must not have; groups (copyleft) fail."
    )
    official: StrictBool = Field(default=False, description="Only servers that the catalogue marks as official.")
    stars: StrictInt = Field(default=0, ge=0, le=10_000_000, description="Least number of stars.")
    place: Literal["", "local", "remote"] = Field(default="", description="Where it runs: local or remote.")
    domain: StrictStr = Field(
        default="", max_length=200, description="Theme of the task, one that the catalogue knows."
    )
    preferences: Names = Field(default=[], description="What matters beyond the task, e.g. privacy.")

    def stated(self) -> dict[str, Any]:
        """The limits that are set."""
        return {name: value for name in Limits.model_fields if (value := getattr(self, name))}

    @field_validator("languages", "unwanted_languages")
    @classmethod
    def single(cls, names: list[str]) -> list[str]:
        """Each language by itself, for facts name several as "JavaScript or TypeScript"."""
        return list(dict.fromkeys(word for name in names for word in names_in(name, {})))

    @model_validator(mode="after")
    def sound(self) -> Self:
        """Refuse what is wanted and unwanted at once, and groups of licences."""
        for kind in ("languages", "licences"):
            unwanted = getattr(self, f"unwanted_{kind}")
            if both := {name for name in getattr(self, kind) if _among(kind, name, unwanted)}:
                raise ValueError(f"wanted and unwanted at once: {', '.join(sorted(both))[:80]}")
        if group := {"permissive", "copyleft", "open source"} & _folded(self.licences + self.unwanted_licences):
            raise ValueError(f"{', '.join(group)} is a group of licences; name single ones, such as MIT")
        return self

    def with_(self, other: Limits) -> Limits:
        """These limits, with those that `other` states in their place, also where it states that there is none."""
        data = self.model_dump(include=set(Limits.model_fields), exclude_unset=True)
        for kind in ("languages", "licences"):
            no = f"unwanted_{kind}"
            if kind in data:
                data[kind] = [name for name in data[kind] if not _among(kind, name, getattr(other, no))]
            if no in data:
                wanted = getattr(other, kind)
                data[no] = [name for name in data[no] if not any(_among(kind, one, [name]) for one in wanted)]
        return Limits(**data | other.model_dump(exclude_unset=True))

    def filters(self) -> bool:
        """Whether any of them leaves servers out."""
        return bool(self.stated().keys() - {*UNTOLD})

    def attributes(self, *, themes: bool) -> dict[str, str]:
        """What a model reads of them as a part of the task. `themes`: whether it knows themes, as which it reads a
        domain."""
        theme = self.domain if themes else ""
        attributes = {"language": self.languages[0] if self.languages else "", "theme": theme}
        return {name: value for name, value in attributes.items() if value}

    def allow(self, facts: Facts) -> bool:
        """Whether a server is within the limits. An unknown language, licence or number of stars is not what was asked
        for; a server whose start nobody knows may run anywhere, and one of several languages may be written in each."""
        languages, licence = _folded(facts.languages), facts.licence.casefold()
        return (
            (not self.languages or not languages.isdisjoint(_folded(self.languages)))
            and not (languages and languages <= _folded(self.unwanted_languages))
            and (not self.licences or _licensed(licence, self.licences))
            and not _licensed(licence, self.unwanted_licences)
            and (not self.official or bool(facts.official))
            and (not self.stars or (facts.stars or 0) >= self.stars)
            and (not self.place or facts.place in ("", self.place))
        )

    def notes(self, *, themes: bool = False) -> list[str]:
        """What is said of limits: those that servers are left out by, and those that the catalogue does not tell of.
        `themes`: as for `attributes`."""
        stated = self.stated()
        said = dict.fromkeys(UNTOLD, "the catalogue does not tell")
        if themes:
            said["domain"] = "read as the theme of the task"
        filters = [in_words(name, value) for name, value in stated.items() if name not in said]
        note = [f"limits: {'; '.join(filters)}"] if filters else []
        return [*note, *(f"{in_words(name, value)}: {said[name]}" for name, value in stated.items() if name in said)]


class Read(NamedTuple):
    """A request apart: what is to be done, and the limits that its other clauses state."""

    text: str
    limits: Limits


def _folded(names: Iterable[str]) -> set[str]:
    return {LANGUAGES.get(name.casefold(), name).casefold() for name in names}


def _licensed(licence: str, names: Iterable[str]) -> bool:
    """Whether a licence is one of the named ones, which may leave out the version ("Apache")."""
    licences = (name.casefold().replace(" ", "-") for name in names)
    return bool(licence) and any(licence == name or licence.startswith(f"{name}-") for name in licences)


def _among(kind: str, name: str, names: Sequence[str]) -> bool:
    """Whether a language or a licence (`kind`) is one of the named ones, as `Limits.allow` compares them."""
    if kind == "licences":
        return _licensed(name.casefold().replace(" ", "-"), names)
    return _folded([name]) <= _folded(names)


def in_words(name: str, value: object) -> str:
    """A limit in words."""
    text = " or ".join(map(str, value)) if isinstance(value, list) else str(value)
    words = {"official": "official", "stars": f"at least {text} stars"}
    kind = name.replace("unwanted_", "not ").replace("languages", "language").replace("licences", "licence")
    return words.get(name, f"{kind.removesuffix('s') if name == 'platforms' else kind}: {text}")


def any_of(names: Iterable[str]) -> str:
    """The pattern of one or several of the names, joined by "or" and the like, as the group `names`."""
    one = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
    return rf"(?P<names>(?:{one})(?:\s*(?:,|/|or|and)\s*(?:{one}))*)"


_LANGUAGE, _LICENCE = any_of(LANGUAGES), any_of(LICENCES)
# A whole number below ten million (2500, 2,500, 2 500, 2_500) or thousands (1.5k).
_COUNT = r"\d{1,3}(?:\.\d)?\s?k|\d(?:[,_'’\s]?\d{3}){2}|\d{1,3}(?:[,_'’\s]?\d{3})?"
_NO = rf"{NEGATION}(?: in)?"
# A whole clause of a request -> what it states.
CLAUSES: dict[str, re.Pattern[str]] = {
    name: re.compile(rf"(?:and\s+)?(?:{pattern})(?:\s+please)?\.?", re.I)
    for name, pattern in {
        "languages": rf"(?:(?:only|written)\s+)?(?:in\s+)?{_LANGUAGE}(?:\s+(?:only|servers?))?",
        "unwanted_languages": rf"{_NO}\s+{_LANGUAGE}",
        "licences": rf"(?:only\s+)?(?:under\s+)?{_LICENCE}(?:\s+licen[cs]ed?)?(?:\s+only)?",
        "unwanted_licences": rf"{_NO}\s+{_LICENCE}(?:\s+licen[cs]e)?",
        "platforms": rf"(?:on\s+)?{any_of(PLATFORMS)}(?:\s+only)?",
        "runtime": rf"(?:(?:runs?\s+)?(?:on|under|with)\s+)?(?P<runtime>{VERSIONED})"
        rf"|(?:runs?\s+)?(?:on|under)\s+(?P<alone>{RUNTIME})",
        "official": r"only\s+official(?:\s+(?:ones?|servers?))?|official(?:\s+(?:ones?|servers?))?\s+only",
        "stars": rf"(?:(?:at least|more than|with)\s+)?(?P<number>{_COUNT})\+?\s+stars(?: or more)?",
        "local": rf"(?:(?:must|should)\s+(?:run|stay)\s+)?(?:{PLACES['local']})(?:\s+only)?",
        "remote": rf"(?:only\s+)?(?:{PLACES['remote']})(?:\s+(?:only|servers?))?",
        "open": r"any\s+(?P<any>language|licen[cs]e|platform)|no\s+(?P<no>language|licen[cs]e|platform)\s+constraints?",
        **PREFERENCES,
    }.items()
}
_SPLIT = re.compile(r"\s*(?:;|,(?!\d)|(?<!\d),)\s*")  # not within 2,500
_BETWEEN = re.compile(r"\s*(?:,|/|\bor\b|\band\b)\s*", re.I)


def names_in(names: str, meant: Mapping[str, str] = LANGUAGES) -> list[str]:
    """The names of a list in words ("golang or C++"); `meant`: name in lower case -> the one that is used."""
    return [meant.get(word.casefold(), word) for word in _BETWEEN.split(names.strip())]


def numbers_in(text: str) -> list[int]:
    """The whole numbers of a text below ten million, each read as one, however its thousands are written."""
    found = re.findall(rf"(?<![\w.,])(?:{_COUNT})(?!\w|[.,]\d)", text, re.I)
    return [round(float(re.sub(r"[^\d.]", "", one)) * (1000 if one[-1] in "kK" else 1)) for one in found]


def read_limits(request: str) -> Read:
    """The limits that clauses of a request state ("any language": none is set), and the request without these clauses.

    Only a clause between commas that says nothing else is a limit ("query a database, in Python, MIT licence"), for
    "explain code in Rust" is a task. A request that is nothing but limits has an empty text.
    """
    text: list[str] = []
    values: dict[str, Any] = {}
    for clause in _SPLIT.split(request):
        name, match = next(((n, m) for n, p in CLAUSES.items() if (m := p.fullmatch(clause.strip()))), ("", None))
        if match is None:
            text.append(clause)
        elif name == "stars":
            values["stars"] = numbers_in(match["number"])[0]
        elif name in PLACES:
            values["place"] = name
        elif name == "official":
            values["official"] = True
        elif name == "runtime":
            values["runtime"] = match["runtime"] or match["alone"]
        elif name in PREFERENCES:
            values.setdefault("preferences", []).append(name)
        elif name == "open":
            key = f"{match['any'] or match['no']}s".lower().replace("license", "licence")
            for limit in Limits.model_fields.keys() & {key, f"unwanted_{key}"}:
                values[limit] = []
        else:
            names = names_in(match["names"], {**LANGUAGES, **PLATFORMS} if name != "licences" else {})
            values.setdefault(name, []).extend(word for word in names if word not in values.get(name, ()))
    left = ", ".join(clause for clause in text if clause.strip())
    unwanted = {name: values.pop(name) for name in [*values] if name.startswith("unwanted_")}
    limits = Limits(**values).with_(Limits(**unwanted))  # what a request wants and does not want at once, it does not
    return Read(request if len(text) == len(_SPLIT.split(request)) else left, limits)


def task_and_limits(request: str) -> Read:
    """As `read_limits`; a request that is nothing but limits is a task as it stands, without limits."""
    read = read_limits(request)
    return read if read.text.strip() else Read(request, Limits())
