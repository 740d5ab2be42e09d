"""Fused score, anchors and centroid expansion (paper, eq. 17-22), and their settings."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal, get_type_hints

import numpy as np
from pydantic import Field, TypeAdapter, ValidationError

from study.advisor.arrays import FloatArray, IntArray
from study.advisor.retrieval.ranking import top_k
from study.base.errors import StudyError

Count = Annotated[int, Field(ge=1)]
Natural = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


@cache
def _hints(group: type) -> dict[str, TypeAdapter[Any]]:
    return {key: TypeAdapter(hint) for key, hint in get_type_hints(group, include_extras=True).items()}


class Group:
    """A group of settings, whose values must fit their hints."""

    def __post_init__(self) -> None:
        group: Any = type(self)  # a class is hashable, whatever mypy says
        for key, hint in _hints(group).items():
            try:
                hint.validate_python(getattr(self, key), strict=True)
            except ValidationError as error:
                self.require(False, key, error.errors()[0]["msg"].replace("Input should", "which should"))

    def require(self, holds: bool, key: str, wanted: str) -> None:
        """Raise `StudyError` unless a condition on one of the settings holds."""
        if not holds:
            raise StudyError(
                f"{getattr(self, key)!r} is no value for this setting",
                column=f"system.model.{type(self).__name__.lower()}.{key}",
                fix=f"give another value, {wanted}; conf/system/paper/t2mrec.yaml explains every key",
            )


@dataclass(frozen=True)
class Scoring(Group):
    """Structure, fusion and expansion (eq. 17-22). Without expansion the fused score alone ranks.

    The weights w_cat, w_lan, w_the of eq. 17 ("equal weights") sum to 1, so that s_str stays between 0 and 1 and
    alpha_sem alone says how much structure counts.
    """

    semantic_weight: Share = 0.9
    category: Share = 1 / 3
    language: Share = 1 / 3
    theme: Share = 1 / 3
    languages: Literal["study", "program"] = "study"
    expansion: bool = True
    anchors: Natural = 5
    pool: Count = 20

    def __post_init__(self) -> None:
        super().__post_init__()
        if not math.isclose(sum(self.structure_weights), 1, abs_tol=1e-6):
            raise StudyError(
                f"the structural weights w_cat, w_lan, w_the sum to {sum(self.structure_weights):g}, not to 1",
                column="system.model.scoring.{category,language,theme}",
                fix="divide each of the three by their sum",
            )
        self.require(self.pool >= self.anchors, "pool", f"at least the {self.anchors} of scoring.anchors")

    @property
    def structure_weights(self) -> tuple[float, float, float]:
        """(w_cat, w_lan, w_the)."""
        return self.category, self.language, self.theme


def fuse(semantic: FloatArray, structural: FloatArray, *, weight: float) -> FloatArray:
    """s = alpha_sem s_sem + (1 - alpha_sem) s_str (eq. 18).

    Args:
        semantic, structural: shape (b, n_servers).
        weight: alpha_sem, between 0 and 1.
    """
    return np.float32(weight) * semantic + np.float32(1 - weight) * structural


def centroids(tasks: FloatArray, servers: FloatArray, anchors: IntArray) -> FloatArray:
    """c(t), the mean of a task's embedding and its anchors' (eq. 20).

    Args:
        tasks: z_t, shape (b, d').
        servers: z_m, shape (n_servers, d').
        anchors: server rows, shape (b, K1); -1 where a task has fewer anchors.

    Returns: shape (b, d'). Not normalised, as in the paper: length changes no order.
    """
    members = np.zeros_like(tasks)
    # In the order of the catalogue: another order of adding changes the last digit.
    for rows in np.sort(anchors, axis=1).T:
        members += np.where(rows[:, None] >= 0, servers[rows], np.float32(0))
    share = (1 / ((anchors >= 0).sum(axis=1) + 1)).astype(np.float32)
    found: FloatArray = share[:, None] * (tasks + members)
    return found


def expand(
    fused: FloatArray,
    centroid_similarity: Callable[[IntArray], FloatArray],
    *,
    anchors: int,
    pool: int,
    order: IntArray,
) -> tuple[IntArray, FloatArray]:
    """Anchors by fused score, then the servers nearest to the centroid of task and anchors (eq. 19-22).

    Args:
        fused: s(m, t), shape (b, n_servers); -inf for servers that must not be returned.
        centroid_similarity: gives the similarity of every server to the centroids, shape (b, n_servers), from the rows
            of the anchors, shape (b, K1), -1 where a task has fewer.
        anchors: K1.
        pool: size of the pool; pool - K1 servers come from the centroid.
        order: tie order from `tie_order`.

    Returns: server rows and scores, shape (b, pool); anchors first with their fused scores, then the expansion with its
        centroid similarity shifted below the last anchor, so that scores never increase along a row.
    """
    anchor_rows, anchor_scores = top_k(fused, anchors, order)
    similarity = centroid_similarity(anchor_rows)
    np.copyto(similarity, -np.inf, where=fused == -np.inf)
    rows, places = np.nonzero(anchor_rows >= 0)
    similarity[rows, anchor_rows[rows, places]] = -np.inf
    near_rows, near_scores = top_k(similarity, max(pool - anchors, 0), order)
    # Cosines lie in [-1, 1]: a shift to two below the last anchor keeps the expansion under it and its order intact.
    last = anchor_scores[:, -1:] if anchor_scores.shape[1] else np.zeros((len(fused), 1), np.float32)
    near_scores = near_scores + np.where(np.isfinite(last), last, 0) - 2
    return np.concatenate([anchor_rows, near_rows], 1), np.concatenate([anchor_scores, near_scores], 1).astype(
        np.float32
    )
