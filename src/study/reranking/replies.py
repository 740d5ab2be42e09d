"""Where a system's recorded replies lie, and whether there are any: without them it has no row of numbers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from study.base import paths

if TYPE_CHECKING:
    from omegaconf import DictConfig


def holds_replies(path: Path) -> bool:
    """Whether there is a cassette with more than faults. Its lines are not checked, so that this takes no time."""
    if not path.is_file():
        return False
    with path.open("rb") as lines:
        return any(not line.startswith(b'{"fault":') for line in lines)


def cassette(dataset: str, system: str) -> Path:
    """Where the recorded replies to a system's questions about a data set lie (committed: keys and replies alone)."""
    return paths.results(dataset) / "cassettes" / f"{system}.jsonl"


def not_run(dataset: str, system: str) -> str | None:
    """Why a system that asks a language model has no row of numbers; None where its replies are recorded."""
    path = cassette(dataset, system)
    if holds_replies(path):
        return None
    return f"not run: no recorded replies ({path.relative_to(paths.root())}) and no endpoint"


def awaits_replies(dataset: str, system: DictConfig) -> bool:
    """Whether a system asks a language model and has no recorded replies, so that it has no row of numbers."""
    return bool(system.model.get("endpoint")) and not_run(dataset, system.name) is not None
