"""The three CSV files that the authors' program reads, made from the files that the authors released.

The release holds ``mcp_raw.json``, ``task_raw.json`` and a label file with one printed list per task. The program reads
``mcp_raw.csv`` (its id column is called ``num``), ``task.csv`` (``task_id``) and a wide ``mcp_task.csv`` (``task_id``,
``mcp1`` ... ``mcp10``). Rows keep the order of the files, since the program's split and its random draws follow it.
"""

from __future__ import annotations

from itertools import zip_longest
from pathlib import Path

import pandas as pd

from study.base import files
from study.base.errors import StudyError
from study.data import raw_files
from study.data.prepare import SERVERS_FILE, TASKS_FILE

SERVERS, TASKS, LABELS = "mcp_raw.csv", "task.csv", "mcp_task.csv"


def convert(raw: Path, folder: Path, *, labels: str) -> pd.DataFrame:
    """Write the three files into `folder`; a list has its ids as printed (0 and repeats too), null where it has ended.

    `raw`: folder with the released files. `labels`: name of the label file there.
    Returns: columns file, rows, altered (texts that pandas reads otherwise than they were written).
    Raises StudyError: a released file is missing or not as published, or pandas would read a row of a new one wrongly.
    """
    servers, _ = raw_files.read_table(raw / SERVERS_FILE, raw_files.SERVERS)
    tasks, _ = raw_files.read_table(raw / TASKS_FILE, raw_files.TASKS)
    lists = raw_files.read_lists(raw / labels)
    columns = {f"mcp{number}": ids for number, ids in enumerate(zip_longest(*lists.values()), start=1)}
    wide = pd.DataFrame({"task_id": list(lists)} | columns, dtype="Int64")
    renamed = {SERVERS: servers.rename(columns={"id": "num"}), TASKS: tasks.rename(columns={"id": "task_id"})}
    rows = []
    for name, table in (renamed | {LABELS: wide}).items():
        files.write_csv(folder / name, table)
        rows.append((name, len(table), altered(folder / name, table)))
    return pd.DataFrame(rows, columns=["file", "rows", "altered"])


def read_wide(path: Path) -> dict[int, set[int]]:
    """Task id -> the ids that the program counts as relevant: all of the row, each once."""
    table = pd.read_csv(path, dtype="Int64")
    rows = zip(table.pop("task_id").tolist(), table.to_numpy(), strict=True)
    return {task: {int(each) for each in row if not pd.isna(each)} for task, row in rows}


def altered(path: Path, table: pd.DataFrame) -> int:
    """How many texts of `table` pandas does not give back from the CSV file, since it takes words such as "null" for
    nothing; surrounding blanks, which the program strips, do not count."""
    read = pd.read_csv(path)
    if len(read) != len(table):
        fix = "report it: a text breaks rows"
        raise StudyError(f"pandas reads {len(read)} rows of {len(table)}", file=path, fix=fix)
    texts = [name for name in table if table[name].map(lambda value: isinstance(value, str)).any()]
    return sum(int((_stripped(read[name]) != _stripped(table[name])).sum()) for name in texts)


def _stripped(column: pd.Series) -> pd.Series:
    return column.astype(object).fillna("").astype(str).str.strip()
