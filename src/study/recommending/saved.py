"""Finding and loading the saved model that answers."""

from __future__ import annotations

import json
from pathlib import Path

from study import paths
from study.errors import StudyError
from study.recommending.contract import SavedModel
from study.schema import NAME, require_choice

PREFERRED = ("best", "t2mrec")  # systems, the one that answers unless another is asked for first
DATASETS = ("task2mcp", "synthetic")  # in the same way


def folder_of(dataset: str, system: str) -> Path:
    """Where the saved model of a system lives."""
    return paths.models(dataset) / system


def exists(dataset: str, system: str) -> bool:
    """Whether a model was saved."""
    return (folder_of(dataset, system) / "model.json").exists()


def choose(dataset: str | None, system: str | None) -> tuple[str, str]:
    """The data set and system whose saved model answers; what is not asked for is the first that was saved.

    Args:
        system: of ``conf/system``, or the name that a variant was saved under.

    Raises:
        StudyError: there is no data set of that name, or none of its systems can have that name.
    """
    if dataset is not None:
        require_choice("dataset", dataset)
    if system is not None and not NAME.fullmatch(system):
        raise StudyError(f"{system!r} is no name of a system", fix=f"one of: {', '.join(PREFERRED)}")
    datasets, systems = (dataset,) if dataset else DATASETS, (system,) if system else PREFERRED
    saved = ((one, other) for one in datasets for other in systems if exists(one, other))
    return next(saved, (datasets[-1], systems[0]))


def load(dataset: str, system: str) -> SavedModel:
    """The saved model of a system.

    Raises:
        StudyError: no model there, or a damaged one.
    """
    folder = folder_of(dataset, system)
    fix = f"run: study export dataset={dataset} system={system}"
    if not exists(dataset, system):
        raise StudyError("no saved model here", file=folder, fix=fix)
    try:
        kind = json.loads((folder / "model.json").read_text(encoding="utf-8")).get("kind")
    except (OSError, ValueError, AttributeError) as error:
        raise StudyError(f"the saved model does not load: {error}", file=folder, fix=fix) from error
    # Each kind loads what it needs alone: the vectoriser of one takes longer to import than the other to answer.
    if kind is None:
        from study.recommend import Recommender

        return Recommender.load(folder)
    from study.recommending.field_dense import SavedFieldDense

    return SavedFieldDense.load(folder)
