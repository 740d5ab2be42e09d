"""The networks of CVH-REC: views of nodes from several hypergraphs, contrast between views, tag prediction."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from sklearn.decomposition import PCA
from torch import Tensor, nn

from baselines.published.hypergraphs import mixed
from study.data.dataset import FloatArray

CONTRAST_TEMPERATURE = 0.5
# The reference program multiplies the learning rate by 0.95 every 14 epochs, smoothly.
RATE_STEP, RATE_EVERY = 0.95, 14.0


class Views(NamedTuple):
    """The vectors of one kind of node, each of shape (n, d)."""

    call: Tensor
    tag: Tensor
    local: Tensor
    overall: Tensor
    final: Tensor


class Network(nn.Module):
    """Five tables that start from text vectors, the weights that mix layers and views, and the heads.

    Args:
        starts: text vectors of tasks, servers and tags, shapes (n_tasks, d), (n_servers, d), (n_tags, d).
        layers: of every propagation, the starting vectors included (the reference program computes one more).
        hidden: width inside the heads of the contrast.
    """

    def __init__(self, starts: tuple[Tensor, Tensor, Tensor], layers: int, hidden: int) -> None:
        super().__init__()
        tasks, servers, tags = starts
        width = tasks.shape[1]
        self.sizes, self.layers = [len(tasks), len(servers), len(tags)], layers
        own = {"task_call": tasks, "task_tag": tasks, "server_call": servers, "server_tag": servers}
        self.tables = nn.ParameterDict({name: start.clone() for name, start in own.items()})
        self.tables["all"] = torch.cat([tasks, servers, tags])
        self.depths = nn.ParameterDict({name: torch.zeros(layers) for name in self.tables})
        kinds = ("task", "server")
        self.local, self.final = (nn.ParameterDict({kind: torch.zeros(2) for kind in kinds}) for _ in range(2))
        self.heads = nn.ModuleDict(
            {
                f"{kind}_{scope}": nn.Sequential(
                    nn.Linear(width, hidden), nn.LayerNorm(hidden), nn.GELU(), nn.Linear(hidden, width)
                )
                for kind in kinds
                for scope in ("local", "global")
            }
        )
        self.tag_layers = nn.ModuleDict({kind: nn.Linear(width, len(tags)) for kind in kinds})

    def forward(self, operators: Mapping[str, Callable[[Tensor], Tensor]]) -> dict[str, Views]:
        """The views of tasks (key ``task``) and servers (key ``server``).

        Args:
            operators: one step of propagation for each table.
        """
        spread = {}
        for name, table in self.tables.items():
            layers: list[Tensor] = [table]
            for _ in range(self.layers - 1):
                layers.append(operators[name](layers[-1]))
            spread[name] = mixed(layers, self.depths[name])
        tasks, servers, _ = torch.split(spread["all"], self.sizes)
        views = {}
        for kind, overall in (("task", tasks), ("server", servers)):
            call, tag = spread[f"{kind}_call"], spread[f"{kind}_tag"]
            local = mixed([call, tag], self.local[kind])
            views[kind] = Views(call, tag, local, overall, mixed([local, overall], self.final[kind]))
        return views

    def cross_view(self, kind: str, views: Views, nodes: Tensor) -> Tensor:
        """C(call, tag) + C(local, global) among `nodes`, through the heads of the kind."""
        near, far = self.heads[f"{kind}_local"], self.heads[f"{kind}_global"]
        return contrast(near(views.call[nodes]), near(views.tag[nodes])) + contrast(
            near(views.local[nodes]), far(views.overall[nodes])
        )


def contrast(first: Tensor, second: Tensor) -> Tensor:
    """Mean over i of -log softmax_j(-|a_i - b_j| / 0.5) at j = i; log n for n equal rows.

    Args:
        first, second: two views of the same nodes, shape (n, d).
    """
    similarity = -torch.cdist(first, second) / CONTRAST_TEMPERATURE
    return (torch.logsumexp(similarity, dim=1) - similarity.diagonal()).mean()


def decaying(step: float = RATE_STEP, every: float = RATE_EVERY) -> Callable[[int], float]:
    """step^(epoch / every)."""
    return lambda epoch: step ** (epoch / every)


def squared(rows: Sequence[Tensor]) -> Tensor:
    """Sum of the squares of all entries."""
    return torch.stack([row.square().sum() for row in rows]).sum()


def reduction(fitted: FloatArray, width: int) -> Callable[[FloatArray], FloatArray]:
    """Principal components of text vectors; the vectors themselves where `width` is not below theirs.

    Args:
        fitted: vectors that the components come from, shape (n, q).
    """
    if width >= fitted.shape[1]:
        return lambda vectors: vectors
    components = PCA(min(width, len(fitted)), svd_solver="full").fit(fitted)
    return lambda vectors: components.transform(vectors).astype(np.float32) if len(vectors) else vectors[:, :width]
