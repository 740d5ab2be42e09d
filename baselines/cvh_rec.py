"""CVH-REC: cross-view hypergraph networks of tasks, servers and tags, with a text encoder for new tasks (2026)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, mse_loss, softplus

from baselines.cvh_networks import Network, decaying, encoder, global_hypergraph, reduction, similarity, squared, tags
from baselines.interactions import Pairs, shuffled
from baselines.settings import require_choices
from baselines.training import Job, Progress, Schedule, VectorModel, fingerprint, n_weights, train, validation_quality
from study.data.dataset import Dataset, FloatArray, IntArray
from study.data.splits import Split
from study.encoders.sentence import encode


class Step(NamedTuple):
    """A batch: tasks (numbers among the training tasks), a listed and a drawn server of each; nodes to contrast."""

    tasks: Tensor
    positives: Tensor
    negatives: Tensor
    contrasted: dict[str, Tensor]
    predicts_tags: bool


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

    `conf/system/paper/cvh_rec.yaml` explains every setting.
    """

    width: int = 64
    layers: int = 3
    alpha: float = 0.6
    hidden: int = 768
    global_norm: str = "repo"
    keywords: int = 0
    contrast: float = 0.1
    contrasted: int | None = 512
    tags_every: int = 4
    decay: float = 1e-4
    learning_rate: float = 0.002
    batch_size: int = 512
    encoder_hidden: int = 512
    encoder_epochs: int = 200
    dropout: float = 0.2
    cold_tasks: str = "encoder"
    schedule: Schedule = field(default_factory=Schedule)

    CHOICES: ClassVar[dict[str, tuple[str, ...]]] = {
        "global_norm": ("repo", "row"),
        "cold_tasks": ("encoder", "neighbours", "text"),
    }
    NEIGHBOURS: ClassVar[int] = 5

    def __post_init__(self) -> None:
        require_choices(self, self.CHOICES)

    def fit(self, data: Dataset, split: Split, *, seed: int, workdir: Path) -> None:
        """Train stage 1, and stage 2 where there are new tasks; goes on from the checkpoints in `workdir`."""
        torch.manual_seed(seed)
        self.stage_2: Progress | None = None
        self.prepare(data, split)
        model = self.network = Network(self.starts, self.layers, self.hidden)
        identity = fingerprint(self, seed, split.train.indptr, split.train.indices, self.texts, self.task_tags.indices)

        optimiser = torch.optim.Adam(model.parameters(), lr=self.learning_rate)
        self.train(self.steps, optimiser, split, Job(seed, workdir, "cvh_rec", identity), rate=decaying)
        torch.manual_seed(seed)  # stage 2 starts the same, whether stage 1 has just ended or was taken up
        self.encoder = encoder(self.texts.shape[1], self.encoder_hidden, self.representations.shape[1], self.dropout)
        if len(self.new) and self.cold_tasks == "encoder":
            self.fit_encoder(split, seed, workdir, identity)

    def prepare(self, data: Dataset, split: Split) -> None:
        """Text vectors, tags and hypergraphs; the nodes are training tasks, all servers and tags."""
        self.known = split.tasks("train")
        self.new = np.setdiff1d(np.arange(data.n_tasks), self.known)
        self.histories = sp.csr_matrix(split.train)
        self.pairs = Pairs(self.histories[self.known])
        names, task_tags, server_tags = tags(data, split, keywords=self.keywords)
        self.task_tags, self.server_tags = task_tags[self.known], server_tags
        self.texts, servers = encode(data.task_texts()), encode(data.server_texts())
        named = encode(names) if names else np.zeros((0, servers.shape[1]), np.float32)
        reduce = reduction(np.concatenate([servers, self.texts[self.known]]), self.width)
        self.reduced = reduce(self.texts)
        order = np.argsort(-(self.texts[self.new] @ self.texts[self.known].T), axis=1, kind="stable")
        self.near = self.known[order[:, : self.NEIGHBOURS]]
        known, others, tagged = map(torch.from_numpy, (self.reduced[self.known], reduce(servers), reduce(named)))
        self.starts = known, others, tagged
        calls = sp.csr_matrix(self.histories[self.known])
        self.operators = {
            "task_call": similarity(calls, self.alpha),
            "server_call": similarity(sp.csr_matrix(calls.T), self.alpha),
            "task_tag": similarity(self.task_tags, self.alpha),
            "server_tag": similarity(server_tags, self.alpha),
            "all": global_hypergraph(calls, self.task_tags, server_tags, self.global_norm),
        }
        of_kind = {"task": self.task_tags, "server": server_tags}
        self.tag_labels = {kind: torch.from_numpy(tag.toarray().astype(np.float32)) for kind, tag in of_kind.items()}

    def steps(self, rng: np.random.Generator) -> Iterator[Step]:
        """floor(pairs / batch) + 1 steps of distinct tasks with one listed and one drawn server each."""
        n_tasks = len(self.known)
        for number in range(len(self.pairs.indices) // self.batch_size + 1):
            tasks = rng.choice(n_tasks, min(self.batch_size, n_tasks), replace=False)
            nodes = {"task": n_tasks, "server": self.pairs.width}
            contrasted = {
                kind: torch.from_numpy(rng.choice(n, min(self.contrasted or n, n), replace=False))
                for kind, n in nodes.items()
            }
            listed, drawn = self.pairs.draw(tasks, rng), self.pairs.draw_outside(tasks, rng)
            tensors = torch.from_numpy(tasks), torch.from_numpy(listed), torch.from_numpy(drawn)
            yield Step(*tensors, contrasted, number % self.tags_every == 0)

    def loss(self, step: Step) -> Tensor:
        """The loss of a step; all nodes are propagated."""
        model = self.network
        views = model(self.operators)
        tasks = views["task"].final[step.tasks]
        listed, drawn = (views["server"].final[rows] for rows in (step.positives, step.negatives))
        total = softplus((tasks * (drawn - listed)).sum(dim=1)).mean()
        total = total + self.decay / (2 * len(tasks)) * squared([tasks, listed, drawn])
        for kind, view in views.items():
            if self.contrast:
                total = total + self.contrast * model.cross_view(kind, view, step.contrasted[kind])
            if step.predicts_tags and self.tag_labels[kind].shape[1]:
                logits = model.tag_layers[kind](view.final)
                total = total + binary_cross_entropy_with_logits(logits, self.tag_labels[kind])
        return total

    @torch.no_grad()
    def finish(self) -> None:
        """Take over e of training tasks and servers; new tasks have vectors that need no encoder until stage 2."""
        views = self.network(self.operators)
        tasks = torch.zeros(len(self.texts), views["task"].final.shape[1])
        tasks[torch.from_numpy(self.known)] = views["task"].final
        self.keep(tasks, views["server"].final)
        e = np.asarray(self.representations)
        e[self.new] = self.reduced[self.new] if self.cold_tasks == "text" else e[self.near].mean(axis=1)

    def fit_encoder(self, split: Split, seed: int, workdir: Path, identity: str) -> None:
        """Stage 2, and the new tasks' vectors."""
        e, texts = np.asarray(self.representations), torch.from_numpy(self.texts)
        wanted, schedule = torch.from_numpy(e[self.known]), replace(self.schedule, epochs=self.encoder_epochs)

        def score(tasks: IntArray) -> FloatArray:
            e[self.new] = self.encoder(texts[self.new]).detach().numpy()
            return self.score(tasks)

        known = texts[self.known]

        def batches(epoch: int) -> Iterator[Tensor]:
            for part in shuffled(len(known), self.batch_size, np.random.default_rng([seed, epoch])):
                yield torch.from_numpy(part)

        self.stage_2 = train(
            self.encoder,
            batches,
            lambda rows: mse_loss(self.encoder(known[rows]), wanted[rows]),
            schedule,
            Job(seed, workdir, "cvh_rec_encoder", identity),
            quality=validation_quality(score, split, schedule, seed=seed, ranks_new=True),
            optimiser=torch.optim.Adam(self.encoder.parameters(), lr=self.learning_rate),
            rate=decaying,
        )
        score(self.new)

    def report(self) -> dict[str, Any]:
        """Of stage 1 as for other systems; of stage 2, where it was trained, the same below `encoder`."""
        return super().report() | ({"encoder": self.stage_2.report()} if self.stage_2 else {})

    def parameters(self) -> int:
        """Entries of all trained tensors, those of the encoder included where it was trained."""
        return n_weights(self.network, self.encoder if self.stage_2 else None)

    def score(self, tasks: IntArray) -> FloatArray:
        """e_t . e_m, shape (len(tasks), n_servers)."""
        return self.score_representations(self.representations[tasks])
