"""T2MRec as a system: fit the towers, fuse with structure, expand (paper, Algorithm 1 without its last step, which is
that of `study.reranking`)."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp

from study.advisor.retrieval.fusion import centroids, expand, fuse
from study.advisor.retrieval.structure import StructuralFeatures
from study.base.errors import StudyError
from study.data.dataset import Dataset, FloatArray, IntArray
from study.data.splits import Split
from study.evaluation.ranking import mask_known, tie_order
from study.t2mrec import lexical
from study.t2mrec.settings import Lexical, Scoring, Towers, Training

if TYPE_CHECKING:  # importing torch and Lightning takes seconds; systems without towers do without them
    from study.advisor.retrieval.field_dense import FieldDense
    from study.t2mrec.module import TwoTowers
    from study.t2mrec.supervision import Supervision


class T2MRec:
    """Task-to-MCP server recommendation (He et al. 2026, section 4).

    Args:
        lexical: text representation, eq. 4-5.
        towers: semantic encoder, eq. 6-8.
        training: contrastive alignment, eq. 9-10.
        scoring: structure, fusion, anchors and expansion, eq. 11-22.
        supervision: what is learned in place of the released labels, see `study.t2mrec.supervision`.
        teacher: whose answers are learned, where the supervision asks for them.
        device: where the towers are trained, one of `study.t2mrec.device.DEVICES`; `bf16`: in mixed precision.
    """

    module: TwoTowers | None

    def __init__(
        self,
        lexical: Lexical,
        towers: Towers,
        training: Training,
        scoring: Scoring,
        *,
        supervision: Supervision | None = None,
        teacher: FieldDense | None = None,
        device: str = "cpu",
        bf16: bool = False,
    ) -> None:
        self.lexical, self.towers, self.training, self.scoring = lexical, towers, training, scoring
        self.supervision, self.teacher, self.device, self.bf16 = supervision, teacher, device, bf16
        if device != "cpu":
            from study.t2mrec.device import choose_device

            self.device = choose_device(device).type
        self.row_wise = self.device == "cpu" and not bf16

    def fit(self, data: Dataset, split: Split, *, seed: int, workdir: Path) -> None:
        """Train on ``split.train``; resumes from a checkpoint in `workdir`."""
        if self.supervision is not None:
            from study.t2mrec.supervision import add_supervision

            data, split = add_supervision(data, split, self.supervision, self.teacher)
        if self.scoring.pool > data.n_servers:
            raise StudyError(
                f"the pool K2 = {self.scoring.pool} is larger than the catalogue of {data.n_servers} servers",
                fix="lower system.model.scoring.pool",
            )
        self.data, self.order, self.module = data, tie_order(data.n_servers, seed), None
        self.structure = StructuralFeatures(data.servers, aliases=self.scoring.languages)
        tasks, servers = self._represent(split)
        if self.towers.enabled:
            self.module = self._train(tasks, servers, split, seed, workdir)
            tasks, servers = self.module.task_tower.embed(tasks), self.module.server_tower.embed(servers)
        self.task_embeddings, self.server_embeddings = tasks, servers

    def _represent(self, split: Split) -> tuple[sp.csr_matrix, sp.csr_matrix]:
        """Vectors of tasks and servers, shapes (n_tasks, d) and (n_servers, d)."""
        if self.lexical.kind == "minilm":
            from study.advisor.encoders.sentence import encode

            self.vectorizer = None
            return sp.csr_matrix(encode(self.data.task_texts())), sp.csr_matrix(encode(self.data.server_texts()))
        size: dict[str, Any] = {"max_features": self.lexical.max_features, "ngram_range": self.lexical.ngrams}
        self.vectorizer, tasks, servers = lexical.vectorize(self.data, split.tasks("train"), **size)
        return tasks, servers

    def _train(self, tasks: sp.csr_matrix, servers: sp.csr_matrix, split: Split, seed: int, workdir: Path) -> TwoTowers:
        import torch

        from study.t2mrec.module import PairData, TwoTowers, train
        from study.t2mrec.pairs import Sampler, draw_pairs, draw_triples, nearest_negatives, shuffle_triples

        device = torch.device(self.device)
        options: dict[str, Any] = {"device": device, "bf16": self.bf16, "row_wise": self.row_wise}
        module = TwoTowers(tasks.shape[1], self.towers, self.training, seed=seed, **options)
        draw: Sampler = partial(draw_pairs, split.train)
        if self.training.loss == "program_bce":
            triples = draw_triples(split.train, negatives=self.training.negatives, seed=seed)  # once for all epochs
            draw = partial(shuffle_triples, triples)
        elif (count := self.training.hard_negatives) > 0:
            hard = nearest_negatives(tasks, servers, split.train, pool=self.training.hard_pool, order=self.order)
            draw = partial(draw_pairs, split.train, hard=hard, count=count)
        pairs = PairData(tasks, servers, draw, self.training, seed=seed, device=device)
        where = "" if self.row_wise else f" on {self.device}"
        train(module, pairs, workdir=workdir, label=f"T2MRec {split.protocol} seed {seed}{where}")
        return module

    def semantic(self, tasks: IntArray) -> FloatArray:
        """s_sem (eq. 8), shape (len(tasks), n_servers)."""
        product = self.task_embeddings[tasks] @ self.server_embeddings.T
        return np.asarray(product.todense() if sp.issparse(product) else product, dtype=np.float32)

    def structural(self, tasks: IntArray) -> FloatArray:
        """s_str (eq. 17), shape (len(tasks), n_servers)."""
        return self.structure.score(self.data.tasks.iloc[tasks], self.scoring.structure_weights)

    def score(self, tasks: IntArray) -> FloatArray:
        """s (eq. 18), shape (len(tasks), n_servers)."""
        return fuse(self.semantic(tasks), self.structural(tasks), weight=self.scoring.semantic_weight)

    def rank(self, tasks: IntArray, k: int, known: sp.csr_matrix) -> tuple[IntArray, FloatArray]:
        """Anchors and expansion (eq. 19-22), continued by centroid similarity to `k` places."""
        fused = mask_known(self.score(tasks), tasks, known)
        pool = max(k, self.scoring.pool)
        anchors = self.scoring.anchors if self.scoring.expansion else pool
        near = partial(self._centroid_similarity, tasks)
        rows, scores = expand(fused, near, anchors=anchors, pool=pool, order=self.order)
        return rows[:, :k], scores[:, :k]

    def _centroid_similarity(self, tasks: IntArray, anchors: IntArray) -> FloatArray:
        """For `expand`; without towers the embeddings are sparse."""
        task_vectors, servers = self.task_embeddings[tasks], self.server_embeddings
        if not sp.issparse(servers):
            return np.asarray(centroids(task_vectors, servers, anchors) @ servers.T, np.float32)
        rows, places = np.nonzero(anchors >= 0)
        chosen = (np.ones(len(rows), np.float32), (rows, anchors[rows, places]))
        members = sp.csr_matrix(chosen, shape=(len(anchors), servers.shape[0]))
        share = sp.diags_array((1 / ((anchors >= 0).sum(axis=1) + 1)).astype(np.float32))
        return np.asarray((share @ (task_vectors + members @ servers) @ servers.T).toarray(), np.float32)

    def parameters(self) -> int:
        """Trained weights of both towers, the first layers included."""
        return self.module.n_weights() if self.module is not None else 0
