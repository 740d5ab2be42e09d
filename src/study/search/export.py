"""Stage `export`: fit a system once, with the first seed, and save it for `study recommend`."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from study.advisor.retrieval.field_dense import FieldDense
from study.advisor.saved import saved
from study.advisor.saved.field_dense import SavedFieldDense
from study.advisor.saved.t2mrec import CARD, Recommender
from study.base import paths
from study.base.errors import StudyError
from study.base.files import write_json
from study.config.compose import build_system, plain
from study.data import dataset as datasets
from study.evaluation.records import read_record, record
from study.runner.identity import row_key, short_hash
from study.runner.inputs import load_inputs, require_applicable
from study.runner.processes import limit_threads
from study.t2mrec import lexical
from study.t2mrec.system import T2MRec


def export(config: DictConfig) -> Path:
    """Fit the configured system and save it under its name; returns the model's folder.

    T2MRec learns from the training part of the configured protocol alone (``cold`` unless another one is asked for), as
    the reported ones do, so that nobody tries it on a test task it has seen. Its record names the protocol.
    `field_dense` and its variants learn from no task; they are saved with the vectors of the catalogue. A saved model
    that today's settings, versions and data would give again stays.

    Raises StudyError: a system that cannot be saved, or a protocol that does not apply to it.
    """
    dataset, name, protocol = config.dataset.name, config.system.name, config.protocol.name
    require_applicable(config)
    system = build_system(config.system)
    folder, seed = saved.folder_of(dataset, name), int(config.system.seeds[0])
    # As a row's training: more threads wait for each other as soon as the machine does something else, too.
    limit_threads(config.profile.threads)
    if not saved.is_savable(config.system.model):
        problem = f"only T2MRec over TF-IDF without a re-ranker, field_dense and its variants can be saved, not {name}"
        raise StudyError(problem, fix="system=t2mrec or system=field_dense")
    key = model_key(config)
    with suppress(StudyError):  # none is there, or it is damaged
        saved.load_saved_model(dataset, name)
        if read_record(folder / "record.json").get("key") == key:
            return folder
    facts: dict[str, Any] = {"seed": seed, "key": key}
    if isinstance(system, FieldDense):
        data = datasets.load(dataset)
        system.index(data.servers)
        SavedFieldDense(name, system, data.servers, seed=seed).save(folder)
    else:
        data, split = load_inputs(dataset, protocol)
        facts["protocol"] = protocol
        workdir = paths.cache() / "export" / dataset / f"{row_key(config)}-{seed}"
        workdir.mkdir(parents=True, exist_ok=True)
        system.fit(data, split, seed=seed, workdir=workdir)
        recommender(system, seed=seed).save(folder)
    write_json(folder / "record.json", record(dataset=dataset, config=plain(config), **facts))
    return folder


def recommender(system: T2MRec, *, seed: int) -> Recommender:
    """The part of a fitted T2MRec (towers over TF-IDF) that answers requests."""
    assert system.module is not None
    tower, vectorizer = system.module.task_tower.weights(), lexical.to_json(system.vectorizer)
    servers, themes = system.data.servers[list(CARD)], tuple(sorted(set(system.data.tasks["theme"]) - {""}))
    return Recommender(tower, system.server_embeddings, vectorizer, servers, system.scoring, seed, themes)


def model_key(config: DictConfig) -> str:
    """A short hash of all that decides the saved model of a configured system: settings, versions, data and split."""
    return short_hash([row_key(config), int(config.system.seeds[0])])
