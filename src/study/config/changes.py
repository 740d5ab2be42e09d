"""Changed copies of the configuration: other values, and those that `study tune` chose."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf, read_write

from study.base import paths
from study.base.errors import StudyError
from study.base.registry import choices
from study.base.settings import read_yaml

ABSENT = object()


def change_settings(config: DictConfig, values: Mapping[str, Any], *, merge: bool = True) -> DictConfig:
    """A copy of the configuration, which is read-only, with other values by their full keys. `merge`: mappings are laid
    over those that are there, instead of replacing them."""
    copy = config.copy()
    with read_write(copy):
        for key, value in values.items():
            OmegaConf.update(copy, key, value, merge=merge)
    return copy


def setting_key(config: DictConfig, name: str) -> str | None:
    """The full key of a setting that is named below ``system.model``; ``rate.laptop`` stands for ``rate`` under the
    profile `laptop`, and for nothing (None) under another."""
    setting, _, size = name.rpartition(".")
    value = OmegaConf.select(config, f"system.model.{name}", default=ABSENT, throw_on_resolution_failure=False)
    if value is not ABSENT or size not in choices("profile"):
        return f"system.model.{name}"
    return f"system.model.{setting}" if size == config.profile.name else None


def value_of(config: DictConfig, name: str) -> Any:
    """The value of a setting that is named below ``system.model``; `ABSENT` where there is none."""
    key = setting_key(config, name)
    return ABSENT if key is None else OmegaConf.select(config, key, default=ABSENT)


def with_values(config: DictConfig, values: Mapping[str, Any]) -> DictConfig:
    """The configuration with settings given by their names below ``system.model``."""
    keys = {name: setting_key(config, name) for name in values}
    return change_settings(config, {key: values[name] for name, key in keys.items() if key is not None})


def with_tuned_values(config: DictConfig) -> DictConfig:
    """The configuration with the values that `study tune` chose, for systems that say so."""
    if config.system.tuned is None:
        return config
    name, dataset = config.system.name, config.dataset.name
    best = paths.tuned(dataset, name) / "best.yaml"
    if not best.exists():
        fix = f"run: study tune system={name} dataset={dataset}, or add system.tuned=null to run it untuned"
        raise StudyError(f"{name} runs with tuned values, and there are none yet", file=best, fix=fix)
    fix = "remove the file and run study tune again, or take it from git"
    values = read_yaml(best, fix=fix).get("values")
    if not isinstance(values, dict) or not all(isinstance(setting, str) for setting in values):
        raise StudyError("there are no tuned values in the file", file=best, column="values", fix=fix)
    for setting in values:
        if setting_key(config, setting) is not None and value_of(config, setting) is ABSENT:
            problem = f"a tuned value for {setting!r}, which is no setting of {name}"
            raise StudyError(problem, file=best, column=f"values.{setting}", fix=f"run: study tune system={name}")
    return with_values(config, values)
