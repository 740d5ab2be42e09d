"""iALS: implicit matrix factorisation by alternating least squares (Hu et al. 2008), as tuned by Rendle et al. 2022."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from baselines.collaborative import Representations, unranked_without_history
from study.data.dataset import Dataset, FloatArray, IntArray
from study.data.splits import Split


@dataclass
class ImplicitALS:
    """Matrix factorisation that also pulls every unobserved pair towards 0 (Rendle et al. 2022, eq. 1-4).

    score(t, m) = w_t . h_m minimises sum over observed (1 - score)^2 + unobserved_weight sum over all score^2
    + sum over tasks lambda_t |w_t|^2 + sum over servers lambda_m |h_m|^2, with
    lambda_t = regularisation (|R_t| + unobserved_weight n_servers)^frequency_scaling, and likewise for servers.
    """

    width: int = 256  # d, length of the vectors
    sweeps: int = 16  # solutions of all tasks, then of all servers
    unobserved_weight: float = 0.01  # alpha_0
    regularisation: float = 0.01  # lambda
    frequency_scaling: float = 1.0  # nu, 0 (the same for all) to 1 (in proportion to what is fitted)

    def fit(self, data: Dataset, split: Split, *, seed: int, workdir: Path) -> None:
        """Alternate between the closed-form solutions of tasks and servers."""
        rng = np.random.default_rng(seed)
        train = sp.csr_matrix(split.train, dtype=np.float32)
        transposed = sp.csr_matrix(train.T)
        deviation = 0.1 / np.sqrt(self.width)
        self.servers: FloatArray = rng.normal(0, deviation, (data.n_servers, self.width)).astype(np.float32)
        for _ in range(self.sweeps):
            tasks = self.solve(train, self.servers)
            self.servers = self.solve(transposed, tasks)
        self.histories, self.representations = train, tasks

    def solve(self, interactions: sp.csr_matrix, others: FloatArray) -> FloatArray:
        """The best vectors of one side given those of the other side, shape (n, d), for interactions (n, m) and others
        (m, d); zero for a row without interactions. Rows with the same number c of them share lambda, hence one d x d
        inverse A; the rest of each row's system has rank c, so (A^-1 + S'S)^-1 S'1 = A S' (I + S A S')^-1 1 needs only
        a c x c solution."""
        wide = others.astype(np.float64)
        gram = self.unobserved_weight * (wide.T @ wide)
        counts = np.diff(interactions.indptr)
        solved = np.zeros((interactions.shape[0], others.shape[1]), dtype=np.float32)
        for count in np.unique(counts[counts > 0]):
            strength = self.regularisation * (count + self.unobserved_weight * len(others)) ** self.frequency_scaling
            inverse = np.linalg.inv(gram + strength * np.eye(len(gram)))
            rows = np.flatnonzero(counts == count)
            seen = wide[interactions.indices[interactions.indptr[rows][:, None] + np.arange(count)]]  # (b, c, d)
            shared = seen @ inverse
            small = np.linalg.solve(np.eye(count) + shared @ seen.transpose(0, 2, 1), np.ones((len(rows), count, 1)))
            solved[rows] = (shared.transpose(0, 2, 1) @ small)[:, :, 0]
        return solved

    def score(self, tasks: IntArray) -> FloatArray:
        """w_t . h_m, shape (len(tasks), n_servers); a task without training interactions is not ranked."""
        return unranked_without_history(self.score_representations(self.representations[tasks]), self.histories[tasks])

    def score_representations(self, rows: Representations) -> FloatArray:
        """Scores of the task vectors `rows`, shape (b, n_servers)."""
        return np.asarray(np.asarray(rows) @ self.servers.T)

    def parameters(self) -> int:
        """All entries of both sides' vectors."""
        return int(self.representations.size + self.servers.size)
