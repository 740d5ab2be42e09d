"""Trained embeddings of T2MRec by the settings that made them, so that no setting is trained twice, and what is
measured with them: every fusion weight, single test tasks, separation."""

from __future__ import annotations

import fcntl
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from omegaconf import DictConfig, OmegaConf
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from tqdm import tqdm

from study import paths
from study.config.compose import build_system
from study.config.registry import with_values
from study.data.dataset import Dataset
from study.data.splits import Split
from study.evaluation import per_task as per_task_table
from study.evaluation.metrics import PAPER_METRICS, per_task
from study.evaluation.ranking import chunks, mask_known, tie_order
from study.evaluation.runs import CUTOFFS, KEPT, rank_tasks
from study.evaluation.separation import embedding_settings, mean_separation
from study.files import replacing, write_csv
from study.runner.fingerprint import fingerprint
from study.runner.inputs import load_inputs
from study.runner.processes import limit_threads
from study.search.settings import Sweep
from study.t2mrec.fusion import expand, fuse
from study.t2mrec.settings import Scoring
from study.t2mrec.structure import StructuralFeatures
from study.t2mrec.system import T2MRec

FUSION_WEIGHT = "scoring.semantic_weight"
PART = "test"  # whose single tasks and separation are written


def fit_key(config: DictConfig) -> str:
    """A hash of all that decides the embeddings: as for a run, but scoring decides none."""
    return fingerprint(with_values(config, {f"scoring.{name}": value for name, value in vars(Scoring()).items()}))


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


def fitted(config: DictConfig, data: Dataset, split: Split, *, seed: int, keep: bool) -> T2MRec:
    """The configured T2MRec, trained, or put together again from embeddings that an equal training left.

    Two workers that want the same training at once wait for one another. A killed training goes on from its checkpoint.

    `keep`: leave the embeddings (10 MB for Task2MCP) for the next one who asks.
    """
    system = build_system(config.system)
    assert isinstance(system, T2MRec)
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
        if keep:
            arrays = {"tasks": system.task_embeddings, "servers": system.server_embeddings}
            arrays = {name: np.ascontiguousarray(value) for name, value in arrays.items()}
            with replacing(saved) as temporary:
                save_file(arrays, temporary, metadata={"seconds": str(seconds)})
        shutil.rmtree(workdir)
    return system


def _task_values(system: T2MRec, data: Dataset, split: Split, part: str, seed: int) -> pd.DataFrame:
    """The paper's eight measures, one row per task of the part."""
    tasks = split.tasks(part)
    ranked, _ = rank_tasks(system, split, tasks, part=part, k=KEPT, seed=seed, n_servers=data.n_servers)
    return per_task(ranked, split.part(part)[tasks], ks=CUTOFFS)[list(PAPER_METRICS)]


def measures(system: T2MRec, data: Dataset, split: Split, part: str, *, seed: int) -> dict[str, float]:
    """The paper's eight measures, means over the part's tasks: ``valid/ndcg@10`` and so on."""
    means = _task_values(system, data, split, part, seed).mean()
    return {f"{part}/{name}": float(means[name]) for name in PAPER_METRICS}


def measure_fusion_weights(
    system: T2MRec,
    data: Dataset,
    split: Split,
    weights: list[float],
    parts: list[str],
    *,
    done: Callable[[int], object] = lambda tasks: None,
) -> list[dict[str, Any]]:
    """Measure a trained system with every fusion weight. Scores are computed once per part.

    `done`: called with the number of tasks that were just ranked with every weight.
    Returns: one row per weight with `FUSION_WEIGHT` and the measures of every part (``valid/ndcg@10``).
    """
    rows: list[dict[str, Any]] = [{FUSION_WEIGHT: weight} for weight in weights]
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
        for number, row in enumerate(rows):
            means = per_task(ranked[number], split.part(part)[tasks], ks=CUTOFFS).mean()
            row |= {f"{part}/{name}": float(means[name]) for name in PAPER_METRICS}
    return rows


def write_details(sweep: Sweep, config: DictConfig, folder: Path, best: dict[str, Any]) -> None:
    """Write per_task.csv.xz and separation.csv of a grid or a sweep over scores, from the embeddings that were kept.

    per_task.csv.xz: the test tasks one by one, for the value that validation chose and for the paper's, which is what
    the tests of RQ3 compare. A training whose embeddings are gone is made again.

    `best`: the setting that validation chose.
    """
    limit_threads(config.profile.threads)
    data, split = load_inputs(config.dataset.name, config.protocol.name)
    name, domain = next(iter(sweep.space.items()))
    paper = {name: sweep.paper_best}
    known = len(sweep.space) == 1 and sweep.paper_best in domain["choices"]
    tables = []
    for values in [best, paper] if known and paper != best else [best]:
        for seed in sweep.seeds:
            system = fitted(with_values(config, values), data, split, seed=seed, keep=sweep.keep_fits)
            ids, found = data.tasks["id"].to_numpy()[split.tasks(PART)], _task_values(system, data, split, PART, seed)
            rows = per_task_table.table(ids, seed, found)
            tables.append(rows.assign(**values)[[*values, *rows]])
    write_csv(folder / "per_task.csv.xz", pd.concat(tables))
    write_csv(folder / "separation.csv", separation(sweep, config, data, split))


def separation(sweep: Sweep, config: DictConfig, data: Dataset, split: Split) -> pd.DataFrame:
    """How far the servers that a test task lists stand out from the others, one row per training of the sweep.

    Returns: the columns of the setting, seed, part, auc, recall
        (`study.evaluation.separation.separation`). The fusion weight decides no embedding: its sweep has one row per
        seed, with the weight of the configuration.
    """
    depth = embedding_settings()["depth"]
    points = sweep.points()
    if sweep.kind == "scores":
        own = {name: OmegaConf.select(config, f"system.model.{name}") for name in sweep.space}
        points = [own | {"seed": seed} for seed in sweep.seeds]
    rows = []
    for point in tqdm(points, desc="separation", unit="training", disable=not sys.stderr.isatty()):
        values = {name: point[name] for name in sweep.space}
        system = fitted(with_values(config, values), data, split, seed=point["seed"], keep=sweep.keep_fits)
        found = mean_separation(system.task_embeddings, system.server_embeddings, split, PART, depth=depth)
        rows.append(point | {"part": PART, "auc": found["auc"], "recall": found["recall"]})
    return pd.DataFrame(rows)
