"""Counts of training labels by attribute, with word matches: how well a task's attributes predict its labels."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import scipy.sparse as sp
from sklearn.feature_extraction.text import CountVectorizer

from baselines.popularity import one_hot
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

    It reads words, names and the order of the file, no meaning; `list_order` models the order of the catalogue alone.
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
        self.train, self.known = split.train, split.tasks("train")
        self.rules = []
        for weight, group in zip(self.weights, self.groups, strict=True):
            self.rules.append((weight, *shares(split.train, group_names(data.tasks, group), self.known)[:2]))
        texts, titles = (list(table["name"] + " " + table["description"]) for table in (data.servers, data.tasks))
        self.words = [
            (self.word, *word_matches(data.tasks["theme"].tolist(), texts, self.most)),
            (self.rare, *word_matches(titles, texts, self.most / 5)),
        ]
        self.language, by_language, kinds = shares(split.train, data.tasks["language"], self.known)
        spoken = [{word.strip().casefold() for word in value.split(",")} for value in data.servers["language"]]
        written = sp.csr_matrix([[name in row for row in spoken] for name in kinds], dtype=np.float32)
        self.filler = sp.csr_matrix(by_language.multiply(written))

    def score(self, tasks: IntArray) -> FloatArray:
        """Sums >= 0, shape (len(tasks), n_servers)."""
        scores = np.zeros((len(tasks), self.train.shape[1]), dtype=np.float32)
        for weight, member, share in self.rules:
            scores += weight * (member[tasks] @ share).toarray()
        # The share in the first group, near tasks first; a task is no neighbour of itself.
        distance, group = np.abs(tasks[:, None] - self.known[None, :]), self.rules[0][1]
        same = (group[tasks] @ group[self.known].T).toarray() > 0
        kernel = np.where(same & (distance > 0), np.exp(-distance / self.span), 0)
        near = sp.csr_matrix(kernel / np.maximum(kernel.sum(axis=1, keepdims=True), 1e-12)) @ self.train[self.known]
        scores += self.near * near.toarray().astype(np.float32)
        for weight, of_tasks, of_servers in self.words:
            scores += weight * np.float32((of_tasks[tasks] @ of_servers.T).toarray() > 0)
        return np.asarray(scores + self.fill * (self.language[tasks] @ self.filler).toarray())


def group_names(tasks: pd.DataFrame, group: str) -> pd.Series:
    """One name per task from the columns of a group, without regard to case; empty where a column is empty."""
    columns = (tasks[name].str.strip().str.casefold() for name in group.split("+"))
    return pd.Series(["\n".join(names) if all(names) else "" for names in zip(*columns, strict=True)], tasks.index)


def shares(train: sp.csr_matrix, names: pd.Series, tasks: IntArray) -> tuple[sp.csr_matrix, sp.csr_matrix, list[str]]:
    """The group of each task as an indicator, shape (n_tasks, groups), per group the share of its training tasks that
    list each server, shape (groups, n_servers), and the groups' names."""
    member, kinds = one_hot(names)
    size = np.maximum(np.asarray(member[tasks].sum(axis=0)).ravel(), 1)
    return member, sp.csr_matrix(sp.diags_array((1 / size).astype(np.float32)) @ (member.T @ train)), kinds


def word_matches(tasks: list[str], servers: list[str], most: float) -> tuple[sp.csr_matrix, sp.csr_matrix]:
    """Binary word matrices of tasks and servers; words of more than a share `most` of the servers are left out."""
    counter = CountVectorizer(binary=True, stop_words="english", dtype=np.float32).fit(servers)
    of_tasks, of_servers = counter.transform(tasks), counter.transform(servers)
    frequent = np.asarray(of_servers.sum(axis=0)).ravel() > most * len(servers)
    return sp.csr_matrix(of_tasks[:, ~frequent]), sp.csr_matrix(of_servers[:, ~frequent])
