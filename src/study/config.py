"""Composing the configuration with Hydra, and saying clearly what is wrong with an override."""

from __future__ import annotations

import math
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from study import paths
from study.errors import StudyError


def _scaled(count: int, *, _root_: DictConfig) -> int:
    """``${scaled:N}``: a number of epochs times the scales of profile and data set, at least one."""
    scales = (float(OmegaConf.select(_root_, f"{group}.scale", default=1.0)) for group in ("profile", "dataset"))
    return max(1, round(int(count) * math.prod(scales)))


OmegaConf.register_new_resolver("scaled", _scaled, replace=True)

GROUPS = ("dataset", "protocol", "system", "profile")


def choices(group: str) -> list[str]:
    """The names that a configuration group offers; files that start with an underscore are templates."""
    names = (path.stem for path in (paths.conf() / group).glob("*.yaml"))
    return sorted(name for name in names if not name.startswith("_"))


def load(overrides: list[str] | None = None) -> DictConfig:
    """Compose ``conf/config.yaml`` with overrides such as ``system=tfidf`` or ``system.model.epochs=5``.

    Works from any folder, in notebooks too, and any number of times in one process.

    Raises:
        StudyError: an unknown group choice, an unknown key, or a value that does not parse.
    """
    overrides = list(overrides or [])
    for text in overrides:
        name, _, value = text.partition("=")
        if name in GROUPS and value not in choices(name):
            raise StudyError(
                f"unknown {name} {value!r}", file=paths.conf() / name, fix=f"one of: {', '.join(choices(name))}"
            )
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(paths.conf()), version_base="1.3"):
            config = compose("config", overrides)
        OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    except (HydraException, OmegaConfBaseException) as error:
        first = str(error).strip().splitlines()[0]
        raise StudyError(
            f"the configuration does not compose: {first}",
            file=paths.conf(),
            fix="check the override; every key is explained in the yaml files of conf/",
        ) from error
    return config


def build_system(system: DictConfig) -> Any:
    """Instantiate the system that ``conf/system/<name>.yaml`` describes."""
    return instantiate(system.model, _convert_="all")


def plain(config: Any) -> dict[str, Any]:
    """A part of the configuration, resolved, as a plain dictionary."""
    container = OmegaConf.to_container(config, resolve=True)
    assert isinstance(container, dict)
    return {str(key): value for key, value in container.items()}
