"""Seeds of rows on a Ray cluster. They leave the files that one process would, so `run_row` then finds them finished.

All machines of the cluster see the project's folder. A seed whose worker or machine dies is begun again elsewhere, and
goes on from its last checkpoint.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from tqdm import tqdm

from study import paths
from study.config.compose import plain
from study.errors import StudyError
from study.runner.rows import pending, ready, run_one

LOG = logging.getLogger(__name__)
RETRIES = 3  # times that a seed is begun again after its worker died
# How long Ray's processes wait for one another: by its own values, 10 to 60 seconds, it ends the program that asked for
# it where a machine is busy. And workers as urgent as that program, where Ray lets everything else go first.
SETTINGS = {
    "RAY_raylet_client_num_connect_attempts": "600",  # of a second each
    "RAY_worker_register_timeout_seconds": "600",
    "RAY_agent_register_timeout_ms": "600000",
    "RAY_worker_niceness": "0",
}


def run_seeds(rows: Sequence[DictConfig], *, replace: bool = False) -> None:
    """Compute every missing seed of some rows, as many at a time as the cluster has processors for.

    `RAY_ADDRESS` names a cluster; without it, one is started here with the processors of the profile and stopped again.
    What fails is named and left to `run_row`, which says why.
    """
    checked = [found for config in rows if (found := _ready(config, replace)) is not None]
    if not checked:
        return
    os.environ.update({name: os.environ.get(name, value) for name, value in SETTINGS.items()})
    try:
        import ray
    except ImportError as error:
        raise StudyError(f"the launcher ray: {error}", fix="Python 3.11, or --launcher local") from error

    profile, address = rows[0].profile, os.environ.get("RAY_ADDRESS")
    own: dict[str, Any] = {} if address else {"num_cpus": profile.workers * profile.threads, "include_dashboard": False}
    ray.init(address=address, log_to_driver=False, logging_level=logging.WARNING, **own)
    try:
        waiting = dict(job for config in checked for job in _submitted(config))
        with tqdm(total=len(waiting), desc="seeds", unit="seed", disable=not sys.stderr.isatty()) as bar:
            while waiting:
                (done,), _ = ray.wait(list(waiting))
                name = waiting.pop(done)
                try:
                    ray.get(done)
                except Exception as error:  # the other seeds still count
                    LOG.error("%s failed: %s", name, error)
                bar.update()
    finally:
        ray.shutdown()


def _ready(config: DictConfig, replace: bool) -> DictConfig | None:
    with suppress(StudyError):
        return ready(config, replace=replace)[0]
    return None


def _submitted(config: DictConfig) -> list[tuple[Any, str]]:
    """The jobs of a row's missing seeds, each with its name."""
    import ray

    folder, missing = pending(config)
    folder.mkdir(parents=True, exist_ok=True)
    job: Any = ray.remote(num_cpus=config.profile.threads, max_retries=RETRIES)(_run_there)
    words, name = (str(paths.root()), plain(config)), f"{config.system.name} under {config.protocol.name}"
    return [(job.remote(*words, seed, str(folder)), f"{name}, seed {seed}") for seed in missing]


def _run_there(root: str, settings: dict[str, Any], seed: int, folder: str) -> None:
    """Run one seed in a worker of the cluster."""
    os.environ["T2M_ROOT"] = root
    run_one(settings, seed, Path(folder))
