"""The committed files of the collection and the settings in ``conf/judging``: where they are, how they are read.

The files hold ids and grades only, never text of the data.
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
from study.base.files import read_csv, write_csv
from study.base.settings import read_settings

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
STEP = {
    "judgements": "study judge collect",
    "rejudged": "study judge batches --pass again, then collect",
    "language_grades": "study judge batches --pass language-1 and language-2, then collect",
    "readings": "study judge batches --pass umbrela, need-1, need-2 and decoys, then collect",
}


@dataclass(frozen=True)
class TopicSettings:
    """``conf/judging/topics.yaml``, which explains its keys."""

    protocol: str
    parts: dict[str, int]
    sources: dict[str, str]
    seed: int

    def source(self, part: str) -> str:
        """The part of the split that a part's topics come from."""
        return self.sources.get(part, part)


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

    systems: list[str]
    profile: str
    kept: int
    depth: int
    depths: dict[str, int]
    candidates: list[str]
    candidates_part: str
    candidates_depth: int
    variants: list[str]
    label_use: LabelUse
    compared: list[str]
    control: int
    controls: dict[str, int]
    seed: int

    def is_variant(self, system: str) -> bool:
        """Whether a system is a near copy of another, and so no independent evidence."""
        return any(fnmatchcase(system, pattern) for pattern in self.variants)


def topic_settings() -> TopicSettings:
    """Read ``conf/judging/topics.yaml``; StudyError unless its keys are those of `TopicSettings`."""
    return read_settings(TopicSettings, paths.conf() / "judging" / "topics.yaml")


def pool_settings() -> PoolSettings:
    """Read ``conf/judging/pool.yaml``; StudyError unless its keys are those of `PoolSettings`."""
    return read_settings(PoolSettings, paths.conf() / "judging" / "pool.yaml")


def folder(dataset: str) -> Path:
    """The collection's committed files."""
    return paths.results(dataset) / "judged"


def work(dataset: str) -> Path:
    """Batches and answers, which hold text of the data and stay out of git."""
    return paths.cache() / "judging" / dataset


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
    fix = f"restore it from git, or run: {STEP.get(name, 'study judge pool')} --dataset {dataset}"
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


def replace_rows(dataset: str, name: str, rows: pd.DataFrame, by: list[str]) -> None:
    """Write rows into a table of `COLUMNS`, in place of those that have one of their values in the columns `by`."""
    others = read_table_if_there(dataset, name)
    others = others[~among(others, rows, by)]
    table = pd.concat([others, rows]) if len(others) else rows
    write_csv(file(dataset, name), table[COLUMNS[name]].sort_values(KEYS.get(name, PAIR)))


def final(dataset: str) -> pd.DataFrame:
    """The judgements, every one with a final grade; StudyError where pairs wait for their third pass."""
    table = read_table(dataset, "judgements")
    if waiting := int(table["final"].isna().sum()):
        fix = "run: study judge batches --pass 3, have them judged, then study judge collect"
        raise StudyError(f"{waiting} pairs wait for a third pass", file=file(dataset, "judgements"), fix=fix)
    return table


def runs_file(dataset: str) -> Path:
    """The pooled runs, columns system and `RUN`; ``pools.json`` beside it holds the record of each."""
    return folder(dataset) / "pools.csv.xz"


def read_runs(dataset: str) -> dict[str, pd.DataFrame]:
    """The pooled runs by system, columns `RUN`: `labels` first, then in order of their names."""
    path = runs_file(dataset)
    table = read_csv(path, fix="run: study judge pool")
    if list(table.columns) != ["system", *RUN]:
        raise StudyError("not pooled runs", file=path, fix=f"its columns: system, {', '.join(RUN)}")
    runs = {str(name): run[RUN].reset_index(drop=True) for name, run in table.groupby("system")}
    return dict(sorted(runs.items(), key=lambda item: (item[0] != LABELS, item[0])))


def write_runs(dataset: str, runs: dict[str, pd.DataFrame]) -> None:
    """Write the pooled runs into one table."""
    table = pd.concat([run.assign(system=name) for name, run in sorted(runs.items())], ignore_index=True)
    write_csv(runs_file(dataset), table[["system", *RUN]])
