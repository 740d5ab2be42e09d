"""What a system is: anything that scores servers for tasks after seeing the training interactions."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol, runtime_checkable

import scipy.sparse as sp

from study.data.dataset import Dataset, FloatArray, IntArray
from study.data.splits import Split


class System(Protocol):
    """A system under study. Constructor arguments come from its yaml in ``conf/system``, key ``model``.

    It may have `parameters()`, the number of trained parameters, and `report()`, counts and measures of its last fit
    and ranking for the run's record, as JSON holds them.
    """

    def fit(self, data: Dataset, split: Split, *, seed: int, workdir: Path) -> None:
        """Learn from ``split.train`` (and the texts and attributes of all tasks and servers) alone.

        `seed`: fixes every random choice; the same seed gives the same scores. `workdir`: a folder that survives a
        stop, for checkpoints; a killed fit resumes from it.
        """

    def score(self, tasks: IntArray) -> FloatArray:
        """Scores of every server for the given task rows, shape (len(tasks), n_servers), float32; -inf where the system
        does not rank a server."""


@runtime_checkable
class Ranker(Protocol):
    """A system that re-orders (expansion, re-ranking) and so gives a ranking rather than one score per server."""

    def rank(self, tasks: IntArray, k: int, known: sp.csr_matrix) -> tuple[IntArray, FloatArray]:
        """The best `k` servers of each task, best first, none that `known`, shape (n_tasks, n_servers), marks for it.

        Returns: server rows and scores (non-increasing), both of shape (len(tasks), k); unfilled places hold -1, -inf.
        """
