"""Label ranker: kernel ridge regression over similar tasks, re-ordered by gradient-boosted trees."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from baselines.ease import Ease
from baselines.popularity import one_hot
from study.advisor.encoders.sentence import encode
from study.advisor.retrieval.field_dense import standardised
from study.base.errors import require_one_of
from study.data.dataset import TASK_FIELDS, Dataset, FloatArray, IntArray
from study.data.splits import Split
from study.evaluation.ranking import mask_known, tie_order, top_k
from study.t2mrec.lexical import fit_vectorizer

ATTRIBUTES = ("theme", "language", "subcategory")
TEXTS = {"text": (*TASK_FIELDS, "subcategory"), "name": ("name",)}
SENTENCE, NEAR = "minilm", "near"


class Likeness:
    """Kernels between tasks, each named by its factors, joined by "*".

    Factors: ``text`` and ``name`` (cosine of TF-IDF vectors, fitted on the training tasks, whose rows are `known`),
    ``minilm`` (cosine of sentence vectors), ``theme``, ``language``, ``subcategory`` (1 where equal, ignoring case),
    and ``near30`` (exp(-|difference in file position| / 30), for any positive number): tasks that stand together in the
    file were annotated alike. Raises StudyError: there is no such factor.
    """

    def __init__(self, data: Dataset, train_tasks: IntArray, kernels: Iterable[str]) -> None:
        self.known = train_tasks
        # Of a name: vectors of all tasks, whose products are the factor, or for ``near`` their places in the file.
        self.vectors: dict[str, Any] = {}
        for name in sorted({factor for kernel in kernels for factor in kernel.split("*")}):
            if name in ATTRIBUTES:
                self.vectors[name] = one_hot(data.tasks[name], empty=True)[0]
            elif name in TEXTS:
                texts = data.task_texts(TEXTS[name])
                learned = [texts[row] for row in train_tasks]
                vectorizer = fit_vectorizer(learned, max_features=50_000, ngram_range=(1, 2))
                self.vectors[name] = sp.csr_matrix(vectorizer.transform(texts))
            elif name == SENTENCE:
                self.vectors[name] = encode(data.task_texts())
            elif re.fullmatch(f"{NEAR}[1-9][0-9]*", name):
                self.vectors[name] = np.arange(data.n_tasks, dtype=np.float32)
            else:
                require_one_of(name, "factor", (*TEXTS, SENTENCE, *ATTRIBUTES, "near30"), column="model.ridges")

    def factor(self, name: str, tasks: IntArray) -> FloatArray:
        """One factor between `tasks` and the training tasks, shape (len(tasks), n_known), float32."""
        left, right = self.vectors[name][tasks], self.vectors[name][self.known]
        if name.startswith(NEAR):
            product = np.exp(-np.abs(left[:, None] - right[None, :]) / np.float32(name.removeprefix(NEAR)))
        else:
            product = left @ right.T
        return np.asarray(product.toarray() if sp.issparse(product) else product, dtype=np.float32)

    def kernel(self, name: str, tasks: IntArray) -> FloatArray:
        """The product of a kernel's factors, shape (len(tasks), n_known)."""
        return reduce(np.multiply, (self.factor(factor, tasks) for factor in name.split("*")))

    def total(self, weights: Mapping[str, float], tasks: IntArray) -> FloatArray:
        """The weighted sum of kernels, shape (len(tasks), n_known)."""
        return reduce(np.add, (np.float32(weight) * self.kernel(name, tasks) for name, weight in weights.items()))


class Ridge:
    """Kernel ridge regression of every server's labels (Saunders et al. 1998): s_t = k_t (K + lambda I)^-1 Y.

    A training task is scored as if it had not been learned from: y_i - [(K + lambda I)^-1 Y]_i / [(K + lambda I)^-1]_ii
    (leave-one-out, Rifkin & Lippert 2007). `labels`: the lists of the training tasks, shape (n_known, n_servers);
    `weights`: by kernel; `regularisation`: lambda.
    """

    def __init__(
        self, likeness: Likeness, labels: sp.csr_matrix, weights: Mapping[str, float], regularisation: float
    ) -> None:
        self.likeness, self.labels, self.weights = likeness, labels, weights
        system = likeness.total(weights, likeness.known)
        system[np.diag_indices_from(system)] += np.float32(regularisation)
        inverse = np.linalg.inv(system)
        self.own = inverse.diagonal().copy()
        self.dual: FloatArray = np.asarray(inverse @ labels, dtype=np.float32)

    def score(self, tasks: IntArray, numbers: IntArray) -> FloatArray:
        """Scores, shape (len(tasks), n_servers); `numbers`: of the tasks among the training tasks, or -1."""
        scores = np.asarray(self.likeness.total(self.weights, tasks) @ self.dual, dtype=np.float32)
        row, number = np.flatnonzero(numbers >= 0), numbers[numbers >= 0]
        scores[row] = self.labels[number].toarray() - self.dual[number] / self.own[number, None]
        return scores


def shares(likeness: Likeness, kernel: str, labels: sp.csr_matrix, tasks: IntArray, numbers: IntArray) -> FloatArray:
    """The share of the other training tasks that list a server, weighted by the kernel; (len(tasks), n_servers)."""
    weights = likeness.kernel(kernel, tasks)
    row = np.flatnonzero(numbers >= 0)
    weights[row, numbers[row]] = 0
    total = weights.sum(axis=1, keepdims=True)
    return np.asarray((weights @ labels) / np.where(total > 0, total, 1), dtype=np.float32)


BLOCK = 512  # tasks scored at a time: a few matrices of 512 x 5,642
ABOVE = 1e4  # added to the trees' scores, so that candidates stand above all other servers whatever the trees say


@dataclass
class LabelRanker:
    """A kernel ridge regression and, where the task has a history, EASE; then LambdaMART over the best candidates.

    Stage 1: s(t, m) = z(ridge(t, m)) + w z(EASE(t, m)), z over the catalogue, w = `history_weight`. EASE is left out
    where no task has training and test labels at once. Stage 2: gradient-boosted trees (LambdaMART, Burges 2010) order
    the `candidates` best over the features of `features`. The trees learn from the training tasks; every feature leaves
    out the task's own labels, so no held-out label is needed.
    """

    ridges: Sequence[Mapping[str, float]]
    regularisation: float = 1.0
    shares: Sequence[str] = ()
    history_weight: float = 1.0
    trees: int = 300
    candidates: int = 100
    leaves: int = 15
    learning_rate: float = 0.05
    least_in_leaf: int = 50
    penalty: float = 5.0
    catalogue_place: bool = True

    def fit(self, data: Dataset, split: Split, *, seed: int, workdir: Path) -> None:
        """Solve the regressions, then grow the trees; the seed draws the trees' samples and the order of ties."""
        self.data, self.split, self.known = data, split, split.tasks("train")
        self.place = np.full(data.n_tasks, -1)
        self.place[self.known] = np.arange(len(self.known))
        self.labels = sp.csr_matrix(split.train[self.known])
        kernels = {name for weights in self.ridges for name in weights} | set(self.shares if self.trees else ())
        self.likeness = Likeness(data, self.known, kernels)
        ridges = self.ridges if self.trees else self.ridges[:1]
        self.fitted = [Ridge(self.likeness, self.labels, weights, self.regularisation) for weights in ridges]
        self.history = None
        if self.history_weight and not split.cold:
            self.history = Ease()
            self.history.fit(data, split, seed=seed, workdir=workdir)
        self.order = tie_order(data.n_servers, seed)
        self.booster: Any = None
        if self.trees:
            self.static = on_paper(data)
            self.booster = self._grow(seed)

    def _grow(self, seed: int) -> Any:
        """LambdaMART over the candidates of the training tasks."""
        import lightgbm

        rows, targets = [], []
        for tasks in np.array_split(self.known, max(1, len(self.known) // BLOCK)):
            first = self.first_stage(tasks)
            chosen, _ = top_k(first, self.candidates, self.order)
            rows.append(self.features(tasks, chosen, first))
            targets.append(np.take_along_axis(self.labels[self.place[tasks]].toarray(), chosen, axis=1).reshape(-1))
        inputs = np.concatenate([part.reshape(-1, part.shape[-1]) for part in rows])
        sizes = np.full(len(self.known), min(self.candidates, self.data.n_servers))
        train = lightgbm.Dataset(inputs, (np.concatenate(targets) > 0).astype(np.int32), group=sizes)
        settings = {"objective": "lambdarank", "label_gain": [0, 1], "lambdarank_truncation_level": 20}
        settings |= {"num_leaves": self.leaves, "learning_rate": self.learning_rate, "lambda_l2": self.penalty}
        settings |= {"min_data_in_leaf": self.least_in_leaf, "feature_fraction": 0.7, "seed": seed}
        settings |= {"bagging_fraction": 0.8, "bagging_freq": 1, "deterministic": True, "force_row_wise": True}
        settings |= {"num_threads": 1, "verbose": -1}
        return lightgbm.train(settings, train, num_boost_round=self.trees)

    def first_stage(self, tasks: IntArray) -> FloatArray:
        """s(t, m) of stage 1, own labels left out, shape (len(tasks), n_servers)."""
        scores = standardised(self.fitted[0].score(tasks, self.place[tasks]))
        if self.history is not None:
            scores += np.float32(self.history_weight) * standardised(self.history.score(tasks))
        return scores

    def features(self, tasks: IntArray, chosen: IntArray, first: FloatArray) -> FloatArray:
        """What the trees see of each candidate, shape (len(tasks), candidates, n_features): ridge regressions and
        shares; score, relative score and rank of stage 1; history; popularity in training; the place in the catalogue,
        unless `catalogue_place` leaves it out; what is in common on paper."""
        numbers, labels = self.place[tasks], self.labels

        def at(matrix: FloatArray) -> FloatArray:
            return np.asarray(np.take_along_axis(matrix, chosen, axis=1), dtype=np.float32)

        columns = [at(ridge.score(tasks, numbers)) for ridge in self.fitted]
        columns += [at(shares(self.likeness, name, labels, tasks, numbers)) for name in self.shares]
        history = np.zeros_like(first) if self.history is None else self.history.score(tasks)
        own_labels = labels[numbers].toarray() * (numbers >= 0)[:, None]
        popular = np.asarray(labels.sum(axis=0)).ravel()[None, :] - own_labels
        scores = at(first)
        tenth = scores[:, min(9, scores.shape[1] - 1)][:, None]
        rank = np.broadcast_to(np.arange(chosen.shape[1], dtype=np.float32), chosen.shape)
        columns += [scores, scores - tenth, rank, at(np.asarray(history)), at(popular)]
        columns += [chosen.astype(np.float32)] if self.catalogue_place else []
        columns += [at(np.asarray(of_tasks[tasks] @ of_servers)) for of_tasks, of_servers in self.static]
        return np.stack(columns, axis=-1).astype(np.float32)

    def score(self, tasks: IntArray) -> FloatArray:
        """Scores, shape (len(tasks), n_servers): candidates by the trees, the others below them by stage 1."""
        first = self.first_stage(tasks)
        if self.booster is None:
            return first
        chosen, _ = top_k(mask_known(first.copy(), tasks, self.split.train), self.candidates, self.order)
        valid = np.where(chosen >= 0, chosen, 0)
        features = self.features(tasks, valid, first)
        predicted = self.booster.predict(features.reshape(-1, features.shape[-1]), num_threads=1)
        row, column = np.nonzero(chosen >= 0)
        scores = first.copy()
        scores[row, chosen[row, column]] = ABOVE + np.reshape(predicted, chosen.shape)[row, column]
        return scores

    def parameters(self) -> int:
        """Dual weights of the regressions, and the leaves of the trees."""
        dual: int = sum(ridge.dual.shape[0] * int(np.count_nonzero(ridge.dual.any(axis=0))) for ridge in self.fitted)
        return dual + (0 if self.booster is None else self.trees * self.leaves)


def on_paper(data: Dataset) -> list[tuple[sp.csr_matrix | FloatArray, FloatArray]]:
    """What a task and a server have in common on paper, without any label, as matrices with shapes (n_tasks, d) and
    (d, n_servers) and their product: cosine, same language, theme's words."""
    (language, languages), (theme, themes) = (one_hot(data.tasks[name], empty=True) for name in ("language", "theme"))
    written = [set(re.findall(r"[a-z#+]+", text.casefold())) for text in data.servers["language"]]
    same = np.array([[name in row for row in written] for name in languages], dtype=np.float32)
    texts = (data.servers["name"] + " " + data.servers["description"]).str.casefold()
    held = [set(re.findall(r"[a-z]{3,}", text)) for text in texts]
    words = [re.findall(r"[a-z]{3,}", name) for name in themes]
    counts = np.array([[sum(word in row for word in theirs) for row in held] for theirs in words], dtype=np.float32)
    return [(encode(data.task_texts()), encode(data.server_texts()).T), (language, same), (theme, counts)]
