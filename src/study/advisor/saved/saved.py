"""Finding and loading the saved model that answers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from study.advisor.saved.contract import SavedModel
from study.base import paths
from study.base.errors import StudyError, UnavailableError
from study.base.registry import NAME, choices, require_choice, suggestion, system_settings
from study.base.settings import read_yaml

DEFAULT = "field_dense"  # the system to save; the one before it needs weights that no data set brings
USEFUL = ("field_dense_mpnet", DEFAULT)  # systems chosen for usefulness, the best first
PREFERRED = (*USEFUL, "t2mrec")  # systems: the first that was saved answers
DATASET = "task2mcp"  # answers unless another one is named: servers of generated data do not exist
LONGEST = 100  # letters of a name
BRING = f"study fetch dataset={DATASET} && study prepare dataset={DATASET}"
READER = "t2mrec"  # the system that reads every attribute of a request
# The classes of `field_dense` and its variants.
FIELD_DENSE = ("study.advisor.retrieval.field_dense.FieldDense", "study.advisor.retrieval.two_encoders.TwoEncoders")
# Of the classes that re-order what T2MRec finds, or read its pools from a file; a saved model could not.
RERANKED = "study.reranking."


def folder_of(dataset: str, system: str) -> Path:
    """Where the saved model of a system lives."""
    return paths.models(dataset) / system


def exists(dataset: str, system: str) -> bool:
    """Whether a model was saved."""
    return (folder_of(dataset, system) / "model.json").exists()


def choose(dataset: str | None, system: str | None) -> tuple[str, str]:
    """The data set and system whose saved model answers; what is not asked for is the first that was saved.

    A system is one of ``conf/system``, or the name that a variant was saved under.

    Raises StudyError: no such model was saved, and none can be: there is no data set or system of that name, the data
        set has no labels, or a system of that kind cannot be saved.
    """
    if dataset is not None:
        require_choice("dataset", dataset)
    named, systems = dataset or DATASET, (system,) if system else PREFERRED
    if system is None or (NAME.fullmatch(system) and len(system) < LONGEST):
        for other in systems:
            if exists(named, other):
                return named, other
    if dataset is not None:
        files = {name: paths.conf() / "dataset" / f"{name}.yaml" for name in choices("dataset")}
        # The others, without labels, serve `study tools` alone.
        labelled = [name for name, file in files.items() if read_yaml(file).get("labels")]
        if dataset not in labelled:
            problem = f"no system can be saved for {dataset}, which has no label file"
            raise StudyError(problem, file=files[dataset], column="labels", fix=f"one of: {', '.join(labelled)}")
    if system is not None and system not in (names := savable()):
        reason = f"{system} cannot be saved" if system in choices("system") else f"unknown system {system!r:.80}"
        there = {path.parent.name for path in paths.models(named).glob("*/model.json")}
        raise StudyError(reason, file=paths.conf() / "system", fix=suggestion(system, {*names} | there))
    return named, system or DEFAULT


def savable() -> list[str]:
    """The systems that `study export` saves; a damaged file names none."""
    systems = []
    for name in choices("system"):
        with suppress(Exception):
            if is_savable(system_settings(name)["model"]):
                systems.append(name)
    return systems


def is_savable(model: Mapping[str, Any]) -> bool:
    """Whether settings are those of T2MRec over TF-IDF without a re-ranker, or of a class of `field_dense`."""
    towers, lexical, kind = model.get("towers") or {}, model.get("lexical") or {}, str(model.get("_target_"))
    two_tower = bool(towers.get("enabled")) and lexical.get("kind") == "tfidf"
    return kind in FIELD_DENSE or (two_tower and not kind.startswith(RERANKED))


def how_to_save(dataset: str, system: str) -> str:
    """The command that saves a system, after those that make what it reads and what is not there yet."""
    prepared = all((paths.prepared(dataset) / f"{part}.parquet").exists() for part in ("servers", "tasks", "labels"))
    split = any(paths.splits(dataset).glob("*.parquet"))
    stages = ["fetch", "prepare", "split"] if not prepared else [] if split else ["split"]
    commands = (f"study {stage} dataset={dataset}" for stage in stages)
    return " && ".join([*commands, f"study export dataset={dataset} system={system}"])


def load_saved_model(dataset: str, system: str) -> SavedModel:
    """The saved model of a system; StudyError where there is none, or a damaged one."""
    folder = folder_of(dataset, system)
    fix = f"run: {how_to_save(dataset, system)}"
    if not exists(dataset, system):
        raise UnavailableError("no saved model here", file=folder, fix=fix)
    try:
        kind = json.loads((folder / "model.json").read_text(encoding="utf-8")).get("kind")
    except (OSError, ValueError, AttributeError) as error:
        raise StudyError(f"the saved model does not load: {error}", file=folder, fix=fix) from error
    # Each kind loads what it needs alone: the vectoriser of one takes longer to import than the other to answer.
    if kind is None:
        from study.advisor.saved.t2mrec import Recommender

        return Recommender.load(folder)
    from study.advisor.saved.field_dense import SavedFieldDense

    return SavedFieldDense.load(folder, reader=READER if exists(dataset, READER) else "")
