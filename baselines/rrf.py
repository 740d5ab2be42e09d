"""Reciprocal-rank fusion of other systems (Cormack et al., SIGIR 2009)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from study.base.errors import require_one_of
from study.data.dataset import Dataset, FloatArray, IntArray
from study.data.splits import Split
from study.evaluation.ranking import mask_known, tie_order, top_k
from study.evaluation.system import System


@dataclass
class ReciprocalRankFusion:
    """score(t, m) = sum over members of weight / (c + rank of m for t), over the member's `depth` best servers.

    Known training servers, which would hold the first ranks of members that have seen them, are left out before.
    Servers tied with a member's lowest score were not found by it and get no rank, so that a member that says nothing
    about a task (a collaborative one about a new task) leaves it to the others.
    """

    members: Mapping[str, System]
    weights: Mapping[str, float] = field(default_factory=dict)  # by member, 1 where none is stated (the paper's)
    c: float = 60.0  # how little the first ranks stand out; the paper's
    depth: int = 100  # ranks that count

    def fit(self, data: Dataset, split: Split, *, seed: int, workdir: Path) -> None:
        """Fit every member in a folder of its own."""
        self.train, self.order = split.train, tie_order(data.n_servers, seed)
        for name in self.weights:
            require_one_of(name, "member", self.members, column="model.weights")
        for name, member in self.members.items():
            folder = workdir / name
            folder.mkdir(parents=True, exist_ok=True)
            member.fit(data, split, seed=seed, workdir=folder)

    def score(self, tasks: IntArray) -> FloatArray:
        """Fused scores >= 0, shape (len(tasks), n_servers)."""
        fused = np.zeros((len(tasks), self.train.shape[1]), dtype=np.float32)
        for name, member in self.members.items():
            scores = np.array(member.score(tasks), dtype=np.float32)
            scores[scores <= scores.min(axis=1, keepdims=True)] = -np.inf
            best, _ = top_k(mask_known(scores, tasks, self.train), self.depth, self.order)
            row, rank = np.nonzero(best >= 0)
            fused[row, best[row, rank]] += (self.weights.get(name, 1.0) / (self.c + 1 + rank)).astype(np.float32)
        return fused
