"""Task and server towers (paper, eq. 6-7) and their objectives (eq. 9-10)."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import scipy.sparse as sp
import torch
import torch.nn.functional as F  # noqa: N812 - the name every torch program uses
from torch import Tensor, nn

from study.advisor.retrieval.towers import TowerWeights, embed
from study.data.dataset import FloatArray


class Tower(nn.Module):
    """g(v) = L2(W_3 relu(W_2 relu(W_1 v))), dropout after each ReLU.

    The weights of the first layer live in `wide`, an array beside the module's parameters, because they have an
    optimiser of their own (`study.t2mrec.row_adamw`). Initial values are drawn as torch.nn.Linear draws them.

    Args:
        n_terms: d, size of the vocabulary; the others are those of `study.t2mrec.settings.Towers`.
    """

    def __init__(self, n_terms: int, *, hidden: int, output: int, layers: int, dropout: float) -> None:
        super().__init__()
        bound = 1 / math.sqrt(n_terms)  # what kaiming_uniform_(a=sqrt(5)) of nn.Linear comes to
        first = torch.empty(hidden, n_terms).uniform_(-bound, bound)
        self.wide: FloatArray = np.ascontiguousarray(first.numpy().T)  # (d, hidden): one row per term
        self.bias = nn.Parameter(torch.empty(hidden).uniform_(-bound, bound))
        widths = [hidden] * (layers - 1) + [output]
        self.rest = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(widths))
        self.dropout = dropout

    def forward(self, projected: Tensor) -> Tensor:
        """From v W_1, shape (b, hidden), to unit embeddings, shape (b, d')."""
        x = projected + self.bias
        for layer in self.rest:
            x = layer(F.dropout(F.relu(x), self.dropout, self.training))
        return F.normalize(x, dim=-1)

    def weights(self) -> TowerWeights:
        """The weights as arrays that share memory with this tower."""
        bias, *rest = (weight.detach().numpy() for weight in self.parameters())
        return TowerWeights(self.wide, bias, list(zip(rest[::2], rest[1::2], strict=True)))

    def embed(self, vectors: sp.csr_matrix) -> FloatArray:
        """Unit embeddings without dropout, shape (n, d'), float32."""
        return embed(self.weights(), vectors)


def info_nce(
    tasks: Tensor, servers: Tensor, targets: Tensor | None = None, *, temperature: float, symmetric: bool = True
) -> Tensor:
    """InfoNCE with in-batch negatives.

    Eq. 9 writes the task-to-server direction alone; section 5.4 calls the objective symmetric, and the authors'
    program averages both directions. The denominator of eq. 9 is over a set of servers. In the program a server that
    two tasks of a batch share counts once for each of them, and so is a false negative of both.

    Args:
        tasks: z_t, L2-normalised, shape (b, d').
        servers: z_m, L2-normalised, shape (m, d'); those that are no task's own are negatives of every task.
        targets: the row of `servers` that matches each task, shape (b,); by default the first b in their order.
        temperature: tau of eq. 9.

    Returns: scalar, the mean over the batch (eq. 10).
    """
    logits, task = tasks @ servers.T / temperature, torch.arange(len(tasks), device=tasks.device)
    targets = task if targets is None else targets
    forward = F.cross_entropy(logits, targets)
    return (forward + F.cross_entropy(logits[:, targets].T, task)) / 2 if symmetric else forward


def pointwise_bce(tasks: Tensor, servers: Tensor, targets: Tensor | None = None, *, temperature: float) -> Tensor:
    """Binary cross-entropy over all pairs of the batch, in place of the contrastive loss and with all else unchanged.

    The paper says "a BCE-style point-wise objective". Here matched pairs are positives, all other pairs of the batch
    negatives, with equal total weight of both kinds, so that the b - 1 negatives do not drown the positive.

    Args:
        tasks, servers, targets: as for `info_nce`.
        temperature: divides the cosine, which alone spans too little of the logistic curve.

    Returns: scalar.
    """
    logits = tasks @ servers.T / temperature
    matched = torch.eye(len(tasks), len(servers), device=tasks.device)
    if targets is not None:
        matched = torch.zeros_like(matched).scatter_(1, targets[:, None], 1.0)
    losses = F.binary_cross_entropy_with_logits(logits, matched, reduction="none")
    negatives = (losses * (1 - matched)).sum() / max(1, len(tasks) * (len(servers) - 1))
    return ((losses * matched).sum() / len(tasks) + negatives) / 2


def program_bce(tasks: Tensor, servers: Tensor, targets: None = None, *, temperature: float) -> Tensor:
    """Binary cross-entropy of single pairs, "w/o CL" of the authors' program (``--loss_type bce``), the cosine as the
    logit.

    The program embeds a triple's task twice, under two dropout masks; here it is embedded once.

    Args:
        tasks: z_t, L2-normalised, shape (b, d').
        servers: z_m, L2-normalised, shape (2 b, d'): a positive of every task, then a negative of every task.
        temperature: divides the cosine; the program has none, so 1.

    Returns: scalar, the mean over the 2 b pairs.
    """
    logits = (tasks.repeat(2, 1) * servers).sum(dim=1) / temperature
    labels = torch.arange(len(servers), device=tasks.device) < len(tasks)
    return F.binary_cross_entropy_with_logits(logits, labels.float())


LOSSES: dict[str, Callable[..., Tensor]] = {"info_nce": info_nce, "bce": pointwise_bce, "program_bce": program_bce}
