"""Lexical vectors of tasks and servers (paper, eq. 4-5)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp

from study.data.dataset import Dataset, IntArray

if TYPE_CHECKING:  # importing scikit-learn takes a second; a command that fits nothing does without it
    from sklearn.feature_extraction.text import TfidfVectorizer


def fit_vectorizer(texts: list[str], *, max_features: int | None, ngram_range: Sequence[int]) -> TfidfVectorizer:
    """Fit TF-IDF with scikit-learn's defaults (lower case, words of two characters or more, L2 norm: eq. 5) on `texts`,
    with the most frequent `max_features` word n-grams (the authors' program: 50,000), from shortest to longest."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    vectorizer = TfidfVectorizer(max_features=max_features, ngram_range=tuple(ngram_range), dtype=np.float32)
    return vectorizer.fit(texts)


def vectorize(
    data: Dataset, train_tasks: IntArray, *, max_features: int | None = 50_000, ngram_range: Sequence[int] = (1, 2)
) -> tuple[TfidfVectorizer, sp.csr_matrix, sp.csr_matrix]:
    """Task and server vectors over one shared vocabulary, fitted on all servers and the training tasks.

    Returns: the vectoriser; v_t, shape (n_tasks, d); v_m, shape (n_servers, d); both CSR, L2-normalised rows.
    """
    tasks, servers = data.task_texts(), data.server_texts()
    corpus = servers + [tasks[row] for row in train_tasks]
    vectorizer = fit_vectorizer(corpus, max_features=max_features, ngram_range=ngram_range)
    return vectorizer, vectorizer.transform(tasks), vectorizer.transform(servers)


def to_json(vectorizer: TfidfVectorizer) -> dict[str, Any]:
    """The fitted vectoriser as plain data, so that no pickle is ever loaded; `TfIdf.of_saved` reads it."""
    terms = sorted(vectorizer.vocabulary_, key=vectorizer.vocabulary_.__getitem__)
    return {"terms": terms, "idf": [float(value) for value in vectorizer.idf_], "ngrams": list(vectorizer.ngram_range)}
