"""Names of licences in a message: in full, by family, by version, by group, wanted or refused."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

# A licence's name is told from an ordinary word (MIT, ISC, zlib) by its capitals, its version or the word after it.
AFTER = r"(?:[\s-]*(?i:licen[sc]e[ds]?))"
VERSIONED = re.compile(r"(?P<base>[a-z0-9]+?)-(?P<version>\d+(?:\.\d+)*)(?P<rest>(?:-[a-z]+)*)")


def versioned(key: str) -> str | None:
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


def patterns(known: Mapping[str, str], groups: Mapping[str, list[str]]) -> Iterator[tuple[str, tuple[str, ...], str]]:
    """(pattern, the names that it stands for, the group), the longest spellings first; '' for no group.

    Args:
        known: the vocabulary of licences, folded spelling -> name.
    """
    for group, keys in groups.items():
        words = r"[\s-]+".join(map(re.escape, group.split()))
        yield rf"(?i:\b(?:non-)?{words}){AFTER}?\b", tuple(known[key] for key in keys if key in known), group
    ordered = sorted(known, key=lambda text: (-len(text), text))
    for key in ordered:
        if pattern := versioned(key):
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


def read(
    left: str,
    ordered: list[tuple[re.Pattern[str], tuple[str, ...], str]],
    refused: Callable[[int], bool],
    purposes: list[str],
) -> tuple[tuple[str, ...], tuple[str, ...], str]:
    """Licences wanted and unwanted, and `left` with their names blanked out.

    Args:
        ordered: from `patterns`.
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
