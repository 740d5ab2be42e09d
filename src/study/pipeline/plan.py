"""The stages of `dvc.yaml` that depend on `conf/` and on the code: `plan.yaml`, one line a stage.

A stage's `inputs` is a hash of its settings and of the code behind them, derived from imports. So a new
``conf/system/<name>.yaml`` needs no other edit, and a change of code makes exactly the stages stale that run it.
"""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from study import PUBLIC, paths
from study.config.compose import load
from study.config.reader import read_yaml
from study.config.registry import choices, system_file
from study.errors import StudyError
from study.files import write_text
from study.runner.identity import settings_key
from study.search.all_rows import datasets, rows, set_aside, under

# Where code is looked for: package -> its folder's parent below the root.
PACKAGES = {"study": "src", "baselines": "."}
# The ground says where files lie, how they are written and what is wrong with them. It decides no number.
GROUND = ("study", "study.errors", "study.files", "study.paths")
HEADER = "# Made by `study plan` from conf/ and the code. dvc.yaml loops over it; edit conf/, not this file.\n"


def plan(broken: list[str] | None = None) -> dict[str, dict[str, Any]]:
    """Stage -> key -> what the stage needs to know. Generated data sets are left out: their rows are not in git, and
    `study run --all` makes them. `broken`: as in `rows`."""
    entries = read_yaml(file := paths.conf() / "stages.yaml")
    if not entries:
        raise StudyError("names no stage", file=file, fix="take it from git")
    stages: dict[str, dict[str, Any]] = {"tune": {}, "run": {}, "run_tuned": {}, "code": {}}
    for dataset in datasets():
        if load([f"dataset={dataset}"]).dataset.generator is not None:
            continue
        for config in rows([f"dataset={dataset}"], broken):
            system, protocol = config.system, config.protocol.name
            try:
                decides = settings_key(config)
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
                    "inputs": _short([settings_key(under(config, system.tuned)), str(system.search)]),
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
    waiting: list[Any] = [path.stem if path.parent.parent.name == "system" else read_yaml(path)]
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


def code_hash(modules: Iterable[str]) -> str:
    """A short hash of the code of modules and of all that they import."""
    code = {module: _tree_hash(path, path.stat().st_mtime_ns) for module, path in closure(modules).items()}
    return hashlib.sha256(json.dumps(code).encode()).hexdigest()[:16]


def closure(modules: Iterable[str]) -> dict[str, Path]:
    """Modules and every module that they import, directly or not: its name -> its file, in order of names.

    A text constant that is the name of a module counts as an import, since programs are started that way. Imports for
    type checkers alone do not count.

    Raises StudyError: a class's module is not there.
    """
    waiting, found = [module for module in modules if module.split(".")[0] in PACKAGES], {}
    for module in waiting:
        if _file(module) is None:
            raise StudyError(
                f"there is no module {module!r}",
                column="model._target_",
                fix="correct `_target_` in its yaml, or add the file",
            )
    while waiting:
        module = waiting.pop()
        path = _file(module)
        if path is None or module in found or module in GROUND:
            continue
        found[module] = path
        waiting += [module.rpartition(".")[0], *_imports(path, path.stat().st_mtime_ns)]
    return dict(sorted(found.items()))


def _file(module: str) -> Path | None:
    """The file of a module of this project; None where there is none."""
    package = module.split(".")[0]
    if package not in PACKAGES:
        return None
    place = paths.root() / PACKAGES[package] / Path(*module.split("."))
    return next((path for path in (place.with_suffix(".py"), place / "__init__.py") if path.is_file()), None)


@cache
def _parsed(path: Path, _changed: int) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


@cache
def _imports(path: Path, changed: int) -> frozenset[str]:
    return imported(_parsed(path, changed))


def imported(tree: ast.Module) -> frozenset[str]:
    """The modules of this project that code imports anywhere, or names in a text constant."""
    names: set[str] = set()
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            waiting += node.orelse
            continue
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
            if node.module == "study":
                names |= {PUBLIC[alias.name] for alias in node.names if alias.name in PUBLIC}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names.add(node.value)
        waiting += ast.iter_child_nodes(node)
    return frozenset(name for name in names if _is_module_name(name) and _file(name) is not None)


def _is_module_name(text: str) -> bool:
    package, _, rest = text.partition(".")
    return package in PACKAGES and all(part.isidentifier() for part in rest.split("."))


@cache
def _tree_hash(path: Path, changed: int) -> str:
    """A hash of a file's syntax tree without docstrings; the same under every version of Python."""
    return hashlib.sha256(_canonical(_parsed(path, changed)).encode()).hexdigest()


def _canonical(node: Any) -> str:
    """A syntax tree as text. Empty fields are left out, since versions of Python differ in which of them exist."""
    if isinstance(node, ast.AST):
        shown = []
        for name, value in ast.iter_fields(node):
            if name == "body" and isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                value = [item for place, item in enumerate(value) if place or not _is_text(item)]
            if value is not None and value != [] and name not in ("type_comment", "kind", "ctx"):
                shown.append(f"{name}={_canonical(value)}")
        return f"{type(node).__name__}({', '.join(shown)})"
    if isinstance(node, list):
        return f"[{', '.join(map(_canonical, node))}]"
    return repr(node)


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
