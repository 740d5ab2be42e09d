"""How the synthetic annotators choose servers: a mixture of reasons, each label with its reason on record."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, NamedTuple

import numpy as np
import pandas as pd
from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from study.base.errors import StudyError
from study.data.dataset import FloatArray, IntArray

FILE = "conf/dataset/synthetic.yaml"
SOURCES = ("topic_match", "language_match", "alphabetical", "random")
TOPIC, LANGUAGE, ALPHABETICAL, RANDOM = range(4)
# After so many failed draws of a free server a label is drawn at random: its group is too small for its lists.
PATIENCE = 20
Share = Annotated[float, Field(ge=0, le=1)]


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Parameters:
    """Every number of the model; ``conf/dataset/synthetic.yaml`` states and explains them under the same names."""

    n_servers: Annotated[int, Field(ge=2)] = 400
    n_tasks: Annotated[int, Field(ge=5)] = 600
    list_length: Annotated[int, Field(ge=1)] = 10
    extra_labels: Annotated[int, Field(ge=0)] = 8
    mixture: dict[str, Share] = field(
        default_factory=lambda: {"topic_match": 0.55, "language_match": 0.2, "alphabetical": 0.15, "random": 0.1}
    )
    facet_share: Share = 0.7
    ascending_share: Share = 0.2
    duplicate_share: Share = 0.15
    shared_words: Share = 0.25
    off_topic_words: Share = 0.15
    popularity_sd: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0
    variant_share: Share = 0.05
    null_share: Share = 0.05
    zero_lists: Share = 0.005
    repeat_lists: Share = 0.005
    seed: Annotated[int, Field(ge=0)] = 2026

    def __post_init__(self) -> None:
        """Refuse numbers that describe no data set together."""
        if sorted(self.mixture) != sorted(SOURCES) or not np.isclose(sum(self.mixture.values()), 1):
            fix = f"shares of {', '.join(SOURCES)} that add up to 1"
            raise StudyError("another mixture", file=FILE, column="mixture", fix=fix)
        longest = 2 * (self.list_length + self.extra_labels)
        if self.n_servers < longest:
            fix = f"at least {longest}, twice the longest list (list_length + extra_labels)"
            raise StudyError(f"{self.n_servers} servers are too few", file=FILE, column="n_servers", fix=fix)


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
        topical = source == TOPIC
        for name, rows in (("facet", topical & facet), ("topic", topical & ~facet), ("language", source == LANGUAGE)):
            drawn[rows] = groups[name].draw(rng, keys[name][task[rows]])
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
