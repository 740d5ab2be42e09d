"""Detectors: each looks for one sign of how a released label came about (``conf/audit/labels.yaml``). Their class says
which sign a label bears, not that a rule made it: honest labels show the signs of content too, and long_run depends on
how lists are sorted. Only catalogue-order runs (`ORDER_RULES`) are signs that relevance does not explain.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain

import numpy as np
import pandas as pd
import scipy.sparse as sp
from scipy import stats
from sklearn.feature_extraction.text import CountVectorizer

from study.analysis.framework import settings_file
from study.base.errors import StudyError
from study.data.annotation import later_repeats
from study.data.dataset import Dataset, IntArray
from study.data.lists import BoolArray, padded, places, run_lengths, set_keys, shuffled, steps
from study.data.normalise import tokens

BY_CONTENT = ("theme_token", "theme_pool", "text_token", "language")
ORDER_RULES = ("language_run", "alphabetical", "balancing")
BY_ORDER = (*ORDER_RULES, "long_run")
DETECTORS = (*BY_CONTENT, *BY_ORDER)
# Unions of detectors, as tables name them.
UNIONS = {"any rule of order": ORDER_RULES, "any sign of content": BY_CONTENT, "any detector": DETECTORS}
# Times that a server which repeats another one of its list is sampled again.
RETRIES = 100


@dataclass(frozen=True)
class Labels:
    """Detectors and their order."""

    theme_words: float
    text_words: float
    close_gap: float
    close_run: int
    long_run: int
    language_gap: int
    language_run: int
    pool_tasks: int
    pool_p: float
    level_run: int
    use_difference: int
    order: list[str]
    other_orders: dict[str, list[str]]
    thresholds: dict[str, dict[str, list[int | float]]]
    retrieved: list[str]
    retrieved_protocol: str
    permutations: int
    seed: int

    def __post_init__(self) -> None:
        file, fix = settings_file(type(self)), f"detectors are {', '.join(sorted(DETECTORS))}"
        for order in (self.order, *self.other_orders.values()):
            if sorted(order) != sorted(DETECTORS):
                raise StudyError(f"the order of classes is {', '.join(order)}", file=file, column="order", fix=fix)
        for detector, name, _ in self.vary():
            if detector not in DETECTORS or name not in vars(self):
                raise StudyError(f"no threshold {name!r} of {detector!r}", file=file, column="thresholds", fix=fix)

    def vary(self) -> Iterator[tuple[str, str, float]]:
        """Detector, threshold and value of every entry of `thresholds`."""
        for detector, thresholds in self.thresholds.items():
            for name, values in thresholds.items():
                yield from ((detector, name, value) for value in values)


class Evidence:
    """What the detectors need, computed once per data set.

    matrix: the lists as places in the order of ids, shape (n_tasks, width), -1 fills up. servers: in the order of ids.
    theme, language: numbers per task. language_place: per language, the number of each server, by place, among its
    servers, -1 outside. used: how many lists hold each server, by place.
    """

    def __init__(self, data: Dataset, settings: Labels) -> None:
        place_of = places(data)
        self.settings, self.n_servers = settings, data.n_servers
        self.matrix = padded(data.lists, place_of)
        self.used: IntArray = np.bincount(self.matrix[self.matrix >= 0], minlength=data.n_servers)
        self.servers, self.tasks = data.servers.iloc[np.argsort(place_of)], data.tasks
        servers, tasks = self.servers, self.tasks
        self.theme: IntArray = pd.factorize(tasks["theme_clean"].str.casefold())[0].astype(np.int64)
        spoken = [[word.casefold() for word in tokens(value)] for value in servers["language_tokens"]]
        first = [(tokens(value) or [""])[0].casefold() for value in tasks["language_tokens"]]
        numbers, names = pd.factorize(np.array(first, dtype=object))
        self.language: IntArray = numbers.astype(np.int64)
        member = np.array([[name in row for row in spoken] for name in names], dtype=bool).reshape(len(names), -1)
        self.language_place: IntArray = np.where(member, member.cumsum(axis=1) - 1, -1).astype(np.int64)

    @cached_property
    def words(self) -> dict[str, tuple[sp.csr_matrix, sp.csr_matrix]]:
        """Of `shared_words`, by detector; detectors of order alone do not need them."""
        texts, both = ((table["name"] + " " + table["description"]).tolist() for table in (self.servers, self.tasks))
        return {
            "theme_token": shared_words(self.tasks["theme"].tolist(), texts, self.settings.theme_words),
            "text_token": shared_words(both, texts, self.settings.text_words),
        }

    def content(self, matrix: IntArray) -> dict[str, BoolArray]:
        """The detectors that compare a task with a server, each of the shape of `matrix`."""
        filled = matrix >= 0
        task, server = np.nonzero(filled)[0], matrix[filled]
        flags = {
            name: np.asarray(of_tasks[task].multiply(of_servers[server]).sum(axis=1)).ravel() > 0
            for name, (of_tasks, of_servers) in self.words.items()
        }
        flags["language"] = self.language_place[self.language[task], server] >= 0
        flags["theme_pool"] = self._pool(matrix, task, server)
        placed = {name: np.zeros(matrix.shape, dtype=bool) for name in flags}
        for name, flag in flags.items():
            placed[name][filled] = flag
        return placed

    def _pool(self, matrix: IntArray, task: IntArray, server: IntArray) -> BoolArray:
        """Binomial tail of the number of other lists of the theme, different as sets, that hold the server."""
        # A list that stands twice in a theme is evidence once.
        key = np.stack([self.theme, set_keys(matrix)], axis=1)
        first = np.unique(key, axis=0, return_index=True)[1]
        row, column = np.nonzero(matrix[first] >= 0)
        of_list, listed = self.theme[first], matrix[first][row, column]
        shape, ones = (int(self.theme.max()) + 1, self.n_servers), np.ones(len(row), np.float32)
        held = sp.csr_matrix((ones, (of_list[row], listed)), shape=shape)
        per_theme = np.bincount(of_list, minlength=shape[0])
        overall = np.bincount(listed, minlength=self.n_servers)
        theme = self.theme[task]
        inside = np.asarray(held[theme, server]).ravel()
        rate = (overall[server] - inside + 1) / (len(first) - per_theme[theme] + 1)
        tail = stats.binom.sf(inside - 2, np.maximum(per_theme[theme] - 1, 0), np.minimum(rate, 1))
        flag: BoolArray = (inside - 1 >= self.settings.pool_tasks) & (tail < self.settings.pool_p)
        return flag

    def order(self, matrix: IntArray) -> dict[str, BoolArray]:
        """The detectors that look at the order of a list, each of the shape of `matrix`."""
        s, filled = self.settings, matrix >= 0
        widest = max(1, round(s.close_gap * self.n_servers))  # step of a close run, in places of the catalogue
        close, ascending = (run_lengths(steps(matrix, gap)) for gap in (widest, None))
        spoken = np.where(filled, self.language_place[self.language[:, None], np.maximum(matrix, 0)], -1)
        walk = run_lengths(steps(spoken, s.language_gap))
        used = self.used[np.maximum(matrix, 0)]
        level = steps(matrix) & (np.abs(used[:, 1:] - used[:, :-1]) <= s.use_difference)
        return {
            "alphabetical": filled & (close >= s.close_run),
            "balancing": filled & (run_lengths(level) >= s.level_run),
            "long_run": filled & (ascending >= s.long_run),
            "language_run": (spoken >= 0) & (walk >= s.language_run),
        }

    def by_chance(self, rng: np.random.Generator) -> dict[str, float]:
        """The share of labels that each detector, and each of `UNIONS`, marks when its kind of evidence is destroyed.

        Content: lists go to other tasks. Order: each list in random order. Unions of both: both, one after the other.
        """
        moved = self.matrix[rng.permutation(len(self.matrix))]
        content, order = self.content(moved), self.order(shuffled(self.matrix, rng))
        both = shuffled(moved, rng)
        marked = rates(content, moved) | rates(order, self.matrix)
        return marked | {"any detector": rates(self.content(both) | self.order(both), both)["any detector"]}

    def sample_lists(self, weight: IntArray, rng: np.random.Generator) -> IntArray:
        """Lists of other servers in the same order, as many of them in the task's language, same shape.

        What a rate of the released lists exceeds that of these by is due to which servers stand side by side, not to
        how a list is sorted. Servers are sampled in proportion to `weight`, shape (n_servers,). A repeat within a list
        is sampled again, up to `RETRIES` times, so that only a language with hardly any other server leaves one.
        """
        filled = self.matrix >= 0
        spoken = self.language_place[self.language[:, None], np.maximum(self.matrix, 0)] >= 0
        # The first entries of a row are those in the language; the order of the list comes last.
        inside = np.arange(self.matrix.shape[1]) < (spoken & filled).sum(axis=1, keepdims=True)
        servers, pending = np.full_like(self.matrix, -1), filled.copy()
        for _ in range(RETRIES):
            rows = np.flatnonzero(pending.any(axis=1))
            for language in np.unique(self.language[rows]):
                member = self.language_place[language] >= 0
                for side, pool in ((inside, np.flatnonzero(member)), (~inside, np.flatnonzero(~member))):
                    entries = np.nonzero(pending & side & (self.language == language)[:, None])
                    if len(entries[0]):
                        p = weight[pool] / weight[pool].sum()
                        servers[entries] = rng.choice(pool, len(entries[0]), p=p)
            pending[rows] = later_repeats(servers[rows]) & filled[rows]
            if not pending.any():
                break
        return in_pattern(servers, self.matrix)


def in_pattern(servers: IntArray, pattern: IntArray) -> IntArray:
    """The servers of each row in the up and down of `pattern`: its least stands where the pattern's least stands. Both
    hold places, -1 for none, in rows of equal length."""
    end = np.iinfo(np.int64).max
    rank = np.argsort(np.argsort(np.where(pattern >= 0, pattern, end), axis=1, kind="stable"), axis=1, kind="stable")
    moved = np.take_along_axis(np.sort(np.where(pattern >= 0, servers, end), axis=1), rank, axis=1)
    return np.where(pattern >= 0, moved, -1)


def rates(flags: dict[str, BoolArray], matrix: IntArray) -> dict[str, float]:
    """The share of labels that each detector marks, and that each of `UNIONS` does where all of its own are there."""
    groups: dict[str, tuple[str, ...]] = {name: (name,) for name in flags}
    groups |= {name: members for name, members in UNIONS.items() if flags.keys() >= set(members)}
    marked = {name: np.any([flags[member] for member in members], axis=0) for name, members in groups.items()}
    return {name: float(flag[matrix >= 0].mean()) for name, flag in marked.items()}


def shared_words(tasks: list[str], servers: list[str], most: float) -> tuple[sp.csr_matrix, sp.csr_matrix]:
    """Binary word matrices, shapes (n_tasks, words) and (n_servers, words). Of the words that some task has and at most
    a share `most` of the servers has, English function words left out."""
    of_tasks, of_servers = _count_words(tuple(tasks), tuple(servers))
    frequency = np.asarray(of_servers.sum(axis=0)).ravel()
    used = (frequency <= most * len(servers)) & (frequency > 0) & (np.asarray(of_tasks.sum(axis=0)).ravel() > 0)
    return sp.csr_matrix(of_tasks[:, used]), sp.csr_matrix(of_servers[:, used])


@lru_cache(maxsize=4)  # thresholds are tried on the same texts
def _count_words(*texts: tuple[str, ...]) -> list[sp.csr_matrix]:
    counter = CountVectorizer(binary=True, stop_words="english", dtype=np.float32).fit(chain.from_iterable(texts))
    return [counter.transform(part) for part in texts]
