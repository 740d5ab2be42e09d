"""Counts of training labels by attribute, with word matches: how well a task's attributes predict its labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import scipy.sparse as sp
from sklearn.feature_extraction.text import CountVectorizer

from baselines.popularity import fit_group_counts
from study.data.dataset import Dataset, FloatArray, IntArray
from study.data.splits import Split


@dataclass
class AttributeCounts:
    """A weighted sum of counts by attribute and of word matches, the evidence of content in the label audit.

    score(t, m) = sum over `groups` g of weight_g * share of the training tasks of t's group g that list m
    + near * (the same share in the first group, training tasks weighted by exp(-|difference in file position| / span))
    + word * (1 where m's name or description holds a word of t's theme)
    + rare * (1 where m's text holds a rare word of t's name or description)
    + fill * (1 where m is written in t's language, by the share of training tasks of the language that list it).

    It reads words, names and the order of the file, no meaning. `baselines.probes.list_order` models the order of the
    catalogue and counts nothing else.
    """

    # Sets of task columns, joined by "+", whose equal values make a group.
    groups: Sequence[str] = ("theme", "theme+subcategory", "theme+language", "language+subcategory")
    weights: Sequence[float] = (2.0, 0.5, 0.5, 1.0)  # one per group
    near: float = 0.5
    span: float = 30.0  # tasks over which the weight of a neighbour falls to 1 / e
    word: float = 0.1
    rare: float = 0.05
    fill: float = 0.5
    most: float = 0.05  # share of the servers that may have a word of a theme; a fifth of it for names, descriptions

    def fit(self, data: Dataset, split: Split, *, seed: int, workdir: Path) -> None:
        """Count the training lists by group and index the words; nothing is random."""
        self.train = split.train
        known = np.diff(split.train.indptr) > 0
        names = [group_names(data.tasks, group) for group in self.groups]
        self.rules = [
            (weight, *shares(split.train, values, known)) for weight, values in zip(self.weights, names, strict=True)
        ]
        self.first: IntArray = pd.factorize(names[0])[0].astype(np.int64)
        self.known = np.flatnonzero(known)
        texts, titles = (list(table["name"] + " " + table["description"]) for table in (data.servers, data.tasks))
        self.theme_words = word_matches(data.tasks["theme"].tolist(), texts, self.most)
        self.text_words = word_matches(titles, texts, self.most / 5)
        spoken = [{word.strip().casefold() for word in value.split(",")} - {""} for value in data.servers["language"]]
        spoken_by_tasks = group_names(data.tasks, "language")
        self.language, by_language = shares(split.train, spoken_by_tasks, known)
        kinds = pd.factorize(spoken_by_tasks.where(spoken_by_tasks != ""))[1]
        written = np.array([[name in row for row in spoken] for name in kinds], dtype=np.float32)
        # The last row of the counts is "no language".
        self.filler = np.zeros(by_language.shape, dtype=np.float32)
        self.filler[: len(kinds)] = written.reshape(len(kinds), -1) * by_language[: len(kinds)].toarray()

    def score(self, tasks: IntArray) -> FloatArray:
        """Sums >= 0, shape (len(tasks), n_servers)."""
        scores = np.zeros((len(tasks), self.train.shape[1]), dtype=np.float32)
        for weight, group, counts in self.rules:
            scores += weight * counts[group[tasks]].toarray()
        scores += self.near * self._near(tasks)
        scores += self.word * self._shared(self.theme_words, tasks)
        scores += self.rare * self._shared(self.text_words, tasks)
        scores += self.fill * self.filler[self.language[tasks]]
        return scores

    def _near(self, tasks: IntArray) -> FloatArray:
        """Shares among the training tasks of the first group, near ones first; a task is no neighbour of itself."""
        distance = np.abs(tasks[:, None] - self.known[None, :])
        same = self.first[tasks][:, None] == self.first[self.known][None, :]
        kernel = np.where(same & (distance > 0), np.exp(-distance / self.span), 0)
        total = np.maximum(kernel.sum(axis=1, keepdims=True), 1e-12)
        return np.asarray((sp.csr_matrix(kernel / total) @ self.train[self.known]).toarray(), dtype=np.float32)

    @staticmethod
    def _shared(words: tuple[sp.csr_matrix, sp.csr_matrix], tasks: IntArray) -> FloatArray:
        return np.asarray((words[0][tasks] @ words[1].T).toarray() > 0, dtype=np.float32)


def group_names(tasks: pd.DataFrame, group: str) -> pd.Series:
    """One name per task from the columns of a group, without regard to case; empty where a column is empty."""
    parts = [tasks[column].str.strip().str.casefold() for column in group.split("+")]
    joined = parts[0]
    for part in parts[1:]:
        joined = joined.str.cat(part, sep="\n")
    full = np.all([(part != "").to_numpy() for part in parts], axis=0)
    return joined.where(full, "")


def shares(train: sp.csr_matrix, names: pd.Series, known: np.ndarray) -> tuple[IntArray, sp.csr_matrix]:
    """The group of each task, and per group the share of its training tasks that list each server.

    Returns: shape (n_tasks,), and shape (groups + 1, n_servers); the last row is zero and stands for "no group".
    """
    group, counts = fit_group_counts(train, names)
    size = np.bincount(group[known], minlength=counts.shape[0])
    return group, sp.csr_matrix(sp.diags_array((1 / np.maximum(size, 1)).astype(np.float32)) @ counts)


def word_matches(tasks: list[str], servers: list[str], most: float) -> tuple[sp.csr_matrix, sp.csr_matrix]:
    """Binary word matrices of tasks and servers; words of more than a share `most` of the servers are left out."""
    counter = CountVectorizer(binary=True, stop_words="english", dtype=np.float32).fit(servers)
    of_tasks, of_servers = counter.transform(tasks), counter.transform(servers)
    kept = np.asarray(of_servers.sum(axis=0)).ravel() <= most * len(servers)
    return sp.csr_matrix(of_tasks[:, kept]), sp.csr_matrix(of_servers[:, kept])
