"""`label_fit` one idea at a time on the validation part: what each kind of knowledge adds to the fit of the labels."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import pandas as pd
from omegaconf import DictConfig, OmegaConf
from tqdm import tqdm

from study import paths
from study.analysis.usefulness import steps
from study.analysis.usefulness.curves import METRICS, fitted
from study.config.compose import load
from study.errors import StudyError
from study.files import write_csv
from study.runner.rows import fingerprint, load_inputs


def laid_over(config: DictConfig, changes: Mapping[str, Any]) -> DictConfig:
    """The configuration with some of `system.model`'s values replaced as a whole (lists and mappings are not merged).

    Raises:
        StudyError: the model has no such setting.
    """
    found = config.copy()
    for name, value in changes.items():
        if name not in config.system.model:
            raise StudyError(
                f"{config.system.name} has no setting {name!r}",
                column="steps",
                fix=f"one of: {', '.join(map(str, config.system.model))}",
            )
        OmegaConf.update(found, f"system.model.{name}", value, merge=False)
    return found


def fits(dataset: str, settings: Mapping[str, Any]) -> dict[str, pd.DataFrame]:
    """Per step (its title), one row per validation task; steps done before are taken from the cache."""
    whole = load([f"dataset={dataset}", f"system={settings['system']}", f"protocol={settings['protocol']}"])
    folder, frames = paths.cache() / "useful" / "label_steps" / dataset, {}
    bar = tqdm(settings["steps"].items(), desc="label_fit", unit="step", disable=not sys.stderr.isatty())
    for title, changes in bar:
        config = laid_over(whole, changes)
        path = folder / f"{settings['seed']}-{fingerprint(config)}.csv"
        if not path.exists():
            data, split = load_inputs(config)
            write_csv(path, fitted(config, data, split, 1.0, settings["seed"]))
        frames[title] = pd.read_csv(path)
    return frames


def one_at_a_time(values: Mapping[str, pd.DataFrame], *, seed: int) -> pd.DataFrame:
    """Each step with its paired difference from the one before it.

    Args:
        values: title -> task_id and `METRICS`, in the order of the steps.

    Returns: columns metric, step (from 0), title, tasks, mean, low, high (95 % bootstrap interval over tasks),
        difference, difference_low, difference_high, p (randomisation test), p_holm (over the steps of all metrics).
    """
    own = {title: frame.assign(seed=seed) for title, frame in values.items()}
    table = steps.one_at_a_time(own, list(own), METRICS, seed=seed)
    return table.drop(columns=["before", "wins", "ties", "losses"]).rename(
        columns={"system": "title", "topics": "tasks"}
    )
