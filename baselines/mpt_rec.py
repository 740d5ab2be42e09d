"""MPT-Rec: experts for several scenarios, trained against one another, then a small prompt for each new task."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import scipy.sparse as sp
import torch
from sklearn.decomposition import PCA
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, linear

from baselines.interactions import Pairs, shuffle_batches
from baselines.training import Job, Progress, Schedule, Stage, Trained, array, fingerprint, n_weights
from study.advisor.encoders.sentence import encode
from study.base.errors import StudyError
from study.data.dataset import Dataset, FloatArray, IntArray
from study.data.normalise import licence_key, spelling_key
from study.data.splits import Split
from study.evaluation.ranking import chunks
from study.t2mrec.lexical import vectorize

UNKNOWN = 0  # the value of a field that is empty, or that no training task has
TASK_COLUMNS = ("category", "subcategory", "language", "theme")
SERVER_COLUMNS = ("category", "subcategory", "license", "official", "system", "origin")
COUNTS = ("stars_count", "watching_count")
BINS = 10
N_CROSS = 3
ATTENTION_TEMPERATURE = 150.0  # over environment vectors, as the reference program has it
BLOCK = 8  # tasks whose pairs with all servers are scored at once
# Of pairs: one tensor, or parts of tasks, servers and both whose leading axes may broadcast.
Features = Sequence[Tensor]


def codes(values: pd.Series, key: Callable[[str], str], train_rows: IntArray | slice = slice(None)) -> IntArray:
    """Numbers from 1 for the values of a field, the most frequent first; 0 where it is empty or none of `train_rows`
    has it. The key is equal for spellings of one value."""
    keys = values.fillna("").astype(str).map(key)
    seen = keys.iloc[train_rows]
    counts = seen[seen != ""].value_counts().sort_index().sort_values(ascending=False, kind="stable")
    return np.asarray(counts.index.get_indexer(pd.Index(keys)) + 1, dtype=np.int64)


def bins(values: pd.Series) -> IntArray:
    """Ten logarithmic bins of counts, from 1; 0 where there is none."""
    counts = pd.to_numeric(values, errors="coerce")
    return np.where(counts.isna(), UNKNOWN, np.digitize(counts.clip(lower=0), 2.0 ** np.arange(BINS) - 1))


class PairLinear(nn.Linear):
    """A linear layer over features of pairs, W x = W_task x_task + W_server x_server + W_cross x_cross."""

    def forward(self, features: Features) -> Tensor:  # type: ignore[override]
        """The outputs, of the shape to which the parts broadcast."""
        first, *others = torch.split(self.weight, [part.shape[-1] for part in features], dim=1)
        total = linear(features[0], first, self.bias)
        for part, weight in zip(features[1:], others, strict=True):
            total = total + linear(part, weight)
        return total


def expert(features: int, hidden: int, width: int, dropout: float) -> nn.Sequential:
    """F -> hidden -> width with ReLU after both layers."""
    layers = PairLinear(features, hidden), nn.ReLU(), nn.Dropout(dropout), nn.Linear(hidden, width), nn.ReLU()
    return nn.Sequential(*layers)


def tower(width: int, hidden: Sequence[int], dropout: float) -> nn.Sequential:
    """width -> hidden -> 1, ReLU between; gives a logit."""
    sizes = pairwise([width, *hidden])
    layers = [layer for size in sizes for layer in (nn.Linear(*size), nn.ReLU(), nn.Dropout(dropout))]
    return nn.Sequential(*layers, nn.Linear([width, *hidden][-1], 1))


class Experts(nn.Module):
    """Stage 1: one shared expert, and for each of K scenarios an expert, an environment vector, a gate and a tower."""

    def __init__(
        self, features: int, scenarios: int, *, experts: Sequence[int], towers: Sequence[int], dropout: float
    ) -> None:
        super().__init__()
        hidden, width = experts
        self.shared = expert(features, hidden, width, dropout)
        self.specific = nn.ModuleList(expert(features, hidden, width, dropout) for _ in range(scenarios))
        self.environments = nn.Parameter(torch.randn(scenarios, width))
        self.gates = nn.ModuleList(PairLinear(features, 2, bias=False) for _ in range(scenarios))
        self.towers = nn.ModuleList(tower(width, towers, dropout) for _ in range(scenarios))
        self.classifier = nn.Linear(width, scenarios)

    def forward(self, scenario: int, features: Features) -> tuple[Tensor, Tensor, Tensor]:
        """Fused logit and general logit, shapes (...,), and the shared expert's output g, shape (..., width); f_k =
        gamma_1 (s_k * c_k) + gamma_2 g with (gamma_1, gamma_2) = softmax(W_k x); tower_k reads f_k and g."""
        general = self.shared(features)
        specific = self.specific[scenario](features) * self.environments[scenario]
        weight = torch.softmax(self.gates[scenario](features), dim=-1)
        fused = weight[..., :1] * specific + weight[..., 1:] * general
        judge = self.towers[scenario]
        return judge(fused).squeeze(-1), judge(general).squeeze(-1), general


class Prompt(nn.Module):
    """Stage 2: what is learned for a new task, on top of experts that stay as they are. H = LayerNorm(W_2 ReLU(W_1 x)),
    a = softmax(H C' / 150) over the K environment vectors C, s_n = sum_k a_k s_k, f_n = gate_n [s_n * c_n, g], logit =
    tower_n(f_n)."""

    def __init__(self, features: int, width: int, *, attention: int, towers: Sequence[int], dropout: float) -> None:
        super().__init__()
        self.environment = nn.Parameter(torch.randn(width))
        self.first = PairLinear(features, attention, bias=False)
        self.second = nn.Linear(attention, width, bias=False)
        self.norm, self.gate = nn.LayerNorm(width), PairLinear(features, 2, bias=False)
        self.tower = tower(width, towers, dropout)

    def attention(self, experts: Experts, features: Features) -> Tensor:
        """a, shape (..., K)."""
        query = self.norm(self.second(torch.relu(self.first(features))))
        return torch.softmax(query @ experts.environments.detach().T / ATTENTION_TEMPERATURE, dim=-1)

    def forward(self, experts: Experts, features: Features) -> Tensor:
        """The logit, shape (...,)."""
        with torch.no_grad():
            general = experts.shared(features)
            outputs = torch.stack([specific(features) for specific in experts.specific], dim=-2)  # (..., K, width)
        mixed = (self.attention(experts, features)[..., None] * outputs).sum(dim=-2)
        weight = torch.softmax(self.gate(features), dim=-1)
        fused = weight[..., :1] * mixed * self.environment + weight[..., 1:] * general
        return torch.squeeze(self.tower(fused), -1)


class Side(nn.Module):
    """The feature vectors of tasks or of servers: embeddings of their fields, values from 0 (UNKNOWN) on, shape
    (n, fields), and their dense features, shape (n, d)."""

    fields: Tensor
    dense: Tensor

    def __init__(self, fields: Sequence[IntArray], dense: FloatArray, width: int) -> None:
        super().__init__()
        self.register_buffer("fields", torch.from_numpy(np.stack(fields, axis=1)), persistent=False)
        self.register_buffer("dense", torch.from_numpy(dense), persistent=False)
        self.tables = nn.ModuleList(nn.Embedding(int(column.max()) + 1, width) for column in fields)
        self.width = width * len(fields) + dense.shape[1]

    def forward(self, rows: IntArray | slice) -> Tensor:
        """Those of `rows`, shape (n, width)."""
        chosen = rows if isinstance(rows, slice) else torch.from_numpy(rows).to(self.dense.device)
        fields = self.fields[chosen]
        return torch.cat([*(table(fields[:, n]) for n, table in enumerate(self.tables)), self.dense[chosen]], dim=1)


class Reader(nn.Module):
    """Feature vectors of (task, server) pairs: those of either side, and cross features. A task's row number is a field
    under warm protocols alone. Dense features are principal components of the text vectors, and log(1 + training tasks)
    of a server."""

    def __init__(self, data: Dataset, split: Split, *, dense: int, width: int) -> None:
        super().__init__()
        train_tasks, tasks, servers = split.tasks("train"), data.tasks, data.servers
        of_tasks = [codes(tasks[name], spelling_key, train_tasks) for name in TASK_COLUMNS]
        if not split.cold:
            every = np.arange(data.n_tasks)
            of_tasks.append(np.where(np.isin(every, train_tasks), every + 1, UNKNOWN))
        languages = servers["language"].str.casefold().str.strip().str.split(r"\s*,\s*", regex=True)
        keys = {"license": licence_key}
        of_servers = [codes(servers[name], keys.get(name, spelling_key)) for name in SERVER_COLUMNS if name in servers]
        of_servers.append(codes(languages.str[0], spelling_key))
        of_servers += [bins(servers[name]) for name in COUNTS if name in servers]
        of_servers.append(np.arange(data.n_servers) + 1)
        self.task_vectors, self.server_vectors = encode(data.task_texts()), encode(data.server_texts())
        fitted = np.concatenate([self.server_vectors, self.task_vectors[train_tasks]])
        components = PCA(min(dense, *fitted.shape), svd_solver="full").fit(fitted)
        scale = np.sqrt(components.explained_variance_).clip(min=1e-6)
        vectors = self.task_vectors, self.server_vectors
        task_dense, server_dense = ((components.transform(each) / scale).astype(np.float32) for each in vectors)
        popularity = np.log1p(split.train.getnnz(axis=0)).astype(np.float32)
        _, self.task_terms, self.server_terms = vectorize(data, train_tasks)
        names = [set(row) - {""} for row in languages]
        task_languages, numbers = np.unique(tasks["language"].str.strip().str.casefold(), return_inverse=True)
        self.language: IntArray = numbers.astype(np.int64)
        self.language_match = np.array([[name in row for row in names] for name in task_languages], dtype=np.float32)
        self.tasks = Side(of_tasks, task_dense, width)
        self.servers = Side(of_servers, np.column_stack([server_dense, popularity]), width)
        for table in [*self.tasks.tables, *self.servers.tables]:
            nn.init.normal_(table.weight, std=0.01)
        self.width = self.tasks.width + self.servers.width + N_CROSS

    def cross(self, tasks: IntArray, servers: IntArray | None = None) -> Tensor:
        """Cosines of text vectors and of TF-IDF, and whether the languages agree: of pairs, shape (n, 3), or without
        `servers` of tasks with all of them, shape (n, n_servers, 3)."""
        language, vectors, terms = self.language[tasks], self.task_vectors[tasks], self.task_terms[tasks]
        if servers is None:
            cosines = vectors @ self.server_vectors.T, (terms @ self.server_terms.T).toarray()
            parts = [*cosines, self.language_match[language]]
        else:
            cosine = np.einsum("nd,nd->n", vectors, self.server_vectors[servers])
            lexical = np.asarray(terms.multiply(self.server_terms[servers]).sum(axis=1)).ravel()
            parts = [cosine, lexical, self.language_match[language, servers]]
        return torch.from_numpy(np.stack(parts, axis=-1).astype(np.float32)).to(self.tasks.dense.device)

    def forward(self, tasks: IntArray, servers: IntArray) -> Tensor:
        """The feature vectors x of pairs, shape (n, F)."""
        return torch.cat([self.tasks(tasks), self.servers(servers), self.cross(tasks, servers)], dim=1)

    def all_pairs(self, tasks: IntArray) -> Features:
        """The parts of x for tasks with all servers, shapes (n, 1, ...), (n_servers, ...) and (n, n_servers, 3)."""
        return self.tasks(tasks)[:, None], self.servers(slice(None)), self.cross(tasks)


# A batch: rows of tasks and servers, labels, each of shape (n,); the share of the training that is done.
Batch = tuple[IntArray, IntArray, FloatArray, float]


@dataclass
class MPTRec(Trained):
    """Multi-task prompt tuning (Bai et al., TOIS 2025), a model of (task, server) pairs, no language model.

    Stage 1 trains a shared expert, which an adversary keeps from telling scenarios apart, and one expert for each
    scenario; stage 2 freezes them and tunes a small prompt for each new task. Here a scenario is one of the four
    categories and a new task one of the 16 subcategories; both are known for every development task. score(t, m) =
    logit of the prompt of t's subcategory; tasks of a subcategory without training tasks are scored by the head of
    their scenario. With the head ``scenario`` there is no stage 2. With ``emerging`` a task emerges after the experts
    were trained, as the article tells it: every category k has its own model, whose stage 1 learns from the training
    tasks of the other categories alone, and whose stage 2 tunes k's prompts on the training tasks of k; it scores the
    tasks of k, those of an unknown category are scored by the first model.

    L1 = BCE(f_k) + general_weight BCE(g) + adversary_weight NLL(k | reversed g) + decay_tables / 2 |tables|^2
    + decay_layers / 2 |weights of experts and towers|^2, where k is the scenario of the task: the other scenarios have
    no label for it and their terms are left out. The strength of the reversal grows as 2 / (1 + e^(-10 p)) - 1 with p
    the share of steps done. L2 = BCE + decay_layers / 2 |tower|^2.

    Deviations: one label per sample (the method expects one per objective), so environments are the scenarios and are
    not re-assigned; negatives are drawn; all epochs of a stage run, and the best of a few evaluations on validation
    gives the weights, those of stage 1 by the heads of the scenarios; frozen experts are in evaluation mode in stage 2.
    """

    embedding: int = 8
    dense: int = 32
    experts: Sequence[int] = (256, 128)
    towers: Sequence[int] = (64, 32)
    attention: int = 64
    dropout: float = 0.1
    negatives: int = 4
    general_weight: float = 0.9
    adversary_weight: float = 0.1
    decay_tables: float = 1e-5
    decay_layers: float = 1e-6
    first: Schedule = field(default_factory=Schedule)
    second: Schedule = field(default_factory=Schedule)
    head: Literal["prompt", "scenario", "emerging"] = "prompt"

    def fit(self, data: Dataset, split: Split, *, seed: int, workdir: Path) -> None:
        """Train both stages, with ``emerging`` once for each category; goes on from the checkpoints in `workdir`."""
        train_tasks = split.tasks("train")
        category = codes(data.tasks["category"], spelling_key, train_tasks)
        self.prompts, self.models = nn.ModuleList(), dict[int, MPTRec]()
        if self.head == "emerging":
            self._fit_emerging(data, split, category, seed, workdir)
            return
        torch.manual_seed(seed)
        # A category without training tasks counts as the most frequent one.
        self.scenario = np.maximum(category - 1, 0)
        self.n_servers, self.labelled = data.n_servers, Pairs(split.train)
        self.prompt = codes(data.tasks["subcategory"], spelling_key, train_tasks) - 1
        self.reader = Reader(data, split, dense=self.dense, width=self.embedding)
        scenarios, shape = int(self.scenario.max()) + 1, {"towers": self.towers, "dropout": self.dropout}
        self.network = Experts(self.reader.width, scenarios, experts=self.experts, **shape)  # type: ignore[arg-type]
        self.stage1 = nn.ModuleDict({"reader": self.reader, "experts": self.network}).to(self.place)
        identity = fingerprint(self, seed, split.train, split.valid, array(self.reader.tasks.dense))
        job = Job(seed, workdir, "mpt_rec_experts", identity, stream=1)
        stage = Stage(self.stage1, partial(self.batches, self.first), self.loss1, self.first)
        trained = self.train(stage, split, job)
        self.trained = trained.report()
        self.stage1.requires_grad_(requires_grad=False)
        if self.head == "prompt" and self.prompt.max() >= 0:
            self.trained = self.tune(split, seed, workdir, identity).report(experts=trained)

    def _fit_emerging(self, data: Dataset, split: Split, category: IntArray, seed: int, workdir: Path) -> None:
        self.category, numbers = category, np.setdiff1d(category[split.tasks("train")], UNKNOWN)
        if len(numbers) < 2:
            raise StudyError("the training tasks have one category: none is left to learn from", fix="system=mpt_rec")
        for number in map(int, numbers):
            model, folder = replace(self, head="scenario"), workdir / f"new_{number}"
            new, others = (only(split, mask) for mask in (category == number, category != number))
            model.fit(data, others, seed=seed, workdir=folder)
            model.labelled = Pairs(new.train)
            model.prompt = codes(data.tasks["subcategory"], spelling_key, new.tasks("train")) - 1
            prompted = model.tune(new, seed, folder, fingerprint(model, "prompts", seed, new.train, new.valid))
            model.trained = prompted.report() | {"experts": model.trained}
            self.models[number] = model

    def tune(self, split: Split, seed: int, workdir: Path, identity: str) -> Progress:
        """Stage 2: one prompt for each subcategory on the frozen experts."""
        torch.manual_seed(seed)
        shape: dict[str, Any] = {"attention": self.attention, "towers": self.towers, "dropout": self.dropout}
        sizes = self.reader.width, self.experts[1]
        self.prompts = nn.ModuleList(Prompt(*sizes, **shape) for _ in range(int(self.prompt.max()) + 1)).to(self.place)
        job = Job(seed, workdir, "mpt_rec_prompts", identity, stream=2)
        stage = Stage(self.prompts, partial(self.batches, self.second), self.loss2, self.second)
        return self.train(stage, split, job)

    def batches(self, settings: Schedule, rng: np.random.Generator, epoch: int) -> list[Batch]:
        """Every training interaction once with its negatives, in random order, both of them others in each stage."""
        labelled, each = self.labelled, 1 + self.negatives
        tasks, servers = (np.repeat(numbers, each) for numbers in (labelled.rows, labelled.indices))
        labels = np.tile(np.eye(1, each, dtype=np.float32)[0], len(labelled.indices))
        servers[labels == 0] = labelled.draw_outside(tasks[labels == 0], rng)
        parts = list(shuffle_batches(len(tasks), settings.batch_size, rng))
        done = (epoch + np.arange(len(parts)) / len(parts)) / settings.epochs
        return [(tasks[part], servers[part], labels[part], share) for part, share in zip(parts, done, strict=True)]

    def loss1(self, batch: Batch) -> Tensor:
        """L1 of a batch."""
        tasks, servers, truth, progress = batch
        experts, x = self.network, self.reader(tasks, servers)
        strength, scenarios = 2 / (1 + np.exp(-10 * progress)) - 1, self.scenario[tasks]
        total = x.new_zeros(())
        for scenario in np.unique(scenarios).tolist():
            rows = np.flatnonzero(scenarios == scenario)
            labels = self.tensor(truth[rows])
            fused, general, shared = experts(scenario, [x[rows]])
            total = total + binary_cross_entropy_with_logits(fused, labels, reduction="sum")
            total = total + self.general_weight * binary_cross_entropy_with_logits(general, labels, reduction="sum")
            reversed_ = shared.view_as(shared)  # its gradient times -strength (Ganin & Lempitsky 2015)
            reversed_.register_hook(lambda gradient: -strength * gradient)
            environment = torch.full((len(rows),), scenario, device=self.place)
            guess = cross_entropy(experts.classifier(reversed_), environment, reduction="sum")
            total = total + self.adversary_weight * guess
        layers = [experts.shared, experts.specific, experts.towers]
        penalty = self.decay_tables / 2 * squares([self.reader]) + self.decay_layers / 2 * squares(layers)
        return torch.add(total / len(x), penalty)

    def loss2(self, batch: Batch) -> Tensor:
        """L2 of a batch; samples of tasks without a prompt do not count."""
        tasks, servers, truth, _ = batch
        prompts = self.prompt[tasks]
        with torch.no_grad():
            x = self.reader(tasks, servers)
        total = squares([prompt.tower for prompt in self.prompts]) * self.decay_layers / 2  # type: ignore[misc]
        for number in np.unique(prompts[prompts >= 0]):
            rows = np.flatnonzero(prompts == number)
            logits, labels = self.prompts[number](self.network, [x[rows]]), self.tensor(truth[rows])
            total = total + binary_cross_entropy_with_logits(logits, labels, reduction="sum") / len(x)
        return total

    @torch.no_grad()
    def score(self, tasks: IntArray) -> FloatArray:
        """Logits, shape (len(tasks), n_servers)."""
        if self.models:
            return self._score_emerging(tasks)
        scores, experts = np.empty((len(tasks), self.n_servers), dtype=np.float32), self.network
        prompts = np.where(self.prompt[tasks] < len(self.prompts), self.prompt[tasks], -1)
        for prompt, scenario in np.unique([prompts, self.scenario[tasks]], axis=1).T.tolist():
            places = np.flatnonzero((prompts == prompt) & (self.scenario[tasks] == scenario))
            for part in chunks(places, BLOCK):
                pairs = self.reader.all_pairs(tasks[places[part]])
                logits = self.prompts[prompt](experts, pairs) if prompt >= 0 else experts(scenario, pairs)[0]
                scores[places[part]] = array(logits)
        return scores

    def _score_emerging(self, tasks: IntArray) -> FloatArray:
        first = min(self.models)
        which = np.where(np.isin(self.category[tasks], list(self.models)), self.category[tasks], first)
        scores = np.empty((len(tasks), self.models[first].n_servers), dtype=np.float32)
        for number in np.unique(which):
            scores[which == number] = self.models[int(number)].score(tasks[which == number])
        return scores

    def report(self) -> dict[str, Any]:
        """How the prompts were trained, and the experts before them; with ``emerging`` of each new category."""
        return {f"new_{number}": model.trained for number, model in self.models.items()} or self.trained

    def parameters(self) -> int:
        """Weights of both stages, of all models."""
        return sum(model.parameters() for model in self.models.values()) or n_weights(self.stage1, self.prompts)


def squares(modules: Sequence[nn.Module]) -> Tensor:
    """Sum of the squares of all matrices."""
    weights = (weight for module in modules for weight in module.parameters() if weight.ndim > 1)
    return torch.stack([(weight**2).sum() for weight in weights]).sum()


def only(split: Split, tasks: np.ndarray) -> Split:
    """The split without the training and validation interactions of other tasks; `tasks` is a mask."""
    rows = np.flatnonzero(tasks)
    keep = sp.csr_matrix((np.ones(len(rows), np.float32), (rows, rows)), shape=(len(tasks), len(tasks)))
    return replace(split, train=sp.csr_matrix(keep @ split.train), valid=sp.csr_matrix(keep @ split.valid))
