"""Where everything lives. Every path of the project is made here."""

from __future__ import annotations

import functools
import os
from pathlib import Path

from platformdirs import user_data_path

from study.base.stand_in import StandIn

# The variable that names a folder with copies of public files, for machines without a network.
MIRROR = "T2M_MIRROR"
CACHE = StandIn[Path]()  # for `cache`


def root() -> Path:
    """The project folder: ``T2M_ROOT`` if set, else the folder that holds ``conf/`` above this file, else, where the
    package was installed without it, the user's folder for data."""
    if chosen := os.environ.get("T2M_ROOT"):
        # Unlike `Path.resolve`, `realpath` leaves a link to itself as it is; what is read there says what is wrong.
        return Path(os.path.realpath(chosen))
    return _home()


@functools.cache
def _home() -> Path:
    checkout = Path(__file__).resolve().parents[3]
    return checkout if (checkout / "conf").is_dir() else user_data_path("t2mrec-study", appauthor=False)


def conf() -> Path:
    """The folder of settings: that of the project, or the one that was installed with the package."""
    in_project, packaged = root() / "conf", Path(__file__).parents[1] / "conf"
    return packaged if packaged.is_dir() and not in_project.is_dir() else in_project


def raw(dataset: str) -> Path:
    """Files as their source publishes them (never committed)."""
    return root() / "data" / "raw" / dataset


def prepared(dataset: str) -> Path:
    """Checked and cleaned tables: servers, tasks, labels (never committed)."""
    return root() / "data" / "prepared" / dataset


def splits(dataset: str) -> Path:
    """One file per protocol (never committed, redone from the prepared data)."""
    return root() / "data" / "splits" / dataset


def results(dataset: str) -> Path:
    """Everything that the study reports about one dataset."""
    return root() / "results" / dataset


def tuned(dataset: str, system: str) -> Path:
    """The search that chose a tuned system's values: trials.csv, best.yaml, record.json."""
    return results(dataset) / "tuned" / system


def tables(dataset: str) -> Path:
    """The tables of one dataset, CSV with Markdown and LaTeX beside it."""
    return results(dataset) / "tables"


def figures(dataset: str) -> Path:
    """The figures of one data set."""
    return root() / "figures" / dataset


def models(dataset: str) -> Path:
    """Saved models: safetensors and JSON (never committed)."""
    return root() / "models" / dataset


def cache() -> Path:
    """Disposable intermediate files: text embeddings, checkpoints of running trainings."""
    return CACHE() or root() / ".cache"
