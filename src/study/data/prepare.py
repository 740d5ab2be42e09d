"""From the published files to checked, cleaned tables. Nothing is dropped or changed without being counted."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pandas as pd

from study.base import files, paths
from study.data import normalise, raw_files

SERVERS_FILE, TASKS_FILE = "mcp_raw.json", "task_raw.json"
LABELS_FILE, ALL_LABELS_FILE = "mcp_task.csv", "mcp_task_all.csv"
CLEANING_COLUMNS = ["rule", "table", "column", "rows", "values", "action", "note"]
CHANGED, ADDED, REPORTED = "changed", "column added", "reported only"
# One line of the cleaning table: what a rule met, also where it met nothing.
Line = tuple[str, str, str, int, int, str, str]

_unify = partial(normalise.unify, key=normalise.spelling_key)
# table -> new column -> (released column, how its variants are brought together)
NORMALISED: dict[str, dict[str, tuple[str, Callable[[list[str]], list[str]]]]] = {
    "servers": {
        "category_clean": ("category", _unify),
        "subcategory_clean": ("subcategory", _unify),
        "license_clean": ("license", lambda values: [normalise.licence_key(value) for value in values]),
        "language_tokens": ("language", normalise.unify_tokens),
        "system_tokens": ("system", normalise.unify_tokens),
    },
    "tasks": {
        "category_clean": ("category", _unify),
        "subcategory_clean": ("subcategory", _unify),
        "theme_clean": ("theme", partial(normalise.unify, key=partial(normalise.spelling_key, plural=False))),
        "language_tokens": ("language", normalise.unify_tokens),
    },
}


def prepare(
    name: str, raw: Path | None = None, folder: Path | None = None, *, labels: str = LABELS_FILE
) -> pd.DataFrame:
    """Check and clean the raw files of data set `name`; write servers, tasks and labels (parquet) and cleaning.csv.

    The released text that enters x_m and x_t stays exactly as it is, apart from null, which becomes the empty text;
    unified spellings go into further columns. Rows keep the order of the files. Earlier outputs are replaced only
    when every new table is good.

    `raw`, `folder`: where to read and write if not in the data set's folders. `labels`: the file that the study uses.
    Returns: the cleaning table. Raises StudyError: anything wrong in a raw file, with its place and what to do.
    """
    raw, prepared, tables = raw or paths.raw(name), folder or paths.prepared(name), folder or paths.tables(name)
    servers, lines = clean_table(raw / SERVERS_FILE, "servers")
    tasks, of_tasks = clean_table(raw / TASKS_FILE, "tasks")
    frames, lines = {"servers": servers, "tasks": tasks}, lines + of_tasks
    for part, path in (("labels", raw / labels), ("labels_all", raw / ALL_LABELS_FILE)):
        if part == "labels" or path.is_file():
            frames[part], of_labels = clean_labels(path, part, servers, tasks)
            lines += of_labels
    cleaning = pd.DataFrame(lines, columns=CLEANING_COLUMNS)
    with ExitStack() as stack:
        for part, frame in frames.items():
            files.write_parquet(stack.enter_context(files.replacing(prepared / f"{part}.parquet")), frame)
        files.write_csv(stack.enter_context(files.replacing(tables / "cleaning.csv")), cleaning)
    if "labels_all" not in frames:
        (prepared / "labels_all.parquet").unlink(missing_ok=True)
    return cleaning


def clean_table(path: Path, table: str) -> tuple[pd.DataFrame, list[Line]]:
    """The server or task table: nulls as empty text, unified spellings in further columns; and its defects, counted."""
    servers = table == "servers"
    frame, unknown = raw_files.read_table(path, raw_files.SERVERS if servers else raw_files.TASKS)
    numbers = ["id", *(raw_files.SERVER_NUMBERS if servers else ())]
    texts = [str(column) for column in frame if column not in numbers]
    n, empty = len(frame), frame.isna().sum()
    lines = [("unknown column left out", table, column, n, n, CHANGED, "") for column in unknown]
    nullable = [column for column in texts if servers and column in raw_files.SERVER_NULLABLE]
    lines += [("null becomes empty text", table, c, int(empty[c]), int(empty[c]), CHANGED, "") for c in nullable]
    clean = frame.fillna("").astype(dict.fromkeys(numbers, "int64") | dict.fromkeys(texts, "str"))
    for new, (column, unify) in NORMALISED[table].items():
        clean[new] = pd.Series(unify(clean[column].tolist()), index=clean.index, dtype="str")
        lines.append(_variants(clean[clean[column] != ""], table, column, new))
    if servers:
        clean["is_official"] = clean["official"].eq("official")
        lines.append(("text becomes true or false", table, "is_official", n, n, ADDED, ""))
    note = "rows: share their text with another; values: rows beyond the first of each text"
    for column in (name for name in ("name", "url", "description", "web_url") if name in clean):
        filled = clean.loc[clean[column] != "", column]
        counts = int(filled.duplicated(keep=False).sum()), int(filled.duplicated().sum())
        lines.append(("repeated text", table, column, *counts, REPORTED, note))
    return clean, lines


def _variants(filled: pd.DataFrame, table: str, column: str, new: str) -> Line:
    """The line about the spellings of a column that `new` brings together; `filled`: rows that have a text there."""
    before, listed = int(filled[column].nunique()), new.endswith("tokens")
    after = normalise.distinct(filled[new], listed=listed)
    note = f"{before} different released texts, {after} different {'entries' if listed else 'texts'} after"
    changed = int((filled[column] != filled[new]).sum())
    return "spelling variants unified", table, new, changed, before, ADDED, note


def clean_labels(path: Path, table: str, servers: pd.DataFrame, tasks: pd.DataFrame) -> tuple[pd.DataFrame, list[Line]]:
    """The label lists in long form, without id 0 and repeats, with the position that each id had in the file. Returns:
    columns task_id, server_id, position (from 1); and the defects, counted."""
    lists = raw_files.read_lists(path)
    raw_files.check_references(lists, set(tasks["id"]), set(servers["id"]), path)
    long = [(task, server, rank) for task, row in lists.items() for rank, server in enumerate(row, start=1)]
    frame = pd.DataFrame(long, columns=["task_id", "server_id", "position"]).astype("int64")
    zero, repeated = frame["server_id"] == 0, frame.duplicated(["task_id", "server_id"])
    clean = frame[~zero & ~repeated].reset_index(drop=True)
    sets = clean.groupby("task_id")["server_id"].agg(frozenset).value_counts()
    same, beyond = (int(sets[sets > 1].sum()), int((sets - 1).sum())), "values: lists beyond the first of each set"
    twice = f"{int((zero & repeated).sum())} of these values are id 0, which the rule before has already left out"

    def lists_and_values(rows: pd.Series[bool]) -> tuple[int, int]:
        return frame.loc[rows, "task_id"].nunique(), int(rows.sum())

    lines = [
        ("id 0 (no server has it) left out", table, "server_id", *lists_and_values(zero), CHANGED, ""),
        ("repeated id in one list left out", table, "server_id", *lists_and_values(repeated), CHANGED, twice),
        ("same set of servers as another task", table, "server_id", *same, REPORTED, beyond),
    ]
    return clean, lines
