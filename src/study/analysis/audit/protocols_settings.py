"""``conf/audit/protocols.yaml``, read strictly."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from study import paths
from study.analysis.audit.paper_cells import settings
from study.config.compose import choices
from study.errors import StudyError

KEYS = ("seeds", "split_seed", "systems", "pool", "tolerance", "draws", "level", "seed", "protocols", "readings")
ALLOWED: dict[str, tuple[str, ...]] = {
    "labels": ("released", "longer"),
    "split": ("cold", "warm", "loo"),
    "training": ("train", "everything"),
    "recall": ("recall", "recall_capped", "hit_rate"),
    "f1": ("f1", "of_means"),
    "ndcg": ("ndcg", "ndcg_found"),
}


@dataclass(frozen=True)
class Variant:
    """One protocol of the grid; see the comments in the yaml for the meaning of each value.

    Attributes:
        name: its key, the name of its folder.
        title: how it is printed.
        labels, prefix: whose labels count and how many of each list.
        split, training: what is asked for and what a system learns from.
        negatives: servers that compete with the right ones, None for the whole catalogue.
    """

    name: str
    title: str
    labels: str
    prefix: int | None
    split: str
    training: str
    negatives: int | None

    @property
    def fit(self) -> tuple[str, int | None, str]:
        """What decides a fit: variants that agree in it share one training."""
        return self.labels, self.prefix, "everything" if self.training == "everything" else self.split


@dataclass(frozen=True)
class Grid:
    """The whole file.

    Attributes:
        seeds, split_seed: of the systems and of the splits.
        systems: names of ``conf/system``.
        pool: places of a ranking that a re-ranker might re-order.
        variants: protocols in the order of the file.
        readings: reading -> which measure stands in the columns recall, f1 and ndcg.
        tolerance: absolute difference within which a cell counts as given.
        draws, level, seed: of the intervals.
    """

    seeds: list[int]
    split_seed: int
    systems: list[str]
    pool: int
    variants: list[Variant]
    readings: dict[str, dict[str, str]]
    tolerance: float
    draws: int
    level: float
    seed: int


def read() -> Grid:
    """The grid of the file.

    Raises:
        StudyError: an unknown key, value or system.
    """
    path = paths.conf() / "audit" / "protocols.yaml"
    content = settings("protocols", KEYS)
    variants = []
    for name, values in content.pop("protocols").items():
        try:
            variants.append(Variant(name, **values))
        except TypeError as error:
            raise StudyError(f"not a protocol: {error}", file=path, row=name, fix="correct its keys") from error
        check(path, name, values, ("labels", "split", "training"))
    for name, values in content["readings"].items():
        check(path, name, values, ("recall", "f1", "ndcg"))
    unknown = set(content["systems"]) - set(choices("system"))
    if unknown:
        raise StudyError(
            f"unknown system {sorted(unknown)[0]!r}",
            file=path,
            column="systems",
            fix=f"one of: {', '.join(choices('system'))}",
        )
    return Grid(variants=variants, **content)


def check(path: Path, name: str, values: dict[str, Any], keys: tuple[str, ...]) -> None:
    """Raise unless each of `keys` has an allowed value."""
    for key in keys:
        if values.get(key) not in ALLOWED[key]:
            raise StudyError(
                f"{key} is {values.get(key)!r}", file=path, row=name, fix=f"one of: {', '.join(ALLOWED[key])}"
            )
