"""A data set's result tables described for machines: Croissant 1.0, made from the files and a list of meanings.

The judged collection has a description of its own (`study.judging.verify`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

import study
from study import paths
from study.config.reader import read_settings
from study.errors import StudyError
from study.files import read_csv, sha256, write_json
from study.judging.verify import CONTEXT

NAME = "croissant.json"
ENCODINGS = {".csv": "text/csv", ".parquet": "application/x-parquet", ".xz": "application/x-xz"}
KINDS = {"b": "sc:Boolean", "i": "sc:Integer", "u": "sc:Integer", "f": "sc:Float"}  # kind of a dtype -> data type


@dataclass(frozen=True)
class Told:
    """``conf/analysis/croissant.yaml``, where every key is explained."""

    facts: dict[str, Any]
    folders: dict[str, str]
    columns: dict[str, str]


def export_croissant(dataset: str, folder: Path) -> Path:
    """Write ``croissant.json`` for the tables below ``results/<dataset>``; its paths are relative to that folder.

    Every table is a file with its hash; the columns of plain CSV and of Parquet files have names, types and, where
    ``conf/analysis/croissant.yaml`` has one, a meaning. Packed files are listed without columns, since Croissant's
    readers do not unpack them. Raises StudyError: there is no table.
    """
    told = read_settings(Told, paths.conf() / "analysis" / "croissant.yaml")
    root = paths.results(dataset)
    found = {
        path: about
        for name, about in told.folders.items()
        for path in sorted((root / name).rglob("*"))
        if path.suffix in ENCODINGS
    }
    if not found:
        raise StudyError("there are no tables", file=root, fix=f"run: study report dataset={dataset}")
    described = {
        "@context": CONTEXT,
        "name": f"t2mrec-study-{dataset}",
        "description": f"Tables of the study's results on {dataset}.",
        "version": study.__version__,
        **told.facts,
        "distribution": [_file(path, root, about) for path, about in found.items()],
        "recordSet": [_rows(path, root, told.columns) for path in found if path.suffix != ".xz"],
    }
    write_json(folder / NAME, described, compact=True)
    return folder / NAME


def _file(path: Path, root: Path, about: str) -> dict[str, str]:
    """The entry of a file."""
    name = path.relative_to(root).as_posix()
    entry = {"@type": "cr:FileObject", "@id": name, "name": name, "description": about, "contentUrl": name}
    return entry | {"encodingFormat": ENCODINGS[path.suffix], "sha256": sha256(path)}


def _rows(path: Path, root: Path, meanings: dict[str, str]) -> dict[str, Any]:
    """The rows of a file: one field per column."""
    name = path.relative_to(root).as_posix()
    table = read_csv(path) if path.suffix == ".csv" else pd.read_parquet(path)
    place = f"rows/{name}"
    fields = [
        {
            "@type": "cr:Field",
            "@id": f"{place}/{column}".replace(" ", "_"),  # readers refuse spaces
            "name": column,
            **({"description": meanings[column]} if column in meanings else {}),
            "dataType": KINDS.get(table[column].dtype.kind, "sc:Text"),
            "source": {"fileObject": {"@id": name}, "extract": {"column": column}},
        }
        for column in map(str, table.columns)
    ]
    return {"@type": "cr:RecordSet", "@id": place, "name": place, "field": fields}
