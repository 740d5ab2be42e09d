"""The networks of MPT-Rec: experts, heads of the scenarios, and the prompts that are tuned on top of frozen experts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from baselines.pair_features import PairFeatures, sizes
from study.data.dataset import FloatArray, IntArray

# The temperature of the attention over environment vectors, as the reference program has it.
ATTENTION_TEMPERATURE = 150.0


class _Reversal(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, value: Tensor, strength: float) -> Tensor:
        context.strength = strength
        return value.view_as(value)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return -context.strength * gradient, None


def reverse_gradient(value: Tensor, strength: float) -> Tensor:
    """The value itself; its gradient times -strength (Ganin & Lempitsky 2015)."""
    reversed_: Tensor = _Reversal.apply(value, strength)  # type: ignore[no-untyped-call]
    return reversed_


class Expert(nn.Module):
    """F -> hidden -> width with ReLU after both layers; the first layer is applied by the caller (`finish`)."""

    def __init__(self, features: int, hidden: int, width: int, dropout: float) -> None:
        super().__init__()
        self.first, self.second, self.dropout = (
            nn.Linear(features, hidden),
            nn.Linear(hidden, width),
            nn.Dropout(dropout),
        )

    def finish(self, first: Tensor) -> Tensor:
        """The output from the first layer's, shape (n, width)."""
        result: Tensor = torch.relu(self.second(self.dropout(torch.relu(first))))
        return result


def tower(width: int, hidden: Sequence[int], dropout: float) -> nn.Sequential:
    """width -> hidden -> 1, ReLU between; gives a logit."""
    layers: list[nn.Module] = []
    for size in hidden:
        layers += [nn.Linear(width, size), nn.ReLU(), nn.Dropout(dropout)]
        width = size
    return nn.Sequential(*layers, nn.Linear(width, 1))


class Experts(nn.Module):
    """Stage 1: one shared expert, and for each of K scenarios an expert, an environment vector, a gate and a tower."""

    def __init__(
        self, features: int, scenarios: int, *, experts: Sequence[int], towers: Sequence[int], dropout: float
    ) -> None:
        super().__init__()
        hidden, width = experts
        self.shared = Expert(features, hidden, width, dropout)
        self.specific = nn.ModuleList(Expert(features, hidden, width, dropout) for _ in range(scenarios))
        self.environments = nn.Parameter(torch.randn(scenarios, width))
        self.gates = nn.ModuleList(nn.Linear(features, 2, bias=False) for _ in range(scenarios))
        self.towers = nn.ModuleList(tower(width, towers, dropout) for _ in range(scenarios))
        self.classifier = nn.Linear(width, scenarios)

    def linears(self, scenario: int) -> list[nn.Linear]:
        """The layers that read the features, in the order of the arguments of `finish`."""
        return [self.shared.first, self.specific[scenario].first, self.gates[scenario]]  # type: ignore[list-item]

    def finish(self, scenario: int, first: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Fused logit and general logit, shapes (n,), and the shared expert's output g, shape (n, width).

        f_k = gamma_1 (s_k * c_k) + gamma_2 g with (gamma_1, gamma_2) = softmax(W_k x); tower_k reads f_k and g.
        """
        general = self.shared.finish(first[0])
        own = self.specific[scenario].finish(first[1]) * self.environments[scenario]  # type: ignore[operator]
        weight = torch.softmax(first[2], dim=1)
        fused = weight[:, :1] * own + weight[:, 1:] * general
        judge = self.towers[scenario]
        return judge(fused).squeeze(1), judge(general).squeeze(1), general


class Prompt(nn.Module):
    """Stage 2: what is learned for a new task, on top of experts that stay as they are.

    H = LayerNorm(W_2 ReLU(W_1 x)), a = softmax(H C' / 150) over the K environment vectors C, s_n = sum_k a_k s_k,
    f_n = gate_n [s_n * c_n, g], logit = tower_n(f_n).
    """

    def __init__(self, base: Experts, features: int, *, attention: int, towers: Sequence[int], dropout: float) -> None:
        super().__init__()
        width = base.environments.shape[1]
        self.base = [base]  # in a list, so that its weights are not among those of the prompt
        self.environment = nn.Parameter(torch.randn(width))
        self.first, self.second = nn.Linear(features, attention, bias=False), nn.Linear(attention, width, bias=False)
        self.norm, self.gate = nn.LayerNorm(width), nn.Linear(features, 2, bias=False)
        self.tower = tower(width, towers, dropout)

    def linears(self) -> list[nn.Linear]:
        """The layers that read the features, in the order of the arguments of `finish`."""
        base = self.base[0]
        experts: list[Any] = [base.shared, *base.specific]
        return [self.first, self.gate, *(expert.first for expert in experts)]

    def attention(self, first: Tensor) -> Tensor:
        """a, shape (n, K)."""
        asked = self.norm(self.second(torch.relu(first)))
        return torch.softmax(asked @ self.base[0].environments.detach().T / ATTENTION_TEMPERATURE, dim=1)

    def finish(self, first: Sequence[Tensor]) -> Tensor:
        """The logit, shape (n,)."""
        base = self.base[0]
        specific: list[Any] = list(base.specific)
        with torch.no_grad():
            general = base.shared.finish(first[2])
            outputs = [expert.finish(part) for expert, part in zip(specific, first[3:], strict=True)]
            known = torch.stack(outputs, dim=1)  # (n, K, width)
        mixed = (self.attention(first[0])[:, :, None] * known).sum(dim=1)
        weight = torch.softmax(first[1], dim=1)
        fused = weight[:, :1] * mixed * self.environment + weight[:, 1:] * general
        logit: Tensor = self.tower(fused).squeeze(1)
        return logit


class Reader(nn.Module):
    """Embeddings of all fields, and the parts of the feature vector: task, server and cross features."""

    def __init__(self, features: PairFeatures, width: int) -> None:
        super().__init__()
        self.features = features
        self.task_tables = nn.ModuleList(nn.Embedding(n, width) for n in sizes(features.task_fields))
        self.server_tables = nn.ModuleList(nn.Embedding(n, width) for n in sizes(features.server_fields))
        for table in [*self.task_tables, *self.server_tables]:
            nn.init.normal_(table.weight, std=0.01)
        self.widths = (
            width * len(self.task_tables) + features.task_dense.shape[1],
            width * len(self.server_tables) + features.server_dense.shape[1],
            PairFeatures.N_CROSS,
        )

    def _part(self, tables: nn.ModuleList, fields: IntArray, dense: FloatArray) -> Tensor:
        rows = torch.from_numpy(fields)
        parts = [table(rows[:, place]) for place, table in enumerate(tables)]
        return torch.cat([*parts, torch.from_numpy(dense)], dim=1)

    def task(self, rows: IntArray) -> Tensor:
        """Shape (n, widths[0])."""
        return self._part(self.task_tables, self.features.task_fields[rows], self.features.task_dense[rows])

    def server(self, rows: IntArray) -> Tensor:
        """Shape (n, widths[1])."""
        return self._part(self.server_tables, self.features.server_fields[rows], self.features.server_dense[rows])

    def forward(self, tasks: IntArray, servers: IntArray) -> Tensor:
        """The feature vectors x of pairs, shape (n, F)."""
        cross = torch.from_numpy(self.features.crosses(tasks, servers))
        return torch.cat([self.task(tasks), self.server(servers), cross], dim=1)


class Stage1(nn.Module):
    """What is trained first: embeddings and experts."""

    def __init__(self, reader: Reader, experts: Experts) -> None:
        super().__init__()
        self.reader, self.experts = reader, experts


class Additive:
    """The outputs of linear layers for every pair of a task with all servers, without building the pairs.

    W x = W_task x_task + W_server x_server + W_cross x_cross, and the first two are computed once.
    """

    def __init__(self, reader: Reader, layers: Sequence[nn.Linear], tasks: IntArray, n_servers: int) -> None:
        self.features, self.tasks = reader.features, tasks
        weight = torch.cat([layer.weight for layer in layers])
        bias = torch.cat([torch.zeros(len(layer.weight)) if layer.bias is None else layer.bias for layer in layers])
        own, others, cross = torch.split(weight, list(reader.widths), dim=1)
        self.task_part = reader.task(tasks) @ own.T + bias
        self.server_part = reader.server(np.arange(n_servers)) @ others.T
        self.cross_weight, self.sizes = cross.T, [len(layer.weight) for layer in layers]

    def __iter__(self) -> Iterator[list[Tensor]]:
        """The outputs of the layers, each of shape (n_servers, ...), task by task."""
        for task, own in zip(self.tasks, self.task_part, strict=True):
            cross = torch.from_numpy(self.features.cross(int(task)).astype(np.float32))
            outputs = torch.addmm(self.server_part + own, cross, self.cross_weight)
            yield list(torch.split(outputs, self.sizes, dim=1))
