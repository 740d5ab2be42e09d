"""T2MRec as a system: fit the towers, fuse with structure, expand, re-rank (paper, Algorithm 1)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import scipy.sparse as sp

from study.data.dataset import Dataset, FloatArray, IntArray
from study.data.splits import Split
from study.errors import StudyError
from study.evaluation.ranking import mask_known, tie_order
from study.t2mrec import lexical
from study.t2mrec.fusion import Reranker, expand, fuse, rerank_pool
from study.t2mrec.settings import Lexical, Scoring, Towers, Training
from study.t2mrec.structure import StructuralFeatures, structural_score


class T2MRec:
    """Task-to-MCP server recommendation (He et al. 2026, section 4).

    Args:
        lexical: text representation, eq. 4-5.
        towers: semantic encoder, eq. 6-8.
        training: contrastive alignment, eq. 9-10.
        scoring: structure, fusion, anchors and expansion, eq. 11-22.
        reranker: re-orders the pool, eq. 23; None leaves the pool's order.
    """

    def __init__(
        self, lexical: Lexical, towers: Towers, training: Training, scoring: Scoring, reranker: Reranker | None = None
    ) -> None:
        self.lexical, self.towers, self.training, self.scoring = lexical, towers, training, scoring
        self.reranker = reranker
        self.invalid_rerankings = 0

    def fit(self, data: Dataset, split: Split, *, seed: int, workdir: Path) -> None:
        """Train on ``split.train``; resumes from a checkpoint in `workdir`."""
        if self.scoring.pool > data.n_servers:
            raise StudyError(
                f"the pool K2 = {self.scoring.pool} is larger than the catalogue of {data.n_servers} servers",
                fix="lower system.model.scoring.pool",
            )
        self.data, self.order = data, tie_order(data.n_servers, seed)
        self.structure = StructuralFeatures(data.servers)
        tasks, servers = self._represent(split)
        if not self.towers.enabled:
            self.module = None
            self.task_embeddings, self.server_embeddings = tasks, servers
            return
        # Importing torch and Lightning takes seconds; systems without towers do without them.
        from study.t2mrec.module import PairData, TwoTowerModule, nearest_negatives, train

        self.module = TwoTowerModule(tasks.shape[1], self.towers, self.training, seed=seed)
        hard = None
        if self.training.hard_negatives:
            hard = nearest_negatives(tasks, servers, split.train, pool=self.training.hard_pool, order=self.order)
        options = {"batch_size": self.training.batch_size, "seed": seed, "hard": hard}
        pairs = PairData(tasks, servers, split.train, n_hard=self.training.hard_negatives, **options)
        epochs, label = self.training.epochs, f"T2MRec {split.protocol} seed {seed}"
        every = self.training.checkpoint_every
        train(self.module, pairs, epochs=epochs, checkpoint_every=every, workdir=workdir, label=label)
        self.task_embeddings = self.module.task_tower.embed(tasks)
        self.server_embeddings = self.module.server_tower.embed(servers)

    def _represent(self, split: Split) -> tuple[sp.csr_matrix, sp.csr_matrix]:
        """Vectors of tasks and servers, shapes (n_tasks, d) and (n_servers, d)."""
        if self.lexical.kind == "minilm":
            from study.advisor.encoders.sentence import encode

            self.vectorizer = None
            return sp.csr_matrix(encode(self.data.task_texts())), sp.csr_matrix(encode(self.data.server_texts()))
        self.vectorizer, tasks, servers = lexical.vectorize(
            self.data, split.tasks("train"), max_features=self.lexical.max_features, ngram_range=self.lexical.ngrams
        )
        return tasks, servers

    def semantic(self, tasks: IntArray) -> FloatArray:
        """s_sem (eq. 8), shape (len(tasks), n_servers)."""
        product = self.task_embeddings[tasks] @ self.server_embeddings.T
        return np.asarray(product.todense() if sp.issparse(product) else product, dtype=np.float32)

    def structural(self, tasks: IntArray) -> FloatArray:
        """s_str (eq. 17), shape (len(tasks), n_servers)."""
        return structural_score(self.structure(self.data.tasks.iloc[tasks]), self.scoring.structure_weights)

    def score(self, tasks: IntArray) -> FloatArray:
        """s (eq. 18), shape (len(tasks), n_servers)."""
        return fuse(self.semantic(tasks), self.structural(tasks), weight=self.scoring.semantic_weight)

    def rank(self, tasks: IntArray, k: int, known: sp.csr_matrix) -> tuple[IntArray, FloatArray]:
        """Anchors, expansion and re-ranking (eq. 19-23), continued by centroid similarity to `k` places."""
        fused = mask_known(self.score(tasks), tasks, known)
        pool = max(k, self.scoring.pool)
        anchors = self.scoring.anchors if self.scoring.expansion else pool
        rows, scores = expand(
            fused, self.task_embeddings[tasks], self.server_embeddings, anchors=anchors, pool=pool, order=self.order
        )
        if self.reranker is not None:
            for row, task in zip(rows, tasks, strict=True):
                candidates = row[: self.scoring.pool]
                filled = int((candidates >= 0).sum())
                row[:filled], valid = rerank_pool(self.reranker, self.data, int(task), candidates[:filled])
                self.invalid_rerankings += not valid
        return rows[:, :k], scores[:, :k]

    def parameters(self) -> int:
        """Trained weights of both towers, the wide layers included."""
        if self.module is None:
            return 0
        wide = sum(optimizer.weight.size for optimizer in self.module.wide_optimizers.values())
        return wide + sum(parameter.numel() for parameter in self.module.parameters())
