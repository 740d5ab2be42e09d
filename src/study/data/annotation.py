"""How the synthetic annotators choose servers: a mixture of reasons, each label with its reason on record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import NamedTuple

import numpy as np
import pandas as pd

from study.data.dataset import FloatArray, IntArray
from study.errors import StudyError

FILE = "conf/dataset/synthetic.yaml"
# Every whole number of the model, and how small it may be; n_servers depends on the longest list, too.
LEAST = {"n_servers": 2, "n_tasks": 5, "list_length": 1, "extra_labels": 0, "seed": 0}
SOURCES = ("topic_match", "language_match", "alphabetical", "random")
TOPIC, LANGUAGE, ALPHABETICAL, RANDOM = range(4)
# After so many failed draws of a free server a label is drawn at random: its group is too small for its lists.
PATIENCE = 20


@dataclass(frozen=True)
class Parameters:
    """Every number of the model; ``conf/dataset/synthetic.yaml`` states and explains them under the same names."""

    n_servers: int = 400
    n_tasks: int = 600
    list_length: int = 10
    extra_labels: int = 8
    mixture: Mapping[str, float] = field(
        default_factory=lambda: {"topic_match": 0.55, "language_match": 0.2, "alphabetical": 0.15, "random": 0.1}
    )
    facet_share: float = 0.7
    ascending_share: float = 0.2
    duplicate_share: float = 0.15
    shared_words: float = 0.25
    off_topic_words: float = 0.15
    popularity_sd: float = 1.0
    variant_share: float = 0.05
    null_share: float = 0.05
    zero_lists: float = 0.005
    repeat_lists: float = 0.005
    seed: int = 2026

    def __post_init__(self) -> None:
        """Refuse numbers that describe no data set."""
        mixture = self.mixture if isinstance(self.mixture, Mapping) else {}
        numbers = {entry.name: getattr(self, entry.name) for entry in fields(self) if entry.name != "mixture"}
        for name, value in (numbers | {f"mixture.{name}": share for name, share in mixture.items()}).items():
            kind, least = ("whole number", LEAST[name]) if name in LEAST else ("number", 0)
            most = np.inf if name in (*LEAST, "popularity_sd") else 1
            right = isinstance(value, int if name in LEAST else int | float) and not isinstance(value, bool)
            if not right or not least <= value <= most or not np.isfinite(value):
                upper = "" if np.isinf(most) else f" to {most}"
                raise _refused(name, f"{value!r} is no {kind} from {least}{upper}")
        if sorted(mixture) != sorted(SOURCES) or not np.isclose(sum(mixture.values()), 1):
            raise _refused(
                "mixture", f"the mixture must name {', '.join(SOURCES)} and add up to 1", dict.fromkeys(SOURCES, 0.25)
            )
        longest = 2 * (self.list_length + self.extra_labels)
        if self.n_servers < longest:
            reason = "is too small: twice as many servers as the longest list has labels (list_length + extra_labels)"
            raise _refused("n_servers", f"{self.n_servers} {reason}", longest)


def _refused(name: str, reason: str, example: object = None) -> StudyError:
    if example is None:
        # A quarter for each of the four reasons of the mixture; else the default.
        example = getattr(Parameters, name, 1 / len(SOURCES))
    return StudyError(reason, file=FILE, column=name, fix=f"write for example dataset.generator.{name}={example}")


class Labels(NamedTuple):
    """Server rows (alphabetical order) per task; -1 fills up."""

    servers: IntArray  # the longer lists, shape (n_tasks, list_length + extra_labels)
    sources: IntArray  # index into `SOURCES` of each label, same shape
    shown: IntArray  # the released lists with planted defects (-1: id 0), shape (n_tasks, list_length)
    copied_from: IntArray  # id of the task whose list this task repeats, 0 for none, shape (n_tasks,)


class Groups:
    """Weighted draws from groups of servers, by inverse distribution function."""

    def __init__(self, key: IntArray, weight: FloatArray) -> None:
        """Sort the servers by group. `key`: group of each server, negative for none, shape (n_servers,). `weight`:
        positive, shape (n_servers,)."""
        members = np.flatnonzero(key >= 0)
        self.order = members[np.argsort(key[members], kind="stable")]
        self.keys = key[self.order]
        self.cumulative = np.concatenate([[0.0], np.cumsum(weight[self.order].astype(np.float64))])

    def draw(self, rng: np.random.Generator, key: IntArray) -> IntArray:
        """One server per entry of `key`; -1 where the group is empty. Shape (len(key),)."""
        first, last = np.searchsorted(self.keys, key, "left"), np.searchsorted(self.keys, key, "right")
        low, high = self.cumulative[first], self.cumulative[last]
        place = np.searchsorted(self.cumulative, low + rng.random(len(key)) * (high - low), "right") - 1
        # Rounding may put a draw on the border of its group.
        place = np.clip(place, first, np.maximum(last - 1, first))
        drawn = np.full(len(key), -1)
        drawn[first < last] = self.order[place[first < last]]
        return drawn


def annotate(rng: np.random.Generator, p: Parameters, servers: pd.DataFrame, tasks: pd.DataFrame) -> Labels:
    """Draw every list by the stated mixture, then sort some, copy some, and plant the defects."""
    n, width = len(tasks), p.list_length + p.extra_labels
    chosen, sources = draw_lists(rng, p, servers, tasks, width)
    length = p.list_length + rng.integers(p.extra_labels + 1, size=n)
    ascending = rng.random(n) < p.ascending_share
    main = slice(0, p.list_length)
    order = np.argsort(chosen[:, main], axis=1)
    for part in (chosen, sources):
        part[:, main] = np.where(ascending[:, None], np.take_along_axis(part[:, main], order, axis=1), part[:, main])
    copied_from = copies(rng, tasks["topic"].to_numpy(), p.duplicate_share)
    rows = np.where(copied_from >= 0, copied_from, np.arange(n))
    chosen, sources, length = chosen[rows], sources[rows], length[rows]
    chosen[np.arange(width) >= length[:, None]] = -1
    shown = chosen[:, main].copy()
    for share, repeat in ((p.zero_lists, False), (p.repeat_lists, True)):
        hit = rng.choice(n, size=round(share * n), replace=False)
        place = rng.integers(p.list_length, size=len(hit))
        shown[hit, place] = shown[hit, (place + 1) % p.list_length] if repeat else -1
    return Labels(chosen, sources, shown, np.where(copied_from >= 0, tasks["task_id"].to_numpy()[copied_from], 0))


def draw_lists(
    rng: np.random.Generator, p: Parameters, servers: pd.DataFrame, tasks: pd.DataFrame, width: int
) -> tuple[IntArray, IntArray]:
    """Lists of `width` different servers, and the source of each entry; both of shape (n_tasks, width)."""
    n, n_servers = len(tasks), len(servers)
    weight = servers["popularity"].to_numpy()
    groups = {name: Groups(servers[name].to_numpy(), weight) for name in ("topic", "facet", "language")}
    keys = {name: tasks[name].to_numpy() for name in groups}
    sources = rng.choice(len(SOURCES), (n, width), p=[p.mixture[name] for name in SOURCES])
    chosen = np.full((n, width), -1)
    position = rng.integers(n_servers, size=n)
    attempt = 0
    while (pending := chosen < 0).any():
        if attempt >= PATIENCE:
            sources[pending] = RANDOM
        attempt += 1
        task, place = np.nonzero(pending)
        source = sources[task, place]
        drawn = rng.integers(n_servers, size=len(task))
        facet = rng.random(len(task)) < p.facet_share
        for name, wanted in (
            ("facet", (source == TOPIC) & facet),
            ("topic", (source == TOPIC) & ~facet),
            ("language", source == LANGUAGE),
        ):
            drawn[wanted] = groups[name].draw(rng, keys[name][task[wanted]])
        walking = pending & (sources == ALPHABETICAL)
        steps = np.cumsum(walking, axis=1)
        in_order = source == ALPHABETICAL
        drawn[in_order] = ((position[:, None] + steps) % n_servers)[task[in_order], place[in_order]]
        position = position + steps[:, -1]
        chosen[task, place] = drawn
        chosen[later_repeats(chosen)] = -1
    return chosen, sources


def later_repeats(rows: IntArray) -> np.ndarray:
    """Where an entry repeats an earlier one of its row. Same shape, bool."""
    order = np.argsort(rows, axis=1, kind="stable")
    ordered = np.take_along_axis(rows, order, axis=1)
    repeated = np.zeros(rows.shape, dtype=bool)
    np.put_along_axis(repeated, order[:, 1:], ordered[:, 1:] == ordered[:, :-1], axis=1)
    return repeated


def copies(rng: np.random.Generator, topic: IntArray, share: float) -> IntArray:
    """Row of the task whose list each task copies, -1 for none: a task of the same topic that copies none itself.
    Returns: shape (n_tasks,)."""
    n = len(topic)
    copying = np.zeros(n, dtype=bool)
    copying[rng.choice(n, size=round(share * n), replace=False)] = True
    originals = Groups(np.where(copying, -1, topic), np.ones(n, np.float32))
    source = np.full(n, -1)
    source[copying] = originals.draw(rng, topic[copying])
    return source
