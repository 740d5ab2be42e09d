"""The stages of `dvc.yaml` that depend on `conf/` and on the code: `plan.yaml`, one line a stage.

A stage's `inputs` is a hash of its settings and of the code behind them, derived from imports. So a new
``conf/system/<name>.yaml`` needs no other edit, and a change of code makes exactly the stages stale that run it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml
from omegaconf import DictConfig

from study import paths
from study.config.compose import load
from study.config.registry import left_out
from study.config.schema import choices
from study.files import write_text
from study.reranking.endpoint import systems_not_run
from study.runner.fingerprint import code_hash, inputs

HEADER = "# Made by `study plan` from conf/ and the code. dvc.yaml loops over it; edit conf/, not this file.\n"


@dataclass(frozen=True)
class Row:
    """One system under one protocol of one data set."""

    dataset: str
    protocol: str
    system: str


def datasets() -> list[str]:
    """The data sets whose tasks are ranked against servers (those that name protocols)."""
    return [name for name in choices("dataset") if load([f"dataset={name}"]).dataset.get("protocols")]


def rows(dataset: str) -> Iterator[tuple[Row, DictConfig]]:
    """Every row that a data set asks for, with its configuration under the default profile, without tuned values."""
    unanswered = systems_not_run(dataset)
    for name in choices("system"):
        config = load([f"dataset={dataset}", f"system={name}"])
        if left_out(name, config.system.family, list(config.dataset.leave_out)) or name in unanswered:
            continue
        for protocol in config.dataset.protocols:
            if protocol in config.system.protocols:
                yield Row(dataset, protocol, name), under(config, protocol)


def under(config: DictConfig, protocol: str) -> DictConfig:
    """The configuration under another protocol, as far as a system's settings depend on its name."""
    other = config.copy()
    other.protocol.name = protocol
    return other


def plan() -> dict[str, dict[str, Any]]:
    """Stage -> key -> what the stage needs to know.

    Generated data sets are left out: their rows are not in git, and `study run --all` makes them.
    """
    stages: dict[str, dict[str, Any]] = {"tune": {}, "run": {}, "run_tuned": {}, "code": {}}
    for dataset in datasets():
        if load([f"dataset={dataset}"]).dataset.generator is not None:
            continue
        for row, config in rows(dataset):
            system = config.system
            item = {"dataset": dataset, "protocol": row.protocol, "system": row.system, "inputs": inputs(config)}
            kind = "run" if system.tuned is None else "run_tuned"
            stages[kind][f"{dataset}-{row.protocol}-{row.system}"] = item
            if system.tuned is not None and system.search:  # without a search space, a sweep of its own tunes it
                stages["tune"][f"{dataset}-{row.system}"] = item | {
                    "protocol": system.tuned,
                    "inputs": _short([inputs(under(config, system.tuned)), str(system.search)]),
                }
    modules = yaml.safe_load((paths.conf() / "stages.yaml").read_text(encoding="utf-8"))
    stages["code"] = {stage: code_hash(names) for stage, names in modules.items()}
    return stages


def _short(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]


def write_plan() -> bool:
    """Write the plan beside ``dvc.yaml``, one line a stage; returns whether it changed."""
    path, lines = paths.root() / "plan.yaml", [HEADER]
    for stage, items in plan().items():
        lines.append(f"{stage}:\n" if items else f"{stage}: {{}}\n")
        lines += [f"  {key}: {_one_line(item)}\n" for key, item in sorted(items.items())]
    text = "".join(lines)
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return False
    write_text(path, text)
    return True


def _one_line(item: str | dict[str, str]) -> str:
    """A hash, or the mapping of a row whose `inputs` is one, in YAML."""
    if isinstance(item, str):
        return json.dumps(item)
    shown = item | {"inputs": json.dumps(item["inputs"])}
    return f"{{{', '.join(f'{key}: {value}' for key, value in shown.items())}}}"
