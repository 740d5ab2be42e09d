"""The names that the configuration offers, and the systems of ``conf/system``: their files, variants and settings.

A file stands in a folder of ``conf/system`` and describes a system and its variants: NAME.yaml with ``variants: {long:
...}`` describes the systems NAME and NAME_long. A variant states what differs from the system of its file, or from the
one that it names by ``of`` (another variant of the file, a system of another file, or null for none).

Nothing heavy is imported here, so that `study recommend` can check a name and still start fast.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from study.base import paths
from study.base.errors import StudyError
from study.base.settings import read_yaml

GROUPS = ("dataset", "protocol", "system", "profile")  # what a row is named by
OWN = "own"  # the folder of systems that `study new` makes
NAME = re.compile(r"[a-z0-9][a-z0-9_]*")  # names become names of files
FEW = 12  # names that an error lists
# What a file with the keys `recbole` (a model of RecBole), `epochs` and `settings` need not state.
RECBOLE: dict[str, Any] = {"protocols": ["warm", "loo"], "family": "collaborative", "trains": True, "subprocess": True}
BRIDGE = {"_target_": "baselines.recbole_bridge.RecBole", "evaluate_every": 10, "patience": 10}


def choices(group: str) -> list[str]:
    """The names that a configuration group offers; files that start with an underscore are templates."""
    if group != "system":
        return sorted(path.stem for path in (paths.conf() / group).glob("[!_]*.yaml"))
    return sorted({name for file in _system_files().values() for name in _names(file)})


def require_choice(group: str, name: object) -> None:
    """Raise `StudyError` unless a configuration group offers `name`. It names the nearest; all where there are few."""
    offered, folder = choices(group), paths.conf() / group
    if not offered:
        fix = "take the folder from git, or correct T2M_ROOT, which names the study's folder"
        raise StudyError("there are no settings here", file=folder, fix=fix)
    if name not in offered:
        every = "" if len(offered) <= FEW else f"{group}=? lists all {len(offered)}"
        raise StudyError(f"unknown {group} {name!r:.80}", file=folder, fix=suggestion(str(name), offered, every))


def suggestion(word: str, options: Iterable[str], every: str = "") -> str:
    """What to write instead of `word`: the nearest of `options`, then what `every` says (default: all of them).

    Dotted keys are compared by their last part, since a key is often written with a wrong path or none.
    """
    names = sorted(options)
    leaves = {name: name.rpartition(".")[2] for name in names}
    close = get_close_matches(word.rpartition(".")[2], {*leaves.values()}, n=3, cutoff=0.6)
    near, path = [name for name in names if leaves[name] in close], {*word.split(".")[:-1]}
    near.sort(key=lambda name: (-len(path & {*name.split(".")[:-1]}), close.index(leaves[name])))
    every = every or f"one of: {', '.join(names)}"
    return f"did you mean {' or '.join(near[:3])}? {every}" if near else every


def left_out(name: str, family: str, patterns: list[str]) -> bool:
    """Whether a data set leaves a system out: by family, by name, or by a pattern of names such as ``*_tuned``."""
    return any(family == pattern or fnmatchcase(name, pattern) for pattern in patterns)


def _system_files() -> dict[str, Path]:
    """Name of the file -> file; of two, the one of the repository."""
    files = (paths.conf() / "system").glob("*/[!_]*.yaml")
    return {path.stem: path for path in sorted(files, key=lambda path: path.parent.name != OWN)}


def _names(file: Path) -> list[str]:
    """The systems that a file describes; of one that cannot be read, its own."""
    try:
        variants = read_yaml(file).get("variants")
    except StudyError:
        variants = None
    return [file.stem, *(f"{file.stem}_{short}" for short in (variants if isinstance(variants, dict) else ()))]


def system_file(name: str) -> Path:
    """The file that describes a system; where one of one's own would stand if there is none."""
    files = [file for stem, file in _system_files().items() if f"{name}_".startswith(f"{stem}_")]
    files.sort(key=lambda file: (file.parent.name == OWN, -len(file.stem)))
    missing = paths.conf() / "system" / OWN / f"{name}.yaml"
    return next((file for file in files if name in _names(file)), missing)


def folder_of(name: str) -> str:
    """The folder of ``conf/system`` that describes a system: paper, simple, useful, probes or own. A name without file,
    such as that of a variant named on the command line, belongs to ``own``."""
    return system_file(name).parent.name


def _read_stated(name: str) -> tuple[str | None, dict[str, Any]]:
    """The parent of a system (`of`), and what its file states of it alone."""
    file = system_file(name)
    for other in file.parents[1].joinpath(OWN).glob(f"{name[:1]}*.yaml"):
        if other != file and name in _names(other):
            raise StudyError(f"the name {name} is taken by {file}", file=other, fix="rename this file, or its variant")
    stated = dict(read_yaml(file))
    variants = stated.pop("variants", None) or {}
    if not isinstance(variants, dict):
        raise StudyError("is no mapping", file=file, column="variants", fix="write below it NAME: {title: ...}")
    if "name" in stated:
        raise StudyError("the name is that of the file", file=file, column="name", fix="remove the line")
    if name != file.stem:
        stated = dict(variants[name.removeprefix(f"{file.stem}_")] or {})
    parent = stated.pop("of", None if name == file.stem else file.stem)
    return (f"{file.stem}_{parent}" if parent in variants else parent), stated


def parents(name: str) -> list[str]:
    """The systems that a system builds on, nearest first. Raises StudyError: one that is not there, or itself."""
    chain, systems = [name], choices("system")
    while (parent := _read_stated(chain[-1])[0]) is not None:
        file = system_file(chain[-1])
        if parent in chain:
            raise StudyError(f"{name} builds on itself", file=file, column="of", fix="name another system")
        if parent not in systems:
            fix = suggestion(str(parent), systems)
            raise StudyError(f"builds on {parent!r:.80}, and there is no such system", file=file, column="of", fix=fix)
        chain.append(parent)
    return chain[1:]


def stated_settings(name: str) -> dict[str, Any]:
    """What the files state of a system, parents first, as it stands there."""
    settings: dict[str, Any] = {}
    for each in (*reversed(parents(name)), name):
        settings = merge_settings(settings, _read_stated(each)[1])
    if "recbole" in settings:
        settings = RECBOLE | settings
        given = {"model": settings.pop("recbole"), "epochs": {"scaled": settings.pop("epochs", 300)}}
        given["settings"] = settings.pop("settings", {})
        settings["model"] = merge_settings(BRIDGE | given, settings.get("model", {}))
    return settings


def system_settings(name: str) -> dict[str, Any]:
    """The settings of a system with its name, and with the models of others in the place of ``{model_of: NAME}``; sizes
    and references to the profile stay as they stand."""
    settings: dict[str, Any] = _with_models(stated_settings(name), system_file(name), "system")
    return settings | {"name": name}


def _with_models(value: Any, file: Path, key_of: str) -> Any:
    """``{model_of: bm25, k1: 2.0}`` is the model of another system, with other values."""
    if isinstance(value, list):
        return [_with_models(item, file, f"{key_of}.{row}") for row, item in enumerate(value)]
    if not isinstance(value, dict):
        return value
    values = {key: _with_models(item, file, f"{key_of}.{key}") for key, item in value.items() if key != "model_of"}
    if (other := value.get("model_of")) is None:
        return values
    if other not in choices("system"):
        fix = suggestion(str(other), choices("system"))
        raise StudyError(f"unknown system {other!r:.80}", file=file, column=f"{key_of}.model_of", fix=fix)
    return merge_settings(system_settings(other)["model"], values)


def merge_settings(base: Any, diff: Any) -> Any:
    """`diff` laid over `base`: mappings key by key, everything else replaced. An empty mapping replaces, too, and so
    does one that stands for one value, such as ``{scaled: 200}`` or a size by profile, where the base has another."""
    if not (isinstance(base, dict) and isinstance(diff, dict)):
        return diff
    if _form(diff) not in (None, _form(base)) and not diff.keys() <= base.keys():
        return diff
    return base | {key: merge_settings(base.get(key), value) if value else value for key, value in diff.items()}


def _form(value: Mapping[str, Any]) -> str | None:
    """Which of the mappings that stand for one value this is, see `study.config.compose.expanded`."""
    if value and value.keys() <= {*choices("profile")}:
        return "size"
    return next((key for key in ("scaled", "model_of") if key in value), None)
