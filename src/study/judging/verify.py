"""Writing what is computed from the collection, and checking that the committed files can be computed again.

Beside the tables the collection is released as TREC qrels and with a Croissant 1.0 description.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from study.base.files import write_csv, write_json, write_text
from study.judging import agreement, croissant, evaluate, exchange, labels, readings, store, threats
from study.judging.collection import Collection
from study.judging.workflow import final_grades


def all_tables(collection: Collection) -> dict[str, pd.DataFrame]:
    """Every table that is computed from topics, judgements, provenance and runs, by name. Tables of scores say of which
    version of the collection they are."""
    runs = evaluate.all_runs(collection.dataset)
    tables = agreement.agreement_tables(collection) | evaluate.score_tables(collection, runs)
    scores = tables["scores"]
    tables |= labels.label_tables(collection, scores, runs) | readings.language_tables(collection, scores, runs)
    tables |= readings.reading_tables(collection)
    tables |= threats.threat_tables(collection, tables.get("reading_scores"))
    return {
        name: one.assign(collection=collection.version) if "scores" in name else one for name, one in tables.items()
    }


def named(tables: Mapping[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """Tables by their file names in the collection."""
    return {"per_task.csv.xz" if name == "per_task" else f"tables/{name}.csv": one for name, one in tables.items()}


def write(folder: Path, contents: Mapping[str, Any]) -> None:
    """Write tables, texts and JSON objects into a folder under their names."""
    for name, content in contents.items():
        if isinstance(content, pd.DataFrame):
            write_csv(folder / name, content)
        else:
            (write_text if isinstance(content, str) else write_json)(folder / name, content)


def write_all(dataset: str) -> dict[str, pd.DataFrame]:
    """Write every table and released form; returns the tables by name."""
    collection, folder = Collection.load(dataset), store.folder(dataset)
    tables = all_tables(collection)
    write(folder, named(tables) | exchange.qrels(collection))
    write(folder, {croissant.NAME: croissant.judged(collection)})  # last: it holds the hashes of the other files
    return tables


def check_sources(collection: Collection) -> dict[str, bool]:
    """By file: do the final grades follow the rule, and do pool, provenance and judgements hold the same pairs?"""
    judged, pool = collection.judgements, collection.table("pool")
    rounds = judged.merge(pool, on=store.PAIR, suffixes=("", "_pool"))
    return {
        "judgements.csv": judged["final"].equals(final_grades(judged)),
        "pool.csv.xz": len(rounds) == len(judged) and bool((rounds["round"] == rounds["round_pool"]).all()),
        "provenance.csv.xz": bool(store.among(collection.table("provenance"), pool, store.PAIR).all()),
    }


def verify(dataset: str) -> pd.DataFrame:
    """Compute everything again from the committed files and compare it with what is committed, byte by byte.

    Returns: columns file, verdict: OK, FAIL (another content) or MISSING (computed, but not committed). A collection
        without released labels has no tables of them: its grades alone are checked.
    """
    collection, committed = Collection.load(dataset), store.folder(dataset)
    verdicts = {name: "OK" if held else "FAIL" for name, held in check_sources(collection).items()}
    if store.LABELS in collection.runs:
        contents: dict[str, Any] = {**exchange.qrels(collection), croissant.NAME: croissant.judged(collection)}
        contents |= named(all_tables(collection))
        with tempfile.TemporaryDirectory() as folder:
            write(Path(folder), contents)
            for name in contents:
                path, again = committed / name, Path(folder) / name
                same = path.exists() and path.read_bytes() == again.read_bytes()
                verdicts[name] = "OK" if same else "FAIL" if path.exists() else "MISSING"
    return pd.DataFrame(list(verdicts.items()), columns=["file", "verdict"])
