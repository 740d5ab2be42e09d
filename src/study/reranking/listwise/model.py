"""The listwise model: boosted trees that are trained on whole pools (LightGBM; Ke et al. 2017)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import lightgbm
import numpy as np
from numpy.typing import NDArray

from study.data.dataset import FloatArray, IntArray
from study.errors import StudyError
from study.reranking.listwise.features import NAMES

Float64Array = NDArray[np.float64]
OBJECTIVES = ("rank_xendcg", "lambdarank")


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
