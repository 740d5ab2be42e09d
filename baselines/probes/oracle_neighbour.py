"""An oracle, not a system: copy the training task whose servers overlap most with the ANSWERS of the asked task."""

from pathlib import Path

import numpy as np
import scipy.sparse as sp

from study.data.dataset import Dataset, FloatArray, IntArray
from study.data.splits import Split
from study.evaluation.ranking import tie_order, top_k


class OracleNeighbour:
    """The best that copying one training task's list can reach, had the neighbour been chosen with the answers known.

    It READS THE TEST LABELS (of a task without any the validation labels): its family is ``oracle``, which no ranking,
    significance test or leak test includes. Ties are left to the seed.
    """

    def fit(self, data: Dataset, split: Split, *, seed: int, workdir: Path) -> None:
        """Keep the training lists and the answers."""
        self.known = split.tasks("train")
        self.interactions = sp.csr_matrix(split.train[self.known])  # (n_known, n_servers)
        self.order = tie_order(len(self.known), seed)
        unasked = np.diff(split.test.indptr) == 0
        self.answers = sp.csr_matrix(split.test + sp.diags_array(unasked.astype(np.float32)) @ split.valid)

    def score(self, tasks: IntArray) -> FloatArray:
        """1 for the servers of the chosen neighbour and 0 elsewhere, shape (len(tasks), n_servers)."""
        overlap = (self.answers[tasks] @ self.interactions.T).toarray().astype(np.float32)
        overlap[self.known[None, :] == tasks[:, None]] = -np.inf
        nearest, _ = top_k(overlap, 1, self.order)
        return np.asarray(self.interactions[nearest[:, 0]].toarray(), dtype=np.float32)
