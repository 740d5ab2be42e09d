"""``conf/audit`` for labels, leakage, rules, robustness and tasks: read strictly: a misspelt key is an error."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from study import paths
from study.config.reader import read_settings


@dataclass(frozen=True)
class Labels:
    """``labels.yaml``, where every key is explained."""

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


@dataclass(frozen=True)
class Leakage:
    """``leakage.yaml``, where every key is explained."""

    protocols: list[str]
    near_labels: float
    near_text: float
    metrics: list[str]
    references: list[str]
    seed: int


@dataclass(frozen=True)
class Rules:
    """``rules.yaml``, where every key is explained."""

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
    """``robustness.yaml``, where every key is explained."""

    protocol: str
    metric: str
    metrics: list[str]
    prefixes: list[int]
    split_seeds: list[int]
    split_systems: list[str]
    system_seed: int
    resamples: int
    seed: int


@dataclass(frozen=True)
class TaskQuality:
    """``task_quality.yaml``, where every key is explained."""

    pairs: list[list[str]]
    shuffles: int
    quantile: float
    sample: int
    seed: int
    boundary: int | None


FILES: dict[type, str] = {
    Labels: "labels",
    Leakage: "leakage",
    Rules: "rules",
    Robustness: "robustness",
    TaskQuality: "task_quality",
}
Kind = TypeVar("Kind", Labels, Leakage, Rules, Robustness, TaskQuality)


def read(kind: type[Kind], path: Path | None = None) -> Kind:
    """Read the settings of `kind` from its file in ``conf/audit``.

    Raises:
        StudyError: the file cannot be read, or its keys are not those of `kind`.
    """
    return read_settings(kind, path or paths.conf() / "audit" / f"{FILES[kind]}.yaml")


def table(dataset: str, name: str) -> Path:
    """Where a table of the audit lies."""
    return paths.results(dataset) / "audit" / f"{name}.csv"
