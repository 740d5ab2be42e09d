"""``conf/tools/flow.yaml`` as checked settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from study import paths
from study.config.reader import read_settings
from study.errors import StudyError

FILE = "conf/tools/flow.yaml"


@dataclass(frozen=True)
class Splits:
    """Parts that a rotation makes; one is held out each time (the paper's ratios)."""

    tools: int
    calls: int


@dataclass(frozen=True)
class Pool:
    """Where the tools come from among which one is to be chosen."""

    source: str  # labelled (tools with instructions) or catalogue (every tool)
    size: int | None  # tools, the right one among them; null takes the whole source
    seeds: int  # how many of the configured seeds draw it

    def __post_init__(self) -> None:
        if self.source not in ("labelled", "catalogue") or (self.size is not None and self.size < 2) or self.seeds < 1:
            fix = "labelled or catalogue, size >= 2"
            raise StudyError("not a pool of candidates", file=FILE, column="pools", fix=fix)


@dataclass(frozen=True)
class System:
    """How a system chooses the tool and fills its arguments."""

    select: str  # random, bm25, dense, exemplars or trained
    call: str  # required, copied, borrowed or trained (see `study.tools.flow.slot_filler.make_call`)
    # real (public instructions), synthetic (those that the study makes), or both: the selector learns from the public
    # ones and the slot filler learns values from both (made calls set no optional parameters).
    train: str = "real"
    exemplars: bool = True  # whether a trained selection sees exemplars
    whole: bool = True  # whether the system is also asked with a pool without a size


@dataclass(frozen=True)
class Training:
    """Of the selector: masking of exemplars, distractors per instruction, strength of the L2 penalty."""

    mask: float
    distractors: int
    penalty: float


@dataclass(frozen=True)
class Copying:
    """Of slot filler: inverse strength of its L2 penalty, letters that are read, spans per instruction."""

    strength: float
    letters: int
    spans: int


@dataclass(frozen=True)
class Synthesis:
    """How many instructions are made."""

    tools: int  # tools of the catalogue that get instructions
    per_tool: int  # first instructions per tool (the paper: 5)
    depth: int  # rewrites of the evolution (the paper: 2)
    openings: tuple[str, ...]  # openings, rewrites: of the template writer
    rewrites: tuple[str, ...]
    values: Mapping[str, Sequence[Any]]  # example values by kind, taken where a schema gives none
    quoted: float  # share of the values in quotation marks


@dataclass(frozen=True)
class Filtration:
    """Bounds of section 3.3: greatest similarity to the description, least quality of 10, tools of the check."""

    similarity: float
    quality: float
    candidates: int


@dataclass(frozen=True)
class Flow:
    """Everything that the file says; see its comments."""

    seeds: tuple[int, ...]
    splits: Splits
    pools: Mapping[str, Pool]
    systems: Mapping[str, System]
    references: Mapping[str, tuple[str, str]]
    document: str
    limit: int
    exemplars: int
    training: Training
    copying: Copying
    synthesis: Synthesis
    filtration: Filtration
    servers: Mapping[str, tuple[str, ...]]
    not_run: tuple[Mapping[str, str], ...]


def flow_settings() -> Flow:
    """Read ``conf/tools/flow.yaml``."""
    return read_settings(Flow, paths.conf() / "tools" / "flow.yaml")
