"""EASE, the embarrassingly shallow autoencoder (Steck, WWW 2019)."""

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

from baselines.collaborative import ItemItem
from study.data.dataset import FloatArray, IntArray


@dataclass
class Ease(ItemItem):
    """Ridge regression of every server on all others, in closed form (Steck 2019, eq. 8).

    W minimises |R - R W|^2 + regularisation |W|^2 with a zero diagonal: with P = (R'R + regularisation I)^-1,
    W[i, j] = -P[i, j] / P[j, j] for i != j.
    """

    # Lambda, in units of training interactions per server. The paper's hundreds suit servers with thousands of them;
    # here a server has five, and hundreds would leave raw co-occurrence counts.
    regularisation: float = 10.0

    def item_weights(self, train: sp.csr_matrix, order: IntArray) -> FloatArray:
        """W, dense, shape (n_servers, n_servers)."""
        gram = (train.T @ train).toarray().astype(np.float32)
        np.fill_diagonal(gram, gram.diagonal() + np.float32(self.regularisation))
        inverse = np.linalg.inv(gram)
        weights: FloatArray = (inverse / -inverse.diagonal()).astype(np.float32)
        np.fill_diagonal(weights, 0)
        return weights

    def parameters(self) -> int:
        """Weights that are not zero."""
        return int(np.count_nonzero(self.weights))
