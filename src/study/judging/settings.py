"""``conf/judging``: read strictly, so that a misspelt key is an error."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from study import paths
from study.config.reader import read_settings


@dataclass(frozen=True)
class Topics:
    """``topics.yaml``.

    Attributes:
        protocol: whose parts the topics come from.
        parts: number of topics per part.
        seed: of the draw.
    """

    protocol: str
    parts: dict[str, int]
    seed: int


@dataclass(frozen=True)
class Pool:
    """``pool.yaml``.

    Attributes:
        systems: ``labels`` and names of ``conf/system``.
        profile: of the runs.
        depth: places of each system that are judged.
        candidates: names of ``conf/system`` between which a choice is made, asked for the topics of one part only.
        candidates_part: that part.
        candidates_depth: places of each candidate that are judged.
        variants: patterns of names: scored, but left out where systems are counted (the rank correlation).
        control: random servers per topic.
        seed: of the control and of every order.
    """

    systems: list[str]
    profile: str
    depth: int
    candidates: list[str]
    candidates_part: str
    candidates_depth: int
    variants: list[str]
    control: int
    seed: int


Kind = TypeVar("Kind", Topics, Pool)


def read(kind: type[Kind], path: Path | None = None) -> Kind:
    """Read the settings of `kind` from its file in ``conf/judging``.

    Raises:
        StudyError: the file cannot be read, or its keys are not those of `kind`.
    """
    return read_settings(kind, path or paths.conf() / "judging" / f"{kind.__name__.lower()}.yaml")
