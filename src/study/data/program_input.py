"""The three CSV files that the authors' program reads, made from the files that the authors released.

The release holds ``mcp_raw.json``, ``task_raw.json`` and a label file with one printed list per task. The program reads
``mcp_raw.csv`` (its id column is called ``num``), ``task.csv`` (``task_id``) and a wide ``mcp_task.csv`` (``task_id``,
``mcp1`` ... ``mcp10``). Rows keep the order of the files, since the program's split and its random draws follow it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from study.base import files
from study.base.errors import StudyError
from study.data import raw_files
from study.data.prepare import SERVERS_FILE, TASKS_FILE

SERVERS, TASKS, LABELS = "mcp_raw.csv", "task.csv", "mcp_task.csv"
# The released lists have ten ids each. Longer ones (mcp_task_all.csv) get further columns, which the program reads too.
WIDTH = 10


def convert(raw: Path, folder: Path, *, labels: str) -> pd.DataFrame:
    """Write the three files into `folder`.

    `raw`: folder with the released files.
    `labels`: name of the label file there.
    Returns: what was converted, columns file, change, count.
    Raises StudyError: a released file is missing or not as published, or pandas would read a row of a new one wrongly.
    """
    servers, _ = raw_files.read_table(raw / SERVERS_FILE, raw_files.SERVERS)
    tasks, _ = raw_files.read_table(raw / TASKS_FILE, raw_files.TASKS, wrapper="task_raw")
    lists = raw_files.read_lists(raw / labels)
    wide = spread(lists)
    tables = {
        SERVERS: servers.rename(columns={"id": "num"}),
        TASKS: tasks.rename(columns={"id": "task_id"}),
        LABELS: wide,
    }
    for name, table in tables.items():
        files.write_csv(folder / name, table)
    known, lengths = set(servers["id"]), [len(listed) for listed in lists.values()]
    absent = [sum(server not in known for server in listed) for listed in lists.values()]
    counts = [
        (SERVERS, "rows, id called num", len(servers)),
        (SERVERS, "texts that pandas reads otherwise", altered(folder / SERVERS, tables[SERVERS])),
        (TASKS, "rows, id called task_id, wrapper task_raw removed", len(tasks)),
        (TASKS, "texts that pandas reads otherwise", altered(folder / TASKS, tables[TASKS])),
        (LABELS, f"lists spread over mcp1 ... mcp{wide.shape[1] - 1}", len(lists)),
        (LABELS, f"lists of fewer than {WIDTH} ids", sum(length < WIDTH for length in lengths)),
        (LABELS, f"lists of more than {WIDTH} ids", sum(length > WIDTH for length in lengths)),
        (LABELS, "lists that repeat an id", sum(len(set(listed)) < len(listed) for listed in lists.values())),
        (LABELS, "ids absent from the catalogue, kept", sum(absent)),
        (LABELS, "lists with such ids", sum(count > 0 for count in absent)),
    ]
    return pd.DataFrame(counts, columns=["file", "change", "count"])


def spread(lists: Mapping[int, list[int]]) -> pd.DataFrame:
    """One row per task: task_id, mcp1, mcp2, ...; ids as printed (0 and repeats too), null where a list has ended."""
    width = max(WIDTH, *map(len, lists.values()))
    rows = [[task, *listed, *[None] * (width - len(listed))] for task, listed in lists.items()]
    return pd.DataFrame(rows, columns=["task_id", *(f"mcp{place}" for place in range(1, width + 1))]).astype("Int64")


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
        raise StudyError(
            f"pandas reads {len(read)} rows of {len(table)}", file=path, fix="report it: a text breaks rows"
        )
    texts = [name for name in table if table[name].map(lambda value: isinstance(value, str)).any()]
    return sum(int((_stripped(read[name]) != _stripped(table[name])).sum()) for name in texts)


def _stripped(column: pd.Series) -> pd.Series:
    return column.astype(object).where(column.notna(), "").astype(str).str.strip()
