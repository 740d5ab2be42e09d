"""The hypergraphs and networks of CVH-REC."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd
import scipy.sparse as sp
import torch
from sklearn.decomposition import PCA
from torch import Tensor, nn

from baselines.collaborative import kept
from baselines.interactions import propagate
from study.data.dataset import Dataset, FloatArray
from study.data.normalise import licence_key, spelling_key
from study.data.splits import Split
from study.t2mrec.lexical import fit_vectorizer

TASK_TAGS = ("category", "subcategory", "theme", "language")
SERVER_TAGS = ("category", "subcategory", "language", "license")
LEAST_FREQUENCY = 2  # a tag of one node connects nothing
LEAST_DOCUMENTS = 5  # of a keyword


@dataclass(frozen=True)
class Similarity:
    """A hypergraph whose nodes and hyperedges are the rows of a binary matrix, H_ab = Jaccard(X_a, X_b) from alpha on.

    Propagation is E' = D^-1 H D^-1 H E with D = the row sums of H. Rows that are equal behave alike, so H is kept for
    the distinct rows (signatures) only: with S the membership, H = S H_s S', and D^-1 H E = S Q M with M the mean of E
    in each signature and Q = D^-1 H_s diag(sizes), whose rows sum to 1.
    """

    mean: sp.csr_matrix  # M's operator, shape (signatures, n)
    step: sp.csr_matrix  # Q, shape (signatures, signatures)
    spread: sp.csr_matrix  # S, shape (n, signatures)

    def __call__(self, vectors: Tensor) -> Tensor:
        """E', shape (n, d); 0 for nodes without a hyperedge."""
        return propagate(self.spread, propagate(self.step, propagate(self.step, propagate(self.mean, vectors))))


def similarity(members: sp.csr_matrix, alpha: float) -> Similarity:
    """The hypergraph of the rows of `members` (binary), alpha the least Jaccard similarity of an edge."""
    rows = sp.csr_matrix(members)
    rows.sort_indices()
    numbers: dict[bytes, int] = {}
    first: list[int] = []
    group = np.full(rows.shape[0], -1, dtype=np.int64)
    for row in np.flatnonzero(np.diff(rows.indptr)):
        key = rows.indices[rows.indptr[row] : rows.indptr[row + 1]].tobytes()
        if key not in numbers:
            numbers[key] = len(first)
            first.append(int(row))
        group[row] = numbers[key]
    sizes = np.bincount(group[group >= 0], minlength=len(first)).astype(np.float64)
    table = _jaccard(sp.csr_matrix(rows[first], dtype=np.float64), alpha)
    weighted = table @ sp.diags_array(sizes) if len(first) else table
    step = sp.csr_matrix(weighted, dtype=np.float32)
    degree = np.asarray(weighted.sum(axis=1)).ravel()
    scale = np.divide(1, degree, out=np.zeros_like(degree), where=degree > 0).astype(np.float32)
    step.data *= np.repeat(scale, np.diff(step.indptr))
    known = np.flatnonzero(group >= 0)
    spread = sp.csr_matrix((np.ones(len(known), np.float32), (known, group[known])), shape=(len(group), len(first)))
    mean = sp.csr_matrix(spread.T)
    mean.data /= np.repeat(sizes, np.diff(mean.indptr)).astype(np.float32)
    return Similarity(mean, step, spread)


def _jaccard(rows: sp.csr_matrix, alpha: float) -> sp.csr_matrix:
    common = sp.coo_matrix(rows @ rows.T)
    sizes = np.diff(rows.indptr)
    common.data = common.data / (sizes[common.row] + sizes[common.col] - common.data)
    return kept(common, common.data >= alpha)


@dataclass(frozen=True)
class Global:
    """The hypergraph of all nodes; E' = H D_e^-1 H' D_v^-1 E, which keeps column sums, or (norm ``row``) row means."""

    gather: sp.csr_matrix  # H' D_v^-1 (or D_e^-1 H'), shape (hyperedges, nodes)
    scatter: sp.csr_matrix  # H D_e^-1 (or D_v^-1 H), shape (nodes, hyperedges)

    def __call__(self, vectors: Tensor) -> Tensor:
        """E', shape (n, d); 0 for nodes without a hyperedge."""
        return propagate(self.scatter, propagate(self.gather, vectors))


def global_hypergraph(train: sp.csr_matrix, task_tags: sp.csr_matrix, server_tags: sp.csr_matrix, norm: str) -> Global:
    """One hyperedge for each task (itself, its servers, its tags) and each server (itself, its tags).

    Nodes are numbered tasks, servers, tags; tags have shapes (n_tasks, n_tags) and (n_servers, n_tags). The norm is
    ``repo`` (as the authors' program) or ``row``.
    """
    n_tasks, n_servers = train.shape
    binary = sp.csr_matrix((np.ones(train.nnz), train.indices, train.indptr), shape=train.shape)
    of_tasks = [sp.eye_array(n_tasks), binary, task_tags]
    of_servers = [sp.csr_array((n_servers, n_tasks)), sp.eye_array(n_servers), server_tags]
    edges = sp.block_array([of_tasks, of_servers], format="csr")  # hyperedges x nodes
    by_edge, by_node = (_inverse(np.asarray(edges.sum(axis=axis)).ravel()) for axis in (1, 0))
    gather, scatter = (edges @ by_node, edges.T @ by_edge) if norm == "repo" else (by_edge @ edges, by_node @ edges.T)
    return Global(sp.csr_matrix(gather, dtype=np.float32), sp.csr_matrix(scatter, dtype=np.float32))


def _inverse(degree: FloatArray) -> sp.dia_array:
    return sp.diags_array(np.divide(1.0, degree, out=np.zeros(len(degree)), where=degree > 0))


def mixed(layers: Sequence[Tensor], weights: Tensor) -> Tensor:
    """sum over l of softmax(w)_l E^l."""
    share = torch.softmax(weights, dim=0)
    total = share[0] * layers[0]
    for weight, layer in zip(share[1:], layers[1:], strict=True):
        total = total + weight * layer
    return total


def tags(data: Dataset, split: Split, *, keywords: int = 0) -> tuple[list[str], sp.csr_matrix, sp.csr_matrix]:
    """Tags of tasks and servers over one vocabulary, spelling variants together, and `keywords` words of each text.

    Tasks without training interactions have none, so that nothing of a new task is in the graph.

    Returns: the tags, those of tasks, shape (n_tasks, n_tags), and of servers, shape (n_servers, n_tags); entries 1.
    """
    known = split.tasks("train")
    task_names = _names(data.tasks, TASK_TAGS)
    server_names = _names(data.servers, SERVER_TAGS)
    if keywords:
        of_tasks = data.task_texts()
        texts = [*(of_tasks[row] for row in known), *data.server_texts()]
        vectorizer = fit_vectorizer(texts, max_features=None, ngram_range=(1, 1))
        counted = vectorizer.transform(texts)
        frequent = np.flatnonzero(counted.getnnz(axis=0) >= LEAST_DOCUMENTS)
        words = np.asarray(vectorizer.get_feature_names_out())[frequent]
        found = [_highest(row, words, keywords) for row in sp.csr_matrix(counted[:, frequent])]
        for row, more in zip(known, found[: len(known)], strict=True):
            task_names[row] |= more
        server_names = [own | more for own, more in zip(server_names, found[len(known) :], strict=True)]
    frequency = Counter(tag for row in known for tag in task_names[row])
    frequency.update(tag for names in server_names for tag in names)
    vocabulary = sorted(tag for tag, count in frequency.items() if count >= LEAST_FREQUENCY)
    learned = set(known.tolist())
    task_names = [names if row in learned else set() for row, names in enumerate(task_names)]
    return vocabulary, _matrix(task_names, vocabulary), _matrix(server_names, vocabulary)


def _names(table: pd.DataFrame, columns: Sequence[str]) -> list[set[str]]:
    """The tags of each row; several languages are separated by commas."""
    names: list[set[str]] = [set() for _ in range(len(table))]
    for column in columns:
        if column not in table:
            continue
        for own, text in zip(names, table[column].fillna("").astype(str), strict=True):
            parts = text.split(",") if column == "language" else [text]
            keys = (licence_key(part) if column == "license" else spelling_key(part) for part in parts)
            own |= {key for key in keys if key}
    return names


def _highest(row: sp.csr_matrix, words: FloatArray, number: int) -> set[str]:
    order = np.argsort(-row.data, kind="stable")[:number]
    return {str(words[column]) for column in row.indices[order]}


def _matrix(names: Sequence[set[str]], vocabulary: Sequence[str]) -> sp.csr_matrix:
    column = {tag: number for number, tag in enumerate(vocabulary)}
    pairs = [(row, column[tag]) for row, own in enumerate(names) for tag in sorted(own) if tag in column]
    rows, columns = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    return sp.csr_matrix((np.ones(len(pairs)), (rows, columns)), shape=(len(names), len(vocabulary)))


CONTRAST_TEMPERATURE = 0.5
# The reference program multiplies the learning rate by 0.95 every 14 epochs, in equal steps.
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
        starts: text vectors of tasks, servers and tags, shape (n, d) each.
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
        self.heads = nn.ModuleDict()
        for name in ("task_local", "task_global", "server_local", "server_global"):
            layers_ = nn.Linear(width, hidden), nn.LayerNorm(hidden), nn.GELU(), nn.Linear(hidden, width)
            self.heads[name] = nn.Sequential(*layers_)
        self.tag_layers = nn.ModuleDict({kind: nn.Linear(width, len(tags)) for kind in kinds})

    def forward(self, operators: Mapping[str, Callable[[Tensor], Tensor]]) -> dict[str, Views]:
        """The views of tasks (key ``task``) and servers (key ``server``), by one step of propagation for each table."""
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
    """Mean over i of -log softmax_j(-|a_i - b_j| / 0.5) at j = i, of two views of n nodes; log n for n equal rows."""
    similarity = -torch.cdist(first, second) / CONTRAST_TEMPERATURE
    return (torch.logsumexp(similarity, dim=1) - similarity.diagonal()).mean()


def decaying(epochs: float) -> float:
    """The learning rate after so many epochs, over the first one: 0.95^(epoch / 14)."""
    return float(RATE_STEP ** (int(epochs) / RATE_EVERY))


def squared(rows: Sequence[Tensor]) -> Tensor:
    """Sum of the squares of all entries."""
    return torch.stack([row.square().sum() for row in rows]).sum()


def reduction(fitted: FloatArray, width: int) -> Callable[[FloatArray], FloatArray]:
    """Principal components of text vectors, those of `fitted`; the vectors themselves where `width` is not smaller."""
    if width >= fitted.shape[1]:
        return lambda vectors: vectors
    components = PCA(min(width, len(fitted)), svd_solver="full").fit(fitted)
    return lambda vectors: components.transform(vectors).astype(np.float32) if len(vectors) else vectors[:, :width]


def encoder(inputs: int, hidden: int, width: int, dropout: float) -> nn.Sequential:
    """From the text vector of a new task to the vector that it would have."""
    return nn.Sequential(nn.Linear(inputs, hidden), nn.GELU(), nn.Dropout(dropout), nn.Linear(hidden, width))
