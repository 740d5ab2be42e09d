"""Catalogue-order runs: the label lists often follow the order of the catalogue, and this model predicts just that."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import scipy.sparse as sp

from baselines.probes.attribute_counts import group_names, word_matches
from study.advisor.arrays import Float64Array
from study.data.dataset import Dataset, FloatArray, IntArray
from study.data.lists import BoolArray, padded, places, run_lengths, steps, training_lists
from study.data.splits import Split


@dataclass
class ListOrder:
    """The expected number of catalogue-order runs that pass a server, estimated from training lists alone.

    score(t, m) = sum over kinds w of (runs of w per training list) * sum over starts s of P_w(s | t) * P_w(m | s)

    The label audit (study.analysis.audit.detectors) finds three kinds: through the servers of t's language by id,
    through the catalogue by id, and by id through servers that about equally many training lists hold. A run is a
    stretch of a training list that follows one of these orders; an entry belongs to the first kind that has it.
    P_w(m | s) is the share of runs that hold the server as far behind their start as m is behind s; P_w(s | t) is the
    share that started at s, for the first kind mostly whatever the language (`prior`). Runs of the second kind also
    start at servers with a word of t's theme, as often as in training.
    """

    language_gap: int = 3  # servers of the language from one entry to the next, at most
    language_run: int = 3  # entries of a run, at least
    alphabet_gap: float = 0.002  # the same for the catalogue, as a share of it
    alphabet_run: int = 3
    use_difference: int = 1  # lists by which the use of neighbours may differ
    use_run: int = 4
    prior: float = 100.0  # runs added to every language, with the starts of all languages
    reach: int = 100  # places behind its start that a run may come to
    most: float = 0.05  # a word of a theme counts if at most this share of the servers has it

    def fit(self, data: Dataset, split: Split, *, seed: int, workdir: Path) -> None:
        """Find the runs of the training lists, where they start and how far they go; nothing is random."""
        lists = training_lists(data, split)
        known, self.place = split.tasks("train"), places(data)
        matrix = padded(tuple(lists[row] for row in known), self.place)
        servers = data.servers.iloc[np.argsort(self.place)]
        matrix = self._fit_language(data, servers, matrix, known)
        matrix = self._fit_alphabet(data, servers, matrix, known)
        self.common = self.alphabet + self._use(matrix, padded(lists, self.place))

    def score(self, tasks: IntArray) -> FloatArray:
        """Expected passes >= 0, shape (len(tasks), n_servers)."""
        named = self.named[tasks]
        # A task whose theme no server names starts where training runs did.
        share = self.from_word * (np.diff(named.indptr) > 0)[:, None]
        found = self.by_language[self.language[tasks]] + self.common - share * self.alphabet
        found += share * self.per_list * (named @ self.onward).toarray()
        return np.asarray(found[:, self.place], dtype=np.float32)

    def _fit_language(self, data: Dataset, servers: pd.DataFrame, matrix: IntArray, known: IntArray) -> IntArray:
        """Set each task's `language` and the passes `by_language`; returns what no run has, -1 elsewhere."""
        spoken = [{word.strip().casefold() for word in value.split(",")} for value in servers["language"]]
        self.language, names = pd.factorize(group_names(data.tasks, "language"))
        member = np.array([[bool(name) and name in row for row in spoken] for name in names], dtype=bool)
        among = np.where(member, member.cumsum(axis=1) - 1, -1)
        own = np.where(matrix >= 0, among[self.language[known][:, None], np.maximum(matrix, 0)], -1)
        step = steps(own, self.language_gap)
        row, entries = runs(own, step, self.language_run)
        language, width = self.language[known], member.shape[1]
        started = np.zeros((len(names), width))
        np.add.at(started, (language[row], entries[:, 0]), 1)
        starts = started + self.prior * started.sum(axis=0) / max(len(row), 1)
        starts /= np.maximum(starts.sum(axis=1, keepdims=True), 1e-12)
        per_list = started.sum(axis=1) / np.maximum(np.bincount(language, minlength=len(names)), 1)
        passed = per_list[:, None] * (starts @ onward(entries, self.reach, width))
        self.by_language = np.where(member, np.take_along_axis(passed, np.maximum(among, 0), axis=1), 0.0)
        return np.where(run_lengths(step) >= self.language_run, -1, matrix)

    def _fit_alphabet(self, data: Dataset, servers: pd.DataFrame, matrix: IntArray, known: IntArray) -> IntArray:
        """Set the passes of the second kind, `named` (servers with a word of the theme, a distribution per task) and
        `from_word` (share of the runs that start at one of these); returns what no run has, -1 elsewhere."""
        n = data.n_servers
        step = steps(matrix, max(1, round(self.alphabet_gap * n)))
        row, entries = runs(matrix, step, self.alphabet_run)
        texts = list(servers["name"] + " " + servers["description"])
        of_themes, of_servers = word_matches(data.tasks["theme"].tolist(), texts, self.most)
        matches = sp.csr_matrix(of_themes @ of_servers.T > 0).astype(np.float64)
        task, server = matches.nonzero()
        count = np.diff(matches.indptr)
        self.named = sp.csr_matrix(sp.diags_array(1 / np.maximum(count, 1)) @ matches)
        at_word = np.isin(known[row] * n + entries[:, 0], task.astype(np.int64) * n + server)
        self.from_word = float(at_word.sum() / max((count[known[row]] > 0).sum(), 1))
        self.per_list = len(row) / max(len(known), 1)
        self.onward = onward(entries, self.reach, n)
        starts = np.bincount(entries[~at_word, 0], minlength=n) / max((~at_word).sum(), 1)
        self.alphabet: Float64Array = self.per_list * (starts @ self.onward)
        return np.where(run_lengths(step) >= self.alphabet_run, -1, matrix)

    def _use(self, matrix: IntArray, lists: IntArray) -> Float64Array:
        """Passes by place of the runs through equally used servers, shape (n_servers,)."""
        n = len(self.place)
        used = np.bincount(lists[lists >= 0], minlength=n)
        level = steps(matrix) & (np.abs(np.diff(used[np.maximum(matrix, 0)], axis=1)) <= self.use_difference)
        _, entries = runs(matrix, level, self.use_run)
        # One row per number of lists: the servers that about so many training lists hold.
        near = np.abs(used - np.arange(used.max(initial=0) + 1)[:, None]) <= self.use_difference
        among = near.cumsum(axis=1) - 1
        first, found = used[entries[:, 0]], np.zeros(n)
        own = np.where(entries >= 0, among[first[:, None], np.maximum(entries, 0)], -1)
        forward = onward(own, self.reach, n)
        for use in np.unique(first):
            starts = np.bincount(own[first == use, 0], minlength=n) @ forward
            found += np.where(near[use], starts[among[use]], 0)
        return np.asarray(found / max(len(matrix), 1))


def runs(matrix: IntArray, step: BoolArray, shortest: int) -> tuple[IntArray, IntArray]:
    """The row of every run (`step`: from entry j on to j + 1), and its entries, -1 fills the row up."""
    length, width = run_lengths(step), matrix.shape[1]
    row, column = np.nonzero((length >= shortest) & ~np.c_[np.zeros(len(step), dtype=bool), step])
    inside = np.arange(width) < length[row, column][:, None]
    entries = matrix[row[:, None], np.minimum(column[:, None] + np.arange(width), width - 1)]
    return row.astype(np.int64), np.where(inside, entries, -1)


def onward(entries: IntArray, reach: int, n: int) -> sp.csr_array:
    """The matrix that carries the starts of runs to the places behind them: entry (s, s + d), for d below `reach`, is
    the share of the runs that hold the server d places behind their start; shape (n, n)."""
    reach, distance = min(reach, n), (entries - entries[:, :1])[entries >= 0]
    cover = np.bincount(distance[distance < reach], minlength=reach) / max(len(entries), 1)
    return sp.csr_array(sp.diags_array(list(cover), offsets=list(range(reach)), shape=(n, n)))
