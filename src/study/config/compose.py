"""The configuration: composed by Hydra, its short forms written out, and checked."""

from __future__ import annotations

import inspect
import logging
import re
import traceback
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException, InstantiationException
from hydra.utils import get_object, instantiate
from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from study.base import paths
from study.base.errors import StudyError
from study.base.registry import GROUPS as GROUPS
from study.base.registry import choices as choices
from study.base.registry import require_choice, suggestion, system_file, system_settings
from study.base.settings import build_settings, read_yaml
from study.config import groups

LOG = logging.getLogger(__name__)
COMPOSED = (*GROUPS, "trainer", "logger")


def _scale_epochs(count: int, *, _root_: DictConfig) -> int:
    """``${scaled:N}``: a number of epochs times the scales of profile and data set, at least one."""
    return max(1, round(int(count) * (float(_root_.profile.scale) * float(_root_.dataset.scale))))


def _profile_seeds(*pairs: str, _root_: DictConfig) -> Any:
    """``${profile_seeds:PROTOCOL,LIST,...,other,LIST}``: the profile's list of seeds for the protocol."""
    lists = dict(zip(pairs[::2], pairs[1::2], strict=True))
    return _root_.profile[lists.get(_root_.protocol.name, lists["other"])]


OmegaConf.register_new_resolver("scaled", _scale_epochs, replace=True)
OmegaConf.register_new_resolver("profile_seeds", _profile_seeds, replace=True)


def load(overrides: list[str] | None = None) -> DictConfig:
    """Compose ``conf/config.yaml`` with overrides such as ``system=tfidf`` or ``system.model.epochs=5``.

    Works from any folder, in notebooks too, and any number of times in one process. The result is read-only:
    `study.config.changes.change_settings` makes a copy with other values. Raises StudyError: an unknown group choice or
    key (on the command line or in a file of ``conf/``), a value out of its range or one that does not parse.
    """
    return _load(paths.conf(), tuple(overrides or ()), _state())


def _state() -> int:
    """What changes when a file of the configuration does: settings are read once and kept."""
    files = (path for group in COMPOSED for path in (paths.conf() / group).rglob("*.yaml"))
    stats = [(str(path), path.stat()) for path in (paths.conf() / "config.yaml", *files) if path.exists()]
    return hash(tuple(sorted((name, stat.st_mtime_ns, stat.st_size) for name, stat in stats)))


@lru_cache(maxsize=4096)
def _load(conf: Path, overrides: tuple[str, ...], state: int) -> DictConfig:
    names = _choices(conf / "config.yaml", overrides)
    try:
        settings = system_settings(names["system"])
        changes_system = any(word.lstrip("+~").startswith("system.") for word in overrides)
        words = tuple(word for word in overrides if not word.startswith("system="))
        # Without overrides of its own, a system shares what is composed of everything else.
        raw = dict(_compose_raw(conf, names["system"] if changes_system else None, words, state))
        raw["system"] = raw["system"] | ({} if changes_system else settings)
        for group, name in names.items():
            key = "name" if group in GROUPS else "kind"  # a logger has an argument `name`
            raw[group] = raw[group] | ({key: name} if raw[group].get(key, MISSING) == MISSING else {})
        config = OmegaConf.create(expand_forms(raw))
        resolved = OmegaConf.merge(OmegaConf.structured(groups.Study), OmegaConf.to_container(config, resolve=True))
        build_settings(groups.Study, OmegaConf.to_container(resolved, throw_on_missing=True), None)
    except (HydraException, OmegaConfBaseException, ValueError, RecursionError, AssertionError) as error:
        # OmegaConf asserts that a key is set below a mapping, and not below null.
        raise _explain_error(error, names, overrides) from error
    except StudyError as error:
        error.file = error.file or _file_of(error.column or "", names, overrides)
        raise
    OmegaConf.set_readonly(config, True)
    assert isinstance(config, DictConfig)
    return config


def _choices(file: Path, overrides: tuple[str, ...]) -> dict[str, str]:
    """Group -> the file that ``conf/config.yaml`` or an override chooses; each is there, and readable."""
    defaults = read_yaml(file).get("defaults")
    if not isinstance(defaults, list):
        raise StudyError("a key is missing", file=file, column="defaults", fix="put it back")
    names = {group: name for default in defaults if isinstance(default, dict) for group, name in default.items()}
    for word in overrides:
        try:
            override = OverridesParser.create().parse_override(word)
        except HydraException as error:
            fix = "write KEY=VALUE, and quote a value of other letters: KEY='\"VALUE\"'"
            raise StudyError(f"{word!r} is no override", fix=fix) from error
        if override.is_sweep_override():
            fix = "give one per command, or quote a text with commas; `study sweep` tries several values"
            raise StudyError(f"{override.key_or_group} has several values: {word!r}", fix=fix)
        if override.key_or_group in COMPOSED and not override.is_delete():
            names[override.key_or_group] = override.value()
    for group in COMPOSED:
        require_choice(group, names.get(group))
        if group != "system":
            read_yaml(file.parent / group / f"{names[group]}.yaml")
    return {group: names[group] for group in COMPOSED}


@lru_cache(maxsize=256)
def _compose_raw(conf: Path, system: str | None, overrides: tuple[str, ...], _state: int) -> dict[str, Any]:
    """What Hydra composes for a system. None: without its settings, so that many systems share it."""
    ConfigStore.instance().store(group="system", name="chosen", node=system_settings(system) if system else {})
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(conf), version_base="1.3"):
        return plain(compose("config", ["system=chosen", *overrides]), resolve=False)


def expand_forms(config: dict[str, Any]) -> dict[str, Any]:
    """The composed configuration with its short forms written out:

    * ``{smoke: 16, laptop: 96, full: 128}`` is the value of the profile,
    * ``{scaled: 200}`` a number of epochs times the scales of profile and data set, at least one,
    * ``seeds: method_seeds`` a list of the profile, ``seeds: {cold: method_seeds, other: seeds}`` one by protocol.
    """
    system, profile = dict(config["system"]), config["profile"]["name"]
    seeds = {"other": system["seeds"]} if isinstance(system["seeds"], str) else system["seeds"]
    if isinstance(seeds, dict):
        lists = [key for key in config["profile"] if key.endswith("seeds")]
        if wrong := [name for name in seeds.values() if name not in lists]:
            fix = f"a list, or one of: {', '.join(lists)}"
            raise StudyError(f"{wrong[0]!r} is no list of seeds", column="system.seeds", fix=fix)
        seeds = f"${{profile_seeds:{','.join(f'{key},{name}' for key, name in seeds.items())}}}"
    space, model = system["search"], system["model"]
    if not isinstance(space, dict):
        raise StudyError("is no mapping", column="system.search", fix="write below it SETTING: {choices: [...]}")
    space = _space(space, model, profile)
    model = _written_out(model, profile, "system.model")
    return config | {"system": system | {"seeds": seeds, "search": space, "model": model}}


def _written_out(value: Any, profile: str, column: str) -> Any:
    if isinstance(value, list):
        return [_written_out(item, profile, f"{column}.{row}") for row, item in enumerate(value)]
    if not isinstance(value, dict):
        return value
    if value.keys() == {"scaled"}:
        return f"${{scaled:{value['scaled']}}}"
    if value and value.keys() <= {*choices("profile")}:
        if profile not in value:
            fix = f"one of: {', '.join(value)}"
            raise StudyError(f"no size is stated for the profile {profile!r}", column=column, fix=fix)
        return _written_out(value[profile], profile, column)
    return {key: _written_out(item, profile, f"{column}.{key}") for key, item in value.items()}


def _space(search: dict[str, Any], model: dict[str, Any], profile: str) -> dict[str, Any]:
    """The search space at the size of the profile: a range over a setting of another profile, such as ``rate.laptop``,
    becomes one over the setting of this profile, and keeps its proportion to the value in the yaml."""
    space = {}
    for name, domain in search.items():
        setting, _, size = name.rpartition(".")
        sizes: Any = model
        for key in setting.split("."):
            sizes = sizes.get(key) if isinstance(sizes, dict) else None
        if isinstance(sizes, dict) and {size, profile} <= sizes.keys() and {"low", "high"} <= {*domain}:
            ratio = sizes[profile] / sizes[size]
            name, domain = f"{setting}.{profile}", domain | {end: domain[end] * ratio for end in ("low", "high")}
        space[name] = domain
    return space


def _explain_error(error: BaseException, names: dict[str, str], overrides: tuple[str, ...]) -> StudyError:
    """What is wrong with a configuration, from the innermost error of Hydra and OmegaConf."""
    while isinstance(error.__cause__, HydraException | OmegaConfBaseException):
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    reason = lines[1] if lines[0].endswith("composing config:") else lines[0]
    keys = [line.removeprefix("full_key: ") for line in lines if line.startswith("full_key: ")]
    key = keys[0] if keys else str(getattr(error, "full_key", None) or "")
    file = system_file(names["system"]) if isinstance(error, RecursionError) else _file_of(key, names, overrides)
    fix = "correct the value"
    if "not in" in reason:
        parent, _, last = key.rpartition(".")
        reason = f"unknown key {last!r}"
        tree = plain(OmegaConf.structured(groups.Study))
        tree["dataset"] |= read_yaml(paths.conf() / "dataset" / f"{names['dataset']}.yaml")
        tree["system"] |= system_settings(names["system"])
        keys = sorted({*_keys(tree)} - {key})
        beside = ", ".join(name for name in keys if name.rpartition(".")[0] == parent)
        fix = suggestion(key, keys, f"one of: {beside}")
    elif "MISSING" in reason or "Missing mandatory" in reason:
        reason, fix = "a key is missing", "write it; conf/system/_template.yaml shows those of a system"
    return StudyError(f"the configuration does not compose: {reason}", file=file, column=key or None, fix=fix)


def _keys(tree: dict[str, Any], prefix: str = "") -> list[str]:
    """The dotted keys of a tree of settings."""
    inner = [_keys(value, f"{prefix}{key}.") for key, value in tree.items() if isinstance(value, dict)]
    return [*(f"{prefix}{key}" for key in tree), *(name for names in inner for name in names)]


def _file_of(key: str, names: dict[str, str], overrides: tuple[str, ...]) -> Path | None:
    """The file that states a key; None for one that is given on the command line."""
    given = [word.lstrip("+~").partition("=")[0] for word in overrides]
    if any(key == each or ("." in each and key.startswith(f"{each}.")) for each in given):
        return None
    group = key.partition(".")[0]
    if group == "system":
        return system_file(names["system"])
    return paths.conf() / group / f"{names[group]}.yaml" if group in names else paths.conf() / "config.yaml"


def build_system(system: DictConfig) -> Any:
    """Instantiate the system that a configuration describes. Raises StudyError: a class that does not exist, an
    argument that it does not have, or one that it refuses."""
    file = system_file(system.name)
    try:
        model = plain(system)["model"]
        _check_settings(model, "model")
        instance = instantiate(model, _convert_="all")
    except StudyError as error:
        error.file = error.file or file
        raise
    except InstantiationException as error:
        raise _explain_refusal(error, system, file) from error
    for method in ("fit", "score"):
        if not callable(getattr(instance, method, None)):
            fix = f"add {method}() to the class; docs/extending.md shows one"
            raise StudyError(f"{system.model._target_} has no {method}()", file=file, column="model._target_", fix=fix)
    return instance


def _check_settings(value: Any, key: str) -> None:
    """Let a class that hands settings on to another program say whether they are known there."""
    for name, item in value.items() if isinstance(value, dict) else ():
        _check_settings(item, f"{key}.{name}")
        if name == "_target_" and str(item).startswith("baselines."):
            with suppress(ImportError, ValueError, AttributeError):  # `instantiate` says what is wrong with them
                if check := getattr(get_object(str(item)), "check_settings", None):
                    check(value, key)


def _explain_refusal(error: InstantiationException, system: DictConfig, file: Path) -> StudyError:
    """Why a class of a system cannot be made: the class, or the argument, that is not there, or what the class says."""
    cause: BaseException = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
        if isinstance(cause, StudyError):
            cause.file = cause.file or file
            return cause
    inner = re.search(r"full_key: (\S+)", str(error))
    column = f"model.{inner[1]}" if inner else "model"
    target = str(OmegaConf.select(system, f"{column}._target_"))
    reason = next((line for line in reversed(str(cause).splitlines()) if line.strip()), type(cause).__name__)
    if isinstance(cause, SyntaxError):
        what = f"{target} cannot be imported: {cause.msg}"
        return StudyError(what, file=cause.filename, row=f"line {cause.lineno}", fix="mend the line")
    if isinstance(cause, ImportError | AttributeError) or "Error locating target" in str(error):
        if isinstance(cause, ImportError) and not target.startswith(str(cause.name)):  # in its own file
            at = traceback.extract_tb(cause.__traceback__)[-1]
            what = f"{target} cannot be imported: {type(cause).__name__}: {cause}"
            return StudyError(what, file=at.filename, row=f"line {at.lineno}", fix="mend the line")
        why = "" if isinstance(cause, ModuleNotFoundError | AttributeError) else f": {reason}"
        fix = "write package.module.Class, and put its file in place"
        return StudyError(f"there is no class {target!r}{why}", file=file, column=f"{column}._target_", fix=fix)
    if "unexpected keyword argument" in reason:
        argument = reason.split("'")[1]
        fix = suggestion(argument, inspect.signature(get_object(target)).parameters)
        return StudyError(f"{target} has no argument {argument!r}", file=file, column=f"{column}.{argument}", fix=fix)
    fix = "compare its keys and values with the arguments of the class that _target_ names"
    return StudyError(f"{target} cannot be made: {type(cause).__name__}: {reason}", file=file, column=column, fix=fix)


def sound_systems() -> dict[str, DictConfig]:
    """The settings of every system, by name. One whose file cannot be used is named in a warning, and left out. They
    are read-only, and made anew only where a file of ``conf/system`` has changed: there are more than a hundred."""
    files = sorted((paths.conf() / "system").glob("*/*.yaml"))
    texts = tuple((path, path.read_bytes() if path.is_file() else b"") for path in files)
    return dict(_sound_systems(texts, tuple(choices("profile"))))


@lru_cache(maxsize=8)
def _sound_systems(texts: tuple[tuple[Path, bytes], ...], profiles: tuple[str, ...]) -> dict[str, DictConfig]:
    """`sound_systems` of these files and profiles, whose names decide what is a size."""
    systems = {}
    for name in choices("system"):
        try:
            systems[name] = checked_system(name)
            OmegaConf.set_readonly(systems[name], True)
        except StudyError as error:
            LOG.warning("warning: %s is left out: %s", name, error)
    return systems


def checked_system(name: str) -> DictConfig:
    """The settings of a system with their defaults, checked; sizes stay as they stand."""
    fix, file = f"correct it; study check {name} says more", system_file(name)
    try:
        settings = OmegaConf.merge(OmegaConf.structured(groups.System), system_settings(name))
        build_settings(groups.System, OmegaConf.to_container(settings, throw_on_missing=True), file, "system")
    except (OmegaConfBaseException, RecursionError) as error:
        reason, key = (str(error) or type(error).__name__).splitlines()[0], getattr(error, "full_key", None)
        raise StudyError(reason, file=file, column=f"system.{key}" if key else None, fix=fix) from error
    assert isinstance(settings, DictConfig)
    return settings


def plain(config: Any, *, resolve: bool = True) -> dict[str, Any]:
    """A part of the configuration as a plain dictionary; interpolations are filled in, or left as they stand."""
    container = OmegaConf.to_container(config, resolve=resolve)
    assert isinstance(container, dict)
    return {str(key): value for key, value in container.items()}


def format_for_record(config: DictConfig) -> dict[str, Any]:
    """The configuration as records hold it: resolved, trainer and logger by name, since no number depends on them."""
    return plain(config) | {group: config[group].kind for group in ("trainer", "logger")}
