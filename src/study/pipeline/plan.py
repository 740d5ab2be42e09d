"""The stages of `dvc.yaml` that depend on `conf/` and on the code: `plan.yaml`, one line a stage.

A stage's `inputs` is a hash of its settings and of the code behind them, derived from imports. So a new
``conf/system/<name>.yaml`` needs no other edit, and a change of code makes exactly the stages stale that run it.
`study run --all` makes the rows of generated data, which have no results in git, without DVC.
"""

from __future__ import annotations

import ast
import hashlib
import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from omegaconf import DictConfig
from tqdm import tqdm

from study import paths
from study.config.compose import load, plain
from study.config.registry import changed, left_out, read_yaml, system_file
from study.config.schema import choices
from study.errors import StudyError
from study.evaluation.records import read_record
from study.files import write_text
from study.reranking.endpoint import awaits_replies
from study.runner.cluster import Launcher, run_seeds
from study.runner.fingerprint import code_hash, imported, inputs
from study.runner.outputs import Outputs
from study.runner.provenance import CURRENT, state
from study.runner.rows import run_row
from study.search.tune import sweep_folder, tune

LOG = logging.getLogger(__name__)

HEADER = "# Made by `study plan` from conf/ and the code. dvc.yaml loops over it; edit conf/, not this file.\n"


def datasets() -> list[str]:
    """The data sets whose tasks are ranked against servers (those that name protocols)."""
    return [name for name in choices("dataset") if load([f"dataset={name}"]).dataset.get("protocols")]


def rows(dataset: str, broken: list[str] | None = None) -> Iterator[DictConfig]:
    """The configuration of every row that a data set asks for, under the default profile, without tuned values.

    `broken`: takes what is wrong with a system's settings, which then stop no other system's rows.
    """
    for name in choices("system"):
        try:
            config = load([f"dataset={dataset}", f"system={name}"])
        except StudyError as error:
            _set_aside(broken, name, error)
            continue
        if left_out(name, config.system.family, list(config.dataset.leave_out)):
            continue
        if awaits_replies(dataset, config.system):
            continue
        for protocol in config.dataset.protocols:
            if protocol in config.system.protocols:
                yield under(config, protocol)


def _set_aside(broken: list[str] | None, name: str, error: StudyError) -> None:
    """Name a system that cannot run, once, and go on without it; without a list that takes it, stop there."""
    if broken is None:
        raise error
    if (reason := f"{name}: {error.reason}") not in broken:
        broken.append(reason)
        LOG.error("FAILED: %s", error)


def under(config: DictConfig, protocol: str) -> DictConfig:
    """The configuration under another protocol, as far as a system's settings depend on its name."""
    return changed(config, {"protocol.name": protocol})


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
        for config in rows(dataset, broken):
            system, protocol = config.system, config.protocol.name
            try:
                decides = inputs(config)
            except StudyError as error:
                error.file = error.file or system_file(system.name)
                _set_aside(broken, system.name, error)
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
    waiting: list[Any] = [path.stem if path.parent.name == "system" else plain(read_yaml(path), resolve=False)]
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


def run_all(config: DictConfig, launcher: Launcher = "local") -> list[str]:
    """Make every row of the configured data set that is missing or stale. A row that fails is named; the others are
    made all the same. `launcher`: see `study.runner.cluster`. Returns: what failed, one text a row."""
    failed = list[str]()
    wanted = _wanted(config, failed)
    if launcher != "local":
        wanted = iter(found := list(wanted))
        run_seeds(found, launcher, replace=True)
    for row in wanted:
        with _named(row, failed):
            run_row(row, replace=True)
    return failed


def _wanted(config: DictConfig, failed: list[str]) -> Iterator[DictConfig]:
    """The rows that are missing or stale, their systems tuned."""
    dataset = config.dataset.name
    for row in tqdm(list(rows(dataset, failed)), desc=f"rows of {dataset}", unit="row", disable=None):
        system, protocol = row.system, row.protocol.name
        words = [f"dataset={dataset}", f"system={system.name}", f"profile={config.profile.name}"]
        with _named(row, failed):
            if system.tuned is not None and system.search:
                _tune(under(row, system.tuned), words)
            if not _is_current(Outputs.of(dataset, protocol, system.name), config.profile.name):
                yield load([*words, f"protocol={protocol}"])


@contextmanager
def _named(row: DictConfig, failed: list[str]) -> Iterator[None]:
    """Name a row that fails, and go on."""
    try:
        yield
    except StudyError as error:
        failed.append(f"{row.system.name} under {row.protocol.name}: {error.reason}")
        LOG.error("FAILED: %s", failed[-1])


def _is_current(row: Outputs, profile: str) -> bool:
    """Whether the row's files are there, and today's settings, code and data would make them again under a profile."""
    if not all(path.exists() for path in (row.per_task, row.top10, row.record)):
        return False
    record = read_record(row.record)
    return record.get("profile") == profile and state(record, {})[0] == CURRENT


def _tune(config: DictConfig, words: list[str]) -> None:
    """Search the system's settings unless the same search was done before."""
    done = paths.cache() / "tuned" / config.dataset.name / f"{config.system.name}.txt"
    key = f"{inputs(config)} {words[-1]} {config.system.search}"
    if (sweep_folder(config) / "best.yaml").exists() and done.exists() and done.read_text(encoding="utf-8") == key:
        return
    tune(load([*words, f"protocol={config.protocol.name}"]), replace=True)
    write_text(done, key)
