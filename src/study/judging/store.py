"""The committed files of the collection and ``conf/judging/pool.yaml``: where they are, how they are read.

The files hold ids and grades only, never text of the data. A person adds judgements by further rows of
``judgements.csv`` and ``language_grades.csv``; ``docs/judged-card.md`` says how.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from study.base import paths
from study.base.errors import StudyError
from study.base.files import read_csv
from study.base.settings import read_settings
from study.data.dataset import Dataset
from study.data.splits import Split
from study.runner.inputs import load_inputs

PROTOCOL = "cold"  # whose parts the topics come from
LABELS = "labels"
PAIR = ["task_id", "server_id"]
RUN = ["task_id", "seed", "rank", "server_id"]
GRADES = (0, 1, 2)
COLUMNS = {
    "topics": ["task_id", "part", "subcategory"],
    "pool": [*PAIR, "order", "round"],
    "provenance": [*PAIR, "control", "sources"],
    "judgements": [*PAIR, "grade_1", "grade_2", "grade_3", "final", "round", "guideline_version", "judge"],
    "language_grades": [*PAIR, "grade_1", "grade_2", "final", "guideline_version", "judge"],
    "rejudged": [*PAIR, "grade", "round", "guideline_version", "judge"],
    "readings": ["reading", *PAIR, "given", "kind", "guideline_version", "judge"],
    "lengths": ["server_id", "characters"],
}
# Packed: large as plain text, which only the programs read.
PACKED = ("pool", "provenance", "readings")
KEYS = {"topics": ["task_id"], "rejudged": ["round", *PAIR], "readings": ["reading", *PAIR], "lengths": ["server_id"]}


@dataclass(frozen=True)
class LabelUse:
    """`label_use` of ``conf/judging/pool.yaml``: names of systems by what their fit learns from."""

    with_labels: list[str]
    without_labels: list[str]
    fused: list[str]
    tuned: list[str]

    @property
    def untuned(self) -> list[str]:
        """The systems that see no label and were not tuned on judged topics."""
        return [name for name in self.without_labels if name not in self.tuned]

    def kind(self, system: str) -> str:
        """with_labels, without_labels or fused, by the list that holds a system; `undeclared` where none does."""
        kinds = ("with_labels", "without_labels", "fused")
        return next((name for name in kinds if system in getattr(self, name)), "undeclared")


@dataclass(frozen=True)
class PoolSettings:
    """``conf/judging/pool.yaml``, which explains its keys."""

    variants: list[str]
    label_use: LabelUse
    compared: list[str]

    def is_variant(self, system: str) -> bool:
        """Whether a system is a near copy of another, and so no independent evidence."""
        return any(fnmatchcase(system, pattern) for pattern in self.variants)


def pool_settings() -> PoolSettings:
    """Read ``conf/judging/pool.yaml``; StudyError unless its keys are those of `PoolSettings`."""
    return read_settings(PoolSettings, paths.conf() / "judging" / "pool.yaml")


def folder(dataset: str) -> Path:
    """The collection's committed files."""
    return paths.results(dataset) / "judged"


def file(dataset: str, name: str) -> Path:
    """The CSV file of a table in `COLUMNS`, those of `PACKED` with .xz."""
    return folder(dataset) / f"{name}.csv{'.xz' if name in PACKED else ''}"


def pairs(table: pd.DataFrame) -> set[tuple[int, int]]:
    """The pairs (task_id, server_id) that a table holds."""
    return set(table[PAIR].itertuples(index=False, name=None))


def read_table(dataset: str, name: str) -> pd.DataFrame:
    """Read and check one table of `COLUMNS`; grades are nullable integers. Raises StudyError: the file is missing or
    damaged, repeats a key, or holds a grade other than 0, 1, 2."""
    path, columns, keys = file(dataset, name), COLUMNS[name], KEYS.get(name, PAIR)
    fix = "restore it from git; docs/judged-card.md says how it is made"
    table = read_csv(path, fix=fix, columns=columns, dtype={"guideline_version": str, "judge": str})[columns]
    if (repeated := table.duplicated(keys)).any():
        raise StudyError(f"repeats {' and '.join(keys)}", file=path, row=int(repeated.argmax()), fix="keep one row")
    for column in table.columns.intersection(["grade", "grade_1", "grade_2", "grade_3", "final"]):
        if (wrong := ~(table[column].isna() | table[column].isin(GRADES))).any():
            row = int(wrong.argmax())
            raise StudyError("a grade is not 0, 1 or 2", file=path, row=row, column=column, fix="collect again")
        table = table.astype({column: "Int64"})
    return table


def read_table_if_there(dataset: str, name: str) -> pd.DataFrame:
    """Like `read_table`, but an absent file is an empty table."""
    return read_table(dataset, name) if file(dataset, name).exists() else pd.DataFrame(columns=COLUMNS[name])


def among(rows: pd.DataFrame, others: pd.DataFrame, by: list[str]) -> NDArray[np.bool_]:
    """Which rows have the values of one of `others` in the columns `by`, shape (len(rows),)."""
    return np.asarray(pd.MultiIndex.from_frame(rows[by]).isin(pd.MultiIndex.from_frame(others[by])))


def final(dataset: str) -> pd.DataFrame:
    """The judgements, every one with a final grade; StudyError where pairs wait for their third pass."""
    table = read_table(dataset, "judgements")
    if waiting := int(table["final"].isna().sum()):
        fix = "have them graded a third time, and write the median of the three (docs/judged-card.md)"
        raise StudyError(f"{waiting} pairs wait for a third pass", file=file(dataset, "judgements"), fix=fix)
    return table


def runs_file(dataset: str) -> Path:
    """The pooled runs, columns system and `RUN`; ``pools.json`` beside it holds the record of each."""
    return folder(dataset) / "pools.csv.xz"


def read_runs(dataset: str) -> dict[str, pd.DataFrame]:
    """The pooled runs by system, columns `RUN`: `labels` first, then in order of their names."""
    table = read_csv(runs_file(dataset), columns=["system", *RUN])
    runs = {str(name): run[RUN].reset_index(drop=True) for name, run in table.groupby("system")}
    return dict(sorted(runs.items(), key=lambda item: (item[0] != LABELS, item[0])))


def load_split(dataset: str) -> tuple[Dataset, Split]:
    """The prepared data set and the split that the topics come from."""
    return load_inputs(dataset, PROTOCOL)
