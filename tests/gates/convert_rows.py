"""Bring the committed rows into long files: those of single files, and those whose system has moved to another folder.

    python tests/gates/convert_rows.py

May be run again at any time; what lies where it belongs is left alone.
"""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd

from study.base import paths
from study.base.registry import folder_of
from study.runner import row_store
from study.runner.row_store import Row


def single_files(results: Path) -> dict[tuple[str, str], tuple[Path, Path, Path]]:
    """(protocol, system) -> files of a row by itself."""
    return {
        (path.parent.name, name): (
            path,
            results / "top10" / path.parent.name / f"{name}.parquet",
            results / "records" / path.parent.name / f"{name}.json",
        )
        for path in sorted(results.glob("per_task/*/*.csv.xz"))
        if (name := path.name.removesuffix(".csv.xz"))
    }


def misplaced(dataset: str) -> list[tuple[str, str]]:
    """The rows that lie in the file of another folder than their system."""
    return [
        (path.parent.name, record["system"])
        for path in row_store.long_files(dataset, "records")
        for record in map(json.loads, path.read_text(encoding="utf-8").split("\n")[:-1])
        if folder_of(record["system"]) != path.parent.parent.name
    ]


def main() -> None:
    """Convert the rows of every data set."""
    for results in sorted(path.parent for path in (paths.root() / "results").glob("*/records")):
        files = single_files(results)
        rows = {
            key: Row(pd.read_csv(values), pd.read_parquet(top), json.loads(record.read_text(encoding="utf-8")))
            for key, (values, top, record) in files.items()
        }
        rows |= {cell: row_store.read_row(results.name, *cell) for cell in misplaced(results.name)}
        if rows:
            row_store.write_rows(results.name, rows)
        for path in (path for parts in files.values() for path in parts):
            path.unlink()
        print(f"{results.name}: {len(rows)} rows written, {3 * len(files)} single files removed")
    for name in ("per_task", "top10", "records"):
        for folder in sorted((paths.root() / "results").glob(f"*/{name}/**"), reverse=True):
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()


if __name__ == "__main__":
    main()
