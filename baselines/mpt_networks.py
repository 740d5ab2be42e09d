"""The pair features and networks of MPT-Rec."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.decomposition import PCA
from torch import Tensor, nn

from study.data.dataset import Dataset, FloatArray, IntArray
from study.data.normalise import licence_key, spelling_key
from study.data.splits import Split
from study.encoders.sentence import encode
from study.t2mrec.lexical import vectorize

UNKNOWN = 0  # the value of a field that is empty, or that no training task has
TASK_COLUMNS = ("category", "subcategory", "language", "theme")
SERVER_COLUMNS = ("category", "subcategory", "license", "official", "system", "origin")
COUNTS = ("stars_count", "watching_count")
BINS = 10


class PairFeatures:
    """Features of every (task, server) pair, kept in the parts of which a linear layer is the sum.

    Fields have values from 0 (UNKNOWN) on, shape (n, fields); the row number is one, for tasks under warm protocols
    alone. Dense features are principal components of the text vectors, and log(1 + training tasks) of a server.
    """

    N_CROSS = 3

    def __init__(self, data: Dataset, split: Split, *, width: int) -> None:
        known = split.tasks("train")
        columns = [codes(data.tasks[name], spelling_key, known) for name in TASK_COLUMNS]
        if not split.cold:
            columns.append(np.where(np.isin(np.arange(data.n_tasks), known), np.arange(data.n_tasks) + 1, UNKNOWN))
        self.task_fields: IntArray = np.stack(columns, axis=1)
        languages = (
            data.servers["language"].str.casefold().str.split(",").map(lambda names: [name.strip() for name in names])
        )
        columns = [
            codes(data.servers[name], licence_key if name == "license" else spelling_key)
            for name in SERVER_COLUMNS
            if name in data.servers
        ]
        columns.append(codes(languages.str[0], spelling_key))
        columns += [bins(data.servers[name]) for name in COUNTS if name in data.servers]
        columns.append(np.arange(data.n_servers) + 1)
        self.server_fields: IntArray = np.stack(columns, axis=1)
        self._match_texts(data, split, width)
        popularity = np.log1p(split.train.getnnz(axis=0)).astype(np.float32)
        self.server_dense: FloatArray = np.concatenate([self.server_parts, popularity[:, None]], axis=1)
        names = [set(row) - {""} for row in languages]
        wanted, first = np.unique(data.tasks["language"].str.strip().str.casefold(), return_inverse=True)
        listed = np.array([[name in row for row in names] for name in wanted], dtype=np.float32)
        self.language_match: FloatArray = listed  # (languages, n_servers)
        self.language: IntArray = first.astype(np.int64)

    def _match_texts(self, data: Dataset, split: Split, width: int) -> None:
        tasks, servers = encode(data.task_texts()), encode(data.server_texts())
        fitted = np.concatenate([servers, tasks[split.tasks("train")]])
        components = PCA(min(width, *fitted.shape), svd_solver="full").fit(fitted)
        scale = np.sqrt(components.explained_variance_).clip(min=1e-6)
        self.task_dense: FloatArray = (components.transform(tasks) / scale).astype(np.float32)
        self.server_parts: FloatArray = (components.transform(servers) / scale).astype(np.float32)
        self.task_vectors, self.server_vectors = tasks, servers
        _, self.task_terms, self.server_terms = vectorize(data, split.tasks("train"))

    def cross(self, task: int) -> FloatArray:
        """Cosines of text vectors and of TF-IDF, and whether the languages agree, shape (n_servers, 3)."""
        cosine = self.server_vectors @ self.task_vectors[task]
        terms = (self.server_terms @ self.task_terms[task].T).toarray().ravel()
        return np.stack([cosine, terms, self.language_match[self.language[task]]], axis=1)

    def crosses(self, tasks: IntArray, servers: IntArray) -> FloatArray:
        """`cross` of pairs, shape (len(tasks), 3)."""
        cosine = np.einsum("nd,nd->n", self.task_vectors[tasks], self.server_vectors[servers])
        terms = np.asarray(self.task_terms[tasks].multiply(self.server_terms[servers]).sum(axis=1)).ravel()
        together = np.stack([cosine, terms, self.language_match[self.language[tasks], servers]], axis=1)
        return together.astype(np.float32)


def codes(values: pd.Series, key: Callable[[str], str], known: IntArray | None = None) -> IntArray:
    """Numbers from 1 for the values of a field, the most frequent first; 0 where it is empty or no known row has it.

    The key is equal for spellings of one value.
    """
    keys = values.fillna("").astype(str).map(key)
    seen = keys if known is None else keys.iloc[known]
    found = seen[seen != ""].value_counts(sort=False)
    order = sorted(found.index, key=lambda name: (-found[name], name))
    numbers = {name: number for number, name in enumerate(order, start=1)}
    return np.asarray(keys.map(numbers).fillna(UNKNOWN), dtype=np.int64)


def bins(values: pd.Series) -> IntArray:
    """Ten logarithmic bins of counts, from 1; 0 where there is none."""
    counts = pd.to_numeric(values, errors="coerce")
    number = np.floor(np.log2(counts.fillna(0).clip(lower=0) + 1)).clip(upper=BINS - 1) + 1
    return np.where(counts.isna(), UNKNOWN, number).astype(np.int64)


def sizes(fields: IntArray) -> Sequence[int]:
    """Values of each field, UNKNOWN included."""
    return [int(column.max()) + 1 for column in fields.T]


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
        self.first, self.second = nn.Linear(features, hidden), nn.Linear(hidden, width)
        self.dropout = nn.Dropout(dropout)

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
