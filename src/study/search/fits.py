"""Systems fitted for a sweep, and what is measured of one: values task by task, and how far embeddings separate.

T2MRec's embeddings are kept by the settings that made them, so that no setting is trained twice.
"""

from __future__ import annotations

import fcntl
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from omegaconf import DictConfig
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from study import paths
from study.config.changes import with_values
from study.config.compose import build_system
from study.data.dataset import Dataset
from study.data.splits import Split
from study.evaluation import per_task as per_task_table
from study.evaluation.metrics import PAPER_METRICS, per_task
from study.evaluation.ranking import chunks, mask_known, tie_order
from study.evaluation.runs import CUTOFFS, KEPT, rank_tasks
from study.evaluation.separation import embedding_settings, mean_separation
from study.evaluation.system import System
from study.files import replacing
from study.runner.identity import row_key
from study.t2mrec.fusion import expand, fuse
from study.t2mrec.settings import Scoring
from study.t2mrec.structure import StructuralFeatures
from study.t2mrec.system import T2MRec

FUSION_WEIGHT = "scoring.semantic_weight"


def fit_key(config: DictConfig) -> str:
    """A hash of all that decides the fit: as for a run, but T2MRec's scoring decides no embedding."""
    if config.system.model._target_ != f"{T2MRec.__module__}.{T2MRec.__name__}":
        return row_key(config)
    return row_key(with_values(config, {f"scoring.{name}": value for name, value in vars(Scoring()).items()}))


def kept_fit(config: DictConfig, seed: int) -> Path:
    """Where the embeddings of the configured training are kept."""
    return paths.cache() / "sweeps" / str(config.dataset.name) / "fits" / f"{fit_key(config)}-{seed}.safetensors"


def training_seconds(config: DictConfig, seed: int) -> float | None:
    """Wall-clock seconds that the kept training took in the process that finished it; None where nobody noted them."""
    path = kept_fit(config, seed)
    if not path.exists():
        return None
    with safe_open(path, framework="numpy") as file:
        noted = (file.metadata() or {}).get("seconds")
    return None if noted is None else float(noted)


def fitted(config: DictConfig, data: Dataset, split: Split, *, seed: int, keep: bool) -> Any:
    """The configured system, fitted; T2MRec also put together again from embeddings that an equal training left.

    Two workers that want the same training at once wait for one another. A killed training goes on from its checkpoint.

    `keep`: leave T2MRec's embeddings (10 MB for Task2MCP) for the next one who asks.
    """
    system = build_system(config.system)
    saved = kept_fit(config, seed)
    saved.parent.mkdir(parents=True, exist_ok=True)
    with saved.with_suffix(".lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the operating system releases it, also when the process is killed
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
        if keep and type(system) is T2MRec:
            arrays = {"tasks": system.task_embeddings, "servers": system.server_embeddings}
            arrays = {name: np.ascontiguousarray(value) for name, value in arrays.items()}
            with replacing(saved) as temporary:
                save_file(arrays, temporary, metadata={"seconds": str(seconds)})
        shutil.rmtree(workdir)
    return system


def task_values(system: System, data: Dataset, split: Split, part: str, *, seed: int) -> pd.DataFrame:
    """The per-task table of a fitted system with the paper's eight measures, on a part."""
    tasks = split.tasks(part)
    ranked, _ = rank_tasks(system, split, tasks, part=part, k=KEPT, seed=seed)
    return _table(ranked, data, split, part, seed)


def _table(ranked: np.ndarray, data: Dataset, split: Split, part: str, seed: int) -> pd.DataFrame:
    tasks = split.tasks(part)
    found = per_task(ranked, split.part(part)[tasks], ks=CUTOFFS)[list(PAPER_METRICS)]
    return per_task_table.table(data.tasks["id"].to_numpy()[tasks], seed, found)


def separation(system: Any, split: Split, part: str) -> dict[str, float]:
    """auc and recall: how far the servers that a task lists stand out from the others in T2MRec's embeddings."""
    depth = embedding_settings()["depth"]
    found = mean_separation(system.task_embeddings, system.server_embeddings, split, part, depth=depth)
    return {name: float(found[name]) for name in ("auc", "recall")}


def measure_fusion_weights(
    system: T2MRec,
    data: Dataset,
    split: Split,
    weights: list[float],
    parts: list[str],
    *,
    seed: int,
    done: Callable[[int], object] = lambda tasks: None,
) -> list[dict[str, pd.DataFrame]]:
    """Measure a trained system with every fusion weight. Scores are computed once per part.

    `done`: called with the number of tasks that were just ranked with every weight.
    Returns: per weight the per-task table of every part.
    """
    tables: list[dict[str, pd.DataFrame]] = [{} for _ in weights]
    scoring = system.scoring
    pool = max(KEPT, scoring.pool)
    anchors = scoring.anchors if scoring.expansion else pool
    for part in parts:
        tasks, known = split.tasks(part), split.known(part)
        ranked = np.full((len(weights), len(tasks), KEPT), -1, dtype=np.int64)
        for piece in chunks(tasks):
            asked = tasks[piece]
            semantic, structural = system.semantic(asked), system.structural(asked)
            embeddings = system.task_embeddings[asked], system.server_embeddings
            for number, weight in enumerate(weights):
                fused = mask_known(fuse(semantic, structural, weight=weight), asked, known)
                found, _ = expand(fused, *embeddings, anchors=anchors, pool=pool, order=system.order)
                ranked[number, piece] = found[:, :KEPT]
            done(len(asked))
        for number, table in enumerate(tables):
            table[part] = _table(ranked[number], data, split, part, seed)
    return tables
