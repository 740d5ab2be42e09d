"""Training objectives over a batch of task and server embeddings (paper, eq. 9-10)."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - the name every torch program uses
from torch import Tensor


def info_nce(tasks: Tensor, servers: Tensor, *, temperature: float, symmetric: bool = True) -> Tensor:
    """InfoNCE with in-batch negatives.

    Eq. 9 writes the task-to-server direction alone; section 5.4 calls the objective symmetric, and the authors'
    program averages both directions. Two tasks of a batch may share a positive, which then counts as a false negative.

    Args:
        tasks: z_t, L2-normalised, shape (b, d').
        servers: z_m, L2-normalised, shape (b + n, d'): row i < b matches row i of `tasks`; the n rows after them are
            negatives of every task, and have no task of their own in the server-to-task direction.
        temperature: tau of eq. 9.

    Returns: scalar, the mean over the batch (eq. 10).
    """
    logits = tasks @ servers.T / temperature
    target = torch.arange(len(tasks), device=tasks.device)
    forward = F.cross_entropy(logits, target)
    return (forward + F.cross_entropy(logits[:, : len(tasks)].T, target)) / 2 if symmetric else forward


def pointwise_bce(tasks: Tensor, servers: Tensor, *, temperature: float) -> Tensor:
    """The "w/o CL" variant of section 5.5.2: binary cross-entropy over all pairs of the batch.

    The paper says only "a BCE-style point-wise objective"; here matched pairs are positives, all other pairs of the
    batch negatives, with equal total weight of both kinds, so that the b - 1 negatives do not drown the positive.

    Args:
        tasks, servers: as for `info_nce`, shapes (b, d') and (b + n, d').
        temperature: divides the cosine, which alone spans too little of the logistic curve.

    Returns: scalar.
    """
    logits = tasks @ servers.T / temperature
    matched = torch.eye(len(tasks), len(servers), device=tasks.device)
    losses = F.binary_cross_entropy_with_logits(logits, matched, reduction="none")
    negatives = (losses * (1 - matched)).sum() / max(1, len(tasks) * (len(servers) - 1))
    return ((losses * matched).sum() / len(tasks) + negatives) / 2


LOSSES = {"info_nce": info_nce, "bce": pointwise_bce}
