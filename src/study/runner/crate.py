"""The study's runs as an RO-Crate 1.1 with the terms of Process Run Crate: what ran, on what, and what it gave."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from study import paths
from study.errors import StudyError
from study.evaluation.records import read_record
from study.files import write_json

NAME = "ro-crate-metadata.json"
PROFILE = "https://w3id.org/ro/wfrun/process/0.5"
SPECIFICATION = "https://w3id.org/ro/crate/1.1"
# A run's files below results/<dataset>, with their type and what they hold.
FILES = {
    "per_task/{}.csv.xz": ("application/x-xz", "metrics of every task and seed"),
    "top10/{}.parquet": ("application/vnd.apache.parquet", "servers named for every task and seed"),
    "records/{}.json": ("application/json", "settings, seeds, versions, commit, machine, seconds"),
}


def export_crate(dataset: str, folder: Path) -> Path:
    """Write ``ro-crate-metadata.json`` for the runs of a data set; its paths are relative to the project's folder.

    Every run is a CreateAction: its instrument is the system's yaml, its object the split, its results three files.
    Raises StudyError: there is no run.
    """
    records = sorted((paths.results(dataset) / "records").glob("*/*.json"))
    if not records:
        fix = f"run: study run dataset={dataset}"
        raise StudyError("there are no runs", file=paths.results(dataset) / "records", fix=fix)
    entities: dict[str, dict[str, Any]] = {}
    actions = [_action(path, entities) for path in records]
    parts = [reference(key) for key, entity in entities.items() if "File" in entity["@type"]]
    root = {
        "@id": "./",
        "@type": "Dataset",
        "name": "T2MRec, reproduced: runs",
        "description": f"Every run of {dataset}: settings, values of tasks, servers named, and how it was made.",
        "datePublished": "2026-11-26",
        "license": reference("https://spdx.org/licenses/MIT"),
        "conformsTo": reference(PROFILE),
        "citation": reference("https://arxiv.org/abs/2604.17234"),
        "hasPart": parts,
        "mentions": [reference(action["@id"]) for action in actions],
    }
    descriptor = {
        "@id": NAME,
        "@type": "CreativeWork",
        "conformsTo": reference(SPECIFICATION),
        "about": reference("./"),
    }
    others = [
        {"@id": PROFILE, "@type": "CreativeWork", "name": "Process Run Crate", "version": "0.5"},
        {"@id": "https://spdx.org/licenses/MIT", "@type": "CreativeWork", "name": "MIT License"},
        {"@id": "https://arxiv.org/abs/2604.17234", "@type": "ScholarlyArticle", "name": "He et al. 2026, T2MRec"},
    ]
    graph = [descriptor, root, *others, *entities.values(), *actions]
    write_json(folder / NAME, {"@context": f"{SPECIFICATION}/context", "@graph": graph}, compact=True)
    return folder / NAME


def reference(key: str) -> dict[str, str]:
    """A reference to an entity."""
    return {"@id": key}


def _action(path: Path, entities: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The action of one record; what it names is added to `entities`."""
    record = read_record(path)
    dataset, protocol, system = (str(record[key]) for key in ("dataset", "protocol", "system"))
    results = []
    for pattern, (kind, about) in FILES.items():
        key = f"results/{dataset}/{pattern.format(f'{protocol}/{system}')}"
        entities[key] = {"@id": key, "@type": "File", "name": about, "encodingFormat": kind}
        results.append(reference(key))
    split, instrument = f"#split-{dataset}-{protocol}", f"conf/system/{system}.yaml"
    entities[split] = {"@id": split, "@type": "Dataset", "name": f"split {protocol} of {dataset}, not included"}
    title = record["config"]["system"]["title"]
    # A row under another name has its settings in its record alone.
    if (paths.root() / instrument).exists():
        entities[instrument] = {"@id": instrument, "@type": ["File", "SoftwareApplication"], "name": title}
    else:
        instrument = f"#system-{system}"
        entities[instrument] = {"@id": instrument, "@type": "SoftwareApplication", "name": title}
    seconds = sum(seed["seconds_fit"] + seed["seconds_score"] for seed in record["seeds"])
    return {
        "@id": f"#run-{dataset}-{protocol}-{system}",
        "@type": "CreateAction",
        "name": f"study run dataset={dataset} protocol={protocol} system={system}",
        "instrument": reference(instrument),
        "object": [reference(split)],
        "result": results,
        "description": f"{len(record['seeds'])} seeds, {seconds:.0f} s, commit {record['git']['commit']}",
    }
