"""Composing the configuration with Hydra, and saying clearly what is wrong with it."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from typing import Any

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException, InstantiationException
from hydra.utils import get_object, instantiate
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from study import paths
from study.config import schema, systems
from study.config.registry import read_yaml, system_file, system_settings
from study.config.schema import GROUPS as GROUPS
from study.config.schema import choices as choices
from study.errors import StudyError

# Keys of a model's yaml that Hydra reads itself.
HYDRA_KEYS = ("_target_", "_args_", "_recursive_", "_convert_", "_partial_")


def _scaled(count: int, *, _root_: DictConfig) -> int:
    """``${scaled:N}``: a number of epochs times the scales of profile and data set, at least one."""
    scales = (float(OmegaConf.select(_root_, f"{group}.scale", default=1.0)) for group in ("profile", "dataset"))
    return max(1, round(int(count) * math.prod(scales)))


def _under_cold(there: Any, elsewhere: Any, *, _root_: DictConfig) -> Any:
    """``${under_cold:A,B}``: A under the paper's protocol, B under every other."""
    return there if OmegaConf.select(_root_, "protocol.name") == "cold" else elsewhere


def _model_of(name: str) -> Any:
    """``${system:NAME}``: the `model` of another system, as its yaml says."""
    return OmegaConf.to_container(system_settings(name).model, resolve=False)


OmegaConf.register_new_resolver("system", _model_of, replace=True)
OmegaConf.register_new_resolver("scaled", _scaled, replace=True)
OmegaConf.register_new_resolver("under_cold", _under_cold, replace=True)


def load(overrides: list[str] | None = None) -> DictConfig:
    """Compose ``conf/config.yaml`` with overrides such as ``system=tfidf`` or ``system.model.epochs=5``.

    Works from any folder, in notebooks too, and any number of times in one process. The result is read-only:
    `study.config.registry.changed` makes a copy with other values.

    Raises:
        StudyError: an unknown group choice, an unknown key (on the command line or in a file of ``conf/``), a value
            out of its range or one that does not parse.
    """
    overrides = [_todays_name(word) for word in overrides or []]
    try:
        parsed = OverridesParser.create().parse_overrides(overrides)
        for override in parsed:
            if override.is_sweep_override():
                raise StudyError(
                    f"{override.key_or_group} has several values: {override.input_line!r}",
                    fix="give one per command, or quote a text with commas; `study sweep` tries several values",
                )
            if override.key_or_group in GROUPS and not override.is_delete():
                schema.require_choice(override.key_or_group, override.value())
        if parsed:
            _require_known_keys(parsed)
        config = _compose(overrides)
        container = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    except (HydraException, OmegaConfBaseException, yaml.YAMLError, ValueError, RecursionError) as error:
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise StudyError(
            f"the configuration does not compose: {first}",
            file=paths.conf(),
            column=getattr(error, "full_key", None) or None,
            fix="check the override; every key is explained in the yaml files of conf/",
        ) from error
    assert isinstance(container, dict)
    if isinstance(system := container.get("system"), Mapping):
        systems.check(system, system_file(str(system.get("name"))))
    schema.check({str(key): value for key, value in container.items()})
    OmegaConf.set_readonly(config, True)
    return config


def _todays_name(override: str) -> str:
    """An override with an earlier name, of a system or of a key, as one with today's."""
    key, equals, value = override.partition("=")
    value = schema.ALIASES.get(value, value) if key == "system" else value
    return f"{schema.KEY_ALIASES.get(key, key)}{equals}{value}"


def _compose(overrides: list[str]) -> DictConfig:
    """Compose; what a group's file is called is its `name`, unless an override says otherwise."""
    file = paths.conf() / "config.yaml"
    defaults = plain(read_yaml(file), resolve=False).get("defaults")
    if not isinstance(defaults, list):
        raise StudyError("a key is missing", file=file, column="defaults", fix="put it back")
    choices = {group: name for default in defaults if isinstance(default, dict) for group, name in default.items()}
    for override in OverridesParser.create().parse_overrides(overrides):
        if override.key_or_group in GROUPS:
            choices[override.key_or_group] = override.value()
    for group in GROUPS:
        _require_sound(group, choices.get(group))
    names = [f"++{group}.name={choices[group]}" for group in GROUPS]
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(paths.conf()), version_base="1.3"):
        return compose("config", [*names, *overrides])


def _require_sound(group: str, name: Any) -> None:
    """Raise unless what Hydra is about to read can be read: it says of no file which one is wrong, or never ends."""
    schema.require_choice(group, name)
    if group == "system":
        systems.require_sound(name)
        ConfigStore.instance().store(group="system", name=str(name), node=system_settings(name))
        return
    systems.require_own_name(paths.conf() / group / f"{name}.yaml")


def _require_known_keys(overrides: list[Override]) -> None:
    """Raise unless every key named by an override, added ones (``+key``) included, is in the files of ``conf/``."""
    keys = [override for override in overrides if override.key_or_group not in GROUPS]
    if not keys:
        return
    chosen = [override.input_line for override in overrides if override.key_or_group in GROUPS]
    known = schema.flat(plain(_compose([line for line in chosen if line is not None]), resolve=False))
    for override in keys:
        if override.key_or_group not in known:
            raise StudyError(
                f"the configuration does not compose: unknown key {override.key_or_group!r} in {override.input_line!r}",
                file=paths.conf(),
                fix=schema.suggestion(override.key_or_group, known, listed=_siblings(override.key_or_group, known)),
            )


def _siblings(key: str, known: Mapping[str, Any]) -> list[str]:
    """The keys of the deepest group on the way to `key` that exists."""
    parent = key.rpartition(".")[0]
    while parent and not isinstance(known.get(parent), Mapping):
        parent = parent.rpartition(".")[0]
    return [name for name in known if name.rpartition(".")[0] == parent]


def build_system(system: DictConfig) -> Any:
    """Instantiate the system that ``conf/system/<name>.yaml`` describes.

    Raises:
        StudyError: a class that does not exist, an argument that it does not have, or one that it refuses.
    """
    file = system_file(system.name)
    try:
        # Plain values: of a configuration that is read-only, what ${system:NAME} names would stay a dictionary.
        model = plain(system)["model"]
        _require_known_arguments(model, "model")
        made = instantiate(model, _convert_="all")
    except StudyError as error:
        error.file = error.file or file
        raise
    except InstantiationException as error:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, StudyError):
            cause = cause.__cause__
        if cause is not None:
            raise cause from error
        reason = error.__cause__ or error
        raise StudyError(
            f"the model of {system.name} cannot be made: {type(reason).__name__}: {str(reason).splitlines()[0]}",
            file=file,
            column="model",
            fix="compare its keys and values with the arguments of the class that _target_ names",
        ) from error
    for method in ("fit", "score"):
        if not callable(getattr(made, method, None)):
            target = system.model._target_
            fix = f"add {method}() to the class; docs/extending.md shows one"
            raise StudyError(f"{target} has no {method}()", file=file, column="model._target_", fix=fix)
    return made


def _require_known_arguments(value: Any, key: str) -> None:
    """Raise unless every mapping with a ``_target_`` below `value` names arguments of that class alone."""
    if isinstance(value, list):
        for place, item in enumerate(value):
            _require_known_arguments(item, f"{key}.{place}")
    if not isinstance(value, Mapping):
        return
    for name, item in value.items():
        _require_known_arguments(item, f"{key}.{name}")
    if "_target_" not in value:
        return
    try:
        parameters = inspect.signature(get_object(value["_target_"])).parameters
    except (ImportError, ValueError, TypeError, AttributeError) as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        raise StudyError(
            f"there is no class {value['_target_']!r}{_import_problem(lines)}",
            column=f"{key}._target_",
            fix="write package.module.Class, and put its file in place",
        ) from error
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    for name in () if takes_any else value.keys() - parameters.keys() - set(HYDRA_KEYS):
        raise StudyError(
            f"{value['_target_']} has no argument {name!r}",
            column=f"{key}.{name}",
            fix=schema.suggestion(str(name), parameters),
        )
    systems.require_known_model(value, key)
    # A class that hands keys on to another program says itself whether they are known.
    if check := getattr(get_object(value["_target_"]), "check_settings", None):
        check(value, key)


def _import_problem(lines: list[str]) -> str:
    """What an import said, where the module is there and does not load."""
    found = next((line for line in lines if "Error(" in line and "ModuleNotFoundError" not in line), "")
    return f": {found.strip()}" if found else ""


def plain(config: Any, *, resolve: bool = True) -> dict[str, Any]:
    """A part of the configuration as a plain dictionary; interpolations are filled in, or left as they stand."""
    container = OmegaConf.to_container(config, resolve=resolve)
    assert isinstance(container, dict)
    return {str(key): value for key, value in container.items()}
