"""Writing what is computed from the collection, and checking that the committed files can be computed again.

Beside the tables the collection is released as TREC qrels and with a Croissant 1.0 description.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from study.files import sha256, write_csv, write_json, write_text
from study.judging import agreement, evaluate, language_grades, readings, store, threats
from study.judging.annotation import final_grade

LICENCE = "https://creativecommons.org/licenses/by/4.0/"
SOURCE = "https://github.com/ssea-lab/Task2MCP"
# What the columns of judgements.csv mean: Croissant's data type, description.
FIELDS = {
    "task_id": ("sc:Integer", "Id of the task in Task2MCP's task_raw.json."),
    "server_id": ("sc:Integer", "Id of the MCP server in Task2MCP's mcp_raw.json."),
    "grade_1": ("sc:Integer", "First blind annotation pass: 2 core capability, 1 supporting capability, 0 no use."),
    "grade_2": ("sc:Integer", "Second blind annotation pass."),
    "grade_3": ("sc:Integer", "Third annotation pass; empty unless the first two lie on both sides of the 0/1 border."),
    "final": ("sc:Integer", "The grade that counts: equal grades, the lower of 1 and 2, or the median of three."),
    "round": ("sc:Integer", "Round of judging, from 1."),
    "guideline_version": ("sc:Text", "Version of docs/judging-guidelines.md."),
    "judge": ("sc:Text", "Which language model judged."),
}
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
    """Every table that is computed from topics, judgements, provenance and runs, by file name in the collection."""
    found = agreement.agreement_tables(dataset) | evaluate.score_tables(dataset) | evaluate.label_tables(dataset)
    found |= language_grades.language_tables(dataset, evaluate.all_runs(dataset)) | readings.reading_tables(dataset)
    return found | threats.threat_tables(dataset, found.get("tables/reading_scores.csv"))


def qrels(dataset: str) -> dict[str, str]:
    """The final grades as TREC qrels (``task_id 0 server_id grade``), one file for each part and one for all."""
    found = {}
    rows = store.final(dataset).merge(store.read_table(dataset, "topics"), on="task_id").sort_values(store.PAIR)
    for part in ("all", *sorted(rows["part"].unique())):
        chosen = rows if part == "all" else rows[rows["part"] == part]
        columns = chosen.assign(run=0)[["task_id", "run", "server_id", "final"]]
        found[f"qrels/{part}.txt"] = columns.to_csv(sep=" ", header=False, index=False, lineterminator="\n")
    return found


def croissant(dataset: str, version: str) -> dict[str, Any]:
    """The Croissant 1.0 description of ``judgements.csv``."""
    path = store.file(dataset, "judgements")
    fields = [
        {
            "@type": "cr:Field",
            "@id": f"judgements/{name}",
            "name": name,
            "description": text,
            "dataType": kind,
            "source": {"fileObject": {"@id": path.name}, "extract": {"column": name}},
        }
        for name, (kind, text) in FIELDS.items()
    ]
    content = {
        "@type": "cr:FileObject",
        "@id": path.name,
        "name": path.name,
        "contentUrl": path.name,
        "encodingFormat": "text/csv",
        "sha256": sha256(path),
    }
    rows = {
        "@type": "cr:RecordSet",
        "@id": "judgements",
        "name": "judgements",
        "description": "One row per judged pair of task and server.",
        "key": [{"@id": "judgements/task_id"}, {"@id": "judgements/server_id"}],
        "field": fields,
    }
    return {
        "@context": CONTEXT,
        "@type": "sc:Dataset",
        "name": "Task2MCP-Judged",
        "conformsTo": "http://mlcommons.org/croissant/1.0",
        "description": "Graded judgements of usefulness: which MCP servers would help a developer with a task. Topics "
        "and pools are drawn from Task2MCP; ids and grades only, no text of that data set.",
        "license": LICENCE,
        "isBasedOn": SOURCE,
        "version": version,
        "isLiveDataset": False,
        "citeAs": "Task2MCP-Judged, the judged collection of the T2MRec reproduction study. The tasks and servers are "
        "those of Task2MCP (He et al. 2026).",
        "rai:dataCollection": "Two independent blind annotation passes by a language model, a third one where they "
        "lie on both sides of the border between 0 and 1 (docs/judging-guidelines.md).",
        "distribution": [content],
        "recordSet": [rows],
    }


def released_forms(dataset: str) -> dict[str, Any]:
    """Qrels as text and ``croissant.json`` as an object, by file name; the version counts the rounds."""
    rounds = int(store.final(dataset)["round"].max())
    return {**qrels(dataset), "croissant.json": croissant(dataset, f"1.{rounds - 1}.0")}


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
    write(store.folder(dataset), tables | released_forms(dataset))
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
    verdict: OK, FAIL (another content) or MISSING (computed, but not committed)."""
    verdicts = check_sources(dataset) | compare(dataset, released_forms(dataset) | all_tables(dataset))
    return pd.DataFrame(list(verdicts.items()), columns=["file", "verdict"])
