"""What a developer asks for, as fields (paper, section 6.2, second stage)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from study.agent.settings import Words
from study.data.dataset import Dataset
from study.data.normalise import tokens
from study.errors import StudyError

MOST_STARS = 10_000_000


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


def build(values: Mapping[str, Any], vocabulary: Vocabulary, *, longest: int) -> Specification:
    """A specification from untrusted values.

    Raises:
        StudyError: an unknown field, a value of the wrong type, one that the vocabulary does not hold, or one that is
            wanted and unwanted at once.
    """
    known = {item.name for item in fields(Specification)}
    made: dict[str, Any] = {}
    for name, value in values.items():
        if name not in known:
            raise StudyError(f"unknown field {name!r:.80}", fix=f"one of: {', '.join(sorted(known))}")
        made[name] = _value(name, value, vocabulary)
    specification = Specification(**made)
    for wanted, unwanted in CONTRARY:
        if both := set(getattr(specification, wanted)) & set(getattr(specification, unwanted)):
            raise StudyError(
                f"{', '.join(sorted(both))}: wanted and unwanted at once",
                column=unwanted,
                fix=f"leave it out of {wanted} or of {unwanted}",
            )
    if len(specification.intent) > longest:
        raise StudyError(
            f"the request has {len(specification.intent)} characters, at most {longest} are read",
            fix="say in a few sentences what is to be done",
        )
    return specification


def _value(name: str, value: Any, vocabulary: Vocabulary) -> Any:
    if name in LISTS:
        if not isinstance(value, list | tuple):
            raise StudyError("must be a list of texts", column=name)
        return tuple(dict.fromkeys(_known(name, item, vocabulary) for item in value))
    if name == "official":
        if not isinstance(value, bool):
            raise StudyError("must be true or false", column=name)
        return value
    if name == "stars":
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MOST_STARS:
            raise StudyError(f"must be a whole number from 0 to {MOST_STARS}", column=name)
        return value
    if not isinstance(value, str):
        raise StudyError("must be a text", column=name)
    return _known(name, value, vocabulary) if name == "domain" and value else value


def _known(name: str, value: Any, vocabulary: Vocabulary) -> str:
    kind = KINDS[name]
    found = vocabulary.canonical(kind, value) if isinstance(value, str) else None
    if found is None:
        options = vocabulary.options(kind)
        shown = ", ".join(options[:30]) + (", ..." if len(options) > 30 else "")
        raise StudyError(f"unknown {kind} {value!r:.80}", column=name, fix=f"one of: {shown}")
    return found


def merged(old: Specification, new: Specification, *, add: bool = False) -> Specification:
    """`old` with the constraints that `new` states; list values are replaced unless `add`.

    A wanted value stops being unwanted and the other way round. What `new` leaves open replaces what `old` states.
    """
    for kind in new.open:
        old = without(old, kind)
    changes: dict[str, Any] = {}
    for name, value in new.constraints().items():
        both = (*getattr(old, name), *value) if add and name in LISTS else value
        changes[name] = tuple(dict.fromkeys(both)) if name in LISTS else both
    result = replace(old, **changes)
    for wanted, unwanted in CONTRARY:
        keep, drop = set(getattr(new, wanted)), set(getattr(new, unwanted))
        change: dict[str, Any] = {
            wanted: tuple(value for value in getattr(result, wanted) if value not in drop),
            unwanted: tuple(value for value in getattr(result, unwanted) if value not in keep),
        }
        result = replace(result, **change)
    stated = {KINDS[name] for name in changes if name in KINDS}
    left = (name for name in result.open if name not in stated)
    return replace(result, open=tuple(dict.fromkeys((*left, *new.open))))


def without(old: Specification, kind: str) -> Specification:
    """`old` without the constraints of a kind: language, platform, licence, preference, domain, official, stars."""
    empty = Specification()
    names = [name for name, of in KINDS.items() if of == kind] or [kind]
    return replace(old, **{name: getattr(empty, name) for name in names})
