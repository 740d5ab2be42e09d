"""What a developer asks for, as fields (paper, section 6.2, second stage), and its hard constraints as filters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from study.advisor.agent.settings import Settings, Words
from study.advisor.arrays import IntArray
from study.data.dataset import Dataset
from study.data.normalise import tokens
from study.errors import StudyError, require_one_of

BoolArray = NDArray[np.bool_]
STARS_LIMIT = 10_000_000


@dataclass(frozen=True)
class Specification:
    """A structured task specification.

    Attributes:
        intent: what is to be done, in the developer's words.
        languages, platforms, licences: hard constraints; a server must have one of the values. Empty: any.
        unwanted_languages, unwanted_licences: hard constraints; a server must have none of them.
        official: only servers that the catalogue marks as official.
        stars: least number of stars.
        domain: theme of the task; describes, does not filter.
        preferences: of latency, reliability, privacy, adoption; they move the score a little and appear in the answer.
        open: constraints that the developer deliberately left open, so that nothing asks for them again.
    """

    intent: str = ""
    languages: tuple[str, ...] = ()
    unwanted_languages: tuple[str, ...] = ()
    platforms: tuple[str, ...] = ()
    licences: tuple[str, ...] = ()
    unwanted_licences: tuple[str, ...] = ()
    official: bool = False
    stars: int = 0
    domain: str = ""
    preferences: tuple[str, ...] = ()
    open: tuple[str, ...] = ()

    def constraints(self) -> dict[str, Any]:
        """The fields besides the intent that say something."""
        return {key: value for key, value in asdict(self).items() if value and key not in ("intent", "open")}


LISTS = ("languages", "unwanted_languages", "platforms", "licences", "unwanted_licences", "preferences", "open")
CONTRARY = (("languages", "unwanted_languages"), ("licences", "unwanted_licences"))
# Field of a specification -> the vocabulary that its values come from.
KINDS = {
    "languages": "language",
    "unwanted_languages": "language",
    "platforms": "platform",
    "licences": "licence",
    "unwanted_licences": "licence",
    "preferences": "preference",
    "domain": "domain",
    "open": "constraint",
}


@dataclass(frozen=True)
class Vocabulary:
    """The values that a specification may hold: kind -> folded spelling -> the data's spelling."""

    names: Mapping[str, Mapping[str, str]]

    @classmethod
    def of(cls, data: Dataset, words: Words) -> Vocabulary:
        """From a data set: languages that tasks ask for, systems and licences that servers have, themes."""

        def folded(values: Iterable[str]) -> dict[str, str]:
            return {value.casefold(): value for value in sorted(set(values)) if value}

        servers, tasks = data.servers, data.tasks
        languages = [token for text in servers["language_tokens"] for token in tokens(text)]
        asked = {token for text in tasks["language_tokens"] for token in tokens(text)}
        systems = folded(token for text in servers["system_tokens"] for token in tokens(text))
        # The most common spelling of a system is the alias table's, whatever a single server writes.
        known = {value.casefold(): value for value in words.aliases["platform"].values()}
        names = {
            "language": folded(asked or languages),
            "platform": {key: known.get(key, value) for key, value in systems.items()},
            "licence": folded(value for value in servers["license_clean"] if value != "other"),
            "domain": folded([*tasks["theme_clean"], *servers["category_clean"]]),
            "preference": folded(words.preferences),
            "constraint": folded(["language", "platform", "licence"]),
        }
        return cls(names)

    def canonical(self, kind: str, value: str) -> str | None:
        """The data's spelling of `value`, or None."""
        return self.names[kind].get(value.strip().casefold())

    def options(self, kind: str) -> list[str]:
        """All values of a kind, sorted."""
        return sorted(self.names[kind].values(), key=str.casefold)


def build(values: Mapping[str, Any], vocabulary: Vocabulary) -> Specification:
    """A specification from untrusted values. StudyError: an unknown field, a value of the wrong type, one that the
    vocabulary does not hold, or one that is wanted and unwanted at once."""
    known = sorted(item.name for item in fields(Specification))
    for name in values:
        require_one_of(name, "field", known)
    specification = Specification(**{name: _value(name, value, vocabulary) for name, value in values.items()})
    for wanted, unwanted in CONTRARY:
        if both := set(getattr(specification, wanted)) & set(getattr(specification, unwanted)):
            raise StudyError(
                f"{', '.join(sorted(both))}: wanted and unwanted at once",
                column=unwanted,
                fix=f"leave it out of {wanted} or of {unwanted}",
            )
    return specification


def _value(name: str, value: Any, vocabulary: Vocabulary) -> Any:
    if name in LISTS:
        if not isinstance(value, list | tuple):
            raise StudyError("must be a list of texts", column=name)
        return tuple(dict.fromkeys(_known(name, item, vocabulary) for item in value))
    if name == "domain" and isinstance(value, str) and value:
        return _known(name, value, vocabulary)
    if name == "official" and not isinstance(value, bool):
        raise StudyError("must be true or false", column=name)
    if name == "stars" and (type(value) is not int or not 0 <= value <= STARS_LIMIT):
        raise StudyError(f"must be a whole number from 0 to {STARS_LIMIT}", column=name)
    if name in ("intent", "domain") and not isinstance(value, str):
        raise StudyError("must be a text", column=name)
    return value


def _known(name: str, value: Any, vocabulary: Vocabulary) -> str:
    kind = KINDS[name]
    found = vocabulary.canonical(kind, value) if isinstance(value, str) else None
    if found is None:
        options = vocabulary.options(kind)
        shown = ", ".join(options[:30]) + (", ..." if len(options) > 30 else "")
        raise StudyError(f"unknown {kind} {value!r:.80}", column=name, fix=f"one of: {shown}")
    return found


def merged(old: Specification, new: Specification, *, add: bool = False) -> Specification:
    """`old` with the constraints that `new` states; list values are replaced unless `add`. A wanted value stops being
    unwanted and the other way round. What `new` leaves open replaces what `old` states."""
    for kind in new.open:
        old = without(old, kind)
    changes: dict[str, Any] = {}
    for name, value in new.constraints().items():
        both = (*getattr(old, name), *value) if add and name in LISTS else value
        changes[name] = tuple(dict.fromkeys(both)) if name in LISTS else both
    result = replace(old, **changes)
    for name, contrary in (*CONTRARY, *(pair[::-1] for pair in CONTRARY)):
        gone = getattr(new, contrary)
        left: dict[str, Any] = {name: tuple(value for value in getattr(result, name) if value not in gone)}
        result = replace(result, **left)
    stated = {KINDS[name] for name in changes if name in KINDS}
    kept = (name for name in result.open if name not in stated)
    return replace(result, open=tuple(dict.fromkeys((*kept, *new.open))))


def without(old: Specification, kind: str) -> Specification:
    """`old` without the constraints of a kind: language, platform, licence, preference, domain, official, stars."""
    empty = Specification()
    names = [name for name, of in KINDS.items() if of == kind] or [kind]
    return replace(old, **{name: getattr(empty, name) for name in names})


def dropped(spec: Specification, constraints: Iterable[str]) -> Specification:
    """`spec` without some constraints; those that a question may ask for are then marked as left open."""
    for constraint in constraints:
        spec = without(spec, constraint)
        if constraint in ("language", "platform", "licence"):
            spec = replace(spec, open=tuple(dict.fromkeys((*spec.open, constraint))))
    return spec


@dataclass(frozen=True)
class Removal:
    """What one constraint removed.

    Attributes:
        constraint: language, platform, licence, official or stars.
        wanted: the constraint in words.
        removed: servers of the whole catalogue that it excludes.
        in_pool: how many of these stand among the best-ranked servers; `best` lists the ids of the first of them.
        unknown: servers that it kept although their field is empty.
        left_without: fitting servers that would be left if this constraint alone were dropped.
    """

    constraint: str
    wanted: str
    removed: int
    in_pool: int
    best: tuple[int, ...]
    unknown: int
    left_without: int


class Attributes:
    """The columns of a catalogue (prepared server table, n rows) that constraints read."""

    def __init__(self, servers: pd.DataFrame) -> None:
        self.n = len(servers)
        # Kind -> values of each server in lower case, n of them.
        self.values: dict[str, list[tuple[str, ...]]] = {
            "language": [tuple(map(str.casefold, tokens(text))) for text in servers["language_tokens"]],
            "platform": [tuple(map(str.casefold, tokens(text))) for text in servers["system_tokens"]],
            "licence": [(text.casefold(),) if text else () for text in servers["license_clean"]],
        }
        self.empty = {kind: np.array([not value for value in values]) for kind, values in self.values.items()}
        self.official = servers["is_official"].to_numpy(dtype=bool)
        self.stars = servers["stars_count"].to_numpy()

    def has_any(self, kind: str, wanted: tuple[str, ...]) -> BoolArray:
        """Which servers have one of the wanted values, shape (n,)."""
        folded = {value.casefold() for value in wanted}
        return np.array([not folded.isdisjoint(values) for values in self.values[kind]], dtype=np.bool_)


def filters(spec: Specification, of: Attributes, keep_unknown: Mapping[str, bool]) -> dict[str, tuple[str, BoolArray]]:
    """Constraint -> (its words, servers that meet it, shape (n,)), for the constraints that are stated."""
    found: dict[str, tuple[str, BoolArray]] = {}
    listed = (
        ("language", spec.languages, spec.unwanted_languages),
        ("platform", spec.platforms, ()),
        ("licence", spec.licences, spec.unwanted_licences),
    )
    for name, wanted, unwanted in listed:
        words = [" or ".join(wanted)] if wanted else []
        words += ["not " + " nor ".join(unwanted)] if unwanted else []
        if words:
            met = of.has_any(name, wanted) | (of.empty[name] & keep_unknown[name]) if wanted else np.ones(of.n, bool)
            found[name] = (", ".join(words), met & ~of.has_any(name, unwanted))
    if spec.official:
        found["official"] = ("official", of.official)
    if spec.stars:
        found["stars"] = (f"at least {spec.stars} stars", of.stars >= spec.stars)
    return found


def filter_servers(
    spec: Specification,
    of: Attributes,
    ranked: IntArray,
    ids: IntArray,
    settings: Settings,
    fitting: BoolArray | None = None,
) -> tuple[BoolArray, list[Removal]]:
    """Which servers meet all constraints, shape (n,), and what each stated constraint removed. `ranked`: server rows,
    best first; `ids`: of all rows, shape (n,). `fitting`: servers that count as left, shape (n,); by default all."""
    fitting = np.ones(of.n, dtype=np.bool_) if fitting is None else fitting
    found = filters(spec, of, settings.keep_unknown)
    pool = ranked[: settings.pool]

    def meet(names: Iterable[str]) -> BoolArray:
        met: BoolArray = np.logical_and.reduce([np.ones(of.n, dtype=bool), *(found[name][1] for name in names)])
        return met

    removals = []
    for name, (words, met) in found.items():
        gone = pool[~met[pool]]
        removed = Removal(
            constraint=name,
            wanted=words,
            removed=int((~met).sum()),
            in_pool=len(gone),
            best=tuple(int(ids[row]) for row in gone[: settings.limits["listed"]]),
            unknown=int((of.empty[name] & met).sum()) if name in of.empty else 0,
            left_without=int((fitting & meet(other for other in found if other != name)).sum()),
        )
        removals.append(removed)
    return meet(found), removals


def relaxed(removals: list[Removal]) -> list[tuple[str, int]]:
    """Constraints whose removal would leave servers, most first: (constraint, servers left)."""
    options = [(item.constraint, item.left_without) for item in removals if item.left_without > 0]
    return sorted(options, key=lambda item: (-item[1], item[0]))
