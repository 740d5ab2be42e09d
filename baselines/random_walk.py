"""Random walks of three steps on the task-server graph: P3alpha and RP3beta."""

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

from baselines.collaborative import ItemItem, keep_largest
from baselines.neighbours import without_diagonal
from study.data.dataset import IntArray


@dataclass
class RandomWalk(ItemItem):
    """P3alpha (Cooper et al. 2014), and with beta > 0 RP3beta (Paudel et al. 2017, eq. 5).

    A walk goes from the task to a server, back to a task, and on to a server m. Transition probabilities are raised to
    alpha, and the end is divided by popularity^beta. The first step, the same for all servers of a task, is left out.
    With `normalise` each server's weights are divided by their sum before any is dropped, so that every server of a
    history has one vote in all (Ferrari Dacrema et al. 2021).
    """

    alpha: float = 1.0
    beta: float = 0.0
    k: int | None = None  # sources kept per end server; None keeps all
    normalise: bool = False

    def item_weights(self, train: sp.csr_matrix, order: IntArray) -> sp.csr_matrix:
        """Weights of walks server -> task -> server without return, shape (n_servers, n_servers)."""
        steps = [transitions(matrix) for matrix in (sp.csr_matrix(train.T), train)]
        for step in steps:
            step.data **= self.alpha  # to the power 0 a stored entry is 1, and an empty one stays empty
        popularity = np.maximum(np.bincount(train.indices, minlength=train.shape[1]), 1) ** -float(self.beta)
        walk = without_diagonal(steps[0] @ steps[1]) @ sp.diags_array(popularity.astype(np.float32))
        if self.normalise:
            walk = transitions(sp.csr_matrix(walk))
        return sp.csr_matrix(keep_largest(sp.csr_matrix(walk.T), self.k, order).T)


def transitions(matrix: sp.csr_matrix) -> sp.csr_matrix:
    """The matrix with each row divided by its sum; empty rows stay empty."""
    sums = np.asarray(matrix.sum(axis=1)).ravel()
    return sp.csr_matrix(sp.diags_array((1 / np.maximum(sums, 1e-12)).astype(np.float32)) @ matrix)
