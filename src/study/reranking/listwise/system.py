"""T2MRec whose pool is re-ordered by a small model of its own: the re-ranker where there is no language model."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from study.data.dataset import Dataset, IntArray
from study.data.splits import Split
from study.evaluation.ranking import chunks
from study.files import replacing
from study.reranking.contract import Rules
from study.reranking.listwise.model import Listwise, PairFeatures, Pools, importances, n_leaves, scores, train
from study.reranking.system import RerankedT2MRec
from study.t2mrec.fusion import Reranker
from study.t2mrec.settings import Lexical, Scoring, Towers, Training
from study.t2mrec.system import T2MRec


class T2MRecListwise(RerankedT2MRec):
    """T2MRec and boosted trees over its pool (not in the paper).

    The trees learn from the training tasks alone. T2MRec ranks the tasks that it was trained on far better than others,
    so the trees are given pools of tasks that it was not trained on: the training tasks are dealt into folds, and the
    pools of a fold come from a T2MRec trained on the other folds. Folds are dealt by tasks at random; under
    ``cold_grouped`` near copies of a task may therefore lie in another fold, which the test tasks do not have.

    The rules bind what the trees' order becomes, not what they learn from: they are trained on whole pools.

    Args:
        listwise: folds and trees.
        rules: K and how many of the first K may be replaced from the rest of the pool, as for a language model.
    """

    def __init__(
        self,
        lexical: Lexical,
        towers: Towers,
        training: Training,
        scoring: Scoring,
        listwise: Listwise,
        rules: Rules | None = None,
        reranker: Reranker | None = None,
    ) -> None:
        super().__init__(lexical, towers, training, scoring, reranker, rules=rules)
        self.listwise = listwise

    def fit(self, data: Dataset, split: Split, *, seed: int, workdir: Path) -> None:
        """Train a T2MRec per fold, the trees on their pools, T2MRec itself; a finished fold is kept in `workdir`."""
        self.features = PairFeatures(data, split.tasks("train"))
        known, pieces = split.tasks("train"), []
        folds = np.array_split(np.random.default_rng([seed, 0xF01D]).permutation(known), self.listwise.folds)
        for number, fold in enumerate(folds):
            kept = workdir / f"fold-{number}.npz"
            if not kept.exists():
                self._fit_fold(data, split, np.sort(fold), seed, workdir / f"fold-{number}", kept)
            with np.load(kept) as arrays:
                pieces.append((arrays["features"], arrays["relevant"], arrays["sizes"]))
        started = time.perf_counter()
        features, relevant, sizes = (np.concatenate(parts) for parts in zip(*pieces, strict=True))
        self.trees = train(features, relevant, sizes, self.listwise, seed=seed)
        self.seconds_trees = time.perf_counter() - started
        super().fit(data, split, seed=seed, workdir=workdir)

    def _fit_fold(self, data: Dataset, split: Split, fold: IntArray, seed: int, workdir: Path, kept: Path) -> None:
        """Write features, labels and sizes of the pools of `fold`, ranked by a T2MRec that never saw its tasks."""
        others = np.ones(data.n_tasks, dtype=np.float32)
        others[fold] = 0
        rest = sp.csr_matrix(sp.diags_array(others) @ split.train)
        rest.eliminate_zeros()
        workdir.mkdir(parents=True, exist_ok=True)
        base = T2MRec(self.lexical, self.towers, self.training, self.scoring)
        base.fit(data, replace(split, train=rest), seed=seed, workdir=workdir)
        pools = Pools.of(fold, candidate_pools(base, fold))
        arrays: dict[str, Any] = {
            "features": self.features(pools, base),
            "relevant": np.asarray(split.train[pools.tasks, pools.servers], dtype=np.float32).ravel(),
            "sizes": pools.sizes,
        }
        with replacing(kept) as temporary, temporary.open("wb") as stream:
            np.savez(stream, **arrays)
        shutil.rmtree(workdir)

    def rerank(self, tasks: IntArray, pools: Sequence[IntArray]) -> list[IntArray]:
        """The orders nearest to the trees' that the rules allow; equal scores keep the order before."""
        ends = Pools.of(tasks, pools)
        parts = np.split(scores(self.trees, self.features(ends, self)), np.cumsum(ends.sizes)[:-1])
        free = [pool[np.argsort(-part, kind="stable")] for pool, part in zip(pools, parts, strict=True)]
        return [
            np.array(self.rules.within(order.tolist(), pool.tolist()), dtype=np.int64)
            for order, pool in zip(free, pools, strict=True)
        ]

    def parameters(self) -> int:
        """T2MRec's weights and the leaves of the trees."""
        return super().parameters() + n_leaves(self.trees)

    def report(self) -> dict[str, Any]:
        """For the run's record: seconds to train the trees, discarded orders, what each feature brought."""
        return {
            "seconds_trees": round(self.seconds_trees, 3),
            "invalid": self.invalid_rerankings,
            "gain": importances(self.trees),
        }


def candidate_pools(system: T2MRec, tasks: IntArray) -> list[IntArray]:
    """The pool of each task, best first, nothing left out as known: these tasks are new to the system."""
    none_known = sp.csr_matrix((system.data.n_tasks, system.data.n_servers), dtype=np.float32)
    found: list[IntArray] = []
    for piece in chunks(tasks):
        rows, _ = T2MRec.rank(system, tasks[piece], system.scoring.pool, none_known)
        found += [row[row >= 0] for row in rows]
    return found
