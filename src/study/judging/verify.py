"""Writing what is computed from the collection, and checking that the committed numbers can be computed again."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pandas as pd

from study.files import write_csv
from study.judging import agreement, evaluate, labels, publish, store
from study.judging.collecting import final_grade


def tables(dataset: str) -> dict[str, pd.DataFrame]:
    """Every table that is computed from topics, judgements, provenance and runs, by file name in the collection."""
    return agreement.tables(dataset) | evaluate.tables(dataset) | labels.tables(dataset)


def write(dataset: str, found: dict[str, pd.DataFrame]) -> list[Path]:
    """Write tables under their names; returns the files."""
    written = []
    for name, frame in found.items():
        written.append(store.folder(dataset) / name)
        write_csv(written[-1], frame)
    return written


def released(dataset: str) -> list[tuple[str, str]]:
    """File and verdict of what is released beside the tables."""
    judged, pool, provenance = (store.read(dataset, name) for name in ("judgements", "pool", "provenance"))
    grades = judged[["grade_1", "grade_2", "grade_3"]].astype(object).where(judged["grade_3"].notna(), None)
    grades[["grade_1", "grade_2"]] = judged[["grade_1", "grade_2"]]
    again = [final_grade(*row) for row in grades.itertuples(index=False)]
    rules = {"judgements.csv": list(judged["final"]) == again}
    pairs = [set(map(tuple, table[store.PAIR].to_numpy().tolist())) for table in (judged, pool, provenance)]
    rules |= {"pool.csv.xz": pairs[1] >= pairs[0], "provenance.csv.xz": pairs[1] >= pairs[2]}
    rounds = judged.merge(pool, on=store.PAIR, suffixes=("", "_pool"))
    rules["pool.csv.xz"] &= bool((rounds["round"] == rounds["round_pool"]).all())
    found = [(name, "OK" if holds else "FAIL") for name, holds in rules.items()]
    forms = publish.forms(dataset)
    for name, content in forms.items():
        kept = store.folder(dataset) / name
        same = (
            kept.exists() and (json.loads(kept.read_text()) if name.endswith(".json") else kept.read_text()) == content
        )
        found.append((name, "OK" if same else "FAIL" if kept.exists() else "MISSING"))
    return found


def verify(dataset: str) -> pd.DataFrame:
    """Compute everything again from the committed files and compare it with what is committed, byte by byte.

    Beside the tables: the final grades by the rule, the pairs of pool, provenance and judgements, qrels and Croissant.

    Returns: columns file, verdict: OK, FAIL (another content) or MISSING (computed, but not committed).
    """
    rows = released(dataset)
    with tempfile.TemporaryDirectory() as place:
        for name, frame in tables(dataset).items():
            again, kept = Path(place) / name, store.folder(dataset) / name
            write_csv(again, frame)
            same = kept.exists() and again.read_bytes() == kept.read_bytes()
            rows.append((name, "OK" if same else "FAIL" if kept.exists() else "MISSING"))
    return pd.DataFrame(rows, columns=["file", "verdict"])
