"""The settings of the audit, ``conf/audit``, read strictly: a misspelt key is an error."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from study import paths
from study.config.reader import Kind, read_settings
from study.config.schema import require_choice
from study.errors import StudyError


def settings_file(kind: type) -> Path:
    """The file of a kind of settings: `TaskQuality` stands in ``conf/audit/task_quality.yaml``."""
    return paths.conf() / "audit" / f"{re.sub('(?<!^)(?=[A-Z])', '_', kind.__name__).lower()}.yaml"


def read(kind: type[Kind], path: Path | None = None) -> Kind:
    """Read the settings of `kind`; a wrong key or value is a `StudyError`. The yaml explains every key."""
    return read_settings(kind, path or settings_file(kind))


def require_choices(group: str, names: Iterable[str]) -> None:
    """Raise `StudyError` unless every name is one of ``conf/<group>``."""
    for name in names:
        require_choice(group, name)


@dataclass(frozen=True)
class Consistency:
    """Checks of the printed cells against each other."""

    rounding: float
    max_relevant: int
    joint_max_relevant: int
    own_protocol: str


@dataclass(frozen=True)
class Verdicts:
    """The printed cells beside this study's."""

    tolerance: float
    relative_tolerance: float
    stated_protocol: str
    resamples: int
    level: float
    seed: int


@dataclass(frozen=True)
class Reproduction:
    """How near this study's row comes to the authors' program."""

    protocol: str
    system: str
    others: list[str]
    baselines: list[str]
    metrics: list[str]
    persistence: float
    alpha: float

    def __post_init__(self) -> None:
        require_choices("system", [self.system, *self.others, *self.baselines])


@dataclass(frozen=True)
class Labels:
    """Detectors, their order, and the mixture fitted to the lists."""

    theme_words: float
    text_words: float
    close_gap: float
    close_run: int
    long_run: int
    language_gap: int
    language_run: int
    pool_tasks: int
    pool_p: float
    level_run: int
    use_difference: int
    order: list[str]
    other_orders: dict[str, list[str]]
    thresholds: dict[str, dict[str, list[float]]]
    retrieved: list[str]
    retrieved_protocol: str
    permutations: int
    seed: int
    clusters: int
    smoothing: float
    topic_p: float
    rounds: int
    iterations: int
    tolerance: float
    simulations: int
    held_out: float

    def __post_init__(self) -> None:
        for detector, name, _ in self.varied():
            if detector not in self.order or not isinstance(getattr(self, name, None), int | float):
                fix = f"a detector ({', '.join(sorted(self.order))}) and a number of the file"
                problem = f"there is no threshold {name!r} of {detector!r}"
                raise StudyError(problem, file=settings_file(type(self)), column="thresholds", fix=fix)

    def varied(self) -> Iterator[tuple[str, str, float]]:
        """Detector, threshold and value of every entry of `thresholds`."""
        for detector, thresholds in self.thresholds.items():
            for name, values in thresholds.items():
                yield from ((detector, name, value) for value in values)

    def widest_gap(self, n_servers: int) -> int:
        """The widest step of a close run, in places of the catalogue."""
        return max(1, round(self.close_gap * n_servers))


@dataclass(frozen=True)
class Leakage:
    """Near-duplicates of test tasks in training."""

    protocols: list[str]
    near_labels: float
    near_text: float
    metrics: list[str]
    references: list[str]
    seed: int


@dataclass(frozen=True)
class Rules:
    """What the attribute counts' score rests on."""

    system: str
    protocol: str
    parts: list[str]
    metrics: list[str]
    system_seed: int
    seed: int
    variants: dict[str, dict[str, Any]]
    others: list[str]


@dataclass(frozen=True)
class Robustness:
    """The order of the systems under other choices."""

    protocol: str
    metric: str
    metrics: list[str]
    prefixes: list[int]
    split_seeds: list[int]
    split_systems: dict[str, list[str]]
    few_splits: dict[str, int]
    differences: dict[str, list[list[str]]]
    system_seed: int
    resamples: int
    seed: int


@dataclass(frozen=True)
class TaskQuality:
    """Agreement between the parts of a task."""

    pairs: list[list[str]]
    shuffles: int
    quantile: float
    sample: int
    seed: int
    boundary: int | None


@dataclass(frozen=True)
class Codebooks:
    """Use of the codes of semantic identifiers."""

    systems: list[str]

    def __post_init__(self) -> None:
        require_choices("system", self.systems)


@dataclass(frozen=True)
class PromptTemplates:
    """One training asked in all prompt templates."""

    system: str
    templates: int
    metrics: list[str]
    seeds: dict[str, list[int]]

    def __post_init__(self) -> None:
        require_choice("system", self.system)
        require_choices("protocol", self.seeds)


@dataclass(frozen=True)
class ReferenceBug:
    """A bug of a reference program: the method's own system, the protocol of both rows, and what the bug is."""

    system: str
    protocol: str
    bug: str


@dataclass(frozen=True)
class ReferenceBugs:
    """Published methods beside their rows with a bug of the reference program."""

    metric: str
    resamples: int
    seed: int
    rows: dict[str, ReferenceBug]

    def __post_init__(self) -> None:
        require_choices("system", [*self.rows, *(about.system for about in self.rows.values())])
        require_choices("protocol", (about.protocol for about in self.rows.values()))


@dataclass(frozen=True)
class Variant:
    """One protocol of the grid: `prefix` servers of each list count, `negatives` compete (None: all)."""

    title: str
    labels: str
    prefix: int | None
    split: str
    training: str
    negatives: int | None
    name: str = ""

    @property
    def fit(self) -> tuple[str, int | None, str]:
        """What decides a fit: variants that agree in it share one training."""
        return self.labels, self.prefix, "everything" if self.training == "everything" else self.split


@dataclass(frozen=True)
class Definition:
    """Which measure stands in a column of the paper's tables."""

    recall: str
    f1: str
    ndcg: str


ALLOWED = {
    "labels": ("released", "longer"),
    "split": ("cold", "warm", "loo"),
    "training": ("train", "everything"),
    "recall": ("recall", "recall_capped", "hit_rate"),
    "f1": ("f1", "of_means"),
    "ndcg": ("ndcg", "ndcg_found"),
}


@dataclass(frozen=True)
class Protocols:
    """The grid of protocols and how its result is read."""

    seeds: list[int]
    split_seed: int
    systems: list[str]
    pool: int
    tolerance: float
    draws: int
    level: float
    seed: int
    protocols: dict[str, Variant]
    metric_definitions: dict[str, Definition]

    def __post_init__(self) -> None:
        require_choices("system", self.systems)
        for name, entry in [*self.protocols.items(), *self.metric_definitions.items()]:
            for key, value in vars(entry).items():
                if value not in ALLOWED.get(key, (value,)):
                    fix = f"one of: {', '.join(ALLOWED[key])}"
                    raise StudyError(f"{key} is {value!r}", file=settings_file(type(self)), row=name, fix=fix)

    @property
    def variants(self) -> list[Variant]:
        """The protocols in the order of the file, with their names."""
        return [replace(variant, name=name) for name, variant in self.protocols.items()]
