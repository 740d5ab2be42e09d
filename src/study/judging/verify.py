"""Writing what is computed from the collection, and checking that the committed numbers can be computed again."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pandas as pd

from study.files import write_csv
from study.judging import agreement, evaluate, labels, store


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


def verify(dataset: str) -> pd.DataFrame:
    """Compute every table again from the committed files and compare it with the committed one, byte by byte.

    Returns: columns file, verdict: OK, FAIL (another content) or MISSING (computed, but not committed).
    """
    rows = []
    with tempfile.TemporaryDirectory() as place:
        for name, frame in tables(dataset).items():
            again, kept = Path(place) / name, store.folder(dataset) / name
            write_csv(again, frame)
            same = kept.exists() and again.read_bytes() == kept.read_bytes()
            rows.append((name, "OK" if same else "FAIL" if kept.exists() else "MISSING"))
    return pd.DataFrame(rows, columns=["file", "verdict"])
