"""What is wrong with a file of ``conf/system``, found before Hydra reads it, so that file and key can be named."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, ListConfig
from omegaconf.errors import OmegaConfBaseException

from study import paths
from study.config.registry import DEFAULTS, read_yaml, system_file, system_settings
from study.config.schema import KEYS, choices, require_choice, suggestion
from study.errors import StudyError

LOG = logging.getLogger(__name__)

# Kinds of systems: how each is drawn and named stands in study.analysis.report.colours; `baseline` is drawn as "other".
FAMILIES = {
    "baseline",
    "t2mrec",
    "ablation",
    "supervision",
    "lexical",
    "dense",
    "neighbour",
    "linear",
    "collaborative",
    "graph",
    "hybrid",
    "published",
    "extension",
    "reference_bug",
    "trivial",
    "oracle",
}
_TEMPLATE = "conf/system/_template.yaml"
# Key -> what its value may be; one that is written ${...} is checked when it is filled in.
KINDS: Mapping[str, tuple[Any, str]] = {
    "title": (str, "a text"),
    "family": (str, "a text"),
    "reference": ((str, type(None)), "a text or null"),
    "protocols": ((list, ListConfig), "a list of protocols, such as [cold, warm]"),
    "trains": (bool, "true or false"),
    "subprocess": (bool, "true or false"),
    "tuned": ((str, type(None)), "the name of a protocol or null"),
    "search": (Mapping | DictConfig, "a mapping: {param: {choices: [...]}}"),
    "rungs": ((list, ListConfig), "a list of shares of a run's epochs, such as [0.33]"),
}
# A class that runs another package's models by their names -> package, and its folder with a module for each of them.
RUNS_OTHERS = {"baselines.recbole_bridge.RecBole": ("recbole", "model/general_recommender")}


def require_own_name(file: Path) -> None:
    """Raise unless a yaml of ``conf/`` can be read and states no other name than that of the file."""
    stated = read_yaml(file).get("name", file.stem)
    if stated != file.stem:
        fix = f"remove the line: the name is that of the file, {file.stem}"
        raise StudyError(f"the name {stated!r:.80} is not that of the file", file=file, column="name", fix=fix)


def require_readable(name: str, above: tuple[str, ...] = ()) -> None:
    """Raise unless the yaml of a system, and of each that it builds on (`defaults`), can be read and none builds on
    itself. `above`: the systems on the way to it."""
    file = system_file(name)
    require_own_name(file)
    parents = read_yaml(file).get("defaults", ListConfig([]))
    if not isinstance(parents, ListConfig):
        raise StudyError(f"{parents!r} is no list", file=file, column="defaults", fix="write [SYSTEM, _self_]")
    for other in parents:
        known = [*choices("system"), "_self_"]
        if other not in known or other in (name, *above):
            wrong = "builds on itself" if other in known else f"builds on {other!r:.80}, and there is no such system"
            raise StudyError(wrong, file=file, column="defaults", fix=suggestion(str(other), set(known) - {name}))
        if other != "_self_":
            require_readable(other, (*above, name))
    if (defaults := paths.conf() / "system" / f"{DEFAULTS}.yaml").exists():
        read_yaml(defaults)


def check(system: Mapping[Any, Any] | DictConfig, file: Path) -> None:
    """Raise unless the settings of a system have values of the right kinds, a known family, known protocols and a
    class whose module is there. `file`: where they are written."""
    for key in ("title", "protocols", "model"):
        if key not in system:
            raise StudyError("a key is missing", file=file, column=key, fix=f"write it; {_TEMPLATE} shows it")
    known = set.union(*KEYS["system"])
    for key in map(str, system.keys() - known):
        raise StudyError("unknown key", file=file, column=f"system.{key}", fix=suggestion(key, known))
    for key, (kind, words) in KINDS.items():
        value = system.get(key)
        if not isinstance(value, kind) and key in system:
            raise StudyError(f"{value!r:.80} is not {words}", file=file, column=key, fix=f"write {words}")
    if system.get("family") not in FAMILIES:
        fix = suggestion(str(system.get("family")), FAMILIES)
        raise StudyError(f"unknown family {system.get('family')!r:.80}", file=file, column="family", fix=fix)
    for name in system.get("protocols") or ():
        try:
            require_choice("protocol", name)
        except StudyError as error:
            raise StudyError(error.reason, file=file, column="protocols", fix=error.fix) from error
    model = system.get("model")
    if not isinstance(model, Mapping | DictConfig) or not isinstance(model.get("_target_"), str):
        fix = "write below model: _target_: package.module.Class"
        raise StudyError("names no class", file=file, column="model._target_", fix=fix)
    target = str(model["_target_"])
    if not _is_there(target.rpartition(".")[0]):
        fix = "write package.module.Class, and put its file in place"
        raise StudyError(f"there is no class {target!r}", file=file, column="model._target_", fix=fix)


def _is_there(module: str) -> bool:
    """Whether there is a module of this name, which is not imported."""
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def require_known_model(arguments: Mapping[Any, Any], key: str) -> None:
    """Raise where a class runs another package's models (`RUNS_OTHERS`) and the one that is named is not there.

    `arguments`: of the class, with `_target_`; `key`: their place in the yaml. The package is not imported, which takes
    seconds.
    """
    package, folder = RUNS_OTHERS.get(str(arguments["_target_"]), ("", ""))
    known = _models(package, folder)
    # Without the package none is known, and the class says itself that it is not installed.
    if known and (name := arguments.get("model")) not in known:
        raise StudyError(
            f"{package} has no model {name!r:.80}", column=f"{key}.model", fix=suggestion(str(name), known)
        )


@cache
def _models(package: str, folder: str) -> frozenset[str]:
    spec = find_spec(package) if package else None
    if spec is None or spec.origin is None:
        return frozenset()
    texts = {path.stem: path.read_text(encoding="utf-8") for path in (Path(spec.origin).parent / folder).glob("*.py")}
    return frozenset(
        name for stem, text in texts.items() for name in re.findall(rf"^class ({stem})\b", text, re.I | re.M)
    )


def require_sound(name: str) -> DictConfig:
    """The settings of a system, if its file can be used."""
    require_readable(name)
    try:
        check(own := system_settings(name), system_file(name))
    except OmegaConfBaseException as error:
        reason = str(error).strip().splitlines()[0]
        raise StudyError(reason, file=system_file(name), fix="correct the value") from error
    return own


def sound_systems() -> dict[str, DictConfig]:
    """The settings of every system, by name. One whose file cannot be used is named in a warning, and left out."""
    found = {}
    for name in choices("system"):
        try:
            found[name] = require_sound(name)
        except StudyError as error:
            _warn(f"warning: {name} is left out: {error}")
    return found


@cache
def _warn(text: str) -> None:
    LOG.warning(text)
