"""What decides a row: its settings, the code behind them, the prepared data and the split.

The code of a row is the import closure of the classes that its settings name (`_target_`), within `study` and
`baselines`, and of the module that ranks scores. It is hashed by syntax tree, so comments, docstrings and formatting do
not count.
"""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from study import PUBLIC, paths
from study.config.compose import plain
from study.data import dataset as datasets
from study.errors import StudyError, require_file
from study.files import sha256

# Where code is looked for: package -> its folder's parent below the root.
PACKAGES = {"study": "src", "baselines": "."}
# The ground says where files lie, how they are written and what is wrong with them. It decides no number.
GROUND = ("study", "study.errors", "study.files", "study.paths")
# Scores become a top ten here, with its rule for ties, whatever the system.
RANKING = "study.evaluation.ranking"


def fingerprint(config: DictConfig) -> str:
    """A short hash of all that decides a row: settings and code (`inputs`), prepared data, split. Raises StudyError:
    code, the prepared data or the split is not there."""
    dataset, protocol = config.dataset.name, config.protocol.name
    digest = hashlib.sha256(inputs(config).encode())
    for path in (
        *(paths.prepared(dataset) / f"{part}.parquet" for part in datasets.PREPARED),
        paths.splits(dataset) / f"{protocol}.parquet",
    ):
        fix = f"run: make repro DATASET={dataset}"
        digest.update(sha256(require_file(path, fix, "a file that decides the run is missing")).encode())
    return digest.hexdigest()[:16]


def inputs(config: DictConfig) -> str:
    """A short hash of a row's settings and code. Names, titles, workers and the budget of tuning change no number and
    are left out. So is the list of seeds, so that adding a seed keeps the others."""
    settings = {
        "dataset": config.dataset.name,
        "protocol": config.protocol.name,
        "profile": config.profile.name,
        "threads": config.profile.threads,
        "run_depth": config.run_depth,
        "model": plain(config.system)["model"],
    }
    modules = {RANKING, *(target.rpartition(".")[0] for target in _targets(settings["model"]))}
    text = json.dumps([settings, code_hash(sorted(modules))], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


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


def _targets(value: Any) -> Iterator[str]:
    """Every `_target_` in a tree of settings."""
    if isinstance(value, Mapping):
        if isinstance(value.get("_target_"), str):
            yield value["_target_"]
        for item in value.values():
            yield from _targets(item)
    elif isinstance(value, list):
        for item in value:
            yield from _targets(item)


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
