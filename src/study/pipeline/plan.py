"""Stage list: which systems run on which data set under which protocol, read from ``conf/`` alone.

``dvc.yaml`` loops over the file that this module writes, so a new ``conf/system/<name>.yaml`` needs no other edit.
"""

from __future__ import annotations

import hashlib
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import yaml

from study import paths
from study.config.compose import choices, load
from study.files import sha256, write_text
from study.reranking.language_model.endpoint import systems_not_run
from study.runner.rows import code_of, python_files

HEADER = "# Made by `study plan` from conf/. dvc.yaml loops over it; edit conf/, not this file.\n"


def datasets() -> list[str]:
    """The data sets whose tasks are ranked against servers (those that name protocols)."""
    return [name for name in choices("dataset") if load([f"dataset={name}"]).dataset.get("protocols")]


def left_out(name: str, family: str, patterns: list[str]) -> bool:
    """Whether a data set leaves a system out: by family, by name, or by a pattern of names such as ``*_tuned``."""
    return any(family == pattern or fnmatchcase(name, pattern) for pattern in patterns)


def parents(name: str) -> list[str]:
    """The systems whose files ``conf/system/<name>.yaml`` builds on, by its `defaults`, nearest first."""
    settings = yaml.safe_load((paths.conf() / "system" / f"{name}.yaml").read_text(encoding="utf-8"))
    direct = [other for other in settings.get("defaults", []) if other != "_self_"]
    return [found for other in direct for found in (other, *parents(other))]


def digest(files: list[Path]) -> str:
    """A short hash of the contents of files; "none" for no file."""
    whole = hashlib.sha256("".join(sha256(path) for path in files).encode())
    return whole.hexdigest()[:16] if files else "none"


def plan() -> dict[str, Any]:
    """One entry per DVC stage: `run` and `run_tuned` (data set, protocol, system), `tune` (data set, system).

    DVC takes no list of dependencies from a file. So an entry names the system's first code file or folder and its own
    yaml, and `inputs` is a hash of the rest: further code, and the yaml files that its own builds on.
    """
    stages: dict[str, Any] = {"datasets": datasets(), "tune": {}, "run": {}, "run_tuned": {}}
    for dataset in stages["datasets"]:
        unanswered = systems_not_run(dataset)
        for name in choices("system"):
            config = load([f"dataset={dataset}", f"system={name}"])
            system = config.system
            if system.name != name:
                raise ValueError(f"conf/system/{name}.yaml names itself {system.name!r}")
            code, *more = code_of(system)
            item = {"dataset": dataset, "system": name, "code": code, "config": f"conf/system/{name}.yaml"}
            above = [paths.conf() / "system" / f"{other}.yaml" for other in parents(name)]
            item["inputs"] = digest(above + [file for place in more for file in python_files(paths.root() / place)])
            if left_out(name, system.family, list(config.dataset.leave_out)) or name in unanswered:
                continue
            if system.tuned is not None and system.search:  # without a search space, a sweep of its own tunes it
                stages["tune"][f"{dataset}-{name}"] = item | {"protocol": system.tuned}
            kind = "run" if system.tuned is None else "run_tuned"
            for protocol in config.dataset.protocols:
                if protocol in system.protocols:
                    stages[kind][f"{dataset}-{protocol}-{name}"] = item | {"protocol": protocol}
    return stages


def write(path: Path | None = None) -> bool:
    """Write the plan beside ``dvc.yaml``; returns whether it changed."""
    path = path or paths.root() / "plan.yaml"
    text = HEADER + yaml.safe_dump(plan(), sort_keys=True)
    if path.exists() and path.read_text() == text:
        return False
    write_text(path, text)
    return True
