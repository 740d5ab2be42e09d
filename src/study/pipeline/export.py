"""Stage `export`: train T2MRec once, with the first seed, and save it for `study recommend`."""

from __future__ import annotations

from pathlib import Path

from omegaconf import DictConfig

from study import paths
from study.config import build_system, plain
from study.errors import StudyError
from study.evaluation.records import record
from study.files import write_json
from study.pipeline.run import fingerprint, limit_threads, load_inputs
from study.recommend import Recommender, folder_of
from study.t2mrec.system import T2MRec


def export(config: DictConfig) -> Path:
    """Train the configured T2MRec and save it; returns the model's folder.

    The model learns from the training part of the configured protocol alone (``cold`` unless another one is asked for),
    as the reported ones do, so that nobody tries it on a test task it has seen. Its record names the protocol.

    Raises:
        StudyError: a system that cannot be saved, or a protocol that does not apply to it.
    """
    if config.protocol.name not in config.system.protocols:
        raise StudyError(f"{config.system.name} is not applicable under {config.protocol.name!r}",
                         fix=f"one of: {', '.join(config.system.protocols)}")  # fmt: skip
    system = build_system(config.system)
    if not isinstance(system, T2MRec) or not system.towers.enabled or system.lexical.kind != "tfidf":
        raise StudyError(
            f"only T2MRec with towers over TF-IDF can be saved, not {config.system.name}", fix="system=t2mrec"
        )
    limit_threads(config.profile.workers * config.profile.threads)
    data, split = load_inputs(config)
    dataset, seed = config.dataset.name, int(config.system.seeds[0])
    workdir = paths.cache() / "export" / dataset / f"{fingerprint(config)}-{seed}"
    workdir.mkdir(parents=True, exist_ok=True)
    system.fit(data, split, seed=seed, workdir=workdir)
    folder = folder_of(dataset)
    Recommender.of(system, seed=seed).save(folder)
    write_json(
        folder / "record.json", record(dataset=dataset, protocol=config.protocol.name, seed=seed, config=plain(config))
    )
    return folder
