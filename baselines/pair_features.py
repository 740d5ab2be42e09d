"""What MPT-Rec knows of a task and a server: categorical fields, dense parts of each, and how well the two match."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import scipy.sparse as sp
from sklearn.decomposition import PCA

from study.data.dataset import Dataset, FloatArray, IntArray
from study.data.normalise import licence_key, spelling_key
from study.data.splits import Split
from study.encoders.sentence import encode
from study.t2mrec.lexical import vectorize

UNKNOWN = 0  # the value of a field that is empty, or that no training task has
TASK_COLUMNS = ("category", "subcategory", "language", "theme")
SERVER_COLUMNS = ("category", "subcategory", "license", "official", "system", "origin")
COUNTS = ("stars_count", "watching_count")
BINS = 10


class PairFeatures:
    """Features of every (task, server) pair, kept in the parts of which a linear layer is the sum.

    Attributes:
        task_fields: values from 0 (UNKNOWN) on, shape (n_tasks, task fields); under warm protocols the row is one.
        server_fields: likewise, shape (n_servers, server fields); the row number is the last.
        task_dense: principal components of the text vectors, shape (n_tasks, width).
        server_dense: likewise, and log(1 + training tasks), shape (n_servers, width + 1).
    """

    N_CROSS = 3

    def __init__(self, data: Dataset, split: Split, *, width: int) -> None:
        known = split.tasks("train")
        columns = [codes(data.tasks[name], spelling_key, known) for name in TASK_COLUMNS]
        if not split.cold:
            columns.append(np.where(np.isin(np.arange(data.n_tasks), known), np.arange(data.n_tasks) + 1, UNKNOWN))
        self.task_fields: IntArray = np.stack(columns, axis=1)
        languages = (
            data.servers["language"].str.casefold().str.split(",").map(lambda names: [name.strip() for name in names])
        )
        columns = [
            codes(data.servers[name], licence_key if name == "license" else spelling_key)
            for name in SERVER_COLUMNS
            if name in data.servers
        ]
        columns.append(codes(languages.str[0], spelling_key))
        columns += [bins(data.servers[name]) for name in COUNTS if name in data.servers]
        columns.append(np.arange(data.n_servers) + 1)
        self.server_fields: IntArray = np.stack(columns, axis=1)
        self._match_texts(data, split, width)
        popularity = np.log1p(split.train.getnnz(axis=0)).astype(np.float32)
        self.server_dense: FloatArray = np.concatenate([self.server_parts, popularity[:, None]], axis=1)
        names = [set(row) - {""} for row in languages]
        wanted, first = np.unique(data.tasks["language"].str.strip().str.casefold(), return_inverse=True)
        listed = np.array([[name in row for row in names] for name in wanted], dtype=np.float32)
        self.language_match: FloatArray = listed  # (languages, n_servers)
        self.language: IntArray = first.astype(np.int64)

    def _match_texts(self, data: Dataset, split: Split, width: int) -> None:
        tasks, servers = encode(data.task_texts()), encode(data.server_texts())
        fitted = np.concatenate([servers, tasks[split.tasks("train")]])
        components = PCA(min(width, *fitted.shape), svd_solver="full").fit(fitted)
        scale = np.sqrt(components.explained_variance_).clip(min=1e-6)
        self.task_dense: FloatArray = (components.transform(tasks) / scale).astype(np.float32)
        self.server_parts: FloatArray = (components.transform(servers) / scale).astype(np.float32)
        self.task_vectors, self.server_vectors = tasks, servers
        _, self.task_terms, self.server_terms = vectorize(data, split.tasks("train"))

    def cross(self, task: int, servers: IntArray | None = None) -> FloatArray:
        """Cosines of text vectors and of TF-IDF, and whether the languages agree.

        Args:
            servers: rows, by default all.

        Returns: shape (len(servers), 3).
        """
        rows = slice(None) if servers is None else servers
        cosine = self.server_vectors[rows] @ self.task_vectors[task]
        terms = (self.server_terms[rows] @ self.task_terms[task].T).toarray().ravel()
        together: FloatArray = np.stack([cosine, terms, self.language_match[self.language[task], rows]], axis=1)
        return together

    def crosses(self, tasks: IntArray, servers: IntArray) -> FloatArray:
        """`cross` of pairs, shape (len(tasks), 3)."""
        cosine = np.einsum("nd,nd->n", self.task_vectors[tasks], self.server_vectors[servers])
        terms = np.asarray(
            sp.csr_matrix.multiply(self.task_terms[tasks], self.server_terms[servers]).sum(axis=1)
        ).ravel()
        together: FloatArray = np.stack([cosine, terms, self.language_match[self.language[tasks], servers]], axis=1)
        return together.astype(np.float32)


def codes(values: pd.Series, key: object, known: IntArray | None = None) -> IntArray:
    """Numbers from 1 for the values of a field, the most frequent first; 0 where it is empty or not among the known.

    Args:
        key: equal for spellings of one value.
        known: rows whose values count, by default all.
    """
    assert callable(key)
    keys = values.fillna("").astype(str).map(key)
    seen = keys if known is None else keys.iloc[known]
    found = seen[seen != ""].value_counts(sort=False)
    order = sorted(found.index, key=lambda name: (-found[name], name))
    numbers: IntArray = (
        keys.map({name: number for number, name in enumerate(order, start=1)}).fillna(UNKNOWN).to_numpy(np.int64)
    )
    return numbers


def bins(values: pd.Series) -> IntArray:
    """Ten logarithmic bins of counts, from 1; 0 where there is none."""
    counts = pd.to_numeric(values, errors="coerce")
    number = np.floor(np.log2(counts.fillna(0).clip(lower=0) + 1)).clip(upper=BINS - 1) + 1
    binned: IntArray = np.where(counts.isna(), UNKNOWN, number).astype(np.int64)
    return binned


def sizes(fields: IntArray) -> Sequence[int]:
    """Values of each field, UNKNOWN included."""
    return [int(column.max()) + 1 for column in fields.T]
