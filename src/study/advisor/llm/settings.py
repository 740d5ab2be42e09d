"""``conf/llm/<name>.yaml``: which endpoint re-ranks, and where its recorded replies lie."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt

from study.advisor.llm import client as llm
from study.advisor.llm.cassette import holds_replies
from study.base import paths
from study.base.settings import build_settings, read_keys

if TYPE_CHECKING:
    from omegaconf import DictConfig

# Environment variables that stand in for the keys of the same name, so that recording changes no file.
OVERRIDES = {"mode": "T2M_LLM_MODE", "base_url": "T2M_LLM_URL"}


@dataclass(frozen=True)
class Endpoint:
    """How an endpoint is asked; no value of it changes what is asked. Keys as in ``conf/llm``."""

    base_url: str
    mode: llm.Mode
    key_variable: str
    timeout: NonNegativeFloat
    retries: NonNegativeInt
    pause: NonNegativeFloat
    longest_pause: NonNegativeFloat
    concurrency: PositiveInt
    max_bytes: PositiveInt

    def client(self, cassette: Path | None) -> llm.Client:
        """A client that keeps replies in `cassette`; None is for the mode ``off``."""
        names = "key_variable timeout retries pause longest_pause concurrency max_bytes"
        options = {name: getattr(self, name) for name in names.split()}
        return llm.Client(self.base_url, self.mode, cassette, **options)


def endpoint_settings(name: str) -> Endpoint:
    """Read ``conf/llm/<name>.yaml`` strictly, with mode and address from the environment where it names them."""
    file = paths.conf() / "llm" / f"{name}.yaml"
    values = read_keys(file, [field.name for field in fields(Endpoint)], fix="name a file of conf/llm")
    named = {key: os.environ[variable] for key, variable in OVERRIDES.items() if os.environ.get(variable)}
    return build_settings(Endpoint, values | named, file)


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
