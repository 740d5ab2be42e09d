"""Hard constraints as filters that say what they removed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from study.agent.specification import Specification, without
from study.data.dataset import IntArray
from study.data.normalise import tokens

BoolArray = NDArray[np.bool_]


@dataclass(frozen=True)
class Removal:
    """What one constraint removed.

    Attributes:
        constraint: language, platform, licence, official or stars.
        wanted: the constraint in words.
        removed: servers of the whole catalogue that it excludes.
        in_pool: how many of these stand among the best-ranked servers; `best` lists the ids of the first of them.
        unknown: servers that it kept although their field is empty.
        left_without: servers that would be left if this constraint alone were dropped.
    """

    constraint: str
    wanted: str
    removed: int
    in_pool: int
    best: tuple[int, ...]
    unknown: int
    left_without: int


class Attributes:
    """The columns of a catalogue that constraints read, ready for comparison.

    Args:
        servers: prepared server table, n rows.
    """

    def __init__(self, servers: pd.DataFrame) -> None:
        self.n = len(servers)
        listed = {"language": "language_tokens", "platform": "system_tokens"}
        # Kind -> values of each server in lower case, shape (n,).
        self.values = {
            kind: [tuple(map(str.casefold, tokens(text))) for text in servers[column]]
            for kind, column in listed.items()
        }
        self.values["licence"] = [(text.casefold(),) if text else () for text in servers["license_clean"]]
        self.empty = {kind: np.array([not value for value in values]) for kind, values in self.values.items()}
        # Kind -> value -> which servers have it, shape (n,).
        self.having: dict[str, dict[str, BoolArray]] = {kind: {} for kind in self.values}
        for kind, values in self.values.items():
            for row, entries in enumerate(values):
                for entry in entries:
                    self.having[kind].setdefault(entry, np.zeros(self.n, dtype=bool))[row] = True
        self.official = servers["is_official"].to_numpy(dtype=bool)
        self.stars = servers["stars_count"].to_numpy()

    def has_any(self, kind: str, wanted: tuple[str, ...]) -> BoolArray:
        """Which servers have one of the wanted values, shape (n,)."""
        found = np.zeros(self.n, dtype=bool)
        for value in wanted:
            found |= self.having[kind].get(value.casefold(), False)
        return found


def masks(spec: Specification, of: Attributes, keep_unknown: Mapping[str, bool]) -> dict[str, tuple[str, BoolArray]]:
    """Constraint -> (its words, servers that meet it, shape (n,)), for the constraints that are stated."""
    found: dict[str, tuple[str, BoolArray]] = {}
    listed = (
        ("language", spec.languages, spec.unwanted_languages),
        ("platform", spec.platforms, ()),
        ("licence", spec.licences, spec.unwanted_licences),
    )
    for name, wanted, unwanted in listed:
        if not wanted and not unwanted:
            continue
        met = np.ones(of.n, dtype=bool)
        if wanted:
            met &= of.has_any(name, wanted) | (of.empty[name] & keep_unknown[name])
        if unwanted:
            met &= ~of.has_any(name, unwanted)
        words = [" or ".join(wanted)] if wanted else []
        words += ["not " + " nor ".join(unwanted)] if unwanted else []
        found[name] = (", ".join(words), met)
    if spec.official:
        found["official"] = ("official", of.official)
    if spec.stars:
        found["stars"] = (f"at least {spec.stars} stars", of.stars >= spec.stars)
    return found


def apply(
    spec: Specification,
    of: Attributes,
    ranked: IntArray,
    ids: IntArray,
    *,
    keep_unknown: Mapping[str, bool],
    pool: int,
    listed: int,
) -> tuple[BoolArray, list[Removal]]:
    """Which servers meet all constraints, and what each constraint removed.

    Args:
        ranked: server rows, best first.
        ids: id of each row, shape (n,).
        pool: so many best-ranked servers are looked at for `Removal.in_pool`.
        listed: so many of them are named.

    Returns: shape (n,), and one entry per stated constraint.
    """
    found = masks(spec, of, keep_unknown)
    kept = np.ones(of.n, dtype=bool)
    for _, met in found.values():
        kept &= met
    best = ranked[:pool]
    removals = []
    for name, (words, met) in found.items():
        others = np.ones(of.n, dtype=bool)
        for other, (_, mask) in found.items():
            others &= mask if other != name else True
        gone = best[~met[best]]
        empty = int((of.empty[name] & met).sum()) if name in of.empty else 0
        removals.append(
            Removal(
                name,
                words,
                int((~met).sum()),
                len(gone),
                tuple(int(ids[row]) for row in gone[:listed]),
                empty,
                int(others.sum()),
            )
        )
    return kept, removals


def relaxed(removals: list[Removal]) -> list[tuple[str, int]]:
    """Constraints whose removal would leave servers, most first: (constraint, servers left)."""
    options = [(item.constraint, item.left_without) for item in removals if item.left_without > 0]
    return sorted(options, key=lambda item: (-item[1], item[0]))


def dropped(spec: Specification, constraint: str) -> Specification:
    """`spec` without one constraint, which is then marked as left open."""
    left = without(spec, constraint)
    names = {"language", "platform", "licence"}
    return replace(left, open=tuple(dict.fromkeys((*left.open, constraint)))) if constraint in names else left
