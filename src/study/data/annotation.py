"""How the synthetic annotators choose servers: a mixture of reasons, each label with its reason on record."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NamedTuple

import numpy as np
import pandas as pd
from pydantic import Field

from study.advisor.arrays import Float64Array, IntArray
from study.base.errors import StudyError

SOURCES = ("topic_match", "language_match", "alphabetical", "random")
TOPIC, LANGUAGE, ALPHABETICAL, RANDOM = range(4)
# After so many failed draws of a free server a label is drawn at random: its group is too small for its lists.
PATIENCE = 20
Share = Annotated[float, Field(ge=0, le=1)]


@dataclass(frozen=True)
class Parameters:
    """Every number of the model; ``conf/dataset/synthetic.yaml`` states and explains them under the same names."""

    n_servers: Annotated[int, Field(ge=2)]
    n_tasks: Annotated[int, Field(ge=5)]
    list_length: Annotated[int, Field(ge=1)]
    extra_labels: Annotated[int, Field(ge=0)]
    mixture: dict[str, Share]
    facet_share: Share
    ascending_share: Share
    duplicate_share: Share
    shared_words: Share
    off_topic_words: Share
    popularity_sd: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    variant_share: Share
    null_share: Share
    zero_lists: Share
    repeat_lists: Share
    seed: Annotated[int, Field(ge=0)]

    def __post_init__(self) -> None:
        """Refuse numbers that describe no data set together."""
        if sorted(self.mixture) != sorted(SOURCES) or not np.isclose(sum(self.mixture.values()), 1):
            raise StudyError(
                "another mixture", column="mixture", fix=f"shares of {', '.join(SOURCES)} that add up to 1"
            )
        longest = 2 * (self.list_length + self.extra_labels)
        if self.n_servers < longest:
            fix = f"at least {longest}, twice the longest list (list_length + extra_labels)"
            raise StudyError(f"{self.n_servers} servers are too few", column="n_servers", fix=fix)


class Labels(NamedTuple):
    """Server rows (alphabetical order) per task; -1 fills up."""

    servers: IntArray  # the longer lists, shape (n_tasks, list_length + extra_labels)
    sources: IntArray  # index into `SOURCES` of each label, same shape
    listed: IntArray  # the released lists with planted defects (-1: id 0), shape (n_tasks, list_length)
    copied_from: IntArray  # id of the task whose list this task repeats, 0 for none, shape (n_tasks,)


def draw(rng: np.random.Generator, groups: IntArray, weight: Float64Array, key: IntArray) -> IntArray:
    """One server of the group `key` per entry, by its weight (inverse distribution function); -1 where the group is
    empty. `groups`: group of each server, negative for none, shape (n_servers,). Returns: shape (len(key),)."""
    members = np.flatnonzero(groups >= 0)
    order = members[np.argsort(groups[members], kind="stable")]
    cumulative = np.concatenate([[0.0], np.cumsum(weight[order])])
    first, last = (np.searchsorted(groups[order], key, side) for side in ("left", "right"))
    low, high = cumulative[first], cumulative[last]
    position = np.searchsorted(cumulative, low + rng.random(len(key)) * (high - low), "right") - 1
    # Rounding may put a draw on the border of its group.
    position, filled = np.clip(position, first, np.maximum(last - 1, first)), first < last
    servers = np.full(len(key), -1)
    servers[filled] = order[position[filled]]
    return servers


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
    listed = chosen[:, main].copy()
    for share, repeat in ((p.zero_lists, False), (p.repeat_lists, True)):
        hit = rng.choice(n, size=round(share * n), replace=False)
        position = rng.integers(p.list_length, size=len(hit))
        listed[hit, position] = listed[hit, (position + 1) % p.list_length] if repeat else -1
    return Labels(chosen, sources, listed, np.where(copied_from >= 0, tasks["task_id"].to_numpy()[copied_from], 0))


def draw_lists(
    rng: np.random.Generator, p: Parameters, servers: pd.DataFrame, tasks: pd.DataFrame, width: int
) -> tuple[IntArray, IntArray]:
    """Lists of `width` different servers, and the source of each entry; both of shape (n_tasks, width)."""
    n, n_servers = len(tasks), len(servers)
    weight = servers["popularity"].to_numpy()
    sources = rng.choice(len(SOURCES), (n, width), p=[p.mixture[name] for name in SOURCES])
    chosen = np.full((n, width), -1)
    position = rng.integers(n_servers, size=n)
    attempt = 0
    while (pending := chosen < 0).any():
        if attempt >= PATIENCE:
            sources[pending] = RANDOM
        attempt += 1
        task, rank = np.nonzero(pending)
        source = sources[task, rank]
        sampled = rng.integers(n_servers, size=len(task))
        facet = rng.random(len(task)) < p.facet_share
        topical = source == TOPIC
        for name, rows in (("facet", topical & facet), ("topic", topical & ~facet), ("language", source == LANGUAGE)):
            sampled[rows] = draw(rng, servers[name].to_numpy(), weight, tasks[name].to_numpy()[task[rows]])
        walking = pending & (sources == ALPHABETICAL)
        steps = np.cumsum(walking, axis=1)
        in_order = source == ALPHABETICAL
        sampled[in_order] = ((position[:, None] + steps) % n_servers)[task[in_order], rank[in_order]]
        position = position + steps[:, -1]
        chosen[task, rank] = sampled
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
    source = np.full(n, -1)
    source[copying] = draw(rng, np.where(copying, -1, topic), np.ones(n), topic[copying])
    return source
