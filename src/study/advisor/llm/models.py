"""Language models that run on this machine: what ``conf/llm/models.yaml`` says of them, and their files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from study import files, paths
from study.advisor.llm.wheels import Packed
from study.config.reader import read_settings
from study.errors import StudyError, UnavailableError

OWN = "T2M_GGUF"  # environment variable: a GGUF file that stands in for the chosen model's


@dataclass(frozen=True)
class LocalModel(Packed):
    """One model; ``conf/llm/models.yaml`` explains the keys."""

    context: int
    threads: int


@dataclass(frozen=True)
class LocalModels:
    """All of ``conf/llm/models.yaml``."""

    default: str
    start: float
    models: Mapping[str, LocalModel]

    @classmethod
    def read(cls) -> LocalModels:
        """The file, checked."""
        return read_settings(cls, paths.conf() / "llm" / "models.yaml")

    def __getitem__(self, name: str) -> LocalModel:
        """A model by name; StudyError for an unknown one."""
        if name not in self.models:
            raise StudyError(f"unknown local model {name!r}", fix=f"one of: {', '.join(self.models)}")
        return self.models[name]


def place(name: str) -> Path:
    """Where a fetched model lies."""
    return paths.cache() / "llm" / f"{name}.gguf"


def how_to_fetch(name: str) -> str:
    """The command that brings a model's file."""
    return f"study llm fetch --model {name}"


def model_file(name: str) -> tuple[Path, str]:
    """A model's file, or the one that T2M_GGUF names, and its SHA-256, computed from its bytes.

    Raises:
        StudyError: unknown model; no file; a fetched file with another hash than stated.
    """
    model, own = LocalModels.read()[name], os.environ.get(OWN)
    path = Path(own) if own else place(name)
    if not path.is_file():
        fix = f"correct {OWN}, or unset it" if own else f"run: {how_to_fetch(name)}"
        raise UnavailableError("there is no model file", file=path, fix=fix)
    digest = _sha256(path, path.stat().st_mtime_ns)
    if not own and digest != model.sha256:
        fix = f"run: {how_to_fetch(name)}"
        raise StudyError(f"SHA-256 {digest} is not that of {model.title}", file=path, fix=fix)
    return path, digest


def identity(name: str) -> str:
    """The name under which a model answers: its file's, with the SHA-256. The stated one needs no file."""
    model, own = LocalModels.read()[name], os.environ.get(OWN)
    return f"{Path(own).stem}@sha256:{model_file(name)[1]}" if own else f"{name}@sha256:{model.sha256}"


@cache
def _sha256(path: Path, changed: int) -> str:
    """Once per process and state of the file, since a model has a gigabyte."""
    return files.sha256(path)
