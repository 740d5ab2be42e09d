"""Likeness of tasks as products of factors, and the two predictions made from it: ridge regression and weighted shares.

Both leave a training task's own labels out, in closed form, so what they say about training tasks and about new ones is
alike and a model on top of them can learn from training tasks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import scipy.sparse as sp

from study.data.dataset import TASK_FIELDS, Dataset, FloatArray, IntArray
from study.encoders.sentence import encode
from study.errors import StudyError
from study.t2mrec.lexical import fit_vectorizer

ATTRIBUTES = ("theme", "language", "subcategory")
TEXTS = {"text": (*TASK_FIELDS, "subcategory"), "name": ("name",)}
SENTENCE, NEAR = "minilm", "near"


def require_factors(kernels: Iterable[str], column: str) -> None:
    """Raise `StudyError` for a kernel with an unknown factor."""
    for name in kernels:
        for factor in name.split("*"):
            span = factor.removeprefix(NEAR)
            near = factor.startswith(NEAR) and span.isdecimal() and int(span) > 0
            if not near and factor not in (*ATTRIBUTES, *TEXTS, SENTENCE):
                raise StudyError(
                    f"there is no factor {factor!r}",
                    column=f"{column}.{name}",
                    fix=f"one of: {', '.join((*TEXTS, SENTENCE, *ATTRIBUTES))}, near30",
                )


class Likeness:
    """Kernels between tasks. A kernel is named by its factors, joined by "*".

    Factors: ``text`` and ``name`` (cosine of TF-IDF vectors), ``minilm`` (cosine of sentence vectors), ``theme``,
    ``language``, ``subcategory`` (1 where equal, ignoring case), and ``near30`` (exp(-|difference in file position| /
    30), for any positive number): tasks that stand together in the file were annotated alike.

    Args:
        known: rows of the training tasks; the vocabulary and its frequencies come from them.
        kernels: those that will be asked for.
        max_features, max_ngram: of the TF-IDF vectors.
    """

    def __init__(
        self, data: Dataset, known: IntArray, kernels: Iterable[str], *, max_features: int | None, max_ngram: int
    ) -> None:
        self.known = known
        self.values: dict[str, FloatArray | IntArray | sp.csr_matrix] = {}
        for name in sorted({factor for kernel in kernels for factor in kernel.split("*")}):
            if name in ATTRIBUTES:
                found = pd.factorize(data.tasks[name].str.strip().str.casefold())[0]
                self.values[name] = np.asarray(found, dtype=np.int64)
            elif name in TEXTS:
                texts = data.task_texts(TEXTS[name])
                learned = [texts[row] for row in known]
                vectorizer = fit_vectorizer(learned, max_features=max_features, ngram_range=(1, max_ngram))
                self.values[name] = sp.csr_matrix(vectorizer.transform(texts))
            else:
                self.values[name] = encode(data.task_texts()) if name == SENTENCE else np.arange(data.n_tasks)

    def factor(self, name: str, tasks: IntArray) -> FloatArray:
        """One factor between `tasks` and the training tasks, shape (len(tasks), n_known), float32."""
        values = self.values[name]
        left, right = values[tasks], values[self.known]
        if name in ATTRIBUTES:
            return np.asarray(left[:, None] == right[None, :], dtype=np.float32)
        if name in TEXTS:
            return np.asarray(sp.csr_matrix(left @ right.T).toarray(), dtype=np.float32)
        if name == SENTENCE:
            return np.asarray(left @ right.T, dtype=np.float32)
        apart = np.abs(left[:, None] - right[None, :]).astype(np.float32)
        return np.asarray(np.exp(-apart / np.float32(name.removeprefix(NEAR))), dtype=np.float32)

    def kernel(self, name: str, tasks: IntArray) -> FloatArray:
        """The product of a kernel's factors, shape (len(tasks), n_known)."""
        first, *others = name.split("*")
        product = self.factor(first, tasks)
        for factor in others:
            product *= self.factor(factor, tasks)
        return product

    def total(self, weights: Mapping[str, float], tasks: IntArray) -> FloatArray:
        """The weighted sum of kernels, shape (len(tasks), n_known)."""
        summed = np.zeros((len(tasks), len(self.known)), dtype=np.float32)
        for name, weight in weights.items():
            summed += np.float32(weight) * self.kernel(name, tasks)
        return summed


@dataclass
class Ridge:
    """Kernel ridge regression of every server's labels (Saunders et al. 1998): s_t = k_t (K + lambda I)^-1 Y.

    A training task is scored as if it had not been learned from: y_i - [(K + lambda I)^-1 Y]_i / [(K + lambda I)^-1]_ii
    (leave-one-out, Rifkin & Lippert 2007).

    Args:
        weights: kernel -> weight.
        regularisation: lambda.
    """

    weights: Mapping[str, float]
    regularisation: float

    def fit(self, likeness: Likeness, labels: sp.csr_matrix) -> None:
        """Solve for the training tasks.

        Args:
            labels: their lists, shape (n_known, n_servers).
        """
        self.likeness, self.labels = likeness, labels
        system = likeness.total(self.weights, likeness.known)
        system[np.diag_indices_from(system)] += np.float32(self.regularisation)
        inverse = np.linalg.inv(system)
        self.own = inverse.diagonal().copy()
        self.dual: FloatArray = np.asarray(inverse @ labels, dtype=np.float32)

    def score(self, tasks: IntArray, place: IntArray) -> FloatArray:
        """Scores, shape (len(tasks), n_servers).

        Args:
            place: number of each task among the training tasks, -1 for others.
        """
        scores = np.asarray(self.likeness.total(self.weights, tasks) @ self.dual, dtype=np.float32)
        row, own = np.flatnonzero(place >= 0), place[place >= 0]
        scores[row] = self.labels[own].toarray() - self.dual[own] / self.own[own, None]
        return scores


def shares(likeness: Likeness, kernel: str, labels: sp.csr_matrix, tasks: IntArray, place: IntArray) -> FloatArray:
    """The share of the other training tasks that list a server, weighted by the kernel; (len(tasks), n_servers)."""
    weights = likeness.kernel(kernel, tasks)
    row = np.flatnonzero(place >= 0)
    weights[row, place[row]] = 0
    total = weights.sum(axis=1, keepdims=True)
    return np.asarray((weights @ labels) / np.where(total > 0, total, 1), dtype=np.float32)


def used(weights: Mapping[str, float]) -> list[str]:
    """Kernels with a weight above 0."""
    return [name for name, weight in weights.items() if weight > 0]


def all_kernels(weights: Sequence[Mapping[str, float]], others: Sequence[str]) -> list[str]:
    """Every kernel that is asked for."""
    return sorted({name for group in weights for name in used(group)} | set(others))
