"""Stage `export`: fit a system once, with the first seed, and save it for `study recommend`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from study import paths
from study.config.compose import build_system, plain
from study.data import dataset as datasets
from study.errors import StudyError
from study.evaluation.records import record
from study.files import write_json
from study.recommend.field_dense import SavedFieldDense
from study.recommend.saved import folder_of, is_savable
from study.recommend.t2mrec import Recommender
from study.runner.fingerprint import fingerprint
from study.runner.inputs import load_inputs
from study.runner.processes import limit_threads
from study.t2mrec.system import T2MRec
from study.usefulness.field_dense import FieldDense


def export(config: DictConfig) -> Path:
    """Fit the configured system and save it under its name; returns the model's folder.

    T2MRec learns from the training part of the configured protocol alone (``cold`` unless another one is asked for), as
    the reported ones do, so that nobody tries it on a test task it has seen. Its record names the protocol. `best` and
    its variants learn from no task; they are saved with the vectors of the catalogue.

    Raises:
        StudyError: a system that cannot be saved, or a protocol that does not apply to it.
    """
    if config.protocol.name not in config.system.protocols:
        fix = f"one of: {', '.join(config.system.protocols)}"
        raise StudyError(f"{config.system.name} is not applicable under {config.protocol.name!r}", fix=fix)
    system = build_system(config.system)
    folder = folder_of(config.dataset.name, config.system.name)
    limit_threads(config.profile.workers * config.profile.threads)
    if not is_savable(config.system.model):
        raise StudyError(
            "only T2MRec with towers over TF-IDF and no re-ranker, best and its variants can be saved, "
            f"not {config.system.name}",
            fix="system=t2mrec or system=best",
        )
    if isinstance(system, FieldDense):
        _save_field_dense(config, system, folder)
    else:
        _save_t2mrec(config, system, folder)
    return folder


def _save_field_dense(config: DictConfig, system: FieldDense, folder: Path) -> None:
    data, seed = datasets.load(config.dataset.name), int(config.system.seeds[0])
    system.index(data.servers)
    SavedFieldDense(config.system.name, system, data.servers, seed=seed).save(folder)
    _save_record(config, folder, seed=seed)


def _save_t2mrec(config: DictConfig, system: T2MRec, folder: Path) -> None:
    data, split = load_inputs(config.dataset.name, config.protocol.name)
    seed = int(config.system.seeds[0])
    workdir = paths.cache() / "export" / config.dataset.name / f"{fingerprint(config)}-{seed}"
    workdir.mkdir(parents=True, exist_ok=True)
    system.fit(data, split, seed=seed, workdir=workdir)
    Recommender.of(system, seed=seed).save(folder)
    _save_record(config, folder, seed=seed, protocol=config.protocol.name)


def _save_record(config: DictConfig, folder: Path, **facts: Any) -> None:
    write_json(folder / "record.json", record(dataset=config.dataset.name, config=plain(config), **facts))
