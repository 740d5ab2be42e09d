"""`LabelFit`: what tasks like this one list, re-ordered by trees that learned how lists are made."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sp

from baselines.ease import Ease
from baselines.label_ranker import kernels as k
from study.data.dataset import Dataset, FloatArray, IntArray
from study.data.splits import Split
from study.encoders.sentence import encode
from study.errors import StudyError
from study.evaluation.ranking import mask_known, tie_order, top_k
from study.usefulness.field_dense import standardised

# Tasks scored at a time: a few matrices of 512 x 5,642.
BLOCK = 512
# Added to the trees' scores, so that candidates stand above all other servers whatever the trees say.
ABOVE = 1e4


@dataclass
class LabelFit:
    """A kernel ridge regression and, where the task has a history, EASE; then LambdaMART over the best candidates.

    stage 1: s(t, m) = z(ridge(t, m)) + w z(EASE(t, m)), z over the catalogue. stage 2: the `candidates` best are
    ordered by gradient-boosted trees (LambdaMART, Burges 2010) over the features of `features`. The trees learn from
    the training tasks, whose own labels every feature leaves out, so no held-out label is needed.

    Args:
        ridges: kernel -> weight, one mapping per ridge regression; the first makes stage 1.
        regularisation: lambda of the ridge regressions.
        shares: kernels of the weighted shares.
        history_weight: w; EASE is left out where no task has training and test labels at once.
        trees: number of trees; 0 leaves stage 2 out.
        candidates: servers per task that stage 2 orders.
        leaves, learning_rate, least_in_leaf, penalty: of the trees (penalty: on squared leaf values).
        max_features, max_ngram: of the TF-IDF vectors.
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
    max_features: int | None = 50_000
    max_ngram: int = 2
    booster: Any = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        """Refuse kernels that do not exist and a ridge regression without any."""
        for number, weights in enumerate(self.ridges):
            k.require_factors(weights, f"model.ridges.{number}")
        k.require_factors(self.shares, "model.shares")
        if not self.ridges or not all(map(k.used, self.ridges)) or not self.regularisation > 0:
            raise StudyError(
                "every ridge regression needs a kernel with a weight and a regularisation above 0",
                column="model.ridges",
                fix="see conf/system/label_fit.yaml",
            )

    def fit(self, data: Dataset, split: Split, *, seed: int, workdir: Path) -> None:
        """Solve the regressions, then grow the trees; the seed draws the trees' samples and the order of ties."""
        self.data, self.split, self.known = data, split, split.tasks("train")
        self.place = np.full(data.n_tasks, -1)
        self.place[self.known] = np.arange(len(self.known))
        self.labels = sp.csr_matrix(split.train[self.known])
        kernels = k.all_kernels(self.ridges, self.shares if self.trees else ())
        self.likeness = k.Likeness(data, self.known, kernels, max_features=self.max_features, max_ngram=self.max_ngram)
        self.fitted = []
        for weights in self.ridges[: None if self.trees else 1]:
            self.fitted.append(k.Ridge({name: weights[name] for name in k.used(weights)}, self.regularisation))
            self.fitted[-1].fit(self.likeness, self.labels)
        self.history = None
        if self.history_weight and not split.cold:
            self.history = Ease()
            self.history.fit(data, split, seed=seed, workdir=workdir)
        self.order = tie_order(data.n_servers, seed)
        if self.trees:
            self.static = server_features(data)
            self._grow(seed)

    def _grow(self, seed: int) -> None:
        """LambdaMART over the candidates of the training tasks."""
        import lightgbm

        rows, targets = [], []
        for tasks in np.array_split(self.known, max(1, len(self.known) // BLOCK)):
            first = self.first_stage(tasks)
            chosen = self.choose(first)
            rows.append(self.features(tasks, chosen, first).reshape(-1, self.n_features))
            targets.append(np.take_along_axis(self.labels[self.place[tasks]].toarray(), chosen, axis=1).reshape(-1))
        per_task = min(self.candidates, self.data.n_servers)
        train = lightgbm.Dataset(
            np.concatenate(rows),
            (np.concatenate(targets) > 0).astype(np.int32),
            group=np.full(len(self.known), per_task),
        )
        settings = {
            "objective": "lambdarank",
            "num_leaves": self.leaves,
            "learning_rate": self.learning_rate,
            "min_data_in_leaf": self.least_in_leaf,
            "lambda_l2": self.penalty,
            "label_gain": [0, 1],
            "lambdarank_truncation_level": 20,
            "bagging_fraction": 0.8,
            "bagging_freq": 1,
            "feature_fraction": 0.7,
            "seed": seed,
            "deterministic": True,
            "force_row_wise": True,
            "num_threads": 1,
            "verbose": -1,
        }
        self.booster = lightgbm.train(settings, train, num_boost_round=self.trees)

    def first_stage(self, tasks: IntArray) -> FloatArray:
        """s(t, m) of stage 1, own labels left out, shape (len(tasks), n_servers)."""
        scores = standardised(self.fitted[0].score(tasks, self.place[tasks]))
        if self.history is not None:
            scores += np.float32(self.history_weight) * standardised(self.history.score(tasks))
        return scores

    def choose(self, scores: FloatArray) -> IntArray:
        """The candidates of each task, best first, shape (len(tasks), candidates)."""
        return top_k(scores, self.candidates, self.order)[0]

    def features(self, tasks: IntArray, chosen: IntArray, first: FloatArray) -> FloatArray:
        """What the trees see of each candidate, shape (len(tasks), candidates, n_features).

        The ridge regressions and shares; score, relative score and rank of stage 1; history; popularity in training;
        the server's place in the catalogue; cosine of sentence vectors; whether the server is written in the task's
        language; how many words of the theme its name and description hold.
        """
        place, labels = self.place[tasks], self.labels

        def at(matrix: FloatArray) -> FloatArray:
            return np.asarray(np.take_along_axis(matrix, chosen, axis=1), dtype=np.float32)

        found = [at(ridge.score(tasks, place)) for ridge in self.fitted]
        found += [at(k.shares(self.likeness, name, labels, tasks, place)) for name in self.shares]
        history = np.zeros_like(first) if self.history is None else self.history.score(tasks)
        own = labels[place].toarray() * (place >= 0)[:, None]
        popular = np.asarray(labels.sum(axis=0)).ravel()[None, :] - own
        scores = at(first)
        tenth = scores[:, min(9, scores.shape[1] - 1)][:, None]
        rank = np.broadcast_to(np.arange(chosen.shape[1], dtype=np.float32), chosen.shape)
        found += [scores, scores - tenth, rank, at(np.asarray(history)), at(popular), chosen.astype(np.float32)]
        found += [at(matrix) for matrix in self.static.of(tasks)]
        return np.stack(found, axis=-1).astype(np.float32)

    @property
    def n_features(self) -> int:
        """Features per candidate."""
        return len(self.fitted) + len(self.shares) + 9

    def score(self, tasks: IntArray) -> FloatArray:
        """Scores, shape (len(tasks), n_servers): candidates by the trees, the others below them by stage 1."""
        first = self.first_stage(tasks)
        if self.booster is None:
            return first
        chosen = self.choose(mask_known(first.copy(), tasks, self.split.train))
        valid = np.where(chosen >= 0, chosen, 0)
        predicted = self.booster.predict(self.features(tasks, valid, first).reshape(-1, self.n_features), num_threads=1)
        row, column = np.nonzero(chosen >= 0)
        scores = first.copy()
        scores[row, chosen[row, column]] = ABOVE + np.reshape(predicted, chosen.shape)[row, column]
        return scores

    def parameters(self) -> int:
        """Dual weights of the regressions, and the leaves of the trees."""
        dual: int = sum(ridge.dual.shape[0] * int(np.count_nonzero(ridge.dual.any(axis=0))) for ridge in self.fitted)
        return dual + (0 if self.booster is None else self.trees * self.leaves)


@dataclass
class ServerFeatures:
    """What a task and a server have in common on paper, without any label."""

    tasks: FloatArray
    servers: FloatArray
    language: IntArray
    languages: FloatArray
    theme: IntArray
    themes: FloatArray

    def of(self, tasks: IntArray) -> list[FloatArray]:
        """Cosine, same language, theme's words; each of shape (len(tasks), n_servers)."""
        return [
            self.tasks[tasks] @ self.servers.T,
            self.languages[self.language[tasks]],
            self.themes[self.theme[tasks]],
        ]


def server_features(data: Dataset) -> ServerFeatures:
    """Compare every language and theme of the tasks with every server."""
    language, languages = pd.factorize(data.tasks["language"].str.strip().str.casefold())
    theme, themes = pd.factorize(data.tasks["theme"].str.strip().str.casefold())
    written = [set(re.findall(r"[a-z#+]+", text.casefold())) for text in data.servers["language"]]
    same = np.array([[name in own for own in written] for name in languages], dtype=np.float32)
    names = zip(data.servers["name"], data.servers["description"], strict=True)
    held = [set(re.findall(r"[a-z]{3,}", f"{name} {text}".casefold())) for name, text in names]
    words = [re.findall(r"[a-z]{3,}", name) for name in themes]
    counts = np.array([[sum(word in own for word in wanted) for own in held] for wanted in words], dtype=np.float32)
    return ServerFeatures(
        encode(data.task_texts()),
        encode(data.server_texts()),
        language.astype(np.int64),
        same,
        theme.astype(np.int64),
        counts,
    )
