"""The Croissant 1.0 description of the judged collection, for machines.

Packed files are listed without their columns, since Croissant's readers do not unpack them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from study.base import paths
from study.base.files import sha256
from study.base.settings import read_keys
from study.judging import store
from study.judging.collection import Collection

NAME = "croissant.json"
ENCODINGS = {".csv": "text/csv", ".xz": "application/x-xz", ".txt": "text/plain"}


def judged(collection: Collection) -> dict[str, Any]:
    """The description, as a JSON object, of every file of ``conf/judging/croissant.yaml`` that is there."""
    import mlcroissant as mlc  # takes seconds

    root, context, objects, record_sets = store.folder(collection.dataset), mlc.Context(), [], []
    stated = read_keys(paths.conf() / "judging" / "croissant.yaml", ["facts", "files"], fix="restore the file from git")
    for name, file in stated["files"].items():
        if not (root / name).exists():
            continue
        about = {"id": name, "name": name, "description": file["description"], "content_url": name}
        about |= {"encoding_formats": [ENCODINGS[Path(name).suffix]], "sha256": sha256(root / name)}
        objects.append(mlc.FileObject(ctx=context, **about))
        if "columns" not in file:
            continue
        table, fields = name.removesuffix(".csv"), []
        for column, (kind, meaning) in file["columns"].items():
            source = mlc.Source(ctx=context, file_object=name, extract=mlc.Extract(ctx=context, column=column))
            about = {"id": f"{table}/{column}", "name": column, "description": meaning, "source": source}
            types = [kind.replace("sc:", "https://schema.org/")]
            fields.append(mlc.Field(ctx=context, data_types=types, **about))
        about = {"id": table, "name": table, "description": file["description"], "fields": fields}
        key = [f"{table}/{column}" for column in file["key"]]
        record_sets.append(mlc.RecordSet(ctx=context, key=key, **about))
    facts = stated["facts"] | {"version": collection.version}
    described: dict[str, Any] = mlc.Metadata(
        ctx=context, distribution=objects, record_sets=record_sets, **facts
    ).to_json()
    return described
