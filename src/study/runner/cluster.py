"""Seeds of rows on a cluster, by Ray or Slurm, whose machines all see the project's folder. They leave the files that
one process would; a seed whose worker dies is begun again, and goes on from its last checkpoint."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Literal

from omegaconf import DictConfig
from tqdm import tqdm

from study.base import paths
from study.base.errors import StudyError
from study.base.settings import read_keys
from study.config.compose import plain
from study.runner.row_store import lock_row
from study.runner.rows import pending, ready, run_one

LOG = logging.getLogger(__name__)
Launcher = Literal["local", "ray", "slurm"]
# Times that a seed is begun again after its worker died, and Ray after it did not come up in its 30 seconds.
RETRIES = 3
# How long Ray's processes wait for one another: by its own values, 10 to 60 seconds, it ends the program that asked for
# it where a machine is busy. And workers as urgent as that program, where Ray lets everything else go first.
SETTINGS = {
    "RAY_raylet_client_num_connect_attempts": "600",  # of a second each
    "RAY_worker_register_timeout_seconds": "600",
    "RAY_agent_register_timeout_ms": "600000",
    "RAY_worker_niceness": "0",
}


def run_seeds(rows: Sequence[DictConfig], launcher: Launcher, *, replace: bool = False) -> None:
    """Compute every missing seed of some rows, as many at a time as the cluster has room for; nothing for `local`. What
    fails is named and left to `run_row`, which says why. Raises StudyError: the launcher is not installed."""
    checked = []
    for config in rows if launcher != "local" else ():
        with suppress(StudyError):
            checked.append(ready(config, replace=replace)[0])
    if checked:
        settings = read_keys(paths.conf() / "cluster.yaml", ("gpus", "minutes", "at_once", "partition"))
        with ExitStack() as held:
            for config in checked:
                held.enter_context(lock_row(config.dataset.name, config.protocol.name, config.system.name))
            (_by_ray if launcher == "ray" else _by_slurm)(checked, settings)


def start_ray(processors: int) -> Any:
    """Ray on the cluster that `RAY_ADDRESS` names, or on one that is started here with so many processors; the module,
    whose `shutdown` ends it. Raises StudyError: Ray is not installed, or does not come up."""
    os.environ.update({name: os.environ.get(name, value) for name, value in SETTINGS.items()})
    try:
        import ray
    except ImportError as error:
        raise StudyError(f"Ray: {error}", fix="make setup RAY=1, or --launcher local") from error
    address = os.environ.get("RAY_ADDRESS")
    options: dict[str, Any] = {} if address else {"num_cpus": processors, "include_dashboard": False}
    for left in reversed(range(1 + RETRIES)):
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.WARNING, **options)
            break
        except Exception as error:  # Ray has none of its own for a machine that is too busy
            ray.shutdown()
            if not left:
                raise StudyError(f"Ray does not start: {error}", fix="try again on a less busy machine") from error
    return ray


def _by_ray(rows: Sequence[DictConfig], settings: Mapping[str, Any]) -> None:
    profile = rows[0].profile
    ray = start_ray(profile.workers * profile.threads)
    try:
        gpus = settings["gpus"].get(profile.name, 0)
        job = ray.remote(num_cpus=profile.threads, num_gpus=gpus, max_retries=RETRIES)(_run_there)
        jobs = {name: job.remote(*words) for name, words in _jobs(rows).items()}
        for name, each in tqdm(jobs.items(), desc="seeds", unit="seed", disable=None):
            try:
                ray.get(each)
            except Exception as error:  # the other seeds still count
                LOG.error("%s failed: %s", name, error)
    finally:
        ray.shutdown()


def _by_slurm(rows: Sequence[DictConfig], settings: Mapping[str, Any]) -> None:
    """As a job array; where there is no Slurm, as processes of this machine. A job that dies is in the next array."""
    try:
        import submitit
    except ImportError as error:
        raise StudyError(f"submitit: {error}", fix="make setup, or --launcher local") from error
    profile, executor = rows[0].profile, submitit.AutoExecutor(folder=paths.cache() / "submitit")
    executor.update_parameters(
        cpus_per_task=profile.threads,
        gpus_per_node=settings["gpus"].get(profile.name, 0),
        timeout_min=settings["minutes"],
        slurm_array_parallelism=settings["at_once"],
        slurm_partition=settings["partition"],
    )
    for _ in range(1 + RETRIES):
        waiting, died = list(_jobs(rows).items()), False
        # Of an array; processes have no queue of their own.
        size = len(waiting) if executor.cluster == "slurm" else profile.workers
        for start in tqdm(range(0, len(waiting), size or 1), desc="seeds", unit="part", disable=None):
            part = waiting[start : start + size]
            with executor.batch():
                jobs = [executor.submit(_run_there, *words) for _, words in part]
            for job, (name, _) in zip(jobs, part, strict=True):
                if (failure := job.exception()) is not None:
                    LOG.error("%s failed: %s", name, failure)
                    died |= isinstance(failure, submitit.core.utils.UncompletedJobError)
        if not died:
            return


def _jobs(rows: Sequence[DictConfig]) -> dict[str, tuple[Any, ...]]:
    """Name -> arguments of `_run_there` for every missing seed."""
    jobs = {}
    for config in rows:
        folder, missing = pending(config)
        for seed in missing:
            name = f"{config.system.name} under {config.protocol.name}, seed {seed}"
            jobs[name] = str(paths.root()), plain(config), seed, str(folder)
    return jobs


def _run_there(root: str, settings: dict[str, Any], seed: int, folder: str) -> None:
    """Run one seed in a worker of the cluster."""
    os.environ["T2M_ROOT"] = root
    run_one(settings, seed, Path(folder))
