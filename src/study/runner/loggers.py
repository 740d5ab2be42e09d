"""`logger=NAME` (``conf/logger``): every seed of a row as a run of an experiment tracker, by Lightning's loggers.

It gets the settings, the loss of each epoch of T2MRec, and at the end means of the metrics and seconds.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from hydra.errors import InstantiationException
from hydra.utils import instantiate

from study.base import paths
from study.base.errors import StudyError
from study.t2mrec.settings import TRAINER

if TYPE_CHECKING:
    from study.evaluation.runs import SeedRun


def make_logger(settings: Mapping[str, Any], run: str) -> Any:
    """The configured logger for a run; None for none. Raises StudyError: it cannot be made, as without its package."""
    if settings["logger"]["_target_"] is None:
        return None
    logs, project = paths.cache() / "logs", f"{settings['dataset']['name']}-{settings['protocol']['name']}"
    logs.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    options = {key: str(text).format(logs=logs, project=project, run=run) for key, text in settings["logger"].items()}
    kind = options.pop("kind")
    try:
        return instantiate(options)
    except InstantiationException as error:
        fix = f"conf/logger/{kind}.yaml says what to install"
        raise StudyError(f"{kind} cannot be used: {error.__cause__}", column="logger", fix=fix) from error


@contextmanager
def log_seed(settings: Mapping[str, Any], seed: int, version: str) -> Iterator[Callable[[SeedRun], None]]:
    """Train with the configured trainer and log a seed while the block runs; the function that it gets takes the seed's
    result.

    `settings`: the composed configuration. `version`: tells rows of other code or data from this one.
    """
    system, profile = settings["system"], settings["profile"]["name"]
    logger = make_logger(settings, f"{system['name']}-{version}-{seed}")
    # Lightning's loop stays on the processor: a system places its own tensors on the accelerator.
    trainer = {key: value for key, value in settings["trainer"].items() if key not in ("kind", "precision")}
    trainer |= {"accelerator": "cpu", "_partial_": True}
    token = TRAINER.set(lambda **given: instantiate(trainer)(logger=logger or False, **given))
    results: list[SeedRun] = []
    try:
        if logger is not None:
            about = {"system": system["name"], "profile": profile, "seed": seed, "model": system["model"]}
            logger.log_hyperparams(about)
        yield results.append
    finally:
        TRAINER.reset(token)
        if logger is not None:
            for done in results:
                means = done.per_task.drop(columns=["task_id", "seed"]).mean()
                numbers = {key: value for key, value in done.facts.items() if isinstance(value, int | float)}
                logger.log_metrics({str(key).replace("@", "_"): value for key, value in means.items()} | numbers)
            logger.finalize("success" if results else "failed")
