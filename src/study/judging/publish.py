"""The collection in the forms that other programs read: qrels as TREC writes them, and a Croissant description."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from study.files import sha256, write_json, write_text
from study.judging import store

LICENCE = "https://creativecommons.org/licenses/by/4.0/"
SOURCE = "https://github.com/ssea-lab/Task2MCP"
# What the columns of judgements.csv mean: Croissant's data type, description.
FIELDS = {
    "task_id": ("sc:Integer", "Id of the task in Task2MCP's task_raw.json."),
    "server_id": ("sc:Integer", "Id of the MCP server in Task2MCP's mcp_raw.json."),
    "grade_1": ("sc:Integer", "First blind reading: 2 core capability, 1 supporting capability, 0 no use."),
    "grade_2": ("sc:Integer", "Second blind reading."),
    "grade_3": ("sc:Integer", "Third reading; empty unless the first two lie on both sides of the 0/1 border."),
    "final": ("sc:Integer", "The grade that counts: equal grades, the lower of 1 and 2, or the median of three."),
    "round": ("sc:Integer", "Round of judging, from 1."),
    "guideline_version": ("sc:Text", "Version of docs/judging-guidelines.md."),
    "judge": ("sc:Text", "Which language model judged."),
}
# The JSON-LD context that Croissant 1.0 prescribes.
CONTEXT: dict[str, Any] = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "citeAs": "cr:citeAs",
    "column": "cr:column",
    "conformsTo": "dct:conformsTo",
    "cr": "http://mlcommons.org/croissant/",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "dct": "http://purl.org/dc/terms/",
    "equivalentProperty": "cr:equivalentProperty",
    "samplingRate": "cr:samplingRate",
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "extract": "cr:extract",
    "field": "cr:field",
    "fileProperty": "cr:fileProperty",
    "fileObject": "cr:fileObject",
    "fileSet": "cr:fileSet",
    "format": "cr:format",
    "includes": "cr:includes",
    "isLiveDataset": "cr:isLiveDataset",
    "jsonPath": "cr:jsonPath",
    "key": "cr:key",
    "md5": "cr:md5",
    "parentField": "cr:parentField",
    "path": "cr:path",
    "recordSet": "cr:recordSet",
    "references": "cr:references",
    "regex": "cr:regex",
    "repeated": "cr:repeated",
    "replace": "cr:replace",
    "sc": "https://schema.org/",
    "separator": "cr:separator",
    "source": "cr:source",
    "subField": "cr:subField",
    "transform": "cr:transform",
}


def qrels(dataset: str) -> dict[str, str]:
    """The final grades as TREC qrels (``task_id 0 server_id grade``), one file for each part and one for all."""
    found = {}
    rows = store.final(dataset).merge(store.read(dataset, "topics"), on="task_id").sort_values(store.PAIR)
    for part in ("all", *sorted(rows["part"].unique())):
        chosen = rows if part == "all" else rows[rows["part"] == part]
        lines = [
            f"{task} 0 {server} {grade}"
            for task, server, grade in zip(chosen["task_id"], chosen["server_id"], chosen["final"], strict=True)
        ]
        found[f"qrels/{part}.txt"] = "\n".join(lines) + "\n"
    return found


def description(dataset: str, version: str) -> dict[str, Any]:
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
    title = "Task2MCP-Judged"
    return {
        "@context": CONTEXT,
        "@type": "sc:Dataset",
        "name": title,
        "conformsTo": "http://mlcommons.org/croissant/1.0",
        "description": "Graded judgements of usefulness: which MCP servers would help a developer with a task. Topics "
        "and pools are drawn from Task2MCP; ids and grades only, no text of that data set.",
        "license": LICENCE,
        "isBasedOn": SOURCE,
        "version": version,
        "isLiveDataset": False,
        "citeAs": "Task2MCP-Judged, the judged collection of the T2MRec reproduction study. The tasks and servers are "
        "those of Task2MCP (He et al. 2026).",
        "rai:dataCollection": "Two independent blind readings by a language model, a third one where they lie on both "
        "sides of the border between 0 and 1 (docs/judging-guidelines.md).",
        "distribution": [
            {
                "@type": "cr:FileObject",
                "@id": path.name,
                "name": path.name,
                "contentUrl": path.name,
                "encodingFormat": "text/csv",
                "sha256": sha256(path),
            }
        ],
        "recordSet": [
            {
                "@type": "cr:RecordSet",
                "@id": "judgements",
                "name": "judgements",
                "description": "One row per judged pair of task and server.",
                "key": [{"@id": "judgements/task_id"}, {"@id": "judgements/server_id"}],
                "field": fields,
            }
        ],
    }


def forms(dataset: str) -> dict[str, Any]:
    """All released forms by file name: texts, and ``croissant.json`` as an object; its version counts the rounds."""
    rounds = int(store.final(dataset)["round"].max())
    return {**qrels(dataset), "croissant.json": description(dataset, f"1.{rounds - 1}.0")}


def write(dataset: str) -> list[Path]:
    """Write all released forms; returns the files."""
    written = []
    for name, content in forms(dataset).items():
        written.append(store.folder(dataset) / name)
        (write_text if isinstance(content, str) else write_json)(written[-1], content)
    return written
