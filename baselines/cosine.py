"""Cosine between the text of a task and the text of a server: of TF-IDF vectors, and of sentence vectors."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from study.advisor.encoders.sentence import encode
from study.data.dataset import Dataset, FloatArray, IntArray
from study.data.splits import Split
from study.t2mrec.lexical import vectorize


@dataclass
class TfidfCosine:
    """cos(x_t, x_m) in the input space of T2MRec (paper, eq. 4-5; Salton & Buckley 1988), so the method without
    anything learned; its vectoriser is fitted on all servers and the training tasks. It uses no labels."""

    max_features: int | None = 50_000  # the most frequent n-grams kept; None keeps all
    ngram_range: Sequence[int] = (1, 2)  # shortest and longest word n-gram

    def fit(self, data: Dataset, split: Split, *, seed: int, workdir: Path) -> None:
        """Fit the vocabulary and the document frequencies, and vectorise every task and server."""
        rows, shortest_longest = split.tasks("train"), (self.ngram_range[0], self.ngram_range[1])
        _, self.tasks, servers = vectorize(data, rows, max_features=self.max_features, ngram_range=shortest_longest)
        self.servers = servers.T.tocsr()  # (d, n_servers)

    def score(self, tasks: IntArray) -> FloatArray:
        """Cosines in [0, 1], shape (len(tasks), n_servers)."""
        return np.asarray((self.tasks[tasks] @ self.servers).toarray(), dtype=np.float32)


@dataclass
class DenseCosine:
    """cos(E(x_t), E(x_m)) with a frozen text encoder (MiniLM: Wang et al. 2020; Reimers & Gurevych 2019); no labels."""

    def fit(self, data: Dataset, split: Split, *, seed: int, workdir: Path) -> None:
        """Encode every task and server (cached on disk)."""
        self.tasks, self.servers = encode(data.task_texts()), encode(data.server_texts())

    def score(self, tasks: IntArray) -> FloatArray:
        """Cosines in [-1, 1], shape (len(tasks), n_servers)."""
        return np.asarray(self.tasks[tasks] @ self.servers.T, dtype=np.float32)
