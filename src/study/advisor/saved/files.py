"""A saved model's files, and the manifest of their hashes that ties them together."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from study.base.errors import StudyError, require_file
from study.base.files import replacing, sha256, write_json

MANIFEST = "files.json"
ARRAYS, CATALOGUE, ABOUT = "model.safetensors", "catalogue.json", "model.json"
# Columns of a catalogue that hold whole numbers; the others hold texts.
NUMBERS = ("id", "stars_count")


class Saved(NamedTuple):
    """What the files of a model hold: what it is, its arrays, the servers of its catalogue, and one value more."""

    about: dict[str, Any]
    arrays: dict[str, np.ndarray]
    servers: pd.DataFrame
    more: Any


def write(folder: Path, model: Saved, more: str) -> None:
    """Write a model into `folder`, its manifest last; `more`: the name of its fourth file."""
    with replacing(folder / ARRAYS) as temporary:
        save_file({name: np.ascontiguousarray(array) for name, array in model.arrays.items()}, temporary)
    write_json(folder / more, model.more)
    write_json(folder / CATALOGUE, model.servers.to_dict("list"))
    write_json(folder / ABOUT, model.about)
    write_manifest(folder, more)


def write_manifest(folder: Path, more: str) -> None:
    """Write the hashes of the files that `write` names."""
    write_json(folder / MANIFEST, {name: sha256(folder / name) for name in (ARRAYS, more, CATALOGUE, ABOUT)})


@contextmanager
def reading(folder: Path, more: str, columns: Sequence[str], form: Mapping[str, Any]) -> Iterator[Saved]:
    """Yield what `write` wrote; what does not fit together, within the block too, is a StudyError with the command that
    saves the model.

    `columns`: of its servers. `form`: what a model that this version reads says of itself.
    """
    fix = f"run: study export dataset={folder.parent.name} system={folder.name}"
    require_file(folder / ABOUT, fix, "no saved model here")
    require_file(folder / MANIFEST, fix, "the saved model does not load: it has no manifest, as of an earlier version")
    try:
        manifest = _json(folder / MANIFEST)
        for name in (ARRAYS, more, CATALOGUE, ABOUT):
            if sha256(folder / name) != manifest[name]:
                raise ValueError(f"{name} is not the file that was saved with the others")
        about = _json(folder / ABOUT)
        if (stated := {name: about.get(name) for name in form}) != form:
            raise ValueError(f"it is {stated}, this version reads {dict(form)}")
        servers = _servers(_json(folder / CATALOGUE), columns)
        yield Saved(about, load_file(folder / ARRAYS), servers, _json(folder / more))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError) as error:
        raise StudyError(f"the saved model does not load: {error}", file=folder, fix=fix) from error


def _json(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))


def _servers(catalogue: Mapping[str, Sequence[Any]], columns: Sequence[str]) -> pd.DataFrame:
    """The servers of a catalogue; ValueError where a value is of another type than its column, or a column is short."""
    for name in columns:
        kind = int if name in NUMBERS else str
        for row, value in enumerate(catalogue[name]):
            if type(value) is not kind:
                raise ValueError(f"{CATALOGUE}: {name} of row {row} is {value!r:.80}, not {kind.__name__}")
    return pd.DataFrame({name: catalogue[name] for name in columns})
