"""The rows that the audit examines, and its settings, ``conf/audit``, read strictly: a misspelt key is an error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from study import paths
from study.analysis.report import paper
from study.analysis.report.tables import PAPER_METRICS
from study.config.reader import read_keys
from study.errors import StudyError


def settings(name: str, keys: tuple[str, ...]) -> dict[str, Any]:
    """``conf/audit/<name>.yaml``, which must have exactly these keys at its top."""
    return read_keys(paths.conf() / "audit" / f"{name}.yaml", keys)


def folder(dataset: str) -> Path:
    """Where the audit of a data set keeps its tables."""
    return paths.results(dataset) / "audit"


class AuditTables(dict[str, pd.DataFrame]):
    """The tables of an audit by name; one that has not been made is a `StudyError` that says how to make it."""

    def __init__(self, dataset: str) -> None:
        found = [*folder(dataset).glob("*.csv"), *folder(dataset).glob("*.csv.xz")]
        super().__init__({path.name.partition(".")[0]: pd.read_csv(path, comment="#") for path in sorted(found)})
        self.dataset = dataset

    def __missing__(self, name: str) -> pd.DataFrame:
        raise StudyError(
            "the table has not been made",
            file=folder(self.dataset) / f"{name}.csv",
            fix=f"run: study audit run dataset={self.dataset}",
        )


def described(dataset: str) -> bool:
    """Whether the paper's numbers describe this data set."""
    return bool(paper.load().attrs["dataset"] == dataset)


def printed_rows() -> pd.DataFrame:
    """The rows of Tables 3 and 4, each once.

    Returns: columns table, place, row (the paper's name), own (the study's system of the same or nearest
        configuration, empty where there is none) and one per metric@k, in `PAPER_METRICS` order.
    """
    cells = paper.load()
    parts = []
    for table in dict.fromkeys(cells["table"]):
        part = cells[cells["table"] == table]
        about = part.drop_duplicates("printed").set_index("printed")
        values = paper.wide(cells, table)
        own = about["system"].where(about["system"] != "", about["stand_in"])
        parts.append(
            values.assign(table=table, place=about["place"], own=own, row=values.index)[
                ["table", "place", "row", "own", *PAPER_METRICS]
            ]
        )
    # Table 4 repeats the method's row of Table 3.
    return pd.concat(parts, ignore_index=True).drop_duplicates(["row", *PAPER_METRICS], ignore_index=True)
