"""The listwise re-ranker: features of pairs, and boosted trees trained on whole pools (LightGBM; Ke et al. 2017).

No feature knows a label: neither how often a server is listed, nor for which tasks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import lightgbm
import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.feature_extraction.text import TfidfVectorizer

from study.data.dataset import SERVER_FIELDS, Dataset, FloatArray, IntArray
from study.data.splits import WORD
from study.encoders.sentence import encode
from study.errors import StudyError
from study.evaluation.ranking import chunks
from study.t2mrec.structure import FEATURES, StructuralFeatures
from study.t2mrec.system import T2MRec

Float64Array = NDArray[np.float64]
OBJECTIVES = ("rank_xendcg", "lambdarank")
# Task field and server field whose words are compared.
FIELD_PAIRS = (
    ("name", "name"),
    ("name", "description"),
    ("description", "name"),
    ("description", "description"),
    ("description", "subcategory"),
    ("description", "tools"),
    ("theme", "name"),
    ("theme", "description"),
)
# Scores that also count as distances to the best of the pool, and to the next better of it.
GAPS = ("fused", "semantic", "minilm", "words")
NAMES = (
    "place",
    "anchor",
    *GAPS,
    *(f"{name}_behind_best" for name in GAPS),
    *(f"{name}_behind_next" for name in GAPS),
    *FEATURES,
    *(f"{task}_{server}" for task, server in FIELD_PAIRS),
)


@dataclass(frozen=True)
class Listwise:
    """How the re-ranker is trained.

    Attributes:
        folds: parts of the training tasks; each part's pools come from a T2MRec that was trained on the others.
        objective: ``rank_xendcg``, a listwise softmax (Bruch 2021), or ``lambdarank`` (Burges 2010).
        trees: boosting rounds.
        learning_rate: weight of a tree.
        leaves: of a tree at most.
        least: pairs in a leaf at least.
    """

    folds: int = 2
    objective: str = "rank_xendcg"
    trees: int = 100
    learning_rate: float = 0.05
    leaves: int = 15
    least: int = 50

    def __post_init__(self) -> None:
        for name, low in (("folds", 2), ("trees", 1), ("leaves", 2), ("least", 1)):
            value = getattr(self, name)
            if type(value) is not int or value < low:
                raise _refuse(name, value, f"a whole number of at least {low}")
        if self.objective not in OBJECTIVES:
            raise _refuse("objective", self.objective, f"one of: {', '.join(OBJECTIVES)}")
        rate = self.learning_rate
        if type(rate) not in (int, float) or not math.isfinite(rate) or not 0 < rate <= 1:
            raise _refuse("learning_rate", rate, "a number above 0, at most 1")


def _refuse(name: str, value: object, wanted: str) -> StudyError:
    return StudyError(
        f"{value!r} is no value for this setting", column=f"system.model.listwise.{name}", fix=f"give {wanted}"
    )


def train(
    features: FloatArray, relevant: FloatArray, sizes: IntArray, settings: Listwise, *, seed: int
) -> lightgbm.Booster | None:
    """Fit the trees on the pools that hold a listed server; the others say nothing about order.

    Args:
        features: shape (p, len(NAMES)), pools end to end.
        relevant: 1 for a listed server, else 0, shape (p,).
        sizes: pairs of each pool; they sum to p.

    Returns: None where no pool holds a listed server.
    """
    pool = np.repeat(np.arange(len(sizes)), sizes)
    tells = np.bincount(pool, weights=relevant, minlength=len(sizes)) > 0
    if not tells.any():
        return None
    features, relevant, sizes = features[tells[pool]], relevant[tells[pool]], sizes[tells]
    parameters = {
        "objective": settings.objective,
        "learning_rate": settings.learning_rate,
        "num_leaves": settings.leaves,
        "min_data_in_leaf": settings.least,
        "verbosity": -1,
        "seed": seed,
        # The same numbers on every run: one thread, one order of sums.
        "deterministic": True,
        "force_col_wise": True,
        "num_threads": 1,
    }
    pairs = lightgbm.Dataset(features, relevant, group=sizes, feature_name=list(NAMES), params=parameters)
    return lightgbm.train(parameters, pairs, num_boost_round=settings.trees)


def scores(booster: lightgbm.Booster | None, features: FloatArray) -> Float64Array:
    """The model's score of every pair, shape (p,); comparable within a pool only. Without a model all are 0."""
    if booster is None or not len(features):
        return np.zeros(len(features))
    return np.asarray(booster.predict(features, num_threads=1), dtype=np.float64)


def importances(booster: lightgbm.Booster | None) -> dict[str, float]:
    """Share of the training objective's gain that each feature brought, largest first."""
    gains = np.zeros(len(NAMES)) if booster is None else booster.feature_importance("gain")
    total = float(gains.sum()) or 1.0
    shares = {name: round(float(gain) / total, 6) for name, gain in zip(NAMES, gains, strict=True)}
    return dict(sorted(shares.items(), key=lambda item: -item[1]))


def n_leaves(booster: lightgbm.Booster | None) -> int:
    """The number of learned values."""
    return 0 if booster is None else sum(int(tree["num_leaves"]) for tree in booster.dump_model()["tree_info"])


@dataclass(frozen=True)
class Pools:
    """Pools laid end to end.

    Attributes:
        tasks: task row of each pair, shape (p,).
        servers: server row of each pair, best first within its task, shape (p,).
        sizes: pairs of each task, in order; they sum to p.
    """

    tasks: IntArray
    servers: IntArray
    sizes: IntArray

    @classmethod
    def of(cls, tasks: IntArray, pools: Sequence[IntArray]) -> Pools:
        """From one array of server rows per task."""
        sizes = np.array([len(pool) for pool in pools], dtype=np.int64)
        return cls(np.repeat(tasks, sizes), np.concatenate([*pools, np.empty(0, np.int64)]).astype(np.int64), sizes)

    @property
    def starts(self) -> IntArray:
        """Where each task's pairs begin, shape (len(sizes),)."""
        return np.cumsum(self.sizes) - self.sizes

    @property
    def places(self) -> IntArray:
        """Place of each pair in its pool, from 1, shape (p,)."""
        return np.arange(len(self.tasks)) - np.repeat(self.starts, self.sizes) + 1


def behind(scores: FloatArray, pools: Pools) -> tuple[FloatArray, FloatArray]:
    """How far each pair lies behind the best of its pool, and behind the next better one (0 for the best).

    Args:
        scores: shape (p,).

    Returns: two of shape (p,), not negative.
    """
    best, step = np.zeros_like(scores), np.zeros_like(scores)
    for start, size in zip(pools.starts, pools.sizes, strict=True):
        part = scores[start : start + size]
        order = np.argsort(-part, kind="stable")
        best[start : start + size] = part.max(initial=-np.inf) - part
        step[start + order[1:]] = part[order[:-1]] - part[order[1:]]
    return best, step


class PairFeatures:
    """The features of any pairs of a data set's tasks and servers, without those of a trained T2MRec.

    Args:
        train_tasks: rows whose texts count for the document frequencies, with those of all servers.
    """

    def __init__(self, data: Dataset, train_tasks: IntArray) -> None:
        self.data, self.structure = data, StructuralFeatures(data.servers)
        self.dense = encode(data.task_texts()), encode(data.server_texts())
        texts, servers = data.task_texts(("name", "description")), data.server_texts(SERVER_FIELDS)
        vectorizer = TfidfVectorizer(token_pattern=WORD, sublinear_tf=True, dtype=np.float32)
        vectorizer.fit(servers + [texts[row] for row in train_tasks])
        self.words = vectorizer.transform(texts), vectorizer.transform(servers)
        self.task_fields = {name: vectorizer.transform(data.tasks[name]) for name, _ in FIELD_PAIRS}
        self.server_fields = {name: vectorizer.transform(data.servers[name]) for _, name in FIELD_PAIRS}

    def __call__(self, pools: Pools, system: T2MRec) -> FloatArray:
        """The features `NAMES` of every pair.

        Args:
            system: fitted; its scores are features too.

        Returns: shape (p, len(NAMES)), float32.
        """
        tasks, servers = pools.tasks, pools.servers
        semantic, fused, structure = self._scores(pools, system)
        scores = {
            "fused": fused,
            "semantic": semantic,
            "minilm": np.einsum("ij,ij->i", self.dense[0][tasks], self.dense[1][servers]),
            "words": products(self.words[0][tasks], self.words[1][servers]),
        }
        gaps = {name: behind(scores[name], pools) for name in GAPS}
        anchors = system.scoring.anchors if system.scoring.expansion else 0
        fields = (
            products(self.task_fields[task][tasks], self.server_fields[server][servers]) for task, server in FIELD_PAIRS
        )
        columns = [
            pools.places,
            pools.places <= anchors,
            *(scores[name] for name in GAPS),
            *(gaps[name][0] for name in GAPS),
            *(gaps[name][1] for name in GAPS),
            *structure,
            *fields,
        ]
        return np.stack([np.asarray(column, np.float32) for column in columns], axis=1)

    def _scores(self, pools: Pools, system: T2MRec) -> tuple[FloatArray, FloatArray, FloatArray]:
        """s_sem and s of every pair, shape (p,), and the three structural features, shape (3, p)."""
        asked = np.array([pools.tasks[start] for start in pools.starts[pools.sizes > 0]], dtype=np.int64)
        sizes = pools.sizes[pools.sizes > 0]
        semantic, fused, structure = [], [], []
        for piece in chunks(asked):
            here = asked[piece]
            row = np.repeat(np.arange(len(here)), sizes[piece])
            first = int(sizes[: piece.start].sum())
            server = pools.servers[first : first + len(row)]
            semantic.append(system.semantic(here)[row, server])
            fused.append(system.score(here)[row, server])
            structure.append(self.structure(self.data.tasks.iloc[here])[:, row, server])
        if not semantic:
            return np.empty(0, np.float32), np.empty(0, np.float32), np.empty((len(FEATURES), 0), np.float32)
        return np.concatenate(semantic), np.concatenate(fused), np.concatenate(structure, axis=1)


def products(first: sp.csr_matrix, second: sp.csr_matrix) -> FloatArray:
    """The inner product of each row of one matrix with the same row of the other, shape (rows,)."""
    return np.asarray(first.multiply(second).sum(axis=1), dtype=np.float32).ravel()
