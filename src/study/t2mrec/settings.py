"""The settings of T2MRec, grouped as the paper groups them. Defaults are the paper's (section 5.4); every key is
explained in ``conf/system/paper/t2mrec.yaml``. A wrong value stops before any work, naming its key and its fix."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal, get_type_hints

from pydantic import Field, TypeAdapter, ValidationError

from study.base.errors import StudyError

# Makes the trainer of a training from its arguments; `study run` puts that of ``conf/trainer`` here, with its logger.
TRAINER: ContextVar[Callable[..., Any] | None] = ContextVar("TRAINER", default=None)

Count = Annotated[int, Field(ge=1)]
Natural = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Lengths = tuple[Count, Count] | Annotated[list[Count], Field(min_length=2, max_length=2)]


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
class Lexical(Group):
    """Text representation (eq. 4-5); ``minilm`` is the "w/o lexical" variant, dense sentence vectors."""

    kind: Literal["tfidf", "minilm"] = "tfidf"
    max_features: Count | None = 50_000
    ngrams: Lengths = (1, 2)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(self.ngrams[0] <= self.ngrams[1], "ngrams", "the shortest and the longest, such as [1, 2]")


@dataclass(frozen=True)
class Towers(Group):
    """Semantic encoder (eq. 6-7): `study.t2mrec.towers.Tower`, or none, which compares the representations."""

    enabled: bool = True
    shared: bool = False
    hidden: Count = 512
    output: Count = 256
    layers: Annotated[int, Field(ge=2)] = 3
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.2


@dataclass(frozen=True)
class Training(Group):
    """Contrastive alignment (eq. 9-10); ``bce`` is the "w/o CL" variant, ``program_bce`` that of the authors' program,
    for which `symmetric`, `in_batch` and `hard_negatives` have no meaning and `batch_size` counts triples.

    A task's `hard_negatives` are drawn anew in every epoch from the `hard_pool` servers nearest to it in the input
    space that are not among its training positives. The paper adds none. The last batch of an epoch is shorter.
    """

    loss: Literal["info_nce", "bce", "program_bce"] = "info_nce"
    symmetric: bool = True
    in_batch: Literal["rows", "set"] = "rows"
    hard_negatives: Natural = 0
    hard_pool: Count = 50
    negatives: Count = 10
    temperature: Positive = 0.07
    learning_rate: Positive = 1e-3
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    batch_size: Count = 256
    epochs: Count = 200
    checkpoint_every: Count = 50

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(self.hard_pool >= self.hard_negatives, "hard_pool", "at least as many as hard_negatives")
        self.require(self.weight_decay * self.learning_rate < 1, "weight_decay", "below 1 / learning_rate")


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
