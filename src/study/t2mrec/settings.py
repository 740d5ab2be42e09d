"""The settings of T2MRec, grouped as the paper groups them. Defaults are the paper's (section 5.4).

Every key is explained in ``conf/system/paper/t2mrec.yaml``. Every group checks itself where it is made, so that a
wrong value stops before any work, naming its key and its fix.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from study.errors import StudyError

# Makes the trainer of a training from its arguments; `study run` puts that of ``conf/trainer`` here, with its logger.
TRAINER: ContextVar[Callable[..., Any] | None] = ContextVar("TRAINER", default=None)

KINDS = ("tfidf", "minilm")
OBJECTIVES = ("info_nce", "bce")


def _refuse(key: str, value: object, wanted: str) -> StudyError:
    """The error of a setting ``system.model.<key>`` that holds `value`."""
    return StudyError(
        f"{value!r} is no value for this setting",
        column=f"system.model.{key}",
        fix=f"give {wanted}; conf/system/paper/t2mrec.yaml explains every key",
    )


def _flag(key: str, value: Any) -> None:
    """`value` is true or false."""
    if not isinstance(value, bool):
        raise _refuse(key, value, "true or false")


def _one_of(key: str, value: Any, choices: tuple[str, ...]) -> None:
    """`value` is one of `choices`."""
    if value not in choices:
        raise _refuse(key, value, f"one of: {', '.join(choices)}")


def _count(key: str, value: Any, least: int) -> None:
    """`value` is a whole number, `least` or more."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise _refuse(key, value, f"a whole number of at least {least}")


def _number(
    key: str, value: Any, low: float, high: float = math.inf, *, low_open: bool = False, high_open: bool = False
) -> None:
    """`value` is a finite number between `low` and `high`; an open end is itself left out."""
    known = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not (known and (low < value if low_open else low <= value) and (value < high if high_open else value <= high)):
        lower = f"{'above' if low_open else 'from'} {low:g}"
        upper = "" if math.isinf(high) else f" {'to below' if high_open else 'to'} {high:g}"
        raise _refuse(key, value, f"a number {lower}{upper}")


@dataclass(frozen=True)
class Lexical:
    """Text representation (eq. 4-5); ``minilm`` is the "w/o lexical" variant, dense sentence vectors."""

    kind: str = "tfidf"
    max_features: int | None = 50_000
    ngrams: tuple[int, int] = (1, 2)

    def __post_init__(self) -> None:
        _one_of("lexical.kind", self.kind, KINDS)
        if self.max_features is not None:
            _count("lexical.max_features", self.max_features, 1)
        pair = self.ngrams if isinstance(self.ngrams, list | tuple) else ()
        if len(pair) != 2 or not all(type(n) is int for n in pair) or not 1 <= pair[0] <= pair[1]:
            raise _refuse("lexical.ngrams", self.ngrams, "[shortest, longest], whole numbers from 1, such as [1, 2]")


@dataclass(frozen=True)
class Towers:
    """Semantic encoder (eq. 6-7): `study.t2mrec.towers.Tower`, or none, which compares the representations."""

    enabled: bool = True
    shared: bool = False
    hidden: int = 512
    output: int = 256
    layers: int = 3
    dropout: float = 0.2

    def __post_init__(self) -> None:
        _flag("towers.enabled", self.enabled)
        _flag("towers.shared", self.shared)
        _count("towers.hidden", self.hidden, 1)
        _count("towers.output", self.output, 1)
        _count("towers.layers", self.layers, 2)
        _number("towers.dropout", self.dropout, 0, 1, high_open=True)


@dataclass(frozen=True)
class Training:
    """Contrastive alignment (eq. 9-10); ``bce`` is the "w/o CL" variant.

    A task's `hard_negatives` are drawn anew in every epoch from the `hard_pool` servers nearest to it in the input
    space that are not among its training positives. The paper adds none. The last batch of an epoch is shorter.
    """

    loss: str = "info_nce"
    symmetric: bool = True
    hard_negatives: int = 0
    hard_pool: int = 50
    temperature: float = 0.07
    learning_rate: float = 1e-3
    weight_decay: float = 0.01
    batch_size: int = 256
    epochs: int = 200
    checkpoint_every: int = 50

    def __post_init__(self) -> None:
        _one_of("training.loss", self.loss, OBJECTIVES)
        _flag("training.symmetric", self.symmetric)
        _count("training.hard_negatives", self.hard_negatives, 0)
        _count("training.hard_pool", self.hard_pool, max(1, self.hard_negatives))
        _number("training.temperature", self.temperature, 0, low_open=True)
        _number("training.learning_rate", self.learning_rate, 0, low_open=True)
        _number("training.weight_decay", self.weight_decay, 0, 1 / self.learning_rate, high_open=True)
        _count("training.batch_size", self.batch_size, 1)
        _count("training.epochs", self.epochs, 1)
        _count("training.checkpoint_every", self.checkpoint_every, 1)


@dataclass(frozen=True)
class Scoring:
    """Structure, fusion and expansion (eq. 17-22). Without expansion the fused score alone ranks.

    The weights w_cat, w_lan, w_the of eq. 17 ("equal weights") sum to 1, so that s_str stays between 0 and 1 and
    alpha_sem alone says how much structure counts.
    """

    semantic_weight: float = 0.9
    category: float = 1 / 3
    language: float = 1 / 3
    theme: float = 1 / 3
    expansion: bool = True
    anchors: int = 5
    pool: int = 20

    def __post_init__(self) -> None:
        _number("scoring.semantic_weight", self.semantic_weight, 0, 1)
        for key, weight in zip(("category", "language", "theme"), self.structure_weights, strict=True):
            _number(f"scoring.{key}", weight, 0, 1)
        if not math.isclose(sum(self.structure_weights), 1, abs_tol=1e-6):
            raise StudyError(
                f"the structural weights w_cat, w_lan, w_the sum to {sum(self.structure_weights):g}, not to 1",
                column="system.model.scoring.{category,language,theme}",
                fix="divide each of the three by their sum",
            )
        _flag("scoring.expansion", self.expansion)
        _count("scoring.anchors", self.anchors, 0)
        _count("scoring.pool", self.pool, 1)
        if self.pool < self.anchors:
            raise StudyError(
                f"the pool K2 = {self.pool} is smaller than the anchors K1 = {self.anchors}",
                column="system.model.scoring.pool",
                fix="set system.model.scoring.pool to at least system.model.scoring.anchors",
            )

    @property
    def structure_weights(self) -> tuple[float, float, float]:
        """(w_cat, w_lan, w_the)."""
        return self.category, self.language, self.theme
