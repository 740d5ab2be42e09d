"""Croissant 1.0 descriptions, for machines: of the judged collection, and of a data set's result tables.

Packed files are listed without their columns, since Croissant's readers do not unpack them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

import study
from study.base import paths
from study.base.errors import StudyError
from study.base.files import read_csv, sha256, write_json
from study.base.settings import read_keys
from study.judging import store
from study.judging.collection import Collection

NAME = "croissant.json"
ENCODINGS = {".csv": "text/csv", ".parquet": "application/x-parquet", ".xz": "application/x-xz", ".txt": "text/plain"}
SCHEMA = "https://schema.org/"
KINDS = {"b": "sc:Boolean", "i": "sc:Integer", "u": "sc:Integer", "f": "sc:Float"}  # kind of a dtype -> data type


def describe(root: Path, files: Mapping[str, Mapping[str, Any]], facts: Mapping[str, Any]) -> dict[str, Any]:
    """The description of files below a folder, as a JSON object.

    `files`: path below `root` -> description and, unless it is packed, columns (name -> data type and meaning) and
        perhaps key and table (the name of its record set).
    `facts`: arguments of `mlcroissant.Metadata`.
    """
    import mlcroissant as mlc  # takes seconds

    context, objects, record_sets = mlc.Context(), [], []
    for name, file in files.items():
        about = {"id": name, "name": name, "description": file["description"], "content_url": name}
        about |= {"encoding_formats": [ENCODINGS[Path(name).suffix]], "sha256": sha256(root / name)}
        objects.append(mlc.FileObject(ctx=context, **about))
        if "columns" not in file:
            continue
        table = file.get("table", name.removesuffix(".csv"))
        fields = []
        for column, (kind, meaning) in file["columns"].items():
            source = mlc.Source(ctx=context, file_object=name, extract=mlc.Extract(ctx=context, column=column))
            field = f"{table}/{column}".replace(" ", "_")  # readers refuse spaces
            about = {"id": field, "name": column, "description": meaning, "data_types": [kind.replace("sc:", SCHEMA)]}
            fields.append(mlc.Field(ctx=context, **about, source=source))
        about = {"id": table, "name": table, "description": file["description"], "fields": fields}
        key = [f"{table}/{column}" for column in file.get("key", ())]
        record_sets.append(mlc.RecordSet(ctx=context, **about, key=key or None))
    described = mlc.Metadata(ctx=context, distribution=objects, record_sets=record_sets, **facts)
    json: dict[str, Any] = described.to_json()
    return json


def judged(collection: Collection) -> dict[str, Any]:
    """The description of every file of ``conf/judging/croissant.yaml`` that is there."""
    root = store.folder(collection.dataset)
    stated = read_keys(paths.conf() / "judging" / "croissant.yaml", ["facts", "files"], fix="restore the file from git")
    files = {name: file for name, file in stated["files"].items() if (root / name).exists()}
    return describe(root, files, stated["facts"] | {"version": collection.version})


def export_croissant(dataset: str, folder: Path) -> Path:
    """Write ``croissant.json`` for the tables below ``results/<dataset>``; its paths are relative to that folder.

    Columns have names, types and, where ``conf/analysis/croissant.yaml`` has one, a meaning. Raises StudyError: there
    is no table.
    """
    stated = read_keys(paths.conf() / "analysis" / "croissant.yaml", ["facts", "folders", "columns"])
    root, files = paths.results(dataset), {}
    for name, about in stated["folders"].items():
        for path in sorted(path for path in (root / name).rglob("*") if path.suffix in ENCODINGS):
            file = path.relative_to(root).as_posix()
            files[file] = {"description": about, "table": f"rows/{file}", **_columns(path, stated["columns"])}
    if not files:
        raise StudyError("there are no tables", file=root, fix=f"run: study report dataset={dataset}")
    facts = {"name": f"t2mrec-study-{dataset}", "description": f"Tables of the study's results on {dataset}."}
    facts |= {"version": study.__version__} | stated["facts"]
    write_json(folder / NAME, describe(root, files, facts), compact=True)
    return folder / NAME


def _columns(path: Path, meanings: Mapping[str, str]) -> dict[str, Any]:
    """The columns of a table that is not packed."""
    if path.suffix not in (".csv", ".parquet"):
        return {}
    table = read_csv(path, fix="take it from git") if path.suffix == ".csv" else pd.read_parquet(path)
    kinds = {str(column): KINDS.get(dtype.kind, "sc:Text") for column, dtype in table.dtypes.items()}
    return {"columns": {column: (kind, meanings.get(column)) for column, kind in kinds.items()}}
