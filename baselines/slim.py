"""SLIM, sparse linear methods (Ning & Karypis, ICDM 2011), by scikit-learn's elastic net."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from sklearn.linear_model import ElasticNet

from baselines.collaborative import ItemItem, keep_largest
from study.data.dataset import IntArray


@dataclass
class Slim(ItemItem):
    """A non-negative elastic net of every server on all others.

    Column j of W minimises |R[:, j] - R w|^2 / (2 n_tasks) + alpha l1_ratio |w|_1 + alpha (1 - l1_ratio) |w|^2 / 2 over
    w >= 0 with w[j] = 0. Only servers that share a task with j can have a weight: for any other one the derivative of
    the first term is not negative where w >= 0, so leaving them out changes nothing and turns minutes into seconds.
    """

    alpha: float = 1e-3  # strength of both penalties, in units of training interactions per task
    l1_ratio: float = 0.01  # share of the penalty that makes weights exactly zero
    k: int | None = None  # weights kept per server; None keeps all

    def item_weights(self, train: sp.csr_matrix, order: IntArray) -> sp.csr_matrix:
        """W, sparse, shape (n_servers, n_servers)."""
        n_tasks, n_servers = train.shape
        by_server = sp.csc_matrix(train, dtype=np.float64)
        found: list[tuple[IntArray, np.ndarray]] = []
        for server in range(n_servers):
            tasks = by_server.indices[by_server.indptr[server] : by_server.indptr[server + 1]]
            candidates = np.setdiff1d(train[tasks].indices, server)
            found.append((candidates, self._regress(by_server, train, server, candidates, n_tasks)))
        column = np.repeat(np.arange(n_servers), [len(rows) for rows, _ in found])
        rows, values = (np.concatenate([part[i] for part in found]) for i in (0, 1))
        positive = values > 0
        by_target = sp.csr_matrix(
            (values[positive], (column[positive], rows[positive])), shape=(n_servers, n_servers), dtype=np.float32
        )
        return sp.csr_matrix(keep_largest(by_target, self.k, order).T)

    def _regress(
        self, by_server: sp.csc_matrix, train: sp.csr_matrix, server: int, candidates: IntArray, n_tasks: int
    ) -> np.ndarray:
        """Weights of `candidates` for `server`, shape (len(candidates),)."""
        if not len(candidates):
            return np.zeros(0)
        features = by_server[:, candidates]
        # Tasks that list none of the candidates add a constant to the loss; dropping them only rescales the penalty.
        used = np.unique(features.indices)
        dense = features[used].toarray()
        target = by_server[:, [server]][used].toarray().ravel()
        alpha = self.alpha * n_tasks / len(used)
        model = ElasticNet(alpha=alpha, l1_ratio=self.l1_ratio, positive=True, fit_intercept=False, copy_X=False)
        return np.asarray(model.fit(np.asfortranarray(dense), target).coef_)

    def parameters(self) -> int:
        """Weights that are not zero."""
        return int(sp.csr_matrix(self.weights).count_nonzero())
