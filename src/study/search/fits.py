"""Trained embeddings by the settings that made them, so that no setting is trained twice."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import DictConfig, OmegaConf
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from study import paths
from study.config.compose import build_system
from study.data.dataset import Dataset
from study.data.splits import Split
from study.evaluation.metrics import PAPER_METRICS, per_task
from study.evaluation.ranking import tie_order
from study.evaluation.runs import CUTOFFS, KEPT, rank_tasks
from study.evaluation.system import Ranker
from study.files import replacing
from study.runner.fingerprint import fingerprint
from study.search.locks import exclusive
from study.t2mrec.settings import Scoring
from study.t2mrec.structure import StructuralFeatures
from study.t2mrec.system import T2MRec


def with_values(config: DictConfig, values: dict[str, Any]) -> DictConfig:
    """The configuration with settings given by their names below ``system.model``."""
    chosen = config.copy()
    for name, value in values.items():
        OmegaConf.update(chosen, f"system.model.{name}", value)
    return chosen


def fit_key(config: DictConfig) -> str:
    """A hash of all that decides the embeddings: as for a run, but scoring decides none."""
    return fingerprint(with_values(config, {f"scoring.{name}": value for name, value in vars(Scoring()).items()}))


def kept(config: DictConfig, seed: int) -> Path:
    """Where the embeddings of the configured training are kept."""
    return paths.cache() / "sweeps" / str(config.dataset.name) / "fits" / f"{fit_key(config)}-{seed}.safetensors"


def training_seconds(config: DictConfig, seed: int) -> float | None:
    """Wall-clock seconds that the kept training took in the process that finished it; None where nobody noted them."""
    path = kept(config, seed)
    if not path.exists():
        return None
    with safe_open(path, framework="numpy") as file:
        noted = (file.metadata() or {}).get("seconds")
    return None if noted is None else float(noted)


def fitted(config: DictConfig, data: Dataset, split: Split, *, seed: int, keep: bool) -> T2MRec:
    """The configured T2MRec, trained, or put together again from embeddings that an equal training left.

    Two workers that want the same training at once wait for one another. A killed training goes on from its checkpoint.

    Args:
        keep: leave the embeddings (10 MB for Task2MCP) for the next one who asks.
    """
    system = build_system(config.system)
    assert isinstance(system, T2MRec)
    saved = kept(config, seed)
    with exclusive(saved.with_suffix(".lock")):
        if saved.exists():
            arrays = load_file(saved)
            system.data, system.order = data, tie_order(data.n_servers, seed)
            system.structure = StructuralFeatures(data.servers)
            system.task_embeddings, system.server_embeddings = arrays["tasks"], arrays["servers"]
            return system
        workdir = saved.with_name(f"work-{saved.stem}")
        workdir.mkdir(parents=True, exist_ok=True)
        started = time.perf_counter()
        system.fit(data, split, seed=seed, workdir=workdir)
        seconds = round(time.perf_counter() - started, 3)
        if keep:
            names = {"tasks": system.task_embeddings, "servers": system.server_embeddings}
            with replacing(saved) as temporary:
                arrays = {name: np.ascontiguousarray(value) for name, value in names.items()}
                save_file(arrays, temporary, metadata={"seconds": str(seconds)})
        shutil.rmtree(workdir)
    return system


def measures(system: Ranker, data: Dataset, split: Split, part: str, *, seed: int) -> dict[str, float]:
    """The paper's eight measures, means over the part's tasks: ``valid/ndcg@10`` and so on."""
    tasks = split.tasks(part)
    ranked, _ = rank_tasks(system, split, tasks, part=part, k=KEPT, seed=seed, n_servers=data.n_servers)  # type: ignore[arg-type]
    means = per_task(ranked, split.part(part)[tasks], ks=CUTOFFS).mean()
    return {f"{part}/{name}": float(means[name]) for name in PAPER_METRICS}
