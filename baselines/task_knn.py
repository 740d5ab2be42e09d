"""Content task-KNN: servers listed for the training tasks whose text and attributes are most alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import scipy.sparse as sp

from baselines.popularity import numbered
from study.advisor.encoders.sentence import encode
from study.data.dataset import TASK_FIELDS, Dataset, FloatArray, IntArray
from study.data.splits import Split
from study.evaluation.ranking import tie_order, top_k
from study.t2mrec.lexical import fit_vectorizer


@dataclass
class TaskKNN:
    """User-based nearest neighbours on content (Ferrari Dacrema et al. 2021, "UserKNN CBF").

    score(t, m) = sum over the k most similar training tasks t' != t of s(t, t')^power * R_train[t', m], with
    s = ((1 - mix) * cos_tfidf + mix * cos_minilm + attribute_weight * agreement) / (1 + attribute_weight), where
    cosines below 0 count as 0 and agreement is the share of `attributes` on which both tasks have the same value.
    Which of equally similar tasks are taken is drawn by the seed. Servers of no neighbour score 0.
    """

    k: int = 100  # number of neighbours
    power: float = 4.0  # how sharply near neighbours outweigh far ones
    mix: float = 0.0  # 0 = TF-IDF alone, 1 = sentence vectors alone
    attribute_weight: float = 0.0  # weight of the attributes against the text (weight 1)
    attributes: Sequence[str] = ("theme", "language", "subcategory")  # task columns that are compared as names
    fields: Sequence[str] = (*TASK_FIELDS, "subcategory")  # task columns of the text, for both kinds of vectors
    max_features: int | None = 50_000  # the most frequent n-grams kept; None keeps all
    max_ngram: int = 2  # the longest word n-gram of the TF-IDF vectors

    def fit(self, data: Dataset, split: Split, *, seed: int, workdir: Path) -> None:
        """Vectorise every task; the vocabulary and its frequencies come from the training tasks."""
        self.known = split.tasks("train")
        self.interactions = sp.csr_matrix(split.train[self.known])  # (n_known, n_servers)
        self.order = tie_order(len(self.known), seed)
        self.place = np.full(data.n_tasks, -1)  # a task's number among the training tasks
        self.place[self.known] = np.arange(len(self.known))
        texts = data.task_texts(tuple(self.fields))
        # A part of weight 0 is neither computed nor, for the sentence vectors, is its model loaded.
        self.lexical = self._lexical(texts) if self.mix < 1 else None
        self.dense = encode(texts) if self.mix > 0 else None
        self.one_hot = one_hot(data.tasks, self.attributes) if self.attribute_weight > 0 else None

    def _lexical(self, texts: list[str]) -> sp.csr_matrix:
        known = [texts[row] for row in self.known]
        vectorizer = fit_vectorizer(known, max_features=self.max_features, ngram_range=(1, self.max_ngram))
        return sp.csr_matrix(vectorizer.transform(texts))

    def similarity(self, tasks: IntArray) -> FloatArray:
        """s in [0, 1] to every training task, shape (len(tasks), n_known); -inf to the task itself."""
        total = np.zeros((len(tasks), len(self.known)), dtype=np.float32)
        if self.lexical is not None:
            total += (1 - self.mix) * (self.lexical[tasks] @ self.lexical[self.known].T).toarray()
        if self.dense is not None:
            total += self.mix * np.maximum(self.dense[tasks] @ self.dense[self.known].T, 0)
        if self.one_hot is not None:
            total += self.attribute_weight * (self.one_hot[tasks] @ self.one_hot[self.known].T).toarray()
        total /= 1 + self.attribute_weight
        own = self.place[tasks]
        total[np.flatnonzero(own >= 0), own[own >= 0]] = -np.inf
        return total

    def score(self, tasks: IntArray) -> FloatArray:
        """Weighted votes >= 0, shape (len(tasks), n_servers)."""
        neighbours, similarity = top_k(self.similarity(tasks), self.k, self.order)
        row, column = np.nonzero(neighbours >= 0)
        weights = similarity[row, column] ** self.power
        shape = (len(tasks), len(self.known))
        votes = sp.csr_matrix((weights, (row, neighbours[row, column])), shape=shape) @ self.interactions
        return np.asarray(votes.toarray(), dtype=np.float32)


def one_hot(tasks: pd.DataFrame, attributes: Sequence[str]) -> sp.csr_matrix:
    """Indicators of each attribute's values, such that the product of two rows is the share of equal attributes.

    Names are compared without regard to case; an empty one equals no other.
    """
    columns, offset = [], 0
    for attribute in attributes:
        numbers, found = numbered(tasks[attribute])
        columns.append(np.where(numbers < 0, -1, numbers + offset))
        offset += len(found)
    row, column = np.nonzero(np.array(columns).T >= 0)
    values = np.full(len(row), 1 / np.sqrt(len(columns)), dtype=np.float32)
    return sp.csr_matrix((values, (row, np.array(columns).T[row, column])), shape=(len(tasks), offset))
