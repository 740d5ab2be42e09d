"""Writing what is computed from the collection, and checking that the committed files can be computed again.

Beside the tables the collection is released as TREC qrels and with a Croissant 1.0 description.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from study import paths
from study.config.reader import read_keys
from study.files import sha256, write_csv, write_json, write_text
from study.judging import agreement, evaluate, exchange, language_grades, readings, store, threats
from study.judging.annotation import final_grade

ENCODINGS = {".csv": "text/csv", ".xz": "application/x-xz", ".txt": "text/plain"}
# The JSON-LD context that Croissant 1.0 prescribes: most names are those of its own vocabulary.
_OWN = (
    "citeAs column equivalentProperty extract field fileProperty fileObject fileSet format includes isLiveDataset "
    "jsonPath key md5 parentField path recordSet references regex repeated replace samplingRate separator source "
    "subField transform"
)
CONTEXT: dict[str, Any] = {name: f"cr:{name}" for name in _OWN.split()} | {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "conformsTo": "dct:conformsTo",
    "cr": "http://mlcommons.org/croissant/",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "dct": "http://purl.org/dc/terms/",
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "rai": "http://mlcommons.org/croissant/RAI/",
    "sc": "https://schema.org/",
}


def all_tables(dataset: str) -> dict[str, pd.DataFrame]:
    """Every table that is computed from topics, judgements, provenance and runs, by file name in the collection. Tables
    of scores say of which version of the collection they are."""
    found = agreement.agreement_tables(dataset) | evaluate.score_tables(dataset) | evaluate.label_tables(dataset)
    found |= language_grades.language_tables(dataset, evaluate.all_runs(dataset)) | readings.reading_tables(dataset)
    found |= threats.threat_tables(dataset, found.get("tables/reading_scores.csv"))
    known_as = exchange.version(dataset)
    return {name: one.assign(collection=known_as) if "scores" in name else one for name, one in found.items()}


def croissant(dataset: str) -> dict[str, Any]:
    """The Croissant description of every file of ``conf/judging/croissant.yaml`` that is there.

    Packed files are listed without their columns, since Croissant's readers do not unpack them.
    """
    path = paths.conf() / "judging" / "croissant.yaml"
    told = read_keys(path, ["facts", "files"], fix="restore the file from git")
    there = {name: file for name, file in told["files"].items() if (store.folder(dataset) / name).exists()}
    plain = {name: file for name, file in there.items() if "columns" in file}
    objects = [
        {
            "@type": "cr:FileObject",
            "@id": name,
            "name": name,
            "description": file["description"],
            "contentUrl": name,
            "encodingFormat": ENCODINGS[Path(name).suffix],
            "sha256": sha256(store.folder(dataset) / name),
        }
        for name, file in there.items()
    ]
    version = exchange.version(dataset)
    return {
        "@context": CONTEXT,
        **told["facts"],
        "version": version,
        "distribution": objects,
        "recordSet": [_record_set(name, file) for name, file in plain.items()],
    }


def _record_set(name: str, file: Mapping[str, Any]) -> dict[str, Any]:
    """The rows of one plain file."""
    table = Path(name).stem
    fields = [
        {
            "@type": "cr:Field",
            "@id": f"{table}/{column}",
            "name": column,
            "description": text,
            "dataType": kind,
            "source": {"fileObject": {"@id": name}, "extract": {"column": column}},
        }
        for column, (kind, text) in file["columns"].items()
    ]
    key = [{"@id": f"{table}/{column}"} for column in file["key"]]
    facts = {"@id": table, "name": table, "description": file["description"]}
    return {"@type": "cr:RecordSet", **facts, "key": key, "field": fields}


def released_forms(dataset: str) -> dict[str, Any]:
    """Qrels as text and ``croissant.json`` as an object, by file name."""
    return {**exchange.qrels(dataset), "croissant.json": croissant(dataset)}


def write(place: Path, contents: Mapping[str, Any]) -> None:
    """Write tables, texts and JSON objects into a folder under their names."""
    for name, content in contents.items():
        if isinstance(content, pd.DataFrame):
            write_csv(place / name, content)
        else:
            (write_text if isinstance(content, str) else write_json)(place / name, content)


def write_all(dataset: str) -> dict[str, pd.DataFrame]:
    """Write every table and released form; returns the tables by file name."""
    tables = all_tables(dataset)
    write(store.folder(dataset), tables | exchange.qrels(dataset))
    write(store.folder(dataset), released_forms(dataset))  # last: it holds the hashes of the other files
    return tables


def check_sources(dataset: str) -> dict[str, str]:
    """Verdict by file: the final grades follow the rule; pool, provenance and judgements hold the same pairs."""
    judged, pool, provenance = (store.read_table(dataset, name) for name in ("judgements", "pool", "provenance"))
    grades = judged[["grade_1", "grade_2", "grade_3"]].astype(object)
    again = [final_grade(one, two, None if pd.isna(three) else three) for one, two, three in grades.to_numpy()]
    rounds = judged.merge(pool, on=store.PAIR, suffixes=("", "_pool"))
    pooled = store.pairs(pool)
    holds = {
        "judgements.csv": list(judged["final"]) == again,
        "pool.csv.xz": pooled >= store.pairs(judged) and bool((rounds["round"] == rounds["round_pool"]).all()),
        "provenance.csv.xz": pooled >= store.pairs(provenance),
    }
    return {name: "OK" if held else "FAIL" for name, held in holds.items()}


def compare(dataset: str, contents: Mapping[str, Any]) -> dict[str, str]:
    """The verdict of each committed file against what was computed again, byte by byte."""
    verdicts = {}
    with tempfile.TemporaryDirectory() as place:
        write(Path(place), contents)
        for name in contents:
            again, kept = Path(place) / name, store.folder(dataset) / name
            same = kept.exists() and kept.read_bytes() == again.read_bytes()
            verdicts[name] = "OK" if same else "FAIL" if kept.exists() else "MISSING"
    return verdicts


def verify(dataset: str) -> pd.DataFrame:
    """Compute everything again from the committed files and compare it with what is committed. Returns: columns file,
    verdict: OK, FAIL (another content) or MISSING (computed, but not committed). A collection without released labels
    has no tables of them: its grades alone are checked."""
    verdicts = check_sources(dataset)
    if store.LABELS in store.read_runs(dataset):
        verdicts |= compare(dataset, released_forms(dataset) | all_tables(dataset))
    return pd.DataFrame(list(verdicts.items()), columns=["file", "verdict"])
