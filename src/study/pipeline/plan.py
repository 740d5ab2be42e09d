"""The stages of `dvc.yaml` that depend on `conf/` and on the code: `plan.yaml`, one line a stage.

A stage's `inputs` is a hash of its settings and of the code behind them, derived from imports. So a new
``conf/system/<name>.yaml`` needs no other edit, and a change of code makes exactly the stages stale that run it.
"""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from study import paths
from study.config.compose import load, plain
from study.config.registry import read_yaml, system_file
from study.config.schema import choices
from study.errors import StudyError
from study.files import write_text
from study.runner.fingerprint import code_hash, imported, inputs
from study.search.all_rows import datasets, rows, set_aside, under

HEADER = "# Made by `study plan` from conf/ and the code. dvc.yaml loops over it; edit conf/, not this file.\n"


def plan(broken: list[str] | None = None) -> dict[str, dict[str, Any]]:
    """Stage -> key -> what the stage needs to know. Generated data sets are left out: their rows are not in git, and
    `study run --all` makes them. `broken`: as in `rows`."""
    entries = plain(read_yaml(file := paths.conf() / "stages.yaml"))
    if not entries:
        raise StudyError("names no stage", file=file, fix="take it from git")
    stages: dict[str, dict[str, Any]] = {"tune": {}, "run": {}, "run_tuned": {}, "code": {}}
    for dataset in datasets():
        if load([f"dataset={dataset}"]).dataset.generator is not None:
            continue
        for config in rows([f"dataset={dataset}"], broken):
            system, protocol = config.system, config.protocol.name
            try:
                decides = inputs(config)
            except StudyError as error:
                error.file = error.file or system_file(system.name)
                set_aside(broken, system.name, error)
                continue
            item = {"dataset": dataset, "protocol": protocol, "system": system.name, "inputs": decides}
            kind = "run" if system.tuned is None else "run_tuned"
            stages[kind][f"{dataset}-{protocol}-{system.name}"] = item
            if system.tuned is not None and system.search:  # without a search space, a sweep of its own tunes it
                stages["tune"][f"{dataset}-{system.name}"] = item | {
                    "protocol": system.tuned,
                    "inputs": _short([inputs(under(config, system.tuned)), str(system.search)]),
                }
    rows_of: dict[str, list[str]] = {}
    for _, item in sorted((stages["run"] | stages["run_tuned"]).items()):
        rows_of.setdefault(item["system"], []).append(item["inputs"])
    stages["code"] = {stage: stage_inputs(own, rows_of) for stage, own in entries.items()}
    return stages


def stage_inputs(entries: list[str], rows_of: Mapping[str, list[str]]) -> str:
    """A short hash of what a stage of ``conf/stages.yaml`` runs. `rows_of`: system -> the `inputs` of its rows, which
    hold its settings and code."""
    modules, fitted = set[str](), dict[str, list[str]]()
    for entry in entries:
        if entry == "notebooks":
            modules |= notebook_modules()
        elif entry == "rows":
            fitted |= rows_of
        elif entry.startswith("conf/"):
            fitted |= {name: rows_of.get(name, []) for name in named_systems(entry)}
        else:
            modules.add(entry)
    return _short([code_hash(sorted(modules)), fitted])


def named_systems(file: str) -> list[str]:
    """The systems that a file of ``conf/`` names, as a key or as a value; one of ``conf/system`` names itself."""
    path, words = paths.root() / file, set[str]()
    waiting: list[Any] = [path.stem if path.parent.parent.name == "system" else plain(read_yaml(path), resolve=False)]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            waiting += [*value, *value.values()]
        elif isinstance(value, list):
            waiting += value
        else:
            words.add(str(value))
    return sorted(words & set(choices("system")))


def notebook_modules() -> set[str]:
    """The modules that the notebooks import."""
    sources = [
        "".join(cell["source"])
        for path in sorted((paths.root() / "notebooks").glob("*.ipynb"))
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]
        if cell["cell_type"] == "code"
    ]
    return set().union(*(imported(ast.parse(source)) for source in sources))


def _short(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]


def write_plan() -> bool:
    """Write the plan beside ``dvc.yaml``, one line a stage; returns whether it changed. A system that cannot run is
    named and left out."""
    path, lines = paths.root() / "plan.yaml", [HEADER]
    for stage, items in plan([]).items():
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
