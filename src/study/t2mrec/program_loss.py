"""T2MRec "w/o CL" (section 5.5.2) as the authors' program trains it: single pairs under binary cross-entropy.

The paper says "a BCE-style point-wise objective". The program (`T2MRec/main_T2MRec.py`, ``--loss_type bce``) says the
rest: every positive of every training task with ten servers drawn uniformly from those that the task does not list,
drawn once before training; batches of 256 (task, positive, negative) triples, so that a positive counts as often as its
negatives do; the raw cosine as the logit, without a temperature; AdamW at 1e-3, 200 epochs.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import scipy.sparse as sp
import torch
import torch.nn.functional as F  # noqa: N812 - the name every torch program uses
from torch import Tensor

from study.data.dataset import Dataset, IntArray
from study.data.splits import Split
from study.errors import StudyError
from study.t2mrec.fusion import Reranker
from study.t2mrec.module import PairData, PairEpoch, TwoTowerModule, train
from study.t2mrec.settings import Lexical, Scoring, Towers, Training
from study.t2mrec.system import T2MRec


def draw_triples(positives: sp.csr_matrix, *, negatives: int, seed: int) -> IntArray:
    """Every positive with servers drawn uniformly, none twice, from those that its task does not list.

    Args:
        positives: training interactions, shape (n_tasks, n_servers).
        negatives: per positive; fewer where a task leaves fewer.

    Returns: task, positive, negative, shape (n_positives * negatives, 3).
    """
    rng, triples = np.random.default_rng(seed), [np.zeros((0, 3), np.int64)]
    for task in np.flatnonzero(np.diff(positives.indptr)):
        listed = positives.indices[positives.indptr[task] : positives.indptr[task + 1]]
        others = np.setdiff1d(np.arange(positives.shape[1]), listed)
        for server in listed:
            drawn = rng.choice(others, min(negatives, len(others)), replace=False)
            triples.append(np.stack([np.full_like(drawn, task), np.full_like(drawn, server), drawn], axis=1))
    return np.concatenate(triples)


class TripleEpoch(PairEpoch):
    """One epoch: every triple once, in an order that depends on (seed, epoch) alone.

    A batch of b triples holds b tasks and 2 b servers: the positives, then the negatives. The program embeds a triple's
    task twice, under two dropout masks; here it is embedded once.
    """

    def __init__(
        self,
        tasks: sp.csr_matrix,
        servers: sp.csr_matrix,
        triples: IntArray,
        *,
        batch_size: int,
        seed: int,
        epoch: int,
    ) -> None:
        shuffled = np.random.default_rng([seed, epoch]).permutation(triples)
        self.rows, self.servers, self.negatives = shuffled[:, 0], shuffled[:, 1], shuffled[:, 2]
        self.task_vectors, self.server_vectors, self.batch_size = tasks, servers, batch_size


class TripleData(PairData):
    """Serves one `TripleEpoch` per epoch; arguments as for `PairData` and `draw_triples`."""

    def __init__(
        self,
        tasks: sp.csr_matrix,
        servers: sp.csr_matrix,
        positives: sp.csr_matrix,
        *,
        negatives: int,
        batch_size: int,
        seed: int,
    ) -> None:
        super().__init__(tasks, servers, positives)
        triples = draw_triples(positives, negatives=negatives, seed=seed)
        self.triples = partial(TripleEpoch, tasks, servers, triples, batch_size=batch_size, seed=seed)

    def train_dataloader(self) -> TripleEpoch:
        """The triples of the trainer's present epoch."""
        return self.triples(epoch=self.trainer.current_epoch if self.trainer else 0)


def pair_bce(tasks: Tensor, servers: Tensor, *, temperature: float = 1.0) -> Tensor:
    """Binary cross-entropy of single pairs, the cosine as the logit.

    Args:
        tasks: L2-normalised, shape (b, d').
        servers: L2-normalised, shape (2 b, d'): a positive of every task, then a negative of every task.
        temperature: divides the cosine; the program has none.

    Returns: scalar, the mean over the 2 b pairs.
    """
    logits = (tasks.repeat(2, 1) * servers).sum(dim=1) / temperature
    labels = torch.cat([torch.ones(len(tasks)), torch.zeros(len(tasks))])
    return F.binary_cross_entropy_with_logits(logits, labels)


class PairModule(TwoTowerModule):
    """The two towers under `pair_bce`."""

    def loss(self, tasks: Tensor, servers: Tensor) -> Tensor:
        """See `pair_bce`."""
        return pair_bce(tasks, servers, temperature=self.training_settings.temperature)


class T2MRecPairs(T2MRec):
    """T2MRec trained on single pairs in place of the contrastive loss; representation and scoring unchanged.

    Args:
        training: `batch_size` counts triples, `temperature` is 1 for the raw cosine; `symmetric` and `hard_negatives`
            have no meaning here.
        negatives: servers drawn per (task, positive); the program's 10.
    """

    def __init__(
        self,
        lexical: Lexical,
        towers: Towers,
        training: Training,
        scoring: Scoring,
        negatives: int = 10,
        reranker: Reranker | None = None,
    ) -> None:
        super().__init__(lexical, towers, training, scoring, reranker)
        if negatives < 1:
            raise StudyError(f"{negatives} negatives per positive", column="system.model.negatives", fix="at least 1")
        self.negatives = negatives

    def fit(self, data: Dataset, split: Split, *, seed: int, workdir: Path) -> None:
        """Train on ``split.train``; resumes from a checkpoint in `workdir`."""
        towers, training = self.towers, self.training
        self.towers = replace(towers, enabled=False)
        super().fit(data, split, seed=seed, workdir=workdir)  # all but the training
        self.towers = towers
        tasks, servers = self.task_embeddings, self.server_embeddings
        self.module = PairModule(tasks.shape[1], towers, training, seed=seed)
        options = {"negatives": self.negatives, "batch_size": training.batch_size, "seed": seed}
        pairs = TripleData(tasks, servers, split.train, **options)
        every, label = training.checkpoint_every, f"T2MRec {split.protocol} seed {seed}"
        train(self.module, pairs, epochs=training.epochs, checkpoint_every=every, workdir=workdir, label=label)
        self.task_embeddings = self.module.task_tower.embed(tasks)
        self.server_embeddings = self.module.server_tower.embed(servers)
