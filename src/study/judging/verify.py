"""Writing what is computed from the collection, and checking that the committed files can be computed again.

Beside the tables the collection is released as TREC qrels and with a Croissant 1.0 description.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from study.files import write_csv, write_json, write_text
from study.judging import agreement, croissant, evaluate, exchange, labels, language_grades, readings, store, threats
from study.judging.collection import Collection
from study.judging.passes import final_grade


def all_tables(collection: Collection) -> dict[str, pd.DataFrame]:
    """Every table that is computed from topics, judgements, provenance and runs, by file name in the collection. Tables
    of scores say of which version of the collection they are."""
    runs = evaluate.all_runs(collection.dataset)
    tables = agreement.agreement_tables(collection) | evaluate.score_tables(collection, runs)
    tables |= labels.label_tables(collection, runs) | language_grades.language_tables(collection, runs)
    tables |= readings.reading_tables(collection)
    tables |= threats.threat_tables(collection, tables.get("tables/reading_scores.csv"))
    version = exchange.version(collection)
    return {name: one.assign(collection=version) if "scores" in name else one for name, one in tables.items()}


def released_forms(collection: Collection) -> dict[str, Any]:
    """Qrels as text and ``croissant.json`` as an object, by file name."""
    return {**exchange.qrels(collection), croissant.NAME: croissant.judged(collection)}


def write(place: Path, contents: Mapping[str, Any]) -> None:
    """Write tables, texts and JSON objects into a folder under their names."""
    for name, content in contents.items():
        if isinstance(content, pd.DataFrame):
            write_csv(place / name, content)
        else:
            (write_text if isinstance(content, str) else write_json)(place / name, content)


def write_all(dataset: str) -> dict[str, pd.DataFrame]:
    """Write every table and released form; returns the tables by file name."""
    collection, folder = Collection.load(dataset), store.folder(dataset)
    tables = all_tables(collection)
    write(folder, tables | exchange.qrels(collection))
    write(folder, released_forms(collection))  # last: it holds the hashes of the other files
    return tables


def check_sources(collection: Collection) -> dict[str, str]:
    """Verdict by file: the final grades follow the rule; pool, provenance and judgements hold the same pairs."""
    judged, pool = collection.judgements, collection.table("pool")
    grades = judged[["grade_1", "grade_2", "grade_3"]].astype(object)
    again = [final_grade(one, two, None if pd.isna(three) else three) for one, two, three in grades.to_numpy()]
    rounds = judged.merge(pool, on=store.PAIR, suffixes=("", "_pool"))
    pooled = store.pairs(pool)
    holds = {
        "judgements.csv": list(judged["final"]) == again,
        "pool.csv.xz": pooled >= store.pairs(judged) and bool((rounds["round"] == rounds["round_pool"]).all()),
        "provenance.csv.xz": pooled >= store.pairs(collection.table("provenance")),
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
    collection = Collection.load(dataset)
    verdicts = check_sources(collection)
    if store.LABELS in collection.runs:
        verdicts |= compare(dataset, released_forms(collection) | all_tables(collection))
    return pd.DataFrame(list(verdicts.items()), columns=["file", "verdict"])
