"""CVH-REC: cross-view hypergraph networks of tasks, servers and tags, with a text encoder for new tasks (2026)."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
import scipy.sparse as sp
import torch
from sklearn.decomposition import PCA
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.preprocessing import normalize
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, mse_loss, softplus

from baselines.collaborative import select_entries
from baselines.interactions import Pairs, propagate, shuffle_batches
from baselines.training import Job, Stage, VectorModel, array, fingerprint, n_weights
from study.advisor.encoders.sentence import encode
from study.data.dataset import Dataset, IntArray
from study.data.normalise import licence_key, spelling_key
from study.data.splits import Split

TASK_TAGS = ("category", "subcategory", "theme", "language")
SERVER_TAGS = ("category", "subcategory", "language", "license")
LEAST_FREQUENCY = 2  # a tag of one node connects nothing
NEIGHBOURS = 5  # training tasks whose mean vector a new task has until there is an encoder
CONTRAST_TEMPERATURE = 0.5

# A hypergraph, or what propagates over it: E' is the product of these matrices, the first one first, with E.
Hypergraph = Sequence[sp.csr_matrix]


def spread(hypergraph: Hypergraph, vectors: Tensor) -> Tensor:
    """E', shape (n, d); 0 for nodes without a hyperedge."""
    for matrix in hypergraph:
        vectors = propagate(matrix, vectors)
    return vectors


def similarity(members: sp.csr_matrix, alpha: float) -> Hypergraph:
    """The hypergraph whose nodes and hyperedges are the rows of a binary matrix, H_ab = Jaccard(X_a, X_b) if >= alpha.

    Propagation is E' = D^-1 H D^-1 H E with D = the row sums of H. Rows that are equal behave alike, so H is kept for
    the distinct rows (signatures) only: with S the membership, H = S H_s S', and D^-1 H E = S Q M E with M the mean of
    each signature and Q = D^-1 H_s diag(sizes), whose rows sum to 1.
    """
    rows = sp.csr_matrix(members, dtype=np.float64)
    rows.sort_indices()
    keys = [rows.indices[start:end].tobytes() or None for start, end in pairwise(rows.indptr)]
    group = pd.factorize(np.array(keys, dtype=object))[0]
    nonempty = np.flatnonzero(group >= 0)
    first = nonempty[np.unique(group[nonempty], return_index=True)[1]]
    member = sp.csr_matrix((np.ones(len(nonempty)), (nonempty, group[nonempty])), shape=(len(group), len(first)))
    sizes = sp.diags_array(np.bincount(group[nonempty], minlength=len(first)).astype(np.float64))
    common, lengths = sp.coo_matrix(rows[first] @ rows[first].T), np.diff(rows.indptr)[first]
    common.data /= lengths[common.row] + lengths[common.col] - common.data
    step = normalize(select_entries(common, common.data >= alpha) @ sizes, norm="l1")
    return [sp.csr_matrix(each, dtype=np.float32) for each in (normalize(member.T, norm="l1"), step, step, member)]


def global_hypergraph(
    train: sp.csr_matrix, task_tags: sp.csr_matrix, server_tags: sp.csr_matrix, norm: str
) -> Hypergraph:
    """One hyperedge for each task (itself, its servers, its tags) and each server (itself, its tags); nodes are
    numbered tasks, servers, tags, and tags have shapes (n_tasks, n_tags) and (n_servers, n_tags). With the norm
    ``repo`` (as the authors' program) E' = H D_e^-1 H' D_v^-1 E, which keeps column sums; with ``row`` row means."""
    n_tasks, n_servers = train.shape
    binary = sp.csr_matrix((np.ones(train.nnz), train.indices, train.indptr), shape=train.shape)
    of_tasks = [sp.eye_array(n_tasks), binary, task_tags]
    of_servers = [sp.csr_array((n_servers, n_tasks)), sp.eye_array(n_servers), server_tags]
    edges = sp.block_array([of_tasks, of_servers], format="csr")  # hyperedges x nodes
    by_edge, by_node = (normalize(edges, norm="l1", axis=axis) for axis in (1, 0))
    gather, scatter = (by_node, by_edge.T) if norm == "repo" else (by_edge, by_node.T)
    return sp.csr_matrix(gather, dtype=np.float32), sp.csr_matrix(scatter, dtype=np.float32)


def mix_layers(layers: Sequence[Tensor], weights: Tensor) -> Tensor:
    """sum over l of softmax(w)_l E^l."""
    return torch.einsum("l,lnd->nd", torch.softmax(weights, dim=0), torch.stack(list(layers)))


def tags(data: Dataset, train_tasks: IntArray) -> tuple[list[str], sp.csr_matrix, sp.csr_matrix]:
    """Tags of the training tasks and of all servers over one vocabulary, spelling variants together, so that nothing of
    a new task is in the graph: the tags, those of the tasks, shape (len(train_tasks), n_tags), and of servers, shape
    (n_servers, n_tags); entries 1."""
    names = _names(data.tasks.iloc[train_tasks], TASK_TAGS) + _names(data.servers, SERVER_TAGS)
    counter = CountVectorizer(analyzer=list, binary=True, min_df=LEAST_FREQUENCY, dtype=np.float64)
    members = sp.csr_matrix(counter.fit_transform(names))
    return counter.get_feature_names_out().tolist(), members[: len(train_tasks)], members[len(train_tasks) :]


def _names(table: pd.DataFrame, columns: Sequence[str]) -> list[set[str]]:
    """The tags of each row; several languages are separated by commas."""
    names: list[set[str]] = [set() for _ in range(len(table))]
    for column in set(columns) & set(table):
        key = licence_key if column == "license" else spelling_key
        for row_tags, text in zip(names, table[column].fillna("").astype(str), strict=True):
            row_tags |= {key(part) for part in (text.split(",") if column == "language" else [text])} - {""}
    return names


class Views(NamedTuple):
    """The vectors of one kind of node, each of shape (n, d)."""

    call: Tensor
    tag: Tensor
    local: Tensor
    overall: Tensor
    final: Tensor


class Network(nn.Module):
    """Five tables that start from text vectors of tasks, servers and tags (`starts`, shape (n, d) each), the weights
    that mix views and `layers` (the starting vectors included; the reference program computes one more), and the heads
    of the contrast, `hidden` wide inside."""

    def __init__(self, starts: Sequence[Tensor], layers: int, hidden: int) -> None:
        super().__init__()
        tasks, servers, tags = starts
        width = tasks.shape[1]
        self.sizes, self.layers = [len(tasks), len(servers), len(tags)], layers
        tables = {"task_call": tasks, "task_tag": tasks, "server_call": servers, "server_tag": servers}
        self.tables = nn.ParameterDict({name: start.clone() for name, start in tables.items()})
        self.tables["all"] = torch.cat([tasks, servers, tags])
        self.depths = nn.ParameterDict({name: torch.zeros(layers) for name in self.tables})
        kinds = ("task", "server")
        self.local, self.final = (nn.ParameterDict({kind: torch.zeros(2) for kind in kinds}) for _ in range(2))
        self.heads = nn.ModuleDict()
        for name in ("task_local", "task_global", "server_local", "server_global"):
            layers_ = nn.Linear(width, hidden), nn.LayerNorm(hidden), nn.GELU(), nn.Linear(hidden, width)
            self.heads[name] = nn.Sequential(*layers_)
        self.tag_layers = nn.ModuleDict({kind: nn.Linear(width, len(tags)) for kind in kinds})

    def forward(self, hypergraphs: Mapping[str, Hypergraph]) -> dict[str, Views]:
        """The views of tasks (key ``task``) and servers (key ``server``), from one hypergraph for each table."""
        outputs = {}
        for name, table in self.tables.items():
            layers: list[Tensor] = [table]
            for _ in range(self.layers - 1):
                layers.append(spread(hypergraphs[name], layers[-1]))
            outputs[name] = mix_layers(layers, self.depths[name])
        tasks, servers, _ = torch.split(outputs["all"], self.sizes)
        views = {}
        for kind, overall in (("task", tasks), ("server", servers)):
            call, tag = outputs[f"{kind}_call"], outputs[f"{kind}_tag"]
            local = mix_layers([call, tag], self.local[kind])
            views[kind] = Views(call, tag, local, overall, mix_layers([local, overall], self.final[kind]))
        return views

    def cross_view(self, kind: str, views: Views, nodes: Tensor) -> Tensor:
        """C(call, tag) + C(local, global) among `nodes`, through the heads of the kind."""
        near, far = self.heads[f"{kind}_local"], self.heads[f"{kind}_global"]
        within = contrast(near(views.call[nodes]), near(views.tag[nodes]))
        return within + contrast(near(views.local[nodes]), far(views.overall[nodes]))


def contrast(first: Tensor, second: Tensor) -> Tensor:
    """Mean over i of -log softmax_j(-|a_i - b_j| / 0.5) at j = i, of two views of n nodes; log n for n equal rows."""
    similarity = -torch.cdist(first, second) / CONTRAST_TEMPERATURE
    return (torch.logsumexp(similarity, dim=1) - similarity.diagonal()).mean()


def decay_rate(epochs: float) -> float:
    """The learning rate after so many epochs, over the first one, as in the reference program."""
    return float(0.95 ** (int(epochs) / 14))


# A batch: training tasks, a labelled and a sampled server of each, nodes to contrast by kind, whether it predicts tags.
Step = tuple[Tensor, Tensor, Tensor, dict[str, Tensor], bool]


@dataclass
class CVHRec(VectorModel):
    """CVH-REC: A novel method for web API recommendation based on the cross-view HGNNs (2026, Zenodo 18346231).

    Tasks stand for mashups, servers for APIs. Five tables start from text vectors and are propagated over hypergraphs:
    tasks by common servers, servers by common tasks, tasks and servers by common tags, and the global one of tasks,
    servers and tags. local = softmax(v) [call, tag], e = softmax(w) [local, global], score = e_t . e_m. The loss is
    BPR + decay / (2 B) sum |e|^2 + contrast ([C(call, tag) + C(local, global)] of tasks + the same of servers)
    + the binary cross-entropy of predicting tags from e, of tasks and of servers.

    Stage 2 serves new tasks: an encoder of the text vector learns e_t of the training tasks (mean squared error) and
    then replaces e_t. New tasks are no nodes of any hypergraph.

    Deviations: tags are attributes of Task2MCP; text vectors are MiniLM's, reduced by PCA where `width` is smaller;
    validation chooses the weights of both stages, not the training loss; stage 1 has no encoder yet, so new validation
    tasks get the mean e of their nearest training tasks; to save time, the contrast may use sampled nodes and the tags
    may be predicted in some steps only.
    """

    width: int = 64
    layers: int = 3
    alpha: float = 0.6
    hidden: int = 768
    global_norm: Literal["repo", "row"] = "repo"
    contrast: float = 0.1
    contrasted: int | None = 512
    tags_every: int = 4
    decay: float = 1e-4
    learning_rate: float = 0.002
    batch_size: int = 512
    encoder_hidden: int = 512
    encoder_epochs: int = 200
    dropout: float = 0.2
    cold_tasks: Literal["encoder", "neighbours"] = "encoder"
    ranks_new = True

    def fit(self, data: Dataset, split: Split, *, seed: int, workdir: Path) -> None:
        """Train stage 1, and stage 2 where there are new tasks; goes on from the checkpoints in `workdir`."""
        torch.manual_seed(seed)
        self.encoder: nn.Module | None = None
        self.known = split.tasks("train")
        self.new = np.setdiff1d(np.arange(data.n_tasks), self.known)
        self.histories = sp.csr_matrix(split.train)
        calls = sp.csr_matrix(self.histories[self.known])
        self.pairs = Pairs(calls)
        names, self.task_tags, server_tags = tags(data, self.known)
        self.texts = encode(data.task_texts())
        order = np.argsort(-(self.texts[self.new] @ self.texts[self.known].T), axis=1, kind="stable")
        self.near = self.known[order[:, :NEIGHBOURS]]
        starts = [self.texts[self.known], encode(data.server_texts()), encode(names)]
        if self.width < self.texts.shape[1]:
            fitted = np.concatenate([starts[1], starts[0]])
            components = PCA(min(self.width, len(fitted)), svd_solver="full").fit(fitted)
            starts = [components.transform(vectors).astype(np.float32) for vectors in starts]
        self.starts = [torch.from_numpy(vectors) for vectors in starts]
        self.hypergraphs = {
            "task_call": similarity(calls, self.alpha),
            "server_call": similarity(sp.csr_matrix(calls.T), self.alpha),
            "task_tag": similarity(self.task_tags, self.alpha),
            "server_tag": similarity(server_tags, self.alpha),
            "all": global_hypergraph(calls, self.task_tags, server_tags, self.global_norm),
        }
        of_kind = {"task": self.task_tags, "server": server_tags}
        self.tag_labels = {kind: self.tensor(tag.toarray().astype(np.float32)) for kind, tag in of_kind.items()}
        self.network = Network(self.starts, self.layers, self.hidden).to(self.place)
        identity = fingerprint(self, seed, split.train.indptr, split.train.indices, self.texts, self.task_tags.indices)
        job = Job(seed, workdir, "cvh_rec", identity)
        optimiser = torch.optim.Adam(self.network.parameters(), lr=self.learning_rate)
        stage = Stage(self.network, self.steps, self.loss, self.schedule)
        self.progress = self.train(stage, split, job, optimiser=optimiser, rate=decay_rate)
        if len(self.new) and self.cold_tasks == "encoder":
            self.fit_encoder(split, replace(job, name="cvh_rec_encoder"))

    def steps(self, rng: np.random.Generator, epoch: int) -> Iterator[Step]:
        """floor(pairs / batch) + 1 steps of distinct tasks with one labelled and one sampled server each."""
        n_tasks = len(self.known)
        for number in range(len(self.pairs.indices) // self.batch_size + 1):
            tasks = rng.choice(n_tasks, min(self.batch_size, n_tasks), replace=False)
            nodes = {"task": n_tasks, "server": self.pairs.width}
            contrasted = {
                kind: self.tensor(rng.choice(n, min(self.contrasted or n, n), replace=False))
                for kind, n in nodes.items()
            }
            positives, negatives = self.pairs.draw(tasks, rng), self.pairs.draw_outside(tasks, rng)
            predicts_tags = number % self.tags_every == 0
            yield self.tensor(tasks), self.tensor(positives), self.tensor(negatives), contrasted, predicts_tags

    def loss(self, step: Step) -> Tensor:
        """The loss of a step; all nodes are propagated."""
        model, (rows, positives, negatives, contrasted, predicts_tags) = self.network, step
        views = model(self.hypergraphs)
        tasks = views["task"].final[rows]
        liked, others = (views["server"].final[rows] for rows in (positives, negatives))
        total = softplus((tasks * (others - liked)).sum(dim=1)).mean()
        squares = torch.stack([rows.square().sum() for rows in (tasks, liked, others)])
        total = total + self.decay / (2 * len(tasks)) * squares.sum()
        for kind, view in views.items():
            if self.contrast:
                total = total + self.contrast * model.cross_view(kind, view, contrasted[kind])
            if predicts_tags:
                logits = model.tag_layers[kind](view.final)
                total = total + binary_cross_entropy_with_logits(logits, self.tag_labels[kind])
        return total

    @torch.no_grad()
    def finish(self) -> None:
        """Take over e of training tasks and servers, and of new tasks by the encoder, before it by their neighbours."""
        views = self.network(self.hypergraphs)
        e = np.zeros((len(self.texts), views["task"].final.shape[1]), np.float32)
        e[self.known] = array(views["task"].final)
        if self.encoder is None:
            e[self.new] = e[self.near].mean(axis=1)
        else:
            e[self.new] = array(self.encoder(self.tensor(self.texts[self.new])))
        self.keep(torch.from_numpy(e), views["server"].final)

    def fit_encoder(self, split: Split, job: Job) -> None:
        """Stage 2, and the new tasks' vectors."""
        torch.manual_seed(job.seed)  # it starts the same, whether stage 1 has just ended or was taken up
        texts, targets = self.tensor(self.texts[self.known]), self.tensor(np.asarray(self.representations)[self.known])
        inside = nn.Linear(texts.shape[1], self.encoder_hidden), nn.GELU(), nn.Dropout(self.dropout)
        encoder = self.encoder = nn.Sequential(*inside, nn.Linear(self.encoder_hidden, targets.shape[1])).to(self.place)
        stage = Stage(
            encoder,
            lambda rng, _: shuffle_batches(len(texts), self.batch_size, rng),
            lambda rows: mse_loss(encoder(texts[rows]), targets[rows]),
            replace(self.schedule, epochs=self.encoder_epochs),
        )
        optimiser = torch.optim.Adam(encoder.parameters(), lr=self.learning_rate)
        self.stage_2 = self.train(stage, split, job, optimiser=optimiser, rate=decay_rate)

    def report(self) -> dict[str, Any]:
        """Of stage 1 as for other systems; of stage 2, where it was trained, the same below `encoder`."""
        return super().report() | ({"encoder": self.stage_2.report()} if self.encoder else {})

    def parameters(self) -> int:
        """Entries of all trained tensors, those of the encoder included where it was trained."""
        return n_weights(self.network, self.encoder)
