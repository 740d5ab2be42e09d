"""Seen, unseen-tool and unseen-server splits (section 4.1), as rotations in which everything is held out once.

The paper holds out one server of 12, then one tool of 11, then one sample of 10, at random. Its samples come in
siblings: several instructions made from one call. A random split puts siblings on both sides, so that the nearest
training instruction gives the answer away; here samples with one call always stay together. With twelve servers that
have instructions, one draw would test on one server, so every server is held out once, and so with tools and calls.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from study.data.dataset import IntArray
from study.errors import StudyError
from study.tools.flow.samples import Sample
from study.tools.flow.settings import Splits

NAMES = ("seen", "unseen_tool", "unseen_server", "seen_ungrouped")


@dataclass(frozen=True)
class Fold:
    """One turn: rows of the samples to learn from and to test on."""

    train: IntArray
    test: IntArray


def folds(samples: Sequence[Sample], name: str, parts: Splits, seed: int) -> Iterator[Fold]:
    """The turns of one split; together their test rows are every eligible sample once.

    Args:
        name: one of `NAMES`. ``seen_ungrouped`` is the random split that lets siblings leak, for comparison only.
    """
    if name not in NAMES:
        raise StudyError(f"unknown split {name!r}", fix=f"one of: {', '.join(NAMES)}")
    rng = np.random.default_rng([seed, NAMES.index(name)])
    if name == "unseen_server":
        part = _numbers([sample.server for sample in samples])
    elif name == "unseen_tool":
        part = _tools(samples, parts.tools, rng)
    elif name == "seen":
        part = _dealt(_numbers([sample.group for sample in samples]), parts.calls, rng)
    else:
        part = _dealt(np.arange(len(samples)), parts.calls, rng)
    for number in range(int(part.max(initial=-1)) + 1):
        test, train = np.flatnonzero(part == number), np.flatnonzero(part != number)
        if len(test) and len(train):
            yield Fold(train, test)


def _numbers(keys: Sequence[object]) -> IntArray:
    place = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    return np.array([place[key] for key in keys], dtype=np.int64)


def _dealt(unit: IntArray, parts: int, rng: np.random.Generator) -> IntArray:
    """Units shuffled and dealt to parts in turn."""
    count = int(unit.max(initial=-1)) + 1
    part: IntArray = (rng.permutation(count) % parts)[unit]
    return part


def _tools(samples: Sequence[Sample], parts: int, rng: np.random.Generator) -> IntArray:
    """Tools dealt to parts server by server, so that a tool's server stays seen.

    Returns: part per sample, -1 for the only tool of a server, which is never held out.
    """
    by_server: dict[int, list[int]] = {}
    for sample in samples:
        own = by_server.setdefault(sample.server, [])
        if sample.tool not in own:
            own.append(sample.tool)
    part_of: dict[int, int] = {}
    start = 0
    for tools in by_server.values():
        several = len(tools) > 1
        for number, tool in enumerate(rng.permutation(tools).tolist()):
            part_of[tool] = (start + number) % parts if several else -1
        start += len(tools) if several else 0
    return np.array([part_of[sample.tool] for sample in samples], dtype=np.int64)
