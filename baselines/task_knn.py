"""Content task-KNN: servers listed for the training tasks whose text and attributes are most alike."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sp

from baselines.popularity import one_hot
from study.advisor.encoders.sentence import encode
from study.data.dataset import TASK_FIELDS, Dataset, FloatArray, IntArray
from study.data.splits import Split
from study.evaluation.ranking import tie_order, top_k
from study.t2mrec.lexical import fit_vectorizer

ATTRIBUTES, FIELDS = ("theme", "language", "subcategory"), (*TASK_FIELDS, "subcategory")


@dataclass
class TaskKNN:
    """User-based nearest neighbours on content (Ferrari Dacrema et al. 2021, "UserKNN CBF").

    score(t, m) = sum over the k most similar training tasks t' != t of s(t, t')^power * R_train[t', m], with
    s = ((1 - mix) * cos_tfidf + mix * cos_minilm + attribute_weight * agreement) / (1 + attribute_weight), where
    cosines below 0 count as 0 and agreement is the share of `attributes` on which both tasks have the same value.
    Which of equally similar tasks are taken is drawn by the seed.
    """

    k: int = 100  # number of neighbours
    power: float = 4.0  # how sharply near neighbours outweigh far ones
    mix: float = 0.0  # 0 = TF-IDF alone, 1 = sentence vectors alone
    attribute_weight: float = 0.0  # weight of the attributes against the text (weight 1)
    attributes: Sequence[str] = ATTRIBUTES  # task columns that are compared as names
    fields: Sequence[str] = FIELDS  # task columns of the text, for both kinds of vectors
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
        # A part of weight 0 is not computed. Each is a matrix whose products of rows are similarities.
        self.parts: list[tuple[float, Any]] = []
        if self.mix < 1:
            train_texts, size = [texts[row] for row in self.known], (1, self.max_ngram)
            vectorizer = fit_vectorizer(train_texts, max_features=self.max_features, ngram_range=size)
            self.parts.append((1 - self.mix, sp.csr_matrix(vectorizer.transform(texts))))
        if self.mix > 0:
            self.parts.append((self.mix, encode(texts)))
        if self.attribute_weight > 0:
            self.parts.append((self.attribute_weight, encode_attributes(data.tasks, self.attributes)))

    def similarity(self, tasks: IntArray) -> FloatArray:
        """s in [0, 1] to every training task, shape (len(tasks), n_known); -inf to the task itself."""
        total = np.zeros((len(tasks), len(self.known)), dtype=np.float32)
        for weight, vectors in self.parts:
            product = vectors[tasks] @ vectors[self.known].T
            total += weight * np.maximum(product.toarray() if sp.issparse(product) else product, 0)
        total /= 1 + self.attribute_weight
        number = self.place[tasks]
        total[np.flatnonzero(number >= 0), number[number >= 0]] = -np.inf
        return total

    def score(self, tasks: IntArray) -> FloatArray:
        """Weighted votes >= 0, shape (len(tasks), n_servers)."""
        neighbours, similarity = top_k(self.similarity(tasks), self.k, self.order)
        row, column = np.nonzero(neighbours >= 0)
        weights = similarity[row, column] ** self.power
        shape = (len(tasks), len(self.known))
        votes = sp.csr_matrix((weights, (row, neighbours[row, column])), shape=shape) @ self.interactions
        return np.asarray(votes.toarray(), dtype=np.float32)


def encode_attributes(tasks: pd.DataFrame, attributes: Sequence[str]) -> sp.csr_matrix:
    """Indicators of each attribute's values, such that the product of two rows is the share of equal attributes."""
    indicators = sp.hstack([one_hot(tasks[name])[0] for name in attributes])
    return sp.csr_matrix(indicators * np.float32(1 / np.sqrt(len(attributes))))
