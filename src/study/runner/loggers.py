"""`logger=tensorboard | mlflow | trackio`: every seed of a row as a run of an experiment tracker, through Lightning's
loggers. It gets the settings, the loss of each epoch of T2MRec, and at the end means of the metrics and seconds."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Protocol

from study import paths
from study.errors import StudyError, require_one_of

if TYPE_CHECKING:
    from study.evaluation.runs import SeedRun

INSTALL = {"tensorboard": "make setup", "mlflow": "pip install mlflow-skinny", "trackio": "pip install trackio"}
LOGGERS = ("none", *INSTALL)


class Logger(Protocol):
    """What is used of Lightning's loggers."""

    def log_hyperparams(self, params: dict[str, Any]) -> None:
        """Settings of a run, once."""

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Numbers of a run, at an epoch or at its end."""

    def finalize(self, status: str) -> None:
        """The run has ended: ``success`` or ``failed``."""


class TrackioLogger:
    """Trackio, for which Lightning has no logger. It writes below `TRACKIO_DIR` and starts no page."""

    def __init__(self, project: str, run: str) -> None:
        self.project, self.name = project, run

    def log_hyperparams(self, params: dict[str, Any]) -> None:
        """Begin the run, since trackio takes settings at the beginning."""
        import trackio

        self.run = trackio.init(
            self.project, self.name, config=params, embed=False, auto_log_gpu=False, auto_log_cpu=False
        )

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Numbers of the run."""
        self.run.log(dict(metrics), step)

    def finalize(self, status: str) -> None:
        """Write what waits."""
        self.run.finish()


def require_logger(name: str) -> None:
    """Raise `StudyError` unless `name` is a logger whose package is installed."""
    require_one_of(name, "logger", LOGGERS, column="logger")
    if name != "none" and find_spec(name) is None:
        raise StudyError(f"the package {name} is not installed", column="logger", fix=INSTALL[name])


@contextmanager
def logged(settings: Mapping[str, Any], seed: int, version: str) -> Iterator[Callable[[SeedRun], None]]:
    """Log a seed while the block runs; the function that it gets takes the seed's result.

    `settings`: the composed configuration. `version`: tells rows of other code or data from this one.
    """
    if settings["logger"] == "none":
        yield lambda done: None
        return
    dataset, protocol, system = (settings[group]["name"] for group in ("dataset", "protocol", "system"))
    logger = _logger(settings["logger"], f"{dataset}-{protocol}", f"{system}-{version}-{seed}")
    profile, model = settings["profile"]["name"], settings["system"]["model"]
    logger.log_hyperparams({"system": system, "profile": profile, "seed": seed, "model": model})

    def tell(done: SeedRun) -> None:
        means = done.per_task.drop(columns=["task_id", "seed"]).mean()
        numbers = {key: value for key, value in done.facts.items() if isinstance(value, int | float)}
        logger.log_metrics({str(key).replace("@", "_"): value for key, value in means.items()} | numbers)

    status = "failed"
    try:
        with _told_of_epochs(logger):
            yield tell
        status = "success"
    finally:
        logger.finalize(status)


def _logger(kind: str, project: str, run: str) -> Logger:
    folder = paths.cache() / "logs"
    folder.mkdir(parents=True, exist_ok=True)
    if kind == "tensorboard":
        from pytorch_lightning.loggers import TensorBoardLogger

        return TensorBoardLogger(folder / kind, name=project, version=run)
    if kind == "mlflow":
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        from pytorch_lightning.loggers import MLFlowLogger

        where = os.environ.get("MLFLOW_TRACKING_URI", f"sqlite:///{folder / 'mlflow.db'}")
        return MLFlowLogger(project, run_name=run, tracking_uri=where)
    os.environ.setdefault("TRACKIO_DIR", str(folder / kind))
    return TrackioLogger(project, run)


@contextmanager
def _told_of_epochs(logger: Logger) -> Iterator[None]:
    """Log the loss of every epoch of T2MRec. The module that trains it decides committed rows, so its code stays, and
    what it does at the end of an epoch is extended here."""
    from study.t2mrec.module import EpochBar

    at_end = EpochBar.on_train_epoch_end

    def extended(self: EpochBar, trainer: Any, pl_module: Any) -> None:
        at_end(self, trainer, pl_module)
        logger.log_metrics({"loss": pl_module.last_loss}, step=trainer.current_epoch)

    EpochBar.on_train_epoch_end = extended  # type: ignore[method-assign]
    try:
        yield
    finally:
        EpochBar.on_train_epoch_end = at_end  # type: ignore[method-assign]
