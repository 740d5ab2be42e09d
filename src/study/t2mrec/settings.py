"""The settings of T2MRec, grouped as the paper groups them. Defaults are the paper's (section 5.4); every key is
explained in ``conf/system/paper/t2mrec.yaml``. A wrong value stops before any work, naming its key and its fix."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from study.advisor.retrieval.settings import Count, Group, Natural, Positive
from study.advisor.retrieval.settings import Scoring as Scoring

# Makes the trainer of a training from its arguments; `study run` puts that of ``conf/trainer`` here, with its logger.
TRAINER: ContextVar[Callable[..., Any] | None] = ContextVar("TRAINER", default=None)

Lengths = tuple[Count, Count] | Annotated[list[Count], Field(min_length=2, max_length=2)]


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
