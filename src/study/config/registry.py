"""The systems of `conf/system`: their settings with what they inherit, their parents, and their tuned values."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf, read_write
from omegaconf.errors import OmegaConfBaseException

from study import paths
from study.config.reader import parsed, require_no_alias
from study.config.schema import ALIASES
from study.errors import StudyError

DEFAULTS = "_defaults"
OWN = "own"  # the folder of systems that `study new` makes
_ABSENT = object()


def system_file(name: str) -> Path:
    """The file that describes a system; where one of one's own would stand if there is none."""
    folder = paths.conf() / "system"
    return next(folder.glob(f"*/{name}.yaml"), folder / OWN / f"{name}.yaml")


def folder_of(name: str) -> str:
    """The folder of ``conf/system`` in which a system is described: paper, simple, useful, probes or own.

    A name without a file, such as that of a variant named on the command line, belongs to ``own``.
    """
    return system_file(name).parent.name


def parents(name: str) -> list[str]:
    """The systems that a system's yaml builds on (its `defaults`), nearest first."""
    direct = [other for other in read_yaml(system_file(name)).get("defaults", []) if other != "_self_"]
    return [found for other in direct for found in (other, *parents(other))]


def system_settings(name: str) -> DictConfig:
    """A system's settings: `_defaults.yaml`, the files it builds on, its own; interpolations stay as they stand."""
    name = ALIASES.get(name, name)
    files = [paths.conf() / "system" / f"{DEFAULTS}.yaml"]
    files += [system_file(each) for each in (*reversed(parents(name)), name)]
    merged = OmegaConf.merge(*(read_yaml(file) for file in files if file.exists()))
    assert isinstance(merged, DictConfig)
    merged.pop("defaults", None)
    merged.name = name
    return merged


def read_yaml(file: Path) -> DictConfig:
    """The content of a yaml of ``conf/`` with keys of any names; nobody changes it. StudyError: it cannot be read."""
    try:
        return _parsed(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError, yaml.YAMLError, OmegaConfBaseException) as error:
        raise StudyError(f"cannot be read ({error})", file=file, fix="correct the file") from error


@lru_cache(maxsize=512)
def _parsed(text: str) -> DictConfig:
    """Parsing takes far longer than reading, and a report asks for every system several times."""
    require_no_alias(text)
    content = OmegaConf.create(text)
    if not isinstance(content, DictConfig):
        raise ValueError("not a mapping")
    return content


def left_out(name: str, family: str, patterns: list[str]) -> bool:
    """Whether a data set leaves a system out: by family, by name, or by a pattern of names such as ``*_tuned``."""
    return any(family == pattern or fnmatchcase(name, pattern) for pattern in patterns)


def with_tuned_values(config: DictConfig) -> DictConfig:
    """The configuration with the values that `study tune` chose, for systems that say so."""
    if config.system.tuned is None:
        return config
    best = paths.results(config.dataset.name) / "sweeps" / config.system.name / "best.yaml"
    if not best.exists():
        raise StudyError(
            f"{config.system.name} runs with tuned values, and there are none yet",
            file=best,
            fix=f"run: study tune system={config.system.name} dataset={config.dataset.name}, "
            "or add system.tuned=null to a variant that is not tuned",
        )
    values = _tuned_values(best)
    for name in values:
        if OmegaConf.select(config, f"system.model.{name}", default=_ABSENT) is _ABSENT:
            raise StudyError(
                f"a tuned value for {name!r}, which is no setting of {config.system.name}",
                file=best,
                column=f"values.{name}",
                fix=f"run: study tune system={config.system.name}",
            )
    return with_values(config, values)


def with_values(config: DictConfig, values: Mapping[str, Any]) -> DictConfig:
    """The configuration with settings given by their names below ``system.model``."""
    return changed(config, {f"system.model.{name}": value for name, value in values.items()})


def changed(config: DictConfig, values: Mapping[str, Any], *, merge: bool = True) -> DictConfig:
    """A copy of the configuration, which is read-only, with other values by their full keys.

    `merge`: mappings are laid over those that are there, instead of replacing them.
    """
    copy = config.copy()
    with read_write(copy):
        for key, value in values.items():
            OmegaConf.update(copy, key, value, merge=merge)
    return copy


def _tuned_values(best: Path) -> dict[str, Any]:
    """The chosen values in a best.yaml, by their keys below ``system.model``."""
    fix = "remove the file and run study tune again, or take it from git"
    try:
        content = parsed(best.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise StudyError(f"not a readable yaml file: {error}", file=best, fix=fix) from error
    values = content.get("values") if isinstance(content, dict) else None
    if not isinstance(values, dict) or not all(isinstance(name, str) for name in values):
        raise StudyError("there are no tuned values in the file", file=best, column="values", fix=fix)
    return values
