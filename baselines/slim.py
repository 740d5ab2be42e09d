"""SLIM, sparse linear methods (Ning & Karypis, ICDM 2011), by scikit-learn's elastic net."""

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
        n_servers, by_server = train.shape[1], sp.csc_matrix(train, dtype=np.float64)
        parts = []
        for server in range(n_servers):
            target = by_server[:, [server]]
            candidates = np.setdiff1d(train[target.indices].indices, server)
            if len(candidates):
                # Tasks that list none of them add a constant to the loss; dropping them only rescales the penalty.
                features = by_server[:, candidates]
                used = np.unique(features.indices)
                alpha = self.alpha * train.shape[0] / len(used)
                net = ElasticNet(alpha=alpha, l1_ratio=self.l1_ratio, positive=True, fit_intercept=False, copy_X=False)
                weights = net.fit(np.asfortranarray(features[used].toarray()), target[used].toarray().ravel()).coef_
                parts.append(np.stack([np.full(len(candidates), server), candidates, weights])[:, weights > 0])
        column, rows, values = np.concatenate([np.zeros((3, 0)), *parts], axis=1)
        places = column.astype(np.int64), rows.astype(np.int64)
        by_target = sp.csr_matrix((values, places), shape=(n_servers, n_servers), dtype=np.float32)
        return sp.csr_matrix(keep_largest(by_target, self.k, order).T)

    def parameters(self) -> int:
        """Weights that are not zero."""
        return int(sp.csr_matrix(self.weights).count_nonzero())
