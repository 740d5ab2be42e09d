"""T2MRec whose pool is re-ordered by boosted trees (LightGBM; Ke et al. 2017): a re-ranker without language model.

The trees learn from whole pools. No feature knows a label: neither how often a server is listed, nor for which tasks.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import lightgbm
import numpy as np
import scipy.sparse as sp
from pydantic import Field
from sklearn.feature_extraction.text import TfidfVectorizer

from study.advisor.arrays import Float64Array
from study.advisor.encoders.sentence import encode
from study.advisor.retrieval.settings import Count, Group
from study.advisor.retrieval.structure import FEATURES, StructuralFeatures
from study.base.files import replacing
from study.data.dataset import SERVER_FIELDS, Dataset, FloatArray, IntArray
from study.data.splits import WORD, Split
from study.evaluation.ranking import chunks
from study.reranking.system import RerankedT2MRec
from study.t2mrec.system import T2MRec

Several = Annotated[int, Field(ge=2)]
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
class Listwise(Group):
    """How the re-ranker is trained; ``conf/system/paper/t2mrec.yaml`` explains the settings. The objective is
    ``rank_xendcg``, a listwise softmax (Bruch 2021), or ``lambdarank`` (Burges 2010)."""

    folds: Several = 2
    objective: Literal["rank_xendcg", "lambdarank"] = "rank_xendcg"
    trees: Count = 100
    learning_rate: Annotated[float, Field(gt=0, le=1)] = 0.05
    leaves: Several = 15
    least: Count = 50


def train(
    features: FloatArray, relevant: FloatArray, sizes: IntArray, settings: Listwise, *, seed: int
) -> lightgbm.Booster | None:
    """Fit the trees on the pools that hold a labelled server; the others say nothing about order.

    `features`: shape (p, len(NAMES)), pools end to end.
    `relevant`: 1 for a labelled server, else 0, shape (p,).
    `sizes`: pairs of each pool; they sum to p.
    Returns: None where no pool holds a labelled server.
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
    """Pools laid end to end."""

    tasks: IntArray  # task row of each pair, shape (p,)
    servers: IntArray  # server row of each pair, best first within its task, shape (p,)
    sizes: IntArray  # pairs of each task, in order; they sum to p

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
    """How far each pair lies behind the best of its pool, and behind the next better one (0 for the best). Scores and
    both results have shape (p,)."""
    best, step = np.zeros_like(scores), np.zeros_like(scores)
    for start, size in zip(pools.starts, pools.sizes, strict=True):
        part = scores[start : start + size]
        order = np.argsort(-part, kind="stable")
        best[start : start + size] = part.max(initial=-np.inf) - part
        step[start + order[1:]] = part[order[:-1]] - part[order[1:]]
    return best, step


class PairFeatures:
    """The features of any pairs of a data set's tasks and servers, without those of a trained T2MRec. `train_tasks`:
    rows whose texts count for the document frequencies, with those of all servers."""

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
        """The features `NAMES` of every pair, some of them scores of a fitted T2MRec; shape (p, n_names), float32."""
        tasks, servers = pools.tasks, pools.servers
        semantic, fused, *structure = self._scores(pools, system)
        scores = {
            "fused": fused,
            "semantic": semantic,
            "minilm": np.einsum("ij,ij->i", self.dense[0][tasks], self.dense[1][servers]),
            "words": products(self.words[0][tasks], self.words[1][servers]),
        }
        best, step = zip(*(behind(scores[name], pools) for name in GAPS), strict=True)
        anchors = system.scoring.anchors if system.scoring.expansion else 0
        fields = (
            products(self.task_fields[task][tasks], self.server_fields[server][servers]) for task, server in FIELD_PAIRS
        )
        columns = [pools.places, pools.places <= anchors, *scores.values(), *best, *step, *structure, *fields]
        return np.stack([np.asarray(column, np.float32) for column in columns], axis=1)

    def _scores(self, pools: Pools, system: T2MRec) -> FloatArray:
        """s_sem, s and the three structural features of every pair, shape (5, p)."""
        sizes, starts = pools.sizes[pools.sizes > 0], pools.starts[pools.sizes > 0]
        task_of_row = pools.tasks[starts]
        features = np.empty((2 + len(FEATURES), len(pools.tasks)), np.float32)
        for piece in chunks(task_of_row):
            tasks = task_of_row[piece]
            row = np.repeat(np.arange(len(tasks)), sizes[piece])
            pairs = slice(starts[piece.start], starts[piece.start] + len(row))
            server = pools.servers[pairs]
            features[0, pairs] = system.semantic(tasks)[row, server]
            features[1, pairs] = system.score(tasks)[row, server]
            features[2:, pairs] = self.structure(self.data.tasks.iloc[tasks])[:, row, server]
        return features


def products(first: sp.csr_matrix, second: sp.csr_matrix) -> FloatArray:
    """The inner product of each row of one matrix with the same row of the other, shape (rows,)."""
    return np.asarray(first.multiply(second).sum(axis=1), dtype=np.float32).ravel()


class T2MRecListwise(RerankedT2MRec):
    """T2MRec and boosted trees over its pool (not in the paper).

    The trees learn from the training tasks alone. T2MRec ranks the tasks that it was trained on far better than others,
    so the training tasks are dealt into folds, and the pools of a fold come from a T2MRec trained on the other folds.
    Folds are random; under ``cold_grouped`` near copies of a task may lie in another fold, which no test task has.
    The rules bind what the trees' order becomes, not what they learn from: they are trained on whole pools.

    `listwise`: folds and trees. `rules`: as for a language model.
    """

    def __init__(self, *parts: Any, listwise: Listwise, **named: Any) -> None:
        super().__init__(*parts, **named)
        self.listwise = listwise

    def fit(self, data: Dataset, split: Split, *, seed: int, workdir: Path) -> None:
        """Train a T2MRec per fold, the trees on their pools, T2MRec itself; a finished fold is kept in `workdir`."""
        train_tasks, pieces = split.tasks("train"), []
        self.features = PairFeatures(data, train_tasks)
        folds = np.array_split(np.random.default_rng([seed, 0xF01D]).permutation(train_tasks), self.listwise.folds)
        for number, fold in enumerate(folds):
            file = workdir / f"fold-{number}.npz"
            if not file.exists():
                self._fit_fold(data, split, np.sort(fold), seed, workdir / f"fold-{number}", file)
            with np.load(file) as arrays:
                pieces.append((arrays["features"], arrays["relevant"], arrays["sizes"]))
        started = time.perf_counter()
        features, relevant, sizes = (np.concatenate(parts) for parts in zip(*pieces, strict=True))
        self.trees = train(features, relevant, sizes, self.listwise, seed=seed)
        self.seconds_trees = time.perf_counter() - started
        super().fit(data, split, seed=seed, workdir=workdir)

    def _fit_fold(self, data: Dataset, split: Split, fold: IntArray, seed: int, workdir: Path, file: Path) -> None:
        """Write features, labels and sizes of the pools of `fold`, ranked by a T2MRec that never saw its tasks."""
        others = np.ones(data.n_tasks, dtype=np.float32)
        others[fold] = 0
        rest = sp.csr_matrix(sp.diags_array(others) @ split.train)
        rest.eliminate_zeros()
        workdir.mkdir(parents=True, exist_ok=True)
        base = T2MRec(self.lexical, self.towers, self.training, self.scoring)
        base.fit(data, replace(split, train=rest), seed=seed, workdir=workdir)
        pools = Pools.of(fold, candidate_pools(base, fold))
        arrays: dict[str, Any] = {
            "features": self.features(pools, base),
            "relevant": np.asarray(split.train[pools.tasks, pools.servers], dtype=np.float32).ravel(),
            "sizes": pools.sizes,
        }
        with replacing(file) as temporary, temporary.open("wb") as stream:
            np.savez(stream, **arrays)
        shutil.rmtree(workdir)

    def rerank(self, tasks: IntArray, pools: Sequence[IntArray]) -> list[IntArray]:
        """The orders nearest to the trees' that the rules allow; equal scores keep the order before."""
        ends = Pools.of(tasks, pools)
        parts = np.split(scores(self.trees, self.features(ends, self)), np.cumsum(ends.sizes)[:-1])
        free = [pool[np.argsort(-part, kind="stable")] for pool, part in zip(pools, parts, strict=True)]
        return [
            np.array(self.rules.within(order.tolist(), pool.tolist()), dtype=np.int64)
            for order, pool in zip(free, pools, strict=True)
        ]

    def parameters(self) -> int:
        """T2MRec's weights and the leaves of the trees."""
        return super().parameters() + n_leaves(self.trees)

    def report(self) -> dict[str, Any]:
        """For the run's record: seconds to train the trees, discarded orders, what each feature brought."""
        facts = {"seconds_trees": round(self.seconds_trees, 3), "invalid": self.invalid_rerankings}
        return facts | {"gain": importances(self.trees)}


def candidate_pools(system: T2MRec, tasks: IntArray) -> list[IntArray]:
    """The pool of each task, best first, nothing left out as known: these tasks are new to the system."""
    none_known = sp.csr_matrix((system.data.n_tasks, system.data.n_servers), dtype=np.float32)
    ranked = (system.rank(tasks[piece], system.scoring.pool, none_known)[0] for piece in chunks(tasks))
    return [row[row >= 0] for rows in ranked for row in rows]
