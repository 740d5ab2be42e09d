"""Linear extreme classification: one linear classifier per server on the text and the attributes of a task."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.linalg import cho_factor, cho_solve

from baselines.task_knn import ATTRIBUTES, FIELDS, encode_attributes
from study.data.dataset import Dataset, FloatArray, IntArray
from study.data.splits import Split
from study.t2mrec.lexical import fit_vectorizer, vectorize


@dataclass
class LinearXMC:
    """One-vs-rest ridge regression of every server's training labels on task features, in closed form.

    W = (X'X + lambda I)^-1 X'Y, and score(t, m) = x_t . W[:, m], computed as k_t (K + lambda I)^-1 Y with K = X X' and
    k_t = x_t X', the same (Saunders et al. 1998), since tasks are far fewer than features. Rows of X hold the TF-IDF
    vector of the text and the indicators of the attributes.

    A server that no training task lists scores text_prior times the TF-IDF cosine of task and server, so that it passes
    labelled servers by the words that it shares with the task; without a common word it is no higher than the lowest
    labelled server, since a score of 0 would put it above all those with a negative one.
    """

    regularisation: float = 1.0  # lambda, against the squared length 1 + attribute_weight of a task's features
    attribute_weight: float = 1.0  # squared length of the attributes' part; the text's is 1
    max_ngram: int = 2  # the longest word n-gram
    text_prior: float = 1.0  # weight of the cosine for servers that no training task lists; 0 leaves them last

    def fit(self, data: Dataset, split: Split, *, seed: int, workdir: Path) -> None:
        """Factorise K + regularisation I over the training tasks; nothing is random."""
        train_tasks = split.tasks("train")
        texts = data.task_texts(FIELDS)
        size: dict[str, Any] = {"max_features": 50_000, "ngram_range": (1, self.max_ngram)}
        vectorizer = fit_vectorizer([texts[row] for row in train_tasks], **size)
        attributes = np.float32(np.sqrt(self.attribute_weight)) * encode_attributes(data.tasks, ATTRIBUTES)
        self.features = sp.csr_matrix(sp.hstack([vectorizer.transform(texts), attributes]))  # (n_tasks, d)
        self.known = sp.csr_matrix(self.features[train_tasks].T)  # (d, n_known)
        self.labels = sp.csr_matrix(split.train[train_tasks])  # (n_known, n_servers)
        kernel = (self.features[train_tasks] @ self.known).toarray().astype(np.float32)
        kernel[np.diag_indices_from(kernel)] += np.float32(self.regularisation)
        self.factor = cho_factor(kernel, lower=True, overwrite_a=True, check_finite=False)
        self.unlisted = np.flatnonzero(self.labels.getnnz(axis=0) == 0)
        _, self.texts, servers = vectorize(data, train_tasks, **size)  # (n_tasks, d'), (n_servers, d')
        self.unlisted_texts = sp.csr_matrix(servers[self.unlisted].T)  # (d', n_unlisted)

    def score(self, tasks: IntArray) -> FloatArray:
        """x_t . W, and the text prior of servers that no training task lists, shape (len(tasks), n_servers)."""
        similarity = (self.features[tasks] @ self.known).toarray()  # (b, n_known)
        weights = cho_solve(self.factor, similarity.T, check_finite=False).T
        scores: FloatArray = (weights @ self.labels).astype(np.float32)
        prior = self.text_prior * (self.texts[tasks] @ self.unlisted_texts).toarray()  # (b, n_unlisted)
        scores[:, self.unlisted] = np.where(prior > 0, prior, scores.min(axis=1, keepdims=True))
        return scores

    def parameters(self) -> int:
        """Entries of W for features and servers that occur in training."""
        return int(np.count_nonzero(np.diff(self.known.indptr)) * len(np.unique(self.labels.indices)))
